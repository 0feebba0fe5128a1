//! Tests the whole lifecycle of objects that `agent-cli kube play` creates. The rules are in docs/guides/kube-rules.md.

use executor_proto::v1::State;
use executor_proto::v1::event::Kind;
use integration::api::pid;
use integration::wait;

use crate::kube::world::{KubeFixture, NEW, OLD, POD, VARIABLE};

/// Rules P22, P30, P40, P53, P55, P56 and P64: all features of the pod work, a changed Secret is replaced in place, and
/// nothing is left after removal.
#[test]
fn pod_goes_through_its_life() {
    let world = KubeFixture::new();
    let before = world.daemon.footprint();
    let path = world.objects(OLD, VARIABLE, "hello");
    assert_eq!(world.diff(&path), [("web".to_owned(), "create".to_owned())]);
    let ran = world.play_ok(&path);
    for line in [
        "web: created",
        "web: prepare completed",
        "web: proxy started",
        "web: app started",
        "web: second started",
        "web: ready",
    ] {
        assert!(ran.stderr.contains(line), "{line}: {ran:?}");
    }
    // Check the order, the shared volume, the secrets, and the masked output.
    let output = wait::until("the first container's output", || {
        Some(world.daemon.api.logs_so_far("default_web_app")).filter(|output| output.contains(" hello\n"))
    });
    assert!(output.starts_with("up\ngot ") && !output.contains(VARIABLE), "{output}");
    wait::until("the second container's output", || {
        world.daemon.api.logs_so_far("default_web_second").starts_with("prepared\n").then_some(())
    });
    assert!(!world.daemon.api.logs_so_far("default_web_second").contains(OLD));
    assert_eq!(world.content("default_web_app", "/secrets/db/password"), OLD);
    let app = world.container("default_web_app");
    let file = app.files.iter().find(|file| file.path == "/secrets/db/password").unwrap();
    assert_eq!((file.mode, file.public), (0o400, false));
    let ps = world.reported(&["ps"]);
    assert_eq!(
        (ps[0]["phase"].as_str(), ps[0]["ready"].as_bool(), ps[0]["containers"].as_array().unwrap().len()),
        (Some("Running"), Some(true), 4),
        "{ps}"
    );
    assert!(world.kube(&["logs", "web", "-c", "second"]).stdout.starts_with("prepared"));

    // Applying twice changes nothing.
    assert_eq!(world.diff(&path), [("web".to_owned(), "unchanged".to_owned())]);
    let again = world.play_ok(&path);
    assert!(again.stderr.contains("nothing has changed"), "{again:?}");
    assert_eq!(world.container("default_web_app").files_generation, 1);

    // After the Secret changes, the same container gets a new generation of files.
    world.objects(NEW, VARIABLE, "hello");
    assert_eq!(world.diff(&path), [("web".to_owned(), "rotate".to_owned())]);
    assert!(!format!("{:?}", world.play(&["diff", &path])).contains(NEW));
    world.play_ok(&path);
    let rotated = world.container("default_web_app");
    assert_eq!((pid(&rotated), rotated.files_generation), (pid(&app), 2));
    assert_eq!(world.content("default_web_app", "/secrets/db/password"), NEW);
    assert_eq!(world.content("default_web_second", "/secrets/db/password"), NEW);
    // The proxy has no files from the Secret.
    assert_eq!(world.container("default_web_proxy").files_generation, 0);
    assert_eq!(world.diff(&path), [("web".to_owned(), "unchanged".to_owned())]);

    // A changed variable of a ConfigMap replaces the pod.
    world.objects(NEW, VARIABLE, "goodbye");
    assert_eq!(world.diff(&path), [("web".to_owned(), "replace".to_owned())]);
    world.play_ok(&path);
    assert_ne!(pid(&world.container("default_web_app")), pid(&app));
    wait::until("the new variable", || {
        world.daemon.api.logs_so_far("default_web_app").contains(" goodbye\n").then_some(())
    });

    // A changed secret variable also replaces the pod, although the variable is not part of the digest.
    let app = world.container("default_web_app");
    world.objects(NEW, "another-value-of-a-variable", "goodbye");
    assert_eq!(world.diff(&path), [("web".to_owned(), "replace".to_owned())]);
    world.play_ok(&path);
    assert_ne!(pid(&world.container("default_web_app")), pid(&app));

    let down = world.kube(&["down", &path]);
    assert_eq!(down.status, 0, "{down:?}");
    assert_eq!(world.containers().len(), 0);
    let gone = world.daemon.api.block_on(world.daemon.api.client().pods().get("default_web"));
    assert!(gone.is_err(), "{gone:?}");
    world.daemon.wait_until_back_at(&before);
    assert_eq!(world.kube(&["down", &path]).status, 0, "down twice");
}

/// Rules P11 to P13: during the play, no file of the daemon or of agent-cli contains a value of the Secret; after
/// `down`, no process does either. As a control, the container itself and the source file contain the values.
#[test]
fn nothing_is_left_of_a_secret() {
    let world = KubeFixture::new();
    let path = world.objects(OLD, VARIABLE, "hello");
    world.play_ok(&path);
    let container = pid(&world.container("default_web_app")) as u32;
    let found: Vec<String> = world.search(&[container]).hits.iter().map(|hit| hit.label.clone()).collect();
    assert!(
        found.iter().any(|label| label == "variable"),
        "control failed: the variable is not in the container: {found:?}"
    );
    assert!(world.search_files(&world.files()).found(), "control failed");
    let report = world.search_files(world.daemon.setup().home());
    assert!(!report.found() && report.files > 3, "{report}");
    world.objects(NEW, VARIABLE, "hello");
    world.play_ok(&path);
    assert_eq!(world.kube(&["down", "web"]).status, 0);
    wait::until("no secret is left", || (!world.search(&[]).found()).then_some(()));
    let report = world.search(&[]);
    assert!(!report.found() && report.files > 3, "{report}");
    assert_eq!(report.unsearched, [], "{report}");
}

/// Rules P31 and P32: the preStop hook runs in the container, and main containers stop before sidecars.
#[test]
fn prestop_runs_and_sidecars_stop_last() {
    let world = KubeFixture::new();
    let path = world.objects(OLD, VARIABLE, "hello");
    world.play_ok(&path);
    let mut events = world.daemon.api.events_after(world.daemon.api.info().cursor);
    let log = world.command(&["logs", "-f", "web"]).spawn().unwrap();
    let down = world.kube(&["down", "web"]);
    assert_eq!(down.status, 0, "{down:?}");
    assert!(!down.stderr.contains("hook"), "{down:?}");
    assert!(integration::cli::finish(log).stdout.ends_with("asked to stop\n"));
    let seen = events.until(|event| {
        event
            .event
            .as_ref()
            .is_some_and(|event| event.container_id == "default_web_proxy" && event.kind() == Kind::Stopping)
    });
    let ended: Vec<String> = seen
        .iter()
        .filter_map(|event| event.event.as_ref())
        .filter(|event| event.kind() == Kind::Completed)
        .map(|event| event.container_id.clone())
        .collect();
    assert!(
        ended.contains(&"default_web_app".to_owned()) && ended.contains(&"default_web_second".to_owned()),
        "{ended:?}"
    );
}

/// All files are checked before anything runs. Every violation is reported with file, document, object and path.
#[test]
fn violations_are_reported_before_anything_runs() {
    let world = KubeFixture::new();
    let text = format!(
        "{POD}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: bad}}\nspec:\n  runtimeClassName: other\n  containers:\n  - {{name: a, image: i:1, command: [{OLD}], env: [{{name: A, value: 1}}], imagee: x}}\n"
    );
    let path = world.write("web.yaml", &text);
    let ran = world.play(&["play", &path]);
    assert_eq!(ran.status, 125, "{ran:?}");
    for expected in [
        "(document 1, Pod default/web): spec.volumes[1].secret: there is no Secret `db`",
        "(document 2, Pod default/bad): spec.runtimeClassName: is not supported",
        "spec.containers[0].env[0].value: is a number; it must be a string: quote it",
        "spec.containers[0].imagee: is an unknown field",
    ] {
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    }
    assert_eq!(world.containers().len(), 0);
}

/// Rule P58: a ConfigMap and a file from a Secret can be mounted inside an emptyDir that another container shares.
#[test]
fn configuration_is_mounted_inside_an_empty_dir() {
    let world = KubeFixture::new();
    let before = world.daemon.footprint();
    let text = |word: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: nested}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: app\n    image: example.com/box:1\n    command: [sh, -c, 'cat /data/conf/word /data/key; exec sleep 100000']\n    volumeMounts: [{{name: data, mountPath: /data}}, {{name: conf, mountPath: /data/conf}}, {{name: key, mountPath: /data/key, subPath: key}}]\n  - name: other\n    image: example.com/box:1\n    command: [sleep, '100000']\n    volumeMounts: [{{name: data, mountPath: /data}}]\n  volumes: [{{name: data, emptyDir: {{}}}}, {{name: conf, configMap: {{name: c}}}}, {{name: key, secret: {{secretName: s}}}}]\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{word: {word}}}\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{key: {OLD}}}\n"
        )
    };
    let path = world.write("nested.yaml", &text("first"));
    world.play_ok(&path);
    assert_eq!(world.content("default_nested_app", "/data/conf/word"), "first");
    assert_eq!(world.content("default_nested_app", "/data/key"), OLD);
    assert_eq!(world.content("default_nested_other", "/data/key"), "");
    world.write("nested.yaml", &text("second"));
    world.play_ok(&path);
    assert_eq!(world.content("default_nested_app", "/data/conf/word"), "second");
    assert_eq!(world.kube(&["down", "nested"]).status, 0);
    world.daemon.wait_until_back_at(&before);
}

/// Rule P1: if executord refuses an object, the refusal is reported with file, line and column, and nothing is started.
/// The last file is the control.
#[test]
fn refusals_of_executord_precede_every_start() {
    let world = KubeFixture::new();
    let pods = || world.reported(&["ps"]).as_array().unwrap().len();
    let good = "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec:\n  containers:\n  - {name: a, image: 'example.com/box:1', command: [sleep, '100000']}\n";
    let bad = |spec: &str, container: &str| {
        format!(
            "{good}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: bad}}\nspec:\n{spec}  containers:\n  - name: first\n    image: example.com/box:1\n    command: [sleep, '100000']\n  - name: second\n    image: example.com/box:1\n    command: [sleep, '100000']\n{container}"
        )
    };
    for (text, places) in [
        (
            bad("", "    resources:\n      limits:\n        memory: 128m\n"),
            &["21:9 (document 2, Pod default/bad): spec.containers[1].resources.limits.memory: "][..],
        ),
        (
            bad("", "    resources: {limits: {memory: 100Ti}}\n"),
            &["19:26 (document 2, Pod default/bad): spec.containers[1].resources.limits.memory: "],
        ),
        (
            bad("  dnsConfig:\n    searches: [\"A B\"]\n", ""),
            &["13:16 (document 2, Pod default/bad): spec.dnsConfig.searches[0]: "],
        ),
        (
            bad(
                "  securityContext:\n    sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}, {name: kernel.panic, value: '1'}]\n",
                "",
            ),
            &["13:60 (document 2, Pod default/bad): spec.securityContext.sysctls[1]: "],
        ),
        (
            bad(
                "  volumes: [{name: work, emptyDir: {}}]\n",
                "    volumeMounts:\n    - {name: work, mountPath: /x}\n    - {name: work, mountPath: /proc/sys}\n",
            ),
            &["22:7 (document 2, Pod default/bad): spec.containers[1].volumeMounts[1]: "],
        ),
        // All violations of a pod and its containers are reported together.
        (
            bad("  dnsConfig:\n    searches: [\"A B\"]\n", "    resources: {limits: {memory: 128m}}\n"),
            &["13:16 (", "21:26 ("],
        ),
    ] {
        let path = world.write("refused.yaml", &text);
        for command in ["play", "diff"] {
            let ran = world.play(&[command, &path]);
            assert_eq!(ran.status, 125, "{ran:?}");
            for place in places {
                assert!(ran.stderr.contains(&format!("{path}:{place}")), "{place}: {}", ran.stderr);
            }
            assert!(ran.stderr.contains("executord refuses the request: "), "{ran:?}");
        }
        assert_eq!((world.containers().len(), pods()), (0, 0), "{text}");
    }
    let path = world.write("refused.yaml", &bad("", ""));
    world.play_ok(&path);
    assert_eq!((world.containers().len(), pods()), (3, 2));
}

/// Rule P61: the pods of a Deployment are replaced one after the other. Pods that are no longer in any file are
/// removed.
#[test]
fn deployment_pods_are_replaced_and_removed() {
    let world = KubeFixture::new();
    let deployment = |replicas: u32, word: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: box, namespace: team}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: box}}}}\n  template:\n    metadata: {{labels: {{app: box}}}}\n    spec:\n      terminationGracePeriodSeconds: 0\n      containers:\n      - {{name: box, image: 'example.com/box:1', command: [sleep, '100000'], env: [{{name: W, value: {word}}}]}}\n"
        )
    };
    let path = world.write("box.yaml", &deployment(3, "one"));
    world.play_ok(&path);
    let ids = || {
        world.containers().into_iter().filter(|one| one.state() == State::Running).map(|one| one.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(), ["team_box-0_box", "team_box-1_box", "team_box-2_box"]);
    let first = pid(&world.container("team_box-0_box"));
    world.write("box.yaml", &deployment(2, "one"));
    let changes = world.diff(&path);
    assert_eq!(changes.last().unwrap(), &("box-2".to_owned(), "remove".to_owned()), "{changes:?}");
    world.play_ok(&path);
    assert_eq!((ids().len(), pid(&world.container("team_box-0_box"))), (2, first));
    world.write("box.yaml", &deployment(2, "two"));
    world.play_ok(&path);
    assert_ne!(pid(&world.container("team_box-0_box")), first);
    // Zero replicas are no error: the Deployment is scaled down. `diff` agrees with `play`.
    world.write("box.yaml", &deployment(0, "two"));
    let names = ["box-0", "box-1"].map(|pod| (pod.to_owned(), "remove".to_owned()));
    assert_eq!(world.diff(&path), names);
    let scaled = world.play(&["play", &path, "--json"]);
    assert_eq!(scaled.status, 0, "{scaled:?}");
    let document: serde_json::Value = serde_json::from_str(&scaled.stdout).unwrap();
    assert_eq!(document["pods"].as_array().unwrap().len(), 2, "{document}");
    assert_eq!(world.containers().len(), 0);
    world.write("box.yaml", &deployment(1, "two"));
    world.play_ok(&path);
    // A file without objects removes no play.
    world.write("box.yaml", "# nothing\n");
    for command in ["play", "diff"] {
        let empty = world.play(&[command, &path]);
        assert!(empty.status == 125 && empty.stderr.contains("no objects; to remove a play"), "{empty:?}");
    }
    assert_eq!(ids().len(), 1);
    world.write("box.yaml", &deployment(1, "two"));
    // Another play does not adopt the object.
    let other = world.play(&["play", &path, "--name", "other"]);
    assert!(other.status == 125 && other.stderr.contains("belongs to the play `box`"), "{other:?}");
    assert_eq!(world.kube(&["down", "box"]).status, 0);
    assert_eq!(world.containers().len(), 0);
}
