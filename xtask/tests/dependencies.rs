//! Each declared dependency is used: by the package that declares it, or by some package if the workspace declares it.
//!
//! As in cargo-machete, a package uses a dependency if its sources name the crate. Dependencies that only generated
//! code names, or whose crate has another name, are listed in the manifest, where cargo-machete also looks for them
//! (`package.metadata.cargo-machete.ignored`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use toml::Table;

const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

fn manifest(directory: &Path) -> Table {
    let path = directory.join("Cargo.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns names of the dependencies that a manifest declares, and whether each is inherited from the workspace.
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

/// Returns names of the dependencies that a package declares and does not use.
fn unused(directory: &Path) -> Vec<String> {
    let manifest = manifest(directory);
    let mut used = BTreeSet::new();
    identifiers(directory, &mut used);
    let ignored = ignored(&manifest);
    let names = declared(&manifest).into_iter().map(|(name, _)| name);
    names.filter(|name| !used.contains(&name.replace('-', "_")) && !ignored.contains(name)).map(str::to_owned).collect()
}

#[test]
fn every_dependency_is_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let workspace = manifest(root);
    let members = workspace["workspace"]["members"].as_array().expect("a list");
    let members: Vec<PathBuf> = members.iter().map(|member| root.join(member.as_str().expect("a path"))).collect();
    assert!(members.len() > 10, "the packages are found");
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

/// The control.
#[test]
fn an_unused_dependency_is_found() {
    let home = tempfile::tempdir().unwrap();
    let manifest = "[package]\nname = \"x\"\n[package.metadata.cargo-machete]\nignored = [\"c\"]\n\
                    [dependencies]\na-b = \"1\"\nb = \"1\"\nc = \"1\"\n[dev-dependencies]\nd = { workspace = true }\n";
    std::fs::write(home.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::create_dir(home.path().join("src")).unwrap();
    std::fs::write(home.path().join("src/lib.rs"), "//! b is named in a comment only.\nfn f() { g!(a_b::x()) }\n")
        .unwrap();
    assert_eq!(unused(home.path()), ["b", "d"]);
}
