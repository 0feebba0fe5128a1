//! Commits of repositories of git, by the program `git`: local ones, and those that are served over https.
//!
//! The commit is given whole, so that nothing but what it names is read: git checks each object against its own name. No configuration, hook, filter or credential helper of the
//! user or of the repository takes part, and no protocol but `https` and `file`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{FILES_MAX, MEMORY_MAX, Sink, Source, SourceError, name_within};

/// Reads `REPOSITORY@COMMIT[#DIRECTORY]`.
pub(super) fn parse(text: &str) -> Result<Source, SourceError> {
    let wrong = |why: &str| SourceError::Wrong(format!("git:{text}: {why}; write git:REPOSITORY@COMMIT[#DIRECTORY]"));
    let (rest, directory) = text.split_once('#').unwrap_or((text, ""));
    let (repository, commit) = rest.rsplit_once('@').ok_or_else(|| wrong("it has no commit"))?;
    if !is_commit(commit) {
        return Err(wrong("the commit must have all of its 40 or 64 hexadecimal digits, in lower case"));
    }
    let repository = if repository.starts_with("https://") {
        if repository.contains(['@', ' ']) || repository.chars().any(char::is_control) {
            return Err(wrong("a URL with a user or a space is refused"));
        }
        repository.to_owned()
    } else if repository.contains("://") || repository.starts_with('-') {
        return Err(wrong("only https URLs and paths are read"));
    } else {
        super::absolute(repository)?.display().to_string()
    };
    // I2: a directory does not lead out of the repository.
    let directory = name_within(directory.as_bytes())?;
    Ok(Source::Git { repository, commit: commit.to_owned(), directory })
}

fn is_commit(commit: &str) -> bool {
    matches!(commit.len(), 40 | 64) && commit.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command.env_clear().stdin(Stdio::null());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ASKPASS", "/bin/false"),
        ("GIT_ALLOW_PROTOCOL", "https:file"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("LC_ALL", "C"),
    ] {
        command.env(name, value);
    }
    // A repository of another user is read, too: nothing of it is run.
    command.args([
        "-c",
        "safe.directory=*",
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "protocol.file.allow=always",
    ]);
    command.arg("--git-dir").arg(directory);
    command
}

fn output(mut command: Command, doing: &str) -> Result<Vec<u8>, SourceError> {
    let output = command.output().map_err(|error| SourceError::Git(format!("cannot run git: {error}")))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().last().unwrap_or_default().trim().chars().take(300).collect::<String>();
    Err(SourceError::Git(format!("git cannot {doing}: {said}")))
}

/// Reads the files of a commit.
pub(super) fn open(repository: &str, commit: &str, directory: &str, sink: &mut Sink) -> Result<(), SourceError> {
    let fetched;
    let local = Path::new(repository);
    let git_dir = if repository.starts_with("https://") {
        fetched = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" })
            .map_err(|error| SourceError::Write("/dev/shm".into(), error))?;
        let mut init = git(fetched.path());
        init.args(["init", "--quiet", "--bare"]).arg(fetched.path());
        output(init, "make a repository")?;
        let mut fetch = git(fetched.path());
        fetch.args(["fetch", "--quiet", "--depth=1", "--no-tags", "--", repository, commit]);
        output(fetch, &format!("fetch {commit} from {repository}"))?;
        fetched.path().to_owned()
    } else if local.join(".git").exists() {
        local.join(".git")
    } else {
        local.to_owned()
    };
    // The objects themselves, so that no attribute or filter changes what is read.
    let tree = if directory.is_empty() { commit.to_owned() } else { format!("{commit}:{directory}") };
    let mut list = git(&git_dir);
    list.args(["ls-tree", "-r", "-z", "--full-tree", "--end-of-options", &tree]);
    let listed = output(list, &format!("read {tree} of {repository}"))?;
    let mut blobs = Vec::new();
    for line in listed.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
        let odd = || SourceError::Git("git ls-tree answers something unknown".to_owned());
        let tab = line.iter().position(|byte| *byte == b'\t').ok_or_else(odd)?;
        let name = name_within(&line[tab + 1..])?;
        let meta = std::str::from_utf8(&line[..tab]).map_err(|_| odd())?;
        let mut fields = meta.split(' ');
        let (Some(mode), Some("blob"), Some(object)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(SourceError::Entry(name, "is neither a file nor a directory"));
        };
        if !mode.starts_with("100") || !is_commit(object) {
            return Err(SourceError::Entry(name, "is neither a file nor a directory"));
        }
        blobs.push((object.to_owned(), name));
    }
    if blobs.len() > FILES_MAX {
        return Err(SourceError::TooLarge(MEMORY_MAX));
    }
    contents(&git_dir, &blobs, sink)
}

/// Reads the contents of blobs, one after another.
fn contents(git_dir: &Path, blobs: &[(String, String)], sink: &mut Sink) -> Result<(), SourceError> {
    let failed = |error: std::io::Error| SourceError::Git(format!("git cat-file: {error}"));
    let mut command = git(git_dir);
    command.args(["cat-file", "--batch"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else { return Ok(()) };
    let mut from = BufReader::new(from);
    let result = (|| {
        for (object, name) in blobs {
            writeln!(to, "{object}").map_err(failed)?;
            let mut header = String::new();
            (&mut from).take(200).read_line(&mut header).map_err(failed)?;
            let size =
                header.trim_end().strip_prefix(&format!("{object} blob ")).and_then(|size| size.parse::<u64>().ok());
            let size =
                size.ok_or_else(|| SourceError::Git(format!("the repository lacks the object {object} of {name:?}")))?;
            let mut content = (&mut from).take(size);
            sink.file(name, &mut content)?;
            std::io::copy(&mut content, &mut std::io::sink()).map_err(failed)?;
            from.read_exact(&mut [0]).map_err(failed)?;
        }
        Ok(())
    })();
    drop(to);
    drop(from);
    let _ = child.kill(); // it has ended where everything was read
    let _ = child.wait();
    result
}
