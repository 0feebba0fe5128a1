//! Errors for API clients: a kind, a one-line message, and the invalid fields.
//!
//! Only `server::status` converts an error to a gRPC status. Errors contain no secrets: descriptions come from
//! validation, which does not repeat secrets, and from the launcher, whose messages contain no secrets.

use executor_core::protocol::{FieldViolation, Reason, Refused};
use executor_core::shortage::{self, Shortage};
use executor_core::validate::{FieldFault, Violation, ViolationReason};
use tokio::task::JoinError;

/// Kind of an API error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Invalid,
    /// The container, process or other object does not exist.
    NotFound,
    /// The id belongs to a container with a different request.
    Exists,
    /// The request does not fit the current state.
    Precondition,
    /// Capacity, disk space or memory is exhausted.
    Exhausted,
    /// The requested position is beyond the end of a log.
    OutOfRange,
    /// The request is based on an outdated state.
    Aborted,
    /// Data does not match its digest or its format.
    Corrupt,
    /// The caller presented no credentials.
    Unauthenticated,
    /// The caller is not permitted to make the request.
    Denied,
    /// The method is not served.
    Unimplemented,
    /// The time limit of the request has passed.
    TimedOut,
    /// The request is not possible now; the same request may succeed later.
    Unavailable,
    Internal,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: Kind,
    /// The complete error in one line.
    pub message: String,
    /// Invalid fields of the request.
    pub violations: Vec<Violation>,
}

impl ApiError {
    /// Creates an error without field violations.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), violations: Vec::new() }
    }

    /// Appends a note to the message, and to the last violation, for clients that show only violations.
    pub(crate) fn with_note(mut self, note: &str) -> Self {
        let texts = self.violations.last_mut().map(|violation| &mut violation.description);
        for text in texts.into_iter().chain([&mut self.message]) {
            *text = format!("{text}; {note}");
        }
        self
    }

    /// Creates an error for invalid fields.
    pub fn invalid(violations: Vec<Violation>) -> Self {
        Self { kind: Kind::Invalid, message: summary(&violations), violations }
    }

    pub fn invalid_field(field: impl Into<String>, fault: impl Into<FieldFault>) -> Self {
        Self::invalid(vec![Violation::new(field, fault)])
    }

    /// Creates an error for a missing object, with the field that names it.
    pub fn not_found(field: impl Into<String>, message: String) -> Self {
        let violations = vec![Violation::new(field, ViolationReason::NotFound.because(message.clone()))];
        Self { kind: Kind::NotFound, message, violations }
    }

    /// Creates the error for an unknown container id.
    pub fn no_container(id: &str) -> Self {
        Self::not_found("id", format!("there is no container {id:?}"))
    }

    /// Creates the error for an unknown pod id.
    pub fn no_pod(id: &str) -> Self {
        Self::not_found("id", format!("there is no pod {id:?}"))
    }

    /// Creates the error for a pod that does not exist or is not ready.
    pub fn pod_unavailable(id: &str) -> Self {
        let fault = ViolationReason::Unsuitable.because(format!("{id:?} does not exist or is not ready"));
        Self { kind: Kind::Precondition, ..Self::invalid_field("pod", fault) }
    }

    /// Converts a system error: to RESOURCE_EXHAUSTED if a resource is exhausted, otherwise to an internal error.
    /// `about` names the subject of the error.
    pub fn from_system(about: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let reported = format!("{about}: {}", executor_core::errors::chain(error));
        match shortage::find(error) {
            Some(what @ (Shortage::Descriptors | Shortage::HostDescriptors | Shortage::Processes)) => {
                Self::new(Kind::Exhausted, format!("executord: {what}: {reported}"))
            }
            Some(_) => Self::new(Kind::Exhausted, reported),
            None => Self::new(Kind::Internal, reported),
        }
    }

    /// Creates the error for a call that is interrupted because the daemon stops.
    pub fn stopping() -> Self {
        Self::new(Kind::Unavailable, "this executord is stopping: try again when it has been restarted")
    }
}

/// Converts a panic of a task to an internal error.
impl From<JoinError> for ApiError {
    fn from(error: JoinError) -> Self {
        Self::new(Kind::Internal, error.to_string())
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let kind = match refused.reason() {
            Reason::Internal => Kind::Internal,
            Reason::Invalid => Kind::Invalid,
            Reason::Precondition => Kind::Precondition,
            Reason::Exhausted => Kind::Exhausted,
            Reason::NotFound => Kind::NotFound,
            Reason::Exists => Kind::Exists,
            Reason::Stale => Kind::Aborted,
            Reason::Busy => Kind::Unavailable,
            Reason::Denied => Kind::Denied,
        };
        let violation =
            |v: FieldViolation| Violation::new(v.field, ViolationReason::from_name(&v.reason).because(v.description));
        let violations = refused.violations.into_iter().map(violation).collect();
        Self { kind, message: refused.message, violations }
    }
}

/// Summarizes violations in one line; lists all of them if the line has at most `LENGTH_MAX` bytes.
fn summary(violations: &[Violation]) -> String {
    const LENGTH_MAX: usize = 400;
    let all = violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if all.len() <= LENGTH_MAX {
        return all;
    }
    let first: String =
        violations.first().map(ToString::to_string).unwrap_or_default().chars().take(LENGTH_MAX).collect();
    match violations.len() {
        1 => first,
        count => format!("{count} violations, first: {first}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_violations_are_summarized() {
        let one = |i: usize| Violation::new(format!("f[{i}]"), "is wrong");
        let few = ApiError::invalid(vec![one(0), one(1)]);
        assert_eq!(few.message, "f[0]: is wrong; f[1]: is wrong");
        let many = ApiError::invalid((0..1000).map(one).collect());
        assert_eq!(many.message, "1000 violations, first: f[0]: is wrong");
        assert_eq!(many.violations.len(), 1000);
    }

    #[test]
    fn unavailable_pod_is_named_once() {
        let error = ApiError::pod_unavailable("p");
        assert_eq!(error.message, "pod: \"p\" does not exist or is not ready");
        assert_eq!(error.violations[0].description, "\"p\" does not exist or is not ready");
    }
}
