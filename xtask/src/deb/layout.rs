//! Defines path and mode of each file in the package.
//!
//! Modes are set here and not copied from the checkout, where they depend on the user's umask.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use super::third_party;
use crate::workspace::{Workspace, output};
use crate::{dist, generate};

const UNITS: [&str; 5] = [
    "executord.service",
    "executord.socket",
    "executor-launcher.service",
    "executor-drain.service",
    "executor-cri.service",
];
/// Pages of the book that are also installed as text, for reading on a terminal.
const DOCUMENTS: [&str; 6] = [
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/operations.md",
    "docs/troubleshooting.md",
    "docs/configuration.md",
];
/// Examples for a Kubernetes node: manifests, a drop-in, and a Helm chart.
const KUBERNETES: [&str; 9] = [
    "csi-driver.yaml",
    "executor-cri-csi.conf",
    "runtime-classes.yaml",
    "chart/Chart.yaml",
    "chart/values.schema.json",
    "chart/values.yaml",
    "chart/templates/NOTES.txt",
    "chart/templates/csi-driver.yaml",
    "chart/templates/runtime-classes.yaml",
];
/// Directory of the documentation.
const DOC: &str = "usr/share/doc/executor";
/// Findings of lintian that are intended.
const OVERRIDES: &str = "usr/share/lintian/overrides/executor";

/// The package's files before packing.
pub(super) struct Tree<'a> {
    root: &'a Path,
    workspace: &'a Workspace,
    /// Directory of the book's HTML.
    book: &'a Path,
}

impl<'a> Tree<'a> {
    pub(super) fn new(root: &'a Path, workspace: &'a Workspace, book: &'a Path) -> Self {
        Self { root, workspace, book }
    }

    /// Adds all files, except the control files of the package.
    pub(super) fn fill(&self) -> anyhow::Result<()> {
        fs::set_permissions(self.root, fs::Permissions::from_mode(0o755))?;
        for binary in dist::PROGRAMS {
            install(&self.workspace.dist().join(binary), &self.at(&format!("usr/bin/{binary}")), 0o755)?;
        }
        // Alternative names of programs: a driver for CNAB tools, and `agent-cli catalog`.
        for (name, program) in dist::LINKS {
            symlink(program, self.at(&format!("usr/bin/{name}")))?;
        }
        for unit in UNITS {
            self.from(&format!("systemd/{unit}"), &format!("usr/lib/systemd/system/{unit}"))?;
        }
        self.from("systemd/sysusers.d/executor.conf", "usr/lib/sysusers.d/executor.conf")?;
        self.from("systemd/tmpfiles.d/executor.conf", "usr/lib/tmpfiles.d/executor.conf")?;
        self.from("packaging/debian/executor.toml", "etc/executor/executor.toml")?;
        self.from("packaging/debian/lintian-overrides", OVERRIDES)?;
        self.generated()?;
        self.documents()
    }

    /// Adds the files that the binaries generate.
    fn generated(&self) -> anyhow::Result<()> {
        let scratch = tempfile::tempdir()?;
        let (pages, shells) = (scratch.path().join("man"), scratch.path().join("completions"));
        generate::write_man(self.workspace, &pages)?;
        for page in fs::read_dir(&pages)? {
            let path = page?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .with_context(|| format!("{}: the file name of a manual page must be UTF-8", path.display()))?;
            let section = name.rsplit('.').next().unwrap_or("1");
            gzip(&fs::read(&path)?, &self.at(&format!("usr/share/man/man{section}/{name}.gz")))?;
        }
        generate::write_completions(self.workspace, &shells)?;
        for program in generate::COMMAND_LINES {
            for (name, to) in completions(program) {
                install(&shells.join(name), &self.at(&to), 0o644)?;
            }
        }
        Ok(())
    }

    fn documents(&self) -> anyhow::Result<()> {
        self.from("packaging/debian/copyright", &format!("{DOC}/copyright"))?;
        self.from("packaging/debian/README.Debian", &format!("{DOC}/README.Debian"))?;
        for document in DOCUMENTS {
            let name = leaf(document);
            gzip(&fs::read(self.workspace.root.join(document))?, &self.at(&format!("{DOC}/{name}.gz")))?;
        }
        gzip(&self.changelog()?, &self.at(&format!("{DOC}/changelog.gz")))?;
        gzip(third_party::notice(self.workspace)?.as_bytes(), &self.at(&format!("{DOC}/THIRD-PARTY.gz")))?;
        for example in ["executor.toml", "kubernetes-node.toml"] {
            self.from(&format!("docs/{example}"), &format!("{DOC}/examples/{example}"))?;
        }
        for name in KUBERNETES {
            self.from(&format!("packaging/kubernetes/{name}"), &format!("{DOC}/examples/kubernetes/{name}"))?;
        }
        // The comments in the configuration refer to this path.
        symlink("../configuration.md.gz", self.at(&format!("{DOC}/examples/configuration.md.gz")))?;
        self.book()
    }

    /// Adds the book, and its entry in Debian's list of documents.
    fn book(&self) -> anyhow::Result<()> {
        let mut pages = Vec::new();
        list(self.book, &mut pages)?;
        for page in pages {
            let name = page.strip_prefix(self.book)?;
            install(&page, &self.at(DOC).join("html").join(name), 0o644)?;
        }
        self.from("packaging/debian/doc-base", "usr/share/doc-base/executor.executor")
    }

    /// Returns a changelog in Debian's format, with a single entry that refers to the project's changelog.
    fn changelog(&self) -> anyhow::Result<Vec<u8>> {
        let date =
            output(Command::new("date").args(["-u", "-R", "-d", &format!("@{}", super::epoch(self.workspace))]))?;
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!(
            "executor ({version}) unstable; urgency=medium\n\n  * Built from the sources of {version}; CHANGELOG.md.gz lists the changes.\n"
        );
        text.push_str(&format!("\n -- The Executor project <executor@packages.invalid>  {}\n", date.trim()));
        Ok(text.into_bytes())
    }

    fn from(&self, source: &str, to: &str) -> anyhow::Result<()> {
        install(&self.workspace.root.join(source), &self.at(to), 0o644)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

/// Returns a program's completions, with the path and name that each shell expects.
fn completions(program: &str) -> [(String, String); 3] {
    [
        (format!("{program}.bash"), format!("usr/share/bash-completion/completions/{program}")),
        (format!("_{program}"), format!("usr/share/zsh/vendor-completions/_{program}")),
        (format!("{program}.fish"), format!("usr/share/fish/vendor_completions.d/{program}.fish")),
    ]
}

/// Creates a directory and its parents, readable by all.
pub(super) fn directory(path: &Path) -> anyhow::Result<()> {
    if !path.exists() {
        path.parent().map_or(Ok(()), directory)?;
        fs::create_dir(path).with_context(|| format!("cannot create directory {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Copies a file, and sets its mode.
pub(super) fn install(from: &Path, to: &Path, mode: u32) -> anyhow::Result<()> {
    to.parent().map_or(Ok(()), directory)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Writes a file that is readable by all.
pub(super) fn write(to: &Path, content: &[u8]) -> anyhow::Result<()> {
    to.parent().map_or(Ok(()), directory)?;
    let mut file = fs::File::options().write(true).create_new(true).mode(0o644).open(to)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(content).with_context(|| format!("cannot write {}", to.display()))
}

/// Writes a compressed file, without name and timestamp in its header.
fn gzip(content: &[u8], to: &Path) -> anyhow::Result<()> {
    let mut child = Command::new("gzip").args(["-9", "-n"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("gzip has no standard input")?;
    let done = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(content));
        child.wait_with_output()
    })?;
    ensure!(done.status.success(), "gzip failed: {}", done.status);
    write(to, &done.stdout)
}

/// Returns the package's md5sums, sorted by name, and the total size of all files.
pub(super) fn sums(tree: &Path) -> anyhow::Result<(Vec<u8>, u64)> {
    let mut files = Vec::new();
    list(tree, &mut files)?;
    files.sort();
    let mut bytes = 0;
    let mut command = Command::new("md5sum");
    command.current_dir(tree);
    for file in &files {
        bytes += file.metadata()?.len();
        command.arg(file.strip_prefix(tree)?);
    }
    Ok((output(&mut command)?.into_bytes(), bytes))
}

fn list(dir: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && entry.file_name() != "DEBIAN" {
            list(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn leaf(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_examples_for_kubernetes_are_installed() {
        let root = Workspace::find().unwrap().root.join("packaging/kubernetes");
        let mut files = Vec::new();
        list(&root, &mut files).unwrap();
        let mut found: Vec<_> = files.iter().map(|file| file.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
        let mut installed = KUBERNETES;
        found.sort_unstable();
        installed.sort_unstable();
        assert_eq!(found, installed);
    }

    #[test]
    fn version_of_chart_is_that_of_package() {
        let chart = Workspace::find().unwrap().root.join("packaging/kubernetes/chart/Chart.yaml");
        let (chart, version) = (fs::read_to_string(chart).unwrap(), env!("CARGO_PKG_VERSION"));
        for line in [format!("version: {version}"), format!("appVersion: \"{version}\"")] {
            assert!(chart.lines().any(|found| found == line), "no {line}");
        }
    }
}
