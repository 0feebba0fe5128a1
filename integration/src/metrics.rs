//! Metrics of a daemon that serves them on a unix socket, read with curl.

use std::path::PathBuf;
use std::process::Command;

use crate::daemon::{Daemon, Setup};

fn socket(setup: &Setup) -> PathBuf {
    setup.run_dir().join("metrics.sock")
}

/// Returns the configuration table that enables metrics.
pub fn table(setup: &Setup) -> String {
    format!("[metrics]\nlisten = \"unix:{}\"\n", socket(setup).display())
}

/// Returns the value of a series. `series` includes the labels.
///
/// # Panics
/// Panics if the series does not exist.
pub fn value(daemon: &Daemon, series: &str) -> f64 {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--unix-socket"]).arg(socket(daemon.setup()));
    let output = curl.arg("http://localhost/metrics").output().expect("curl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("a text");
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("the metrics have no series {series}: {text}"))
}
