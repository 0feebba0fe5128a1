//! Receives signals of the calling process as events, and blocks and resets signals.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Signals that are blocked and read from a descriptor (signalfd). Create this before any child process, so that the
/// exit of a child is not missed.
pub struct SignalEvents(SignalFd);

impl SignalEvents {
    /// Blocks exactly these signals in this process and its future children, and receives the signals as events.
    ///
    /// # Errors
    /// Returns an error if descriptors run out.
    pub fn take(signals: &[Signal]) -> io::Result<Self> {
        let mut set = SigSet::empty();
        for signal in signals {
            set.add(*signal);
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&set), None)?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// Returns the next pending signal, if there is one.
    ///
    /// # Errors
    /// Returns the kernel's error if a system call fails, which is not expected.
    pub fn next(&self) -> io::Result<Option<i32>> {
        Ok(self.0.read_signal()?.map(|info| info.ssi_signo as i32))
    }
}

impl AsFd for SignalEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Unblocks all signals and resets every action to the default, for a program that is about to be executed.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn reset_signals() -> io::Result<()> {
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    // execve keeps ignored signals ignored: SIGPIPE, which Rust ignores in every program, and signals that the daemon's
    // parent ignores (nohup). A shell cannot set a trap for a signal that is ignored at its start.
    // The function of the C library rejects two signals that it reserves, although these can be ignored, too.
    const ALL: std::ops::RangeInclusive<i64> = 1..=64;
    let default_action = [0u64; 4]; // SIG_DFL, no flags, no mask, in the kernel's layout
    for number in ALL.filter(|number| ![i64::from(libc::SIGKILL), i64::from(libc::SIGSTOP)].contains(number)) {
        // SAFETY: the second argument points to a live value that the kernel reads; the action runs no code here.
        let done = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, number, default_action.as_ptr(), std::ptr::null_mut::<u64>(), 8usize)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes this process ignore SIGHUP by an empty handler. An executed program gets the default action.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn survive_hangup() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler is empty, so it can interrupt any code.
    unsafe { sigaction(Signal::SIGHUP, &action) }?;
    Ok(())
}

/// Blocks SIGHUP, even across execve, so that it stays pending for [`SignalEvents`].
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn hold_hangup() -> io::Result<()> {
    let mut hangup = SigSet::empty();
    hangup.add(Signal::SIGHUP);
    Ok(hangup.thread_block()?)
}

/// Blocks every signal, for [`serve_as_init`](crate::process::wait::serve_as_init).
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn hold_signals() -> io::Result<()> {
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?)
}
