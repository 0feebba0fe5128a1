//! Collects the licences of the linked libraries, because their texts must be distributed with the binaries.
//!
//! The inputs are the packages of the programs from `cargo metadata`, and the licence files in the sources of the
//! crates. The output is a single text. The metadata cover the whole workspace, so crates that only tests use are also
//! fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use crate::dist;
use crate::workspace::{Workspace, output};

/// Prefixes of names of licence files and notices, in lower case.
const NAMES: [&str; 5] = ["license", "licence", "copying", "copyright", "notice"];

/// Returns name, version, licence and licence text of each library.
pub(super) fn notice(workspace: &Workspace) -> anyhow::Result<String> {
    let metadata = output(&mut workspace.cargo([
        "metadata",
        "--locked",
        "--format-version=1",
        "--filter-platform",
        &workspace.host,
    ]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cannot parse the output of `cargo metadata`")?;
    let packages: BTreeMap<&str, &Value> =
        list(&metadata["packages"]).filter_map(|one| Some((one["id"].as_str()?, one))).collect();
    let linked = linked(&metadata, &packages);

    let mut text = String::from("Libraries that the programs of this package are linked with, and their licences.\n");
    // Most libraries share identical licence texts, so each text is printed once.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in linked.iter().filter_map(|id| packages.get(id)).filter(|package| !package["source"].is_null()) {
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let name = format!("{} {}", field("name"), field("version"));
        writeln!(text, "\n{name}\n  licence: {}\n  {}", field("license"), field("repository"))?;
        for file in licences(Path::new(field("manifest_path")))? {
            texts.entry(file).or_default().push(name.clone());
        }
    }
    for (licence, of) in texts {
        write!(text, "\n\n{}\n{}\n\n{}\n", "=".repeat(100), of.join(", "), licence.trim_end())?;
    }
    Ok(text)
}

/// Returns the ids of linked packages: ordinary dependencies and their dependencies, without build and test
/// dependencies.
fn linked<'a>(metadata: &'a Value, packages: &BTreeMap<&'a str, &'a Value>) -> BTreeSet<&'a str> {
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let is_product = |id: &&str| dist::PROGRAMS.iter().any(|name| packages[id]["name"] == *name);
    let mut open: Vec<&str> = packages.keys().copied().filter(is_product).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        let Some(node) = nodes.get(id) else { continue };
        let ordinary = |dep: &&Value| list(&dep["dep_kinds"]).any(|kind| kind["kind"].is_null());
        open.extend(list(&node["deps"]).filter(ordinary).filter_map(|dep| dep["pkg"].as_str()));
    }
    found
}

fn licences(manifest: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(manifest.parent().context("the manifest's path has no directory")?)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if entry.file_type()?.is_file() && NAMES.iter().any(|known| name.starts_with(known)) {
            found.insert(String::from_utf8_lossy(&fs::read(entry.path())?).replace("\r\n", "\n"));
        }
    }
    Ok(found)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
