//! Compiles the `.proto` files without an installed protoc.

use std::path::PathBuf;

use prost::Message as _;

/// Messages that carry secrets or streamed bytes. Their `Debug` is written by hand and prints names and sizes only (see
/// `src/redact.rs`).
const NO_DERIVED_DEBUG: [&str; 18] = [
    ".executor.v1.AttachRequest",
    ".executor.v1.AttachResponse",
    ".executor.v1.ConnectPortRequest",
    ".executor.v1.ConnectPortResponse",
    ".executor.v1.DownloadAction",
    ".executor.v1.EnvironmentVariable",
    ".executor.v1.ExecRequest",
    ".executor.v1.ExecResponse",
    ".executor.v1.ExecStart",
    ".executor.v1.File",
    ".executor.v1.GetArchiveResponse",
    ".executor.v1.ProviderToken",
    ".executor.v1.PutArchiveRequest",
    ".executor.v1.RegistryCredentials",
    ".executor.v1.RunAction",
    ".executor.v1.SecretArgument",
    ".executor.v1.StreamLogsResponse",
    ".executor.v1.UploadAction",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "executor/v1/actions.proto",
        "executor/v1/cell.proto",
        "executor/v1/checks.proto",
        "executor/v1/container.proto",
        "executor/v1/executor.proto",
        "executor/v1/images.proto",
        "executor/v1/networks.proto",
        "executor/v1/pods.proto",
        "executor/v1/streams.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().skip_debug(NO_DERIVED_DEBUG).compile_fds(descriptors)?;
    Ok(())
}
