//! Checks that all tests that docs/security-claims.md names for its claims exist, so that the table stays correct. The
//! tests here read text only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns the strings in backticks in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the tests that a document names, by file. The last column of each table has a file, followed by its tests.
fn named(document: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for row in document.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---")) {
        let column = row.trim_end_matches('|').rsplit(" | ").next().unwrap_or_default();
        let mut file = None;
        for word in quoted(column) {
            let is_name = word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if word.ends_with(".rs") {
                file = Some(word);
            } else if let Some(file) = file.filter(|_| is_name && word.contains('_')) {
                found.push((file.to_owned(), word.to_owned()));
            }
        }
    }
    found
}

/// Returns the names of the tests in a file and in the files of its module.
fn tests_in(file: &Path) -> BTreeSet<String> {
    let module = file.with_extension("");
    let beside = ["tests.rs", "tests"].map(|name| module.join(name));
    let below = fs::read_dir(&beside[1]).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names = BTreeSet::new();
    for path in [file.to_owned(), beside[0].clone()].into_iter().chain(below) {
        let text = fs::read_to_string(path).unwrap_or_default();
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[") {
                is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
            } else if let Some((_, function)) = line.split_once("fn ").filter(|_| is_test) {
                names.extend(function.split(['(', '<']).next().map(str::to_owned));
                is_test = false;
            } else if !line.starts_with("//") {
                is_test = false;
            }
        }
    }
    names
}

fn missing(document: &str) -> Vec<String> {
    let there = |(file, name): &(String, String)| tests_in(&root().join(file)).contains(name);
    named(document).into_iter().filter(|claim| !there(claim)).map(|(file, name)| format!("{file} {name}")).collect()
}

#[test]
fn every_test_in_table_exists() {
    let document = fs::read_to_string(root().join("docs/security-claims.md")).expect("docs/security-claims.md");
    assert!(named(&document).len() > 100, "control failed: the table names only {} tests", named(&document).len());
    assert_eq!(missing(&document), [""; 0]);
}

/// The control: a missing test, a function that is not a test, and a missing file are reported.
#[test]
fn missing_tests_are_reported() {
    let own = "xtask/tests/security_table.rs";
    let row = |file: &str, names: &str| format!("| `no_column_but_the_last` | {names} in `{file}` {names} |");
    assert_eq!(missing(&row(own, "`missing_tests_are_reported`")), [""; 0]);
    let wrong = row(own, "`renamed_test`, `tests_in`");
    assert_eq!(missing(&wrong), [format!("{own} renamed_test"), format!("{own} tests_in")]);
    assert_eq!(missing(&row("no/such.rs", "`missing_tests_are_reported`")).len(), 1);
}

/// Every row of a table of claims names a test, or a `cargo xtask` command as its proof.
#[test]
fn every_claim_has_a_test() {
    let document = fs::read_to_string(root().join("docs/security-claims.md")).expect("docs/security-claims.md");
    let (_, claims) = document.split_once("## Claims\n").expect("the section");
    let (claims, _) = claims.split_once("## Claims without a test").expect("the section after it");
    let rows = claims.lines().filter(|line| line.starts_with("| ") && !line.contains("| test |"));
    let without: Vec<&str> = rows.filter(|row| named(row).is_empty() && !row.contains("`cargo xtask ")).collect();
    assert_eq!(without, [""; 0]);
}
