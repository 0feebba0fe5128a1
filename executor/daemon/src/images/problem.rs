//! Converts image errors to API errors.

use std::io::ErrorKind;

use executor_core::validate::{Violation, ViolationReason};
use executor_images::{ImageError, UnpackError};

use crate::api_error::{ApiError, Kind};

/// Converts an image error to an API error.
pub(crate) fn from_image_error(error: &ImageError) -> ApiError {
    let kind = match error {
        ImageError::WrongDigest { .. }
        | ImageError::Truncated { .. }
        | ImageError::Longer { .. }
        | ImageError::Redirect { .. }
        | ImageError::Malformed { .. } => Kind::Corrupt,
        ImageError::TooLarge { .. } | ImageError::NoSpace { .. } => Kind::Exhausted,
        // Slow and broken connections may be transient. For other registry statuses the caller must correct the
        // request.
        ImageError::TooSlow { .. } | ImageError::Connection { .. } => Kind::Unavailable,
        ImageError::Status { .. } if error.is_transient() => Kind::Unavailable,
        ImageError::Status { .. } | ImageError::Untrusted { .. } => Kind::Precondition,
        ImageError::Unauthorized { .. } | ImageError::Forbidden(_) | ImageError::Unsigned { .. } => Kind::Denied,
        ImageError::NotFound { .. } => Kind::NotFound,
        ImageError::NoPlatform { .. }
        | ImageError::Unsupported { .. }
        | ImageError::OtherForm { .. }
        | ImageError::Config(_)
        | ImageError::AuthFile { .. }
        | ImageError::InUse { .. }
        | ImageError::NotReadable { .. }
        | ImageError::NotHere { .. }
        | ImageError::Incomplete { .. }
        | ImageError::FromElsewhere { .. } => Kind::Precondition,
        ImageError::Gone { .. } => Kind::Aborted,
        ImageError::Unpack { source, .. } | ImageError::Layers(source) => match source {
            UnpackError::Refused(_) => Kind::Corrupt,
            UnpackError::NoSpace(_) => Kind::Exhausted,
            UnpackError::Unavailable(_) => Kind::Unavailable,
            UnpackError::InUse(_) | UnpackError::NotAllowed(_) => Kind::Precondition,
            UnpackError::Internal(_) => Kind::Internal,
        },
        // The caller's path does not exist, or the daemon may not read it.
        ImageError::Io { source, .. }
            if matches!(
                source.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::NotADirectory
            ) =>
        {
            Kind::Precondition
        }
        ImageError::Io { .. } => return ApiError::from_system("images", error),
        ImageError::Internal(_) => Kind::Internal,
    };
    ApiError::new(kind, executor_core::errors::chain(error))
}

/// Converts an image error to an API error that names the image field if the caller can correct the error.
pub(crate) fn from_image_error_in(error: &ImageError, field: &str) -> ApiError {
    let problem = from_image_error(error);
    match problem.kind {
        Kind::Unavailable if reason(error) != ViolationReason::Unreachable => problem,
        Kind::NotFound | Kind::Precondition | Kind::Denied | Kind::Unavailable => {
            let fault = reason(error).because(problem.message.clone());
            ApiError { violations: vec![Violation::new(field, fault)], ..problem }
        }
        _ => problem,
    }
}

/// Converts an image error to an API error of `Run`, in which NOT_FOUND would refer to a container.
pub(crate) fn from_image_error_of_run(error: &ImageError, field: &str) -> ApiError {
    match from_image_error_in(error, field) {
        problem if problem.kind == Kind::NotFound => ApiError { kind: Kind::Precondition, ..problem },
        problem => problem,
    }
}

fn reason(error: &ImageError) -> ViolationReason {
    match error {
        ImageError::NotFound { .. } | ImageError::NotHere { .. } => ViolationReason::NotFound,
        ImageError::Unauthorized { .. } | ImageError::NotReadable { .. } => ViolationReason::AccessDenied,
        ImageError::Untrusted { .. } => ViolationReason::Untrusted,
        ImageError::TooSlow { .. } | ImageError::Connection { .. } => ViolationReason::Unreachable,
        ImageError::Status { .. } if error.is_transient() => ViolationReason::Unreachable,
        ImageError::Status { .. } => ViolationReason::Rejected,
        ImageError::Unsigned { .. } => ViolationReason::Unsigned,
        ImageError::InUse { .. } => ViolationReason::Conflict,
        ImageError::Forbidden(_) | ImageError::Unpack { source: UnpackError::NotAllowed(_), .. } => {
            ViolationReason::NotAllowed
        }
        ImageError::Io { source, .. } if source.kind() == ErrorKind::NotFound => ViolationReason::NotFound,
        ImageError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => ViolationReason::AccessDenied,
        _ => ViolationReason::Unsuitable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors that may be transient are UNAVAILABLE. Clients distinguish all other errors by reason.
    #[test]
    fn faults_of_registries_are_distinguished() {
        let status = |status| ImageError::Status { what: "image x".into(), origin: "https://r".into(), status };
        for passing in [408, 429, 500, 502, 503, 504] {
            let problem = from_image_error_of_run(&status(passing), "rootfs");
            assert_eq!(problem.kind, Kind::Unavailable, "{passing}");
            assert_eq!(problem.violations[0].reason, ViolationReason::Unreachable, "{passing}");
        }
        for lasting in [400, 405, 410, 451, 501] {
            let problem = from_image_error_of_run(&status(lasting), "rootfs");
            assert_eq!((problem.kind, problem.violations[0].reason), (Kind::Precondition, ViolationReason::Rejected));
        }
        let unsigned = ImageError::Unsigned { what: "x".into(), why: "none".into() };
        let problem = from_image_error_in(&unsigned, "reference");
        assert_eq!((problem.kind, problem.violations[0].reason), (Kind::Denied, ViolationReason::Unsigned));
        let layers = ImageError::Layers(UnpackError::Unavailable("no launcher".into()));
        let problem = from_image_error_in(&layers, "reference");
        assert_eq!((problem.kind, problem.violations.len()), (Kind::Unavailable, 0), "not the registry's fault");
        let untrusted =
            ImageError::Untrusted { what: "x".into(), origin: "https://r".into(), why: "UnknownIssuer".into() };
        let problem = from_image_error_in(&untrusted, "reference");
        assert_eq!((problem.kind, problem.violations[0].reason), (Kind::Precondition, ViolationReason::Untrusted));
        let denied = ImageError::Unauthorized {
            registry: "r.example".into(),
            what: "image docker://r.example/x:1".into(),
            who: "the user \"bob\" of the request".into(),
            why: "access denied (403)",
        };
        let problem = from_image_error_of_run(&denied, "rootfs");
        assert_eq!((problem.kind, &*problem.violations[0].field), (Kind::Denied, "rootfs"));
        assert!(problem.message.contains("r.example refuses the user \"bob\""), "{problem}");
        let missing = ImageError::NotFound { what: "image x".into() };
        assert_eq!(from_image_error_of_run(&missing, "rootfs").kind, Kind::Precondition);
        assert_eq!(from_image_error_in(&missing, "reference").kind, Kind::NotFound);
    }
}
