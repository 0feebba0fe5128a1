//! Tests rules R1 to R5 of `docs/guides/catalogs.md`.

use executor_bundles::range::{Range, version};
use executor_bundles::resolve::{Edge, Installed, Query, ResolveError, Verdict, install, path, upgrade};

use crate::common::{GOOD, and, good, with};

fn query(range: &str) -> Query {
    let range = (!range.is_empty()).then(|| Range::parse(range).unwrap());
    Query { package: "demo".into(), channel: None, range }
}

fn installed(name: &str, text: &str) -> Installed {
    Installed { name: name.into(), version: version(text).unwrap() }
}

#[test]
fn r1_successor_replaces_skips_or_shares_version() {
    let one = |text: &str, from: Installed| {
        upgrade(&good(text), &query(""), &from, false).map(|step| (step.to.name.clone(), edge(&step)))
    };
    fn edge(step: &executor_bundles::resolve::Step) -> Option<Edge> {
        step.candidates.iter().find(|it| it.verdict == Verdict::Chosen).and_then(|it| it.edge)
    }
    let v1 = || installed("demo.v1", "1.0.0");
    assert_eq!(one(GOOD, v1()).unwrap(), ("demo.v2".into(), Some(Edge::Replaces)));
    let skips = with("    replaces: demo.v2\n", "    replaces: demo.v2\n    skips: [demo.v1]\n");
    assert_eq!(one(&skips, v1()).unwrap(), ("demo.v3".into(), Some(Edge::Skips)));
    let range = with("    replaces: demo.v2\n", "    replaces: demo.v2\n    skipRange: '<3.0.0'\n");
    assert_eq!(one(&range, v1()).unwrap(), ("demo.v3".into(), Some(Edge::SkipRange)));
    assert_eq!(one(GOOD, installed("old.v2", "2.0.0")).unwrap(), ("demo.v2".into(), Some(Edge::SameVersion)));
    assert!(matches!(one(GOOD, installed("demo.v0", "0.1.0")), Err(ResolveError::NoEdge { .. })));
    // The build metadata after `+` is the release. A different release is a different version.
    assert!(matches!(one(GOOD, installed("old.v2", "2.0.0+1")), Err(ResolveError::NoEdge { .. })));
    assert!(matches!(one(GOOD, installed("demo.v3", "3.0.0")), Err(ResolveError::UpToDate { .. })));
}

#[test]
fn r2_force_ignores_upgrade_edges() {
    let step = upgrade(&good(GOOD), &query(""), &installed("demo.v1", "1.0.0"), true).unwrap();
    assert_eq!(step.to.name, "demo.v3");
    // A forced upgrade may also lead to a lower version, if that version is requested.
    let step = upgrade(&good(GOOD), &query("1.0.0"), &installed("demo.v3", "3.0.0"), true).unwrap();
    assert_eq!(step.to.name, "demo.v1");
    assert!(upgrade(&good(GOOD), &query("1.0.0"), &installed("demo.v3", "3.0.0"), false).is_err());
}

#[test]
fn r3_undeprecated_then_highest_version_comes_first() {
    assert_eq!(install(&good(GOOD), &query("")).unwrap().to.name, "demo.v3");
    assert_eq!(install(&good(GOOD), &query("<3.0.0")).unwrap().to.name, "demo.v2");
    let deprecated = |names: &[&str]| {
        let entries: String = names
            .iter()
            .map(|name| format!("  - reference: {{schema: olm.bundle, name: {name}}}\n    message: old\n"))
            .collect();
        good(&and(&format!("schema: olm.deprecations\npackage: demo\nentries:\n{entries}")))
    };
    assert_eq!(install(&deprecated(&["demo.v3"]), &query("")).unwrap().to.name, "demo.v2");
    assert_eq!(install(&deprecated(&["demo.v1", "demo.v2", "demo.v3"]), &query("")).unwrap().to.name, "demo.v3");
    let step = install(&deprecated(&["demo.v3"]), &query("")).unwrap();
    let verdicts: Vec<_> = step.candidates.iter().map(|it| (&*it.name, it.verdict.clone())).collect();
    assert_eq!(verdicts, [("demo.v2", Verdict::Chosen), ("demo.v1", Verdict::Lower), ("demo.v3", Verdict::Lower)]);
}

/// If bundles have equal versions, the build metadata after `+` is compared as the release.
#[test]
fn r3_equal_versions_prefer_highest_release() {
    let build = |one: &str, two: &str| {
        with("version: 1.0.0", &format!("version: 3.0.0{one}"))
            .replace("version: 2.0.0", &format!("version: 3.0.0{two}"))
    };
    assert_eq!(install(&good(&build("+1", "+2")), &query("")).unwrap().to.name, "demo.v2");
    assert_eq!(install(&good(&build("+10", "+9")), &query("")).unwrap().to.name, "demo.v1");
    assert_eq!(install(&good(&build("-rc.1", "-rc.2")), &query("")).unwrap().to.name, "demo.v3");
}

#[test]
fn deprecations_of_step_are_reported() {
    let entry = |schema: &str, name: &str| {
        format!("  - {{reference: {{schema: {schema}, name: '{name}'}}, message: old {schema}}}\n")
    };
    let entries = entry("olm.package", "") + &entry("olm.channel", "stable") + &entry("olm.bundle", "demo.v1");
    let catalog = good(&and(&format!("schema: olm.deprecations\npackage: demo\nentries:\n{entries}")));
    let reported = |range: &str| -> Vec<String> {
        let step = install(&catalog, &query(range)).unwrap();
        step.deprecations.iter().map(|it| format!("{} {}: {}", it.of, it.name, it.message)).collect()
    };
    let both = ["package demo: old olm.package", "channel stable: old olm.channel"];
    assert_eq!(reported(""), both);
    assert_eq!(reported("1.0.0"), [&both[..], &["bundle demo.v1: old olm.bundle"]].concat());
}

#[test]
fn r4_default_channel_is_used_if_unset() {
    let text = and("schema: olm.channel\npackage: demo\nname: beta\nentries: [{name: demo.v1}]");
    let named = Query { channel: Some("beta".into()), ..query("") };
    assert_eq!(install(&good(&text), &named).unwrap().to.name, "demo.v1");
    assert_eq!(install(&good(&text), &query("")).unwrap().to.name, "demo.v3");
    let unknown = Query { channel: Some("x".into()), ..query("") };
    let error = install(&good(&text), &unknown).unwrap_err();
    assert_eq!(error.to_string(), r#"package "demo" has no channel "x"; it has beta, stable"#);
    let unknown = Query { package: "x".into(), ..query("") };
    assert!(matches!(install(&good(&text), &unknown), Err(ResolveError::NoPackage(_))));
    assert!(matches!(install(&good(&text), &query(">9.0.0")), Err(ResolveError::NoVersion { .. })));
}

#[test]
fn r5_bundles_with_dependencies_are_refused() {
    let needs = |property: &str| {
        with("packageName: demo, version: 3.0.0}\n", &format!("packageName: demo, version: 3.0.0}}\n  - {property}\n"))
    };
    for (property, reported) in [
        ("{type: olm.package.required, value: {packageName: etcd, versionRange: '>=1.0.0'}}", "package etcd >=1.0.0"),
        ("{type: olm.gvk.required, value: {group: g, version: v1, kind: K}}", "API K of g/v1"),
        ("{type: olm.constraint, value: {failureMessage: x}}", "a constraint"),
    ] {
        let text = needs(property);
        // Another bundle is chosen only if its version is requested.
        let error = install(&good(&text), &query("")).unwrap_err().to_string();
        assert!(
            error.starts_with("demo.v3 needs packages or APIs that are not provided here: ")
                && error.contains(reported),
            "{error}"
        );
        assert_eq!(install(&good(&text), &query("<3.0.0")).unwrap().to.name, "demo.v2");
        // An upgrade stops before the refused bundle.
        let steps = path(&good(&text), &query(""), &installed("demo.v1", "1.0.0"), false).unwrap();
        assert_eq!(steps.iter().map(|step| &*step.to.name).collect::<Vec<_>>(), ["demo.v2"]);
        let error = path(&good(&text), &query(""), &installed("demo.v2", "2.0.0"), false).unwrap_err();
        assert!(matches!(error, ResolveError::Requires { .. }), "{error}");
    }
}

#[test]
fn upgrade_follows_graph_step_by_step() {
    let names = |text: &str, range: &str| -> Vec<String> {
        let steps = path(&good(text), &query(range), &installed("demo.v1", "1.0.0"), false).unwrap();
        steps.iter().map(|step| step.to.name.clone()).collect()
    };
    assert_eq!(names(GOOD, ""), ["demo.v2", "demo.v3"]);
    assert_eq!(names(GOOD, "<3.0.0"), ["demo.v2"]);
    assert_eq!(names(GOOD, "3.0.x"), ["demo.v2", "demo.v3"]);
    assert!(path(&good(GOOD), &query(">3.0.0"), &installed("demo.v1", "1.0.0"), false).is_err());
    assert_eq!(
        names(&with("    replaces: demo.v2\n", "    replaces: demo.v2\n    skipRange: '<3.0.0'\n"), ""),
        ["demo.v3"]
    );
}
