//! The documents are consistent: links have targets, and each decision has a unique number. This reads text only.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns every Markdown file that is not built or fetched.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root(), "md", &mut found);
    found
}

fn files(dir: &Path, kind: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && !path.is_symlink() {
            if name != "target" && name != "node_modules" && !name.to_string_lossy().starts_with('.') {
                files(&path, kind, found);
            }
        } else if path.extension().is_some_and(|extension| extension == kind) {
            found.push(path);
        }
    }
}

/// Returns lines outside of fenced blocks, without text in backticks.
fn prose(text: &str) -> Vec<String> {
    let mut inside = false;
    let lines = text.lines().filter(|line| {
        let fence = line.starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    lines.map(|line| line.split('`').step_by(2).collect()).collect()
}

/// Returns the text and the target of each link.
fn links(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for line in prose(text) {
        let mut rest = &*line;
        while let Some((before, after)) = rest.split_once("](") {
            let label = before.rsplit('[').next().unwrap_or_default().to_owned();
            let Some((target, more)) = after.split_once(')') else { break };
            found.push((label, target.to_owned()));
            rest = more;
        }
    }
    found
}

/// Converts a heading to its anchor.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars();
    let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the errors of a document's links.
fn broken(document: &Path, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (label, target) in links(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, section) = target.split_once('#').unwrap_or((&target, ""));
        let path = if file.is_empty() { document.to_owned() } else { document.with_file_name(file) };
        let tell = |why: &str| format!("{}: [{label}]({target}) {why}", document.display());
        if !path.exists() {
            wrong.push(tell("leads nowhere"));
        } else if !section.is_empty() {
            let there = fs::read_to_string(&path).unwrap_or_default();
            if !there.lines().any(|line| line.starts_with('#') && anchor(line) == section) {
                wrong.push(tell("names a section that is not there"));
            }
        }
        let number = label.strip_prefix("ADR ").and_then(|number| number.parse::<u32>().ok());
        if number.is_some_and(|number| {
            !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{number:04}-")))
        }) {
            wrong.push(tell("is another decision"));
        }
    }
    wrong
}

#[test]
fn every_link_leads_somewhere() {
    let found = documents();
    let mut count = 0;
    let mut wrong = Vec::new();
    for document in &found {
        let text = fs::read_to_string(document).expect("a document");
        count += links(&text).len();
        wrong.extend(broken(document, &text));
    }
    assert!(count > 50, "the control: {count} links in {} documents", found.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The control: errors in links are found.
#[test]
fn a_link_that_leads_nowhere_is_found() {
    let document = root().join("README.md");
    let reported = |text: &str| broken(&document, text).join("; ");
    assert_eq!(reported("[a](docs/operations.md) [b](https://example.org/x) `[c](d.md)`\n```\n[e](f.md)\n```\n"), "");
    assert!(reported("[a](docs/no-such.md)").contains("leads nowhere"));
    assert!(reported("[a](docs/operations.md#no-such)").contains("names a section"));
    assert!(reported("[ADR 2](docs/adr/0001-spec-is-built-by-the-shim.md)").contains("another decision"));
}

/// Source files that a document names exist; a name matches the end of a path, as in `shim/update.rs`.
#[test]
fn every_source_that_is_named_is_there() {
    let mut sources = Vec::new();
    files(&root(), "rs", &mut sources);
    let is_there = |name: &str| sources.iter().any(|source| source.ends_with(name));
    assert!(is_there("tests/documents.rs") && !is_there("tests/no-such.rs"), "the control");
    let mut missing = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document");
        if text.lines().nth(2).is_some_and(|line| line.starts_with("Superseded")) {
            continue; // a record of the past
        }
        let words = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        let words = words.filter(|word| word.ends_with(".rs") && !word.contains([' ', '*']));
        missing.extend(words.filter(|word| !is_there(word)).map(|word| format!("{}: `{word}`", document.display())));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Files of decisions are named `NNNN-title.md`, begin with their number, and are numbered without a gap.
#[test]
fn every_decision_has_a_number_of_its_own() {
    let mut numbers: BTreeMap<u32, String> = BTreeMap::new();
    for entry in fs::read_dir(root().join("docs/adr")).expect("docs/adr").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        let number = name.split_once('-').and_then(|(number, _)| number.parse().ok().filter(|_| number.len() == 4));
        let number: u32 = number.unwrap_or_else(|| panic!("docs/adr/{name}: no number of four digits in front"));
        let text = fs::read_to_string(entry.path()).expect("a decision");
        let title = text.lines().next().unwrap_or_default();
        assert!(title.starts_with(&format!("# {number}. ")), "docs/adr/{name} begins with another number: {title}");
        if let Some(other) = numbers.insert(number, name.clone()) {
            panic!("docs/adr/{other} and docs/adr/{name} have the same number");
        }
    }
    let wanted: Vec<u32> = (1..).take(numbers.len()).collect();
    assert_eq!(numbers.into_keys().collect::<Vec<_>>(), wanted, "the numbers have a gap");
}
