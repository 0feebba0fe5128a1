//! `cargo xtask man` and `cargo xtask completions`: runs each binary to generate its manual pages and completions from
//! the definitions of its `--help`.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::dist;
use crate::workspace::{Workspace, run};

/// Programs for users. They have a manual page for each command, and completions.
pub(crate) const COMMAND_LINES: [&str; 6] =
    ["agent-cli", dist::BUNDLES, dist::CONVENTIONS, dist::KUBE, dist::OPERATORS, dist::CATALOGS];

/// Writes the man pages to `target/man/`.
pub(crate) fn man(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    dist::build(workspace)?;
    let out = workspace.target.join("man");
    write_man(workspace, &out)?;
    list(&out)
}

/// Writes the shell completions to `target/completions/`.
pub(crate) fn completions(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    dist::build(workspace)?;
    let out = workspace.target.join("completions");
    write_completions(workspace, &out)?;
    list(&out)
}

/// Writes the man pages of the programs in `target/dist/`.
pub(crate) fn write_man(workspace: &Workspace, out: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(out)?;
    for name in COMMAND_LINES {
        run(program(workspace, name).args(["generate", "man", "--out"]).arg(out))?;
    }
    for daemon in [dist::DAEMON, dist::CRI] {
        run(program(workspace, daemon).arg("--generate-man").arg(out))?;
    }
    // The release launcher does not contain the page generator.
    let launcher = dist::build_launcher_with_manual(workspace)?;
    run(Command::new(launcher).env_remove("PATH").arg("--generate-man").arg(out))
}

/// Writes the completions of the programs in `target/dist/`.
pub(crate) fn write_completions(workspace: &Workspace, out: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(out)?;
    for name in COMMAND_LINES {
        run(program(workspace, name).args(["generate", "completions", "--out"]).arg(out))?;
    }
    Ok(())
}

/// Returns a command that runs a program without PATH, because the completions of agent-cli would otherwise contain
/// external programs of the build machine.
fn program(workspace: &Workspace, name: &str) -> Command {
    let mut command = Command::new(workspace.dist().join(name));
    command.env_remove("PATH");
    command
}

fn list(directory: &Path) -> anyhow::Result<ExitCode> {
    let mut paths =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
