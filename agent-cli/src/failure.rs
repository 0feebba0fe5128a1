//! Errors of the command line, with advice and the status to exit with.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use executor_client::{Code, ServerAddress, Violation};

use crate::text::plain;
use crate::{exit, signals};

/// Reason why a command ended without doing what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line contradicts itself.
    #[error("{0}")]
    Usage(String),
    /// An error of one subject's own.
    #[error(transparent)]
    Wrapped(Wrapped),
    /// Executord answered with an error; the text is ready to be read.
    #[error("{message}")]
    Refused { code: Code, message: String },
    /// The same with the fields that are at fault.
    #[error("{message}")]
    Violated { code: Code, message: String, violations: Vec<Violation> },
    /// The connection broke and did not come back.
    #[error("{doing}: lost executord at {at} and it did not come back within {} s", .waited.as_secs())]
    GaveUp { doing: String, at: ServerAddress, waited: Duration },
    /// This program's own output could not be written.
    #[error("cannot write to {stream}")]
    Output { stream: &'static str, source: io::Error },
    /// The system refuses a resource that every program needs, such as a thread.
    #[error("the system refuses what this program needs to run")]
    System(#[source] io::Error),
    /// The reader of the output closed it.
    #[error("the reader of the output went away")]
    ClosedPipe,
    #[error("interrupted by {}", signals::name(*.0))]
    Interrupted(i32),
    /// The user pressed the keys that detach from a process.
    #[error("the container {id} goes on; `agent-cli attach {id}` comes back to it")]
    Detached { id: String },
    /// The user pressed Ctrl-C for the third time.
    #[error("left at once; the container {id} may still be there: `agent-cli rm -f {id}` removes it")]
    Abandoned { id: String, signal: i32 },
    /// The manual or the completions could not be written.
    #[error("cannot write into {}", .path.display())]
    Generate { path: PathBuf, source: io::Error },
    /// The log broke off while the process went on.
    #[error("the output of {id} is incomplete")]
    LogLost { id: String },
    /// The container of an audit is gone before it was searched.
    #[error("the audit's container ended early: {0}; its root file system must have /bin/sh, cat and sleep")]
    AuditEnded(String),
    /// A file that is to be copied could not be read.
    #[error("cannot read {}", plain(&.path.display().to_string()))]
    Unread { path: PathBuf, source: io::Error },
    /// An archive that came is damaged, or ends too early.
    #[error("the archive for {} is damaged or incomplete", .path.display())]
    Archive { path: PathBuf, source: io::Error },
    /// A copy is larger than its limit.
    #[error("{path}: more than {max} bytes; --max-size sets the limit")]
    CopyTooLarge { path: String, max: u64 },
    /// Entries were left out of a copy; each was reported.
    #[error("{left_out} not copied, {copied} copied")]
    LeftOut { left_out: usize, copied: u64 },
    /// Executord sent an output that was not requested.
    #[error("executord sent an output that was not asked for: {path:?}")]
    Unasked { path: String },
    /// An output is not as long as it was announced.
    #[error("{path}: executord sent another number of bytes than it announced")]
    OutputSize { path: String },
    /// Outputs are missing from a copy; each was reported.
    #[error("{skipped} not captured, {copied} copied")]
    OutputsSkipped { skipped: usize, copied: usize },
    /// Some of several operations failed; each failure was reported.
    #[error("{failed} of {all} failed")]
    Several { failed: usize, all: usize },
}

/// An error of one subject's own, with the exit status that it means.
#[derive(Debug)]
pub struct Wrapped {
    error: Box<dyn Error + Send + Sync>,
    status: u8,
}

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl Failure {
    /// Wraps an error, to end with this exit status.
    pub fn wrap(error: impl Error + Send + Sync + 'static, status: u8) -> Self {
        Self::Wrapped(Wrapped { error: Box::new(error), status })
    }

    /// Returns the wrapped error where it is one of this type.
    pub fn wrapped<E: Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Wrapped(wrapped) => wrapped.error.downcast_ref(),
            _ => None,
        }
    }

    /// The status to exit with.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::ClosedPipe => exit::after_signal(signals::PIPE as i32),
            Self::Interrupted(signal) | Self::Abandoned { signal, .. } => exit::after_signal(*signal),
            Self::Wrapped(error) => error.status,
            _ => exit::OURS,
        }
    }

    /// Returns whether the rest of the output is not worth waiting for.
    pub fn is_hasty(&self) -> bool {
        matches!(self, Self::ClosedPipe | Self::Interrupted(_) | Self::Abandoned { .. })
    }

    /// Returns whether nothing is to be reported: `| head` wants no complaint, and Ctrl-C was the user's own.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::ClosedPipe | Self::Interrupted(_))
    }

    /// The gRPC code, when executord answered with one.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } | Self::Violated { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The whole message: what failed, and below it what caused it.
    pub fn describe(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        text
    }

    /// The same failure with a line of advice below it.
    #[must_use]
    pub fn advise(mut self, advice: &str) -> Self {
        if let Self::Refused { message, .. } | Self::Violated { message, .. } = &mut self {
            message.push('\n');
            message.push_str(advice);
        }
        self
    }

    /// Fields of the request that executord names as being at fault.
    pub fn violations(&self) -> &[Violation] {
        match self {
            Self::Violated { violations, .. } => violations,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses() {
        assert_eq!(Failure::Usage(String::new()).exit_status(), 125);
        assert_eq!(Failure::ClosedPipe.exit_status(), 141);
        assert_eq!(Failure::Interrupted(2).exit_status(), 130);
        assert_eq!(Failure::Abandoned { id: "x".into(), signal: 15 }.exit_status(), 143);
    }
}
