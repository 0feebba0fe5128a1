//! The document that a command prints with `--json` when executord refuses it: the code, and each field at fault with a
//! reason for programs.

use serde::Serialize;

use crate::failure::Failure;
use crate::text::plain;

/// The document of a command that executord refused.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Refusal {
    error: RefusalError,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RefusalError {
    /// The gRPC code, as gRPC writes it: `INVALID_ARGUMENT`.
    code: &'static str,
    /// The message that is on standard error, too.
    message: String,
    violations: Vec<RefusedField>,
}

/// A field of the request that is at fault.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RefusedField {
    /// Path of the field in the interface: `action.run.env[3].value`.
    field: String,
    /// Reason, as docs/errors.md lists them; empty from an executord that gives none.
    reason: String,
    description: String,
}

impl Refusal {
    /// The document, where it was executord that refused.
    pub(crate) fn new(failure: &Failure) -> Option<Self> {
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
