//! Validates a catalog as large as the largest known catalogs (500 packages, 10,000 bundles, 200 MB), and prints time
//! and memory. Run it in release mode: `cargo test --release -p executor-bundles --test size -- --ignored --nocapture`.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::fs;
use std::io::Write as _;
use std::time::Instant;

use executor_bundles::catalog::{Catalog, load};

/// Number of packages. Debug builds are ten times slower and use fewer packages.
const PACKAGES: usize = if cfg!(debug_assertions) { 50 } else { 500 };
const BUNDLES: usize = 20;

/// Returns a large bundle: a description, 20 related images, 40 annotations, and 5 `olm.gvk` properties.
fn bundle(package: &str, index: usize, yaml: bool) -> String {
    let digest = format!("{:064x}", index * 7919);
    let mut related = String::new();
    let mut objects = String::new();
    let description = "The operator manages clusters, their backups and upgrades.\\n\\n## Usage\\nSee the \\\"documentation\\\" for more. ".repeat(60);
    for image in 0..20 {
        related += &if yaml {
            format!("- image: registry.example.com/{package}/image-{image}@sha256:{digest}\n  name: image-{image}\n")
        } else {
            format!(
                "        {{\n            \"name\": \"image-{image}\",\n            \"image\": \"registry.example.com/{package}/image-{image}@sha256:{digest}\"\n        }},\n"
            )
        };
    }
    related = related.trim_end_matches(",\n").to_owned();
    let annotations: String = (0..40)
        .map(|n| {
            if yaml {
                format!("      example.com/annotation-{n}: value {n} of the annotations\n")
            } else {
                format!("                    \"example.com/annotation-{n}\": \"value {n} of the annotations\",\n")
            }
        })
        .collect();
    for gvk in 0..5 {
        objects += &if yaml {
            format!(
                "- type: olm.gvk\n  value:\n    group: {package}.example.com\n    kind: Kind{gvk}\n    version: v1\n"
            )
        } else {
            format!(
                "        {{\n            \"type\": \"olm.gvk\",\n            \"value\": {{\"group\": \"{package}.example.com\", \"kind\": \"Kind{gvk}\", \"version\": \"v1\"}}\n        }},\n"
            )
        };
    }
    if yaml {
        let lines = "The operator manages clusters, their backups and upgrades: see the \"documentation\" for more.\n"
            .to_owned()
            .replace('\n', "\n      ")
            .repeat(75);
        format!(
            "---\nimage: registry.example.com/{package}/bundle@sha256:{digest}\nname: {package}.v1.{index}.0\npackage: {package}\nproperties:\n{objects}- type: olm.package\n  value:\n    packageName: {package}\n    version: 1.{index}.0\n- type: olm.csv.metadata\n  value:\n    annotations:\n{annotations}    description: |-\n      {lines}\n    displayName: {package}\n    keywords:\n    - database\nrelatedImages:\n{related}schema: olm.bundle\n"
        )
    } else {
        let annotations = annotations.trim_end_matches(",\n");
        format!(
            "{{\n    \"schema\": \"olm.bundle\",\n    \"name\": \"{package}.v1.{index}.0\",\n    \"package\": \"{package}\",\n    \"image\": \"registry.example.com/{package}/bundle@sha256:{digest}\",\n    \"properties\": [\n{objects}        {{\n            \"type\": \"olm.package\",\n            \"value\": {{\"packageName\": \"{package}\", \"version\": \"1.{index}.0\"}}\n        }},\n        {{\n            \"type\": \"olm.csv.metadata\",\n            \"value\": {{\n                \"annotations\": {{\n{annotations}\n                }},\n                \"description\": \"{description}\",\n                \"displayName\": \"{package}\"\n            }}\n        }}\n    ],\n    \"relatedImages\": [\n{related}\n    ]\n}}\n"
        )
    }
}

fn package(name: &str, yaml: bool) -> String {
    let entries: Vec<String> = (0..BUNDLES)
        .map(|index| match (index, yaml) {
            (0, true) => format!("- name: {name}.v1.0.0\n"),
            (0, false) => format!("{{\"name\": \"{name}.v1.0.0\"}}"),
            (_, true) => format!("- name: {name}.v1.{index}.0\n  replaces: {name}.v1.{}.0\n  skipRange: '>=1.0.0 <1.{index}.0'\n", index - 1),
            (_, false) => format!("{{\"name\": \"{name}.v1.{index}.0\", \"replaces\": \"{name}.v1.{}.0\", \"skipRange\": \">=1.0.0 <1.{index}.0\"}}", index - 1),
        })
        .collect();
    let mut text = if yaml {
        format!(
            "---\ndefaultChannel: stable\nname: {name}\nschema: olm.package\n---\nentries:\n{}name: stable\npackage: {name}\nschema: olm.channel\n",
            entries.concat()
        )
    } else {
        format!(
            "{{\"schema\": \"olm.package\", \"name\": \"{name}\", \"defaultChannel\": \"stable\"}}\n{{\"schema\": \"olm.channel\", \"package\": \"{name}\", \"name\": \"stable\", \"entries\": [{}]}}\n",
            entries.join(", ")
        )
    };
    (0..BUNDLES).for_each(|index| text += &bundle(name, index, yaml));
    text
}

/// Returns the peak resident set of this process, in MB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
#[ignore = "writes 800 MB; the measured time is meaningful only in a release build"]
fn catalog_of_200_mb_is_validated() {
    for (form, yaml) in [("json", false), ("yaml", true)] {
        for files in [PACKAGES, 1] {
            let dir = tempfile::tempdir().unwrap();
            let mut bytes = 0;
            for index in 0..PACKAGES {
                let text = package(&format!("package-{index}"), yaml);
                bytes += text.len();
                let path =
                    dir.path().join(if files == 1 { "catalog".to_owned() } else { format!("catalog-{index}.{form}") });
                fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .unwrap()
                    .write_all(text.as_bytes())
                    .unwrap();
            }
            let start = Instant::now();
            let objects = load(dir.path(), false).unwrap();
            let read = start.elapsed();
            let catalog = Catalog::build(&objects).unwrap();
            let whole = start.elapsed();
            assert_eq!((catalog.packages.len(), objects.objects.len()), (PACKAGES, PACKAGES * (BUNDLES + 2)));
            let megabytes = bytes as f64 / 1e6;
            println!(
                "{form}, {files} files, {megabytes:.0} MB: read in {:.2} s, checked in {:.2} s, {:.2} s for 100 MB; peak {} MB",
                read.as_secs_f64(),
                whole.as_secs_f64(),
                whole.as_secs_f64() * 100.0 / megabytes,
                peak()
            );
        }
    }
}
