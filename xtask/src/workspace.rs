//! Finds the repository's root, cargo's target directory and the host's target triple, and runs commands with errors
//! that name the command.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

/// The repository and its tools.
pub(crate) struct Workspace {
    /// The directory of the workspace's Cargo.toml.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, as configured.
    pub(crate) target: PathBuf,
    /// The host's triple, as printed by rustc: `x86_64-unknown-linux-gnu`.
    pub(crate) host: String,
    cargo: OsString,
}

impl Workspace {
    /// Finds the workspace with cargo and rustc. Works in any directory of the repository.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml");
        let metadata = output(
            Command::new(&cargo)
                .args(["metadata", "--no-deps", "--offline", "--format-version=1", "--manifest-path"])
                .arg(&manifest),
        )?;
        let metadata: serde_json::Value =
            serde_json::from_str(&metadata).context("cannot parse the output of `cargo metadata`")?;
        let path = |key: &str| {
            metadata[key]
                .as_str()
                .map(PathBuf::from)
                .with_context(|| format!("the output of `cargo metadata` has no {key}"))
        };
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let version = output(Command::new(rustc).arg("-vV"))?;
        let host =
            version.lines().find_map(|line| line.strip_prefix("host: ")).context("`rustc -vV` printed no host")?;
        Ok(Self { root: path("workspace_root")?, target: path("target_directory")?, host: host.to_owned(), cargo })
    }

    /// Returns a `cargo` command in the repository's root.
    pub(crate) fn cargo<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(&self.cargo);
        command.args(args).current_dir(&self.root);
        remove_package_variables(&mut command);
        command
    }

    /// Returns a `cargo` command that restores the default action of Ctrl-C for its children. Background processes of a
    /// script ignore SIGINT, and their children inherit this, so tests of Ctrl-C would never finish.
    pub(crate) fn cargo_with_ctrl_c<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,QUIT").arg(&self.cargo).args(args).current_dir(&self.root);
        remove_package_variables(&mut command);
        command
    }

    /// Returns the output directory of [`crate::dist::build`].
    pub(crate) fn dist(&self) -> PathBuf {
        self.target.join("dist")
    }
}

/// Removes the variables with which `cargo run` describes the package of this program. Build scripts see the variables,
/// and the build script of `ring` depends on them. Without the removal, `ring` and all crates that depend on it would
/// be recompiled after each change between builds with and without xtask.
fn remove_package_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        let text = name.to_string_lossy();
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) || text == "OUT_DIR" {
            command.env_remove(&name);
        }
    }
}

/// Returns true if this process is root, and may mount, create cgroups and install packages.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Prints the next step on stderr, so that stdout holds only the command's output.
pub(crate) fn step(what: &str) {
    eprintln!("\u{25b8} {what}");
}

/// Runs a command that inherits the stdio of this process. The error names the command.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", line(command)))?;
    ensure!(status.success(), "{} failed: {status}", line(command));
    Ok(())
}

/// Runs a command and returns its stdout. The error contains its stderr.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let done = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {}", line(command)))?;
    if !done.status.success() {
        bail!("{} failed: {}\n{}", line(command), done.status, String::from_utf8_lossy(&done.stderr).trim_end());
    }
    String::from_utf8(done.stdout).with_context(|| format!("the output of {} is not UTF-8", line(command)))
}

/// Returns true if a program of this name is in PATH.
pub(crate) fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian has runc and others in /usr/sbin, which is not in the PATH of ordinary users.
    let extra = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(extra).any(|dir| dir.join(program).is_file())
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relies on `cargo test`, which sets the same package variables for this test as `cargo run` does for xtask.
    #[test]
    fn cargo_runs_without_variables_of_xtask() {
        let mut command = Command::new("cargo");
        remove_package_variables(&mut command);
        let removed: Vec<&OsStr> =
            command.get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR", "CARGO_MANIFEST_DIR"] {
            assert!(removed.contains(&OsStr::new(name)), "{name}: {removed:?}");
        }
        assert!(!removed.contains(&OsStr::new("CARGO_HOME")) && !removed.contains(&OsStr::new("CARGO_TARGET_DIR")));
    }
}
