//! Tests rules 1, 3, 7, 9, 13 and 15 of `docs/guides/conventions.md` for the registrations file.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_conventions::config;
use executor_conventions::registration::{Priority, Registrations};
use executor_conventions::selector::Selector;
use serde_json::json;

use crate::common::{World, app, nothing};

/// A self-signed certificate.
const CERTIFICATE: &str = include_str!("ca.pem");

fn parsed(text: &str) -> Result<Registrations, String> {
    Registrations::parse(text, Path::new("/")).map_err(|violations| violations.to_string())
}

fn of_url(url: &str) -> Result<String, String> {
    let parsed = parsed(&format!("[[convention]]\nname = \"a\"\nurl = {url:?}\n"))?;
    Ok(parsed.iter().next().unwrap().endpoint.to_string())
}

#[test]
fn rule_1_url_must_be_https_with_host() {
    for (url, shown) in [
        ("https://c.example", "https://c.example/"),
        ("https://C.example:443/a/b", "https://c.example/a/b"),
        ("https://127.0.0.1:9443/", "https://127.0.0.1:9443/"),
        ("https://[::1]:9443/x", "https://[::1]:9443/x"),
    ] {
        assert_eq!(of_url(url).as_deref(), Ok(shown), "{url}");
    }
    for (url, why) in [
        ("http://c.example/", "is not an https:// URL"),
        ("c.example", "is not an https:// URL"),
        ("https://", "is not a URL"),
        ("https:///x", "is not a URL"),
        ("https://u:canary@c.example/", "has a user name"),
        ("https://c.example/?a=b", "has a query"),
        ("https://c.example/#a", "has a fragment"),
        ("https://c.example:x/", "has no valid port"),
        ("https://c.example:0/", "has no valid port"),
        ("https://c.example:99999/", "has no valid port"),
    ] {
        let reported = of_url(url).unwrap_err();
        assert!(reported.contains("convention a.url: ") && reported.contains(why), "{url}: {reported}");
        assert!(!reported.contains("canary"), "{reported}");
    }
}

#[test]
fn rule_1_needs_either_url_or_service() {
    let both = "[[convention]]\nname = \"a\"\nurl = \"https://a/\"\nservice = { name = \"a\", namespace = \"b\" }\n";
    assert!(parsed(both).unwrap_err().contains("has both url and service"));
    assert!(parsed("[[convention]]\nname = \"a\"\n").unwrap_err().contains("has neither url nor service"));
    let service = |service: &str| {
        let parsed = parsed(&format!("[[convention]]\nname = \"a\"\nservice = {service}\n"))?;
        Ok::<_, String>(parsed.iter().next().unwrap().endpoint.to_string())
    };
    assert_eq!(service(r#"{ name = "web", namespace = "ns" }"#).unwrap(), "https://web.ns.svc/");
    let full = r#"{ name = "web", namespace = "ns", path = "/a/b", port = 9443 }"#;
    assert_eq!(service(full).unwrap(), "https://web.ns.svc:9443/a/b");
    let wrong = service(r#"{ name = "Web", namespace = "", path = "a", port = 0 }"#).unwrap_err();
    for field in ["name", "namespace", "path", "port"] {
        assert!(wrong.contains(&format!("convention a.service.{field}: ")), "{field}: {wrong}");
    }
}

#[test]
fn rule_1_ca_bundle_is_pem_base64_or_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ca.pem"), CERTIFICATE).unwrap();
    let with = |more: &str| {
        let text = format!("[[convention]]\nname = \"a\"\nurl = \"https://a/\"\n{more}\n");
        Registrations::parse(&text, dir.path()).map_err(|violations| violations.to_string())
    };
    let packed = STANDARD.encode(CERTIFICATE);
    for more in [
        format!("caBundle = '''{CERTIFICATE}'''"),
        format!("caBundle = {packed:?}"),
        "caFile = \"ca.pem\"".to_owned(),
        format!("caFile = \"{}\"", dir.path().join("ca.pem").display()),
    ] {
        let registrations = with(&more).unwrap();
        assert_eq!(registrations.iter().next().unwrap().ca_bundle.as_deref(), Some(CERTIFICATE.as_bytes()), "{more}");
    }
    for (more, why) in [
        ("caBundle = \"?\"", "neither PEM nor PEM in base64"),
        ("caBundle = \"eA==\"", "has no certificate"),
        ("caBundle = \"-----BEGIN CERTIFICATE-----\\neA==\\n-----END CERTIFICATE-----\\n\"", "caBundle: "),
        ("caFile = \"nope\"", "nope: No such file"),
        ("caFile = \"/dev/zero\"", "is not a regular file"),
        ("caBundle = \"eA==\"\ncaFile = \"ca.pem\"", "use one of them"),
    ] {
        let reported = with(more).unwrap_err();
        assert!(reported.contains(why), "{more}: {reported}");
    }
}

/// If a file has several violations, all are reported together.
#[test]
fn rule_7_all_violations_are_reported_together() {
    let text = r#"
        [[convention]]
        name = "Bad_Name"
        url = "http://x/"
        grants = ["priviledged"]
        timeoutSeconds = 31
        [[convention.selectors]]
        matchLabels = { "-" = "a b" }
        matchExpressions = [
            { key = "k", operator = "In" },
            { key = "k", operator = "Exists", values = ["v"] },
        ]
        [[convention]]
        name = "b"
        url = "https://b/"
        priority = "First"
        [[convention]]
        name = "c"
        url = "https://c/"
        colour = "red"
        [[convention]]
        name = "d"
        url = "https://d/"
        [[convention]]
        name = "d"
        url = "https://d/"
        [other]
    "#;
    let reported = parsed(text).unwrap_err();
    for part in [
        r#""other": is unknown"#,
        r#"convention[0].name: "Bad_Name" is not a name"#,
        "convention[0].url: ",
        r#"convention[0].grants: "priviledged" is not a grant; use privileged, capabilities"#,
        "convention[0].timeoutSeconds: is 31; it must be 1 to 30",
        r#"convention[0].selectors[0].matchLabels.-: "-" is not a valid label key"#,
        r#"convention[0].selectors[0].matchLabels.-: "a b" is not a valid label value"#,
        "convention[0].selectors[0].matchExpressions[0].values: is empty; the operator In needs values",
        "convention[0].selectors[0].matchExpressions[1].values: must be empty for the operator Exists",
        "convention b: unknown variant `First`",
        "convention c: unknown field `colour`",
        "convention d: is registered twice",
    ] {
        assert!(reported.contains(part), "{part}\n---\n{reported}");
    }
    assert_eq!(parsed("x = [").unwrap_err().lines().count(), 1);
    assert!(parsed(&"[[convention]]\n".repeat(101)).unwrap_err().contains("at most 100"));
    assert!(parsed("").unwrap().is_empty());
}

#[test]
fn rule_7_selectors_are_ored_requirements_anded() {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let web = labels(&[("app", "web"), ("tier", "front")]);
    for (selector, matches) in [
        (json!({}), true),
        (json!({"matchLabels": {"app": "web"}}), true),
        (json!({"matchLabels": {"app": "web", "tier": "back"}}), false),
        (json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["back", "front"]}]}), true),
        (json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}), false),
        (json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["front"]}]}), true),
        (json!({"matchExpressions": [{"key": "none", "operator": "In", "values": ["front"]}]}), false),
        (json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), true),
        (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), false),
        (
            json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
            false,
        ),
    ] {
        let parsed: Selector = serde_json::from_value(selector.clone()).unwrap();
        assert_eq!(parsed.matches(&web), matches, "{selector}");
    }
}

#[tokio::test]
async fn rule_7_selectors_match_template_or_intent_labels() {
    let called = |more: &'static str| async move {
        let labels = BTreeMap::from([("app".to_owned(), "intent".to_owned())]);
        let world = World { labels, ..World::default() }.convention("a", more, nothing);
        world.decorate(&app()).await.unwrap();
        !world.requests().is_empty()
    };
    assert!(called("").await);
    assert!(called("selectors = [{ matchLabels = { app = \"web\" } }]").await);
    assert!(called("selectors = [{ matchLabels = { app = \"no\" } }, { matchLabels = { app = \"web\" } }]").await);
    assert!(!called("selectors = [{ matchLabels = { app = \"intent\" } }]").await);
    let intent = "selectorTarget = \"PodIntent\"\n";
    assert!(
        called(Box::leak(format!("{intent}selectors = [{{ matchLabels = {{ app = \"intent\" }} }}]").into())).await
    );
    assert!(!called(Box::leak(format!("{intent}selectors = [{{ matchLabels = {{ app = \"web\" }} }}]").into())).await);
}

#[test]
fn rule_9_priority_then_name_determine_order() {
    let one =
        |name: &str, priority: &str| format!("[[convention]]\nname = {name:?}\nurl = \"https://x/\"\n{priority}\n");
    let text = one("z", "priority = \"Early\"")
        + &one("b", "")
        + &one("c", "priority = \"Late\"")
        + &one("a", "priority = \"Normal\"")
        + &one("d", "priority = \"Early\"")
        + &one("a.a", "priority = \"Late\"");
    let registrations = parsed(&text).unwrap();
    let order: Vec<&str> = registrations.iter().map(|registration| &*registration.name).collect();
    assert_eq!(order, ["d", "z", "a", "b", "a.a", "c"]);
    assert_eq!(registrations.iter().nth(3).unwrap().priority, Priority::Normal);
}

#[test]
fn named_configuration_file_must_exist() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("conventions.toml");
    let reported = config::load(Some(&path)).unwrap_err().to_string();
    assert!(reported.starts_with(&format!("{}: No such file", path.display())), "{reported}");
    std::fs::write(&path, "[[convention]]\nname = \"a\"\n").unwrap();
    let reported = config::load(Some(&path)).unwrap_err().to_string();
    assert!(reported.starts_with(&format!("{}: convention a: has neither", path.display())), "{reported}");
    std::fs::write(&path, "[[convention]]\nname = \"a\"\nurl = \"https://a/\"\n").unwrap();
    let loaded = config::load(Some(&path)).unwrap();
    assert_eq!((loaded.path.as_deref(), loaded.registrations.iter().count()), (Some(&*path), 1));
}
