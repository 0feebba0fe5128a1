//! Tests rules B1 to B15 and P1 to P3 of `docs/guides/bundles.md`.

use std::collections::BTreeMap;

use executor_bundles::bundle::{Bundle, Dependency, Format, format, read};
use executor_bundles::fault::Faults;
use executor_bundles::source::{Files, Source};

const CSV: &str = r#"apiVersion: operators.coreos.com/v1alpha1
kind: ClusterServiceVersion
metadata:
  name: demo.v1.0.0
  annotations:
    alm-examples: '[{"apiVersion": "example.com/v1", "kind": "Backup"}]'
spec:
  displayName: Demo
  version: 1.0.0
  minKubeVersion: 1.20.0
  installModes: [{type: AllNamespaces, supported: true}]
  customresourcedefinitions:
    owned: [{name: backups.example.com, version: v1, kind: Backup}]
  install:
    strategy: deployment
    spec:
      permissions: [{serviceAccountName: demo, rules: []}]
      deployments:
      - name: demo
        spec:
          selector: {matchLabels: {app: demo}}
          template: {metadata: {labels: {app: demo}}, spec: {containers: [{name: demo, image: quay.io/demo/demo}]}}
"#;

const CRD: &str = r#"apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: backups.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: backups, kind: Backup}
  versions: [{name: v1, served: true, storage: true}]
"#;

const ANNOTATIONS: &str = "annotations:
  operators.operatorframework.io.bundle.mediatype.v1: registry+v1
  operators.operatorframework.io.bundle.manifests.v1: manifests/
  operators.operatorframework.io.bundle.metadata.v1: metadata/
  operators.operatorframework.io.bundle.package.v1: demo
  operators.operatorframework.io.bundle.channels.v1: alpha,stable
  operators.operatorframework.io.bundle.channel.default.v1: stable
  com.example.flag: true
";

fn files<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Files {
    let files = files.into_iter().filter(|(_, text)| !text.is_empty());
    Files { files: files.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).collect(), ..Files::default() }
}

/// Reads a valid bundle after replacing some files. An empty string removes a file.
fn bundle(changes: &[(&str, &str)]) -> Result<Bundle, Faults> {
    let mut all: BTreeMap<&str, &str> = BTreeMap::from([
        ("manifests/demo.csv.yaml", CSV),
        ("manifests/backups.crd.yaml", CRD),
        ("metadata/annotations.yaml", ANNOTATIONS),
    ]);
    all.extend(changes.iter().copied());
    read(&files(all), Format::RegistryV1)
}

#[track_caller]
fn good(changes: &[(&str, &str)]) -> Bundle {
    bundle(changes).unwrap_or_else(|faults| panic!("{faults}"))
}

/// Asserts that a bundle is refused for this rule only.
#[track_caller]
fn breaks(rule: &str, changes: &[(&str, &str)]) -> String {
    let Err(faults) = bundle(changes) else { panic!("the bundle was accepted") };
    assert!(faults.found.iter().all(|fault| fault.rule == rule), "{faults}");
    faults.to_string()
}

#[track_caller]
fn csv(from: &str, to: &str) -> String {
    assert!(CSV.contains(from), "{from}");
    CSV.replacen(from, to, 1)
}

#[test]
fn b1_missing_directories_are_all_reported() {
    let reported = breaks(
        "B1",
        &[("metadata/annotations.yaml", ""), ("manifests/demo.csv.yaml", ""), ("manifests/backups.crd.yaml", "")],
    );
    assert!(
        reported.contains("manifests: ") && reported.contains("metadata: ") && reported.lines().count() == 2,
        "{reported}"
    );
    breaks("B1", &[("metadata/annotations.yaml", "")]);
}

#[test]
fn b2_annotations_may_be_in_any_file() {
    good(&[
        ("metadata/annotations.yaml", ""),
        ("metadata/any-name.json", r#"{"x": 1}"#),
        ("metadata/other", ANNOTATIONS),
    ]);
    // As in Go, the case of known keys is ignored.
    good(&[("metadata/annotations.yaml", &ANNOTATIONS.replace("annotations:", "Annotations:"))]);
    let both = format!("{ANNOTATIONS}ANNOTATIONS:\n  operators.operatorframework.io.bundle.package.v1: other\n");
    assert_eq!(good(&[("metadata/annotations.yaml", &both)]).package.as_deref(), Some("demo"));
    breaks("B2", &[("metadata/annotations.yaml", "annotations: [1]")]);
    breaks("B2", &[("metadata/annotations.yaml", "x: y")]);
}

#[test]
fn b3_missing_or_empty_annotations_are_refused() {
    for name in ["mediatype", "manifests", "metadata", "package", "channels"] {
        let line = ANNOTATIONS.lines().find(|line| line.contains(&format!("bundle.{name}.v1"))).unwrap();
        let reported = breaks("B3", &[("metadata/annotations.yaml", &ANNOTATIONS.replace(line, ""))]);
        assert!(reported.contains(name), "{reported}");
    }
    breaks("B3", &[("metadata/annotations.yaml", &ANNOTATIONS.replace("default.v1: stable", "default.v1: ''"))]);
    let without = ANNOTATIONS.replace("  operators.operatorframework.io.bundle.channel.default.v1: stable\n", "");
    assert_eq!(good(&[("metadata/annotations.yaml", &without)]).default_channel, None);
}

#[test]
fn b4_media_type_matches_bundle_format() {
    breaks("B4", &[("metadata/annotations.yaml", &ANNOTATIONS.replace("registry+v1", "plain+v0"))]);
}

#[test]
fn b5_empty_channels_are_refused() {
    breaks("B5", &[("metadata/annotations.yaml", &ANNOTATIONS.replace("alpha,stable", "''"))]);
    assert_eq!(good(&[]).channels, ["alpha", "stable"]);
}

#[test]
fn b6_missing_or_second_csv_is_refused() {
    breaks("B6", &[("manifests/second.csv.yaml", CSV)]);
    let Err(faults) = bundle(&[("manifests/demo.csv.yaml", "")]) else { panic!() };
    assert!(faults.breaks("B6") && faults.breaks("B4"), "{faults}");
}

#[test]
fn b7_missing_owned_definition_is_refused() {
    breaks("B7", &[("manifests/backups.crd.yaml", "")]);
    let owned = csv("version: v1, kind: Backup}]", "version: v2, kind: Backup}]")
        .replace("example.com/v1\"", "example.com/v2\"");
    breaks("B7", &[("manifests/demo.csv.yaml", &owned)]);
}

#[test]
fn b8_extra_definition_is_warning() {
    let more = CRD.replace("backups", "restores").replace("Backup", "Restore");
    let warnings = good(&[("manifests/restores.crd.yaml", &more)]).warnings;
    assert!(
        warnings.iter().any(|warning| warning.rule == "B8" && warning.message.contains("restores.example.com v1")),
        "{warnings:?}"
    );
}

#[test]
fn b9_definitions_are_unique_with_known_version() {
    breaks("B9", &[("manifests/again.crd.yaml", CRD)]);
    breaks("B9", &[("manifests/backups.crd.yaml", &CRD.replace("apiextensions.k8s.io/v1", "apiextensions.k8s.io/v2"))]);
    breaks(
        "B9",
        &[(
            "manifests/backups.crd.yaml",
            &CRD.replace("storage: true}]", "storage: true}, {name: v1, storage: false}]"),
        )],
    );
    breaks("B9", &[("manifests/backups.crd.yaml", &CRD.replace("storage: true", "storage: false"))]);
    let beta = CRD
        .replace("k8s.io/v1", "k8s.io/v1beta1")
        .replace("versions: [{name: v1, served: true, storage: true}]", "version: v1");
    good(&[("manifests/backups.crd.yaml", &beta)]);
}

/// All parts of a definition except its schemas are validated as by an API server.
#[test]
fn b9_incomplete_definition_is_refused() {
    let with = |from: &str, to: &str| {
        assert!(CRD.contains(from), "{from}");
        CRD.replacen(from, to, 1)
    };
    let names = "names: {plural: backups, kind: Backup";
    let version = "served: true, storage: true";
    let old = |text: String| {
        text.replace("k8s.io/v1", "k8s.io/v1beta1")
            .replace("versions: [{name: v1, served: true, storage: true}]", "version: v1")
    };
    for (bad, reported) in [
        (with("group: example.com", "group: ''"), "has no spec.group"),
        (with("scope: Namespaced", "scope: namespaced"), "spec.scope"),
        (with(names, "names: {plural: backups, kind: Backup, listKind: Backup"), "must differ"),
        (with(names, "names: {plural: backups, kind: Backup, shortNames: [B]"), "spec.names.shortNames \"B\""),
        (with(names, "names: {plural: backups, kind: Backup, categories: [all, a_b]"), "spec.names.categories \"a_b\""),
        (with(names, "names: {plural: backups, kind: Back_up"), "spec.names.kind"),
        (with(names, "names: {plural: backups, kind: Backup, singular: 1st"), "spec.names.singular"),
        (with(version, "served: true, storage: true, deprecationWarning: old"), "not deprecated"),
        (
            with(
                version,
                "served: true, storage: true, additionalPrinterColumns: [{name: a, type: int, jsonPath: .a}]",
            ),
            "type must be one of",
        ),
        (
            with(
                version,
                "served: true, storage: true, additionalPrinterColumns: [{name: a, type: date, jsonPath: a}]",
            ),
            "jsonPath must begin",
        ),
        (
            with(version, "served: true, storage: true, subresources: {scale: {specReplicasPath: .replicas}}"),
            "specReplicasPath",
        ),
        (with("scope:", "preserveUnknownFields: true\n  scope:"), "preserveUnknownFields"),
        (with("scope:", "conversion: {strategy: Other}\n  scope:"), "None or Webhook"),
        (with("scope:", "conversion: {strategy: Webhook}\n  scope:"), "no clientConfig"),
        (
            with(
                "scope:",
                "conversion: {strategy: Webhook, webhook: {clientConfig: {service: {name: a, namespace: b}}}}\n  scope:",
            ),
            "conversionReviewVersions",
        ),
        (
            with("scope:", "conversion: {strategy: None, webhook: {conversionReviewVersions: [v1]}}\n  scope:"),
            "which the strategy None does not permit",
        ),
        (
            old(with("scope:", "validation: {}\n  scope:"))
                .replace("version: v1\n", "versions: [{name: v1, storage: true, schema: {}}]\n"),
            "has both",
        ),
        (
            old(CRD.into()).replace("version: v1\n", "version: v2\n  versions: [{name: v1, storage: true}]\n"),
            "not the first",
        ),
    ] {
        let Err(faults) = bundle(&[("manifests/backups.crd.yaml", &bad)]) else { panic!("accepted: {bad}") };
        assert!(faults.breaks("B9") && faults.to_string().contains(reported), "{reported}: {faults}");
    }
    let column = "served: true, storage: true, additionalPrinterColumns: [{name: a, type: date, JSONPath: .a}]";
    good(&[("manifests/backups.crd.yaml", &with(version, column))]);
    let webhook = "conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {name: a, namespace: b}}}}";
    good(&[("manifests/backups.crd.yaml", &with("scope:", &format!("{webhook}\n  scope:")))]);
    let warned = good(&[("manifests/backups.crd.yaml", &old(CRD.into()))]).warnings;
    assert!(warned.iter().any(|warning| warning.rule == "B9"), "{warned:?}");
    // A definition in a Kubernetes group needs an approval.
    let of = |group: &str, annotations: &str| {
        let crd =
            CRD.replace("example.com", group).replace("{name:", &format!("{{annotations: {{{annotations}}}, name:"));
        let csv = CSV.replace("example.com", group);
        bundle(&[("manifests/backups.crd.yaml", &crd), ("manifests/demo.csv.yaml", &csv)]).map(|_| ())
    };
    assert!(of("x.k8s.io", "").unwrap_err().breaks("B9"));
    assert!(of("x.k8s.io", "api-approved.kubernetes.io: https://example.com/1").is_ok());
    assert!(of("kubernetes.io", "api-approved.kubernetes.io: unapproved").is_ok());
    for bad in ["''", "'://x'", "'https://'", "'x://'", "example.com", "'/x'", "'1a://x'"] {
        let faults = of("x.k8s.io", &format!("api-approved.kubernetes.io: {bad}")).unwrap_err();
        assert!(faults.breaks("B9"), "{bad}");
    }
    let crd = old(CRD.replace("example.com", "x.k8s.io"));
    let csv = CSV.replace("example.com", "x.k8s.io");
    assert!(bundle(&[("manifests/backups.crd.yaml", &crd), ("manifests/demo.csv.yaml", &csv)]).is_err());
    assert!(of("xk8s.io", "").is_ok());
}

#[test]
fn b10_kinds_are_known_and_case_sensitive() {
    for kind in ["ConfigMap", "PodMonitor", "NetworkPolicy", "ConsolePlugin", "Secret", "ServiceAccount"] {
        good(&[("manifests/x.yaml", &format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\n"))]);
    }
    for kind in ["configmap", "Deployment", "ResourceQuota", "Pod"] {
        breaks("B10", &[("manifests/x.yaml", &format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\n"))]);
    }
    breaks("B10", &[("manifests/README.md", "# Read me\n")]);
    breaks("B10", &[("manifests/x.yaml", "a: [")]);
    breaks("B10", &[("manifests/x.yaml", "kind: 5")]);
}

#[test]
fn b11_metadata_of_objects_are_valid() {
    let map = |metadata: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {metadata}\n");
    for bad in [
        "{}",
        "{name: x, namespace: 5}",
        "{name: x, labels: {'a b': c}}",
        "{name: x, labels: {a: 'b c'}}",
        "{name: x, annotations: {-a: b}}",
        "{name: x, labels: {a: 1}}",
    ] {
        breaks("B11", &[("manifests/x.yaml", &map(bad))]);
    }
    // A bundle cannot use names that an API server would generate.
    breaks("B11", &[("manifests/x.yaml", &map("{generateName: x-}"))]);
    assert!(
        good(&[("manifests/x.yaml", &map("{name: x, namespace: z}"))])
            .warnings
            .iter()
            .any(|warning| warning.rule == "B11")
    );
}

#[test]
fn b12_csv_without_install_mode_is_refused() {
    let modes = "  installModes: [{type: AllNamespaces, supported: true}]\n";
    breaks("B12", &[("manifests/demo.csv.yaml", &csv(modes, ""))]);
    breaks("B12", &[("manifests/demo.csv.yaml", &csv("supported: true", "supported: false"))]);
    assert_eq!(good(&[]).csv.unwrap().install_modes, ["AllNamespaces"]);
}

#[test]
fn b13_dependencies_are_complete_with_known_types() {
    let depends = |text: &str| format!("dependencies:\n- {text}\n");
    for bad in [
        "{type: olm.package, value: {version: '1.0.0'}}",
        "{type: olm.package, value: {packageName: x}}",
        "{type: olm.package, value: {packageName: x, version: '>!1.0.0'}}",
        "{type: olm.gvk, value: {group: g, version: v1}}",
        "{type: olm.constraint, value: {failureMessage: x}}",
        "{type: olm.label, value: {}}",
        "{type: olm.crd, value: {}}",
    ] {
        breaks("B13", &[("metadata/dependencies.yaml", &depends(bad))]);
    }
    let bundle =
        good(&[("metadata/dependencies.yaml", &depends("{type: olm.constraint, value: {cel: {rule: 'true'}}}"))]);
    assert_eq!(bundle.dependencies, [Dependency::Constraint { rule: "true".into() }]);
    let upper = "Dependencies:\n- {Type: olm.gvk, VALUE: {Group: g, VERSION: v1, kind: K}}\n";
    assert_eq!(good(&[("metadata/dependencies.yaml", upper)]).dependencies.len(), 1);
    breaks("B13", &[("metadata/dependencies.yaml", "DEPENDENCIES:\n- {type: olm.crd, value: {}}\n")]);
    assert!(bundle.not_provided().iter().any(|it| it.what == "dependency: constraint true"));
}

#[test]
fn b14_a_release_excludes_substitutes_for() {
    let released = csv("  displayName: Demo\n", "  displayName: Demo\n  release: '1'\n");
    good(&[("manifests/demo.csv.yaml", &released)]);
    let both = released.replace("  annotations:\n", "  annotations:\n    olm.substitutesFor: demo.v0\n");
    breaks("B14", &[("manifests/demo.csv.yaml", &both)]);
}

#[test]
fn csv_release_follows_semver() {
    let released =
        |release: &str| csv("  displayName: Demo\n", &format!("  displayName: Demo\n  release: {release}\n"));
    for good_one in ["'0'", "'10'", "a-b.1", "rc.0.x01", "null"] {
        good(&[("manifests/demo.csv.yaml", &released(good_one))]);
    }
    for bad in ["'01'", "a_b", "''", "1..2", "'1.'", "a+b", "'1 '", "é", "'99999999999999999999999'", "1"] {
        let reported = breaks("CSV", &[("manifests/demo.csv.yaml", &released(bad))]);
        assert!(reported.contains("spec.release"), "{reported}");
    }
}

#[test]
fn csv_labels_and_annotations_must_be_strings() {
    let with = |metadata: &str| csv("  name: demo.v1.0.0\n", &format!("  name: demo.v1.0.0\n  labels: {metadata}\n"));
    for bad in ["{a: 1}", "{a: true}", "{a: 1.5}", "{a: [b]}", "{a: {b: c}}", "[a]", "text"] {
        let reported = breaks("CSV", &[("manifests/demo.csv.yaml", &with(bad))]);
        assert!(reported.contains("metadata.labels"), "{reported}");
    }
    let annotation = csv("    alm-examples", "    number: 1\n    alm-examples");
    let reported = breaks("CSV", &[("manifests/demo.csv.yaml", &annotation)]);
    assert!(reported.contains("metadata.annotations[\"number\"] is a number"), "{reported}");
    for fine in ["{a: '1'}", "{a: null}", "null", "{}"] {
        good(&[("manifests/demo.csv.yaml", &with(fine))]);
    }
    let deployment = csv("      - name: demo\n", "      - name: demo\n        label: {a: 1}\n");
    let reported = breaks("CSV", &[("manifests/demo.csv.yaml", &deployment)]);
    assert!(reported.contains("spec.install.spec.deployments[0].label"), "{reported}");
}

#[test]
fn b15_subdirectory_of_manifests_is_refused() {
    breaks("B15", &[("manifests/sub/x.yaml", "kind: ConfigMap\n")]);
}

#[test]
fn empty_directory_below_manifests_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("manifests/demo.csv.yaml", CSV);
    write("manifests/backups.crd.yaml", CRD);
    write("metadata/annotations.yaml", ANNOTATIONS);
    std::fs::create_dir_all(dir.path().join("metadata/empty")).unwrap();
    std::fs::create_dir_all(dir.path().join("empty")).unwrap();
    let tar = dir.path().join("bundle.tar");
    let checked = |format| {
        let mut archive = tar::Builder::new(std::fs::File::create(&tar).unwrap());
        for directory in ["manifests", "metadata"] {
            archive.append_dir_all(directory, dir.path().join(directory)).unwrap();
        }
        archive.finish().unwrap();
        [dir.path(), &tar].map(|path| {
            let found = executor_bundles::source::read(&Source::parse(path.to_str().unwrap()).unwrap()).unwrap();
            read(&found, format).map(|_| ()).map_err(|faults| faults.to_string())
        })
    };
    assert_eq!(checked(Format::RegistryV1), [Ok(()), Ok(())]);
    let before = checked(Format::PlainV0);
    std::fs::create_dir_all(dir.path().join("manifests/sub/deep")).unwrap();
    for (format, rule) in [(Format::RegistryV1, "B15"), (Format::PlainV0, "P2")] {
        for reported in checked(format) {
            let reported = reported.unwrap_err();
            assert_eq!(reported.lines().count(), 1, "{reported}");
            assert!(reported.contains("manifests/sub: ") && reported.contains(&format!("({rule})")), "{reported}");
        }
    }
    assert_eq!(before, [Ok(()), Ok(())]);
}

#[test]
fn invalid_csv_fields_are_refused() {
    for (from, to) in [
        ("name: demo.v1.0.0", "name: Demo_v1"),
        ("  displayName: Demo\n", ""),
        ("    strategy: deployment\n", ""),
        ("version: 1.0.0", "version: x"),
        ("minKubeVersion: 1.20.0", "minKubeVersion: 1.20"),
        ("alm-examples", "olm.skiprange: ''\n    alm-examples"),
        ("'[{\"apiVersion\": \"example.com/v1\", \"kind\": \"Backup\"}]'", "'[{]'"),
        ("\"kind\": \"Backup\"", "\"kind\": \"Other\""),
    ] {
        breaks("CSV", &[("manifests/demo.csv.yaml", &csv(from, to))]);
    }
    // Versions are parsed as by Go programs.
    assert_eq!(
        good(&[("manifests/demo.csv.yaml", &csv("version: 1.0.0", "version: v1.0"))]).version.unwrap().to_string(),
        "1.0.0"
    );
    let loose = csv("displayName: Demo", "description: 'one\n  two'\n  displayName: Demo");
    good(&[("manifests/demo.csv.yaml", &loose)]);
}

/// The list of deployments must exist but may be empty.
#[test]
fn csv_with_empty_deployments_is_valid() {
    let deployments = &CSV[CSV.find("      deployments:").unwrap()..];
    assert!(
        good(&[("manifests/demo.csv.yaml", &csv(deployments, "      deployments: []\n"))])
            .csv
            .unwrap()
            .deployments
            .is_empty()
    );
    breaks("CSV", &[("manifests/demo.csv.yaml", &csv(deployments, "      deployments: null\n"))]);
    breaks("CSV", &[("manifests/demo.csv.yaml", &csv(deployments, ""))]);
}

#[test]
fn objects_for_api_server_are_reported() {
    let what: Vec<String> = good(&[]).not_provided().into_iter().map(|it| it.what).collect();
    assert_eq!(
        what,
        ["1 permissions (RBAC) of the ClusterServiceVersion", "CustomResourceDefinition backups.example.com"]
    );
}

#[test]
fn p1_p2_p3_broken_bundles_are_refused() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n";
    let plain = |all: &[(&str, &str)]| read(&files(all.iter().copied()), Format::PlainV0);
    let breaks = |rule: &str, all: &[(&str, &str)]| {
        let Err(faults) = plain(all) else { panic!("the bundle was accepted: {all:?}") };
        assert!(faults.found.iter().all(|fault| fault.rule == rule), "{faults}");
    };
    breaks("P1", &[("x.yaml", map)]);
    breaks("P1", &[("manifests", map)]);
    breaks("P2", &[("manifests/x.yaml", map), ("manifests/sub/y.yaml", map)]);
    breaks("P3", &[("manifests/x.yaml", "# nothing\n")]);
    breaks("P3", &[("manifests/x.yaml", "a: [")]);
    let two = plain(&[("manifests/x.yaml", &format!("{map}---\n{}", map.replace("name: x", "name: z")))])
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(two.objects.len(), 2);
    // Objects in lists are validated like other objects.
    let list = |items: &str| {
        format!("apiVersion: v1\nkind: List\nitems: [{{apiVersion: v1, kind: ConfigMapList, items: [{items}]}}]\n")
    };
    let text = list("{metadata: {name: a}}, {apiVersion: v1, kind: Service, metadata: {name: b}}");
    let found = plain(&[("manifests/x.yaml", &text)]).unwrap_or_else(|faults| panic!("{faults}"));
    let kinds: Vec<_> = found.objects.iter().map(|object| (&*object.kind, &*object.name)).collect();
    assert_eq!(kinds, [("ConfigMap", "a"), ("Service", "b")]);
    assert_eq!(found.not_provided().len(), 1);
    breaks("P3", &[("manifests/x.yaml", &list("{metadata: {}}"))]);
    breaks("P3", &[("manifests/x.yaml", &list("null"))]);
}

#[test]
fn format_comes_from_label_metadata_or_csv() {
    let with = |label: &str, all: &[(&str, &str)]| {
        let mut found = files(all.iter().copied());
        if !label.is_empty() {
            found.labels.insert("operators.operatorframework.io.bundle.mediatype.v1".into(), label.into());
        }
        format(&found)
    };
    assert_eq!(with("", &[("manifests/x.yaml", "kind: ConfigMap")]), Format::PlainV0);
    assert_eq!(with("", &[("manifests/x.yaml", CSV)]), Format::RegistryV1);
    assert_eq!(with("", &[("metadata/x.yaml", "x: y")]), Format::RegistryV1);
    assert_eq!(with("plain+v0", &[("metadata/x.yaml", "x: y")]), Format::PlainV0);
}

/// If a directory has only manifests, it is validated as in operator-framework/api.
#[test]
fn bare_csv_directory_is_validated_without_metadata() {
    let bare = |more: &[(&str, &str)]| {
        let all = [&[("demo.csv.yaml", CSV), ("backups.crd.yaml", CRD)], more].concat();
        let found = files(all);
        assert_eq!(format(&found), Format::RegistryV1);
        read(&found, Format::RegistryV1).map(|bundle| bundle.name)
    };
    assert_eq!(bare(&[]).unwrap().as_deref(), Some("demo.v1.0.0"));
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: demo}\n";
    assert!(bare(&[("account.yaml", account)]).is_ok(), "no deployment uses it");
    let uses = csv("spec: {containers", "spec: {serviceAccountName: demo, containers");
    assert!(bare(&[("account.yaml", account), ("demo.csv.yaml", &uses)]).unwrap_err().breaks("B10"));
    let more = CRD.replace("backups", "restores").replace("Backup", "Restore");
    assert!(bare(&[("more.yaml", &more)]).unwrap_err().breaks("B8"));
    assert!(bare(&[(".hidden", "x")]).unwrap_err().breaks("B15"));
    assert!(bare(&[("sub/x.yaml", CRD)]).unwrap_err().breaks("B15"));
}
