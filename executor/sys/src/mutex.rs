//! Locks mutexes of the standard library in processes in which a panic aborts.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A panic aborts the process ([`crate::startup::abort_on_panic`]), so a lock can be poisoned only in
/// tests.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
