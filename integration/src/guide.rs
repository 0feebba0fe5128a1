//! Runs a guide of docs/: executes its commands and compares their output with the guide.
//!
//! Input is a Markdown file. Only two kinds of fenced blocks are used:
//!
//! ````text
//! ```json file=vcap.json          the block is written into that file
//!
//! ```console                      a session
//! $ agent-cli info --json \
//!   "version": "...",             output, including standard error; ... matches any text in a line,
//! ...                             and any number of lines if it stands alone
//! [exit status 1]                 exit status, if not 0
//! ````
//! The commands run in order in one directory, each in its own bash. A difference is reported with its line number in
//! the guide.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::daemon::{Daemon, Setup};
use crate::dist;
use crate::rootfs::Rootfs;

/// Timeout of a command in seconds.
const SCRIPT_TIMEOUT: &str = "60";
/// Placeholder for any text in a line or, alone, for any number of lines.
const ANY: &str = "...";

/// A guide as a sequence of steps.
#[derive(Debug, PartialEq, Eq)]
pub struct Guide {
    path: PathBuf,
    steps: Vec<Step>,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    File { name: String, content: String },
    Command { line: usize, command: String, expected: Vec<String>, status: i32 },
}

/// The working directory and environment of a guide's commands.
#[derive(Debug)]
pub struct GuideShell {
    pub dir: PathBuf,
    /// Variables in addition to PATH, which includes the directory of agent-cli.
    pub env: Vec<(&'static str, OsString)>,
}

/// Starts a daemon with the packaged configuration and the root file systems from the directory of `rootfs`.
///
/// # Panics
/// Panics if the packaged configuration does not contain `["/srv/rootfs"]`.
pub fn packaged_daemon(rootfs: &Rootfs) -> Daemon {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian/executor.toml");
    let packaged = fs::read_to_string(packaged).expect("the configuration of the package");
    let directory = rootfs.path().parent().expect("a directory").display().to_string();
    let config = packaged.replace("[\"/srv/rootfs\"]", &format!("[{directory:?}]"));
    assert_ne!(config, packaged, "the directory of root file systems");
    Setup::default().config(&config).start()
}

impl Guide {
    /// Reads a guide by its path in the repository.
    ///
    /// # Panics
    /// Panics if the file does not exist or is malformed.
    pub fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { steps: parse(&text).unwrap_or_else(|why| panic!("{name}:{why}")), path: name.into() }
    }

    pub fn commands(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, Step::Command { .. })).count()
    }

    /// Runs all steps.
    ///
    /// # Panics
    /// Panics if a command's exit status or output differs from the guide; the message lists every difference.
    pub fn run(&self, shell: &GuideShell) {
        let mut wrong = String::new();
        for step in &self.steps {
            match step {
                Step::File { name, content } => fs::write(shell.dir.join(name), content).expect("write"),
                Step::Command { line, command, expected, status } => {
                    let (printed, ended) = shell.run_command(command);
                    if !fits(expected, &printed.lines().collect::<Vec<_>>()) || ended != Some(*status) {
                        let expected = expected.join("\n");
                        let _ = write!(
                            wrong,
                            "{}:{line}: $ {command}\n--- expected by the guide (exit status {status}):\n{expected}\n--- \
                             actual (exit status {ended:?}):\n{printed}\n",
                            self.path.display()
                        );
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    }
}

impl GuideShell {
    fn run_command(&self, command: &str) -> (String, Option<i32>) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = dist::binary("agent-cli").parent().map(Path::to_owned);
        let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path))).expect("a PATH");
        // One pipe for both streams keeps the order of the lines.
        let script = format!("exec 2>&1\n{command}");
        let mut bash = Command::new("timeout");
        bash.args([SCRIPT_TIMEOUT, "bash", "-c", &script])
            .current_dir(&self.dir)
            .env("PATH", path)
            .stdin(Stdio::null());
        let output = bash.envs(self.env.iter().cloned()).output().expect("bash");
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
    }
}

/// Parses the steps of a guide. An error begins with the line number.
fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let mut block = Vec::new();
        loop {
            match lines.next() {
                None => return Err(format!("{number}: the code block is not closed")),
                Some((_, "```")) => break,
                Some(line) => block.push(line),
            }
        }
        if info == "console" {
            steps.extend(session(&block)?);
        } else if let Some((_, name)) = info.split_once(" file=") {
            if name.is_empty() || name.contains('/') {
                return Err(format!("{number}: file={name}: must be a file name without a directory"));
            }
            let content = block.iter().flat_map(|(_, line)| [line, "\n"]).collect();
            steps.push(Step::File { name: name.to_owned(), content });
        }
    }
    Ok(steps)
}

fn session(block: &[(usize, &str)]) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_continued = false;
    for (number, text) in block {
        match (text.strip_prefix("$ "), steps.last_mut()) {
            (Some(begun), _) if !is_continued => {
                steps.push(Step::Command { line: *number, command: begun.to_owned(), expected: Vec::new(), status: 0 });
            }
            (_, Some(Step::Command { command, expected, status, .. })) => match text.strip_prefix("> ") {
                Some(more) if is_continued => {
                    command.push('\n');
                    command.push_str(more);
                }
                None if is_continued => return Err(format!("{number}: a continuation line must begin with `> `")),
                _ => match text.strip_prefix("[exit status ").and_then(|rest| rest.strip_suffix(']')) {
                    Some(reported) => {
                        *status = reported.parse().map_err(|_| format!("{number}: not an exit status: {reported}"))?;
                    }
                    None => expected.push((*text).to_owned()),
                },
            },
            _ => return Err(format!("{number}: a session must begin with `$ `")),
        }
        is_continued = text.ends_with('\\') && (text.starts_with("$ ") || is_continued);
    }
    Ok(steps)
}

/// Returns true if the printed lines match the expected lines. Trailing spaces are ignored.
fn fits(expected: &[String], printed: &[&str]) -> bool {
    match expected.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == ANY => (0..=printed.len()).any(|skipped| fits(rest, &printed[skipped..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, others)| line_fits(line, first) && fits(rest, others))
        }
    }
}

fn line_fits(expected: &str, printed: &str) -> bool {
    let (expected, mut printed) = (expected.trim_end(), printed.trim_end());
    let parts: Vec<&str> = expected.split(ANY).collect();
    let [first, middle @ .., last] = &parts[..] else { return expected == printed };
    let Some(rest) = printed.strip_prefix(first) else { return false };
    printed = rest;
    for part in middle {
        let Some(at) = printed.find(part) else { return false };
        printed = &printed[at + part.len()..];
    }
    printed.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
text
```json file=a.json
{}

```
```rust
not run
```
```console
$ one
$ two \\
>   three
out
...
[exit status 3]
```
";

    #[test]
    fn steps_are_found() {
        let command = |line, command: &str, expected: &[&str], status| Step::Command {
            line,
            command: command.into(),
            expected: expected.iter().map(|line| (*line).into()).collect(),
            status,
        };
        let expected = [
            Step::File { name: "a.json".into(), content: "{}\n\n".into() },
            command(10, "one", &[], 0),
            command(11, "two \\\n  three", &["out", "..."], 3),
        ];
        assert_eq!(parse(TEXT).unwrap(), expected);
        for bad in
            ["```console\nout\n```\n", "```console\n$ a\n", "```x file=a/b\n```\n", "```console\n$ a \\\nb\n```\n"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn expected_output_matches_printed_lines() {
        let fits = |expected: &str, printed: &str| {
            let expected: Vec<String> = expected.lines().map(str::to_owned).collect();
            fits(&expected, &printed.lines().collect::<Vec<_>>())
        };
        for (expected, printed) in [
            ("", ""),
            ("a\nb", "a\nb  "),
            ("a...c", "abc"),
            ("...", ""),
            ("...", "a\nb"),
            ("a\n...\nd", "a\nb\nc\nd"),
            ("x ... y ... z", "x 1 y 2 z"),
            ("... is ...", "what is it"),
        ] {
            assert!(fits(expected, printed), "{expected:?} {printed:?}");
        }
        for (expected, printed) in [
            ("", "a"),
            ("a", ""),
            ("a", "b"),
            ("a...c", "ab"),
            ("a\n...\nd", "a\nb"),
            ("ab...bc", "abc"),
            ("a", "a\na"),
        ] {
            assert!(!fits(expected, printed), "{expected:?} {printed:?}");
        }
    }

    /// If a guide is wrong, its test fails. This test is the control for all guide tests.
    #[test]
    fn guide_that_is_wrong_fails() {
        let dir = tempfile::tempdir().expect("a directory");
        let shell = GuideShell { dir: dir.path().into(), env: vec![("NAME", "value".into())] };
        let run = |text: &str| {
            let guide = Guide { path: "guide".into(), steps: parse(text).expect("a guide") };
            std::panic::catch_unwind(|| guide.run(&shell)).is_ok()
        };
        assert!(run(
            "```text file=f\nx\n```\n```console\n$ cat f; echo $NAME >&2; exit 3\nx\nvalue\n[exit status 3]\n```\n"
        ));
        assert!(!run("```console\n$ echo x\ny\n```\n"));
        assert!(!run("```console\n$ false\n```\n"));
    }
}
