//! Counts words, openings of sentences and function names that are hard to understand.
//!
//! Each kind has a limit, which is the number of remaining occurrences. The limit only decreases: after a rewrite,
//! lower it to the number that the test prints. The rules are in CONTRIBUTING.md, "Language".
//!
//! Also checks the length of source files, so that each file has one subject.

use std::fs;
use std::path::{Path, PathBuf};

/// A kind of phrase, and the maximum number of its occurrences in the workspace.
struct Kind {
    name: &'static str,
    limit: usize,
    /// Counts the phrases in a line. The flag is true for a line of a source, and false for a line of a page.
    count: fn(&str, bool) -> usize,
}

const KINDS: [Kind; 4] = [
    Kind { name: "told, tell, tells, whoever, nobody, somebody", limit: 0, count: words },
    Kind { name: "comments that begin with Of or And", limit: 0, count: openings },
    Kind { name: "comments that begin a condition with Where or Set where", limit: 0, count: conditions },
    Kind { name: "functions of, told, tell, hear, attend, look, keep, carry_out, judge", limit: 0, count: functions },
];

/// Maximum number of lines of a source file.
const LINES_MAX: usize = 600;

/// Files that list the words, and files from other projects.
const EXCEPT: [&str; 5] = [
    "xtask/tests/language.rs",
    "CONTRIBUTING.md",
    "engines/kubernetes/api/runtime/v1/api.proto",
    "engines/kubernetes/api/csi/v1/csi.proto",
    "engines/kubernetes/api/pluginregistration/v1/api.proto",
];

/// Counts the words in the prose of a line. In a source, prose is a comment or a function name; in a page, the whole
/// line. Text in backticks or double quotes is not counted, because it is a name or an example.
fn words(line: &str, is_source: bool) -> usize {
    const WORDS: [&str; 6] = ["told", "tell", "tells", "whoever", "nobody", "somebody"];
    let prose = match is_source {
        false => line,
        true => comment(line).or_else(|| function(line)).unwrap_or_default(),
    };
    let unquoted = prose.split(['`', '"']).step_by(2);
    let words = unquoted.flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric()));
    words.filter(|word| WORDS.contains(&word.to_ascii_lowercase().as_str())).count()
}

/// Returns the text of a comment line.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    ["/// ", "//! ", "// "].iter().find_map(|marker| line.strip_prefix(marker))
}

/// Returns the name of the function that a line declares.
fn function(line: &str) -> Option<&str> {
    line.split_once("fn ").and_then(|(_, rest)| rest.split(['(', '<']).next())
}

fn openings(line: &str, _: bool) -> usize {
    comment(line).is_some_and(|text| ["Of ", "And "].iter().any(|word| text.starts_with(word))).into()
}

fn conditions(line: &str, _: bool) -> usize {
    comment(line)
        .is_some_and(|text| ["Where ", "Set where ", "Set when "].iter().any(|word| text.starts_with(word)))
        .into()
}

fn functions(line: &str, _: bool) -> usize {
    const NAMES: [&str; 9] = ["of", "told", "tell", "hear", "attend", "look", "keep", "carry_out", "judge"];
    function(line).is_some_and(|name| NAMES.contains(&name)).into()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Collects the files that people wrote: sources, interface files and pages.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') || name == "target" || name == "node_modules" {
            continue;
        }
        if path.is_dir() {
            files(&path, found);
        } else if [".rs", ".proto", ".md"].iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

#[test]
fn odd_phrases_become_fewer() {
    let mut all = Vec::new();
    files(&root(), &mut all);
    let texts: Vec<(PathBuf, String)> = all
        .into_iter()
        .filter(|path| !EXCEPT.iter().any(|except| path.ends_with(except)))
        .map(|path| (path.clone(), fs::read_to_string(&path).expect("a text")))
        .collect();
    assert!(texts.len() > 1000, "control failed: only {} files were read", texts.len());
    let mut wrong = Vec::new();
    for kind in KINDS {
        let mut places = Vec::new();
        for (path, text) in &texts {
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            for (index, line) in text.lines().enumerate().filter(|(_, line)| (kind.count)(line, is_source) > 0) {
                places.push(format!("{}:{}: {}", path.display(), index + 1, line.trim()));
            }
        }
        if places.len() > kind.limit {
            wrong.push(format!("{}: {} lines, {} allowed\n{}", kind.name, places.len(), kind.limit, places.join("\n")));
        } else if places.len() < kind.limit {
            wrong.push(format!("{}: lower the limit from {} to {}", kind.name, kind.limit, places.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn source_files_are_short() {
    let mut all = Vec::new();
    files(&root(), &mut all);
    let sources = all.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let lengths = sources.map(|path| (path.display(), fs::read_to_string(path).expect("a text").lines().count()));
    let long: Vec<_> = lengths.filter(|(_, lines)| *lines > LINES_MAX).collect();
    assert!(long.is_empty(), "more than {LINES_MAX} lines: split by subject: {long:?}");
}

/// The control: the phrases of each kind are found.
#[test]
fn odd_phrases_are_found() {
    let found = |line: &str| KINDS.map(|kind| (kind.count)(line, true));
    assert_eq!(found("/// Nobody tells when."), [2, 0, 0, 0]);
    assert_eq!(found("/// Of its process."), [0, 1, 0, 0]);
    assert_eq!(found("// Where there is none, the default applies."), [0, 0, 1, 0]);
    assert_eq!(found("pub fn of(path: &Path) -> Self {"), [0, 0, 0, 1]);
    assert_eq!(found("fn whoever_is_killed_is_told() {"), [2, 0, 0, 0]);
    assert_eq!(words("It tells nobody.", false), 2);
    assert_eq!(found("/// Process id of the container's init."), [0; 4]);
}
