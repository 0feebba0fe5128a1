//! Tests rules 43 to 48 of `docs/guides/cnab-rules.md`: claims, results and dependencies (CNAB 400 and 500). Tests of
//! the storage are in `stored.rs`.

use executor_cnab::claim::{Claim, ClaimResult, Status};
use executor_cnab::dependencies::{Dependencies, Unusable};
use executor_cnab::write_only;
use serde_json::{Value, json};

use crate::common::*;

#[test]
fn rule_43_claim_of_current_action_is_mounted() {
    let invocation = lowered(&parse(THIN), "upgrade", json!({ "colour": "red" }), &[]);
    assert_eq!(invocation.env["CNAB_CLAIMS_VERSION"], "CNAB-Claims-1.0.0");
    let claim = Claim::parse(file(&invocation, "/cnab/claim.json").unwrap().as_bytes()).unwrap();
    assert_eq!((claim.action.as_str(), claim.revision.as_str()), ("upgrade", &*invocation.env["CNAB_REVISION"]));
    assert_eq!(claim.parameters["colour"], "red");
    assert_eq!(claim.bundle, serde_json::from_str::<Value>(THIN).unwrap());
}

#[test]
fn rule_44_each_action_has_claim_with_own_id() {
    let bundle = parse(THIN);
    let values = resolved(&bundle, "install", json!({}));
    let first = claim(&bundle, "install", &values, None);
    let second = claim(&bundle, "org.example.status", &values, Some(&first));
    assert!(second.id > first.id && second.revision == first.revision);
    let written = serde_json::to_value(&first).unwrap();
    for field in ["action", "bundle", "created", "id", "installation", "revision"] {
        assert!(written.get(field).is_some(), "{field}");
    }
    assert_eq!(Claim::parse(written.to_string().as_bytes()).unwrap(), first);
}

/// Rule 40: if a claim of another program contains a `writeOnly` value, the value is recognized as secret.
#[test]
fn rule_40_foreign_claim_write_only_values_are_recognized() {
    let mut written =
        serde_json::to_value(claim(&parse(THIN), "install", &resolved(&parse(THIN), "install", json!({})), None))
            .unwrap();
    written["parameters"] = json!({ "pass": "canary", "colour": "red", "orphan": "canary" });
    let hidden = |written: &Value| {
        let claim = Claim::parse(written.to_string().as_bytes()).unwrap();
        let hidden = write_only::parameters(&claim.bundle, &claim.parameters);
        hidden.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(hidden(&written), ["orphan", "pass"]);
    written["bundle"]["version"] = json!("not a valid version");
    assert_eq!(hidden(&written), ["orphan", "pass"]);
    written["bundle"]["definitions"] = Value::Null;
    assert_eq!(hidden(&written), ["colour", "orphan", "pass"]);
    for (field, value) in [("revision", ""), ("revision", "1"), ("id", "")] {
        let mut changed = written.clone();
        changed[field] = json!(value);
        let wrong = Claim::parse(changed.to_string().as_bytes()).unwrap_err();
        assert!(wrong.iter().any(|one| one.path == format!("/{field}")), "{wrong}");
    }
}

#[test]
fn rule_46_claim_has_resolved_parameters_without_credentials() {
    let bundle = parse(THIN);
    let values = resolved(&bundle, "install", json!({ "colour": "red" }));
    let claim = claim(&bundle, "install", &values, None);
    assert_eq!(Value::Object(claim.parameters), json!({ "colour": "red", "period": 10 }));
    let invocation = lowered(&bundle, "install", json!({}), &[("key", "canary")]);
    assert!(!file(&invocation, "/cnab/claim.json").unwrap().contains("canary"));
}

#[test]
fn rule_47_final_status_is_result() {
    let bundle = parse(THIN);
    let claim = claim(&bundle, "install", &resolved(&bundle, "install", json!({})), None);
    let mut last = None;
    for status in
        [Status::Pending, Status::Running, Status::Unknown, Status::Canceled, Status::Failed, Status::Succeeded]
    {
        let next = ClaimResult::new(&claim, last.as_ref(), status, at(0)).unwrap().saying("m");
        assert!(last.as_ref().is_none_or(|last: &ClaimResult| last.id < next.id));
        assert_eq!(status.is_final(), !matches!(status, Status::Pending | Status::Running));
        let written = serde_json::to_value(&next).unwrap();
        assert_eq!((&written["status"], &written["claimId"]), (&json!(status.name()), &json!(claim.id)));
        assert_eq!(ClaimResult::parse(written.to_string().as_bytes()).unwrap(), next);
        last = Some(next);
    }
}

#[test]
fn rule_48_dependency_order_is_preserved() {
    let of = |value: Value| Dependencies::from_custom(json!({ "io.cnab.dependencies": value }).as_object().unwrap());
    let dependencies = Dependencies::from_custom(&parse(DEPENDENT).custom).unwrap();
    assert_eq!(dependencies.order("install"), (vec!["sea", "lamp"], vec![]));
    assert_eq!(dependencies.order("upgrade"), (vec!["sea", "lamp"], vec![]));
    assert_eq!(dependencies.order("uninstall"), (vec![], vec!["lamp", "sea"]));
    assert_eq!(dependencies.order("org.example.status"), (vec![], vec![]));
    let version = &dependencies.requirement("lamp").unwrap().version;
    assert!(version.matches("0.4.1") && version.matches("v3.1.0-rc.1") && !version.matches("4.0.0"));
    assert_eq!(
        of(json!({ "requires": { "b": { "bundle": "x" }, "a": { "bundle": "x" } } })).unwrap().order("install").0,
        ["a", "b"]
    );
    assert!(Dependencies::from_custom(&parse(THIN).custom).unwrap().is_empty());
    assert!(of(Value::Null).unwrap().is_empty(), "as Go encodes an absent value");
    assert_eq!(of(json!([])), Err(Unusable::Draft));
    let at = "/custom/io.cnab.dependencies";
    for (value, path) in [
        (json!({ "sequence": ["a"] }), format!("{at}/sequence/0")),
        (json!({ "sequence": ["a", "a"], "requires": { "a": { "bundle": "x" } } }), format!("{at}/sequence/1")),
        (
            json!({ "sequence": ["a"], "requires": { "a": { "bundle": "x" }, "b": { "bundle": "x" } } }),
            format!("{at}/requires/b"),
        ),
        (
            json!({ "requires": { "a": { "bundle": "x", "version": { "ranges": ["~1"] } } } }),
            format!("{at}/requires/a/version/ranges/0"),
        ),
        (json!({ "requires": { "a": {} } }), at.into()),
        (json!("x"), at.into()),
    ] {
        assert_has(&wrong(json!({ "custom": { "io.cnab.dependencies": value } })), 48, &path);
    }
}
