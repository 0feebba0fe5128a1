//! An attacker that swaps directories with links while another process uses them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Thread that swaps pairs of paths continuously until it is dropped.
pub struct Exchange {
    ended: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Exchange {
    pub fn start(pairs: Vec<(PathBuf, PathBuf)>) -> Self {
        let (ended, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, counted) = (Arc::clone(&ended), Arc::clone(&count));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                for (one, other) in &pairs {
                    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("both paths exist");
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { ended, count, thread: Some(thread) }
    }

    /// Stops the thread and returns the number of swaps.
    pub fn stop(mut self) -> u64 {
        self.end();
        self.count.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.end();
    }
}
