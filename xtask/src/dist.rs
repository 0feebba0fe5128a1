//! `cargo xtask build`: builds all programs into one directory, where they find one another: `target/programs/`, or
//! `target/dist/` for the programs that ship.
//!
//! The launcher is static, so that its shims are small and load no libraries. The other programs are dynamic. No musl
//! target is necessary: glibc comes with gcc and can be linked statically. A rustc wrapper adds the flag for static
//! linking only to the launcher. Therefore, a single cargo run builds all programs, and builds each dependency once.
//!
//! Cargo works in `target/dist-build/`; the other directories hold only the finished files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::workspace::{Workspace, run, step};
use crate::{elf, needs};

/// Profile of the programs that ship.
const RELEASE: &str = "release";
/// Profile that compiles in half the time.
const QUICK: &str = "quick";
/// Variable of cargo with the program that is called in place of rustc.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";
const WRAPPER_PATH: &str = "xtask/rustc-wrapper";
/// Programs of the product; package and binary have the same name.
pub(crate) const PROGRAMS: [&str; 8] = [DAEMON, LAUNCHER, CLI, BUNDLES, CONVENTIONS, KUBE, OPERATORS, CRI];
pub(crate) const DAEMON: &str = "executord";
/// The launcher, the only static program.
pub(crate) const LAUNCHER: &str = "executor-launcher";
const CLI: &str = "agent-cli";
/// Program of `agent-cli cnab`.
pub(crate) const BUNDLES: &str = "agent-cli-cnab";
/// Program of `agent-cli convention`.
pub(crate) const CONVENTIONS: &str = "agent-cli-convention";
/// Program of `agent-cli kube`.
pub(crate) const KUBE: &str = "agent-cli-kube";
/// Name of [`BUNDLES`] for cnab-go and Porter: a link to the program.
pub(crate) const DRIVER: &str = "cnab-executor";
/// Program of `agent-cli bundle`.
pub(crate) const OPERATORS: &str = "agent-cli-bundle";
/// Name of [`OPERATORS`] as `agent-cli catalog`: a link to the program.
pub(crate) const CATALOGS: &str = "agent-cli-catalog";
/// Server of the Kubernetes runtime interface.
pub(crate) const CRI: &str = "executor-cri";
/// Names of links and the programs that they point to.
pub(crate) const LINKS: [(&str, &str); 2] = [(DRIVER, BUNDLES), (CATALOGS, OPERATORS)];

/// Builds the programs that ship. Returns a line with path, size and kind of each binary.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    build_with(workspace, RELEASE, &workspace.dist())
}

/// Builds the programs with less optimization. Returns a line with path, size and kind of each binary.
pub(crate) fn build_quick(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    build_with(workspace, QUICK, &workspace.target.join("programs"))
}

fn build_with(workspace: &Workspace, profile: &str, out: &Path) -> anyhow::Result<Vec<String>> {
    needs::require(&needs::BUILD)?;
    let programs = [CLI, BUNDLES, CONVENTIONS, KUBE, OPERATORS, CRI];
    step(&format!("Building executord, executor-launcher (static), {}", programs.join(", ")));
    // Select all packages, so that the tools share dependencies: cargo unites the features of the selected packages.
    let selection = PROGRAMS.iter().flat_map(|name| ["-p", *name, "--bin", *name]);
    cargo(workspace, profile, &selection.collect::<Vec<_>>())?;
    elf::require_static(&built(workspace, profile, LAUNCHER))?;
    std::fs::create_dir_all(out)?;
    let mut lines = Vec::new();
    for name in PROGRAMS {
        let kind = if name == LAUNCHER { "static" } else { "dynamic" };
        let size = install(&built(workspace, profile, name), &out.join(name))?;
        lines.push(format!("{:<40} {:>6.1} MB  {kind}", out.join(name).display(), megabytes(size)));
    }
    for (name, program) in link(out)? {
        lines.push(format!("{:<40} {:>9}  link to {program}", out.join(name).display(), ""));
    }
    Ok(lines)
}

/// Builds the programs under test, and returns their directory. The programs have the profile of the tests, so that
/// each crate is compiled once. Cargo.toml optimizes the crates that wipe secrets, because an optimizer might remove a
/// wipe. The programs that ship are tested by `vm-test`, `crash`, `adversary` and `soak`.
pub(crate) fn build_tested(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    needs::require(&needs::BUILD)?;
    let (debug, dir) = (workspace.target.join("debug"), workspace.target.join("tested"));
    std::fs::create_dir_all(&dir)?;
    step("Building the programs under test");
    run(cargo_for_tests(workspace, &["build", "--workspace", "--bins"]).arg("--target-dir").arg(&workspace.target))?;
    for name in PROGRAMS {
        install(&debug.join(name), &dir.join(name))?;
    }
    elf::require_static(&dir.join(LAUNCHER))?;
    link(&dir)?;
    Ok(dir)
}

/// Returns a cargo command whose builds share their crates with those of [`build_tested`].
pub(crate) fn cargo_for_tests(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = workspace.cargo(arguments);
    command.env(WRAPPER, workspace.root.join(WRAPPER_PATH));
    command
}

/// Creates the links next to the programs of a directory, and returns them.
fn link(dir: &Path) -> anyhow::Result<[(&'static str, &'static str); 2]> {
    for (name, program) in LINKS {
        let link = dir.join(name);
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link).with_context(|| format!("cannot remove {}", link.display()))?;
        }
        std::os::unix::fs::symlink(program, &link)
            .with_context(|| format!("cannot create the link {}", link.display()))?;
    }
    Ok(LINKS)
}

/// Builds a program that is not part of the product, with the profile of what ships, and returns its path.
pub(crate) fn build_tool(workspace: &Workspace, package: &str, binary: &str) -> anyhow::Result<PathBuf> {
    needs::require(&needs::BUILD)?;
    cargo(workspace, RELEASE, &["-p", package, "--bin", binary])?;
    Ok(built(workspace, RELEASE, binary))
}

/// Builds executord and executor-launcher without wiping (feature `residue-control`), and returns their directory. A
/// test uses them to prove that the residue search would find residue. Both are debug binaries, because the feature
/// does not compile otherwise.
pub(crate) fn build_control(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    const CONTROLS: [&str; 2] = [DAEMON, LAUNCHER];
    step("Building the control, which does not wipe");
    let mut command = cargo_for_tests(workspace, &["build", "--workspace"]);
    for name in CONTROLS {
        command.args(["--bin", name, "--features"]).arg(format!("{name}/residue-control"));
    }
    // Build in the ordinary debug directory and for the whole workspace, so that all other crates are shared.
    run(command.arg("--target-dir").arg(&workspace.target))?;
    let dir = workspace.target.join("control");
    std::fs::create_dir_all(&dir)?;
    for name in CONTROLS {
        let built = workspace.target.join("debug").join(name);
        install(&built, &dir.join(name))?;
        // Remove the control, so that it is not used as an ordinary binary. The next build recreates the ordinary
        // binary.
        std::fs::remove_file(&built).with_context(|| format!("cannot remove {}", built.display()))?;
    }
    Ok(dir)
}

/// Builds a launcher that can generate its manual page, and returns its path.
pub(crate) fn build_launcher_with_manual(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    step("Building the launcher's page generator");
    // Build in the debug directory and for the whole workspace, so that all other crates are shared.
    let mut command = workspace.cargo(["build", "--workspace", "--bin", LAUNCHER, "--features"]);
    run(command.arg(format!("{LAUNCHER}/manual")).arg("--target-dir").arg(&workspace.target))?;
    Ok(workspace.target.join("debug").join(LAUNCHER))
}

/// Builds the daemons and agent-cli without optimization, and returns their directory. The demo uses them, because it
/// needs neither speed nor front ends. The programs share most dependencies with xtask and with the tests.
pub(crate) fn build_unoptimized(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    needs::require(&needs::BUILD)?;
    step("Building executord, executor-launcher and agent-cli, not optimized");
    let mut command = cargo_for_tests(workspace, &["build"]);
    command.env("CARGO_INCREMENTAL", "0"); // usually built only once
    for name in [DAEMON, LAUNCHER, CLI] {
        command.args(["-p", name]);
    }
    run(command.arg("--target-dir").arg(&workspace.target))?;
    Ok(workspace.target.join("debug"))
}

fn cargo(workspace: &Workspace, profile: &str, what: &[&str]) -> anyhow::Result<()> {
    let mut command = workspace.cargo(["build", "--profile", profile, "--target", &workspace.host]);
    command.env(WRAPPER, workspace.root.join(WRAPPER_PATH));
    run(command.arg("--target-dir").arg(build_dir(workspace)).args(what))
}

fn build_dir(workspace: &Workspace) -> PathBuf {
    workspace.target.join("dist-build")
}

fn built(workspace: &Workspace, profile: &str, binary: &str) -> PathBuf {
    build_dir(workspace).join(&workspace.host).join(profile).join(binary)
}

/// Copies to a new file and renames it, because the old program may be running.
fn install(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let new = to.with_extension("new");
    let size =
        std::fs::copy(from, &new).with_context(|| format!("cannot copy {} to {}", from.display(), new.display()))?;
    std::fs::rename(&new, to).with_context(|| format!("cannot rename {} to {}", new.display(), to.display()))?;
    Ok(size)
}

#[allow(clippy::cast_precision_loss)] // one digit after the point is printed
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
