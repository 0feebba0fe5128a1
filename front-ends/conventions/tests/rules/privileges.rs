//! Tests rule 13 of `docs/guides/conventions.md`: privileges and grants.

use executor_conventions::grant::Grant;
use serde_json::{Value, json};

use crate::common::{World, app};

/// Returns a template with restrictions that can be removed.
fn restricted() -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "hostUsers": false,
            "automountServiceAccountToken": false,
            "runtimeClassName": "sandbox",
            "containers": [
                {
                    "name": "app",
                    "image": "app",
                    "securityContext": {
                        "runAsUser": 1000,
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "seccompProfile": {"type": "RuntimeDefault"},
                        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
                    },
                    "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data", "readOnly": true},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                },
                {"name": "side", "image": "side", "securityContext": {"runAsUser": 1000}},
            ],
            "volumes": [
                {"name": "data", "hostPath": {"path": "/srv/data"}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "cert", "secret": {"secretName": "tls", "items": [{"key": "crt", "path": "crt"}]}},
            ],
        },
    })
}

/// New values with their JSON pointers.
type Edits = Vec<(&'static str, Value)>;

/// Sets the value at a JSON pointer and creates missing parents. `null` removes a field. If the last part of the pointer
/// is `-`, appends a list entry.
fn set(template: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    if template.pointer(parent).is_none() {
        set(template, parent, if key == "-" { json!([]) } else { json!({}) });
    }
    match template.pointer_mut(parent).unwrap() {
        Value::Object(fields) if value.is_null() => drop(fields.remove(key)),
        Value::Object(fields) => drop(fields.insert(key.to_owned(), value)),
        Value::Array(entries) if key == "-" => entries.push(value),
        Value::Array(entries) => entries[key.parse::<usize>().unwrap()] = value,
        other => panic!("{parent}: {other}"),
    }
}

async fn outcome(grants: &str, edits: &[(&'static str, Value)]) -> Result<(), String> {
    let edits = edits.to_vec();
    // Apply the edits only once: a second round would append to lists again.
    let server = move |template: &mut Value, _: &Value| {
        if template["metadata"]["annotations"]["done"].is_null() {
            edits.iter().for_each(|(pointer, value)| set(template, pointer, value.clone()));
            set(template, "/metadata/annotations/done", json!("yes"));
        }
        Vec::new()
    };
    let world = World::default().convention("a", &format!("grants = [{grants}]"), server);
    world.decorate(&restricted()).await.map(drop).map_err(|violations| violations.to_string())
}

const APP: &str = "/spec/containers/0";

/// If a grant is missing, the privilege is refused, and the error names the convention, the field and the grant. If
/// only this grant is present, the privilege is accepted.
#[tokio::test]
async fn rule_13_added_privilege_requires_grant() {
    let context = |field: &str| -> &'static str { Box::leak(format!("{APP}/securityContext/{field}").into()) };
    let app_field = |field: &str| -> &'static str { Box::leak(format!("{APP}/{field}").into()) };
    let table: Vec<(Grant, &str, Edits)> = vec![
        (Grant::Privileged, "securityContext.privileged", vec![(context("privileged"), json!(true))]),
        (
            Grant::Privileged,
            "securityContext.privileged",
            vec![(context("windowsOptions"), json!({"hostProcess": true}))],
        ),
        (Grant::Capabilities, "capabilities.add", vec![(context("capabilities/add/-"), json!("CAP_SYS_ADMIN"))]),
        (Grant::Capabilities, "capabilities.add", vec![(context("capabilities/add/-"), json!("all"))]),
        (Grant::Capabilities, "capabilities.drop", vec![(context("capabilities"), Value::Null)]),
        (
            Grant::PrivilegeEscalation,
            "allowPrivilegeEscalation",
            vec![(context("allowPrivilegeEscalation"), Value::Null)],
        ),
        (Grant::Root, "runAsUser: adds user 0", vec![(context("runAsUser"), json!(0))]),
        (Grant::Root, "runAsUser: adds the image's user", vec![(context("runAsUser"), Value::Null)]),
        (Grant::Root, "runAsGroup", vec![(context("runAsGroup"), json!(0))]),
        (Grant::Root, "spec.securityContext: adds group 0", vec![("/spec/securityContext", json!({"fsGroup": 0}))]),
        (Grant::HostNamespaces, "spec.hostNetwork", vec![("/spec/hostNetwork", json!(true))]),
        (Grant::HostNamespaces, "spec.hostPID", vec![("/spec/hostPID", json!(true))]),
        (Grant::HostNamespaces, "spec.hostIPC", vec![("/spec/hostIPC", json!(true))]),
        (Grant::HostNamespaces, "spec.hostUsers", vec![("/spec/hostUsers", Value::Null)]),
        (Grant::HostNamespaces, "ports", vec![(app_field("ports/-"), json!({"containerPort": 80, "hostPort": 80}))]),
        (
            Grant::HostPath,
            "spec.volumes[new]",
            vec![("/spec/volumes/-", json!({"name": "new", "hostPath": {"path": "/etc"}}))],
        ),
        (Grant::HostPath, "spec.volumes[data]", vec![("/spec/volumes/0/hostPath/path", json!("/"))]),
        (
            Grant::HostPath,
            "spec.containers[side].volumeMounts[/d]",
            vec![("/spec/containers/1/volumeMounts/-", json!({"name": "data", "mountPath": "/d", "readOnly": true}))],
        ),
        (
            Grant::HostPath,
            "volumeMounts[/data]: adds the host's path /srv/data, writable",
            vec![(app_field("volumeMounts/0/readOnly"), json!(false))],
        ),
        (
            Grant::Volumes,
            "spec.volumes[new]",
            vec![("/spec/volumes/-", json!({"name": "new", "nfs": {"server": "s", "path": "/"}}))],
        ),
        (
            Grant::Volumes,
            "spec.volumes[tmp]",
            vec![("/spec/volumes/1", json!({"name": "tmp", "persistentVolumeClaim": {"claimName": "c"}}))],
        ),
        (Grant::Devices, "resources", vec![(app_field("resources"), json!({"limits": {"example.com/gpu": "1"}}))]),
        (
            Grant::Secrets,
            "env[Q].valueFrom.secretKeyRef",
            vec![(
                app_field("env/-"),
                json!({"name": "Q", "valueFrom": {"secretKeyRef": {"name": "db", "key": "other"}}}),
            )],
        ),
        (Grant::Secrets, "envFrom", vec![(app_field("envFrom"), json!([{"secretRef": {"name": "db"}}]))]),
        (
            Grant::Secrets,
            "spec.containers[app].volumeMounts[/tls]",
            vec![(app_field("volumeMounts/-"), json!({"name": "cert", "mountPath": "/tls"}))],
        ),
        (Grant::Secrets, "spec.volumes[cert]", vec![("/spec/volumes/2/secret/items", Value::Null)]),
        (Grant::Secrets, "imagePullSecrets", vec![("/spec/imagePullSecrets", json!([{"name": "r"}]))]),
        (
            Grant::Secrets,
            "spec.volumes[p]",
            vec![("/spec/volumes/-", json!({"name": "p", "projected": {"sources": [{"secret": {"name": "db"}}]}}))],
        ),
        (Grant::ServiceAccount, "serviceAccountName", vec![("/spec/serviceAccountName", json!("admin"))]),
        (Grant::ServiceAccount, "automount", vec![("/spec/automountServiceAccountToken", json!(true))]),
        (
            Grant::ServiceAccount,
            "spec.volumes[p]",
            vec![(
                "/spec/volumes/-",
                json!({"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            )],
        ),
        (Grant::Isolation, "shareProcessNamespace", vec![("/spec/shareProcessNamespace", json!(true))]),
        (Grant::Isolation, "runtimeClassName", vec![("/spec/runtimeClassName", Value::Null)]),
        (Grant::Isolation, "seccompProfile", vec![(context("seccompProfile"), Value::Null)]),
        (Grant::Isolation, "seccompProfile", vec![(context("seccompProfile/type"), json!("Unconfined"))]),
        (Grant::Isolation, "appArmorProfile", vec![(context("appArmorProfile"), json!({"type": "Unconfined"}))]),
        (
            Grant::Isolation,
            "appArmorProfile",
            vec![(
                "/metadata/annotations",
                json!({"container.apparmor.security.beta.kubernetes.io/app": "unconfined"}),
            )],
        ),
        (Grant::Isolation, "procMount", vec![(context("procMount"), json!("Unmasked"))]),
        (Grant::Isolation, "readOnlyRootFilesystem", vec![(context("readOnlyRootFilesystem"), json!(false))]),
        (Grant::Isolation, "seLinuxOptions", vec![(context("seLinuxOptions"), json!({"type": "spc_t"}))]),
        (
            Grant::Isolation,
            "sysctls",
            vec![("/spec/securityContext", json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}))],
        ),
        (
            Grant::Containers,
            "spec.containers[side]: removes",
            vec![("/spec/containers", json!([restricted()["spec"]["containers"][0]]))],
        ),
    ];
    for (grant, field, edits) in &table {
        let reported = outcome("", edits).await.unwrap_err();
        let named = format!("lacks the grant {grant}");
        assert!(
            reported.contains(field) && reported.contains(&named) && reported.starts_with("convention a: "),
            "{edits:?}: {reported}"
        );
        let others = Grant::ALL.into_iter().filter(|other| other != grant);
        let others: Vec<String> = others.map(|other| format!("{:?}", other.name())).collect();
        assert!(outcome(&others.join(","), edits).await.is_err(), "{edits:?}");
        outcome(&format!("{:?}", grant.name()), edits).await.unwrap_or_else(|reported| panic!("{edits:?}: {reported}"));
    }
    for grant in Grant::ALL {
        assert!(table.iter().any(|(tested, ..)| *tested == grant), "{grant} is not tested");
    }
}

/// If a change adds no privilege, it needs no grant.
#[tokio::test]
async fn rule_13_changes_without_privileges_need_no_grant() {
    let secret = json!({"secretKeyRef": {"name": "db", "key": "password"}});
    for edits in [
        vec![("/spec/containers/0/env/-", json!({"name": "A", "value": "1"}))],
        vec![("/spec/containers/0/env/-", json!({"name": "Q", "valueFrom": secret}))],
        vec![
            ("/spec/containers/0/env", Value::Null),
            ("/spec/containers/0/volumeMounts", Value::Null),
            ("/spec/volumes", Value::Null),
        ],
        vec![("/spec/containers/0/envFrom", json!([{"configMapRef": {"name": "c"}}]))],
        vec![
            ("/spec/volumes/-", json!({"name": "e", "emptyDir": {}})),
            ("/spec/volumes/-", json!({"name": "c", "configMap": {"name": "c"}})),
        ],
        vec![("/spec/volumes/0/name", json!("renamed")), ("/spec/containers/0/volumeMounts/0/name", json!("renamed"))],
        vec![("/spec/containers/0/securityContext/capabilities/add", json!([]))],
        vec![
            ("/spec/containers/0/securityContext/runAsUser", Value::Null),
            ("/spec/containers/0/securityContext/runAsNonRoot", json!(true)),
        ],
        vec![
            ("/spec/containers/0/securityContext/runAsUser", Value::Null),
            ("/spec/containers/1/securityContext/runAsUser", Value::Null),
            ("/spec/securityContext", json!({"runAsUser": 1000})),
        ],
        vec![("/spec/containers/1/securityContext/seccompProfile", json!({"type": "RuntimeDefault"}))],
        vec![("/spec/containers/1/securityContext/capabilities", json!({"drop": ["ALL"]}))],
        vec![("/spec/containers/1/resources", json!({"limits": {"cpu": "1", "memory": "1Gi"}}))],
        vec![("/spec/containers/1/ports/-", json!({"containerPort": 80}))],
        vec![("/metadata/labels/tier", json!("front"))],
        // A new container with the same restrictions as the least restricted container.
        vec![("/spec/containers/-", json!({"name": "new", "image": "new", "securityContext": {"runAsUser": 1000}}))],
    ] {
        outcome("", &edits).await.unwrap_or_else(|reported| panic!("{edits:?}: {reported}"));
    }
}

#[tokio::test]
async fn rule_13_new_container_cannot_bypass_grants() {
    // No container of the pod runs as the image's user.
    let reported = outcome("", &[("/spec/containers/-", json!({"name": "new", "image": "new"}))]).await.unwrap_err();
    assert!(
        reported.contains("spec.containers[new].securityContext.runAsUser") && reported.contains("grant root"),
        "{reported}"
    );
    // If one container of the pod runs as the image's user, a new container may also run as its image's user, but may
    // have no other new privilege.
    let add = |container: Value| {
        move |template: &mut Value, _: &Value| {
            let containers = template["spec"]["containers"].as_array_mut().unwrap();
            if containers.len() == 1 {
                containers.push(container.clone());
            }
            Vec::new()
        }
    };
    let new = json!({"name": "new", "image": "new"});
    World::default().convention("a", "", add(new.clone())).decorate(&app()).await.unwrap();
    let mut privileged = new;
    privileged["securityContext"] = json!({"privileged": true});
    let reported = World::default().convention("a", "", add(privileged)).refused(&app()).await;
    assert!(reported.contains("spec.containers[new].securityContext.privileged"), "{reported}");
    // Ephemeral and init containers are also checked.
    let hidden: fn(&mut Value, &Value) -> Vec<String> = |template, _| {
        let secret = json!([{"secretRef": {"name": "db"}}]);
        template["spec"]["ephemeralContainers"] = json!([{"name": "e", "envFrom": secret}]);
        template["spec"]["initContainers"] = json!([{"name": "i", "envFrom": secret}]);
        Vec::new()
    };
    let reported = World::default().convention("a", "", hidden).refused(&app()).await;
    assert!(
        reported.contains("spec.ephemeralContainers[e].envFrom") && reported.contains("spec.initContainers[i].envFrom"),
        "{reported}"
    );
}
