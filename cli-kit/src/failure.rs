//! Errors of the command line, with advice and exit statuses.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use executor_client::{Code, ServerAddress, Violation};

use crate::text::plain;
use crate::{exit, signals};

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An error in the command line, or in an input that the command line names.
    #[error("{0}")]
    Usage(String),
    /// An error of another module.
    #[error(transparent)]
    Wrapped(Wrapped),
    /// Executord returned an error. The message is ready to print.
    #[error("{message}")]
    Refused { code: Code, message: String },
    /// Like `Refused`, with the invalid fields.
    #[error("{message}")]
    Violated { code: Code, message: String, violations: Vec<Violation> },
    /// The connection was lost and not restored in time.
    #[error("{doing}: lost the connection to executord at {at}, and could not reconnect within {} s", .waited.as_secs())]
    GaveUp { doing: String, at: ServerAddress, waited: Duration },
    /// This program's own output could not be written.
    #[error("cannot write to {stream}")]
    Output { stream: &'static str, source: io::Error },
    /// The system denied a resource that every program needs, such as a thread.
    #[error("the system denied a resource that this program needs")]
    System(#[source] io::Error),
    /// The reader of this program's output closed the output.
    #[error("the output was closed by its reader")]
    ClosedPipe,
    #[error("interrupted by {}", signals::name(*.0))]
    Interrupted(i32),
    /// The user pressed the detach keys.
    #[error("the container {id} keeps running; `agent-cli attach {id}` attaches to it again")]
    Detached { id: String },
    /// A third signal arrived, such as a third Ctrl-C.
    #[error("this command exited immediately; the container {id} may still exist: `agent-cli rm -f {id}` removes it")]
    Abandoned { id: String, signal: i32 },
    /// The manual or the completions could not be written.
    #[error("cannot write into {}", .path.display())]
    Generate { path: PathBuf, source: io::Error },
    /// Output of the process is missing: it was dropped or could not be read.
    #[error("the output of {id} is incomplete")]
    LogLost { id: String },
    /// The container of an audit exited before the audit searched the container.
    #[error("the audit's container exited early: {0}; the root file system must have /bin/sh, cat and sleep")]
    AuditEnded(String),
    /// A file to copy could not be read.
    #[error("cannot read {}", plain(&.path.display().to_string()))]
    Unread { path: PathBuf, source: io::Error },
    /// A received archive is damaged or truncated.
    #[error("the archive for {} is damaged or incomplete", .path.display())]
    Archive { path: PathBuf, source: io::Error },
    /// A copy is larger than its limit.
    #[error("{path}: the copy is larger than {max} bytes; --max-size sets the limit")]
    CopyTooLarge { path: String, max: u64 },
    /// A copy skipped files or directories; each was already reported.
    #[error("{left_out} not copied, {copied} copied")]
    LeftOut { left_out: usize, copied: u64 },
    /// Executord sent an output that was not requested.
    #[error("executord sent an output that was not requested: {path:?}")]
    Unasked { path: String },
    /// The size of an output differs from the announced size.
    #[error("{path}: executord sent a different number of bytes than announced")]
    OutputSize { path: String },
    /// Outputs are missing from a copy, because they were not captured; each was already reported.
    #[error("{skipped} not captured, {copied} copied")]
    OutputsSkipped { skipped: usize, copied: usize },
    /// Some of several operations failed; each failure was already reported.
    #[error("{failed} of {all} failed")]
    Several { failed: usize, all: usize },
}

/// An error of another module, with its exit status.
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
    /// Wraps an error, with this exit status.
    pub fn wrap(error: impl Error + Send + Sync + 'static, status: u8) -> Self {
        Self::Wrapped(Wrapped { error: Box::new(error), status })
    }

    /// Returns the wrapped error if it has this type.
    pub fn wrapped<E: Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Wrapped(wrapped) => wrapped.error.downcast_ref(),
            _ => None,
        }
    }

    /// Returns the exit status with which this program reports the failure.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::ClosedPipe => exit::after_signal(signals::PIPE as i32),
            Self::Interrupted(signal) | Self::Abandoned { signal, .. } => exit::after_signal(*signal),
            Self::Wrapped(error) => error.status,
            _ => exit::OURS,
        }
    }

    /// Returns true if the program exits without waiting until all of its output is written.
    pub fn is_hasty(&self) -> bool {
        matches!(self, Self::ClosedPipe | Self::Interrupted(_) | Self::Abandoned { .. })
    }

    /// Returns true if nothing is printed: the reader closed the output (`| head`), or a signal interrupted the
    /// command.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::ClosedPipe | Self::Interrupted(_))
    }

    /// Returns the gRPC code if executord returned an error.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } | Self::Violated { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Returns the whole message: the failure, followed by its causes.
    pub fn describe(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        text
    }

    /// Appends a line of advice to an error that executord returned.
    #[must_use]
    pub fn advise(mut self, advice: &str) -> Self {
        if let Self::Refused { message, .. } | Self::Violated { message, .. } = &mut self {
            message.push('\n');
            message.push_str(advice);
        }
        self
    }

    /// Returns the invalid fields that executord reported.
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
    fn failure_determines_exit_status() {
        assert_eq!(Failure::Usage(String::new()).exit_status(), 125);
        assert_eq!(Failure::ClosedPipe.exit_status(), 141);
        assert_eq!(Failure::Interrupted(2).exit_status(), 130);
        assert_eq!(Failure::Abandoned { id: "x".into(), signal: 15 }.exit_status(), 143);
    }
}
