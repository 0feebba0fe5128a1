//! The Kubernetes container runtime interface (CRI), `runtime.v1`: messages, servers and clients.
//!
//! Generated from `runtime/v1/api.proto`, which is that of `k8s.io/cri-api` v0.37.0, unchanged. Its comments are the
//! documentation of the generated types. Messages that can hold a secret print no value.

#![forbid(unsafe_code)]

/// Package `runtime.v1`.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::map_unwrap_or,
    clippy::unwrap_used,
    rustdoc::all,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

macro_rules! without_values {
    ($($name:ident),*) => {
        $(impl std::fmt::Debug for v1::$name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}

without_values!(
    AuthConfig,
    ContainerConfig,
    CreateContainerRequest,
    ExecRequest,
    ExecSyncRequest,
    ExecSyncResponse,
    KeyValue,
    PullImageRequest,
    RestorePodRequest
);

#[cfg(test)]
mod tests {
    use super::v1::{ContainerConfig, KeyValue};

    /// Rule C57: nothing prints a value.
    #[test]
    fn values_are_not_printed() {
        let envs = vec![KeyValue { key: "PASSWORD".into(), value: "hunter2".into() }];
        let config = ContainerConfig { envs, ..ContainerConfig::default() };
        assert_eq!(format!("{config:?}"), "ContainerConfig { .. }");
        assert_eq!(format!("{:?}", config.envs), "[KeyValue { .. }]");
    }
}
