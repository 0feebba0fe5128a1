//! Tests rules 8 and 9 of `docs/guides/conventions.md`: order and repetition.

use serde_json::{Value, json};

use crate::common::{DIGEST, World, add_variable, app, nothing};

#[tokio::test]
async fn rule_8_each_convention_receives_previous_result() {
    let world = World::default()
        .convention("b", "", add_variable("B", "2"))
        .convention("a", "priority = \"Late\"", nothing)
        .convention("c", "priority = \"Early\"", add_variable("C", "3"));
    let decorated = world.decorate(&app()).await.unwrap();
    assert_eq!(decorated.conventions(), ["c", "b", "a"]);
    let variables = |at: usize| world.requests()[at]["spec"]["template"]["spec"]["containers"][0]["env"].clone();
    assert_eq!(variables(0), Value::Null);
    assert_eq!(variables(1), json!([{"name": "C", "value": "3"}]));
    assert_eq!(variables(2), json!([{"name": "C", "value": "3"}, {"name": "B", "value": "2"}]));
    // A round without changes is the last round.
    assert_eq!(world.requests().len(), 6);
    assert_eq!(decorated.steps.iter().map(|step| step.changes.len()).collect::<Vec<_>>(), [1, 1, 0, 0, 0, 0]);
}

#[tokio::test]
async fn rule_8_images_are_resolved_before_and_after_conventions() {
    let side = |image: &'static str| {
        move |template: &mut Value, _: &Value| {
            let containers = template["spec"]["containers"].as_array_mut().unwrap();
            if containers.iter().all(|container| container["name"] != image) {
                containers.push(json!({"name": image, "image": image}));
            }
            Vec::new()
        }
    };
    let world = World::default().convention("a", "", side("one")).convention("b", "", side("two"));
    let after = world.document(&app()).await;
    let images = |template: &Value| -> Vec<Value> {
        template["spec"]["containers"].as_array().unwrap().iter().map(|one| one["image"].clone()).collect()
    };
    let pinned = |name: &str| json!(format!("r.example/{name}:latest@{DIGEST}"));
    assert_eq!(images(&world.requests()[1]["spec"]["template"]), [pinned("app"), pinned("one")]);
    assert_eq!(images(&after), [pinned("app"), pinned("one"), pinned("two")]);
    // An image that cannot be resolved fails the whole decoration, even if the last convention added it.
    let reported = World::default().convention("a", "", side("missing")).refused(&app()).await;
    assert_eq!(reported, "spec.containers[missing].image: cannot resolve image \"missing\": it is not there");
}

#[tokio::test]
async fn rule_9_conventions_match_labels_of_each_round() {
    let label: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        template["metadata"]["labels"]["tier"] = json!("front");
        Vec::new()
    };
    let front = "priority = \"Early\"\nselectors = [{ matchLabels = { tier = \"front\" } }]";
    let world = World::default().convention("a", "", label).convention("b", front, add_variable("B", "2"));
    let once = world.document(&app()).await;
    assert_eq!(once["spec"]["containers"][0]["env"][0]["name"], "B");
    assert_eq!(world.document(&once).await, once);
}
