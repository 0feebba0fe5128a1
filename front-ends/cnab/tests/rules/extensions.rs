//! Tests rules 36, 49 and 50 of `docs/guides/cnab-rules.md`: extensions.

use executor_cnab::bundle::Bundle;
use executor_cnab::extension::Allowed;
use executor_cnab::parameter_sources::{ParameterSources, Source};
use executor_cnab::parameters::{Earlier, resolve};
use executor_cnab::sourced::{Sourced, value};
use serde_json::{Value, json};

use crate::common::*;

#[test]
fn rule_36_repeated_extension_is_refused() {
    let wrong = wrong(json!({ "requiredExtensions": ["io.cnab.docker", "io.cnab.docker"] }));
    assert_has(&wrong, 24, "/requiredExtensions");
}

#[test]
fn rule_50_docker_extension_requires_permission() {
    let (no, yes) = (Allowed::default(), Allowed { docker: true });
    for custom in [json!({}), json!({ "io.cnab.docker": null }), json!({ "io.cnab.docker": { "privileged": false } })] {
        let bundle = bundle(json!({ "requiredExtensions": ["io.cnab.docker"], "custom": custom }));
        assert!(bundle.warnings.iter().all(|warning| !warning.contains("docker")), "{:?}", bundle.warnings);
        let wrong = check_extensions(&bundle, no).unwrap_err();
        assert_has(&wrong, 50, "/requiredExtensions/0");
        assert!(wrong.to_string().contains("--allow-docker-host-access"), "{wrong}");
        check_extensions(&bundle, yes).unwrap();
    }
    // If a bundle does not require the extension, it runs without the Docker daemon.
    check_extensions(&bundle(json!({ "custom": { "io.cnab.docker": {} } })), no).unwrap();
    for value in [json!(1), json!({ "privileged": "yes" }), json!([])] {
        assert_has(&wrong(json!({ "custom": { "io.cnab.docker": value } })), 50, "/custom/io.cnab.docker");
    }
}

fn with_sources(sources: Value) -> Value {
    json!({
        "definitions": {
            "text": { "type": "string" }, "number": { "type": "integer", "maximum": 9, "default": 1 },
            "file": { "type": "string", "contentEncoding": "base64" }, "dark": { "type": "string", "writeOnly": true },
        },
        "parameters": {
            "state": { "definition": "text", "applyTo": ["upgrade", "uninstall"], "required": true, "destination": { "env": "S" } },
            "count": { "definition": "number", "destination": { "env": "N" } },
            "blob": { "definition": "file", "destination": { "path": "/blob" } },
        },
        "outputs": {
            "state": { "definition": "text", "path": "/cnab/app/outputs/state" },
            "encoded": { "definition": "file", "path": "/cnab/app/outputs/encoded" },
            "key": { "definition": "dark", "path": "/cnab/app/outputs/key" },
        },
        "requiredExtensions": ["io.cnab.parameter-sources"],
        "custom": { "io.cnab.parameter-sources": sources },
    })
}

fn output(name: &str) -> Value {
    json!({ "priority": ["output"], "sources": { "output": { "name": name } } })
}

#[test]
fn rule_49_bundle_determines_source_order() {
    let both = json!({ "output": { "name": "o" }, "dependencies.output": { "dependency": "db", "name": "d" }, "org.example.x": 1 });
    let (own, other) =
        (Source::Output("o".into()), Source::DependencyOutput { dependency: "db".into(), output: "d".into() });
    for (written, expected) in [
        (json!({ "priority": ["output", "dependencies.output"], "sources": both }), vec![own.clone(), other.clone()]),
        (json!({ "priority": ["dependencies.output", "output"], "sources": both }), vec![other.clone(), own.clone()]),
        (json!({ "priority": ["dependencies.output"], "sources": both }), vec![other.clone()]),
        (json!({ "priority": ["org.example.x", "output", "output"], "sources": both }), vec![own.clone()]),
        (json!({ "sources": both }), vec![own, other]),
        (json!({ "priority": ["output"] }), vec![]),
    ] {
        let custom = json!({ "io.cnab.parameter-sources": { "p": written } });
        let sources = ParameterSources::from_custom(custom.as_object().unwrap()).unwrap();
        assert_eq!(sources.for_parameter("p"), expected, "{custom}");
    }
    check_extensions(&bundle(with_sources(json!({ "state": output("state") }))), Allowed::default()).unwrap();
    check_extensions(&bundle(with_sources(Value::Null)), Allowed::default()).unwrap();
    let at = "/custom/io.cnab.parameter-sources";
    for (value, path) in [
        (json!([]), at.to_owned()),
        (json!({ "state": 1 }), format!("{at}/state")),
        (json!({ "state": { "sources": { "output": {} } } }), format!("{at}/state/sources/output")),
    ] {
        assert_has(&wrong(with_sources(value)), 49, &path);
    }
    let odd = bundle(with_sources(json!({ "state": output("none"), "unknown": output("state") }))).warnings;
    assert!(
        odd.iter().any(|it| it.contains("no output")) && odd.iter().any(|it| it.contains("no such parameter")),
        "{odd:?}"
    );
}

#[test]
fn rule_49_source_supplies_missing_parameter() {
    let bundle =
        bundle(with_sources(json!({ "state": output("state"), "count": output("state"), "blob": output("state") })));
    let of = |parameter: &str, output: &str, content: &[u8]| value(&bundle, parameter, bundle.value(), output, content);
    let earlier = |pairs: Vec<(&str, Sourced)>| Earlier {
        sourced: pairs.into_iter().map(|(name, it)| (name.to_owned(), it)).collect(),
        ..Earlier::default()
    };
    let run = |name: &str, values: Value, earlier: &Earlier| {
        resolve(&bundle, &action(&bundle, name), &given(values), earlier)
    };
    let there =
        earlier(vec![("state", of("state", "state", b"v1").unwrap()), ("count", of("count", "state", b"7").unwrap())]);
    let values = run("upgrade", json!({}), &there).unwrap();
    assert_eq!((&values.values["state"], &values.values["count"]), (&json!("v1"), &json!(7)), "ahead of the default");
    assert!(values.supplied.is_empty(), "a sourced value is not recorded as supplied");
    assert_eq!(run("upgrade", json!({ "state": "mine" }), &there).unwrap().values["state"], "mine");
    assert!(!run("install", json!({}), &there).unwrap().values.contains_key("state"), "it does not apply");
    assert_has(&run("upgrade", json!({}), &Earlier::default()).unwrap_err(), 14, "/parameters/state");
    let awaited = Earlier { awaited: ["state".to_owned()].into(), ..Earlier::default() };
    run("upgrade", json!({}), &awaited).unwrap();
    let large =
        earlier(vec![("state", of("state", "state", b"").unwrap()), ("count", of("count", "state", b"77").unwrap())]);
    assert_has(&run("upgrade", json!({}), &large).unwrap_err(), 49, "/parameters/count");
    assert_has(&of("count", "state", b"canary").unwrap_err(), 13, "/parameters/count");
    assert_has(&of("state", "state", b"\xff").unwrap_err(), 49, "/parameters/state");
    // Content is encoded in base64 for a base64 parameter. Content that is already in base64 is unchanged.
    assert_eq!(of("blob", "state", b"\xff\x00").unwrap().value, "/wA=");
    assert_eq!(of("blob", "encoded", b"/wA=\n").unwrap().value, "/wA=\n");
}

/// Rule 40: if an output is secret, a parameter value from this output is secret.
#[test]
fn rule_49_secret_output_makes_parameter_secret() {
    let bundle: Bundle = bundle(with_sources(json!({ "count": output("state") })));
    let secret = value(&bundle, "state", bundle.value(), "key", b"canary").unwrap();
    let earlier = Earlier { sourced: [("state".to_owned(), secret)].into(), ..Earlier::default() };
    let values = resolve(&bundle, &action(&bundle, "upgrade"), &given(json!({})), &earlier).unwrap();
    let claim = claim(&bundle, "upgrade", &values, None);
    assert!(!serde_json::to_string(&claim).unwrap().contains("canary"));
    assert!(claim.mounted(&values).text().unwrap().contains("canary"));
    let named = parse(&small(with_sources(json!({ "state": output("key") }))).to_string());
    assert!(named.is_write_only("state") && !named.is_write_only("count"));
}
