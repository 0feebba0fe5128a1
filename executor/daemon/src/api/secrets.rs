//! GetSecrets: the only method that returns secret values, to the holder of the container's runtime token
//! (docs/adr/0008).
//!
//! The daemon stores no tokens. It sends the digest of the presented token to the shim of the container that the token
//! names, and receives a memory file with the secrets. Therefore a compromised daemon cannot read a running container's
//! secrets without the token. The caller's identity does not matter. A denial does not reveal whether the container
//! exists or has exited.

use std::sync::Arc;
use std::time::Duration;

use executor_core::disclosure::{DISCLOSURE_MAX, Manifest};
use executor_core::ident::{CONTAINER_ID_MAX, ContainerId};
use executor_core::lifecycle::State;
use executor_core::payload;
use executor_core::protocol::{ReadSecrets, Reason, ShimCall};
use executor_core::token;
use executor_proto::v1;
use executor_secrets::{TokenDigest, scrub_stack};
use executor_sys::memfile::MemFile;
use tonic::codegen::http::{HeaderMap, header::AUTHORIZATION};

use crate::api_error::{ApiError, Kind};
use crate::model::container::{Handle, Presence};
use crate::node::Node;

/// Authentication scheme: `Bearer TOKEN` (RFC 6750).
const SCHEME: &str = "bearer";
/// Maximum length of a parsed header value, in bytes.
const HEADER_MAX: usize = SCHEME.len() + 16 + CONTAINER_ID_MAX + 1 + 2 * token::RANDOM_BYTES;
/// Time limit for a shim to connect after the daemon has started, and to respond.
const SHIM_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the same denial for every wrong token.
fn denied() -> ApiError {
    ApiError::new(Kind::Denied, "the token is not the runtime token of this container, or the container is not running")
}

/// Container id and digest of a presented token.
pub(super) struct Presented {
    container: ContainerId,
    digest: TokenDigest,
}

/// Reads the token from the headers. Only the token's digest is kept.
///
/// # Errors
/// Returns a denial if the token is missing or malformed.
pub(super) fn presented(headers: &HeaderMap) -> Result<Presented, ApiError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().filter(|value| !value.is_empty()).ok_or_else(|| {
        ApiError::new(
            Kind::Unauthenticated,
            "GetSecrets needs a container's runtime token: set the header `authorization: Bearer TOKEN`",
        )
    })?;
    let one = values.next().is_none() && value.len() <= HEADER_MAX;
    let text = value.to_str().ok().filter(|_| one).ok_or_else(denied)?;
    let (scheme, token) = text.split_once(' ').ok_or_else(denied)?;
    let token = token.trim_matches(' ');
    let container =
        token::parse_container_id(token).filter(|_| scheme.eq_ignore_ascii_case(SCHEME)).ok_or_else(denied)?;
    let digest = TokenDigest::from_token(token.as_bytes());
    scrub_stack(); // the hash function left the token on the stack
    Ok(Presented { container, digest })
}

/// Returns the secret inputs of the container whose token was presented.
///
/// # Errors
/// Returns a denial if the token does not belong to a running container, or belongs to another container than the
/// requested one.
pub(super) async fn get(node: &Arc<Node>, presented: Presented, id: &str) -> Result<v1::GetSecretsResponse, ApiError> {
    let Presented { container, digest } = presented;
    if !id.is_empty() && id != container.as_str() {
        return Err(denied());
    }
    let handle = node.registry.get(&container).ok_or_else(denied)?;
    let file = tokio::select! {
        file = tokio::time::timeout(SHIM_TIMEOUT, request_secrets(&handle, &digest)) => file.map_err(|_| denied())??,
        () = ending(&handle) => return Err(denied()),
    };
    // The response has its own copies. Overwrite the memory file now, for every process that holds a descriptor of it.
    let answer = file.read(response);
    let wiped = file.wipe();
    let broken = |error: &(dyn std::error::Error + 'static)| {
        ApiError::from_system(&format!("the secret inputs of container {container}"), error)
    };
    wiped.map_err(|error| broken(&error))?;
    answer
        .map_err(|error| broken(&error))?
        .ok_or_else(|| ApiError::new(Kind::Internal, "the container's shim sent a malformed response"))
}

/// Requests the secrets from the shim.
async fn request_secrets(handle: &Handle, digest: &TokenDigest) -> Result<MemFile, ApiError> {
    handle.settled().await;
    let link = handle.shim().ok_or_else(denied)?;
    let call = ShimCall::ReadSecrets(ReadSecrets { token_digest: digest.to_bytes() });
    let fd = link.call_with_fds(call, &[]).await.map_err(|reported| match reported {
        // The shim has exited, the token is wrong, or the shim is an older version without token support.
        None => denied(),
        Some(reported) if matches!(reported.reason(), Reason::Denied | Reason::Invalid) => denied(),
        Some(reported) => reported.into(),
    })?;
    let broken =
        |why: String| ApiError::new(Kind::Internal, format!("malformed response of the container's shim: {why}"));
    MemFile::from_fd(fd.ok_or_else(|| broken("the response has no descriptor".into()))?, DISCLOSURE_MAX)
        .map_err(|error| broken(error.to_string()))
}

/// Resolves when the container's process has exited.
async fn ending(handle: &Handle) {
    let mut watch = handle.watch();
    // The wait cannot fail, because the handle owns the sender.
    let _ =
        watch.wait_for(|presence| !matches!(presence, Presence::Present(facts) if facts.state < State::Wiping)).await;
}

/// Decodes a payload into the response; `None` if it is malformed.
fn response(bytes: &[u8]) -> Option<v1::GetSecretsResponse> {
    let strings = payload::decode(bytes).ok()?;
    let (manifest, values) = strings.split_first()?;
    let manifest: Manifest = serde_json::from_slice(manifest).ok()?;
    if values.len() != manifest.values() {
        return None;
    }
    let mut values = values.iter();
    let variable = |name: String| Some(v1::EnvironmentVariable::from_bytes(name, values.next()?.to_vec()));
    let environment = manifest.environment.into_iter().map(variable).collect::<Option<_>>()?;
    let mut text = || String::from_utf8(values.next()?.to_vec()).ok();
    let argument = |index| Some(v1::SecretArgument { index, value: text()?, ..v1::SecretArgument::default() });
    let arguments = manifest.arguments.into_iter().map(argument).collect::<Option<_>>()?;
    let files = manifest.files.into_iter().zip(values).map(|(file, content)| {
        Some(v1::File {
            path: file.path.to_str()?.to_owned(),
            content: content.to_vec(),
            public: file.public,
            ..v1::File::default()
        })
    });
    Some(v1::GetSecretsResponse { files: files.collect::<Option<_>>()?, environment, arguments })
}

#[cfg(test)]
mod tests {
    use executor_core::disclosure::ManifestFile;
    use tonic::codegen::http::HeaderValue;

    use super::*;

    fn checked(values: &[&str]) -> Result<String, Kind> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        presented(&headers).map(|presented| presented.container.to_string()).map_err(|problem| problem.kind)
    }

    #[test]
    fn tokens_are_distinguished_from_other_headers() {
        let token = format!("web.1.{}", "0a".repeat(token::RANDOM_BYTES));
        for good in ["Bearer ", "bearer ", "BEARER  "] {
            assert_eq!(checked(&[&format!("{good}{token}")]), Ok("web.1".into()), "{good}");
        }
        assert_eq!(checked(&[]), Err(Kind::Unauthenticated));
        assert_eq!(checked(&[""]), Err(Kind::Unauthenticated));
        let (bearer, long) = (format!("Bearer {token}"), format!("Bearer {}{token}", "x".repeat(CONTAINER_ID_MAX)));
        let padded = format!("Bearer {}{token}", " ".repeat(HEADER_MAX));
        for bad in [&token, "Bearer", "Bearer ", &format!("Basic {token}"), &bearer[..bearer.len() - 1], &long, &padded]
        {
            assert_eq!(checked(&[bad]), Err(Kind::Denied), "{bad}");
        }
        assert_eq!(checked(&[&bearer, &bearer]), Err(Kind::Denied));
    }

    #[test]
    fn secrets_response_is_accepted_completely_or_refused() {
        let manifest = Manifest {
            environment: vec!["A".into()],
            arguments: vec![1],
            files: vec![ManifestFile { path: "/x".into(), public: true }],
        };
        let json = serde_json::to_vec(&manifest).unwrap();
        let encoded = |strings: &[&[u8]]| {
            let mut bytes = vec![0; payload::encoded_len(strings.iter().copied())];
            payload::encode(strings.iter().copied(), &mut bytes);
            bytes
        };
        let reported = response(&encoded(&[&json, b"a", b"b", b"\xff"])).unwrap();
        assert_eq!(
            (&*reported.environment[0].value, reported.arguments[0].index, &*reported.arguments[0].value),
            ("a", 1, "b")
        );
        assert_eq!((&reported.files[0].content[..], reported.files[0].public), (&b"\xff"[..], true));
        let reported = response(&encoded(&[&json, b"\xff", b"b", b"c"])).unwrap();
        assert_eq!((&*reported.environment[0].value, &*reported.environment[0].value_bytes), ("", &b"\xff"[..]));
        for broken in [&[&json[..], b"a", b"b"][..], &[&json, b"a", b"\xff", b"c"], &[b"{", b"a", b"b", b"c"], &[]] {
            assert!(response(&encoded(broken)).is_none());
        }
        assert!(response(b"").is_none());
    }
}
