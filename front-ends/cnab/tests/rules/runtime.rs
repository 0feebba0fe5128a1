//! Tests rules 1 to 23 of `docs/guides/cnab-rules.md`: the bundle runtime (CNAB 103). Tests that need a running
//! container are in `integration/tests/front_ends/cnab`, with the same rule numbers.

use crate::common::*;
use executor_cnab::action::Action;
use executor_cnab::claim::{Claim, ClaimResult, Status};
use executor_cnab::credentials::CredentialSet;
use executor_cnab::invocation::{self, Lowering, Platform};
use executor_cnab::parameters::resolve;
use executor_cnab::relocation::Relocation;
use executor_cnab::{credentials as sets, names};
use serde_json::{Value, json};

/// Returns a bundle with one parameter of every relevant kind.
fn typed() -> executor_cnab::bundle::Bundle {
    let place = |name: &str| json!({ "env": name.to_uppercase(), "path": format!("/etc/x/{name}") });
    let parameter = |name: &str| (name.to_owned(), json!({ "definition": name, "destination": place(name) }));
    let names = ["boolean", "integer", "number", "object", "array", "string", "null", "any", "defaulted"];
    let mut definitions: serde_json::Map<String, Value> =
        names[..7].iter().map(|name| ((*name).to_owned(), json!({ "type": name }))).collect();
    definitions.insert("any".into(), json!({}));
    definitions.insert("defaulted".into(), json!({ "type": "object", "default": { "a": [1, true, null] } }));
    bundle(json!({
        "definitions": definitions,
        "parameters": names.iter().map(|name| parameter(name)).collect::<serde_json::Map<_, _>>(),
    }))
}

#[test]
fn rule_01_run_tool_is_run_from_fixed_path() {
    assert_eq!(lowered(&parse(THIN), "install", json!({}), &[]).program, "/cnab/app/run");
}

#[test]
fn rule_02_any_action_is_allowed_after_failure() {
    let bundle = parse(THIN);
    let values = resolved(&bundle, "install", json!({}));
    let first = claim(&bundle, "install", &values, None);
    let failed = ClaimResult::new(&first, None, Status::Failed, at(1)).unwrap();
    assert!(failed.status.is_final());
    for name in ["install", "upgrade", "uninstall", "org.example.status"] {
        let next = claim(&bundle, name, &resolved(&bundle, name, json!({})), Some(&first));
        assert!(next.id > first.id, "{name}");
    }
}

#[test]
fn rule_03_bundle_is_mounted_in_original_bytes() {
    let odd = THIN.replace("\"lamp\", \"sea\"", "\"lamp\"  ,\n\t\"sea\"");
    let invocation = lowered(&parse(&odd), "install", json!({}), &[]);
    assert_eq!(invocation.files["/cnab/bundle.json"], odd.as_bytes());
}

#[test]
fn rule_04_variables_name_installation_bundle_action() {
    let env = lowered(&parse(THIN), "org.example.paint", json!({}), &[]).env;
    let expected = [
        ("CNAB_INSTALLATION_NAME", "my app"),
        ("CNAB_BUNDLE_NAME", "lighthouse"),
        ("CNAB_ACTION", "org.example.paint"),
    ];
    for (name, value) in expected {
        assert_eq!(env[name], value);
    }
}

#[test]
fn rule_05_names_of_installations_are_graphic() {
    for good in ["a", "my-app.1", "größe 20€", "名前", "a/b", "👍", "e\u{301}"] {
        names::installation(good).unwrap();
    }
    for bad in ["", "a\nb", "a\tb", "\u{0}", "a\u{200b}b", "\u{2028}", "\u{e000}", "\u{fff0}", "\u{202e}x"] {
        assert_has(&names::installation(bad).unwrap_err(), 5, "");
    }
    let long = names::installation(&"x".repeat(201)).unwrap_err().to_string();
    assert!(long.contains("201") && long.contains("200"), "{long}");
}

#[test]
fn rule_06_action_must_be_built_in_or_declared() {
    let bundle = parse(THIN);
    for name in ["install", "upgrade", "uninstall", "org.example.status"] {
        assert_eq!(action(&bundle, name).name(), name);
    }
    let wrong = Action::new(&bundle.actions, "status").unwrap_err();
    assert_has(&wrong, 6, "/actions");
    assert!(wrong.to_string().contains("org.example.status"), "{wrong}");
}

#[test]
fn rule_07_revision_is_passed_as_variable() {
    for name in ["install", "upgrade", "uninstall"] {
        let invocation = lowered(&parse(THIN), name, json!({}), &[]);
        let claim: Value = serde_json::from_str(file(&invocation, "/cnab/claim.json").unwrap()).unwrap();
        assert_eq!(invocation.env["CNAB_REVISION"], claim["revision"].as_str().unwrap());
        assert!(executor_cnab::id::is_ulid(&invocation.env["CNAB_REVISION"]));
    }
}

#[test]
fn rule_08_only_modifying_actions_create_revisions() {
    let bundle = parse(THIN);
    let mut last: Option<Claim> = None;
    let mut revisions = Vec::new();
    let actions =
        ["install", "upgrade", "org.example.status", "upgrade", "org.example.help", "uninstall", "org.example.paint"];
    for name in actions {
        let next = claim(&bundle, name, &resolved(&bundle, name, json!({})), last.as_ref());
        assert!(last.as_ref().is_none_or(|last| last.id < next.id && last.revision <= next.revision));
        revisions.push(next.revision.clone());
        last = Some(next);
    }
    assert_eq!(revisions[1], revisions[2], "a status action creates no revision");
    assert_eq!(revisions[3], revisions[4], "a help action creates no revision");
    revisions.dedup();
    assert_eq!(revisions.len(), 5, "install, two upgrades, uninstall, paint");
}

#[test]
fn rule_09_built_in_actions_need_no_declaration() {
    let bundle = bundle(json!({}));
    assert!(bundle.actions.is_empty());
    for name in ["install", "upgrade", "uninstall"] {
        assert!(action(&bundle, name).modifies());
        assert_eq!(lowered(&bundle, name, json!({}), &[]).env["CNAB_ACTION"], name);
    }
}

#[test]
fn rule_10_bundle_versions_are_not_compared() {
    let newer = bundle(json!({ "version": "2.0.0" }));
    let older = bundle(json!({ "version": "1.0.0", "name": "other" }));
    let first = claim(&newer, "install", &resolved(&newer, "install", json!({})), None);
    let next = claim(&older, "upgrade", &resolved(&older, "upgrade", json!({})), Some(&first));
    assert_eq!(next.bundle["version"], "1.0.0");
}

#[test]
fn rule_11_every_file_is_in_invocation() {
    let invocation = lowered(&parse(THIN), "install", json!({ "pass": "p" }), &[("key", "k")]);
    for path in ["/cnab/bundle.json", "/cnab/claim.json", "/etc/lamp/colour", "/etc/lamp/pass", "/etc/lamp/key"] {
        assert!(file(&invocation, path).is_some(), "{path}");
    }
}

#[test]
fn rule_12_secret_values_are_passed_as_secrets() {
    let invocation = lowered(&parse(THIN), "install", json!({ "pass": "canary-p" }), &[("key", "canary-k")]);
    let secret: Vec<&String> = invocation.secret_files.keys().collect();
    assert_eq!(secret, ["/cnab/claim.json", "/etc/lamp/key", "/etc/lamp/pass"]);
    assert_eq!(invocation.secret_env.keys().collect::<Vec<_>>(), ["KEY", "PASS"]);
    let plain = format!(
        "{:?} {:?}",
        invocation.env,
        invocation.files.values().map(|f| String::from_utf8_lossy(f)).collect::<Vec<_>>()
    );
    assert!(!plain.contains("canary"), "{plain}");
    assert!(!format!("{invocation:?}").contains("canary"));
}

#[test]
fn rule_13_mismatching_value_is_refused() {
    let bundle = parse(THIN);
    let values = json!({ "period": 61, "colour": "canary-blue", "nope": 1 });
    let wrong = try_resolved(&bundle, "install", values).unwrap_err();
    for path in ["/parameters/period", "/parameters/colour", "/parameters/nope"] {
        assert_has(&wrong, 13, path);
    }
    assert!(!wrong.to_string().contains("canary"), "{wrong}");
}

#[test]
fn rule_14_default_satisfies_required_parameter() {
    let bundle = bundle(json!({
        "definitions": { "plain": { "type": "string" }, "with": { "type": "string", "default": "d" } },
        "parameters": {
            "a": { "definition": "plain", "required": true, "destination": { "env": "A" } },
            "b": { "definition": "with", "required": true, "destination": { "env": "B" } },
            "c": { "definition": "plain", "required": true, "applyTo": ["upgrade"], "destination": { "env": "C" } },
        },
    }));
    let wrong = try_resolved(&bundle, "install", json!({})).unwrap_err();
    assert_has(&wrong, 14, "/parameters/a");
    assert_eq!(wrong.iter().count(), 1, "{wrong}");
    assert_eq!(resolved(&bundle, "install", json!({ "a": "" })).values["b"], "d");
}

#[test]
fn rule_15_default_is_used_when_unset() {
    let bundle = parse(THIN);
    assert_eq!(lowered(&bundle, "install", json!({}), &[]).env["PERIOD"], "10");
    assert_eq!(lowered(&bundle, "install", json!({ "period": 11 }), &[]).env["PERIOD"], "11");
}

#[test]
fn rule_16_unset_without_default_is_empty() {
    let invocation = lowered(&typed(), "install", json!({}), &[]);
    for name in ["boolean", "integer", "number", "object", "array", "string", "null", "any"] {
        assert_eq!(invocation.env[&name.to_uppercase()], "", "{name}");
        assert_eq!(file(&invocation, &format!("/etc/x/{name}")), Some(""), "{name}");
    }
    assert_eq!(invocation.env["DEFAULTED"], r#"{"a":[1,true,null]}"#);
}

#[test]
fn rule_17_strings_are_verbatim_others_json() {
    let values = json!({
        "boolean": true, "integer": -5, "number": 2.5, "object": { "foo": 23 }, "array": ["a", {}], "null": null,
        "string": "as \"it\" is\n", "any": "true",
    });
    let env = lowered(&typed(), "install", values, &[]).env;
    let expected = [
        ("BOOLEAN", "true"),
        ("INTEGER", "-5"),
        ("NUMBER", "2.5"),
        ("OBJECT", r#"{"foo":23}"#),
        ("ARRAY", r#"["a",{}]"#),
        ("NULL", "null"),
        ("STRING", "as \"it\" is\n"),
        ("ANY", "true"),
    ];
    for (name, value) in expected {
        assert_eq!(env[name], value, "{name}");
    }
}

#[test]
fn rule_17_argument_text_converts_to_declared_type() {
    let bundle = typed();
    let read = |name: &str, text: &str| bundle.definitions[name].read("/x", text).ok();
    let table = [
        ("boolean", "true", Some(json!(true))),
        ("boolean", "True", Some(json!(true))),
        ("boolean", "yes", None),
        ("integer", "12", Some(json!(12))),
        ("integer", "12.5", None),
        ("integer", "99999999999999999999999", None),
        ("number", "12", Some(json!(12))),
        ("number", "1.5", Some(json!(1.5))),
        ("string", "12", Some(json!("12"))),
        ("string", "null", Some(json!("null"))),
        ("object", r#"{"a":1}"#, Some(json!({ "a": 1 }))),
        ("object", "[1]", None),
        ("array", "[1]", Some(json!([1]))),
        ("null", "null", Some(Value::Null)),
        ("any", "12", Some(json!(12))),
        ("any", "x y", Some(json!("x y"))),
    ];
    for (name, text, expected) in table {
        assert_eq!(read(name, text), expected, "{name} {text}");
    }
    let wrong = bundle.definitions["integer"].read("/x", "canary").unwrap_err();
    assert!(!wrong.to_string().contains("canary"), "{wrong}");
}

#[test]
fn rule_18_parameter_can_have_variable_and_file() {
    let both = lowered(&typed(), "install", json!({ "string": "" }), &[]);
    assert_eq!((both.env["STRING"].as_str(), file(&both, "/etc/x/string")), ("", Some("")));
}

#[test]
fn rule_19_file_contains_the_value() {
    let both = lowered(&typed(), "install", json!({ "string": "a\nb\n", "object": { "a": 1 } }), &[]);
    assert_eq!((file(&both, "/etc/x/string"), file(&both, "/etc/x/object")), (Some("a\nb\n"), Some(r#"{"a":1}"#)));
}

#[test]
fn rule_20_relative_paths_start_at_root() {
    let invocation = lowered(&parse(THICK), "install", json!({}), &[]);
    assert_eq!(file(&invocation, "/etc/period"), Some("10"));
}

#[test]
fn rule_21_result_has_supplied_values_and_defaults() {
    let bundle = typed();
    let values = resolved(&bundle, "install", json!({ "string": "s" })).values;
    assert_eq!(values.keys().collect::<Vec<_>>(), ["defaulted", "string"]);
    // All violations are reported together.
    let wrong = try_resolved(&bundle, "install", json!({ "string": 1, "integer": "x", "array": {} })).unwrap_err();
    assert_eq!(wrong.iter().count(), 3, "{wrong}");
}

#[test]
fn rule_22_credentials_are_copies() {
    let set = CredentialSet::parse(b"credentials:\n- name: key\n  source: { value: k }\n").unwrap();
    let bundle = parse(THIN);
    let merged = sets::merge(vec![set]).unwrap();
    let wanted = sets::wanted(&bundle, &action(&bundle, "install"), &merged);
    assert_eq!(wanted.len(), 1);
    let invocation = lowered(&bundle, "install", json!({}), &[("key", "k")]);
    assert_eq!(invocation.secret_files["/etc/lamp/key"].bytes(), b"k");
}

#[test]
fn rule_23_relocation_map_is_complete_and_mounted() {
    let bundle = parse(THIN);
    let map = json!({
        "registry.example.org/lighthouse:0.4.1": "mirror.example.org/lighthouse:0.4.1",
        "registry.example.org/lamp:2": "mirror.example.org/lamp:2",
    });
    let text = serde_json::to_string_pretty(&map).unwrap();
    let relocation = Relocation::parse(text.as_bytes(), &bundle).unwrap();
    let values = resolved(&bundle, "install", json!({}));
    let claim = claim(&bundle, "install", &values, None);
    let invocation = invocation::lower(&Lowering {
        bundle: &bundle,
        action: &action(&bundle, "install"),
        claim: &claim,
        values: &values,
        credentials: &credentials(&[]),
        relocation: Some(&relocation),
        omit_unset_files: true,
        platform: Platform { architecture: "amd64", os: "linux" },
    })
    .unwrap();
    assert_eq!(invocation.image, "mirror.example.org/lighthouse:0.4.1");
    assert_eq!(file(&invocation, "/cnab/app/relocation-mapping.json"), Some(&*text));
    assert_eq!(file(&invocation, "/etc/lamp/colour"), None, "unset files are omitted on request");
    assert_eq!(file(&lowered(&bundle, "install", json!({}), &[]), "/cnab/app/relocation-mapping.json"), None);
    let missing = Relocation::parse(br#"{"registry.example.org/lamp:2": "x"}"#, &bundle).unwrap_err();
    assert_has(&missing, 23, "/registry.example.org~1lighthouse:0.4.1");
}

#[test]
fn rule_23_equivalent_references_need_equivalent_targets() {
    let bundle =
        bundle(json!({ "images": { "a": { "image": "ubuntu:1" }, "b": { "image": "docker.io/library/ubuntu:1" } } }));
    let map =
        |b: &str| json!({ "example/x:1": "m/x", "ubuntu:1": "m.io/u", "docker.io/library/ubuntu:1": b }).to_string();
    Relocation::parse(map("m.io/u").as_bytes(), &bundle).unwrap();
    let wrong = Relocation::parse(map("n.io/u").as_bytes(), &bundle).unwrap_err();
    assert_has(&wrong, 23, "/ubuntu:1");
}

/// Later actions keep a supplied value, but not a default.
#[test]
fn later_actions_keep_supplied_values_not_defaults() {
    let bundle = parse(THIN);
    let values = resolved(&bundle, "install", json!({ "colour": "red", "pass": "canary" }));
    let first = claim(&bundle, "install", &values, None);
    let newer = parse(&THIN.replace("\"default\": 10", "\"default\": 20"));
    let next = resolve(&newer, &action(&newer, "upgrade"), &given(json!({})), &first.earlier()).unwrap();
    assert_eq!(next.values["colour"], "red");
    assert_eq!(next.values["period"], 20);
    assert!(!next.values.contains_key("pass"), "writeOnly values are not kept");
    let changed = resolve(&newer, &action(&newer, "upgrade"), &given(json!({ "colour": "green" })), &first.earlier());
    assert_eq!(changed.unwrap().values["colour"], "green");
}
