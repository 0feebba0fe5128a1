//! Helpers that build bundles and apply the rules to them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use executor_cnab::action::Action;
use executor_cnab::bundle::Bundle;
use executor_cnab::claim::{Claim, New};
use executor_cnab::extension::{self, Allowed};
use executor_cnab::invocation::{Invocation, Lowering, Platform, lower};
use executor_cnab::parameters::{Earlier, Resolved, resolve};
use executor_cnab::secret::Secret;
use executor_cnab::violation::Violations;
use serde_json::{Value, json};

pub(crate) const THIN: &str = include_str!("../bundles/thin.json");
pub(crate) const THICK: &str = include_str!("../bundles/thick.json");
pub(crate) const DEPENDENT: &str = include_str!("../bundles/dependent.json");

pub(crate) fn parse(text: &str) -> Bundle {
    Bundle::parse(text.as_bytes()).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Returns a minimal bundle with these fields added.
pub(crate) fn small(more: Value) -> Value {
    let mut bundle = json!({
        "schemaVersion": "v1.0.0", "name": "x", "version": "1.0.0", "invocationImages": [{ "image": "example/x:1" }],
    });
    merge(&mut bundle, more);
    bundle
}

pub(crate) fn merge(into: &mut Value, more: Value) {
    for (name, value) in more.as_object().unwrap() {
        into[name] = value.clone();
    }
}

pub(crate) fn bundle(more: Value) -> Bundle {
    parse(&small(more).to_string())
}

/// Returns the violations of a bundle with these fields.
pub(crate) fn wrong(more: Value) -> Violations {
    Bundle::parse(small(more).to_string().as_bytes()).expect_err("the bundle was accepted")
}

pub(crate) fn has(violations: &Violations, rule: u8, path: &str) -> bool {
    violations.iter().any(|violation| violation.rule == rule && violation.path == path)
}

#[track_caller]
pub(crate) fn assert_has(violations: &Violations, rule: u8, path: &str) {
    assert!(has(violations, rule, path), "rule {rule} at {path:?} is not among:\n{violations:#?}");
}

pub(crate) fn action(bundle: &Bundle, name: &str) -> Action {
    Action::new(&bundle.actions, name).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Checks that every extension that a bundle requires is supported.
pub(crate) fn check_extensions(bundle: &Bundle, allowed: Allowed) -> Result<(), Violations> {
    extension::check(&bundle.custom, &bundle.required_extensions, allowed)
}

pub(crate) fn given(values: Value) -> BTreeMap<String, Value> {
    values.as_object().unwrap().clone().into_iter().collect()
}

pub(crate) fn resolved(bundle: &Bundle, name: &str, values: Value) -> Resolved {
    try_resolved(bundle, name, values).unwrap_or_else(|wrong| panic!("{wrong}"))
}

pub(crate) fn try_resolved(bundle: &Bundle, name: &str, values: Value) -> Result<Resolved, Violations> {
    resolve(bundle, &action(bundle, name), &given(values), &Earlier::default())
}

pub(crate) fn at(second: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000 + second)
}

pub(crate) fn claim(bundle: &Bundle, name: &str, values: &Resolved, last: Option<&Claim>) -> Claim {
    let action = action(bundle, name);
    let new = New { installation: "my app", action: &action, bundle, values, bundle_reference: None, last };
    Claim::new(&new, at(0)).unwrap()
}

pub(crate) fn credentials(pairs: &[(&str, &str)]) -> BTreeMap<String, Secret> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), Secret::from((*value).to_owned()))).collect()
}

pub(crate) fn lowered(bundle: &Bundle, name: &str, values: Value, creds: &[(&str, &str)]) -> Invocation {
    let values = resolved(bundle, name, values);
    let claim = claim(bundle, name, &values, None);
    lower(&Lowering {
        bundle,
        action: &action(bundle, name),
        claim: &claim,
        values: &values,
        credentials: &credentials(creds),
        relocation: None,
        omit_unset_files: false,
        platform: Platform { architecture: "amd64", os: "linux" },
    })
    .unwrap_or_else(|wrong| panic!("{wrong}"))
}

pub(crate) fn file<'a>(invocation: &'a Invocation, path: &str) -> Option<&'a str> {
    let plain = invocation.files.get(path).map(|bytes| std::str::from_utf8(bytes).unwrap());
    plain.or_else(|| invocation.secret_files.get(path).and_then(Secret::text))
}
