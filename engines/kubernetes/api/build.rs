//! Compiles the protocols of the kubelet without an installed protoc.

/// Messages that contain a secret, or contain such a message. Their `Debug` is written by hand and prints no value.
const NO_DERIVED_DEBUG: [&str; 9] = [
    ".runtime.v1.AuthConfig",
    ".runtime.v1.ContainerConfig",
    ".runtime.v1.CreateContainerRequest",
    ".runtime.v1.ExecRequest",
    ".runtime.v1.ExecSyncRequest",
    ".runtime.v1.ExecSyncResponse",
    ".runtime.v1.KeyValue",
    ".runtime.v1.PullImageRequest",
    ".runtime.v1.RestorePodRequest",
];

/// CSI requests with secrets: `(csi_secret) = true`.
const CSI_SECRETS: [&str; 22] = [
    ".csi.v1.ControllerExpandVolumeRequest",
    ".csi.v1.ControllerGetVolumeHealthRequest",
    ".csi.v1.ControllerListVolumeHealthRequest",
    ".csi.v1.ControllerModifyVolumeRequest",
    ".csi.v1.ControllerPublishVolumeRequest",
    ".csi.v1.ControllerUnpublishVolumeRequest",
    ".csi.v1.CreateSnapshotRequest",
    ".csi.v1.CreateVolumeGroupSnapshotRequest",
    ".csi.v1.CreateVolumeRequest",
    ".csi.v1.DeleteSnapshotRequest",
    ".csi.v1.DeleteVolumeGroupSnapshotRequest",
    ".csi.v1.DeleteVolumeRequest",
    ".csi.v1.GetMetadataAllocatedRequest",
    ".csi.v1.GetMetadataDeltaRequest",
    ".csi.v1.GetSnapshotRequest",
    ".csi.v1.GetVolumeGroupSnapshotRequest",
    ".csi.v1.ListSnapshotsRequest",
    ".csi.v1.NodeExpandVolumeRequest",
    ".csi.v1.NodeGetStorageHealthRequest",
    ".csi.v1.NodePublishVolumeRequest",
    ".csi.v1.NodeStageVolumeRequest",
    ".csi.v1.ValidateVolumeCapabilitiesRequest",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "runtime/v1/api.proto";
    println!("cargo:rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["."])?;
    // Maps are sorted, so that equal messages have equal encodings.
    tonic_prost_build::configure()
        .skip_debug(NO_DERIVED_DEBUG)
        .btree_map(".")
        .message_attribute(".", "#[derive(serde::Deserialize, serde::Serialize)] #[serde(default)]")
        .compile_fds(descriptors)?;
    let files = ["csi/v1/csi.proto", "pluginregistration/v1/api.proto"];
    files.iter().for_each(|file| println!("cargo:rerun-if-changed={file}"));
    let descriptors = protox::compile(files, ["."])?;
    tonic_prost_build::configure().skip_debug(CSI_SECRETS).btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
