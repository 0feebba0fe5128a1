//! The interfaces of a kubelet: container runtime (CRI, `runtime.v1`), container storage (CSI, `csi.v1`) and
//! registration of plugins. Each interface has messages, a server and a client.
//!
//! The types are generated from these unchanged files, whose comments are the documentation of the types. Messages that
//! can hold a secret print no value.
//!
//! | file | origin |
//! |---|---|
//! | `runtime/v1/api.proto` | `k8s.io/cri-api` v0.37.0 |
//! | `csi/v1/csi.proto` | `github.com/container-storage-interface/spec` v1.12.1-0.20260720052920-cd9e7ad1ae09 |
//! | `pluginregistration/v1/api.proto` | `k8s.io/kubelet` v0.37.0 |

#![forbid(unsafe_code)]

macro_rules! package {
    ($(#[$doc:meta])* $module:ident, $package:literal) => {
        $(#[$doc])*
        #[allow(
            missing_docs,
            unused_qualifications,
            clippy::all,
            clippy::map_unwrap_or,
            clippy::unwrap_used,
            rustdoc::all,
            reason = "generated code"
        )]
        pub mod $module {
            tonic::include_proto!($package);
        }
    };
}

package!(
    /// Package `runtime.v1`.
    v1,
    "runtime.v1"
);
package!(
    /// Package `csi.v1`.
    csi,
    "csi.v1"
);
package!(
    /// Package `pluginregistration`, whose version is 1.
    registration,
    "pluginregistration"
);

macro_rules! without_values {
    ($package:ident: $($name:ident),*) => {
        $(impl std::fmt::Debug for $package::$name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}

without_values!(
    v1: AuthConfig,
    ContainerConfig,
    CreateContainerRequest,
    ExecRequest,
    ExecSyncRequest,
    ExecSyncResponse,
    KeyValue,
    PullImageRequest,
    RestorePodRequest
);

without_values!(
    csi: ControllerExpandVolumeRequest,
    ControllerGetVolumeHealthRequest,
    ControllerListVolumeHealthRequest,
    ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest,
    CreateSnapshotRequest,
    CreateVolumeGroupSnapshotRequest,
    CreateVolumeRequest,
    DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeRequest,
    GetMetadataAllocatedRequest,
    GetMetadataDeltaRequest,
    GetSnapshotRequest,
    GetVolumeGroupSnapshotRequest,
    ListSnapshotsRequest,
    NodeExpandVolumeRequest,
    NodeGetStorageHealthRequest,
    NodePublishVolumeRequest,
    NodeStageVolumeRequest,
    ValidateVolumeCapabilitiesRequest
);

#[cfg(test)]
mod tests {
    use super::csi::NodePublishVolumeRequest;
    use super::v1::{ContainerConfig, KeyValue};

    /// Rule C57: `Debug` prints no values.
    #[test]
    fn values_are_not_printed() {
        let envs = vec![KeyValue { key: "PASSWORD".into(), value: "hunter2".into() }];
        let config = ContainerConfig { envs, ..ContainerConfig::default() };
        assert_eq!(format!("{config:?}"), "ContainerConfig { .. }");
        assert_eq!(format!("{:?}", config.envs), "[KeyValue { .. }]");
        let secrets = [("token".to_owned(), "hunter2".to_owned())].into();
        let publish = NodePublishVolumeRequest { secrets, ..NodePublishVolumeRequest::default() };
        assert_eq!(format!("{publish:?}"), "NodePublishVolumeRequest { .. }");
    }
}
