//! Checks that the table of contents of the book (`docs/SUMMARY.md`) lists every page below `docs/` exactly once.
//!
//! These tests read text and run no programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("docs")
}

/// Collects the paths of the pages below a directory, relative to `docs/`, without the table of contents.
fn pages(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.strip_prefix(docs()).expect("a path below docs/").to_str().expect("UTF-8").to_owned();
            found.extend(Some(name).filter(|name| name != "SUMMARY.md"));
        }
    }
}

/// Returns the link targets of a table of contents, with the number of occurrences.
fn entries(summary: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for line in summary.lines() {
        if let Some((target, _)) = line.split_once("](").and_then(|(_, rest)| rest.split_once(')')) {
            *found.entry(target.to_owned()).or_default() += 1;
        }
    }
    found
}

/// Returns the differences between the pages and a table of contents, one per line.
fn differences(pages: &[String], summary: &str) -> Vec<String> {
    let entries = entries(summary);
    let missing = pages.iter().filter(|page| !entries.contains_key(*page)).map(|page| format!("{page} is missing"));
    let unknown =
        entries.keys().filter(|target| !pages.contains(target)).map(|target| format!("{target} does not exist"));
    let twice = entries.iter().filter(|(_, count)| **count > 1).map(|(target, _)| format!("{target} is listed twice"));
    missing.chain(unknown).chain(twice).collect()
}

#[test]
fn summary_has_every_page_once() {
    let mut found = Vec::new();
    pages(&docs(), &mut found);
    assert!(found.len() > 80, "control failed: only {} pages were found", found.len());
    let summary = fs::read_to_string(docs().join("SUMMARY.md")).expect("docs/SUMMARY.md");
    assert_eq!(differences(&found, &summary), [""; 0]);
}

/// The control: missing, unknown and duplicate pages are found.
#[test]
fn summary_faults_are_found() {
    let pages = ["a.md", "b/c.md"].map(str::to_owned);
    assert_eq!(differences(&pages, "- [A](a.md)\n  - [C](b/c.md)\n"), [""; 0]);
    let faults = differences(&pages, "[A](a.md)\n- [A](a.md)\n- [D](d.md)\n");
    assert_eq!(faults, ["b/c.md is missing", "d.md does not exist", "a.md is listed twice"]);
}

/// The entry of a decision has the number and the title of the decision's page.
#[test]
fn summary_names_decisions_by_their_titles() {
    let summary = fs::read_to_string(docs().join("SUMMARY.md")).expect("docs/SUMMARY.md");
    let decisions: Vec<_> = summary.lines().filter_map(|line| line.strip_prefix("- [ADR ")?.split_once("](")).collect();
    assert!(decisions.len() >= 50, "control failed: only {} decisions were found", decisions.len());
    for (label, target) in decisions {
        let page = fs::read_to_string(docs().join(target.trim_end_matches(')'))).expect("a decision");
        let title = page.lines().next().unwrap_or_default().trim_start_matches("# ").replacen(". ", ": ", 1);
        assert!(label.starts_with(&title), "docs/SUMMARY.md: ADR {label}, and the page: {title}");
    }
}

/// Returns the values of the string constants in a source file, in order.
fn string_constants(source: &str) -> Vec<String> {
    let lines = source.lines().filter(|line| line.contains("const ") && line.contains(": &str = \""));
    lines.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
}

/// The instructions for an installation by hand name every program and link of the package.
#[test]
fn operations_install_every_program() {
    let root = docs().parent().expect("the workspace").to_owned();
    let sources = fs::read_to_string(root.join("xtask/src/dist.rs")).expect("xtask/src/dist.rs");
    let programs: Vec<_> = string_constants(&sources)
        .into_iter()
        .filter(|name| name.starts_with("agent-cli") || name.contains("exec"))
        .collect();
    assert!(programs.len() >= 9, "control failed: only these programs were found: {programs:?}");
    let page = fs::read_to_string(docs().join("operations.md")).expect("docs/operations.md");
    let commands: Vec<_> = page
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("install -m 755") || line.starts_with("ln -s"))
        .collect();
    let names: Vec<_> = commands.iter().flat_map(|line| line.split(['{', '}', ',', ' ', '/'])).collect();
    let missing: Vec<_> = programs.iter().filter(|name| !names.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "docs/operations.md does not install {missing:?}");
}

/// All folders that ARCHITECTURE.md names in backticks exist. A name matches the end of a folder's path.
#[test]
fn architecture_names_folders_that_exist() {
    fn folders(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a directory").flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            if entry.path().is_dir() && name != "target" && !name.starts_with('.') {
                folders(&entry.path(), found);
                found.push(entry.path());
            }
        }
    }
    let root = docs().parent().expect("the workspace").to_owned();
    let mut found = Vec::new();
    folders(&root, &mut found);
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let words = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let named: Vec<_> = words.filter(|word| word.ends_with('/') && !word.contains("_DIR/")).collect();
    assert!(named.len() > 10, "control failed: only these folders were found: {named:?}");
    let exists = |name: &str| found.iter().any(|folder| folder.ends_with(name.trim_end_matches('/')));
    assert!(!exists("no-such/"), "control failed: a missing folder is accepted");
    let missing: Vec<_> = named.into_iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md: {missing:?}");
}

/// Returns the steps of the two paths in ARCHITECTURE.md. Each step names a file, relative to `executor/` or to the
/// root, and a function.
fn steps(page: &str) -> Vec<(&str, &str)> {
    let is_step = |line: &&str| line.split_once(". `").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    let steps = page.lines().filter(is_step).map(|line| {
        let mut words = line.split('`').skip(1).step_by(2);
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    });
    steps.collect()
}

/// Returns the steps whose file does not exist or does not contain the function.
fn missing_steps(page: &str) -> Vec<String> {
    let root = docs().parent().expect("the workspace").to_owned();
    let exists = |(file, function): &(&str, &str)| {
        let texts = [root.join("executor").join(file), root.join(file)].map(|path| fs::read_to_string(path).ok());
        let source = texts.into_iter().flatten().next().unwrap_or_default();
        [format!("fn {function}("), format!("fn {function}<")].iter().any(|name| source.contains(name))
    };
    let missing = steps(page).into_iter().filter(|step| !exists(step));
    missing.map(|(file, function)| format!("{file}: {function}")).collect()
}

#[test]
fn architecture_paths_name_functions_that_exist() {
    let page = fs::read_to_string(docs().with_file_name("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    assert!(steps(&page).len() > 20, "control failed: only these steps were found: {:?}", steps(&page));
    assert_eq!(missing_steps(&page), [""; 0]);
    let wrong =
        "1. `daemon/src/no-such.rs` `run`: x\n2. `daemon/src/api.rs` `no_such`: y\n3. `daemon/src/api.rs` `run`: z\n";
    assert_eq!(
        missing_steps(wrong),
        ["daemon/src/no-such.rs: run", "daemon/src/api.rs: no_such"],
        "control failed: the missing steps are not found"
    );
}

/// ARCHITECTURE.md has a row for each crate of the workspace.
#[test]
fn architecture_has_every_crate() {
    let root = docs().parent().expect("the workspace").to_owned();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("Cargo.toml");
    let (_, members) = manifest.split_once("members = [").expect("members");
    let (members, _) = members.split_once(']').expect("the end of the list");
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let members: Vec<_> = members.split('"').skip(1).step_by(2).collect();
    assert!(members.len() > 20, "control failed: only these members were found: {members:?}");
    let missing: Vec<_> = members.iter().filter(|member| !page.contains(&format!("| `{member}` |"))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md: {missing:?}");
}
