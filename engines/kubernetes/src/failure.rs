//! Errors of calls: one sentence with the field, never a value (rule C6).

use executor_client::{Code, Error, Violation};
use tonic::Status;

/// Longest message of a status, in bytes.
const MESSAGE_MAX: usize = 4096;

/// Converts an error of executord to the status of a call. A request that executord's configuration does not allow is
/// PERMISSION_DENIED, with the name of the key.
pub(crate) fn status(error: Error) -> Status {
    match error {
        Error::Refused(refusal) => {
            let denied = refusal.violations.iter().any(|violation| violation.reason == "NOT_ALLOWED");
            let code = if denied { Code::PermissionDenied } else { refusal.code };
            let message = match &refusal.violations[..] {
                [] => refusal.message,
                violations => violations.iter().map(sentence).collect::<Vec<_>>().join("; "),
            };
            Status::new(code, shortened(message))
        }
        lost if lost.is_lost() => Status::unavailable(lost.to_string()),
        Error::Argument(why) => Status::invalid_argument(why),
        other => Status::unavailable(other.to_string()),
    }
}

/// Converts an error of a call that creates an object. The kubelet would skip the pod for NOT_FOUND (rule C5).
pub(crate) fn new_object(error: Error) -> Status {
    precondition(status(error))
}

/// Replaces NOT_FOUND, which is the code for missing sandboxes and containers of reading calls only (rule C5).
pub(crate) fn precondition(status: Status) -> Status {
    match status.code() {
        Code::NotFound => Status::failed_precondition(status.message()),
        _ => status,
    }
}

/// Lets a deletion succeed if there is nothing to delete.
///
/// # Errors
/// Returns any other error.
pub(crate) fn forgiving(deleted: Result<(), Error>) -> Result<(), Error> {
    match deleted {
        Err(error) if error.code() == Some(Code::NotFound) => Ok(()),
        other => other,
    }
}

fn sentence(violation: &Violation) -> String {
    format!("{}: {}", violation.field, violation.description)
}

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let end = (0..=MESSAGE_MAX).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
        message.truncate(end);
    }
    message
}

/// Fields of a request that cannot be honoured, each with the reason.
#[derive(Debug, Default)]
pub(crate) struct Violations(Vec<String>);

impl Violations {
    /// Adds a field and the reason.
    pub(crate) fn add(&mut self, field: &str, reason: impl std::fmt::Display) {
        self.0.push(format!("{field}: {reason}"));
    }

    /// Returns the status of the call if there is a violation.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with every violation.
    pub(crate) fn check(self) -> Result<(), Status> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Status::invalid_argument(shortened(self.0.join("; ")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule C6: every violation is in one message.
    #[test]
    fn all_violations_are_in_one_status() {
        let mut violations = Violations::default();
        violations.add("config.linux", "a");
        violations.add("config.image", "b");
        let status = violations.check().unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "config.linux: a; config.image: b"));
        assert!(Violations::default().check().is_ok());
    }

    #[test]
    fn long_messages_are_shortened() {
        assert_eq!(shortened("é".repeat(4000)).len(), MESSAGE_MAX);
    }
}
