//! Exit statuses of the programs.
//!
//! `env`, `timeout` and Docker use the same statuses, so a script can treat `agent-cli run -- CMD` like `CMD`. A
//! process can itself exit with 125, 126 or 127. The output of `--json` contains the exit status of the process.

use executor_client::v1::{ExitStatus, Result as Ending, exit_status, failure};

/// Exit status for errors of this program, the daemon or the caller, as opposed to the status of the process.
pub const OURS: u8 = 125;
/// Exit status if the program exists but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit status if the program does not exist.
pub const NOT_FOUND: u8 = 127;
/// Base of the exit status after a signal; the number of the signal is added.
pub const SIGNAL_BASE: u8 = 128;

const ENOENT: i32 = 2;

/// Result of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Exited(i32),
    Signaled(i32),
    /// The program could not be executed; holds the errno.
    NotExecuted(i32),
    /// The container could not be prepared, or its exit is unknown.
    Failed(failure::Kind),
    /// The daemon reported neither an exit nor a failure.
    Unknown,
}

impl Outcome {
    /// Converts the result of a completed container to an outcome.
    pub fn new(ending: Option<&Ending>) -> Self {
        let Some(ending) = ending else { return Self::Unknown };
        match (ending.exit.and_then(|exit| exit.status), &ending.failure) {
            (Some(exit_status::Status::Code(code)), _) => Self::Exited(code),
            (Some(exit_status::Status::Signal(signal)), _) => Self::Signaled(signal),
            (None, Some(failure)) if failure.kind() == failure::Kind::Exec => Self::NotExecuted(failure.errno),
            // The first failure in a tree of actions was a program that could not be executed.
            (None, Some(failure)) if failure.kind() == failure::Kind::Action && failure.errno != 0 => {
                Self::NotExecuted(failure.errno)
            }
            (None, Some(failure)) => Self::Failed(failure.kind()),
            (None, None) => Self::Unknown,
        }
    }

    /// Converts the exit status of a process to an outcome.
    pub fn from_exit(exit: &ExitStatus) -> Self {
        match exit.status {
            Some(exit_status::Status::Code(code)) => Self::Exited(code),
            Some(exit_status::Status::Signal(signal)) => Self::Signaled(signal),
            None => Self::Unknown,
        }
    }

    /// Returns the exit status with which this program reports the outcome.
    pub fn status(self) -> u8 {
        match self {
            // Use the low 8 bits, as the kernel reports them to a parent.
            Self::Exited(code) => (code & 0xff) as u8,
            Self::Signaled(signal) => after_signal(signal),
            Self::NotExecuted(ENOENT) => NOT_FOUND,
            Self::NotExecuted(_) => NOT_EXECUTABLE,
            Self::Failed(_) | Self::Unknown => OURS,
        }
    }
}

/// Returns 128 plus the signal number, at most 255.
pub fn after_signal(signal: i32) -> u8 {
    u8::try_from(signal).ok().and_then(|signal| SIGNAL_BASE.checked_add(signal)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_client::v1::Failure;

    #[test]
    fn result_determines_exit_status() {
        use exit_status::Status::{Code, Signal};
        let exit = |status| Ending { exit: Some(ExitStatus { status: Some(status) }), ..Default::default() };
        let failure = |kind: failure::Kind, errno| Ending {
            failure: Some(Failure { kind: kind.into(), errno, ..Default::default() }),
            ..Default::default()
        };
        let table = [
            (exit(Code(0)), 0),
            (exit(Code(3)), 3),
            (exit(Code(255)), 255),
            (exit(Code(256)), 0),
            (exit(Signal(9)), 137),
            (exit(Signal(15)), 143),
            (exit(Signal(64)), 192),
            (failure(failure::Kind::Exec, 2), 127),
            (failure(failure::Kind::Exec, 13), 126),
            (failure(failure::Kind::Exec, 8), 126),
            (failure(failure::Kind::Exec, 0), 126),
            (failure(failure::Kind::Action, 2), 127),
            (failure(failure::Kind::Action, 13), 126),
            (failure(failure::Kind::Action, 0), 125),
            (failure(failure::Kind::Prepare, 2), 125),
            (failure(failure::Kind::SupervisorLost, 0), 125),
            (failure(failure::Kind::HostStopped, 0), 125),
            (Ending::default(), 125),
        ];
        for (ending, status) in table {
            assert_eq!(Outcome::new(Some(&ending)).status(), status, "{ending:?}");
        }
        assert_eq!(Outcome::new(None).status(), 125);
    }

    /// If the process has a recorded exit status, the outcome is this status, even after an OOM kill or another
    /// failure.
    #[test]
    fn an_exit_counts_more_than_a_failure() {
        let ending = Ending {
            exit: Some(ExitStatus { status: Some(exit_status::Status::Signal(9)) }),
            oom_killed: true,
            failure: Some(Failure::default()),
            ..Default::default()
        };
        assert_eq!(Outcome::new(Some(&ending)), Outcome::Signaled(9));
    }
}
