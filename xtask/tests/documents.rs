//! Checks that the documents are consistent: source files that they name exist, and each decision has a unique number.
//! The tests read text only. `cargo xtask docs` checks the links.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns every Markdown file that is neither generated nor downloaded.
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

/// All source files that a document names exist. A name matches the end of a path, as in `shim/update.rs`.
#[test]
fn every_named_source_file_exists() {
    let mut sources = Vec::new();
    files(&root(), "rs", &mut sources);
    let is_there = |name: &str| sources.iter().any(|source| source.ends_with(name));
    assert!(
        is_there("tests/documents.rs") && !is_there("tests/no-such.rs"),
        "control failed: an existing file is not found, or a missing file is found"
    );
    let mut missing = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document");
        if text.lines().nth(2).is_some_and(|line| line.starts_with("Superseded")) {
            continue; // a superseded decision may name removed files
        }
        let words = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
        let words = words.filter(|word| word.ends_with(".rs") && !word.contains([' ', '*']));
        missing.extend(words.filter(|word| !is_there(word)).map(|word| format!("{}: `{word}`", document.display())));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Every fenced code block has a language, so that the highlighter does not guess it.
#[test]
fn fenced_blocks_have_a_language() {
    let without = |text: &str| {
        let fences = text.lines().filter(|line| line.trim_start().starts_with("```"));
        fences.step_by(2).filter(|line| line.trim() == "```").count()
    };
    assert_eq!(without("```\nx\n```\n```sh\n```\n"), 1, "control failed: a code block without a language is not found");
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document");
        assert_eq!(without(&text), 0, "{}", document.display());
    }
}

/// Files of decisions are named `NNNN-title.md` and begin with their number. The numbers have no gaps.
#[test]
fn every_decision_has_its_own_number() {
    let mut numbers: BTreeMap<u32, String> = BTreeMap::new();
    for entry in fs::read_dir(root().join("docs/adr")).expect("docs/adr").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        let number = name.split_once('-').and_then(|(number, _)| number.parse().ok().filter(|_| number.len() == 4));
        let number: u32 =
            number.unwrap_or_else(|| panic!("docs/adr/{name}: the name must begin with a number of four digits"));
        let text = fs::read_to_string(entry.path()).expect("a decision");
        let title = text.lines().next().unwrap_or_default();
        assert!(
            title.starts_with(&format!("# {number}. ")),
            "docs/adr/{name}: the title must begin with `# {number}. `: {title}"
        );
        if let Some(other) = numbers.insert(number, name.clone()) {
            panic!("docs/adr/{other} and docs/adr/{name} have the same number");
        }
    }
    let wanted: Vec<u32> = (1..).take(numbers.len()).collect();
    assert_eq!(numbers.into_keys().collect::<Vec<_>>(), wanted, "the numbers have a gap");
}
