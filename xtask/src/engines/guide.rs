//! Runs the crictl commands of docs/guides/kubernetes-node.md at a terminal, against executor-cri.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};

use super::Runtime;
use super::room::Room;
use super::supplies::Supplies;
use crate::workspace::Workspace;

const GUIDE: &str = "docs/guides/kubernetes-node.md";
/// Ends of lines that the commands print, in this order.
const EXPECTED: [&str; 6] = ["hello", "hi", "134217728", "started", "typed", "CONTAINER_EXITED 0 Completed"];

/// Runs the guide's commands in a directory.
pub(super) fn run(
    workspace: &Workspace,
    supplies: &Supplies,
    room: &Room,
    directory: &Path,
    runtime: &Runtime,
) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(workspace.root.join(GUIDE)).with_context(|| format!("cannot read {GUIDE}"))?;
    let block = text.split("```bash\n").nth(1).and_then(|rest| rest.split("```").next()).context(GUIDE)?;
    let script = directory.join("guide.sh");
    std::fs::write(&script, format!("set -e\n{block}"))?;
    let path = std::env::var("PATH").unwrap_or_default();
    // `script` provides the terminal.
    let mut command = room.command("script");
    // nsenter changes the working directory, so change it back. `--foreground` keeps crictl in the foreground: the
    // kernel stops (SIGTTOU) a background process that sets the terminal's mode.
    let line = format!("cd {} && timeout --foreground 120 bash guide.sh", directory.display());
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    command.env("PATH", format!("{}:{path}", supplies.programs().display()));
    command.env("CONTAINER_RUNTIME_ENDPOINT", format!("unix://{}", runtime.socket.display()));
    let done = command.stdin(Stdio::null()).output().context("cannot start script")?;
    let printed = String::from_utf8_lossy(&done.stdout).replace('\r', "");
    ensure!(done.status.success(), "the commands of {GUIDE} failed ({}):\n{printed}", done.status);
    let mut lines = printed.lines();
    for expected in EXPECTED {
        // A terminal can print a control character before the line.
        ensure!(lines.any(|line| line.trim().ends_with(expected)), "{GUIDE} does not print {expected:?}:\n{printed}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_has_one_block_of_commands() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = std::fs::read_to_string(root.join(GUIDE)).unwrap();
        assert_eq!(text.matches("```bash\n").count(), 1);
        for command in [
            "pull",
            "runp",
            "create",
            "start",
            "exec -it",
            "port-forward",
            "update",
            "stats",
            "attach",
            "logs -f",
            "inspect",
            "rm ",
            "stopp",
            "rmp",
        ] {
            assert!(text.contains(&format!("crictl {command}")), "{command}");
        }
    }
}
