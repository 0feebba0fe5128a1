//! Converts errors of RPCs to messages of one sentence that name the field and contain no secrets (rule C6).

use executor_client::v1::{VolumeMount, volume_mount};
use executor_client::{Code, Error, Violation};
use executor_core::text::printable;
use tonic::Status;

/// Maximum length of a status message, in bytes.
const MESSAGE_MAX: usize = 4096;

/// Maximum length of an invalid value in a message, in bytes.
pub(crate) const SHOWN_MAX: usize = 100;

/// Returns an untrusted text for an error message, in quotes and shortened.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text, SHOWN_MAX))
}

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

/// Converts an error of a call that creates an object. NOT_FOUND is replaced, because the kubelet would skip the pod
/// (rule C5).
pub(crate) fn new_object(error: Error) -> Status {
    precondition(status(error))
}

/// Returns the field prefixes of the volumes whose source is an image.
pub(crate) fn image_fields(volumes: &[VolumeMount]) -> Vec<String> {
    let is_image = |volume: &VolumeMount| matches!(volume.source, Some(volume_mount::Source::Image(_)));
    let indices = volumes.iter().enumerate().filter(|(_, volume)| is_image(volume));
    indices.map(|(index, _)| format!("volumes[{index}].")).collect()
}

/// Converts an error of CreateContainer. If a volume cannot be mounted, the message begins with a word that the kubelet
/// recognizes (rule C6). `image_fields` is the result of [`image_fields`].
pub(crate) fn new_container(error: Error, image_fields: &[String]) -> Status {
    let is_of_image = |violation: &Violation| image_fields.iter().any(|field| violation.field.starts_with(field));
    let is_read_only = |violation: &Violation| {
        violation.reason == "UNSUPPORTED" && violation.field.ends_with(".host_path.recursive_read_only")
    };
    let word = match error.violations() {
        violations if violations.iter().any(is_read_only) => "RROUnsupported",
        violations if violations.iter().any(is_of_image) => "ImageVolumeMountFailed",
        _ => return new_object(error),
    };
    let status = new_object(error);
    Status::new(status.code(), format!("{word}: {}", status.message()))
}

/// Converts an error of PullImage. The kubelet recognizes an error by its first word, and only with the code UNKNOWN
/// (rule C6).
pub(crate) fn pull(error: Error) -> Status {
    let has = |reason: &str| error.violations().iter().any(|violation| violation.reason == reason);
    let word = match (has("UNSIGNED"), has("UNREACHABLE")) {
        (true, _) => "SignatureValidationFailed",
        (_, true) => "RegistryUnavailable",
        _ => return status(error),
    };
    Status::unknown(format!("{word}: {}", status(error).message()))
}

/// Replaces NOT_FOUND with FAILED_PRECONDITION. Only read calls return NOT_FOUND for missing sandboxes and containers
/// (rule C5).
pub(crate) fn precondition(status: Status) -> Status {
    match status.code() {
        Code::NotFound => Status::failed_precondition(status.message()),
        _ => status,
    }
}

/// Returns the values of both results.
///
/// # Errors
/// Returns the error if one result is an error, or INVALID_ARGUMENT with both messages if both results are errors.
pub(crate) fn both<A, B>(a: Result<A, Status>, b: Result<B, Status>) -> Result<(A, B), Status> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(a), Err(b)) => Err(Status::invalid_argument(shortened(format!("{}; {}", a.message(), b.message())))),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Converts NOT_FOUND from a deletion to success.
///
/// # Errors
/// Returns the error unless its code is NOT_FOUND.
pub(crate) fn ignore_not_found(deleted: Result<(), Error>) -> Result<(), Error> {
    match deleted {
        Err(error) if error.code() == Some(Code::NotFound) => Ok(()),
        other => other,
    }
}

/// Returns true if executord reports that the object exists. The id of each call is new and random, so an earlier
/// attempt of the same call created the object. executord could not compare the requests, because the key of request
/// digests was lost when executord and the launcher were killed.
pub(crate) fn was_created_before(error: &Error) -> bool {
    error.code() == Some(Code::AlreadyExists)
}

fn sentence(violation: &Violation) -> String {
    format!("{}: {}", violation.field, violation.description)
}

/// Shortens a status message to at most [`MESSAGE_MAX`].
pub(crate) fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let end = (0..=MESSAGE_MAX).rev().find(|&end| message.is_char_boundary(end)).unwrap_or(0);
        message.truncate(end);
    }
    message
}

/// Invalid or unsupported fields of a request, each with the reason.
#[derive(Debug, Default)]
pub(crate) struct Violations(Vec<String>);

impl Violations {
    pub(crate) fn add(&mut self, field: &str, reason: impl std::fmt::Display) {
        self.0.push(format!("{field}: {reason}"));
    }

    /// Checks that there are no violations.
    ///
    /// # Errors
    /// Returns INVALID_ARGUMENT with every violation if there is one.
    pub(crate) fn check(self) -> Result<(), Status> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Status::invalid_argument(shortened(self.0.join("; ")))),
        }
    }
}

/// Returns an error of executord, which has a violation unless the field is empty.
#[cfg(test)]
pub(crate) fn refused(code: Code, field: &str, reason: &str) -> Error {
    let violation = Violation { field: field.into(), description: "why".into(), reason: reason.into() };
    let at = executor_client::ServerAddress::Socket("/x".into());
    let violations = if field.is_empty() { Vec::new() } else { vec![violation] };
    Error::Refused(Box::new(executor_client::Refusal { at, code, message: "why".into(), violations }))
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

    /// Rule C6: errors of pulls begin with a word that the kubelet recognizes, and have the code UNKNOWN.
    #[test]
    fn pull_errors_begin_with_words() {
        for (code, field, reason, expected) in [
            (Code::PermissionDenied, "reference", "UNSIGNED", "SignatureValidationFailed: reference: why"),
            (Code::Unavailable, "reference", "UNREACHABLE", "RegistryUnavailable: reference: why"),
        ] {
            let status = pull(refused(code, field, reason));
            assert_eq!((status.code(), status.message()), (Code::Unknown, expected));
        }
        let policy = pull(refused(Code::PermissionDenied, "reference", "NOT_ALLOWED"));
        assert_eq!((policy.code(), policy.message()), (Code::PermissionDenied, "reference: why"));
        let launcher = pull(refused(Code::Unavailable, "", ""));
        assert_eq!((launcher.code(), launcher.message()), (Code::Unavailable, "why"));
    }

    /// Rule C6: errors of mounts begin with a word that the kubelet recognizes.
    #[test]
    fn mount_errors_begin_with_words() {
        let image = VolumeMount { source: Some(volume_mount::Source::Image(Default::default())), ..Default::default() };
        let fields = image_fields(&[VolumeMount::default(), image]);
        assert_eq!(fields, ["volumes[1]."]);
        for (field, reason, expected) in [
            ("volumes[0].host_path.recursive_read_only", "UNSUPPORTED", "RROUnsupported: volumes[0]"),
            ("volumes[0].host_path.recursive_read_only", "NOT_ALLOWED", "volumes[0]"),
            ("volumes[1].sub_path", "NOT_FOUND", "ImageVolumeMountFailed: volumes[1]"),
            ("volumes[0].sub_path", "NOT_FOUND", "volumes[0]"),
            ("volumes[10].sub_path", "NOT_FOUND", "volumes[10]"),
        ] {
            let status = new_container(refused(Code::NotFound, field, reason), &fields);
            assert!(status.message().starts_with(expected), "{field}: {status}");
            assert_ne!(status.code(), Code::NotFound);
        }
    }

    #[test]
    fn long_messages_are_shortened() {
        assert_eq!(shortened("é".repeat(4000)).len(), MESSAGE_MAX);
    }
}
