//! Checks that each declared dependency is used: by the package that declares it, or by any package if the workspace
//! declares it. Also checks that the product does not depend on front ends.
//!
//! A package uses a dependency if its sources name the crate, as in cargo-machete. Some dependencies occur only in
//! generated code or have a crate with another name. The manifest lists them in
//! `package.metadata.cargo-machete.ignored`, which cargo-machete also reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use toml::Table;

const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

fn manifest(directory: &Path) -> Table {
    let path = directory.join("Cargo.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of the dependencies that a manifest declares, and whether each dependency is inherited from the
/// workspace.
fn declared(manifest: &Table) -> Vec<(&str, bool)> {
    let tables = KINDS.iter().filter_map(|kind| manifest.get(*kind)?.as_table());
    let entries = tables.flatten();
    let inherited = |entry: &toml::Value| entry.get("workspace").and_then(toml::Value::as_bool) == Some(true);
    entries.map(|(name, entry)| (name.as_str(), inherited(entry))).collect()
}

fn ignored(manifest: &Table) -> BTreeSet<&str> {
    let list = || manifest.get("package")?.get("metadata")?.get("cargo-machete")?.get("ignored")?.as_array();
    list().into_iter().flatten().filter_map(toml::Value::as_str).collect()
}

/// Collects every identifier in the sources of a package.
fn identifiers(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the package").flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            if !path.join("Cargo.toml").exists() {
                identifiers(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            collect(text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display())), found);
        }
    }
}

fn collect(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                found.insert(ident.to_string());
            }
            TokenTree::Group(group) => collect(group.stream(), found),
            _ => {}
        }
    }
}

/// Returns the names of the dependencies that a package declares but does not use.
fn unused(directory: &Path) -> Vec<String> {
    let manifest = manifest(directory);
    let mut used = BTreeSet::new();
    identifiers(directory, &mut used);
    let ignored = ignored(&manifest);
    let names = declared(&manifest).into_iter().map(|(name, _)| name);
    names.filter(|name| !used.contains(&name.replace('-', "_")) && !ignored.contains(name)).map(str::to_owned).collect()
}

/// Returns the workspace's manifest and the directories of its packages.
fn workspace() -> (Table, Vec<PathBuf>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let workspace = manifest(root);
    let members = workspace["workspace"]["members"].as_array().expect("a list");
    let members: Vec<PathBuf> = members.iter().map(|member| root.join(member.as_str().expect("a path"))).collect();
    assert!(members.len() > 10, "the packages are found");
    (workspace, members)
}

#[test]
fn every_dependency_is_used() {
    let (workspace, members) = workspace();
    let mut inherited = BTreeSet::new();
    let mut found = Vec::new();
    for member in &members {
        found.extend(unused(member).into_iter().map(|name| format!("{}: {name}", member.display())));
        let manifest = manifest(member);
        let from_workspace = declared(&manifest).into_iter().filter(|(_, inherited)| *inherited);
        inherited.extend(from_workspace.map(|(name, _)| name.to_owned()));
    }
    let of_workspace = workspace["workspace"]["dependencies"].as_table().expect("a table");
    found
        .extend(of_workspace.keys().filter(|name| !inherited.contains(*name)).map(|name| format!("workspace: {name}")));
    assert!(found.is_empty(), "declared and not used:\n{}", found.join("\n"));
}

/// Directory of the front ends.
const FRONT_ENDS: &str = "front-ends";
const MAY_USE_FRONT_ENDS: [&str; 4] = [FRONT_ENDS, "fuzz", "integration", "xtask"];

/// Returns the front ends that a package must not depend on but does. `paths` has the paths of the workspace's
/// dependencies, and `member` is the path of the package, both relative to the workspace's root.
fn forbidden(member: &Path, manifest: &Table, paths: &BTreeMap<&str, &str>) -> Vec<String> {
    if MAY_USE_FRONT_ENDS.iter().any(|directory| member.starts_with(directory)) {
        return Vec::new();
    }
    let is_front_end = |name: &&str| paths.get(name).is_some_and(|path| Path::new(path).starts_with(FRONT_ENDS));
    let names = declared(manifest).into_iter().map(|(name, _)| name);
    names.filter(is_front_end).map(|name| format!("{}: {name}", member.display())).collect()
}

/// Returns the path of each dependency that is a package of the workspace.
fn paths(workspace: &Table) -> BTreeMap<&str, &str> {
    let dependencies = workspace["workspace"]["dependencies"].as_table().expect("a table");
    dependencies.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.get("path")?.as_str()?))).collect()
}

#[test]
fn product_depends_on_no_front_end() {
    let (workspace, members) = workspace();
    let paths = paths(&workspace);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut front_ends = 0;
    let mut found = Vec::new();
    for directory in &members {
        let member = directory.strip_prefix(root).expect("a path below the workspace");
        front_ends += usize::from(member.starts_with(FRONT_ENDS));
        found.extend(forbidden(member, &manifest(directory), &paths));
    }
    assert!(front_ends > 4, "control failed: the workspace has only {front_ends} packages of front ends");
    assert!(found.is_empty(), "dependencies on front ends:\n{}", found.join("\n"));
}

/// The control: a dependency on a front end is found.
#[test]
fn dependency_on_front_end_is_found() {
    let workspace = "[workspace.dependencies]\na = { path = \"front-ends/a\" }\nb = { path = \"b\" }\nc = \"1\"\n";
    let workspace = workspace.parse().unwrap();
    let manifest = "[dependencies]\nb = \"1\"\nc = \"1\"\n[dev-dependencies]\na.workspace = true\n".parse().unwrap();
    assert_eq!(forbidden(Path::new("b"), &manifest, &paths(&workspace)), ["b: a"]);
    assert_eq!(forbidden(Path::new("front-ends/a/cli"), &manifest, &paths(&workspace)), [""; 0]);
}

/// The control: an unused dependency is found.
#[test]
fn unused_dependency_is_found() {
    let home = tempfile::tempdir().unwrap();
    let manifest = "[package]\nname = \"x\"\n[package.metadata.cargo-machete]\nignored = [\"c\"]\n\
                    [dependencies]\na-b = \"1\"\nb = \"1\"\nc = \"1\"\n[dev-dependencies]\nd = { workspace = true }\n";
    std::fs::write(home.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::create_dir(home.path().join("src")).unwrap();
    std::fs::write(home.path().join("src/lib.rs"), "//! b is named in a comment only.\nfn f() { g!(a_b::x()) }\n")
        .unwrap();
    assert_eq!(unused(home.path()), ["b", "d"]);
}
