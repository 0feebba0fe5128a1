//! Exit statuses: one table, for the program, for `--help` and for the manual.
//!
//! The statuses are those of `env`, `timeout` and Docker, so that a script can treat `agent-cli run -- CMD` as it
//! treats `CMD`. A process may itself exit with 125, 126 or 127; `--json` tells the two apart.

use executor_client::v1::{ExitStatus, Result as Ending, exit_status, failure};

/// Status of an error that is this program's, the daemon's or the caller's, not the process's.
pub const OURS: u8 = 125;
/// The program exists and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program does not exist.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended a process.
pub const SIGNAL_BASE: u8 = 128;

/// An audit found something, or could not look everywhere.
pub const RESIDUE: u8 = 1;

/// The cell is not healthy.
pub const UNHEALTHY: u8 = 1;

/// Commands whose exit status says more than done and failed.
pub const WITH_STATUSES: [&str; 6] = ["run", "wait", "exec", "attach", "audit", "health"];

/// The meaning of each status, in the words of the manual.
pub const TABLE: [(&str, &str); 7] = [
    ("0-255", "run, wait, exec, attach: as the process; a program: as it does; other commands: 0 when done"),
    ("1", "audit: a canary was left, or was where it must not be, or not all could be searched; health: not healthy"),
    (
        "125",
        "an error of agent-cli or executord, bad usage, a lost container, output of run or attach that is not complete",
    ),
    ("126", "run, wait, exec, a program: it could not be executed"),
    ("127", "run, wait, exec: the program was not found"),
    ("128+N", "run, wait, exec, attach: signal N ended the process; others: it ended agent-cli"),
    ("141", "the reader of the output went away (| head); run stops the container"),
];

/// `ENOENT`.
const ENOENT: i32 = 2;

/// End of a container, in one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Exited(i32),
    Signaled(i32),
    /// The program could not be executed, for this errno.
    NotExecuted(i32),
    /// The container could not be prepared, or its end is unknown.
    Failed(failure::Kind),
    /// The daemon told neither an exit nor a failure.
    Unknown,
}

impl Outcome {
    /// Reads a completed container's result.
    pub fn new(ending: Option<&Ending>) -> Self {
        let Some(ending) = ending else { return Self::Unknown };
        match (ending.exit.and_then(|exit| exit.status), &ending.failure) {
            (Some(exit_status::Status::Code(code)), _) => Self::Exited(code),
            (Some(exit_status::Status::Signal(signal)), _) => Self::Signaled(signal),
            (None, Some(failure)) if failure.kind() == failure::Kind::Exec => Self::NotExecuted(failure.errno),
            (None, Some(failure)) => Self::Failed(failure.kind()),
            (None, None) => Self::Unknown,
        }
    }

    /// Reads how a process ended.
    pub fn from_exit(exit: &ExitStatus) -> Self {
        match exit.status {
            Some(exit_status::Status::Code(code)) => Self::Exited(code),
            Some(exit_status::Status::Signal(signal)) => Self::Signaled(signal),
            None => Self::Unknown,
        }
    }

    /// The status to exit with.
    pub fn status(self) -> u8 {
        match self {
            // As the kernel hands it to a parent: the low 8 bits.
            Self::Exited(code) => (code & 0xff) as u8,
            Self::Signaled(signal) => after_signal(signal),
            Self::NotExecuted(ENOENT) => NOT_FOUND,
            Self::NotExecuted(_) => NOT_EXECUTABLE,
            Self::Failed(_) | Self::Unknown => OURS,
        }
    }
}

/// 128 + N.
pub fn after_signal(signal: i32) -> u8 {
    u8::try_from(signal).ok().and_then(|signal| SIGNAL_BASE.checked_add(signal)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_client::v1::Failure;

    #[test]
    fn statuses() {
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

    /// A process that was killed for its memory, or lost after it had run, keeps the exit that was recorded.
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
