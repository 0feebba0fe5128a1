//! The command line. A flag overrides the corresponding key of the configuration file.

use std::path::PathBuf;

use clap::{CommandFactory, Parser, ValueEnum};
use serde::Deserialize;

/// Default path of the configuration file. The file need not exist.
pub const CONFIG_DEFAULT: &str = "/etc/executor/executor.toml";

/// Node-level executor daemon: runs processes in containers for a control plane, over gRPC.
///
/// Started as root, it creates its directories, listens, starts executor-launcher if none is running, and drops its
/// privileges before it reads any client data. Containers outlive the daemon: the next executord recovers them.
#[derive(Parser, Clone, Debug, Default)]
#[command(
    name = "executord",
    version = executor_secrets::VERSION,
    after_help = "Exit codes: 0 success, 1 failure, 2 usage or configuration error."
)]
pub struct Args {
    /// Configuration file (TOML) [default: /etc/executor/executor.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of sockets and other runtime files that need not survive a reboot [default: /run/executor]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Directory of exit records, logs and the ledger [default: /var/lib/executor]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Socket for clients: unix:///PATH [default: unix://RUN_DIR/executor.sock]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Path of the launcher program [default: executor-launcher next to executord]
    #[arg(long, value_name = "PATH")]
    pub launcher: Option<PathBuf>,
    /// Keep root's privileges while serving
    #[arg(long)]
    pub keep_root: bool,
    /// User to run as when started as root [default: executor if it exists, else an unused id]
    #[arg(long, value_name = "NAME", conflicts_with = "keep_root")]
    pub user: Option<String>,
    /// Group whose members may call the daemon, in addition to root and the daemon's own user
    #[arg(long, value_name = "GROUP")]
    pub allow_group: Option<String>,
    /// Log format on stderr [default: text]
    #[arg(long, value_name = "FORM")]
    pub log_format: Option<LogFormat>,
    /// Minimum log level: error, warn, info, debug or trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
    /// Remove everything on exit: containers, launcher and both directories
    #[arg(long)]
    pub ephemeral: bool,
    /// Check the configuration file [default: the file of --config], print each error with its line, and exit with code
    /// 0 if the file is valid, otherwise with code 1
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub check_config: Option<Option<PathBuf>>,
    /// Write the manual page into DIR and exit
    #[arg(long, value_name = "DIR", hide = true)]
    pub generate_man: Option<PathBuf>,
}

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Minimum log level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl Args {
    /// Writes the manual page and returns true if the hidden flag is set.
    ///
    /// # Errors
    /// Returns an error if the directory is not writable.
    pub fn generate(&self) -> std::io::Result<bool> {
        if let Some(dir) = &self.generate_man {
            clap_mangen::generate_to(Self::command(), dir)?;
        }
        Ok(self.generate_man.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_hold_together_and_generate() {
        Args::command().debug_assert();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let args = Args::try_parse_from(["executord", "--generate-man", path]).unwrap();
        assert!(args.generate().unwrap());
        assert!(std::fs::read_to_string(dir.path().join("executord.1")).unwrap().contains("allow\\-group"));
        assert!(!Args::default().generate().unwrap());
    }
}
