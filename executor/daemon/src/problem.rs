//! What a caller is told when something is not done: one line, a kind, and the fields at fault.
//!
//! Made where the fault is seen and turned into a gRPC status only at the edge (`api::status`), so that nothing
//! inside knows of gRPC. No secret fits in: descriptions come from validation, which repeats none, and from the
//! launcher, which never had one in a message.

use executor_core::protocol::{FieldViolation, Reason, Refused};
use executor_core::shortage::{self, Shortage};
use executor_core::validate::{FieldFault, Violation, ViolationReason};

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request itself.
    Invalid,
    /// An action of the interface that this version does not carry out.
    Unimplemented,
    /// No such container or process.
    NotFound,
    /// The id belongs to another request.
    Exists,
    /// The request and the state of things do not fit.
    Precondition,
    /// Capacity, disk or memory ran out.
    Exhausted,
    /// A position beyond what there is.
    OutOfRange,
    /// It was made from a state of things that is no longer.
    Aborted,
    /// What came is not what its name or its sender says.
    Corrupt,
    /// The caller did not say who it is.
    Unauthenticated,
    /// The caller may not.
    Denied,
    /// Not now; the same may work later.
    Unavailable,
    /// A fault of ours.
    Internal,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// Of which kind it is.
    pub kind: Kind,
    /// All of it in one line.
    pub message: String,
    /// Field by field, where fields of the request are at fault.
    pub violations: Vec<Violation>,
}

impl Problem {
    /// A problem without fields.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), violations: Vec::new() }
    }

    /// Fields of the request that are not as they must be.
    pub fn invalid(violations: Vec<Violation>) -> Self {
        Self { kind: Kind::Invalid, message: summary(&violations), violations }
    }

    /// One field of the request that is not as it must be.
    pub fn invalid_field(field: impl Into<String>, fault: impl Into<FieldFault>) -> Self {
        Self::invalid(vec![Violation::new(field, fault)])
    }

    /// There is no container of this id.
    pub fn no_container(id: &str) -> Self {
        Self::new(Kind::NotFound, format!("there is no container {id:?}"))
    }

    /// An error of the system, told with what it is about. What ran out is named, and is no fault.
    pub fn of_system(about: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let told = format!("{about}: {}", crate::chain(error));
        match shortage::of(error) {
            Some(what @ (Shortage::Descriptors | Shortage::HostDescriptors)) => {
                Self::new(Kind::Exhausted, format!("executord: {what}: {told}"))
            }
            Some(_) => Self::new(Kind::Exhausted, told),
            None => Self::new(Kind::Internal, told),
        }
    }

    /// A call that outlives the daemon.
    pub fn stopping() -> Self {
        Self::new(Kind::Unavailable, "this executord is stopping: ask again when it is back")
    }
}

impl From<Refused> for Problem {
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
            |v: FieldViolation| Violation::new(v.field, ViolationReason::of_name(&v.reason).because(v.description));
        let violations = refused.violations.into_iter().map(violation).collect();
        Self { kind, message: refused.message, violations }
    }
}

/// Violations in one line: all of them while that stays readable.
fn summary(violations: &[Violation]) -> String {
    const MOST: usize = 400;
    let all = violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if all.len() <= MOST {
        return all;
    }
    let first: String = violations.first().map(ToString::to_string).unwrap_or_default().chars().take(MOST).collect();
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
        let few = Problem::invalid(vec![one(0), one(1)]);
        assert_eq!(few.message, "f[0]: is wrong; f[1]: is wrong");
        let many = Problem::invalid((0..1000).map(one).collect());
        assert_eq!(many.message, "1000 violations, first: f[0]: is wrong");
        assert_eq!(many.violations.len(), 1000);
    }
}
