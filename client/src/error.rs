//! Errors that calls return: an error from executord with its field violations, or a connection failure.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tonic::Status;
use tonic_types::StatusExt as _;

use crate::address::ServerAddress;

pub use tonic::Code;

/// Error of a call to executord.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Executord returned an error.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The connection broke; it is unknown whether executord executed the RPC.
    #[error("lost the connection to executord at {at}")]
    Lost {
        /// Address of the executord.
        at: ServerAddress,
    },
    /// The connection broke and could not be restored in time.
    #[error("lost the connection to executord at {at}, and could not reconnect within {} s", .waited.as_secs())]
    GaveUp {
        /// Address of the executord.
        at: ServerAddress,
        /// Time for which executord did not respond before the call was abandoned.
        waited: Duration,
    },
    /// The response lacks a field that the interface guarantees.
    #[error("the response of executord lacks {0}")]
    Incomplete(&'static str),
    /// An argument cannot be encoded.
    #[error("{0}")]
    Argument(String),
}

impl Error {
    /// Returns the gRPC status code if executord returned an error.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    /// Returns every violation of the request. Empty if executord rejected no field.
    pub fn violations(&self) -> &[Violation] {
        match self {
            Self::Refused(refusal) => &refusal.violations,
            _ => &[],
        }
    }

    /// Returns true if the outcome of the RPC is unknown: executord may have executed it.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::GaveUp { .. })
    }

    /// Returns true if the same call may succeed later: the connection broke, or executord is unavailable.
    pub fn is_away(&self) -> bool {
        self.is_lost() || self.code() == Some(Code::Unavailable)
    }
}

/// An error that executord returned.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Address of the executord that returned the error.
    pub at: ServerAddress,
    /// The gRPC status code (docs/errors.md lists them by method).
    pub code: Code,
    /// Reason of the error, on one line.
    pub message: String,
    /// The invalid fields. Empty if the error concerns no field.
    pub violations: Vec<Violation>,
}

/// An invalid field of a request, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field: `action.run.env[2].name`.
    pub field: String,
    /// Reason why the field is invalid, with the limit and the value.
    pub description: String,
    /// Reason as a constant for programs (docs/errors.md). May be empty.
    pub reason: String,
}

impl Refusal {
    pub(crate) fn new(at: &ServerAddress, status: &Status) -> Self {
        let details = status.get_error_details();
        let fields = details.bad_request().map(|bad| &*bad.field_violations).unwrap_or_default();
        let conditions = details.precondition_failure().map(|failed| &*failed.violations).unwrap_or_default();
        let of_field = fields.iter().map(|violation| Violation {
            field: violation.field.clone(),
            description: violation.description.clone(),
            reason: violation.reason.clone(),
        });
        let of_condition = conditions.iter().map(|violation| Violation {
            field: violation.subject.clone(),
            description: violation.description.clone(),
            reason: violation.r#type.clone(),
        });
        let violations = of_field.chain(of_condition).collect();
        Self { at: at.clone(), code: status.code(), message: status.message().to_owned(), violations }
    }

    /// Returns true if executord reports that the object named by the request's field `field` does not exist.
    pub fn is_not_found(&self, field: &str) -> bool {
        let names_field = |violation: &Violation| violation.field == field && violation.reason == "NOT_FOUND";
        self.code == Code::NotFound && self.violations.iter().any(names_field)
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = if self.message.is_empty() { "no reason given" } else { &*self.message };
        write!(f, "executord returned {:?}: {message}", self.code)?;
        for Violation { field, description, .. } in &self.violations {
            write!(f, "; {field}: {description}")?;
        }
        Ok(())
    }
}

/// Reason why no connection to executord could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No process listens at the address.
    #[error("no executord listens on {0}")]
    NotListening(ServerAddress),
    /// The socket's permissions deny access.
    #[error(
        "no permission to connect to {}: run as root, or as a member of the group in executord's --allow-group",
        .0.display()
    )]
    Denied(PathBuf),
    /// The path cannot be the path of a unix socket.
    #[error("{}: not a valid Unix socket path; it must be UTF-8 and 1 to 107 bytes long", .0.display())]
    BadPath(PathBuf),
    /// The address is not a valid TCP address.
    #[error("{0:?} is not a valid address: use HOST:PORT, with an IPv6 address in brackets")]
    BadAddress(String),
    /// A certificate of the client or of executord is rejected, or a credential file cannot be used.
    #[error("cannot connect to executord at {address}: {reason}")]
    Tls {
        /// Address of the executord.
        address: String,
        /// The problem, and how to correct it.
        reason: String,
    },
    /// The connection failed for another reason.
    #[error("cannot connect to {at}: {reason}")]
    Other {
        /// Address of the executord.
        at: ServerAddress,
        /// Text of the innermost error.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::{ErrorDetails, FieldViolation, PreconditionViolation};

    #[test]
    fn violations_of_both_kinds_arrive() {
        let mut details = ErrorDetails::with_bad_request(vec![FieldViolation {
            reason: "TOO_SMALL".into(),
            ..FieldViolation::new("limits.memory_bytes", "is 1; at least 2097152")
        }]);
        details.set_precondition_failure(vec![PreconditionViolation::new(
            "NOT_MOUNTED",
            "files[0].path",
            "not mounted",
        )]);
        let status = Status::with_error_details(Code::InvalidArgument, "2 violations", details);
        let error = Error::Refused(Box::new(Refusal::new(&ServerAddress::Socket("/x.sock".into()), &status)));
        assert_eq!(error.code(), Some(Code::InvalidArgument));
        let fields: Vec<_> =
            error.violations().iter().map(|violation| (&*violation.field, &*violation.reason)).collect();
        assert_eq!(fields, [("limits.memory_bytes", "TOO_SMALL"), ("files[0].path", "NOT_MOUNTED")]);
        assert_eq!(
            error.to_string(),
            "executord returned InvalidArgument: 2 violations; limits.memory_bytes: is 1; at least 2097152; \
             files[0].path: not mounted"
        );
    }
}
