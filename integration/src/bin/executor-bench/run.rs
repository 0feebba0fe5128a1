//! Times of one run of a container, and execution of the programs that a run needs.

use std::io::{Read as _, Seek as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Times of one run, from its start.
pub(crate) struct Run {
    /// Time until the exit of the container's process was known.
    pub(crate) exit: Duration,
    /// Time until the container was deleted.
    pub(crate) gone: Duration,
    /// Durations of the phases that the contestant reports.
    pub(crate) phases: Vec<(&'static str, Duration)>,
}

impl Run {
    /// Creates the times of a run whose container needs no deletion after its exit.
    pub(crate) fn ended(took: Duration) -> Self {
        Self { exit: took, gone: took, phases: Vec::new() }
    }
}

/// Runs a command and returns its error output as the error. The output goes to a file and not to a pipe, because the
/// container's process would inherit the pipe and keep it open.
pub(crate) fn call(command: &mut Command) -> anyhow::Result<()> {
    let complaint = rustix::fs::memfd_create("complaint", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut reader = std::fs::File::from(complaint);
    let status = command.stderr(reader.try_clone()?).status()?;
    if !status.success() {
        let mut text = String::new();
        reader.rewind()?;
        reader.read_to_string(&mut text)?;
        anyhow::bail!("{:?}: {status}: {}", command.get_args(), text.trim_end());
    }
    Ok(())
}

/// Finds a program. Debian has runc in /usr/sbin, which is not in every PATH.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(extra).map(|directory| directory.join(name)).find(|path| path.is_file())
}
