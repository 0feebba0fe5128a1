//! `cargo xtask deb`: builds the Debian package, `target/deb/executor_VERSION_ARCH.deb`.
//!
//! The inputs are the dist binaries, their generated manual pages and completions, `systemd/`, `packaging/debian/` and
//! the documentation as a book. The build is reproducible: the same binaries and commit result in the same file. The
//! build uses dpkg-deb, which every Debian system has, instead of debhelper. `packaging/debian/` has the few files that
//! debhelper would generate.
//!
//! Only the architectures amd64 and arm64 are supported. The package depends on the C library that the binaries were
//! linked with, so build it on the oldest Debian that must be supported.

mod layout;
mod third_party;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};

use crate::workspace::{Workspace, output, run, step};
use crate::{dist, docs, needs};

const CONTROL_FILES: [(&str, u32); 3] = [("postinst", 0o755), ("prerm", 0o755), ("postrm", 0o755)];

/// Options of the package build.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Check the package with lintian, installing lintian if necessary
    #[arg(long)]
    lintian: bool,
}

/// Builds the binaries and the package, and prints the path of the package.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    dist::build(workspace)?;
    let package = build(workspace)?;
    println!("{}", package.display());
    if options.lintian {
        needs::require(&needs::LINTIAN)?;
        step("Checking the package with lintian");
        run(Command::new("lintian").args(["--no-tag-display-limit", "--fail-on", "error,warning"]).arg(&package))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the package from the binaries in `target/dist/`.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    needs::require(&needs::DEB)?;
    let book = docs::build(workspace)?;
    step("Making the Debian package");
    let out = workspace.target.join("deb");
    std::fs::create_dir_all(&out)?;
    let tree = tempfile::tempdir_in(&out)?;
    layout::Tree::new(tree.path(), workspace, &book).fill()?;
    let (version, architecture) = (env!("CARGO_PKG_VERSION"), architecture(workspace)?);
    control(workspace, tree.path(), version, architecture)?;

    let package = out.join(format!("executor_{version}_{architecture}.deb"));
    // dpkg-deb limits times in the archive to this time, sets the owner to root, and sorts entries by name.
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "-Zxz", "--build"]).arg(tree.path()).arg(&package);
    output(command.env("SOURCE_DATE_EPOCH", epoch(workspace)))?;
    Ok(package)
}

fn control(workspace: &Workspace, tree: &Path, version: &str, architecture: &str) -> anyhow::Result<()> {
    let source = workspace.root.join("packaging/debian");
    let debian = tree.join("DEBIAN");
    layout::directory(&debian)?;
    for (name, mode) in CONTROL_FILES {
        layout::install(&source.join(name), &debian.join(name), mode)?;
    }
    let (sums, bytes) = layout::sums(tree)?;
    layout::write(&debian.join("md5sums"), &sums)?;
    layout::write(&debian.join("conffiles"), b"/etc/executor/executor.toml\n")?;
    let template = std::fs::read_to_string(source.join("control"))?;
    let filled = template
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@INSTALLED_SIZE@", &bytes.div_ceil(1024).to_string())
        .replace("@LIBC@", &libc(workspace)?);
    layout::write(&debian.join("control"), filled.as_bytes())
}

fn architecture(workspace: &Workspace) -> anyhow::Result<&'static str> {
    match workspace.host.split('-').next() {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        _ => bail!("{} is not supported; use x86_64 or aarch64", workspace.host),
    }
}

/// Returns the highest C library version that the dynamic binaries require. dpkg-shlibdeps does the same, but is not
/// installed everywhere.
fn libc(workspace: &Workspace) -> anyhow::Result<String> {
    let mut highest = (2, 0);
    for name in dist::PROGRAMS.into_iter().filter(|name| *name != dist::LAUNCHER) {
        let path = workspace.dist().join(name);
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for word in bytes.split(|byte| *byte == 0).filter_map(|word| word.strip_prefix(b"GLIBC_2.")) {
            if let Some(minor) = std::str::from_utf8(word).ok().and_then(|word| word.split('.').next()?.parse().ok()) {
                highest = highest.max((2, minor));
            }
        }
    }
    Ok(format!("{}.{}", highest.0, highest.1))
}

/// Returns the timestamp of the package: SOURCE_DATE_EPOCH if set, else the time of the last commit, else 0.
pub(super) fn epoch(workspace: &Workspace) -> String {
    std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| {
        let mut git = Command::new("git");
        git.args(["log", "-1", "--format=%ct"]).current_dir(&workspace.root);
        output(&mut git).map_or_else(|_| "0".to_owned(), |time| time.trim().to_owned())
    })
}
