//! Tests that complete documents are accepted, and that changes to these documents violate the expected rule.
//!
//! The documents are in `tests/bundles`. If EXECUTOR_CNAB_SPEC names a directory with the specification's `examples`,
//! the examples are also tested.

use std::path::PathBuf;

use executor_cnab::bundle::Bundle;
use executor_cnab::claim::{Claim, ClaimResult};
use executor_cnab::relocation::Relocation;
use executor_cnab::violation::Violations;
use serde_json::{Value, json};

use crate::common::*;

/// Returns the specification's examples with these names, if available.
fn specification(names: &[&str]) -> Vec<(String, Value)> {
    let Some(root) = std::env::var_os("EXECUTOR_CNAB_SPEC") else { return Vec::new() };
    let read = |name: &&str| {
        let path = PathBuf::from(&root).join("examples").join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        ((*name).to_owned(), serde_json::from_str(&text).unwrap())
    };
    names.iter().map(read).collect()
}

fn own(text: &str) -> (String, Value) {
    ("our own".into(), serde_json::from_str(text).unwrap())
}

/// A change: the rule that the change breaks, the path of the violation, and the function.
type Mutation = (u8, String, Box<dyn Fn(&mut Value)>);

fn set(rule: u8, at: &str, to: Value) -> Mutation {
    let path = at.to_owned();
    (rule, at.to_owned(), Box::new(move |value| put(value, &path, to.clone())))
}

fn remove(rule: u8, at: &str) -> Mutation {
    let (parent, name) = at.rsplit_once('/').unwrap();
    let (parent, name) = (parent.to_owned(), name.replace("~1", "/"));
    let change = move |value: &mut Value| {
        value.pointer_mut(&parent).unwrap().as_object_mut().unwrap().remove(&name).unwrap();
    };
    (rule, at.to_owned(), Box::new(change))
}

fn put(value: &mut Value, at: &str, to: Value) {
    let (parent, name) = at.rsplit_once('/').unwrap_or(("", ""));
    if at.is_empty() {
        *value = to;
        return;
    }
    match value.pointer_mut(parent).unwrap() {
        Value::Object(object) => drop(object.insert(name.replace("~1", "/"), to)),
        Value::Array(array) => array[name.parse::<usize>().unwrap()] = to,
        other => panic!("{other} has no {name}"),
    }
}

fn each_fails(
    kind: &str,
    documents: Vec<(String, Value)>,
    mutations: impl Fn(&Value) -> Vec<Mutation>,
    parse: impl Fn(&Value) -> Result<(), Violations>,
) {
    for (name, document) in documents {
        parse(&document).unwrap_or_else(|wrong| panic!("{kind}, {name}: {wrong}"));
        let mutations = mutations(&document);
        assert!(mutations.len() >= 20, "{kind}: only {}", mutations.len());
        for (index, (rule, at, change)) in mutations.into_iter().enumerate() {
            let mut changed = document.clone();
            change(&mut changed);
            let wrong = parse(&changed).expect_err(&format!("{kind}, {name}, mutation {index} ({rule} {at})"));
            assert!(
                has(&wrong, rule, &at),
                "{kind}, {name}, mutation {index}: rule {rule} at {at} is not among:\n{wrong:#?}"
            );
        }
    }
}

fn first(value: &Value, section: &str) -> String {
    let key = value[section].as_object().unwrap().keys().next().unwrap();
    format!("/{section}/{key}")
}

#[test]
fn changed_bundle_is_refused() {
    let mut documents = vec![own(THIN), own(THICK), own(DEPENDENT)];
    documents.extend(specification(&["101.01-bundle.json", "101.02-bundle.json", "101.03-bundle.json"]));
    let mutations = |value: &Value| {
        let [parameter, credential, output, definition, image] =
            ["parameters", "credentials", "outputs", "definitions", "images"].map(|section| first(value, section));
        let shared = json!({ "env": "SAME" });
        let both = {
            let (parameter, credential) = (parameter.clone(), credential.clone());
            move |value: &mut Value| {
                put(value, &format!("{parameter}/destination"), shared.clone());
                put(value, &credential, shared.clone());
            }
        };
        let copied = {
            let output = output.clone();
            move |value: &mut Value| {
                let copy = value.pointer(&output).unwrap().clone();
                put(value, "/outputs/zz", copy);
            }
        };
        vec![
            remove(24, "/schemaVersion"),
            set(24, "/schemaVersion", json!("v2.0.0")),
            remove(24, "/name"),
            set(24, "/name", json!("a\nb")),
            remove(24, "/version"),
            set(24, "/version", json!("1.0")),
            remove(24, "/invocationImages"),
            set(24, "/invocationImages", json!([])),
            remove(24, "/invocationImages/0/image"),
            set(24, &format!("{image}/size"), json!("big")),
            set(29, &format!("{parameter}/destination"), json!({})),
            set(33, &format!("{parameter}/destination/env"), json!("CNAB_ACTION")),
            set(24, &format!("{parameter}/definition"), json!("nope")),
            set(28, &format!("{parameter}/destination/path"), json!("/cnab/app/outputs/x")),
            set(24, &format!("{parameter}/required"), json!("yes")),
            (32, format!("{credential}/env"), Box::new(both)),
            set(29, &credential, json!({})),
            set(28, &format!("{credential}/path"), json!("/cnab/bundle.json")),
            set(38, &format!("{output}/path"), json!("/etc/x")),
            (38, "/outputs/zz/path".into(), Box::new(copied)),
            set(24, &format!("{definition}/type"), json!("strin")),
            set(24, &format!("{definition}/$ref"), json!("https://example.org/schema.json")).at(&definition),
            set(37, "/parametres", json!({})),
            set(35, "/actions", json!({ "install": {} })).at("/actions/install"),
        ]
    };
    each_fails("bundle", documents, mutations, |value| Bundle::parse(value.to_string().as_bytes()).map(drop));
}

trait At {
    /// Sets the path of the violation, if it differs from the path of the change.
    fn at(self, path: &str) -> Self;
}

impl At for Mutation {
    fn at(self, path: &str) -> Self {
        (self.0, path.to_owned(), self.2)
    }
}

#[test]
fn changed_claim_is_refused() {
    let bundle = parse(THIN);
    let claim = claim(&bundle, "org.example.paint", &resolved(&bundle, "org.example.paint", json!({})), None);
    let mut documents = vec![("our own".to_owned(), serde_json::to_value(claim).unwrap())];
    documents.extend(specification(&["400.01-claim.json"]));
    let mutations = |_: &Value| {
        let mut all: Vec<Mutation> = ["action", "bundle", "created", "id", "installation", "revision"]
            .iter()
            .map(|field| remove(44, &format!("/{field}")))
            .collect();
        all.extend([
            set(44, "/id", json!("1")),
            set(44, "/id", json!("01e5g8zyp714jvm8nhtjq4fh15")),
            set(44, "/id", json!("../../../etc/passwd")),
            set(8, "/revision", json!("2")),
            set(44, "/created", json!("yesterday")),
            set(44, "/created", json!(1_535_683_195)),
            set(5, "/installation", json!("")),
            set(5, "/installation", json!("a\tb")),
            set(44, "/parameters", json!([])),
            set(44, "/bundle", json!("helloworld")),
            set(6, "/action", json!("dance")),
            set(44, "/action", json!("")),
            set(44, "/bundleReference", json!(5)),
            set(37, "/credentials", json!({ "key": "value" })),
            set(37, "/result", json!({})),
        ]);
        all
    };
    each_fails("claim", documents, mutations, |value| Claim::parse(value.to_string().as_bytes()).map(drop));
}

#[test]
fn changed_result_is_refused() {
    let mine = json!({
        "claimId": "01E5G8ZYP714JVM8NHTJQ4FH15", "id": "01E5G8ZYP714JVM8NHTJQ4FH16", "created": "2026-11-21T17:00:00.5Z",
        "message": "m", "status": "failed", "custom": { "a": 1 },
        "outputs": { "a": { "contentDigest": "sha256:x", "generatedByBundle": "true" } },
    });
    let mut documents = vec![("our own".to_owned(), mine)];
    documents.extend(specification(&["400.01-claim-result.json"]));
    let mutations = |_: &Value| {
        let mut all: Vec<Mutation> =
            ["claimId", "id", "created", "status"].iter().map(|field| remove(47, &format!("/{field}"))).collect();
        all.extend([
            set(47, "/id", json!("x")),
            set(47, "/id", json!(5)),
            set(47, "/claimId", json!("../x")),
            set(47, "/claimId", json!(null)),
            set(47, "/created", json!("2026-13-01T00:00:00Z")),
            set(47, "/created", json!({})),
            set(47, "/status", json!("done")),
            set(47, "/status", json!("Succeeded")),
            set(47, "/status", json!(0)),
            set(47, "/status", json!(null)),
            set(47, "/message", json!(["a"])),
            set(47, "/outputs", json!([])),
            set(47, "/outputs/x", json!("value")),
            set(47, "/outputs/x", json!({ "contentDigest": 5 })).at("/outputs/x/contentDigest"),
            set(37, "/credentials", json!({})),
            set(37, "/claim", json!({})),
        ]);
        all
    };
    each_fails("result", documents, mutations, |value| ClaimResult::parse(value.to_string().as_bytes()).map(drop));
}

#[test]
fn changed_relocation_map_is_refused() {
    let mine = json!({ "example/a:1": "m.example.org/a:1", "library/b@sha256:00": "m.example.org/b" });
    let mut documents = vec![("our own".to_owned(), mine)];
    documents.extend(specification(&["103.01-relocation-mapping.json"]));
    for (name, document) in documents {
        let references: Vec<String> = document.as_object().unwrap().keys().cloned().collect();
        let bundle = bundle(json!({
            "invocationImages": [{ "image": references[0] }],
            "images": { "other": { "image": references[1] } },
        }));
        let mutations = |_: &Value| {
            let mut all: Vec<Mutation> = Vec::new();
            for reference in &references {
                let at = format!("/{}", reference.replace('/', "~1"));
                all.push(remove(23, &at));
                let values = [json!(5), json!(null), json!(""), json!([]), json!({}), json!(true)];
                all.extend(values.map(|value| set(23, &at, value)));
                all.push(set(23, "", json!({})).at(&at));
            }
            all.extend([json!([]), json!("x"), json!(null), json!(5)].map(|value| set(23, "", value)));
            all
        };
        let parse = |value: &Value| Relocation::parse(value.to_string().as_bytes(), &bundle).map(drop);
        each_fails("relocation map", vec![(name, document)], mutations, parse);
    }
}

#[test]
fn changed_dependencies_are_refused() {
    let mine = serde_json::from_str::<Value>(DEPENDENT).unwrap()["custom"]["io.cnab.dependencies"].clone();
    let mut documents = vec![("our own".to_owned(), mine)];
    documents.extend(specification(&["500.01-dependencies.json"]));
    let mutations = |value: &Value| {
        let at = "/custom/io.cnab.dependencies";
        let names: Vec<String> = value["requires"].as_object().unwrap().keys().cloned().collect();
        let one = &names[0];
        let all_but_one = &names[1..];
        let twice: Vec<&String> = names.iter().chain([one]).collect();
        let ranges = |ranges: Value| {
            let path = format!("/requires/{one}/version");
            set(48, &path, json!({ "ranges": ranges })).at(&format!("{at}/requires/{one}/version/ranges/0"))
        };
        let form = |path: &str, to: Value| set(48, path, to).at(at);
        vec![
            set(48, "/sequence", json!(["nope"])).at(&format!("{at}/sequence/0")),
            set(48, "/sequence", json!(twice)).at(&format!("{at}/sequence/{}", names.len())),
            set(48, "/sequence", json!(all_but_one)).at(&format!("{at}/requires/{one}")),
            set(48, "/requires/a#b", json!({ "bundle": "x" })).at(&format!("{at}/requires/a#b")),
            set(48, "/requires/", json!({ "bundle": "x" })).at(&format!("{at}/requires/")),
            ranges(json!(["~1"])),
            ranges(json!([""])),
            ranges(json!(["1.2.3.4"])),
            ranges(json!(["1.x.3"])),
            ranges(json!(["latest"])),
            ranges(json!(["1 - "])),
            form("/sequence", json!("a")),
            form("/sequence", json!([1])),
            form("/requires", json!([])),
            form("/requires", json!("a")),
            form(&format!("/requires/{one}"), json!("x")),
            form(&format!("/requires/{one}"), json!({})),
            form(&format!("/requires/{one}/bundle"), json!(5)),
            form(&format!("/requires/{one}/version"), json!("1.x")),
            form(&format!("/requires/{one}/version"), json!({ "prereleases": "true" })),
            form(&format!("/requires/{one}/version"), json!({ "ranges": "1.x" })),
        ]
    };
    let parse = |value: &Value| {
        let bundle = small(json!({ "custom": { "io.cnab.dependencies": value } }));
        Bundle::parse(bundle.to_string().as_bytes()).map(drop)
    };
    each_fails("dependencies", documents, mutations, parse);
}
