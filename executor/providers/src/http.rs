//! Reads responses of servers, and describes failed requests without parts of a response.

use executor_http::{Answer, BodyError, HttpError, Origin};
use zeroize::Zeroizing;

use crate::{ErrorKind, FetchError};

/// Maximum size of a response, in bytes. This is sufficient for a secret whose characters are all escaped, and for
/// other values.
const ANSWER_MAX: usize = 8 << 20;

/// Reads the body of a response into memory that is wiped on drop.
pub(crate) async fn body(origin: &Origin, mut answer: Answer) -> Result<Zeroizing<Vec<u8>>, FetchError> {
    let mut body = Zeroizing::new(Vec::new());
    loop {
        match answer.body.next().await {
            Ok(None) => return Ok(body),
            Ok(Some(piece)) if body.len() + piece.len() > ANSWER_MAX => {
                let why = format!("the response from {origin} is larger than the maximum of {ANSWER_MAX} bytes");
                return Err(FetchError::new(ErrorKind::Unsuitable, why));
            }
            Ok(Some(piece)) => {
                let mut grown = Zeroizing::new(Vec::with_capacity(body.len() + piece.len()));
                grown.extend_from_slice(&body);
                grown.extend_from_slice(&piece);
                body = grown;
            }
            Err(BodyError::Slow { .. }) => {
                return Err(FetchError::unavailable(format!("the response from {origin} is too slow")));
            }
            Err(BodyError::Ended) => {
                return Err(FetchError::unavailable(format!(
                    "{origin} closed the connection before the end of the response"
                )));
            }
        }
    }
}

/// Describes a request that got no response.
pub(crate) fn unavailable(origin: &Origin, error: HttpError) -> FetchError {
    FetchError::unavailable(match error {
        HttpError::Forbidden(why) => format!("access to {origin} is not allowed: {why}"),
        HttpError::Slow { within, .. } => format!("no response from {origin} within {} s", within.as_secs()),
        HttpError::Broken(why) | HttpError::Untrusted(why) => {
            format!("{origin}: {}", why.split(" (os error").next().unwrap_or_default())
        }
        HttpError::Exhausted(error) => format!("{origin}: {error}"),
    })
}
