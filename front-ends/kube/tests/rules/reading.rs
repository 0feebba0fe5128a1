//! Tests rules P1 to P10 of `docs/guides/kube-rules.md`: reading files.

use executor_kube::report::Strictness;

use crate::common::{MAP, SECRET, checked, options, plan, pod, refused, refuses, request, run, variables};

#[test]
fn p1_documents_and_lists_are_read() {
    let web = pod("env:\n- {name: X, valueFrom: {configMapKeyRef: {name: c, key: A}}}", "");
    // The ConfigMap is last, after an empty document with a comment.
    let text = format!("{web}---\n# nothing\n---\n{}", &MAP[4..]);
    assert_eq!(variables(&run(&plan(&text)).env), [("X".to_owned(), "one".to_owned())]);
    let list = r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"x","image":"i:1"}]}},
        {"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"x","image":"i:1","env":[{"name":"A","value":1}]}]}}]}"#;
    assert_eq!(refused(list), ["P3 spec.containers[0].env[0].value: is a number; it must be a string: quote it"]);
    let found = checked(list, Strictness::Strict, &options()).unwrap_err();
    assert!(found[0].object == "Pod default/b" && found[0].line == 2, "{found:?}");
    refuses("--- {a: b}\n", "P1");
}

/// If files have several violations, all are reported together with file, line, document, object and path.
#[test]
fn p1_everything_is_reported_at_once() {
    let text = format!(
        "{}---\nkind: Pod\n---\na: [\n---\n{}",
        pod("imagePullPolicy: Sometimes\nworkingDir: x", ""),
        pod("", "").replace("web", "Bad_Name")
    );
    let reported: Vec<String> =
        checked(&text, Strictness::Strict, &options()).unwrap_err().iter().map(ToString::to_string).collect();
    for expected in [
        "(document 1, Pod default/web): spec.containers[0].imagePullPolicy: must be Always",
        "(document 1, Pod default/web): spec.containers[0].workingDir: must be absolute",
        "apiVersion: is missing",
        "f.yaml:16:4 (document 3): the text is not YAML",
        "(document 4, Pod default/Bad_Name): metadata.name: is not a DNS subdomain",
    ] {
        assert!(reported.iter().any(|one| one.contains(expected)), "{expected}: {reported:#?}");
    }
    assert!(reported.iter().any(|one| one.starts_with("f.yaml:12:5 ")), "{reported:#?}");
}

#[test]
fn p2_file_modes_are_validated() {
    let with = |mode: &str| {
        pod(
            "volumeMounts: [{name: v, mountPath: /v}]",
            &format!("volumes: [{{name: v, configMap: {{name: c, defaultMode: {mode}}}}}]"),
        ) + MAP
    };
    for (mode, bits) in
        [("0400", 0o400), ("0o400", 0o400), ("256", 0o400), ("400", 0o620), ("420", 0o644), ("0777", 0o777)]
    {
        assert_eq!(run(&plan(&with(mode))).volume_mounted_files[0].mode, Some(bits), "{mode}");
    }
    refuses(&with("\"0400\""), "P3 spec.volumes[0].configMap.defaultMode: is a string");
    for mode in ["0888", "01000", "512", "-1"] {
        refuses(&with(mode), "P2 spec.volumes[0].configMap.defaultMode");
    }
}

#[test]
fn p3_text_is_quoted() {
    refuses(
        &pod("env: [{name: A, value: 8080}]", ""),
        "P3 spec.containers[0].env[0].value: is a number; it must be a string: quote it",
    );
    refuses(&pod("env: [{name: A, value: yes}]", ""), "P3 spec.containers[0].env[0].value: is a boolean");
    refuses(&pod("env: [{name: A, value: \"1\", Value: x}]", ""), "P4 spec.containers[0].env[0].Value");
}

#[test]
fn p4_unknown_fields_by_strictness() {
    let text = pod("imagee: x", "")
        + "---\napiVersion: v1\nkind: Widget\nmetadata: {name: w}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\ndata: {a: '1', a: '2'}\n";
    let reported = refused(&text);
    assert_eq!(reported.len(), 3, "{reported:?}");
    assert!(
        reported[0].starts_with("P4 data.a: occurs twice")
            || reported.iter().any(|one| one.starts_with("P4 data.a: occurs twice"))
    );
    let (_, warnings) = checked(&text, Strictness::Warn, &options()).unwrap();
    assert_eq!(warnings.len(), 3);
    let (_, warnings) = checked(&text, Strictness::Ignore, &options()).unwrap();
    assert_eq!(warnings.len(), 0);
    refuses(&pod("", "").replace("apiVersion: v1", "apiVersion: v2"), "P4 apiVersion");
}

#[test]
fn p5_oversized_objects_are_refused() {
    let data = |bytes: usize| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{a: {}}}\n", "x".repeat(bytes))
    };
    assert!(checked(&data(1 << 20), Strictness::Strict, &options()).is_ok());
    refuses(&data((1 << 20) + 1), "P5 : has 1048577 bytes of data");
    let annotated = pod("", "").replace("a\\nb", &"x".repeat(262_144));
    refuses(&annotated, "P5 metadata.annotations: is 262148");
    refuses(&data(3 << 20), "P2 : the document is");
}

#[test]
fn p6_duplicate_or_invalid_names_are_refused() {
    let reported = refused(&pod("", "initContainers: [{name: app, image: i:1}, {name: A_b, image: i:1}]"));
    assert!(
        reported.iter().any(|one| one.starts_with("P6 spec.containers[0].name: `app` is the name of another")),
        "{reported:?}"
    );
    assert!(reported.iter().any(|one| one.starts_with("P6 spec.initContainers[1].name")), "{reported:?}");
    // The namespace is part of the identity.
    let other = format!("{}---\n{}", pod("", ""), pod("", "").replace("name: web", "name: web\n  namespace: other"));
    let ids: Vec<String> = plan(&other).pods.into_iter().map(|pod| pod.id).collect();
    assert_eq!(ids, ["default_web", "other_web"]);
    let env = "envFrom: [{configMapRef: {name: c}}]";
    let elsewhere = MAP.replace("name: c", "name: c, namespace: other");
    refuses(
        &(pod(env, "") + &elsewhere),
        "P19 spec.containers[0].envFrom[0]: there is no ConfigMap `c` in the namespace default",
    );
    let reported = refused(&format!("{}---\n{}", pod("", ""), pod("", "")));
    assert_eq!(reported.len(), 1, "{reported:?}");
    // YAML parses `n` as a boolean. Only this violation is reported, not a missing name.
    refuses(&pod("", "").replace("name: web", "name: n"), "P3 metadata.name");
    let reported = refused(&pod("", "").replace("name: web", "name: ''\n  generateName: web-"));
    assert!(reported.iter().any(|one| one.contains("generateName")), "{reported:?}");
    refuses(
        &pod("", "").replace("name: web", &format!("name: {}", "x".repeat(60) + "." + &"y".repeat(60))),
        "P6 metadata.name: results in an id NAMESPACE_POD_CONTAINER of",
    );
}

#[test]
fn p7_invalid_keys_are_refused() {
    let map = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n{data}\n");
    refuses(&map("data: {'a/b': x}"), "P7 data['a/b']");
    refuses(&map("data: {'..a': x}"), "P7 data['..a']");
    refuses(&map("data: {'.': x}"), "P7");
    refuses(&map("data: {a: x}\nbinaryData: {a: eA==}"), "P7 binaryData.a: is also in `data`");
    assert!(checked(&map("data: {'.a': x, '-_.A9': ''}"), Strictness::Strict, &options()).is_ok());
}

#[test]
fn p8_base64_and_string_data() {
    let with = |data: &str| {
        pod("envFrom: [{secretRef: {name: s}}]", "") + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n" + data
    };
    let text = with("data:\n  a: |\n    aHVu\n    dGVyMg==\n  b: b2xk\nstringData: {b: new}\n");
    assert_eq!(
        variables(&run(&plan(&text)).secret_environment),
        [("a".to_owned(), "hunter2".to_owned()), ("b".into(), "new".into())]
    );
    for data in ["data: {a: hunter2hunter}\n", "data: {a: aHVudGVyMg}\n", "data: {a: '!canary!'}\n"] {
        let reported = refused(&with(data));
        assert!(reported == ["P8 data.a: is not padded base64"] || data.contains("hunter2hunter"), "{reported:?}");
        assert!(!reported.concat().contains("canary"));
    }
}

#[test]
fn p9_secret_data_must_match_type() {
    let secret = |kind: &str, data: &str| {
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\ntype: {kind}\nstringData: {data}\n")
    };
    for (kind, data) in [
        ("kubernetes.io/service-account-token", "{token: x}"),
        ("kubernetes.io/dockercfg", "{a: x}"),
        ("kubernetes.io/dockerconfigjson", "{.dockerconfigjson: canary}"),
        ("kubernetes.io/dockerconfigjson", "{.dockerconfigjson: '[]'}"),
        ("kubernetes.io/dockercfg", "{.dockercfg: '1'}"),
        ("kubernetes.io/basic-auth", "{user: x}"),
        ("kubernetes.io/ssh-auth", "{ssh-privatekey: ''}"),
        ("kubernetes.io/tls", "{tls.crt: x}"),
    ] {
        let reported = refused(&secret(kind, data));
        assert!(
            reported.len() == 1
                && reported[0].starts_with(&format!("P9 type: {kind}"))
                && !reported[0].contains("canary"),
            "{reported:?}"
        );
    }
    for (kind, data) in [
        ("kubernetes.io/dockerconfigjson", "{.dockerconfigjson: '{}'}"),
        ("kubernetes.io/basic-auth", "{username: ''}"),
        ("kubernetes.io/tls", "{tls.crt: '', tls.key: ''}"),
        ("example.com/mine", "{}"),
    ] {
        assert!(checked(&secret(kind, data), Strictness::Strict, &options()).is_ok(), "{kind}");
    }
}

/// If a Secret is invalid, no violation contains its values.
#[test]
fn p9_no_message_has_a_value() {
    let broken = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, labels: canary-1}\ntype: {a: canary-2}\ndata: {a: [canary-3], b: {c: canary-4}, d: 'canary-5'}\nstringData: {e: 3}\ncanary: canary-6\nimmutable: canary-7\n";
    let reported = refused(broken);
    assert!(reported.len() >= 6, "{reported:?}");
    assert!(!reported.concat().contains("canary-"), "{reported:?}");
    let text = pod("env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: no}}}]", "") + SECRET;
    assert!(!refused(&text).concat().contains("canary"));
}

/// If a few lines require too many pods or too much memory, they are refused.
#[test]
fn p5_pods_and_memory_are_limited() {
    let deployment = |name: &str, replicas: u32, pod: &str| {
        format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{a: b}}}}\n  template: {{metadata: {{labels: {{a: b}}}}, spec: {{{pod}}}}}\n"
        )
    };
    let small = "containers: [{name: a, image: 'i:1'}]";
    let many: String = (0..11).map(|number| deployment(&format!("d{number}"), 1000, small)).collect();
    refuses(&many, "P5 spec: creates, with preceding objects, more than 10000 pods");
    let large = "containers: [{name: a, image: 'i:1', volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, configMap: {name: c}}]";
    let map = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{a: {}}}\n", "x".repeat(1 << 20));
    let reported = refused(&(map + &deployment("d", 200, large)));
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].starts_with("P5 spec.template.spec.containers[0]: needs, with preceding objects"),
        "{reported:?}"
    );
}

#[test]
fn p6_invalid_labels_are_refused() {
    let with = |labels: &str| pod("", "").replace("{app: web}", labels);
    for (labels, begins) in [
        ("{'a b': c}", "P6 metadata.labels['a b']: is not a valid key"),
        ("{app: 'a b'}", "P6 metadata.labels['app']: is not a valid label value"),
        ("{app: -a}", "P6 metadata.labels['app']"),
        ("{Example.com/a: b}", "P6 metadata.labels['Example.com/a']"),
    ] {
        refuses(&with(labels), begins);
    }
    refuses(&pod("", "").replace("{note:", "{'a b':"), "P6 metadata.annotations['a b']");
    plan(&with("{app: '', example.com/A_b.c: D-1}"));
    plan(&pod("", "").replace("{note:", "{Example.com/Note:"));
    let template = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {metadata: {labels: {a: 'b c'}}, spec: {restartPolicy: Never, containers: [{name: a, image: 'i:1'}]}}}\n";
    refuses(template, "P6 spec.template.metadata.labels['a']");
    refuses("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, labels: {a: 'b c'}}\n", "P6 metadata.labels['a']");
}

/// If a field without effect is invalid, it is refused (rule P6).
#[test]
fn p6_invalid_owners_and_finalizers_are_refused() {
    let with = |text: &str| pod("", "").replace("  name: web\n", &format!("  name: web\n  {text}\n"));
    let owner = "{apiVersion: v1, kind: Node, name: node, uid: u";
    plan(&with(&format!("ownerReferences: [{owner}, controller: true}}, {owner}}}]")));
    plan(&with("finalizers: [example.com/one, orphan]"));
    refuses(&with("ownerReferences: [{apiVersion: v1, kind: Node, name: node}]"), "P6 metadata.ownerReferences[0].uid");
    let two = format!("ownerReferences: [{owner}, controller: true}}, {owner}, controller: true}}]");
    refuses(&with(&two), "P6 metadata.ownerReferences: has more");
    refuses(&with("finalizers: ['a b']"), "P6 metadata.finalizers[0]");
    refuses(&with("finalizers: [orphan, foregroundDeletion]"), "P6 metadata.finalizers: has both");
}

/// If a key is YAML's null, it is refused, although `null` would be a valid string.
#[test]
fn null_is_no_key() {
    for key in ["~", "null", "? "] {
        let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{{key}: a}}\n");
        assert!(refused(&text).iter().any(|one| one.contains("key is null")), "{key}");
    }
    plan(&format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{'null': a}}\n---\n{}", pod("", "")));
}

/// If lists are nested, or their items have no kind, the items are read as objects (rule P1).
#[test]
fn p1_lists_are_flattened() {
    let inner = "{apiVersion: v1, kind: ConfigMapList, items: [{metadata: {name: c}, data: {A: one}}, {apiVersion: v1, kind: ConfigMap, metadata: {name: d}}]}";
    let list = |items: &str| format!("apiVersion: v1\nkind: List\nitems:\n{items}");
    let pod = pod("envFrom: [{configMapRef: {name: c}}]", "");
    let text = format!("---\n{}---\n{pod}", list(&format!("- {{apiVersion: v1, kind: List, items: [{inner}]}}\n")));
    let run = run(&plan(&text));
    assert_eq!(variables(&run.env), [("A".to_owned(), "one".to_owned())]);
    // A violation has the location of the item.
    let reported = refused(&text.replace("data: {A: one}", "data: {A: 1}"));
    assert!(
        reported
            .iter()
            .any(|one| one.starts_with("P3 items[0].items[0].items[0].data.A") || one.starts_with("P3 data.A")),
        "{reported:?}"
    );
    refuses(&list("- {metadata: {name: c}}\n"), "P3 apiVersion: is missing");
    refuses("apiVersion: v1\nkind: List\nitems: text\n", "P3 items: is a string");
    refuses("apiVersion: v1\nkind: ConfigMapList\nitems: [{kind: ConfigMap, metadata: {name: c}}]\n", "P3 apiVersion");
    // Without items, the document is an object whose kind ends with `List`.
    refuses("apiVersion: example.com/v1\nkind: AllowList\nmetadata: {name: a}\n", "P4 kind: AllowList");
    let deep = format!("{}{}", "{apiVersion: v1, kind: List, items: [".repeat(40), "]}".repeat(40));
    plan(&format!("{deep}\n---\n{pod}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n"));
}

/// If a value is null, it is decoded as an empty string or zero, as in Go (rule P3).
#[test]
fn p3_null_is_empty_text_or_zero() {
    let text = pod("resources: {limits: {memory: , cpu: 1}, requests: {cpu: null}}\nargs: [null, a]", "")
        .replace("{app: web}", "{app: null}");
    let plan = plan(&text);
    assert_eq!(plan.pods[0].create.labels.iter().find(|(key, _)| *key == "app").unwrap().1, "");
    let request = request(&plan);
    assert_eq!(
        (request.limits.unwrap().memory_bytes, request.action.unwrap().run.unwrap().args),
        (0, vec![String::new(), "a".into()])
    );
    for value in ["''", "true", "[1]", "{}", "x"] {
        let reported = refused(&pod(&format!("resources: {{limits: {{memory: {value}}}}}\nimagee: x"), ""));
        assert_eq!(reported.len(), 2, "{value}: {reported:?}");
        assert!(reported.iter().any(|one| one.contains("is not a quantity such as 500m")), "{value}: {reported:?}");
    }
    let reported = refused(&pod("livenessProbe: {httpGet: {port: [1]}}", ""));
    assert!(reported.iter().any(|one| one.contains("port: is not a whole number or a string")), "{reported:?}");
}

/// If YAML has the indentation that Go programs write, it is accepted, as in bundles (rule P1).
#[test]
fn p1_indentation_of_go_programs_is_accepted() {
    let map = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata:\n{data}---\n");
    let pod = pod("envFrom: [{configMapRef: {name: c}}]", "");
    for data in ["  A: \"one\n  two\"\n", "  A: 'one\ntwo'\n", "  {\n\tA:\t'one two'\n\t}\n"] {
        let run = run(&plan(&(map(data) + &pod)));
        assert_eq!(variables(&run.env), [("A".to_owned(), "one two".to_owned())], "{data:?}");
    }
}
