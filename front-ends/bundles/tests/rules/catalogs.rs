//! Tests rules C1 to C14 of `docs/guides/catalogs.md`.

use executor_bundles::catalog::{Catalog, LoadError, load, mermaid};

use crate::common::{GOOD, and, breaks, evaluate, good, objects, with, write};

#[test]
fn c1_one_unparsable_file_fails_catalog() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("a/catalog.yaml", GOOD), ("b/other.json", r#"{"schema": "other"}{"schema": "other"}"#)]);
    assert_eq!(load(dir.path(), false).unwrap().objects.len(), 7);
    for broken in
        ["a: [", "a: b: c", "{\"schema\": ", "\t- x", "- 1", "text", "# nothing", "{\"schema\": \"x\"} text", "\u{0}"]
    {
        write(dir.path(), &[("b/other.json", broken)]);
        let error = load(dir.path(), false).expect_err(broken);
        assert!(error.to_string().contains("b/other.json"), "{error}");
    }
    // A known field must have the right type.
    for (from, to) in [
        ("name: demo\ndefault", "name: {}\ndefault"),
        ("defaultChannel: stable", "defaultChannel: 1.0"),
        ("entries:\n", "entries: 5\nx:\n"),
        ("version: 1.0.0", "version: 1"),
        ("image: quay.io/demo/bundle:v1", "relatedImages: {}"),
        ("defaultChannel: stable", "icon: {base64data: '*'}\ndefaultChannel: stable"),
    ] {
        breaks("C1", &with(from, to));
    }
}

/// As in opm, an empty directory is a valid catalog.
#[test]
fn c1_empty_directory_is_empty_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let objects = load(dir.path(), false).unwrap();
    let catalog = Catalog::build(&objects).unwrap();
    assert!(objects.objects.is_empty() && catalog.packages.is_empty());
    assert_eq!(catalog.warnings, ["the catalog has no packages: no files were read"]);
}

#[test]
fn c2_indexignore_leaves_files_out() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("catalog.yaml", GOOD), ("README.md", "# Read me"), (".indexignore", "*.md\n")]);
    assert_eq!(load(dir.path(), false).unwrap().objects.len(), 5);
    std::fs::remove_file(dir.path().join(".indexignore")).unwrap();
    assert!(matches!(load(dir.path(), false), Err(LoadError::Faults(_))));
}

#[test]
fn c2_catalog_without_packages_has_reason() {
    let dir = tempfile::tempdir().unwrap();
    let warnings = || Catalog::build(&load(dir.path(), false).unwrap()).unwrap().warnings;
    write(dir.path(), &[("catalog.yaml", GOOD), ("in/other.yaml", "schema: other\n"), ("in/.indexignore", "/x\n")]);
    assert!(warnings().is_empty());
    for (ignored, reason) in [
        ("*", "no files were read; .indexignore excludes 2 files or directories"),
        ("*.yaml", "no files were read; .indexignore excludes 2 files or directories"),
        ("/catalog.yaml", "none of the 1 objects is an olm.package; .indexignore excludes 1 files or directories"),
    ] {
        write(dir.path(), &[(".indexignore", ignored)]);
        assert_eq!(warnings(), [format!("the catalog has no packages: {reason}")], "{ignored}");
    }
}

#[test]
fn c3_schema_is_required_unknown_ones_kept() {
    breaks("C3", "name: demo\n");
    breaks("C3", "schema: ''\nname: demo\n");
    breaks("C1", "schema: 5\n");
    breaks("C1", "schema: x\nSchema: y\n");
    let catalog = good(&and("schema: example.com/other\npackage: demo\nname: x\nentries: {any: thing}\nproperties: 7"));
    assert_eq!(catalog.schemas["example.com/other"], 1);
    // Keys are case-insensitive.
    let upper = GOOD.replace("schema:", "Schema:").replace("package:", "PACKAGE:").replace("\nname:", "\nName:");
    assert_eq!(good(&upper).packages["demo"].bundles.len(), 3);
}

#[test]
fn c4_packages_are_unique_with_default_channel() {
    breaks("C4", &and("schema: olm.package\nname: demo\ndefaultChannel: stable"));
    breaks("C4", &and("schema: olm.package\ndefaultChannel: stable"));
    breaks("C4", &GOOD.replace("demo\n", "De_mo\n").replace("packageName: demo", "packageName: De_mo"));
    breaks("C4", &with("defaultChannel: stable", "defaultChannel: beta"));
    breaks("C4", &with("defaultChannel: stable\n", ""));
    breaks("C4", &and("schema: olm.package\nname: empty\ndefaultChannel: x"));
}

#[test]
fn c5_channels_and_entries_must_be_unique() {
    breaks("C5", &and("schema: olm.channel\npackage: other\nname: x\nentries: [{name: demo.v1}]"));
    breaks("C5", &and("schema: olm.channel\npackage: demo\nname: stable\nentries: [{name: demo.v1}]"));
    breaks("C5", &and("schema: olm.channel\npackage: demo\nentries: [{name: demo.v1}]"));
    breaks("C5", &and("schema: olm.channel\npackage: demo\nname: empty\nentries: []"));
    breaks("C5", &with("  - name: demo.v1\n", "  - name: demo.v1\n  - name: demo.v1\n"));
    good(&and("schema: olm.channel\npackage: demo\nname: beta\nentries: [{name: demo.v1}]"));
}

#[test]
fn c6_bundles_are_unique_with_package_property() {
    let property = "  - type: olm.package\n    value: {packageName: demo, version: 1.0.0}\n";
    breaks("C6", &with(property, ""));
    breaks("C6", &with(property, &format!("{property}{property}")));
    breaks("C6", &with("packageName: demo, version: 1.0.0", "packageName: other, version: 1.0.0"));
    breaks("C6", &with("version: 1.0.0", "version: '1.0'"));
    breaks("C6", &with("version: 1.0.0", "version: v1.0.0"));
    breaks("C6", &with("image: quay.io/demo/bundle:v1", "image: quay.io/Demo/bundle:v1"));
    breaks("C6", &with("image: quay.io/demo/bundle:v1\n", ""));
    breaks(
        "C6",
        &with("image: quay.io/demo/bundle:v1\n", "image: quay.io/demo/b\nrelatedImages: [{name: '', image: 'a b'}]\n"),
    );
    breaks("C6", &with("\npackage: demo\nname: demo.v1\n", "\npackage: unknown\nname: demo.v1\n"));
    breaks("C6", &with("  - name: demo.v1\n", ""));
    breaks(
        "C6",
        &with("  - name: demo.v1\n", "  - name: demo.v1\n  - name: demo.v0\n")
            .replace("    replaces: demo.v1\n", "    replaces: demo.v1\n    skips: [demo.v0]\n"),
    );
    let twice = GOOD.find("---\nschema: olm.bundle").map(|at| &GOOD[at..]).unwrap();
    breaks("C6", &format!("{GOOD}{twice}"));
    // Names and references of related images may be empty, as in existing catalogs.
    good(&with(
        "image: quay.io/demo/bundle:v1\n",
        "image: quay.io/demo/b\nrelatedImages: [{name: '', image: 'a'}, {name: x, value: y}]\n",
    ));
    // A bundle without an image has its objects in the catalog.
    let object = "properties:\n  - type: olm.bundle.object\n    value: {data: e30=}\n";
    good(&with("image: quay.io/demo/bundle:v1\nproperties:\n", object));
    // The value of a property may precede its type.
    good(&with(property, "  - value: {packageName: demo, version: 1.0.0}\n    type: olm.package\n"));
    // If a bundle has a release, the release must be part of its name.
    let released = |name: &str| GOOD.replace("demo.v3", name).replace("version: 3.0.0", "version: 3.0.0, release: 7.a");
    breaks("C6", &released("demo.v3"));
    assert_eq!(
        good(&released("demo-v3.0.0-7.a")).packages["demo"].bundles["demo-v3.0.0-7.a"].version_text(),
        "3.0.0-7.a"
    );
}

#[test]
fn c7_versions_are_unique_in_a_package() {
    let faults = breaks("C7", &with("version: 2.0.0", "version: 1.0.0"));
    assert!(faults.to_string().contains("demo.v1, demo.v2"), "{faults}");
    good(&with("version: 2.0.0", "version: 1.0.0+2"));
}

#[test]
fn c8_a_channel_has_one_head() {
    let faults = breaks("C8", &with("  - name: demo.v3\n    replaces: demo.v2\n", "  - name: demo.v3\n"));
    assert!(faults.to_string().contains("several heads: demo.v2, demo.v3"), "{faults}");
    breaks("C8", &with("  - name: demo.v1\n", "  - name: demo.v1\n    replaces: demo.v3\n"));
}

#[test]
fn c9_replaces_has_no_cycle() {
    let faults = breaks("C9", &with("  - name: demo.v1\n", "  - name: demo.v1\n    replaces: demo.v2\n"));
    assert!(faults.to_string().contains("demo.v3 -> demo.v2 -> demo.v1 -> demo.v2"), "{faults}");
}

#[test]
fn c10_replaces_chain_reaches_every_unskipped_entry() {
    // The chain ends at a skipped bundle, so demo.v1 is not reached.
    let skipped = with("    replaces: demo.v2\n", "    replaces: demo.v2\n    skips: [demo.v2]\n");
    let faults = breaks("C10", &skipped);
    assert!(faults.to_string().contains("does not reach: demo.v1"), "{faults}");
    good(&skipped.replace("skips: [demo.v2]", "skips: [demo.v2, demo.v1]"));
}

#[test]
fn c11_last_replaces_may_be_missing() {
    good(&with("  - name: demo.v1\n", "  - name: demo.v1\n    replaces: demo.v0\n"));
}

#[test]
fn c12_skips_and_skip_ranges_are_valid() {
    breaks("C12", &with("    replaces: demo.v1\n", "    replaces: demo.v1\n    skips: ['']\n"));
    breaks("C12", &with("    replaces: demo.v1\n", "    replaces: demo.v1\n    skipRange: ^1.0.0\n"));
    good(&with("    replaces: demo.v1\n", "    replaces: demo.v1\n    skipRange: '>=1.0.0 <2.0.0'\n"));
}

#[test]
fn c13_properties_have_type_and_value() {
    let property = |property: &str| with("properties:\n", &format!("properties:\n  - {property}\n"));
    breaks("C13", &property("{type: x}"));
    breaks("C13", &property("{type: x, value: null}"));
    breaks("C13", &property("{value: 1}"));
    good(&property("{type: x, value: false}"));
    good(&property("{type: x, value: {any: [1, 2]}}"));
    // Known property types have a schema.
    breaks("C1", &property("{type: olm.gvk, value: {group: 5}}"));
    breaks("C1", &property("{type: olm.bundle.object, value: {data: '*'}}"));
    breaks("C1", &property("{type: olm.bundle.object, value: {data: eyA=}}"));
    breaks("C1", &property("{type: olm.csv.metadata, value: {annotations: {a: 1}}}"));
    for bad in [
        "{type: olm.channel, value: {channelName: a, priority: '1'}}",
        "{type: olm.channel, value: {channelName: a, priority: 1.5}}",
        "{type: olm.csv.metadata, value: {installModes: [{type: AllNamespaces, supported: 'true'}]}}",
        "{type: olm.csv.metadata, value: {crdDescriptions: {owned: 5}}}",
        "{type: olm.csv.metadata, value: {crdDescriptions: {owned: [{specDescriptors: [{x-descriptors: [1]}]}]}}}",
        "{type: olm.csv.metadata, value: {apiServiceDefinitions: {required: [{containerPort: a}]}}}",
        "{type: olm.csv.metadata, value: {nativeAPIs: [5]}}",
    ] {
        breaks("C1", &property(bad));
    }
    good(&property("{type: olm.channel, value: {channelName: a, priority: 1}}"));
    good(&property(
        "{type: olm.csv.metadata, value: {installModes: [{type: AllNamespaces, supported: true}], apiServiceDefinitions: {}}}",
    ));
    good(&property(
        "{type: olm.csv.metadata, value: {crdDescriptions: {owned: [{name: a.b, version: v1, kind: A}], required: null}}}",
    ));
    good(&property("{type: olm.csv.metadata, value: {annotations: {a: b}, keywords: [x], provider: {name: z}}}"));
}

#[test]
fn c14_invalid_deprecations_are_refused() {
    let deprecated = |entries: &str| and(&format!("schema: olm.deprecations\npackage: demo\nentries:\n{entries}"));
    let entry =
        |schema: &str, name: &str| format!("  - reference: {{schema: {schema}, name: '{name}'}}\n    message: old\n");
    let catalog = good(&deprecated(
        &(entry("olm.package", "") + &entry("olm.channel", "stable") + &entry("olm.bundle", "demo.v1")),
    ));
    let package = &catalog.packages["demo"];
    assert_eq!(package.deprecation.as_deref(), Some("old"));
    assert_eq!(package.channels["stable"].deprecation.as_deref(), Some("old"));
    assert_eq!(package.bundles["demo.v1"].deprecation.as_deref(), Some("old"));
    assert_eq!(package.bundles["demo.v2"].deprecation, None);
    for wrong in [
        entry("olm.package", "demo"),
        entry("olm.channel", "beta"),
        entry("olm.bundle", "demo.v9"),
        entry("other", "x"),
        entry("", "x"),
        entry("olm.bundle", "demo.v1") + &entry("olm.bundle", "demo.v1"),
        "  - reference: {schema: olm.package}\n".to_owned(),
    ] {
        breaks("C14", &deprecated(&wrong));
    }
    breaks("C14", &and("schema: olm.deprecations\npackage: other\nentries: []"));
    breaks("C14", &and("schema: olm.deprecations\nentries: []"));
    breaks(
        "C14",
        &and(
            "schema: olm.deprecations\npackage: demo\nentries: []\n---\nschema: olm.deprecations\npackage: demo\nentries: []",
        ),
    );
}

#[test]
fn diagrams_mark_deprecated_and_start_with_highest() {
    let reference = |reference: &str| format!("- reference: {{{reference}}}\n  message: old\n");
    let entries = ["schema: olm.package", "schema: olm.channel, name: stable", "schema: olm.bundle, name: demo.v1"];
    let entries: String = entries.into_iter().map(reference).collect();
    let catalog = good(&and(&format!("schema: olm.deprecations\npackage: demo\nentries:\n{entries}")));
    let drawn = mermaid::draw(&catalog, Some("demo"));
    let at = |part: &str| drawn.find(part).unwrap_or_else(|| panic!("{part}: {drawn}"));
    let head = at("      demo__stable__demo_2e_v3__[\"demo.v3\"]:::head\n");
    let first = at("      demo__stable__demo_2e_v1__[\"demo.v1\"]:::deprecated\n");
    at("[\"demo.v1\"]-- replaces --> demo__stable__demo_2e_v2__");
    assert!(head < first && at("  end\n  class demo__ deprecated\n  class demo__stable__ deprecated\n") > first);
    assert!(!mermaid::draw(&good(GOOD), None).contains("  class "));
}

#[test]
fn all_faults_are_reported_with_their_places() {
    let text = with("version: 1.0.0", "version: x")
        .replace("quay.io/demo/bundle:v2", "quay.io/Demo")
        .replace("defaultChannel: stable", "defaultChannel: x");
    let faults = evaluate(&text).unwrap_err();
    assert_eq!(faults.count(), 3, "{faults}");
    assert!(
        faults.to_string().contains("catalog.yaml:16: package \"demo\", bundle \"demo.v1\": version \"x\""),
        "{faults}"
    );
}

#[test]
fn json_catalog_equals_yaml_catalog() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &[("catalog.yaml", GOOD)]);
    let read = load(dir.path(), true).unwrap();
    let json: String = read.in_order().iter().map(|object| read.content(&object.place).unwrap().to_string()).collect();
    let again = objects(&json).unwrap();
    let digests = |objects: &executor_bundles::catalog::Objects| {
        objects.objects.iter().map(|object| object.digest).collect::<Vec<_>>()
    };
    assert_eq!(digests(&read), digests(&again));
    assert_eq!(Catalog::build(&again).unwrap().packages["demo"].channels["stable"].head, "demo.v3");
    assert!(executor_bundles::catalog::diff::diff((&read, &good(GOOD)), (&again, &good(GOOD))).is_empty());
}

#[test]
fn memory_bombs_are_refused_quickly() {
    let mut bomb = "schema: x\na0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let alias = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", vec![alias; 9].join(", "));
    }
    breaks("C1", &bomb);
    breaks("C1", &format!("schema: x\na: {}{}", "[".repeat(10_000), "]".repeat(10_000)));
    // Skipping nested JSON does not recurse.
    good(&format!("{{\"schema\": \"x\", \"a\": {}{}}}", "[".repeat(10_000), "]".repeat(10_000)));
    // A long string is valid. A duplicate key is also valid: its last value is used.
    good(&and(&format!("schema: x\ntext: {}", "x".repeat(1 << 20))));
    let twice = with("defaultChannel: stable", "defaultChannel: other\ndefaultChannel: stable");
    assert_eq!(good(&twice).packages["demo"].default_channel, "stable");
}
