//! Compiles `runtime/v1/api.proto` without an installed protoc.

/// Messages that carry a secret, or contain such a message. Their `Debug` is written by hand and prints no value.
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
    Ok(())
}
