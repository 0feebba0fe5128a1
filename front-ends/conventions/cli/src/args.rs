//! Arguments of the commands.

use std::path::PathBuf;

use clap::Args;

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
    /// Values of Secrets in the files are hidden from conventions if a template repeats them.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// File with credentials of image registries, as written by `docker login` and `podman login`
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
    /// Additional trusted certificates (PEM) of image registries
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_ca_file: Option<PathBuf>,
}
