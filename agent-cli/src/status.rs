//! What a gRPC status means: whether the call may be repeated, and what to tell the person who made it.

use std::error::Error as _;
use std::path::Path;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::failure::Failure;
use crate::fields;

/// Tells whether `status` was made up on this side because the connection broke: then nobody knows what became of
/// the call. What executord itself answers carries no source.
///
/// `Unknown` is what a stream yields that ends without its trailers; executord never answers it.
pub fn is_lost(status: &Status) -> bool {
    status.source().is_some() || status.code() == Code::Unknown
}

/// As [`is_lost`], or executord says that it cannot answer now: what a restart looks like to a call that waits.
pub fn is_away(status: &Status) -> bool {
    is_lost(status) || status.code() == Code::Unavailable
}

/// Returns what `status` means to somebody who tried to `doing` ("stop web-1").
pub fn failure(socket: &Path, doing: &str, status: &Status) -> Failure {
    let (code, message) = (status.code(), explain(socket, doing, status));
    match status.get_details_bad_request() {
        Some(bad) if !bad.field_violations.is_empty() => {
            Failure::Violated { code, message, violations: bad.field_violations }
        }
        _ => Failure::Refused { code, message },
    }
}

fn explain(socket: &Path, doing: &str, status: &Status) -> String {
    if is_lost(status) {
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
    use tonic_types::{ErrorDetails, FieldViolation};

    #[test]
    fn an_answer_is_told_from_a_lost_connection() {
        for code in [Code::Unavailable, Code::NotFound, Code::Internal, Code::InvalidArgument] {
            assert!(!is_lost(&Status::new(code, "said executord")), "{code:?}");
        }
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(is_lost(&Status::from_error(Box::new(broken))));
    }

    fn told(status: &Status) -> String {
        failure(Path::new("/run/x.sock"), "run web-1", status).describe()
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
        let advised = failure(Path::new("x"), "y", &status).advise("look");
        assert_eq!((advised.violations()[0].reason.as_str(), advised.code()), ("ACCESS_DENIED", Some(status.code())));
        assert!(advised.describe().ends_with("image x\nlook"), "{}", advised.describe());
        assert!(told(&Status::permission_denied("uid 7 may not")).contains("does not serve uid"), "the control");
    }
}
