//! Creates the payload of the virtual machine: a read-only disk with the package, the programs, the checks, and the
//! integration tests.
//!
//! Each line of `integration/vm/tests` begins with EXECUTABLE/MODULE, or with EXECUTABLE if the module has the same
//! name. Checks name further test executables in lines `# tests: NAME...`, and programs of `integration/engines` in
//! lines `# programs: NAME...`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::root::make_ext4;
use crate::workspace::{Workspace, run, step};
use crate::{dist, engines};

/// Creates the disk. Tests are built only if at least one of them will run.
pub(super) fn image(workspace: &Workspace, filter: &[String], with_tests: bool) -> anyhow::Result<PathBuf> {
    let scratch = tempfile::tempdir_in(workspace.target.join("vm"))?;
    let tree = scratch.path();
    for dir in ["dist", "docs", "tests", "programs"] {
        fs::create_dir(tree.join(dir))?;
    }
    for binary in dist::PROGRAMS {
        fs::copy(workspace.dist().join(binary), tree.join("dist").join(binary)).context(binary)?;
    }
    fs::copy(package(workspace)?, tree.join("executor.deb"))?;
    copy_all(&workspace.root.join("integration/vm"), &tree.join("vm"))?;
    let documents = [
        "docs/guides/kubernetes-node.md",
        "docs/guides/kubernetes-secrets.md",
        "docs/kubernetes-node.toml",
        "packaging/kubernetes/executor-cri-csi.conf",
    ];
    for document in documents.map(Path::new) {
        let name = document.file_name().context("the document has no file name")?;
        fs::copy(workspace.root.join(document), tree.join("docs").join(name))
            .with_context(|| format!("cannot copy {}", document.display()))?;
    }

    let list = fs::read_to_string(workspace.root.join("integration/vm/tests"))?;
    let listed = list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    let selected = |name: &str| filter.is_empty() || filter.iter().any(|text| name.contains(&**text));
    let wanted = |name: &str| with_tests && selected(name);
    let mut names = BTreeSet::new();
    for test in listed {
        let (executable, module) = test.split_once('/').unwrap_or((test, test));
        if wanted(&format!("80-test-{module}")) {
            names.insert(executable.to_owned());
        }
    }
    let checks = tree.join("vm/checks");
    names.extend(
        used_by_checks(&checks, "# tests: ")?.into_iter().filter(|(check, _)| wanted(check)).map(|(_, test)| test),
    );
    for (_, program) in used_by_checks(&checks, "# programs: ")?.iter().filter(|(check, _)| selected(check)) {
        fs::copy(engines::program(workspace, program)?, tree.join("programs").join(program))
            .with_context(|| format!("cannot copy {program}"))?;
    }
    for (name, executable) in tests(workspace, &names)? {
        // Strip the debug information of the standard library.
        run(Command::new("strip").arg("--strip-debug").arg("-o").arg(tree.join("tests").join(name)).arg(executable))?;
    }
    let image = workspace.target.join("vm/payload.ext4");
    make_ext4(tree, &image, &format!("{}M", megabytes(tree)? * 5 / 4 + 16))?;
    Ok(image)
}

/// Returns the package in `target/deb/`. If there are several versions, returns the newest.
fn package(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let dir = workspace.target.join("deb");
    let entries = fs::read_dir(&dir).with_context(|| format!("{}: run `cargo xtask deb`", dir.display()))?;
    let packages =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ext| ext == "deb"));
    packages
        .max_by_key(|path| path.metadata().and_then(|meta| meta.modified()).ok())
        .with_context(|| format!("no package in {}: run `cargo xtask deb`", dir.display()))
}

/// Returns the tests or programs that checks name in lines that begin with `prefix`, each after the name of the check.
fn used_by_checks(dir: &Path, prefix: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut used = Vec::new();
    for check in fs::read_dir(dir)? {
        let path = check?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for tests in fs::read_to_string(&path)?.lines().filter_map(|line| line.strip_prefix(prefix)) {
            used.extend(tests.split_whitespace().map(|test| (name.clone(), test.to_owned())));
        }
    }
    Ok(used)
}

/// Builds test executables, and returns their paths.
fn tests(workspace: &Workspace, names: &BTreeSet<String>) -> anyhow::Result<Vec<(String, PathBuf)>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    step("Building the tests that run in the virtual machine");
    // Build the whole workspace, like `cargo xtask test`: a build of other packages would rebuild the large
    // dependencies.
    let mut cargo = workspace.cargo(["test", "--workspace", "--no-run", "--quiet", "--message-format=json"]);
    for name in names {
        cargo.args(["--test", name]);
    }
    let done = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(done.status.success(), "the tests do not compile: {}", done.status);
    // Other packages may have tests of the same name.
    let manifest = workspace.root.join("integration/Cargo.toml");
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&done.stdout).lines() {
        let message: Value = serde_json::from_str(line).context("cannot parse the messages of cargo")?;
        let is_test = message["target"]["kind"] == serde_json::json!(["test"])
            && message["manifest_path"].as_str() == manifest.to_str();
        if let (true, Some(path), Some(name)) =
            (is_test, message["executable"].as_str(), message["target"]["name"].as_str())
        {
            found.push((name.to_owned(), PathBuf::from(path)));
        }
    }
    for name in names {
        ensure!(found.iter().any(|(built, _)| built == name), "integration/vm names `{name}`, which is not a test");
    }
    Ok(found)
}

fn copy_all(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

fn megabytes(dir: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        sum += if entry.file_type()?.is_dir() {
            megabytes(&entry.path())?
        } else {
            entry.metadata()?.len() / 1_000_000 + 1
        };
    }
    Ok(sum)
}
