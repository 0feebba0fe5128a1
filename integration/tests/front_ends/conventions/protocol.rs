//! The protocol with correct servers: rules 1 to 6, 8, 9, 10, 12 and 14 of docs/guides/conventions.md.

use serde_json::{Value, json};

use integration::conventions::World;

fn template(object: &Value) -> &Value {
    &object["spec"]["template"]
}

/// Rules 1 to 6: the server gets one POST of a context over HTTPS. The context contains the image by digest, its
/// configuration and its bills of materials.
#[test]
fn rules_1_to_6_context_is_posted_response_applied() {
    let world = World::start();
    world.register(&[("greeter", "hello", "")]);
    world.web("1", "x");
    let decorated = world.applied();
    let container = &template(&decorated)["spec"]["containers"][0];
    assert_eq!(container["env"][1], json!({"name": "CONVENTION_SERVER", "value": "HELLO FROM CONVENTION"}));
    let image = container["image"].as_str().unwrap();
    assert!(image.starts_with(&format!("{}@sha256:", world.image("1"))), "{image}");
    assert_eq!(
        template(&decorated)["metadata"]["annotations"],
        json!({
            "conventions.carto.run/applied-conventions": "greeter/add-convention_server",
        })
    );
    assert_eq!((&decorated["kind"], &decorated["spec"]["replicas"]), (&json!("Deployment"), &json!(1)));
    // The second request belongs to the last round, which changes nothing.
    let log = world.log();
    assert_eq!(log.len(), 2);
    let (headers, body) = (&log[0]["headers"], &log[0]["body"]);
    assert_eq!((&log[0]["path"], &headers["content-type"]), (&json!("/hello"), &json!("application/json")));
    assert_eq!(body["apiVersion"], "webhooks.conventions.carto.run/v1alpha1");
    assert_eq!((&body["kind"], &body["metadata"]["name"]), (&json!("PodConventionContext"), &json!("greeter")));
    assert_eq!(body["spec"]["template"]["spec"]["containers"][0]["image"], image);
    let described = &body["spec"]["imageConfig"][0];
    assert_eq!(described["image"], image);
    assert_eq!(described["config"]["config"]["Env"], json!(["PATH=/bin"]));
    assert_eq!(
        described["boms"],
        json!([{"name": "cnb-app:layers/sbom/app.syft.json", "raw": "eyJhcnRpZmFjdHMiOltdfQ=="}])
    );
}

#[test]
fn rule_6_image_without_label_has_no_boms() {
    let world = World::start();
    world.register(&[("bills", "boms", "")]);
    for (tag, count) in [("1", "1"), ("2", "0")] {
        world.web(tag, "x");
        assert_eq!(template(&world.applied())["metadata"]["labels"]["boms"], count);
    }
}

#[test]
fn rule_5_unresolvable_image_fails_before_any_request() {
    let world = World::start();
    world.register(&[("greeter", "hello", "")]);
    world.web("nope", "x");
    let reported = world.refused();
    assert!(
        reported.contains("web.yaml, document 1: Deployment web: spec.containers[app].image: cannot resolve image"),
        "{reported}"
    );
    assert!(world.log().is_empty());
}

/// Rules 8, 9 and 12: each convention gets the result of the previous convention, and applying the conventions twice
/// has the same result as applying them once.
#[test]
fn rules_8_9_and_12_conventions_chain_idempotently() {
    let world = World::start();
    let order = [("z", "seen", "priority = \"Early\""), ("a", "seen", "priority = \"Late\""), ("m", "hello", "")];
    world.register(&order);
    world.web("1", "x");
    let decorated = world.applied();
    // The first convention received only the given variable. The last convention also received the variable that it had
    // added.
    let env = &template(&decorated)["spec"]["containers"][0]["env"];
    assert_eq!(env[1], json!({"name": "SEEN", "value": "GIVEN"}));
    let asked: Vec<Value> = world.log().iter().map(|request| request["body"]["metadata"]["name"].clone()).collect();
    assert_eq!(asked, ["z", "m", "a", "z", "m", "a"]);
    world.write("web.yaml", &decorated.to_string());
    assert_eq!(world.applied(), decorated);
}

#[test]
fn rule_10_convention_cannot_speak_for_another() {
    let world = World::start();
    world.register(&[("forger", "forge", "")]);
    world.web("1", "x");
    let decorated = world.applied();
    let annotations = &template(&decorated)["metadata"]["annotations"];
    assert_eq!(annotations, &json!({"conventions.carto.run/applied-conventions": "forger/forge"}));
}

/// `explain` prints the changes of each convention. No request and no output contains the value of a Secret from the
/// same files.
#[test]
fn rule_14_explain_shows_changes_without_secrets() {
    const VALUE: &str = "canary-62b0-of-a-secret";
    let world = World::start();
    world.register(&[("greeter", "hello", ""), ("quiet", "boms", "")]);
    world.web("2", &format!("https://u:{VALUE}@db/"));
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": VALUE}});
    world.write("secret.yaml", &secret.to_string());
    let ran = world.run(&["explain", "web.yaml", "secret.yaml"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[..2], ["Deployment web", "  images by digest"]);
    assert_eq!(
        lines[4..],
        [
            "  convention greeter applied add-convention_server",
            "    + spec.containers[app].env[CONVENTION_SERVER].value: \"HELLO FROM CONVENTION\"",
            "  convention quiet applied label-boms",
            "    + metadata.labels.boms: \"0\"",
        ]
    );
    let explained = world.run(&["explain", "--json", "web.yaml", "secret.yaml"]);
    let step = &explained.json()[0]["steps"][0];
    assert_eq!(
        (&step["convention"], &step["round"], &step["changes"][0]["before"]),
        (&json!("greeter"), &json!(1), &Value::Null)
    );
    let reported = format!("{}{}{}", ran.stdout, explained.stdout, explained.stderr);
    let sent = std::fs::read_to_string(world.dir.path().join("log")).unwrap();
    assert!(!sent.contains(VALUE) && !reported.contains(VALUE));
    // `apply` inserts the value again, so the output is as complete as the file.
    let applied = world.run(&["apply", "--json", "web.yaml", "secret.yaml"]).json();
    let variable = &applied["items"][0]["spec"]["template"]["spec"]["containers"][0]["env"][0];
    assert_eq!(variable["value"], format!("https://u:{VALUE}@db/"));
    assert_eq!(applied["items"][1], secret);
    // As a control, the value is not secret without the Secret, and is sent.
    world.run(&["explain", "web.yaml"]);
    assert!(std::fs::read_to_string(world.dir.path().join("log")).unwrap().contains(VALUE));
}

/// Objects without a template are printed unchanged and in order; templates in lists and in objects of other kinds are
/// decorated.
#[test]
fn objects_with_templates_are_decorated() {
    let world = World::start();
    world.register(&[("greeter", "hello", "")]);
    let pod = json!({"spec": {"containers": [{"name": "app", "image": world.image("2")}]}});
    let of = |version: &str, kind: &str, more: Value| {
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "x", "generation": 3}});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let items = [
        of("v1", "Pod", pod.clone()),
        of("apps/v1", "StatefulSet", json!({"spec": {"template": pod}})),
        of("batch/v1", "Job", json!({"spec": {"template": pod}})),
        of("batch/v1", "CronJob", json!({"spec": {"jobTemplate": {"spec": {"template": pod}}}})),
        of("conventions.carto.run/v1alpha1", "PodIntent", json!({"spec": {"template": pod}})),
        of("v1", "ConfigMap", json!({"data": {"a": "yes", "b": "0644"}})),
    ];
    world.write("web.yaml", &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    let list = world.applied();
    let [of_pod, set, job, cron, intent, map] = list["items"].as_array().unwrap().as_slice() else { panic!("{list}") };
    assert_eq!(of_pod["metadata"]["name"], "x");
    assert_eq!(
        of_pod["metadata"]["annotations"]["conventions.carto.run/applied-conventions"],
        "greeter/add-convention_server"
    );
    for template in [
        of_pod,
        &set["spec"]["template"],
        &job["spec"]["template"],
        &cron["spec"]["jobTemplate"]["spec"]["template"],
        &intent["status"]["template"],
    ] {
        assert_eq!(template["spec"]["containers"][0]["env"][0]["name"], "CONVENTION_SERVER", "{template}");
    }
    assert_eq!((&intent["spec"]["template"], &intent["status"]["observedGeneration"]), (&pod, &json!(3)));
    assert_eq!(map, &items[5]);
    // The YAML output parses to the same objects.
    let yaml = world.run(&["apply", "web.yaml"]).stdout;
    assert!(yaml.contains("b: \"0644\"") || yaml.contains("b: '0644'"), "{yaml}");
    world.write("again.yaml", &yaml);
    let again = world.run(&["apply", "--json", "again.yaml"]).json();
    assert_eq!(again["items"][0], list);
}
