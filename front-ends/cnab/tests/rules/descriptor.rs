//! Tests rules 24 to 42 of `docs/guides/cnab-rules.md`: bundle.json, thin bundles and thick bundles (CNAB 101 and 104).

mod thick;

use executor_cnab::action::Action;
use executor_cnab::bundle::Bundle;
use executor_cnab::credentials::{self as sets, CredentialSet};
use executor_cnab::extension::Allowed;
use executor_cnab::invocation::{Platform, choose};
use executor_cnab::outputs::settle;
use executor_cnab::parameters::resolve;
use serde_json::{Value, json};

use crate::common::*;

const AMD64: Platform = Platform { architecture: "amd64", os: "linux" };

fn parameter(destination: Value) -> Value {
    json!({ "definitions": { "d": {} }, "parameters": { "p": { "definition": "d", "destination": destination } } })
}

#[test]
fn rule_24_required_fields_are_checked() {
    bundle(json!({}));
    for field in ["schemaVersion", "name", "version", "invocationImages"] {
        let mut value = small(json!({}));
        value.as_object_mut().unwrap().remove(field);
        assert_has(&Bundle::parse(value.to_string().as_bytes()).unwrap_err(), 24, &format!("/{field}"));
    }
    let table = [
        ("name", json!("")),
        ("name", json!("a\nb")),
        ("name", json!(5)),
        ("version", json!("1.0")),
        ("version", json!("x1.0.0")),
        ("version", json!("1.0.0 ")),
        ("schemaVersion", json!("v2.0.0")),
        ("schemaVersion", json!("one")),
        ("invocationImages", json!([])),
        ("invocationImages", json!({})),
        ("keywords", json!("a")),
    ];
    for (field, value) in table {
        assert_has(&wrong(json!({ field: value })), 24, &format!("/{field}"));
    }
    for version in ["1.0.0", "0.1.2-rc.1+build.7"] {
        bundle(json!({ "version": version, "schemaVersion": "v1.0.0-WD" }));
    }
    for text in ["", "[]", "null", "{", "\u{feff}{}"] {
        assert!(Bundle::parse(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn rule_24_all_violations_are_reported_together() {
    let found = wrong(json!({
        "name": "", "version": "1", "nope": 1, "invocationImages": [{}],
        "definitions": { "d": { "type": "strin" } },
        "parameters": {
            "a": { "definition": "d", "destination": {} },
            "b": { "definition": "none", "destination": { "env": "CNAB_X" }, "extra": 1 },
        },
        "outputs": { "o": { "definition": "d", "path": "/etc/x" } },
    }));
    for (rule, path) in [
        (24, "/name"),
        (24, "/version"),
        (37, "/nope"),
        (24, "/invocationImages/0/image"),
        (24, "/definitions/d/type"),
        (29, "/parameters/a/destination"),
        (24, "/parameters/b/definition"),
        (33, "/parameters/b/destination/env"),
        (37, "/parameters/b/extra"),
        (38, "/outputs/o/path"),
    ] {
        assert_has(&found, rule, path);
    }
}

#[test]
fn rule_25_first_matching_image_is_run() {
    let image = |kind: &str, name: &str, architecture: &str| json!({ "imageType": kind, "image": name, "labels": { "architecture": architecture } });
    let bundle = bundle(json!({ "invocationImages": [
        image("qcow", "a", "amd64"), image("oci", "b", "s390x"), image("docker", "c", "amd64"), image("oci", "d", "amd64"),
    ] }));
    assert_eq!(choose(&bundle, AMD64).unwrap().image, "c");
    let other = Platform { architecture: "riscv64", os: "linux" };
    let wrong = choose(&bundle, other).unwrap_err();
    assert_has(&wrong, 25, "/invocationImages");
    assert!(wrong.to_string().contains("s390x"), "{wrong}");
}

#[test]
fn rule_26_image_type_defaults_to_oci() {
    for image in [
        json!({ "image": "a" }),
        json!({ "image": "a", "imageType": "oci" }),
        json!({ "image": "a", "imageType": "docker" }),
    ] {
        assert!(choose(&bundle(json!({ "invocationImages": [image] })), AMD64).is_ok());
    }
    let vm = bundle(json!({ "invocationImages": [{ "image": "a", "imageType": "vm" }] }));
    assert!(choose(&vm, AMD64).is_err());
    assert_eq!(parse(DEPENDENT).invocation_images[0].kind(), "oci");
}

#[test]
fn rule_27_digest_is_passed_or_absence_reported() {
    let digest = lowered(&parse(THIN), "install", json!({}), &[]).content_digest.unwrap();
    assert!(digest.starts_with("sha256:0f1e2d"), "{digest}");
    assert!(parse(THIN).warnings.is_empty(), "{:?}", parse(THIN).warnings);
    let warnings = bundle(json!({})).warnings;
    assert!(warnings[0].contains("no contentDigest"), "{warnings:?}");
    let cut = bundle(json!({ "invocationImages": [{ "image": "a", "contentDigest": "sha256:aaaa..." }] })).warnings;
    assert!(cut[0].contains("no image matches it"), "{cut:?}");
}

#[test]
fn rule_28_reserved_paths_are_refused() {
    for path in [
        "/cnab/app/outputs",
        "/cnab/app/outputs/x",
        "cnab/app/outputs/x",
        "/cnab/bundle.json",
        "/cnab/claim.json",
        "/cnab/app/run",
        "/cnab",
        "/cnab/app",
        "/cnab/bundle.json/x",
        "/a/../b",
        "/a/./b",
        "/a//b",
        "/a/",
        "/",
        "",
        "/a\nb",
    ] {
        let found = wrong(parameter(json!({ "path": path })));
        assert_has(&found, 28, "/parameters/p/destination/path");
        assert_has(&wrong(json!({ "credentials": { "c": { "path": path } } })), 28, "/credentials/c/path");
    }
    for path in ["/cnab/app/outputs2", "/etc/x", "etc/x", "/cnab/app/porter.yaml", "/..x"] {
        bundle(parameter(json!({ "path": path })));
    }
}

#[test]
fn rule_29_destination_requires_env_or_path() {
    assert_has(&wrong(parameter(json!({}))), 29, "/parameters/p/destination");
    assert_has(&wrong(json!({ "credentials": { "c": {} } })), 29, "/credentials/c");
    let none = json!({ "definitions": { "d": {} }, "parameters": { "p": { "definition": "d" } } });
    assert_has(&wrong(none), 29, "/parameters/p/destination");
    for env in ["", "A=B", "A\u{0}"] {
        assert_has(&wrong(parameter(json!({ "env": env }))), 29, "/parameters/p/destination/env");
    }
}

#[test]
fn rule_30_apply_to_limits_actions_empty_means_all() {
    let bundle = bundle(json!({
        "definitions": { "d": { "type": "string", "default": "x" } },
        "parameters": {
            "all": { "definition": "d", "destination": { "env": "ALL" } },
            "none": { "definition": "d", "applyTo": [], "destination": { "env": "NONE" } },
            "up": { "definition": "d", "applyTo": ["upgrade"], "destination": { "env": "UP" } },
        },
        "credentials": { "up": { "env": "CUP", "applyTo": ["upgrade"] }, "all": { "env": "CALL" } },
        "outputs": { "up": { "definition": "d", "applyTo": ["upgrade"], "path": "/cnab/app/outputs/up" } },
    }));
    let creds = [("up", "1"), ("all", "2")];
    let install = lowered(&bundle, "install", json!({}), &creds);
    assert!(install.env.contains_key("ALL") && install.env.contains_key("NONE") && !install.env.contains_key("UP"));
    assert!(
        install.outputs.is_empty()
            && !install.secret_env.contains_key("CUP")
            && install.secret_env.contains_key("CALL")
    );
    let upgrade = lowered(&bundle, "upgrade", json!({}), &creds);
    assert!(upgrade.env.contains_key("UP") && upgrade.secret_env.contains_key("CUP"));
    assert_eq!(upgrade.outputs["/cnab/app/outputs/up"], "up");
    assert_has(&try_resolved(&bundle, "install", json!({ "up": "x" })).unwrap_err(), 30, "/parameters/up");
}

#[test]
fn rule_31_required_credentials_are_checked_supplied_ones_injected() {
    let bundle = parse(THIN);
    let install = action(&bundle, "install");
    assert_has(&sets::check(&bundle, &install, |_| false).unwrap_err(), 31, "/credentials/key");
    sets::check(&bundle, &install, |name| name == "key").unwrap();
    let invocation = lowered(&bundle, "upgrade", json!({}), &[("key", "k"), ("token", "t")]);
    assert_eq!(file(&invocation, "/root/token"), Some("t"));
    assert_eq!(invocation.secret_env["KEY"].bytes(), b"k");
    assert!(
        !lowered(&bundle, "install", json!({}), &[("key", "k"), ("token", "t")])
            .secret_files
            .contains_key("/root/token")
    );
}

#[test]
fn rule_31_credential_sets_are_merged() {
    let yaml = b"name: mine\ncreated: 2020-01-20T06:00:00.00000-06:00\ncredentials:\n- name: a\n  source:\n    path: $HOME/.kube/config\n\
        - name: b\n  source: { value: \"1234canary\" }\n- name: c\n  source: { env: C }\n- name: d\n  source: { command: pass show d }\n";
    let set = CredentialSet::parse(yaml).unwrap();
    let kinds: Vec<_> = set.sources.values().map(sets::Source::kind).collect();
    assert_eq!((set.name.as_str(), kinds), ("mine", vec!["path", "value", "env", "command"]));
    assert!(!format!("{set:?}").contains("canary"));
    let json = CredentialSet::parse(br#"{"name":"other","credentials":[{"name":"e","source":{"env":"E"}}]}"#).unwrap();
    let again = CredentialSet::parse(
        br#"{"name":"third","credentials":[{"name":"a","source":{"path":"$HOME/.kube/config"}}]}"#,
    )
    .unwrap();
    assert_eq!(sets::merge(vec![set.clone(), json]).unwrap().len(), 5);
    assert_has(&sets::merge(vec![set, again]).unwrap_err(), 31, "/credentials/a");
    for (source, path) in [
        ("{}", "/credentials/0/source"),
        ("{ env: A, path: /b }", "/credentials/0/source"),
        ("{ vault: x }", "/credentials/0/source"),
        ("{ secret: x }", "/credentials/0/source"),
    ] {
        let text = format!("credentials:\n- name: a\n  source: {source}\n");
        assert_has(&CredentialSet::parse(text.as_bytes()).unwrap_err(), 31, path);
    }
    let twice = b"credentials: [{name: a, source: {env: A}}, {name: a, source: {env: B}}]";
    assert_has(&CredentialSet::parse(twice).unwrap_err(), 31, "/credentials/1");
    for broken in
        ["credentials: canary", "credentials:\n- name: a\n  source: [canary]\n", "\u{0}", "name: [canary\n", "&a [*a]"]
    {
        let error = CredentialSet::parse(broken.as_bytes()).unwrap_err().to_string();
        assert!(!error.contains("canary"), "{error}");
    }
}

#[test]
fn rule_32_parameters_and_credentials_have_separate_destinations() {
    let two = |destination: Value, credential: Value| {
        let mut value = parameter(destination);
        merge(&mut value, json!({ "credentials": { "c": credential } }));
        value
    };
    assert_has(&wrong(two(json!({ "env": "A" }), json!({ "env": "A" }))), 32, "/credentials/c/env");
    assert_has(&wrong(two(json!({ "path": "/a" }), json!({ "path": "a" }))), 32, "/credentials/c/path");
    assert_has(&wrong(two(json!({ "path": "/a" }), json!({ "path": "/a/b" }))), 32, "/credentials/c/path");
    bundle(two(json!({ "env": "A" }), json!({ "env": "B", "path": "/a" })));
    // Two parameters or two credentials may share a destination if no action uses both.
    let pair = |one: &str, other: &str| {
        json!({ "credentials": {
        "a": { "env": "A", "applyTo": [one] }, "b": { "env": "A", "applyTo": [other] },
    } })
    };
    assert_has(&wrong(pair("install", "install")), 32, "/credentials/b/env");
    bundle(pair("install", "upgrade"));
}

#[test]
fn rule_33_cnab_variables_are_reserved() {
    assert_has(&wrong(parameter(json!({ "env": "CNAB_ACTION" }))), 33, "/parameters/p/destination/env");
    assert_has(&wrong(json!({ "credentials": { "c": { "env": "CNAB_X" } } })), 33, "/credentials/c/env");
    bundle(parameter(json!({ "env": "CNABX" })));
}

#[test]
fn rule_34_stateless_action_receives_only_supplied_credentials() {
    let bundle = parse(THIN);
    let help = action(&bundle, "org.example.help");
    assert!(help.is_stateless() && !help.modifies());
    sets::check(&bundle, &help, |_| false).unwrap();
    assert_eq!(lowered(&bundle, "org.example.help", json!({}), &[("key", "k")]).secret_env["KEY"].bytes(), b"k");
    // If nothing was ever installed, a stateless action does not create a revision.
    let values = resolved(&bundle, "org.example.help", json!({}));
    assert_eq!(claim(&bundle, "org.example.help", &values, None).revision, "");
}

#[test]
fn rule_35_custom_actions_exclude_built_in_names() {
    bundle(json!({ "actions": { "a": {}, "io.cnab.dry-run": { "stateless": true } } }));
    for name in ["install", "upgrade", "uninstall"] {
        assert_has(&wrong(json!({ "actions": { name: {} } })), 35, &format!("/actions/{name}"));
    }
}

#[test]
fn rule_36_required_extensions_are_checked() {
    let unknown = bundle(
        json!({ "requiredExtensions": ["org.example.a", "io.cnab.dependencies"], "custom": { "org.example.a": 1 } }),
    );
    let found = check_extensions(&unknown, Allowed::default()).unwrap_err();
    assert_has(&found, 36, "/requiredExtensions/0");
    assert!(found.to_string().contains("org.example.a") && found.iter().count() == 1, "{found}");
    check_extensions(&bundle(json!({ "custom": { "org.example.a": 1 } })), Allowed::default()).unwrap();
    check_extensions(&parse(DEPENDENT), Allowed::default()).unwrap();
    let draft =
        bundle(json!({ "requiredExtensions": ["io.cnab.dependencies"], "custom": { "io.cnab.dependencies": [] } }));
    assert_has(&check_extensions(&draft, Allowed::default()).unwrap_err(), 36, "/requiredExtensions/0");
}

#[test]
fn rule_37_unknown_fields_are_refused_custom_is_kept() {
    assert_has(&wrong(json!({ "paramters": {} })), 37, "/paramters");
    assert_has(
        &wrong(json!({ "invocationImages": [{ "image": "a", "platform": "x" }] })),
        37,
        "/invocationImages/0/platform",
    );
    assert_has(&wrong(json!({ "actions": { "a.b": { "modify": true } } })), 37, "/actions/a.b/modify");
    assert_has(&wrong(json!({ "maintainers": [{ "name": "x", "irc": "y" }] })), 37, "/maintainers/0/irc");
    let bundle = parse(THIN);
    assert_eq!(bundle.custom["org.example.icon"], json!({ "any": ["thing", 1, null] }));
    assert_eq!(bundle.value()["custom"]["org.example.icon"]["any"][2], Value::Null);
}

#[test]
fn rule_38_outputs_are_separate_below_their_directory() {
    let outputs = |paths: &[&str]| {
        let outputs: serde_json::Map<String, Value> = paths
            .iter()
            .enumerate()
            .map(|(i, path)| (format!("o{i}"), json!({ "definition": "d", "path": path })))
            .collect();
        json!({ "definitions": { "d": {} }, "outputs": outputs })
    };
    for path in [
        "/cnab/app/outputs",
        "/cnab/app/outputs/",
        "/cnab/app/outputs/../x",
        "/cnab/app/outputsx/y",
        "x",
        "",
        "/cnab/app/outputs//x",
    ] {
        assert_has(&wrong(outputs(&[path])), 38, "/outputs/o0/path");
    }
    let a = "/cnab/app/outputs/a";
    assert_has(&wrong(outputs(&[a, a])), 38, "/outputs/o1/path");
    assert_has(&wrong(outputs(&[a, "/cnab/app/outputs/a/b"])), 38, "/outputs/o0/path");
    bundle(outputs(&[a, "/cnab/app/outputs/b/c"]));
    let name = json!({ "definitions": { "d": {} }, "outputs": { "../x": { "definition": "d", "path": a } } });
    assert_has(&wrong(name), 38, "/outputs/..~1x");
}

#[test]
fn rule_39_missing_output_uses_default_or_fails() {
    let bundle = parse(THIN);
    let install = action(&bundle, "install");
    let settled = settle(&bundle, &install, true, [].into());
    assert_eq!((settled.outputs["height"].bytes.as_slice(), settled.outputs["height"].defaulted), (&b"10"[..], true));
    assert_has(&settled.wrong, 39, "/outputs/cert");
    let upgrade = settle(&bundle, &action(&bundle, "upgrade"), true, [("height".into(), b"61\n".to_vec())].into());
    assert_has(&upgrade.wrong, 39, "/outputs/height");
    assert_eq!(upgrade.wrong.iter().count(), 1, "cert does not apply: {}", upgrade.wrong);
    let failed = settle(&bundle, &install, false, [("height".into(), b"5".to_vec())].into());
    assert!(failed.wrong.is_empty() && failed.outputs.len() == 1, "the outputs of a failed action are kept");
}

#[test]
fn rule_39_base64_is_checked_but_not_decoded() {
    let bundle = parse(THIN);
    let cert = |text: &str| settle(&bundle, &action(&bundle, "install"), true, [("cert".into(), text.into())].into());
    let good = cert("Y2FuYXJ5\n");
    assert_eq!((good.outputs["cert"].bytes.as_slice(), good.wrong.is_empty()), (&b"Y2FuYXJ5\n"[..], true));
    let bad = cert("canary!").wrong;
    assert_has(&bad, 39, "/outputs/cert");
    assert!(!bad.to_string().contains("canary"), "{bad}");
}

#[test]
fn rule_13_encodings_are_checked_at_every_depth() {
    let of = |definition: Value| {
        bundle(json!({
            "definitions": { "d": definition },
            "parameters": { "p": { "definition": "d", "destination": { "env": "P" } } },
        }))
    };
    let nested = of(json!({
        "properties": { "file": { "type": "string", "contentEncoding": "base64", "contentMediaType": "application/json" } },
        "items": { "allOf": [{ "contentEncoding": "quoted-printable" }] },
    }));
    for (value, path) in [
        (json!({ "file": "not base64!" }), "/parameters/p/file"),
        (json!(["a", "=zz"]), "/parameters/p/1"),
        (json!(["\u{e4}"]), "/parameters/p/0"),
    ] {
        let wrong = try_resolved(&nested, "install", json!({ "p": value })).unwrap_err();
        assert_has(&wrong, 13, path);
        assert!(!wrong.to_string().contains("not base64!"), "{wrong}");
    }
    resolved(&nested, "install", json!({ "p": { "file": "Y2Fu\nYXJ5\n" } }));
    resolved(&nested, "install", json!({ "p": ["caf=C3=A9 =\nx"] }));
    resolved(&of(json!({ "contentEncoding": "8bit" })), "install", json!({ "p": "\u{e4}" }));
    let at = "/definitions/d";
    for (definition, path) in [
        (json!({ "contentEncoding": "base65" }), format!("{at}/contentEncoding")),
        (json!({ "anyOf": [{ "items": { "contentEncoding": "" } }] }), format!("{at}/anyOf/0/items/contentEncoding")),
        (json!({ "properties": { "a": { "writeOnly": 1 } } }), format!("{at}/properties/a/writeOnly")),
    ] {
        assert_has(&wrong(json!({ "definitions": { "d": definition } })), 24, &path);
    }
}

/// Rule 15: if a default does not match its definition, it is used with a warning.
#[test]
fn rule_15_mismatching_default_is_used_with_warning() {
    let bundle = bundle(json!({
        "definitions": { "d": { "type": "integer", "maximum": 9, "default": 10 } },
        "parameters": { "p": { "definition": "d", "destination": { "env": "P" } } },
    }));
    let values = resolved(&bundle, "install", json!({}));
    assert_eq!(values.values["p"], 10);
    assert!(values.warnings.iter().any(|one| one.starts_with("p: the default does not match")), "{values:?}");
    assert!(resolved(&bundle, "install", json!({ "p": 9 })).warnings.is_empty());
}

/// Rule 40: if an object is secret, violations do not contain its property names.
#[test]
fn rule_40_names_in_secret_objects_are_not_reported() {
    let bundle = bundle(json!({
        "definitions": { "d": {
            "writeOnly": true, "properties": { "known": { "type": "string" } }, "additionalProperties": false,
            "propertyNames": { "maxLength": 12 },
        } },
        "parameters": { "p": { "definition": "d", "destination": { "env": "P" } } },
    }));
    let wrong = try_resolved(&bundle, "install", json!({ "p": { "canary": 1, "canary-of-a-name": 2, "known": 3 } }))
        .unwrap_err();
    assert!(wrong.iter().count() >= 2 && wrong.iter().all(|one| one.path == "/parameters/p"), "{wrong}");
    assert!(!wrong.to_string().contains("canary"), "{wrong}");
}

#[test]
fn rule_40_write_only_values_stay_out_of_claims() {
    let bundle = parse(THIN);
    let values = resolved(&bundle, "install", json!({ "pass": "canary" }));
    let claim = claim(&bundle, "install", &values, None);
    assert!(!serde_json::to_string(&claim).unwrap().contains("canary"));
    assert!(!format!("{values:?} {claim:?}").contains("canary"));
    assert_eq!(claim.custom["executor"]["supplied"], json!([]));
    // The claim in the container contains the secret values.
    assert!(claim.mounted(&values).text().unwrap().contains("canary"));
    assert!(bundle.is_write_only("pass") && bundle.is_output_write_only("cert") && !bundle.is_write_only("period"));
}

#[test]
fn rule_41_read_only_is_fixed_with_warning() {
    let bundle = bundle(json!({
        "definitions": { "d": { "type": "string", "readOnly": true, "default": "first" } },
        "parameters": { "p": { "definition": "d", "destination": { "env": "P" } } },
    }));
    let first = claim(&bundle, "install", &resolved(&bundle, "install", json!({})), None);
    let again = |value: &str| {
        resolve(&bundle, &action(&bundle, "upgrade"), &given(json!({ "p": value })), &first.earlier()).unwrap()
    };
    let changed = again("second");
    assert_eq!(changed.values["p"], "first");
    assert!(changed.warnings[0].contains("readOnly"), "{:?}", changed.warnings);
    assert!(again("first").warnings.is_empty());
    // `immutable` has no effect.
    assert!(Action::new(&bundle.actions, "install").is_ok());
}
