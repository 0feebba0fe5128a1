//! `cargo xtask man` and `cargo xtask completions`: each binary writes its own, from the same definitions
//! as its `--help`.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::dist;
use crate::workspace::{Workspace, run};

/// Writes the man pages to `target/man/`.
pub(crate) fn man(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    dist::build(workspace)?;
    let out = workspace.target.join("man");
    std::fs::create_dir_all(&out)?;
    run(Command::new(workspace.dist().join("agent-cli")).args(["generate", "man", "--out"]).arg(&out))?;
    for daemon in ["executord", "executor-launcher"] {
        run(Command::new(workspace.dist().join(daemon)).arg("--generate-man").arg(&out))?;
    }
    list(&out)
}

/// Writes the completions of the shells to `target/completions/`.
pub(crate) fn completions(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    dist::build(workspace)?;
    let out = workspace.target.join("completions");
    std::fs::create_dir_all(&out)?;
    run(Command::new(workspace.dist().join("agent-cli")).args(["generate", "completions", "--out"]).arg(&out))?;
    list(&out)
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
