//! What can go wrong, in words that say what to do, and the status to exit with.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use tonic::{Code, Status};
use tonic_types::{FieldViolation, StatusExt as _};

use crate::bindings::BindingsError;
use crate::cnab::CnabError;
use crate::connect::{ConnectError, PATIENCE};
use crate::destination::WriteError;
use crate::exit;
use crate::fields;
use crate::local::LocalError;
use crate::source::SourceError;

/// Why a command ended without doing what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line contradicts itself.
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Bindings(#[from] BindingsError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error(transparent)]
    Cnab(#[from] CnabError),
    /// Executord answered with an error; the text is ready to be read.
    #[error("{message}")]
    Refused { code: Code, message: String },
    /// The same with the fields that are at fault.
    #[error("{message}")]
    Violated { code: Code, message: String, violations: Vec<FieldViolation> },
    /// The connection broke and did not come back.
    #[error("{doing}: lost executord at {} and it did not come back within {} s", .socket.display(), PATIENCE.as_secs())]
    GaveUp { doing: String, socket: PathBuf },
    /// Our own output could not be written.
    #[error("cannot write to {stream}")]
    Output { stream: &'static str, source: io::Error },
    /// The machine refuses something as ordinary as a thread.
    #[error("the system refuses what agent-cli needs to run")]
    System(#[source] io::Error),
    /// Whoever read our output has had enough.
    #[error("the reader of the output went away")]
    ClosedPipe,
    #[error("interrupted by {}", crate::signals::name(*.0))]
    Interrupted(i32),
    /// Somebody pressed the keys that leave a process to itself.
    #[error("the container {id} goes on; `agent-cli attach {id}` comes back to it")]
    Detached { id: String },
    /// Somebody pressed Ctrl-C for the third time.
    #[error("left at once; the container {id} may still be there: `agent-cli rm -f {id}` removes it")]
    Abandoned { id: String, signal: i32 },
    /// A file of ours (manual, completions) could not be written.
    #[error("cannot write into {}", .path.display())]
    Generate { path: PathBuf, source: io::Error },
    /// The log broke off while the process went on.
    #[error("the output of {id} is incomplete")]
    LogLost { id: String },
    /// The container of an audit is gone before it was searched.
    #[error("the audit's container ended early: {0}; its root file system must have /bin/sh, cat and sleep")]
    AuditEnded(String),
    /// A fetched file could not be written.
    #[error(transparent)]
    Destination(#[from] WriteError),
    /// A file that is to be copied could not be read.
    #[error("cannot read {}", crate::view::table::plain(&.path.display().to_string()))]
    Unread { path: PathBuf, source: io::Error },
    /// An archive that came is damaged, or ends too early.
    #[error("what came for {} is no whole archive", .path.display())]
    Archive { path: PathBuf, source: io::Error },
    /// Not all was copied; each was told.
    #[error("{left_out} not copied, {copied} copied")]
    LeftOut { left_out: usize, copied: u64 },
    /// Executord sends what has no place in an answer.
    #[error("executord sent an output that was not asked for: {path:?}")]
    Unasked { path: String },
    /// An output is not as long as it was announced.
    #[error("{path}: executord sent another number of bytes than it announced")]
    OutputSize { path: String },
    /// Not all outputs are there; each was told.
    #[error("{skipped} not captured, {copied} copied")]
    OutputsSkipped { skipped: usize, copied: usize },
    /// Some of several things failed, and each was reported as it did.
    #[error("{failed} of {all} failed")]
    Several { failed: usize, all: usize },
}

impl Failure {
    /// The status to exit with.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::ClosedPipe => exit::after_signal(crate::signals::PIPE as i32),
            Self::Interrupted(signal) | Self::Abandoned { signal, .. } => exit::after_signal(*signal),
            Self::Cnab(error) => error.exit_status(),
            _ => exit::OURS,
        }
    }

    /// Whether the rest of the output is not worth waiting for.
    pub(crate) fn is_hasty(&self) -> bool {
        matches!(self, Self::ClosedPipe | Self::Interrupted(_) | Self::Abandoned { .. })
    }

    /// Whether there is anything to tell: `| head` wants no complaint, and Ctrl-C was the user's own.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(self, Self::ClosedPipe | Self::Interrupted(_))
    }

    /// The gRPC code, when executord answered with one.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { code, .. } | Self::Violated { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The whole message: what failed, and below it what caused it.
    pub(crate) fn describe(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        text
    }

    /// What a gRPC status means to somebody who tried to `doing` ("stop web-1").
    pub(crate) fn of_status(socket: &Path, doing: &str, status: &Status) -> Self {
        let (code, message) = (status.code(), explain(socket, doing, status));
        match status.get_details_bad_request() {
            Some(bad) if !bad.field_violations.is_empty() => {
                Self::Violated { code, message, violations: bad.field_violations }
            }
            _ => Self::Refused { code, message },
        }
    }

    /// The same failure with a line of advice below it.
    #[must_use]
    pub(crate) fn advise(mut self, advice: &str) -> Self {
        if let Self::Refused { message, .. } | Self::Violated { message, .. } = &mut self {
            message.push('\n');
            message.push_str(advice);
        }
        self
    }

    /// Fields of the request that executord names as being at fault.
    pub(crate) fn violations(&self) -> &[FieldViolation] {
        match self {
            Self::Violated { violations, .. } => violations,
            _ => &[],
        }
    }
}

fn explain(socket: &Path, doing: &str, status: &Status) -> String {
    if crate::connect::is_lost(status) {
        return format!("{doing}: lost the connection to executord at {}", socket.display());
    }
    let details = status.get_error_details();
    let mut violations: Vec<String> = Vec::new();
    if let Some(bad) = details.bad_request() {
        for violation in &bad.field_violations {
            violations.push(format!(
                "{}: {}",
                fields::flag(&violation.field, doing),
                fields::in_words(&violation.description)
            ));
        }
    }
    if let Some(failed) = details.precondition_failure() {
        for violation in &failed.violations {
            violations.push(format!(
                "{}: {}",
                fields::flag(&violation.subject, doing),
                fields::in_words(&violation.description)
            ));
        }
    }
    // That an image is not there, or is kept from the caller by its registry, is said in one sentence.
    let is_plain = matches!(status.code(), Code::NotFound | Code::PermissionDenied);
    if !violations.is_empty() && !is_plain {
        return format!("{doing}: executord refused the request:\n  {}", violations.join("\n  "));
    }
    let said = match status.message() {
        "" => "it gave no reason".into(),
        message => fields::in_words(message),
    };
    match status.code() {
        Code::NotFound | Code::FailedPrecondition | Code::InvalidArgument | Code::Aborted => format!("{doing}: {said}"),
        Code::AlreadyExists => {
            format!("{doing}: {said}; choose another --id, or remove that container with `agent-cli rm -f`")
        }
        // Only what is said of a uid is about who calls; the rest is the operator's policy, or a registry's.
        Code::PermissionDenied if !said.starts_with("uid ") => format!("{doing}: {said}"),
        Code::PermissionDenied | Code::Unauthenticated => format!(
            "{doing}: executord at {} does not serve uid {}: {said}; it serves root, its own user and the members of its \
             --allow-group",
            socket.display(),
            rustix::process::geteuid().as_raw()
        ),
        Code::ResourceExhausted => format!("{doing}: {said}; `agent-cli info` shows what is left"),
        Code::Unavailable => format!("{doing}: executord cannot do it now: {said}"),
        Code::Unimplemented => {
            format!(
                "{doing}: executord does not know how: {said} (is it older than this agent-cli, {}?)",
                env!("CARGO_PKG_VERSION")
            )
        }
        code => format!("{doing}: executord answered {code:?}: {said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::ErrorDetails;

    fn told(status: &Status) -> String {
        Failure::of_status(Path::new("/run/x.sock"), "run web-1", status).describe()
    }

    #[test]
    fn every_violation_has_a_line_with_its_flag() {
        let details = ErrorDetails::with_bad_request(vec![
            FieldViolation::new("action.run.volume_mounted_files[0].path", "`a/../b` contains `..`"),
            FieldViolation::new("limits.memory_bytes", "is 1; 2097152 to 1125899906842624 is allowed"),
        ]);
        let status = Status::with_error_details(Code::InvalidArgument, "2 violations", details);
        assert_eq!(
            told(&status),
            "run web-1: executord refused the request:\n  --file (number 1): `a/../b` contains `..`\n  \
             --memory: is 1; 2097152 to 1125899906842624 is allowed"
        );
    }

    #[test]
    fn codes_say_what_to_do() {
        let table = [
            (Code::AlreadyExists, "choose another --id"),
            (Code::PermissionDenied, "run web-1: because"),
            (Code::ResourceExhausted, "agent-cli info"),
            (Code::Unavailable, "executord cannot do it now: because"),
            (Code::NotFound, "run web-1: because"),
            (Code::Unimplemented, "older"),
            (Code::Internal, "executord answered Internal: because"),
        ];
        for (code, expected) in table {
            let text = told(&Status::new(code, "because"));
            assert!(text.contains(expected) && text.starts_with("run web-1: "), "{text}");
        }
        assert!(told(&Status::permission_denied("uid 7 is not served")).contains("--allow-group"));
        assert_eq!(told(&Status::not_found("no container \u{1b}[31mx")), "run web-1: no container \\u{1b}[31mx");
    }

    /// The registry's refusal is not executord's: it says which registry refused whom, and nothing of this uid.
    #[test]
    fn a_registrys_refusal_is_not_executords() {
        let why = "registry r.example refuses the user \"bob\" of the request: access denied (403): image x";
        let details = ErrorDetails::with_bad_request(vec![FieldViolation {
            reason: "ACCESS_DENIED".into(),
            ..FieldViolation::new("rootfs", why)
        }]);
        let status = Status::with_error_details(Code::PermissionDenied, why, details);
        assert_eq!(told(&status), format!("run web-1: {why}"));
        let failure = Failure::of_status(Path::new("x"), "y", &status).advise("look");
        assert_eq!((failure.violations()[0].reason.as_str(), failure.code()), ("ACCESS_DENIED", Some(status.code())));
        assert!(failure.describe().ends_with("image x\nlook"), "{}", failure.describe());
        assert!(told(&Status::permission_denied("uid 7 may not")).contains("does not serve uid"), "the control");
    }

    #[test]
    fn exit_statuses() {
        assert_eq!(Failure::Usage(String::new()).exit_status(), 125);
        assert_eq!(Failure::ClosedPipe.exit_status(), 141);
        assert_eq!(Failure::Interrupted(2).exit_status(), 130);
        assert_eq!(Failure::Abandoned { id: "x".into(), signal: 15 }.exit_status(), 143);
        assert_eq!(Failure::of_status(Path::new("x"), "y", &Status::internal("z")).exit_status(), 125);
    }
}
