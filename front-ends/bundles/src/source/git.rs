//! Reads commits of git repositories with the program `git`, from a local repository or over https.
//!
//! ```text
//!  https://HOST/REPOSITORY ── git fetch ──> repository of our own ──┐
//!                              (limited)                            ├── git cat-file ──> commit ──> trees ──> blobs
//!  /PATH ── its directory of objects ───────────────────────────────┘       each hashed here, and compared with its name
//! ```
//! The source names the full hash of the commit. When git reads a local object, it does not fully verify the object's
//! hash. The module `objects` therefore hashes every object itself, so that the commit pins all content that is read.
//!
//! The only protocol is `https`. Configuration, hooks, filters, replacements, grafts and credential helpers of the user
//! or the repository are not used. The module `process` limits the resources of `git`.

mod objects;
mod process;

use std::path::{Path, PathBuf};

use executor_core::text::is_harmful;

use self::objects::Objects;
use self::process::{Limits, git, run};
use super::{Sink, Source, SourceError, memory_dir, name_within};

/// Parses a git source: `REPOSITORY@COMMIT[#DIRECTORY]`.
pub(super) fn parse(text: &str) -> Result<Source, SourceError> {
    let wrong = |why: &str| SourceError::Wrong(format!("git:{text}: {why}; write git:REPOSITORY@COMMIT[#DIRECTORY]"));
    let (rest, directory) = text.split_once('#').unwrap_or((text, ""));
    let (repository, commit) = rest.rsplit_once('@').ok_or_else(|| wrong("the commit is missing"))?;
    if !is_commit(commit) {
        return Err(wrong("the commit must have all of its 40 or 64 hexadecimal digits, in lower case"));
    }
    let repository = if repository.starts_with("https://") {
        if repository.contains(['@', ' ']) || repository.chars().any(is_harmful) {
            return Err(wrong("the URL must not contain a user name or a space"));
        }
        repository.to_owned()
    } else if repository.contains("://") || repository.starts_with('-') {
        return Err(wrong("only https URLs and paths are supported"));
    } else {
        super::absolute(repository)?.display().to_string()
    };
    // The directory must be inside the repository (rule I2 of `docs/guides/bundles.md`).
    let directory = name_within(directory.as_bytes())?;
    Ok(Source::Git { repository, commit: commit.to_owned(), directory })
}

fn is_commit(commit: &str) -> bool {
    matches!(commit.len(), 40 | 64) && commit.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Directories that contain the objects of a commit.
struct Repository {
    /// Temporary repository with its own configuration.
    own: tempfile::TempDir,
    /// Object directory of a local repository; `None` if the objects were fetched.
    objects: Option<PathBuf>,
}

/// Reads the files of a commit.
pub(super) fn open(repository: &str, commit: &str, directory: &str, sink: &mut Sink) -> Result<(), SourceError> {
    let found = if repository.starts_with("https://") {
        fetch(repository, commit, &Limits::FETCH)?
    } else {
        local(Path::new(repository), commit)?
    };
    Objects::new(&found, commit.len())?.read(commit, directory, sink)
}

/// Creates an empty repository whose object names have `digits` hexadecimal digits.
fn init(digits: usize) -> Result<tempfile::TempDir, SourceError> {
    let own = memory_dir()?;
    let mut command = git(own.path(), &Limits::READ);
    // Use no template, because a template could contain hooks.
    command.args(["init", "--quiet", "--bare", "--template="]);
    if digits == 64 {
        command.arg("--object-format=sha256");
    }
    command.arg(own.path());
    run(command, &Limits::READ, "create a repository")?;
    Ok(own)
}

/// Fetches a commit without its ancestors. The objects are stored in one pack, whose size is limited.
fn fetch(url: &str, commit: &str, limits: &Limits) -> Result<Repository, SourceError> {
    let own = init(commit.len())?;
    let mut command = git(own.path(), limits);
    command.args(["-c", "transfer.unpackLimit=1", "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60"]);
    command.args(["fetch", "--quiet", "--depth=1", "--no-tags", "--no-auto-gc", "--no-recurse-submodules"]);
    command.args(["--", url, commit]);
    run(command, limits, &format!("fetch {commit} from {url}"))?;
    Ok(Repository { own, objects: None })
}

/// Finds the objects of a local repository, worktree or submodule. Uses only the location of the objects: the objects
/// are read with the configuration of a temporary repository.
fn local(path: &Path, commit: &str) -> Result<Repository, SourceError> {
    let nested = path.join(".git");
    let git_dir = if nested.exists() { &nested } else { path };
    let mut command = git(git_dir, &Limits::READ);
    command.args(["rev-parse", "--git-path", "objects"]);
    let said = run(command, &Limits::READ, &format!("find the objects of {}", path.display()))?;
    let objects = PathBuf::from(String::from_utf8_lossy(&said).trim_end_matches('\n'));
    // If git prints a relative path, the path is relative to this program's working directory, which git shares.
    let objects = super::absolute(&objects.display().to_string())?;
    Ok(Repository { own: init(commit.len())?, objects: Some(objects) })
}

#[cfg(test)]
mod tests;
