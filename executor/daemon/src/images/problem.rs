//! What a caller is told of an image's fault.

use std::io::ErrorKind;

use executor_core::validate::Violation;
use executor_images::{ImageError, UnpackError};

use crate::problem::{Kind, Problem};

/// The problem that an error is.
pub(crate) fn of_image(error: &ImageError) -> Problem {
    let kind = match error {
        ImageError::WrongDigest { .. }
        | ImageError::Truncated { .. }
        | ImageError::Longer { .. }
        | ImageError::Redirect { .. }
        | ImageError::Malformed { .. } => Kind::Corrupt,
        ImageError::TooLarge { .. } | ImageError::NoSpace { .. } => Kind::Exhausted,
        ImageError::TooSlow { .. } | ImageError::Status { .. } | ImageError::Connection { .. } => Kind::Unavailable,
        ImageError::Unauthorized { .. } | ImageError::Forbidden(_) | ImageError::Unsigned { .. } => Kind::Denied,
        ImageError::NotFound { .. } => Kind::NotFound,
        ImageError::NoPlatform { .. }
        | ImageError::Unsupported { .. }
        | ImageError::Config(_)
        | ImageError::AuthFile { .. }
        | ImageError::InUse { .. }
        | ImageError::NotHere { .. }
        | ImageError::FromElsewhere { .. } => Kind::Precondition,
        ImageError::Gone { .. } => Kind::Aborted,
        ImageError::Unpack { source, .. } | ImageError::Layers(source) => match source {
            UnpackError::Refused(_) => Kind::Corrupt,
            UnpackError::NoSpace(_) => Kind::Exhausted,
            UnpackError::Unavailable(_) => Kind::Unavailable,
            UnpackError::InUse(_) => Kind::Precondition,
            UnpackError::Internal(_) => Kind::Internal,
        },
        // A path of the caller's: not there, or not to be read by us.
        ImageError::Io { source, .. }
            if matches!(
                source.kind(),
                ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::NotADirectory
            ) =>
        {
            Kind::Precondition
        }
        ImageError::Io { .. } => return Problem::of_system("images", error),
        ImageError::Internal(_) => Kind::Internal,
    };
    Problem::new(kind, crate::chain(error))
}

/// The same where a field of a request named the image: what the caller can mend names the field.
pub(crate) fn of_image_in_field(error: &ImageError, field: &str) -> Problem {
    let problem = of_image(error);
    match problem.kind {
        // Of Run, NOT_FOUND would be a container's.
        Kind::NotFound | Kind::Precondition => {
            let violations = vec![Violation::new(field, problem.message.clone())];
            Problem { kind: Kind::Precondition, violations, ..problem }
        }
        _ if matches!(error, ImageError::Forbidden(_) | ImageError::Unsigned { .. }) => {
            Problem { violations: vec![Violation::new(field, problem.message.clone())], ..problem }
        }
        _ => problem,
    }
}
