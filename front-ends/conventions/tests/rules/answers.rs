//! Tests rules 2, 3, 10, 11 and 15 of `docs/guides/conventions.md`: requests and responses.

use executor_conventions::transport::Reply;
use executor_conventions::{APPLIED_CONVENTIONS, intent, template};
use serde_json::{Value, json};

use crate::common::{DIGEST, World, add_variable, app, nothing, ok};

#[tokio::test]
async fn rule_2_request_is_context_with_template_and_images() {
    let world = World::default().convention("a", "", add_variable("A", "1"));
    let after = world.document(&app()).await;
    let request = &world.requests()[0];
    let status = json!({"template": {"metadata": {}, "spec": {"containers": null}}, "appliedConventions": null});
    assert_eq!(request["status"], status);
    assert_eq!(request["apiVersion"], "webhooks.conventions.carto.run/v1alpha1");
    assert_eq!(request["kind"], "PodConventionContext");
    let image = format!("r.example/app:latest@{DIGEST}");
    assert_eq!(
        request["spec"],
        json!({
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": image}]},
            },
            "imageConfig": [{
                "image": image,
                "boms": [],
                "config": {"architecture": "amd64", "os": "linux", "config": {"Env": ["A=b"]}},
            }],
        })
    );
    assert_eq!(after["spec"]["containers"][0]["env"], json!([{"name": "A", "value": "1"}]));
}

#[tokio::test]
async fn rule_3_context_has_name_of_convention() {
    let world = World::default().convention("a", "", nothing).convention("b.c", "", nothing);
    world.decorate(&app()).await.unwrap();
    let names: Vec<Value> = world.requests().iter().map(|request| request["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["a", "b.c"]);
}

fn annotation(template: &Value) -> &str {
    template["metadata"]["annotations"][APPLIED_CONVENTIONS].as_str().unwrap_or_default()
}

#[tokio::test]
async fn rule_10_annotation_appends_applied_conventions() {
    let world = World::default()
        .convention("b", "", |_: &mut Value, _: &Value| vec!["y".to_owned(), "x/z".to_owned()])
        .convention("a", "", add_variable("A", "1"));
    let mut template = app();
    template["metadata"]["annotations"] = json!({APPLIED_CONVENTIONS: "before/one\na/old"});
    let after = world.document(&template).await;
    assert_eq!(annotation(&after), "before/one\na/old\na/add-A\nb/y\nb/x/z");
    // The annotation is rewritten after each response, so that the next convention receives it.
    let seen = &world.requests()[1]["spec"]["template"];
    assert_eq!(annotation(seen), "before/one\na/old\na/add-A");
}

#[tokio::test]
async fn rule_10_convention_cannot_forge_annotation() {
    let forge: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        template["metadata"]["annotations"] = json!({APPLIED_CONVENTIONS: "other/good", "kept": "yes"});
        vec!["mine".to_owned()]
    };
    let mut template = app();
    template["metadata"]["annotations"] = json!({APPLIED_CONVENTIONS: "before/one"});
    let after = World::default().convention("a", "", forge).document(&template).await;
    assert_eq!(after["metadata"]["annotations"], json!({APPLIED_CONVENTIONS: "before/one\na/mine", "kept": "yes"}));
    let remove: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        template["metadata"] = Value::Null;
        Vec::new()
    };
    let after = World::default().convention("a", "", remove).document(&template).await;
    assert_eq!(annotation(&after), "before/one");
    for line in ["x\nother/good", "", "x\r", &"x".repeat(257)] {
        let line = line.to_owned();
        let world = World::default().convention("a", "", move |_: &mut Value, _: &Value| vec![line.clone()]);
        let reported = world.refused(&app()).await;
        assert!(
            reported.contains("convention a: status.appliedConventions: ") && reported.lines().count() == 1,
            "{reported}"
        );
    }
    let many = World::default().convention("a", "", |_: &mut Value, _: &Value| vec!["x".to_owned(); 101]);
    assert!(many.refused(&app()).await.contains("has 101 entries; at most 100"));
}

#[tokio::test]
async fn rule_11_invalid_response_fails_decoration() {
    let good = json!({
        "apiVersion": "webhooks.conventions.carto.run/v1alpha1",
        "kind": "PodConventionContext",
        "metadata": {"name": "b"},
        "status": {"template": app(), "appliedConventions": null},
    });
    let with = |pointer: &str, value: Value| {
        let mut wrong = good.clone();
        *wrong.pointer_mut(pointer).unwrap() = value;
        ok(&wrong)
    };
    let answers = [
        (Reply { status: 500, ..ok(&good) }, "responded with status 500; it must be 200"),
        (Reply { status: 201, ..ok(&good) }, "responded with status 201"),
        (Reply { status: 204, ..ok(&good) }, "responded with status 204"),
        (Reply { status: 307, ..ok(&good) }, "redirects are not followed"),
        (Reply { content_type: Some("text/html".into()), ..ok(&good) }, "content type \"text/html\""),
        (Reply { content_type: Some("application/json-patch+json".into()), ..ok(&good) }, "content type"),
        (Reply { body: b"canary".to_vec(), ..ok(&good) }, "the response is not JSON"),
        (Reply { body: Vec::new(), ..ok(&good) }, "the response is not JSON"),
        (Reply { body: b"[]".to_vec(), ..ok(&good) }, "not a PodConventionContext"),
        (Reply { body: vec![b'['; 100_000], ..ok(&good) }, "the response is not JSON"),
        (
            Reply {
                body: format!(
                    "[\"webhooks.conventions.carto.run/v1alpha1\",\"PodConventionContext\",{}]",
                    good["status"]
                )
                .into(),
                ..ok(&good)
            },
            "not a PodConventionContext",
        ),
        (with("/metadata/name", json!("a")), "metadata.name: is \"a\"; it must be b"),
        (with("/kind", json!(1)), "not a PodConventionContext"),
        (with("/kind", json!("PodIntent")), "kind: is \"PodIntent\"; it must be PodConventionContext"),
        (with("/apiVersion", json!("v1")), "apiVersion: is \"v1\""),
        (with("/status", json!({})), "not a PodConventionContext"),
        (with("/status", Value::Null), "not a PodConventionContext"),
        (with("/status/template", Value::Null), "status.template: is not a pod template"),
        (with("/status/template", json!({})), "status.template: is not a pod template: it has no spec"),
        (with("/status/template/spec/containers", json!([])), "it has no containers"),
        (with("/status/template/spec/containers", json!("canary")), "a field has the wrong type"),
        (with("/status/template/spec/containers/0", json!({})), "it has a container without a name"),
        (
            with("/status/template/spec/containers", json!([{"name": "a"}, {"name": "a"}])),
            "two containers with the same",
        ),
        (with("/status/appliedConventions", json!("canary")), "not a PodConventionContext"),
        (with("/status/template/spec/containers/0/image", json!({"canary": "canary"})), "a field has the wrong type"),
    ];
    for (reply, why) in answers {
        let mut world = World::default().convention("a", "", add_variable("A", "1")).convention("b", "", nothing);
        world.replies.insert("b".to_owned(), reply);
        let reported = world.refused(&app()).await;
        assert!(reported.contains(why) && reported.starts_with("convention b: "), "{why}: {reported}");
        assert!(!reported.contains("canary"), "{reported}");
    }
    // Control: the response from which the invalid responses are derived is valid.
    let mut world = World::default().convention("b", "", nothing);
    world.replies.insert("b".to_owned(), Reply { content_type: None, ..ok(&good) });
    world.decorate(&app()).await.unwrap();
    // As in Kubernetes clients, a missing kind defaults to the expected kind.
    world.replies.insert("b".to_owned(), ok(&json!({"metadata": {}, "status": good["status"]})));
    world.decorate(&app()).await.unwrap();
}

#[tokio::test]
async fn rule_11_unknown_fields_are_dropped_and_named() {
    let mut world = World::default().convention("a", "", nothing);
    let mut template = app();
    template["spec"]["containers"][0]["telepathy"] = json!(true);
    template["metadata"]["creationTimestamp"] = Value::Null; // as Go's servers write it
    template["spec"]["containers"][0]["resources"] = json!({});
    let answer = json!({
        "apiVersion": "webhooks.conventions.carto.run/v1alpha1",
        "kind": "PodConventionContext",
        "status": {"template": template},
    });
    world.replies.insert("a".to_owned(), ok(&answer));
    let decorated = world.decorate(&app()).await.unwrap();
    assert_eq!(decorated.steps[0].ignored, ["spec.containers[app].telepathy"]);
    assert!(!template::document(&decorated.template).to_string().contains("telepathy"));
}

#[tokio::test]
async fn rule_11_intent_keeps_last_good_template() {
    let mut object = json!({
        "apiVersion": "conventions.carto.run/v1alpha1",
        "kind": "PodIntent",
        "metadata": {"name": "x", "generation": 1},
        "spec": {"template": app()},
    });
    assert!(intent::settle(&mut object, Ok(json!({"good": 1}))));
    assert_eq!(
        (&object["status"]["observedGeneration"], &object["status"]["template"]),
        (&json!(1), &json!({"good": 1}))
    );
    assert_eq!(object["status"]["conditions"][0]["status"], "True");
    object["metadata"]["generation"] = json!(2);
    let world = World::default().convention("a", "", nothing);
    let mut missing = app();
    missing["spec"]["containers"][0]["image"] = json!("missing");
    let failed = world.decorate(&missing).await.unwrap_err();
    assert!(intent::settle(&mut object, Err(&failed)));
    assert_eq!(
        (&object["status"]["observedGeneration"], &object["status"]["template"]),
        (&json!(1), &json!({"good": 1}))
    );
    let condition = &object["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("ConventionsApplied"), &json!("False")));
    assert!(condition["message"].as_str().unwrap().contains("cannot resolve image"), "{condition}");
    let mut other = json!({"kind": "Pod"});
    assert!(!intent::settle(&mut other, Err(&failed)) && other == json!({"kind": "Pod"}));
}

#[tokio::test]
async fn rule_15_unstable_convention_fails_and_is_named() {
    let grow: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        let args = &mut template["spec"]["containers"][0]["args"];
        let mut more = args.as_array().cloned().unwrap_or_default();
        more.push("x".into());
        *args = more.into();
        Vec::new()
    };
    let world = World::default().convention("grower", "", grow).convention("quiet", "", nothing);
    let reported = world.refused(&app()).await;
    assert_eq!(reported, "convention grower: still changes the template in round 8 of 8: spec.containers[app].args");
    assert_eq!(world.requests().len(), 16);
    // If two conventions set the same field, the value of the later convention is used.
    let set = |value: &'static str| {
        move |template: &mut Value, _: &Value| {
            template["spec"]["restartPolicy"] = json!(value);
            template["spec"]["containers"][0]["image"] = json!(value.to_ascii_lowercase());
            Vec::new()
        }
    };
    let world = World::default().convention("a", "", set("Always")).convention("b", "", set("Never"));
    assert_eq!(world.document(&app()).await["spec"]["restartPolicy"], "Never");
    assert_eq!(world.requests().len(), 4);
    // If a convention's response differs each time, the convention and the field are reported.
    let flip: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        let always = template["spec"]["restartPolicy"] == "Always";
        template["spec"]["restartPolicy"] = json!(if always { "Never" } else { "Always" });
        Vec::new()
    };
    let reported = World::default().convention("quiet", "", nothing).convention("flip", "", flip).refused(&app()).await;
    assert_eq!(reported, "convention flip: still changes the template in round 8 of 8: spec.restartPolicy");
}

#[tokio::test]
async fn rule_15_oversized_template_is_refused() {
    let mut large = app();
    large["metadata"]["annotations"] = json!({"x": "x".repeat(template::TEMPLATE_MAX)});
    let world = World::default().convention("a", "", nothing);
    assert!(world.refused(&large).await.contains("the maximum is 2097152"));
    let blow: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        template["metadata"]["annotations"] = json!({"x": "x".repeat(template::TEMPLATE_MAX)});
        Vec::new()
    };
    let reported = World::default().convention("a", "", blow).refused(&app()).await;
    assert!(reported.starts_with("convention a: status.template: is 2097"), "{reported}");
    let many: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        let all: Vec<Value> = (0..201).map(|n| json!({"name": format!("c{n}")})).collect();
        template["spec"]["containers"] = all.into();
        Vec::new()
    };
    assert!(World::default().convention("a", "", many).refused(&app()).await.contains("201 containers; at most 200"));
}
