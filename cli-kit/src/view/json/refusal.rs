//! The document that a command prints with `--json` if executord returns an error: the code, and each invalid field
//! with a machine-readable reason.

use serde::Serialize;

use crate::failure::Failure;
use crate::text::plain;

/// The document of a command that executord rejected.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    error: RefusalError,
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct RefusalError {
    /// The gRPC code in gRPC's spelling: `INVALID_ARGUMENT`.
    code: &'static str,
    /// The message, as printed on standard error.
    message: String,
    violations: Vec<RefusedField>,
}

/// An invalid field of the request.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct RefusedField {
    /// Path of the field in the API: `action.run.env[3].value`.
    field: String,
    /// Reason, as listed in docs/errors.md; empty if executord sent none.
    reason: String,
    description: String,
}

impl Refusal {
    /// Returns the document if executord returned the error.
    pub fn new(failure: &Failure) -> Option<Self> {
        let code = name(failure.code()?);
        let violations = failure.violations().iter().map(|violation| RefusedField {
            field: plain(&violation.field),
            reason: plain(&violation.reason),
            description: plain(&violation.description),
        });
        let error = RefusalError { code, message: failure.describe(), violations: violations.collect() };
        Some(Self { error })
    }
}

fn name(code: executor_client::Code) -> &'static str {
    use executor_client::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
