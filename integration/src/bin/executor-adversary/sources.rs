//! Attacks by the owner of a git repository from which `agent-cli bundle` reads a bundle.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use integration::dist;

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "git: an object with other content",
        position: Position::Server,
        claim: "a git commit pins the content of every file that is read from it, whatever the repository contains",
        attack: rewritten,
        control: rewritten_control,
    },
    Attack {
        name: "git: a tree with billions of paths",
        position: Position::Server,
        claim: "a small repository whose trees have billions of paths is refused immediately",
        attack: bomb,
        control: bomb_control,
    },
];

/// Timeout for refusing a repository.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A repository with one bundle.
struct Repository {
    dir: tempfile::TempDir,
    commit: String,
}

impl Repository {
    fn new() -> anyhow::Result<Self> {
        let mut repository = Self { dir: tempfile::tempdir()?, commit: String::new() };
        repository.git(&["init", "-q"], "")?;
        let manifests = repository.dir.path().join("manifests");
        fs::create_dir(&manifests)?;
        fs::write(manifests.join("map.yaml"), map("good"))?;
        repository.git(&["add", "."], "")?;
        repository.commit = repository.commit_tree(&repository.git(&["write-tree"], "")?)?;
        Ok(repository)
    }

    fn git(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        let mut child = Command::new("git")
            .current_dir(self.dir.path())
            .args(["-c", "user.name=x", "-c", "user.email=x@example.com"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start git")?;
        child.stdin.take().context("the child has no standard input")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "git {arguments:?} failed: {}", output.status);
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    fn commit_tree(&self, tree: &str) -> anyhow::Result<String> {
        self.git(&["commit-tree", "-m", "x", tree], "")
    }

    /// Returns the path of a loose object, that is, an object outside of any pack.
    fn loose(&self, object: &str) -> PathBuf {
        self.dir.path().join(".git/objects").join(&object[..2]).join(&object[2..])
    }

    /// Replaces the content of an object with the content of another object.
    fn replace(&self, object: &str, by: &str) -> anyhow::Result<()> {
        fs::remove_file(self.loose(object))?;
        fs::copy(self.loose(by), self.loose(object))?;
        Ok(())
    }
}

/// Builds the manifest of a ConfigMap.
fn map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: b}}\n")
}

/// Runs `agent-cli bundle inspect` for a commit, and kills it after `limit`.
fn inspect(repository: &Path, commit: &str, limit: Duration) -> anyhow::Result<Output> {
    let source = format!("git:{}@{commit}", repository.display());
    let mut command = Command::new("timeout");
    command.arg(limit.as_secs().to_string()).arg(dist::binary("agent-cli-bundle"));
    Ok(command.args(["--json", "inspect", &source]).stdin(Stdio::null()).output()?)
}

/// Replaces the blob, the tree and the commit in turn, and reads the bundle under the old commit.
fn rewritten(_: Scale) -> anyhow::Result<Outcome> {
    for name in [":manifests/map.yaml", ":manifests", "^{tree}", ""] {
        let repository = Repository::new()?;
        let object = repository.git(&["rev-parse", &format!("{}{name}", repository.commit)], "")?;
        let blob = repository.git(&["hash-object", "-w", "--stdin"], &map("evil"))?;
        let within = repository.git(&["mktree"], &format!("100644 blob {blob}\tmap.yaml\n"))?;
        let root = repository.git(&["mktree"], &format!("040000 tree {within}\tmanifests\n"))?;
        let other = match name {
            ":manifests/map.yaml" => blob,
            ":manifests" => within,
            "^{tree}" => root,
            _ => repository.commit_tree(&root)?,
        };
        repository.replace(&object, &other)?;
        let output = inspect(repository.dir.path(), &repository.commit, INSPECT_TIMEOUT)?;
        if String::from_utf8_lossy(&output.stdout).contains("evil") {
            return Ok(Outcome::Through(format!("{}{name} was accepted with modified content", repository.commit)));
        }
        let reported = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            reported.contains(&object) && reported.contains("has the hash"),
            "{name}: {reported}, expected an error about the hash of {object}"
        );
    }
    Ok(Outcome::Held("a blob, two trees and a commit are refused, each by name".into()))
}

/// Control: an unchanged repository is read.
fn rewritten_control(_: Scale) -> anyhow::Result<String> {
    let repository = Repository::new()?;
    let output = inspect(repository.dir.path(), &repository.commit, INSPECT_TIMEOUT)?;
    let reported = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && reported.contains("good") && reported.contains(&repository.commit),
        "{output:?}"
    );
    Ok("the original repository is read".into())
}

/// Commits nested trees that each contain the next level ten times.
fn levels(repository: &Repository, count: usize) -> anyhow::Result<String> {
    let mut tree = repository.git(&["rev-parse", &format!("{}^{{tree}}", repository.commit)], "")?;
    for _ in 0..count {
        let lines: String = (0..10).map(|index| format!("040000 tree {tree}\td{index}\n")).collect();
        tree = repository.git(&["mktree"], &lines)?;
    }
    repository.commit_tree(&tree)
}

/// Reads a commit that has at least 10^10 files in a few dozen objects.
fn bomb(scale: Scale) -> anyhow::Result<Outcome> {
    let repository = Repository::new()?;
    let commit = levels(&repository, scale.pick(10, 20))?;
    let begun = Instant::now();
    let output = inspect(repository.dir.path(), &commit, INSPECT_TIMEOUT)?;
    let seconds = begun.elapsed().as_secs_f64();
    let refused = String::from_utf8_lossy(&output.stderr).contains("more than 100000 files");
    let fault = (!refused).then(|| format!("not refused after {seconds:.1} s ({})", output.status));
    Ok(Outcome::new(fault, format!("refused after {seconds:.1} s")))
}

/// Control: a commit of two levels, with 100 paths, is read.
fn bomb_control(_: Scale) -> anyhow::Result<String> {
    let repository = Repository::new()?;
    let commit = levels(&repository, 2)?;
    let output = inspect(repository.dir.path(), &commit, INSPECT_TIMEOUT)?;
    let reported = String::from_utf8_lossy(&output.stderr);
    ensure!(!reported.contains("more than") && output.status.code() != Some(124), "{reported}");
    Ok("a hundred paths to one file are read".into())
}
