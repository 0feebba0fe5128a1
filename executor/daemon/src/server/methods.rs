//! Properties of methods that the transport needs: the kind of their responses, streams of requests, sizes of messages.

use executor_transport::wire::budget::AnswerKind;
use tonic::codegen::http::HeaderMap;

use crate::access;
use crate::api_error::{ApiError, Kind};

/// Prefix of the methods with a configured message size limit.
const EXECUTOR: &str = "/executor.v1.Executor/";
/// Maximum message size of the services other than `Executor`, in bytes.
pub(crate) const OTHER_MESSAGE_MAX: usize = 4 << 20;
/// Metadata key with which a client requests rejection of unknown fields.
const STRICT_FIELDS: &str = "executor-strict-fields";

/// Unary methods whose response can be large.
const LARGE_ANSWERS: [&str; 10] = [
    "/executor.v1.Executor/List",
    "/executor.v1.Executor/Get",
    "/executor.v1.Executor/ListNetworks",
    "/executor.v1.Executor/CheckNetwork",
    "/executor.v1.Executor/Stats",
    "/executor.v1.Executor/GetSecrets",
    "/executor.v1.Images/List",
    "/executor.v1.Images/Inspect",
    "/executor.v1.Pods/GetPod",
    "/executor.v1.Pods/ListPods",
];

/// Methods with request streams.
const REQUEST_STREAMS: [&str; 5] = [
    "/executor.v1.Executor/Exec",
    "/executor.v1.Executor/Attach",
    "/executor.v1.Executor/PutArchive",
    "/executor.v1.Images/Import",
    "/executor.v1.Pods/ConnectPort",
];

/// Returns the kind of a method's responses.
pub(super) fn answer_kind(method: &str) -> AnswerKind {
    if access::is_stream(method) {
        AnswerKind::Stream
    } else if LARGE_ANSWERS.contains(&method) {
        AnswerKind::Large
    } else {
        AnswerKind::Small
    }
}

/// Returns true if the client sends a stream of requests.
pub(super) fn streams_requests(method: &str) -> bool {
    REQUEST_STREAMS.contains(&method)
}

/// Returns the maximum message size of a method in bytes; `configured` is the maximum for the service `Executor`.
pub(super) fn message_max(method: &str, configured: usize) -> usize {
    if method.starts_with(EXECUTOR) { configured } else { OTHER_MESSAGE_MAX }
}

/// Returns true if the metadata of a request requires that unknown fields are rejected.
///
/// # Errors
/// Returns an error if the value is neither `true` nor `false`.
pub(super) fn is_strict(metadata: &HeaderMap) -> Result<bool, ApiError> {
    let mut values = metadata.get_all(STRICT_FIELDS).iter();
    match (values.next().map(|value| value.as_bytes()), values.next()) {
        (None | Some(b"false"), None) => Ok(false),
        (Some(b"true"), None) => Ok(true),
        _ => Err(ApiError::new(
            Kind::Invalid,
            format!("metadata {STRICT_FIELDS}: must be set once, to `true` or `false`"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn request_streams_match_the_interface() {
        let set = prost_types::FileDescriptorSet::decode(executor_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut found = Vec::new();
        for file in &set.file {
            for service in &file.service {
                let streams = service.method.iter().filter(|method| method.client_streaming());
                found.extend(streams.map(|method| format!("/{}.{}/{}", file.package(), service.name(), method.name())));
            }
        }
        let mut listed = REQUEST_STREAMS.map(str::to_owned).to_vec();
        found.sort();
        listed.sort();
        assert_eq!(found, listed);
    }
}
