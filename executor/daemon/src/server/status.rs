//! Converts API errors to gRPC statuses, with google.rpc details.

use executor_core::validate::ViolationReason;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::api_error::{ApiError, Kind};

/// Maximum size of the details, in bytes. The details are sent base64-encoded in the trailers. gRPC's C core, which
/// clients in most languages use, fails calls whose trailers exceed 8 KiB.
const DETAILS_MAX: usize = 4500;
/// Maximum size of the message, in bytes. The message is also sent in the trailers.
const MESSAGE_MAX: usize = 600;

impl From<ApiError> for Status {
    fn from(problem: ApiError) -> Self {
        let code = match problem.kind {
            Kind::Invalid => Code::InvalidArgument,
            Kind::NotFound => Code::NotFound,
            Kind::Exists => Code::AlreadyExists,
            Kind::Precondition => Code::FailedPrecondition,
            Kind::Exhausted => Code::ResourceExhausted,
            Kind::OutOfRange => Code::OutOfRange,
            Kind::Aborted => Code::Aborted,
            Kind::TimedOut => Code::DeadlineExceeded,
            Kind::Corrupt => Code::DataLoss,
            Kind::Unauthenticated => Code::Unauthenticated,
            Kind::Denied => Code::PermissionDenied,
            Kind::Unimplemented => Code::Unimplemented,
            Kind::Unavailable => Code::Unavailable,
            Kind::Internal => Code::Internal,
        };
        let message = cut(&problem.message, MESSAGE_MAX);
        if problem.violations.is_empty() {
            return Self::new(code, message);
        }
        Self::with_error_details(code, message, ErrorDetails::with_bad_request(violations(&problem)))
    }
}

/// Converts as many violations as fit. If some do not fit, the last violation states the number of omitted violations.
fn violations(problem: &ApiError) -> Vec<FieldViolation> {
    let mut size = 0;
    let mut fields = Vec::new();
    for violation in &problem.violations {
        let description = cut(&violation.description, MESSAGE_MAX);
        let reason = violation.reason.name();
        size += violation.field.len() + description.len() + reason.len() + 18;
        if size > DETAILS_MAX {
            let left = problem.violations.len() - fields.len();
            let description = format!("{left} more violations do not fit into the response");
            fields.push(field("", description, ViolationReason::MoreViolations.name()));
            break;
        }
        fields.push(field(&violation.field, description, reason));
    }
    fields
}

fn field(name: &str, description: String, reason: &str) -> FieldViolation {
    FieldViolation { reason: reason.to_owned(), ..FieldViolation::new(name, description) }
}

fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests {
    use executor_core::validate::Violation;

    use super::*;

    #[test]
    fn many_field_violations_are_reported_then_counted() {
        let one = |i: usize| {
            let why = ViolationReason::Required.because("is empty, or contains `=` or a NUL");
            Violation::new(format!("action.run.env[{i}].name"), why)
        };
        let status = Status::from(ApiError::invalid((0..40).map(one).collect()));
        assert_eq!(status.code(), Code::InvalidArgument);
        let details = status.get_details_bad_request().unwrap();
        assert_eq!(details.field_violations.len(), 40);
        assert_eq!(details.field_violations[39].field, "action.run.env[39].name");
        assert_eq!(details.field_violations[39].reason, "REQUIRED");

        let status = Status::from(ApiError::invalid((0..10_000).map(one).collect()));
        let details = status.get_details_bad_request().unwrap();
        let last = details.field_violations.last().unwrap();
        let reported = details.field_violations.len() - 1;
        assert_eq!(last.reason, "MORE_VIOLATIONS");
        assert_eq!(last.description, format!("{} more violations do not fit into the response", 10_000 - reported));
        assert!(status.details().len() * 4 / 3 + status.message().len() < 8000);
    }

    #[test]
    fn long_message_is_truncated_at_character() {
        let status = Status::from(ApiError::new(Kind::Internal, "ä".repeat(1000)));
        assert!(status.message().ends_with("ä...") && status.message().len() < 610);
    }
}
