//! Tests rules P53 to P60 of `docs/guides/kube-rules.md`: volumes and images.

use executor_client::v1::volume_mount::Source;
use executor_client::v1::{HostPath, PullPolicy};
use executor_kube::docker;

use crate::common::{
    MAP, SECRET, file, member, options, plan, plan_with, pod, refused, refuses, request, run, warnings,
};

fn mounted(mount: &str, volume: &str) -> String {
    pod(&format!("volumeMounts: [{{name: v, mountPath: /v{mount}}}]"), &format!("volumes: [{{name: v, {volume}}}]"))
}

#[test]
fn p53_files_are_lowered() {
    let whole = plan(&(mounted("", "secret: {secretName: s}") + SECRET));
    let run_of = run(&whole);
    let secret = file(&run_of, "/v/key");
    assert_eq!((&*secret.content, secret.public, secret.mode), (&b"hunter2"[..], false, Some(0o644)));
    assert_eq!((request(&whole).file_directories, member(&whole).rotating.len()), (vec!["/v".to_owned()], 1));
    let items = plan(
        &(mounted("", "configMap: {name: c, items: [{key: A, path: d/a, mode: 0600}, {key: bin, path: b}]}") + MAP),
    );
    let run_of = run(&items);
    assert_eq!(run_of.volume_mounted_files.len(), 2);
    assert_eq!(
        (file(&run_of, "/v/d/a").mode, &*file(&run_of, "/v/b").content, file(&run_of, "/v/b").public),
        (Some(0o600), &[0xff][..], true)
    );
    refuses(
        &(mounted("", "configMap: {name: c, items: [{key: nil, path: a}]}") + MAP),
        "P53 spec.volumes[0].configMap.items[0].key",
    );
    for path in ["../a", "/a", "a/../b", "''", "..data", "..a/b"] {
        refuses(
            &(mounted("", &format!("configMap: {{name: c, items: [{{key: A, path: {path}}}]}}")) + MAP),
            "P53 spec.volumes[0].configMap.items[0].path",
        );
    }
    assert_eq!(run(&plan(&mounted("", "secret: {secretName: nil, optional: true}"))).volume_mounted_files, []);
}

#[test]
fn p54_projected_volumes_are_lowered() {
    let sources = "projected: {defaultMode: 0440, sources: [{configMap: {name: c, items: [{key: A, path: word}]}}, {secret: {name: s}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}";
    let run = run(&plan(&(mounted("", sources) + MAP + SECRET)));
    assert_eq!(
        (&*file(&run, "/v/word").content, file(&run, "/v/word").public, file(&run, "/v/word").mode),
        (&b"canary"[..], false, Some(0o440))
    );
    assert_eq!(&*file(&run, "/v/name").content, b"web");
    refuses(
        &mounted("", "projected: {sources: [{serviceAccountToken: {path: token}}]}"),
        "P54 spec.volumes[0].projected.sources[0].serviceAccountToken",
    );
}

#[test]
fn p54_projected_sources_and_paths_are_validated() {
    let projected = |sources: &str| mounted("", &format!("projected: {{sources: [{sources}]}}")) + MAP + SECRET;
    refuses(
        &projected("{configMap: {name: c}, secret: {name: s}}"),
        "P54 spec.volumes[0].projected.sources[0]: has configMap and secret",
    );
    refuses(
        &projected(
            "{configMap: {name: c, items: [{key: A, path: x}]}}, {secret: {name: s, items: [{key: key, path: ./x}]}}",
        ),
        "P54 spec.volumes[0].projected.sources[1]: has the path `./x`",
    );
    // If two sources are whole objects, equal paths are allowed.
    plan(&projected("{configMap: {name: c}}, {configMap: {name: c}}"));
}

/// If a mounted Secret changes, its files change but the pod's digest does not. If a variable changes, the pod's digest
/// or a keyed digest changes.
#[test]
fn p55_p64_changed_variable_changes_digest() {
    let text = mounted("", "secret: {secretName: s}") + SECRET;
    let digest = |text: &str| plan(text).pods[0].digest.clone();
    let (key, other) = ([7; 32], [8; 32]);
    let before = plan(&text);
    let after = plan(&text.replace("canary", "changed"));
    assert_eq!(before.pods[0].digest, after.pods[0].digest);
    assert_ne!(member(&before).tags(&key).1, member(&after).tags(&key).1);
    assert_eq!(member(&before).tags(&key), member(&plan(&text)).tags(&key));
    assert_ne!(member(&before).tags(&key), member(&before).tags(&other));
    assert_ne!(digest(&text), digest(&text.replace("/v", "/w")));
    // A variable from a Secret is part of the keyed digests. A variable from a ConfigMap is part of the pod's digest.
    let of_secret = pod("envFrom: [{secretRef: {name: s}}]", "") + SECRET;
    let (one, two) = (plan(&of_secret), plan(&of_secret.replace("canary", "changed")));
    assert_eq!(one.pods[0].digest, two.pods[0].digest);
    assert_ne!(member(&one).tags(&key).0, member(&two).tags(&key).0);
    let of_map = pod("envFrom: [{configMapRef: {name: c}}]", "") + MAP;
    assert_ne!(digest(&of_map), digest(&of_map.replace("one", "uno")));
    // If a single file is mounted, it is not updated.
    let single = plan(&(mounted(", subPath: key", "secret: {secretName: s}") + SECRET));
    assert_eq!((member(&single).rotating.len(), &*file(&run(&single), "/v").content), (0, &b"hunter2"[..]));
    refuses(
        &(mounted(", subPath: nil", "secret: {secretName: s}") + SECRET),
        "P58 spec.containers[0].volumeMounts[0].subPath",
    );
}

#[test]
fn p56_empty_directories_are_lowered() {
    let volume = |text: &str| plan(text).pods[0].create.volumes[0].clone().empty.unwrap();
    let disk = volume(&mounted("", "emptyDir: {sizeLimit: 1Mi}"));
    assert_eq!((disk.medium, disk.size_bytes, disk.mode), (0, 1 << 20, Some(0o777)));
    let memory = |container: &str, limit: &str| {
        volume(&pod(
            &format!("{container}\nvolumeMounts: [{{name: v, mountPath: /v}}]"),
            &format!("volumes: [{{name: v, emptyDir: {{medium: Memory{limit}}}}}]"),
        ))
        .size_bytes
    };
    assert_eq!(memory("resources: {limits: {memory: 32Mi}}", ", sizeLimit: 64Mi"), 32 << 20);
    assert_eq!(memory("resources: {limits: {memory: 32Mi}}", ""), 32 << 20);
    assert_eq!(memory("", ", sizeLimit: 8Mi"), 8 << 20);
    assert!(warnings(&mounted("", "emptyDir: {medium: Memory}"))[0].starts_with("P56"));
    refuses(&mounted("", "emptyDir: {medium: HugePages}"), "P56");
    refuses(&mounted("", "emptyDir: {sizeLimit: -1}"), "P50 spec.volumes[0].emptyDir.sizeLimit");
    // If there is an fsGroup, new files in the volume belong to this group (rule P45).
    let grouped = |kind: &str| {
        let spec = format!("securityContext: {{fsGroup: 2000}}\nvolumes: [{{name: v{kind}}}]");
        volume(&pod("volumeMounts: [{name: v, mountPath: /v}]", &spec))
    };
    for kind in [", emptyDir: {}", ", emptyDir: {medium: Memory, sizeLimit: 1Mi}", ""] {
        assert_eq!((grouped(kind).mode, grouped(kind).gid), (Some(0o2777), Some(2000)), "{kind}");
    }
    assert_eq!(disk.gid, None);
    let request = request(&plan(&mounted("", "emptyDir: {}")));
    assert!(matches!(&request.volumes[0].source, Some(Source::Pod(pod)) if pod.name == "v"));
}

#[test]
fn p57_host_paths_become_host_volumes() {
    let source = |path: &str| {
        let volume =
            request(&plan(&mounted("", &format!("hostPath: {{path: {path}, type: Directory}}")))).volumes[0].clone();
        let Some(Source::Host(named)) = volume.source else { panic!("a volume of the host") };
        (named.name, volume.sub_path, volume.read_only)
    };
    assert_eq!(source("/srv/data"), ("data".into(), String::new(), false));
    assert_eq!(source("/srv/data/a/b"), ("data".into(), "a/b".into(), false));
    assert_eq!(source("/srv/data/certs"), ("certs".into(), String::new(), true));
    let file = request(&plan(&mounted("", "hostPath: {path: /srv/host/app.conf}"))).volumes[0].clone();
    let path = HostPath { path: "/srv/host/app.conf".into(), recursive: true, ..HostPath::default() };
    assert_eq!(file.source, Some(Source::HostPath(path)));
    refuses(&mounted("", "hostPath: {path: /srv/hosts}"), "P48 spec.volumes[0].hostPath.path");
    refuses(&mounted("", "hostPath: {path: /etc}"), "P48 spec.volumes[0].hostPath.path");
    refuses(&mounted("", "hostPath: {path: /srv/database}"), "P48");
    refuses(&mounted("", "hostPath: {path: /srv/data/../x}"), "P57");
    refuses(&mounted("", "hostPath: {path: /srv/data, type: Socket}"), "P57 spec.volumes[0].hostPath.type");
}

#[test]
fn p58_mounts_are_lowered_or_refused() {
    let volume = "emptyDir: {}";
    for mount in [
        ", subPath: ../a",
        ", subPath: /a",
        ", subPath: a, subPathExpr: b",
        ", subPathExpr: $(NO)",
        ", mountPropagation: Bidirectional",
        ", recursiveReadOnly: IfPossible",
        ", readOnly: true, recursiveReadOnly: Sometimes",
    ] {
        refuses(&mounted(mount, volume), "P58 spec.containers[0].volumeMounts[0].");
    }
    for value in ["IfPossible", "Enabled"] {
        plan(&mounted(&format!(", readOnly: true, recursiveReadOnly: {value}"), volume));
    }
    let of_host = |mount: &str| {
        let volume = request(&plan(&mounted(mount, "hostPath: {path: /srv/host/a}"))).volumes[0].clone();
        let Some(Source::HostPath(path)) = volume.source else { panic!("a path of the host") };
        (path.propagation, path.recursive, path.recursive_read_only, volume.read_only)
    };
    for (mount, expected) in [
        ("", (0, true, false, false)),
        (", readOnly: true", (0, false, false, true)),
        (", readOnly: true, recursiveReadOnly: Enabled", (0, true, true, true)),
        (", readOnly: true, mountPropagation: HostToContainer", (1, true, false, true)),
        (", readOnly: true, recursiveReadOnly: IfPossible, mountPropagation: HostToContainer", (1, true, false, true)),
        (", mountPropagation: Bidirectional", (2, true, false, false)),
    ] {
        assert_eq!(of_host(mount), expected, "{mount}");
    }
    let both = ", readOnly: true, recursiveReadOnly: Enabled, mountPropagation: HostToContainer";
    let field = "P58 spec.containers[0].volumeMounts[0].recursiveReadOnly";
    refuses(&mounted(both, "hostPath: {path: /srv/host/a}"), field);
    refuses(&mounted("a:b", volume), "P58 spec.containers[0].volumeMounts[0].mountPath");
    refuses(&pod("volumeMounts: [{name: nil, mountPath: /v}]", ""), "P58 spec.containers[0].volumeMounts[0].name");
    refuses(&pod("volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /v/}]", "volumes: [{name: v}]"), "P58");
    let expanded = plan(&pod(
        "env: [{name: A, value: x}]\nvolumeMounts: [{name: v, mountPath: /v, subPathExpr: d-$(A), readOnly: true}]",
        "volumes: [{name: v}]",
    ));
    assert_eq!(
        (request(&expanded).volumes[0].sub_path.as_str(), request(&expanded).volumes[0].read_only),
        ("d-x", true)
    );
}

#[test]
fn p59_image_volumes_are_mounted_or_refused() {
    let volume = request(&plan(&mounted("", "image: {reference: 'example.com/files:1'}"))).volumes[0].clone();
    assert!(
        volume.read_only
            && matches!(&volume.source, Some(Source::Image(image)) if image.reference == "docker://example.com/files:1")
    );
    for kind in [
        "persistentVolumeClaim: {claimName: a}",
        "ephemeral: {}",
        "csi: {driver: a}",
        "nfs: {server: a, path: /a}",
        "gitRepo: {repository: a}",
        "awsElasticBlockStore: {volumeID: a}",
    ] {
        let name = kind.split(':').next().unwrap();
        refuses(&mounted("", kind), &format!("P59 spec.volumes[0].{name}: is not supported"));
    }
    refuses(
        &mounted("", "emptyDir: {}, hostPath: {path: /srv/data}"),
        "P59 spec.volumes[0]: has emptyDir and hostPath",
    );
    assert!(warnings(&mounted("", "image: {reference: 'i:1', pullPolicy: Always}"))[0].starts_with("P59"));
    for source in ["clusterTrustBundle: {path: a}", "podCertificate: {keyType: a, signerName: b}"] {
        refuses(&mounted("", &format!("projected: {{sources: [{{{source}}}]}}")), "P54");
    }
}

#[test]
fn p60_images_and_pull_policies_are_lowered() {
    let of = |image: &str, extra: &str| {
        let request = request(&plan(&pod(extra, "").replace("example.com/app:1", image)));
        (request.rootfs.clone(), request.pull_policy())
    };
    assert_eq!(of("nginx", ""), ("docker://nginx".into(), PullPolicy::Always));
    assert_eq!(of("nginx:latest", "").1, PullPolicy::Always);
    assert_eq!(of("localhost:5000/nginx", "").1, PullPolicy::Always);
    assert_eq!(of("nginx:1.27", "").1, PullPolicy::IfMissing);
    assert_eq!(of(&format!("nginx@sha256:{}", "a".repeat(64)), "").1, PullPolicy::IfMissing);
    assert_eq!(of("nginx", "imagePullPolicy: Never").1, PullPolicy::Never);
    refuses(&pod("", "").replace("example.com/app:1", "Example/App:1"), "P60 spec.containers[0].image");
    let local = executor_kube::options::Options {
        images: [("nginx".to_owned(), "dir:/srv/nginx".to_owned())].into(),
        ..options()
    };
    assert_eq!(
        request(&plan_with(&pod("", "").replace("example.com/app:1", "nginx"), &local).0).rootfs,
        "dir:/srv/nginx"
    );
    let auth = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: pull}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: '{\"auths\":{\"example.com\":{\"auth\":\"dTpwLWNhbmFyeQ==\"}}}'}\n";
    let text = pod("", "imagePullSecrets: [{name: pull}]") + auth;
    let credentials = request(&plan(&text)).registry_credentials.unwrap();
    assert_eq!((credentials.username.as_str(), credentials.password.as_str()), ("u", "p-canary"));
    assert_eq!(plan(&text).pods[0].digest, plan(&text.replace("dTpwLWNhbmFyeQ==", "dTpvdGhlcg==")).pods[0].digest);
    let token = text.replace("\"auth\":\"dTpwLWNhbmFyeQ==\"", "\"registrytoken\":\"t0ken\"");
    assert_eq!(request(&plan(&token)).registry_credentials.unwrap().registry_token, "t0ken");
    let broken = text.replace("dTpwLWNhbmFyeQ==", "canary");
    assert!(
        refused(&broken)[0].starts_with("P60 spec.imagePullSecrets") && !refused(&broken).concat().contains("canary\"")
    );
    let digest = format!("r.io/a@sha256:{}", "a".repeat(64));
    for image in ["nginx", "a/b-c.d__e:T_1.2-3", "localhost:5000/x", "r.io:5/a/b:1", "[::1]:5000/a", &digest] {
        assert!(docker::is_image(image), "{image}");
    }
    for image in [
        "",
        "./a",
        "a//b",
        "/a",
        "a/",
        "A",
        "a:",
        "a:b:c",
        "a b",
        "a:-1",
        "docker://a",
        "a@sha256:x",
        "r.io/_a",
        "-r.io/a",
    ] {
        assert!(!docker::is_image(image), "{image}");
    }
    for (image, expected) in [
        ("nginx", ("docker.io", "library/nginx")),
        ("a/b:1", ("docker.io", "a/b")),
        ("localhost:5000/x:1", ("localhost:5000", "x")),
        ("r.io/a/b@sha256:x", ("r.io", "a/b")),
    ] {
        assert_eq!(docker::split(image), (expected.0.to_owned(), expected.1.to_owned()), "{image}");
    }
}
