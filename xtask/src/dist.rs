//! `cargo xtask build`: the release binaries, side by side in `target/dist/`, where they find one another.
//!
//! The launcher is static, so that its shims are small and load nothing from anywhere; the others are
//! plain dynamic programs. No musl target is asked for: glibc linked statically does, and comes with gcc.
//! A wrapper of rustc adds the flag for static linking to the launcher alone, so that one run of cargo builds all
//! programs and each of their dependencies once.
//!
//! Cargo works in `target/dist-build/`; `target/dist/` holds the finished files alone.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::workspace::{Workspace, run, step};
use crate::{elf, needs};

const PROFILE: &str = "dist";
/// Programs of the product; package and binary have the same name.
pub(crate) const PROGRAMS: [&str; 7] = [DAEMON, LAUNCHER, CLI, BUNDLES, CONVENTIONS, KUBE, OPERATORS];
const DAEMON: &str = "executord";
/// The one static program.
pub(crate) const LAUNCHER: &str = "executor-launcher";
const CLI: &str = "agent-cli";
/// The program behind `agent-cli cnab`.
pub(crate) const BUNDLES: &str = "agent-cli-cnab";
/// The program behind `agent-cli convention`.
pub(crate) const CONVENTIONS: &str = "agent-cli-convention";
/// The program behind `agent-cli kube`.
pub(crate) const KUBE: &str = "agent-cli-kube";
/// The name by which cnab-go and Porter call the program of bundles: a link to it.
pub(crate) const DRIVER: &str = "cnab-executor";
/// The program behind `agent-cli bundle`.
pub(crate) const OPERATORS: &str = "agent-cli-bundle";
/// The name by which that program is `agent-cli catalog`: a link to it.
pub(crate) const CATALOGS: &str = "agent-cli-catalog";
/// Links, with the program that each leads to.
pub(crate) const LINKS: [(&str, &str); 2] = [(DRIVER, BUNDLES), (CATALOGS, OPERATORS)];

/// Builds the product. Answers a line for each binary: path, size, kind.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    build_daemons(workspace, &[CLI, BUNDLES, CONVENTIONS, KUBE, OPERATORS])?;
    std::fs::create_dir_all(workspace.dist())?;
    let mut lines = Vec::new();
    for name in PROGRAMS {
        let kind = if name == LAUNCHER { "static" } else { "dynamic" };
        let size = install(&built(workspace, name), &workspace.dist().join(name))?;
        lines.push(format!("{:<40} {:>6.1} MB  {kind}", workspace.dist().join(name).display(), megabytes(size)));
    }
    for (name, program) in link(&workspace.dist())? {
        lines.push(format!("{:<40} {:>9}  link to {program}", workspace.dist().join(name).display(), ""));
    }
    Ok(lines)
}

/// Builds what the tests start, and answers the directory that it is in: the daemons and agent-cli as they ship, because an optimizer
/// might remove a wipe; the programs of front ends as debug binaries, which takes minutes less.
pub(crate) fn build_tested(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    build_daemons(workspace, &[CLI])?;
    step("Building the programs of front ends, not optimized");
    // All packages, so that the tests find their dependencies built with the same features.
    run(workspace.cargo(["build", "--workspace", "--bins"]).arg("--target-dir").arg(&workspace.target))?;
    let dir = workspace.target.join("tested");
    std::fs::create_dir_all(&dir)?;
    for name in PROGRAMS {
        let as_it_ships = [DAEMON, LAUNCHER, CLI].contains(&name);
        let from = if as_it_ships { built(workspace, name) } else { workspace.target.join("debug").join(name) };
        install(&from, &dir.join(name))?;
    }
    link(&dir)?;
    Ok(dir)
}

/// Builds the daemons as they ship, and these programs with them.
fn build_daemons(workspace: &Workspace, programs: &[&str]) -> anyhow::Result<()> {
    needs::require(&needs::BUILD)?;
    step(&format!("Building executord, executor-launcher (static), {}", programs.join(", ")));
    let packages: Vec<&str> = [DAEMON, LAUNCHER].iter().chain(programs).flat_map(|name| ["-p", *name]).collect();
    cargo(workspace, &packages)?;
    elf::require_static(&built(workspace, LAUNCHER))
}

/// Makes the links beside the programs of a directory, and answers them.
fn link(dir: &Path) -> anyhow::Result<[(&'static str, &'static str); 2]> {
    for (name, program) in LINKS {
        let link = dir.join(name);
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link).with_context(|| link.display().to_string())?;
        }
        std::os::unix::fs::symlink(program, &link).with_context(|| link.display().to_string())?;
    }
    Ok(LINKS)
}

/// Builds a program of the repository that is not part of the product, with the product's profile, and
/// answers where it is.
pub(crate) fn build_tool(workspace: &Workspace, package: &str, binary: &str) -> anyhow::Result<PathBuf> {
    needs::require(&needs::BUILD)?;
    cargo(workspace, &["-p", package, "--bin", binary])?;
    Ok(built(workspace, binary))
}

/// Builds executord and executor-launcher so that they wipe nothing (feature `residue-control`), and answers the directory
/// that they are in: for the test that shows that the search for residue would find some. Debug binaries, which is all
/// that the feature compiles as.
pub(crate) fn build_control(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    const CONTROLS: [&str; 2] = [DAEMON, LAUNCHER];
    step("Building the control that wipes nothing");
    let mut command = workspace.cargo(["build", "--workspace"]);
    for name in CONTROLS {
        command.args(["--bin", name, "--features"]).arg(format!("{name}/residue-control"));
    }
    // Where ordinary debug builds go, too, and of the whole workspace, because all but our own crates are the same then.
    run(command.arg("--target-dir").arg(&workspace.target))?;
    let dir = workspace.target.join("control");
    std::fs::create_dir_all(&dir)?;
    for name in CONTROLS {
        let built = workspace.target.join("debug").join(name);
        install(&built, &dir.join(name))?;
        // Nobody shall take it for an ordinary one; the next build puts that there.
        std::fs::remove_file(&built).with_context(|| built.display().to_string())?;
    }
    Ok(dir)
}

/// Builds the daemons and agent-cli quickly and together, not optimized, and answers the directory that they are in: for the
/// demo, which shows what they do and not how fast, and no bundles.
pub(crate) fn build_quickly(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    const PROFILE: &str = "quick";
    needs::require(&needs::BUILD)?;
    step("Building executord, executor-launcher and agent-cli, not optimized");
    let mut command = workspace.cargo(["build", "--profile", PROFILE]);
    for name in [DAEMON, LAUNCHER, CLI] {
        command.args(["-p", name]);
    }
    run(command.arg("--target-dir").arg(&workspace.target))?;
    Ok(workspace.target.join(PROFILE))
}

fn cargo(workspace: &Workspace, what: &[&str]) -> anyhow::Result<()> {
    let mut command = workspace.cargo(["build", "--profile", PROFILE, "--target", &workspace.host]);
    command.env("RUSTC_WORKSPACE_WRAPPER", workspace.root.join("xtask/rustc-wrapper"));
    run(command.arg("--target-dir").arg(build_dir(workspace)).args(what))
}

fn build_dir(workspace: &Workspace) -> PathBuf {
    workspace.target.join("dist-build")
}

fn built(workspace: &Workspace, binary: &str) -> PathBuf {
    build_dir(workspace).join(&workspace.host).join(PROFILE).join(binary)
}

/// Copies by way of a new file and a rename: the old one may be running.
fn install(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let new = to.with_extension("new");
    let size = std::fs::copy(from, &new).with_context(|| format!("copying {} to {}", from.display(), new.display()))?;
    std::fs::rename(&new, to).with_context(|| format!("renaming {} to {}", new.display(), to.display()))?;
    Ok(size)
}

/// Millions of bytes, for people.
#[allow(clippy::cast_precision_loss)] // one digit after the point is printed
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
