//! Arguments of the commands.

use std::path::PathBuf;

use clap::Args;

/// The name that stands before its messages: that of the program that runs it.
pub(crate) const NOTES: &str = "agent-cli";

/// Place of the registrations.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// File of registrations (TOML)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Files of Kubernetes objects (YAML or JSON), - for standard input
    ///
    /// Values of their Secrets are hidden from conventions wherever a template repeats them.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// File with credentials of images' registries, as `docker login` and `podman login` write it
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// Certificates (PEM) of registries that are trusted beside the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_ca_file: Option<PathBuf>,
}
