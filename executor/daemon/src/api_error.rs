//! Errors for callers: one line, a kind, and the invalid fields.
//!
//! A problem is made where the error occurs and becomes a gRPC status only at the edge (`wire::status`), so that
//! nothing inside knows of gRPC. It holds no secret: descriptions come from validation, which repeats none, and from
//! the launcher, whose messages have none.

use executor_core::protocol::{FieldViolation, Reason, Refused};
use executor_core::shortage::{self, Shortage};
use executor_core::validate::{FieldFault, Violation, ViolationReason};
use tokio::task::JoinError;

/// Kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is invalid.
    Invalid,
    /// There is no such container or process.
    NotFound,
    /// The id belongs to a container of a different request.
    Exists,
    /// The request does not fit the present state.
    Precondition,
    /// Capacity, disk or memory ran out.
    Exhausted,
    /// The position is beyond the end.
    OutOfRange,
    /// The request was made from an older state.
    Aborted,
    /// Data is not what its digest or its format requires.
    Corrupt,
    /// The caller presented no credentials.
    Unauthenticated,
    /// The caller is not permitted.
    Denied,
    /// The method is not served.
    Unimplemented,
    /// Not possible now; the same request may succeed later.
    Unavailable,
    /// An internal error.
    Internal,
}

/// An error for a caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Kind of the problem.
    pub kind: Kind,
    /// The whole problem in one line.
    pub message: String,
    /// Invalid fields of the request.
    pub violations: Vec<Violation>,
}

impl ApiError {
    /// Makes a problem without fields.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), violations: Vec::new() }
    }

    /// Adds a note to the message, and to the last violation, for clients that show violations alone.
    pub(crate) fn with_note(mut self, note: &str) -> Self {
        let texts = self.violations.last_mut().map(|violation| &mut violation.description);
        for text in texts.into_iter().chain([&mut self.message]) {
            *text = format!("{text}; {note}");
        }
        self
    }

    /// Makes the problem of invalid fields.
    pub fn invalid(violations: Vec<Violation>) -> Self {
        Self { kind: Kind::Invalid, message: summary(&violations), violations }
    }

    /// Makes the problem of one invalid field.
    pub fn invalid_field(field: impl Into<String>, fault: impl Into<FieldFault>) -> Self {
        Self::invalid(vec![Violation::new(field, fault)])
    }

    /// Makes the problem of an object that does not exist, with the field that names it.
    pub fn not_found(field: impl Into<String>, message: String) -> Self {
        let violations = vec![Violation::new(field, ViolationReason::NotFound.because(message.clone()))];
        Self { kind: Kind::NotFound, message, violations }
    }

    /// Makes the problem of an id that no container has.
    pub fn no_container(id: &str) -> Self {
        Self::not_found("id", format!("there is no container {id:?}"))
    }

    /// Makes the problem of an id that no pod has.
    pub fn no_pod(id: &str) -> Self {
        Self::not_found("id", format!("there is no pod {id:?}"))
    }

    /// Makes the problem of a pod that takes no members.
    pub fn pod_unavailable(id: &str) -> Self {
        let message = format!("pod: {id:?} is not a pod that is ready");
        let violations = vec![Violation::new("pod", ViolationReason::Unsuitable.because(message.clone()))];
        Self { kind: Kind::Precondition, message, violations }
    }

    /// Makes the problem of an error of the system: RESOURCE_EXHAUSTED with the name of the resource where one ran out,
    /// else an internal error. `about` names what the error is about.
    pub fn from_system(about: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let reported = format!("{about}: {}", crate::chain(error));
        match shortage::find(error) {
            Some(what @ (Shortage::Descriptors | Shortage::HostDescriptors | Shortage::Processes)) => {
                Self::new(Kind::Exhausted, format!("executord: {what}: {reported}"))
            }
            Some(_) => Self::new(Kind::Exhausted, reported),
            None => Self::new(Kind::Internal, reported),
        }
    }

    /// Makes the problem of a call that is under way when the daemon stops.
    pub fn stopping() -> Self {
        Self::new(Kind::Unavailable, "this executord is stopping: try again when it has been restarted")
    }
}

/// A task that panicked.
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

/// Puts violations into one line: all of them while that stays readable.
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
    fn many_violations_are_counted_and_few_are_told() {
        let one = |i: usize| Violation::new(format!("f[{i}]"), "is wrong");
        let few = ApiError::invalid(vec![one(0), one(1)]);
        assert_eq!(few.message, "f[0]: is wrong; f[1]: is wrong");
        let many = ApiError::invalid((0..1000).map(one).collect());
        assert_eq!(many.message, "1000 violations, first: f[0]: is wrong");
        assert_eq!(many.violations.len(), 1000);
    }
}
