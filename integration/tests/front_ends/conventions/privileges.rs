//! Servers that try to gain privileges or to obtain a secret: rules 13 and 14 of docs/guides/conventions.md.

use serde_json::json;

use integration::conventions::World;

#[test]
fn rule_13_server_adds_privilege_only_with_grant() {
    let world = World::start();
    world.web("2", "x");
    for (path, grant, field, value) in [
        ("privileged", "privileged", "spec.containers[app].securityContext.privileged", json!({"privileged": true})),
        ("host-path", "hostPath", "spec.volumes[host]", json!(null)),
    ] {
        world.register(&[("widener", path, "")]);
        let reported = world.refused();
        assert!(reported.contains(&format!("convention widener: {field}: adds ")), "{reported}");
        assert!(reported.contains(&format!("the registration lacks the grant {grant}")), "{reported}");
        // As a control, the addition succeeds with the right grant and fails with another grant.
        world.register(&[("widener", path, "grants = [\"root\", \"secrets\"]")]);
        assert!(world.refused().contains(grant));
        world.register(&[("widener", path, &format!("grants = [{grant:?}]"))]);
        let container = world.applied()["spec"]["template"]["spec"]["containers"][0].clone();
        assert_eq!(container["securityContext"], value);
    }
}

/// If the registry in an image name were contacted, the name would carry the value of a Secret out of the machine.
#[test]
fn rule_14_server_cannot_exfiltrate_secret() {
    let world = World::start();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "canary-a71e-secret"},
    });
    world.write("secret.yaml", &secret.to_string());
    world.web("2", "canary-a71e-secret");
    world.register(&[("thief", "steal", "")]);
    let ran = world.run(&["apply", "web.yaml", "secret.yaml"]);
    let expected = "convention thief: spec.containers[app].image: contains the value of a secret from another field";
    assert!(ran.status == 125 && ran.stdout.is_empty() && ran.stderr.contains(expected), "{ran:?}");
    assert!(!ran.stderr.contains("canary"), "{ran:?}");
}
