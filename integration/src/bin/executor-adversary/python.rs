//! A client based on gRPC's C core, in Python. Messages are bytes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

const SCRIPT: &str = include_str!("probes/c_core.py");

/// A client with one persistent connection.
pub(crate) struct CCore {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl CCore {
    pub(crate) fn connect(socket: &Path) -> anyhow::Result<Self> {
        let python = std::env::var_os("EXECUTOR_PYTHON")
            .context("EXECUTOR_PYTHON is not set to a Python with grpcio; `cargo xtask adversary` sets it")?;
        let mut child = Command::new(python)
            .args(["-c", SCRIPT])
            .arg(socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run EXECUTOR_PYTHON")?;
        let (to, from) = (
            child.stdin.take().context("the child has no standard input")?,
            child.stdout.take().context("the child has no standard output")?,
        );
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    /// Calls a method. Returns `OK` or the name of the error code.
    pub(crate) fn call(&mut self, method: &str, message: &[u8]) -> anyhow::Result<String> {
        self.call_with(method, message, &json!({}))
    }

    /// Calls a method with options in `more`: `metadata`, `gzip`.
    pub(crate) fn call_with(&mut self, method: &str, message: &[u8], more: &Value) -> anyhow::Result<String> {
        writeln!(self.to, "{}", json!({"method": method, "message": hex::encode(message), "more": more}))?;
        let mut line = String::new();
        ensure!(self.from.read_line(&mut line)? > 0, "the client exited");
        Ok(line.trim().to_owned())
    }
}

impl Drop for CCore {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
