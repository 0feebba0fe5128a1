//! Tests rule 14 of `docs/guides/conventions.md`: values of secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_conventions::secrets::SecretValues;
use serde_json::{Value, json};

use crate::common::{World, add_variable, nothing};

const VALUE: &str = "canary-5f1c-secret-value";

fn template() -> Value {
    let with = |text: &str| text.replace('$', VALUE);
    json!({
        "metadata": {"annotations": {"note": with("uses $"), "short": "s3c"}, "labels": {"app": "web"}},
        "spec": {
            "containers": [{
                "name": "app",
                "image": "app",
                "command": ["sh", "-c", with("login $ && login $")],
                "args": ["s3c", "not s3c"],
                "env": [
                    {"name": "URL", "value": with("https://u:$@h/")},
                    {"name": "PACKED", "value": STANDARD.encode(VALUE)},
                    {"name": "SHORT", "value": "s3c"},
                    {"name": "REFERRED", "valueFrom": {"secretKeyRef": {"name": "db", "key": "s3c"}}},
                ],
                "livenessProbe": {"exec": {"command": ["probe", with("--token=$")]}},
            }],
        },
    })
}

fn world(secret: bool) -> World {
    let mut secrets = SecretValues::default();
    if secret {
        secrets.add(format!("{VALUE}\n").as_bytes());
        secrets.add(VALUE.as_bytes());
        secrets.add(b"s3c");
        secrets.add(b"");
    }
    World { secrets, ..World::default() }
}

#[tokio::test]
async fn rule_14_conventions_receive_no_secret_values() {
    let world = world(true).convention("a", "", add_variable("A", "1"));
    let decorated = world.decorate(&template()).await.unwrap();
    let after = executor_conventions::template::document(&decorated.template);
    for request in world.requests() {
        let sent = request.to_string();
        assert!(!sent.contains(VALUE) && !sent.contains(&STANDARD.encode(VALUE)), "{sent}");
        let container = &request["spec"]["template"]["spec"]["containers"][0];
        assert_ne!(container["env"][2]["value"], "s3c");
        assert_ne!(container["args"][0], "s3c");
        // References are not secret, and short values are not replaced within longer strings.
        assert_eq!(container["env"][3]["valueFrom"]["secretKeyRef"], json!({"name": "db", "key": "s3c"}));
        assert_eq!(container["args"][1], "not s3c");
    }
    // All values are restored, and the reported changes contain no values.
    let mut expected = template();
    expected["spec"]["containers"][0]["env"].as_array_mut().unwrap().push(json!({"name": "A", "value": "1"}));
    expected["spec"]["containers"][0]["image"] = after["spec"]["containers"][0]["image"].clone();
    let annotations = &mut expected["metadata"]["annotations"];
    annotations[executor_conventions::APPLIED_CONVENTIONS] = json!("a/add-A");
    assert_eq!(after, expected);
    assert!(!format!("{:?}", decorated.steps).contains(VALUE) && !format!("{:?}", world.secrets).contains(VALUE));
}

/// Control: if a value belongs to no secret, conventions receive it.
#[tokio::test]
async fn rule_14_control_other_values_are_sent() {
    let world = world(false).convention("a", "", nothing);
    world.decorate(&template()).await.unwrap();
    assert_eq!(world.requests()[0].to_string().matches(VALUE).count(), 5);
}

/// Function that puts a placeholder into another field.
type Move = fn(&mut Value, String);

/// If a convention moves a placeholder to another field, the response is refused.
#[tokio::test]
async fn rule_14_placeholder_cannot_move_to_other_field() {
    let moved: [(&str, Move); 5] = [
        ("spec.containers[app].image", |template, it| {
            template["spec"]["containers"][0]["image"] = json!(format!("evil/{it}"));
        }),
        ("spec.containers[new].env[URL].value", |template, it| {
            let new = json!({"name": "new", "image": "new", "env": [{"name": "URL", "value": it}]});
            template["spec"]["containers"].as_array_mut().unwrap().push(new);
        }),
        ("spec.containers[app].env[LD_PRELOAD].value", |template, it| {
            template["spec"]["containers"][0]["env"][0] = json!({"name": "LD_PRELOAD", "value": it});
        }),
        ("metadata.labels.app", |template, it| template["metadata"]["labels"]["app"] = json!(it)),
        ("spec.containers[app].args", |template, it| template["spec"]["containers"][0]["args"] = json!([it])),
    ];
    for (field, server) in moved {
        let world = world(true).convention("a", "", move |template: &mut Value, _: &Value| {
            let placeholder = template["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap().to_owned();
            server(template, placeholder);
            Vec::new()
        });
        let reported = world.refused(&template()).await;
        let expected = format!("convention a: {field}: contains the value of a secret from another field");
        assert!(reported.contains(&expected) && !reported.contains(VALUE), "{reported}");
    }
    // Within its field a placeholder may be moved, repeated and removed.
    let kept: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        let container = &mut template["spec"]["containers"][0];
        container["env"].as_array_mut().unwrap().reverse();
        container["env"].as_array_mut().unwrap().retain(|variable| variable["name"] != "PACKED");
        let again = container["command"][2].clone();
        container["command"] = json!(["bash", "-c", "exec \"$@\"", again]);
        Vec::new()
    };
    let world = world(true).convention("a", "", move |template: &mut Value, context: &Value| {
        if template["spec"]["containers"][0]["command"][0] == "sh" { kept(template, context) } else { Vec::new() }
    });
    let after = world.document(&template()).await;
    assert_eq!(after["spec"]["containers"][0]["command"][3], template()["spec"]["containers"][0]["command"][2]);
}

#[tokio::test]
async fn rule_14_irreplaceable_secret_is_refused() {
    let mut key = template();
    key["metadata"]["labels"] = json!({VALUE: "x"});
    let reported = world(true).convention("a", "", nothing).refused(&key).await;
    assert!(reported.contains("has a key that contains the value of a secret"), "{reported}");
    let mut forged = template();
    forged["spec"]["containers"][0]["args"] = json!(["__executor_secret_0__"]);
    let reported = world(true).convention("a", "", nothing).refused(&forged).await;
    assert!(reported.starts_with("spec.containers.args: contains __executor_secret_"), "{reported}");
    for forged in ["__executor_secret_0__", "__executor_secret_99__", "__executor_secret_"] {
        let world = world(true).convention("a", "", move |template: &mut Value, _: &Value| {
            template["metadata"]["annotations"]["x"] = json!(forged);
            Vec::new()
        });
        let reported = world.refused(&template()).await;
        assert!(reported.contains("metadata.annotations.x: contains the value of a secret"), "{reported}");
    }
}

/// If one secret contains another, or a secret is part of a placeholder, all values are restored.
#[tokio::test]
async fn rule_14_nested_secret_values_are_restored() {
    let mut secrets = SecretValues::default();
    for value in ["executor", "secret_0__", "aaaaaaaa", "aaaaaaaaaaaa", "bbaaaaaaaa"] {
        secrets.add(value.as_bytes());
    }
    let texts =
        ["executor", "xexecutorx", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbaaaaaaaaaaaaaa", "secret_0__ executor"];
    let template = json!({"metadata": {}, "spec": {"containers": [{"name": "app", "args": texts}]}});
    let world = World { secrets, ..World::default() }.convention("a", "", nothing);
    assert_eq!(world.document(&template).await, template);
    let sent = world.requests()[0]["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(!sent.contains("aaaaaaaa") && !sent.contains("executorx"), "{sent}");
}
