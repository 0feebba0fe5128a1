//! Tests rules P11 to P21 of `docs/guides/kube-rules.md`: secrets, variables and commands.

use crate::common::{MAP, SECRET, cni, plan, plan_with, pod, refused, refused_with, refuses, run, variables};

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// If an expanded variable or argument contains a secret, it is secret.
#[test]
fn p11_p12_expansions_with_secrets_are_secret() {
    let container = "command: [/bin/sh, -c, 'echo $(URL)', '', plain]\nargs: ['$(PLAIN)']\nenv:\n\
                     - {name: PASS, valueFrom: {secretKeyRef: {name: s, key: key}}}\n- {name: URL, value: 'db://u:$(PASS)@h'}\n\
                     - {name: TWICE, value: '$(URL)?'}\n- {name: PLAIN, value: p}\n- {name: OF_MAP, valueFrom: {configMapKeyRef: {name: c, key: A}}}";
    let whole = plan(&(pod(container, "") + SECRET + MAP));
    let run = run(&whole);
    assert_eq!(variables(&run.env), pairs(&[("PLAIN", "p"), ("OF_MAP", "one")]));
    let secret = pairs(&[("PASS", "hunter2"), ("URL", "db://u:hunter2@h"), ("TWICE", "db://u:hunter2@h?")]);
    assert_eq!(variables(&run.secret_environment), secret);
    assert_eq!(
        (run.path.as_str(), run.args.iter().map(String::as_str).collect::<Vec<_>>()),
        ("/bin/sh", vec!["-c", "", "", "plain", "p"])
    );
    let arguments: Vec<_> = run.secret_arguments.iter().map(|one| (one.index, one.value.as_str())).collect();
    assert_eq!(arguments, [(1, "echo db://u:hunter2@h"), (2, "")]);
    // The debug output does not contain the value.
    assert!(!format!("{whole:?}").contains("hunter2"));
    let program =
        pod("command: ['$(P)']\nenv: [{name: P, valueFrom: {secretKeyRef: {name: s, key: key}}}]", "") + SECRET;
    assert!(refused(&program)[0].starts_with("P12 spec.containers[0].command[0]"));
}

#[test]
fn p13_secrets_in_recorded_fields_are_refused() {
    let env = "env: [{name: P, valueFrom: {secretKeyRef: {name: s, key: key}}}]\n";
    let probe = pod(&format!("{env}livenessProbe: {{exec: {{command: [sh, -c, 'test $(P)']}}}}"), "") + SECRET;
    assert!(refused(&probe)[0].starts_with("P13 spec.containers[0].livenessProbe.exec.command[2]"));
    let path = pod(
        &format!("{env}volumeMounts: [{{name: v, mountPath: /v, subPathExpr: '$(P)'}}]"),
        "volumes: [{name: v, emptyDir: {}}]",
    ) + SECRET;
    assert!(refused(&path)[0].starts_with("P13 spec.containers[0].volumeMounts[0].subPathExpr"));
}

#[test]
fn p14_checks_and_hooks_have_the_environment() {
    let with = |extra: &str| crate::common::request(&plan(&pod(extra, ""))).keep_environment;
    assert!(!with("readinessProbe: {tcpSocket: {port: 80}}"));
    assert!(with("readinessProbe: {exec: {command: [x]}}") && with("lifecycle: {preStop: {exec: {command: [x]}}}"));
}

#[test]
fn p15_later_variable_replaces_earlier() {
    let container = "envFrom: [{configMapRef: {name: c}}, {prefix: P_, configMapRef: {name: c}}, {secretRef: {name: s}}]\nenv: [{name: A, value: env}, {name: word, value: over}]";
    let run = run(&plan(&(pod(container, "") + MAP + SECRET)));
    // binaryData is skipped.
    assert_eq!(
        variables(&run.env),
        pairs(&[("A", "env"), ("b.c", "two"), ("P_A", "one"), ("P_b.c", "two"), ("word", "over")])
    );
    assert_eq!(variables(&run.secret_environment), pairs(&[("key", "hunter2")]));
}

#[test]
fn p16_invalid_variable_names_are_refused() {
    let names = plan(&pod("env: [{name: 'a b.c-1', value: x}]", ""));
    assert_eq!(run(&names).env[0].name, "a b.c-1");
    for name in ["''", "a=b", "\"a\\nb\"", "ä"] {
        refuses(&pod(&format!("env: [{{name: {name}, value: x}}]"), ""), "P16 spec.containers[0].env[0].name");
    }
}

#[test]
fn p17_expansion_sees_what_was_before() {
    let container = "envFrom: [{configMapRef: {name: c}}]\nenv: [{name: X, value: '$(A) $(LATER) $$(A) $(PATH)'}, {name: LATER, value: l}, {name: R, valueFrom: {configMapKeyRef: {name: d, key: raw}}}]";
    let raw = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\ndata: {raw: '$(A)'}\n";
    let env = variables(&run(&plan(&(pod(container, "") + MAP + raw))).env);
    assert!(
        env.contains(&("X".into(), "one $(LATER) $(A) $(PATH)".into())) && env.contains(&("R".into(), "$(A)".into())),
        "{env:?}"
    );
}

#[test]
fn p18_command_and_args_are_lowered() {
    let of = |container: &str| {
        let run = run(&plan(&pod(container, "")));
        (run.path, run.args)
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert_eq!(of(""), (String::new(), vec![]));
    assert_eq!(of("args: [a]"), (String::new(), words(&["a"])));
    assert_eq!(of("command: [c, d]"), ("c".into(), words(&["d"])));
    assert_eq!(of("command: [c]\nargs: ['$(V)']\nenv: [{name: V, value: v}]"), ("c".into(), words(&["v"])));
    refuses(&pod("workingDir: a", ""), "P18 spec.containers[0].workingDir");
}

#[test]
fn p19_missing_objects_and_keys_are_refused() {
    refuses(
        &pod("env: [{name: A, valueFrom: {secretKeyRef: {name: nil, key: k}}}]", ""),
        "P19 spec.containers[0].env[0].valueFrom.secretKeyRef: there is no Secret `nil`",
    );
    refuses(
        &(pod("env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: k}}}]", "") + MAP),
        "P19 spec.containers[0].env[0].valueFrom.configMapKeyRef.key: the ConfigMap `c` has no key `k`",
    );
    let optional = "env: [{name: A, valueFrom: {secretKeyRef: {name: nil, key: k, optional: true}}}]\nenvFrom: [{secretRef: {name: nil, optional: true}}]";
    assert!(run(&plan(&pod(optional, ""))).env.is_empty());
}

#[test]
fn p20_pod_fields_become_variables() {
    let field =
        |name: &str, path: &str| format!("- {{name: {name}, valueFrom: {{fieldRef: {{fieldPath: \"{path}\"}}}}}}\n");
    let paths = [
        "metadata.name",
        "metadata.namespace",
        "metadata.labels['app']",
        "metadata.annotations['note']",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.podIP",
    ];
    let env: String = paths.iter().enumerate().map(|(index, path)| field(&format!("V{index}"), path)).collect();
    let values: Vec<String> =
        run(&plan(&pod(&format!("env:\n{env}"), ""))).env.into_iter().map(|one| one.value).collect();
    assert_eq!(values, ["web", "default", "web", "a\nb", "node-1", "default", "127.0.0.1", "127.0.0.1"]);
    let uid = |text: &str| run(&plan(text)).env[0].value.clone();
    let with_uid = pod(&format!("env:\n{}", field("U", "metadata.uid")), "");
    assert_eq!((uid(&with_uid).len(), uid(&with_uid)), (36, uid(&with_uid)));
    refuses(&pod(&format!("env:\n{}", field("U", "spec.containers")), ""), "P20");
    assert!(refused_with(&pod(&format!("env:\n{}", field("U", "status.podIP")), ""), &cni())[0].starts_with("P20"));
    let volume = "volumes: [{name: v, downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}, {path: a, fieldRef: {fieldPath: metadata.annotations}}]}}]";
    let files = run(&plan(&pod("volumeMounts: [{name: v, mountPath: /v}]", volume))).volume_mounted_files;
    let contents: Vec<_> = files
        .iter()
        .map(|file| (file.path.as_str(), std::str::from_utf8(&file.content).unwrap(), file.public))
        .collect();
    assert_eq!(contents, [("/v/a", "note=\"a\\nb\"", true), ("/v/l", "app=\"web\"", true)]);
    // Values are quoted as in Go, with one line for each key, sorted by key.
    let odd = pod("volumeMounts: [{name: v, mountPath: /v}]", volume)
        .replace("note: \"a\\nb\"", "note: \"\\a\\x01\\x7f'\\\"\\\\ ä\", before: x");
    let content = run(&plan(&odd)).volume_mounted_files[0].content.clone();
    assert_eq!(
        String::from_utf8(content).unwrap(),
        r#"before="x"
note="\a\x01\x7f'\"\\ ä""#
    );
}

#[test]
fn p21_resource_fields_are_divided_and_validated() {
    let resource = |name: &str, divisor: &str| {
        format!(
            "env: [{{name: V, valueFrom: {{resourceFieldRef: {{resource: {name}, divisor: {divisor}}}}}}}]\nresources: {{limits: {{cpu: 1500m, memory: 129Mi}}}}"
        )
    };
    let value = |container: String| run(&plan(&pod(&container, ""))).env[0].value.clone();
    assert_eq!(value(resource("limits.cpu", "'0'")), "2");
    assert_eq!(value(resource("limits.cpu", "1m")), "1500");
    assert_eq!(value(resource("requests.memory", "1M")), "136");
    for (resource_name, divisor) in [("limits.memory", "2Mi"), ("limits.cpu", "2"), ("limits.cpu", "1Mi")] {
        refuses(
            &pod(&resource(resource_name, divisor), ""),
            "P21 spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor",
        );
    }
    let of_other = |name: &str| {
        pod(
            &format!(
                "env: [{{name: V, valueFrom: {{resourceFieldRef: {{containerName: {name}, resource: limits.cpu}}}}}}]"
            ),
            "initContainers: [{name: other, image: i:1, resources: {limits: {cpu: 3}}}]",
        )
    };
    assert_eq!(run(&plan(&of_other("other"))).env[0].value, "3");
    refuses(&of_other("nil"), "P21 spec.containers[0].env[0].valueFrom.resourceFieldRef.containerName");
    assert_eq!(value("env: [{name: V, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]".into()), "4");
    refuses(&pod(&resource("limits.gpu", "1"), ""), "P21");
    refuses(&pod("env: [{name: A, value: \"a\\0b\"}]", ""), "P21 spec.containers[0].env[0].value");
    refuses(&pod(&format!("env: [{{name: A, value: {}}}]", "x".repeat(131_072)), ""), "P21");
    refuses(
        &pod("env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k}}}]", ""),
        "P21 spec.containers[0].env[0].valueFrom: fileKeyRef is not supported",
    );
    assert!(plan_with(&pod(&format!("env: [{{name: A, value: {}}}]", "x".repeat(131_071)), ""), &cni()).1.is_empty());
}

/// If a few bytes reference a long variable many times, memory use is limited.
#[test]
fn p21_expansion_is_bounded() {
    let bomb =
        format!("env: [{{name: A, value: {}}}, {{name: B, value: '{}'}}]", "x".repeat(131_000), "$(A)".repeat(200_000));
    refuses(&pod(&bomb, ""), "P21 spec.containers[0].env[1].value");
    let many: String = (0..60).map(|index| format!(", {{name: B{index}, value: '$(A)'}}")).collect();
    let many = format!("env: [{{name: A, value: {}}}{many}]", "x".repeat(131_000));
    refuses(&pod(&many, ""), "P21 spec.containers[0].env: has 7991");
}

#[test]
fn p17_a_variable_has_one_source() {
    let text =
        "env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: A}, fieldRef: {fieldPath: metadata.name}}}]";
    refuses(&(pod(text, "") + MAP), "P17 spec.containers[0].env[0].valueFrom: has configMapKeyRef and fieldRef");
    refuses(&pod("env: [{name: A, valueFrom: {}}]", ""), "P21 spec.containers[0].env[0].valueFrom");
    for (field, at) in [
        ("{fieldPath: metadata.name, apiVersion: v2}", "apiVersion"),
        ("{fieldPath: \"metadata.labels['a b']\"}", "fieldPath"),
        ("{fieldPath: \"metadata.annotations['-a']\"}", "fieldPath"),
    ] {
        let variable = format!("env: [{{name: A, valueFrom: {{fieldRef: {field}}}}}]");
        refuses(&pod(&variable, ""), &format!("P20 spec.containers[0].env[0].valueFrom.fieldRef.{at}"));
    }
    let volume = "volumes: [{name: v, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}, resourceFieldRef: {containerName: app, resource: limits.cpu}}]}}]";
    refuses(
        &pod("volumeMounts: [{name: v, mountPath: /v}]", volume),
        "P20 spec.volumes[0].downwardAPI.items[0]: has both",
    );
    let both = "env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]";
    refuses(&pod(both, ""), "P17 spec.containers[0].env[0]: has both");
    let from = "envFrom: [{configMapRef: {name: c}, secretRef: {name: s}}]";
    refuses(&(pod(from, "") + MAP + SECRET), "P15 spec.containers[0].envFrom[0]");
}
