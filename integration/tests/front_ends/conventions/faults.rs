//! Servers with wrong, slow or endless responses or with a wrong identity: rules 1, 11 and 15 of
//! docs/guides/conventions.md.

use serde_json::json;

use integration::conventions::{Identity, SYSTEM, World, certificate};

/// Nothing is printed to standard output. The error message names the convention and the error, and does not quote the
/// response.
#[test]
fn rule_11_wrong_response_fails_decoration() {
    let world = World::start();
    world.web("2", "x");
    for (path, why) in [
        ("status", "responded with status 503; it must be 200"),
        ("created", "responded with status 201; it must be 200"),
        ("redirect", "responded with status 307; redirects are not followed"),
        ("html", "content type \"text/html\"; it must be application/json"),
        ("text", "the response is not JSON"),
        ("deep", "the response is not JSON"),
        ("kind", "kind: is \"PodIntent\"; it must be PodConventionContext"),
        ("empty", "not a PodConventionContext with a status.template"),
        ("cut", "the connection closed before the response was complete"),
        ("huge", "the response is larger than the maximum of 8"),
        ("grow", "still changes the template in round 8 of 8: spec.containers[app].args"),
    ] {
        world.register(&[("a", "hello", ""), ("b", path, "")]);
        let reported = world.refused();
        assert!(reported.contains("convention b: ") && reported.contains(why), "{path}: {reported}");
    }
    // The log shows that no redirect was followed: the second request belongs to the next run.
    let names: Vec<String> =
        world.log().iter().map(|request| request["body"]["metadata"]["name"].to_string()).collect();
    let redirected = world.log().iter().position(|request| request["path"] == "/redirect").unwrap();
    assert_eq!((&*names[redirected], &*names[redirected + 1]), ("\"b\"", "\"a\""));
}

#[test]
fn rule_15_a_call_has_its_time() {
    let world = World::start();
    world.web("2", "x");
    world.register(&[("b", "slow", "timeoutSeconds = 1")]);
    let reported = world.refused();
    assert!(
        reported.contains("convention b: https://127.0.0.1:") && reported.contains("did not respond within 1 s"),
        "{reported}"
    );
}

/// The certificate must match the host in the URL, be within its validity period, and be signed by the bundle; with a
/// bundle, no other authority is accepted.
#[test]
fn rule_1_server_certificate_is_verified() {
    let other_name = Identity { names: &["conventions.example"], ..Identity::GOOD };
    let expired = Identity { until: 2000, ..Identity::GOOD };
    for (identity, why) in [(other_name, "not valid for name"), (expired, "expired")] {
        let world = World::with(&identity);
        world.web("2", "x");
        world.register(&[("a", "hello", "")]);
        let reported = world.refused();
        assert!(reported.contains("is not trusted") && reported.contains(why), "{reported}");
        assert!(world.log().is_empty(), "nothing was sent");
    }
    let world = World::start();
    world.web("2", "x");
    let (stranger, _) = certificate(&Identity::GOOD);
    for more in [format!("caBundle = '''{stranger}'''"), SYSTEM.to_owned()] {
        world.register(&[("a", "hello", &more)]);
        assert!(world.refused().contains("is not trusted"), "{more}");
    }
    assert!(world.log().is_empty(), "nothing was sent");
    // As a control, the server is accepted with a file that contains the correct certificate and another certificate.
    let both = stranger + &std::fs::read_to_string(world.dir.path().join("ca.pem")).unwrap();
    world.write("both.pem", &both);
    world.register(&[("a", "hello", "caFile = \"both.pem\"")]);
    world.applied();
}

/// Rule 11: if a convention fails, an intent keeps its last good template. `observedGeneration` shows that this
/// template belongs to an earlier generation.
#[test]
fn rule_11_intent_keeps_last_good_template() {
    let world = World::start();
    world.register(&[("a", "hello", "")]);
    let intent = |generation: u64, status: &serde_json::Value| {
        json!({
            "apiVersion": "conventions.carto.run/v1alpha1", "kind": "PodIntent",
            "metadata": {"name": "web", "generation": generation}, "status": status,
            "spec": {"template": {"spec": {"containers": [{"name": "app", "image": world.image("2")}]}}},
        })
    };
    world.write("web.yaml", &intent(1, &json!({})).to_string());
    let good = world.applied()["status"].clone();
    assert_eq!((&good["observedGeneration"], &good["conditions"][0]["status"]), (&json!(1), &json!("True")));
    world.register(&[("a", "status", "")]);
    world.write("web.yaml", &intent(2, &good).to_string());
    let ran = world.run(&["apply", "--json", "web.yaml"]);
    assert_eq!(ran.status, 125, "{ran:?}");
    let status = ran.json()["items"][0]["status"].clone();
    assert_eq!((&status["observedGeneration"], &status["template"]), (&json!(1), &good["template"]));
    let condition = &status["conditions"][0];
    assert!(
        condition["status"] == "False" && condition["message"].as_str().unwrap().contains("status 503"),
        "{condition}"
    );
}

/// The request fails if the host is unknown or no process listens on the port.
#[test]
fn rule_11_unreachable_server_fails_decoration() {
    let world = World::start();
    world.web("2", "x");
    world.write("conventions.toml", "[[convention]]\nname = \"a\"\nurl = \"https://127.0.0.1:1/\"\n");
    assert!(world.refused().contains("convention a: https://127.0.0.1:1/: cannot connect"));
    let service = "[[convention]]\nname = \"a\"\nservice = { name = \"web\", namespace = \"nowhere\", port = 9443 }\n";
    world.write("conventions.toml", service);
    let reported = world.refused();
    assert!(
        reported.contains("convention a: https://web.nowhere.svc:9443/: cannot resolve the host name"),
        "{reported}"
    );
}
