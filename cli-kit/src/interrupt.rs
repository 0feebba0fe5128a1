//! SIGINT, SIGTERM and SIGHUP as values that async code can wait for.
//!
//! A signal that was ignored when this program started stays ignored: `nohup` and a shell's `&` rely on that.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receiver of the signals that request the exit of a program.
pub struct Interrupts {
    signals: [Option<Signal>; 3],
}

const TERMINATION_SIGNALS: [SignalKind; 3] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];

impl Interrupts {
    /// Replaces the default actions of SIGINT, SIGTERM and SIGHUP, except for ignored signals. [`Self::next`] then
    /// returns these signals.
    pub fn install() -> io::Result<Self> {
        let ignored = ignored_mask(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let mut signals = [None, None, None];
        for (slot, kind) in signals.iter_mut().zip(TERMINATION_SIGNALS) {
            if ignored & (1 << (kind.as_raw_value() - 1)) == 0 {
                *slot = Some(signal(kind)?);
            }
        }
        Ok(Self { signals })
    }

    /// Creates a value that catches no signals: [`Self::next`] waits forever.
    pub fn none() -> Self {
        Self { signals: [None, None, None] }
    }

    /// Waits for the next signal and returns its number.
    pub async fn next(&mut self) -> i32 {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            () = recv_or_pending(interrupt) => SignalKind::interrupt().as_raw_value(),
            () = recv_or_pending(terminate) => SignalKind::terminate().as_raw_value(),
            () = recv_or_pending(hangup) => SignalKind::hangup().as_raw_value(),
        }
    }
}

async fn recv_or_pending(signal: &mut Option<Signal>) {
    let arrived = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if arrived.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Returns the mask of ignored signals (`SigIgn:`) from the text of /proc/PID/status; 0 if the mask is missing.
fn ignored_mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::ignored_mask;

    #[test]
    fn reads_the_mask_of_ignored_signals() {
        assert_eq!(ignored_mask("Name:\tx\nSigBlk:\t00\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), 0x1001);
        assert_eq!(ignored_mask(""), 0);
    }
}
