//! Defines the command line of executor-cri.

use std::path::PathBuf;

/// Serves the Kubernetes container runtime interface (CRI) over executord
///
/// A kubelet uses executor-cri with `containerRuntimeEndpoint: unix:///run/executor-cri/cri.sock`. executord decides
/// which requests are allowed: see docs/guides/kubernetes-node.md for the settings that a node needs.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "executor-cri", version = executor_secrets::VERSION)]
pub(crate) struct Options {
    /// Socket to serve on; only root can connect
    #[arg(long, env = "EXECUTOR_CRI_SOCKET", value_name = "PATH", default_value = "/run/executor-cri/cri.sock")]
    pub(crate) socket: PathBuf,
    /// Socket of executord
    #[arg(long, env = "EXECUTOR_SOCKET", value_name = "PATH", default_value = executor_client::DEFAULT_SOCKET)]
    pub(crate) executor: PathBuf,
    /// Directory for the records of sandboxes and containers
    #[arg(long, env = "EXECUTOR_CRI_STATE_DIR", value_name = "DIRECTORY", default_value = "/var/lib/executor-cri")]
    pub(crate) state_dir: PathBuf,
    /// Port on 127.0.0.1 for exec, attach and port-forward, which clients open by a URL with a token; 0 selects a free
    /// port
    #[arg(long, env = "EXECUTOR_CRI_STREAMING_PORT", value_name = "PORT", default_value_t = 0)]
    pub(crate) streaming_port: u16,
    /// Images that the kubelet must not remove, by reference
    #[arg(long = "pinned-image", value_name = "REFERENCE")]
    pub(crate) pinned_images: Vec<String>,
    /// Minimum `oom_score_adj` of containers, for a launcher without CAP_SYS_RESOURCE
    ///
    /// Lower scores are raised to the minimum. Without this option, such a launcher refuses containers of the QoS
    /// class Guaranteed and of critical pods.
    #[arg(
        long,
        env = "EXECUTOR_CRI_OOM_SCORE_ADJ_MIN",
        value_name = "N",
        default_value_t = -1000,
        value_parser = clap::value_parser!(i32).range(-1000..=1000),
        allow_negative_numbers = true
    )]
    pub(crate) oom_score_adj_min: i32,
    /// Configuration file for user namespaces and secrets of pods; by default /etc/executor/executor-cri.toml if it
    /// exists
    #[arg(long, env = "EXECUTOR_CRI_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Messages to log: `error`, `warn`, `info`, `debug` or `trace`
    #[arg(long, env = "EXECUTOR_CRI_LOG", value_name = "LEVEL", default_value = "info")]
    pub(crate) log: tracing_subscriber::filter::LevelFilter,
    /// Print the missing settings of this host, executord's policy and the kubelet, each with the line to add
    ///
    /// Exits with 1 if a setting that every pod needs is missing.
    #[arg(long)]
    pub(crate) check: bool,
    /// Configuration of the kubelet, for `--check`
    #[arg(long, value_name = "FILE", default_value = "/var/lib/kubelet/config.yaml")]
    pub(crate) kubelet_config: PathBuf,
    /// Print the result of `--check` as JSON
    #[arg(long, requires = "check")]
    pub(crate) json: bool,
    /// Write the manual page into DIR and exit
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) generate_man: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn manual_is_generated() {
        Options::command().debug_assert();
        let directory = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(Options::command(), directory.path()).unwrap();
        let page = std::fs::read_to_string(directory.path().join("executor-cri.1")).unwrap();
        assert!(page.contains("state\\-dir") && !page.contains("generate"), "{page}");
    }
}
