//! Tests rules P61 to P64 of `docs/guides/kube-rules.md`: workloads.

use executor_kube::report::Strictness;
use executor_kube::workload::{Kind, Update};

use crate::common::{checked, cni, options, plan, pod, refused, refused_with, refuses, run, variables, warnings};

fn of_kind(kind: &str, spec: &str, template: &str) -> String {
    let api = if matches!(kind, "Job" | "CronJob") { "batch/v1" } else { "apps/v1" };
    let inner = format!(
        "template: {{metadata: {{labels: {{app: web}}}}, spec: {{{template}containers: [{{name: app, image: 'i:1'}}]}}}}"
    );
    let spec = match kind {
        "CronJob" => format!("{spec}, jobTemplate: {{spec: {{{inner}}}}}"),
        _ => format!("{spec}, {inner}"),
    };
    format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: web}}\nspec: {{{}}}\n", spec.trim_start_matches(", "))
}

const SELECTOR: &str = "selector: {matchLabels: {app: web}}";

#[test]
fn p61_workloads_create_pods() {
    let names = |text: &str| plan(text).pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    let replicas = format!("replicas: 2, {SELECTOR}");
    for kind in ["Deployment", "ReplicaSet", "StatefulSet"] {
        assert_eq!(names(&of_kind(kind, &replicas, "")), ["web-0", "web-1"], "{kind}");
    }
    assert_eq!(names(&of_kind("DaemonSet", SELECTOR, "")), ["web"]);
    assert_eq!(names(&of_kind("Deployment", &format!("replicas: 0, {SELECTOR}"), "")).len(), 0);
    let whole = plan(&of_kind("Deployment", &format!("strategy: {{type: Recreate}}, {SELECTOR}"), ""));
    assert_eq!((whole.pods[0].update, whole.pods[0].kind), (Update::Recreate, Kind::Deployment));
    assert!(plan(&of_kind("StatefulSet", &replicas, "")).pods[1].in_order);
    assert!(!plan(&of_kind("StatefulSet", &format!("podManagementPolicy: Parallel, {replicas}"), "")).pods[1].in_order);
    refuses(&of_kind("Deployment", "selector: {matchLabels: {app: other}}", ""), "P61 spec.selector: does not match");
    for rule in ["operator: Exists, values: [web]", "operator: NotIn", "operator: Has"] {
        let selector = format!("selector: {{matchExpressions: [{{key: app, {rule}}}]}}");
        let reported = refused(&of_kind("Deployment", &selector, ""));
        assert!(reported[0].starts_with("P61 spec.selector.matchExpressions[0]"), "{rule}: {reported:?}");
    }
    refuses(&of_kind("Deployment", "replicas: 1", ""), "P61 spec.selector: is missing");
    refuses(&of_kind("Deployment", &format!("replicas: 100000, {SELECTOR}"), ""), "P61 spec.replicas");
    refuses(
        &of_kind("StatefulSet", &format!("{SELECTOR}, volumeClaimTemplates: [{{metadata: {{name: a}}}}]"), ""),
        "P61 spec.volumeClaimTemplates",
    );
    refuses(&of_kind("Deployment", SELECTOR, "restartPolicy: Never, "), "P24 spec.template.spec.restartPolicy");
    let port = of_kind("Deployment", &replicas, "")
        .replace("image: 'i:1'", "image: 'i:1', ports: [{containerPort: 1, hostPort: 1}]");
    assert!(refused_with(&port, &cni())[0].starts_with("P43"), "with hostPort at most one");
    let both = format!("{}---\n{}", of_kind("Deployment", SELECTOR, ""), of_kind("StatefulSet", SELECTOR, ""));
    assert!(refused(&both)[0].starts_with("P6 metadata.name: creates the pod `web-0`"));
}

#[test]
fn p61_invalid_strategies_are_refused() {
    for (kind, spec, begins) in [
        ("Deployment", "strategy: {type: Sometimes}", "P61 spec.strategy.type"),
        ("Deployment", "strategy: {type: Recreate, rollingUpdate: {}}", "P61 spec.strategy.rollingUpdate"),
        (
            "Deployment",
            "strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0%}}",
            "P61 spec.strategy.rollingUpdate",
        ),
        ("Deployment", "strategy: {rollingUpdate: {maxSurge: -1}}", "P61 spec.strategy.rollingUpdate.maxSurge"),
        ("Deployment", "strategy: {rollingUpdate: {maxSurge: half}}", "P61 spec.strategy.rollingUpdate.maxSurge"),
        ("Deployment", "minReadySeconds: -1", "P61 spec.minReadySeconds"),
        ("StatefulSet", "podManagementPolicy: Backwards", "P61 spec.podManagementPolicy"),
        ("StatefulSet", "updateStrategy: {type: Recreate}", "P61 spec.updateStrategy.type"),
        ("StatefulSet", "ordinals: {start: -1}", "P61 spec.ordinals.start"),
        ("DaemonSet", "updateStrategy: {type: Recreate}", "P61 spec.updateStrategy.type"),
    ] {
        refuses(&of_kind(kind, &format!("{spec}, {SELECTOR}"), ""), begins);
    }
    plan(&of_kind(
        "Deployment",
        &format!("strategy: {{rollingUpdate: {{maxSurge: 0, maxUnavailable: 1}}}}, {SELECTOR}"),
        "",
    ));
    assert!(warnings(&of_kind("Deployment", &format!("minReadySeconds: 5, {SELECTOR}"), ""))[0].starts_with("P61"));
    let spec =
        format!("replicas: 3, ordinals: {{start: 5}}, updateStrategy: {{rollingUpdate: {{partition: 7}}}}, {SELECTOR}");
    let pods: Vec<_> =
        plan(&of_kind("StatefulSet", &spec, "")).pods.into_iter().map(|pod| (pod.name, pod.update)).collect();
    assert_eq!(
        pods,
        [("web-5".to_owned(), Update::OnDelete), ("web-6".into(), Update::OnDelete), ("web-7".into(), Update::Rolling)]
    );
}

#[test]
fn p27_long_running_pods_have_no_deadline() {
    for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"] {
        let text = of_kind(kind, SELECTOR, "activeDeadlineSeconds: 5, ");
        refuses(&text, "P27 spec.template.spec.activeDeadlineSeconds");
    }
}

#[test]
fn p62_jobs_are_lowered() {
    let text = of_kind(
        "Job",
        "completions: 3, parallelism: 2, backoffLimit: 4, completionMode: Indexed",
        "restartPolicy: OnFailure, ",
    );
    let whole = plan(&text);
    let job = whole.pods[0].job.clone().unwrap();
    assert_eq!((whole.pods.len(), job.parallelism, job.backoff_limit), (3, 2, 4));
    assert_eq!(whole.pods[2].members[0].request.restart_policy.as_ref().unwrap().max_retries, 4);
    let last = whole.pods[2].members[0].request.action.clone().unwrap().run.unwrap();
    assert_eq!(variables(&last.env), [("JOB_COMPLETION_INDEX".to_owned(), "2".to_owned())]);
    assert_eq!(plan(&of_kind("Job", "suspend: true", "restartPolicy: Never, ")).pods.len(), 0);
    assert!(run(&plan(&of_kind("Job", "", "restartPolicy: Never, "))).env.is_empty());
    for (spec, begins) in [
        ("completionMode: Indexed", "P62 spec.completions"),
        ("podFailurePolicy: {rules: []}", "P62 spec.podFailurePolicy"),
        ("backoffLimit: -1", "P62 spec.backoffLimit"),
        ("activeDeadlineSeconds: -1", "P62 spec.activeDeadlineSeconds"),
        ("ttlSecondsAfterFinished: -1", "P62 spec.ttlSecondsAfterFinished"),
    ] {
        refuses(&of_kind("Job", spec, "restartPolicy: Never, "), begins);
    }
    refuses(&of_kind("Job", "", ""), "P62 spec.template.spec.restartPolicy");
}

#[test]
fn p62_cron_jobs_are_lowered() {
    let text = of_kind(
        "CronJob",
        "schedule: '*/5 * * * *', timeZone: Europe/Berlin, concurrencyPolicy: Forbid",
        "restartPolicy: Never, ",
    );
    let whole = plan(&text);
    assert_eq!((whole.pods.len(), whole.crons.len(), whole.crons[0].pods.len()), (0, 1, 1));
    assert_eq!(whole.crons[0].cron.concurrency, "Forbid");
    refuses(&of_kind("CronJob", "schedule: 'CRON_TZ=UTC * * * * *'", "restartPolicy: Never, "), "P62 spec.schedule");
    refuses(
        &of_kind("CronJob", "schedule: '@daily', concurrencyPolicy: Never", "restartPolicy: Never, "),
        "P62 spec.concurrencyPolicy",
    );
}

/// If the container does not set the index variable, it is added after the container's variables.
#[test]
fn p62_completion_index_is_a_variable() {
    let text = |env: &str| {
        of_kind("Job", "completions: 1, completionMode: Indexed", "restartPolicy: Never, ")
            .replace("image: 'i:1'", &format!("image: 'i:1', args: ['$(JOB_COMPLETION_INDEX)'], env: [{env}]"))
    };
    let ran = run(&plan(&text("{name: A, value: '$(JOB_COMPLETION_INDEX)'}")));
    let all = [("A".to_owned(), "$(JOB_COMPLETION_INDEX)".to_owned()), ("JOB_COMPLETION_INDEX".into(), "0".into())];
    assert_eq!((variables(&ran.env), ran.args), (all.to_vec(), vec!["0".to_owned()]));
    let own = run(&plan(&text("{name: JOB_COMPLETION_INDEX, value: mine}")));
    assert_eq!(variables(&own.env), [("JOB_COMPLETION_INDEX".to_owned(), "mine".to_owned())]);
}

#[test]
fn p62_unsupported_cron_job_fields_are_reported() {
    let cron = |spec: &str| of_kind("CronJob", &format!("schedule: '@daily', {spec}"), "restartPolicy: Never, ");
    for (spec, begins) in [
        ("concurrencyPolicy: Allow", "P62 spec.concurrencyPolicy: Allow acts as Forbid"),
        ("concurrencyPolicy: Replace", "P62 spec.concurrencyPolicy: Replace acts as Forbid"),
        ("startingDeadlineSeconds: 9", "P62 spec.startingDeadlineSeconds: is ignored"),
        ("successfulJobsHistoryLimit: 3", "P62 spec.successfulJobsHistoryLimit: is ignored"),
        ("failedJobsHistoryLimit: 1", "P62 spec.failedJobsHistoryLimit: is ignored"),
    ] {
        let reported = warnings(&cron(spec));
        assert!(reported.len() == 1 && reported[0].starts_with(begins), "{reported:?}");
    }
    assert!(warnings(&cron("concurrencyPolicy: Forbid")).is_empty());
    // The time zone is written into a systemd unit, so special characters are refused.
    for zone in ["Mars", "America/Argentina/Buenos_Aires", "Etc/GMT+3", "UTC"] {
        plan(&cron(&format!("timeZone: {zone}")));
    }
    for zone in ["''", "Local", "../UTC", "Europe/", "\"UTC\\nExec=x\"", "'U T'", "UTC;x"] {
        refuses(&cron(&format!("timeZone: {zone}")), "P62 spec.timeZone");
    }
    refuses(&cron("startingDeadlineSeconds: -9"), "P62 spec.startingDeadlineSeconds");
    refuses(&cron("suspend: false").replace("name: web", &format!("name: {}", "x".repeat(53))), "P62 metadata.name");
}

#[test]
fn p63_unsupported_kinds_are_named() {
    for kind in [
        "Service",
        "Ingress",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "Role",
        "CustomResourceDefinition",
        "PersistentVolumeClaim",
    ] {
        let text = format!("apiVersion: x/v1\nkind: {kind}\nmetadata: {{name: a}}\n");
        refuses(&text, &format!("P63 kind: a {kind} is not supported"));
        assert_eq!(checked(&text, Strictness::Warn, &options()).unwrap().1.len(), 1);
    }
    let warned = warnings(&pod(
        "",
        "nodeSelector: {a: b}\naffinity: {}\ntolerations: [{key: a}]\npriorityClassName: a\nnodeName: node",
    ));
    assert_eq!(warned.len(), 5, "{warned:?}");
    for (spec, begins) in [
        ("os: {name: windows}", "P63 spec.os"),
        ("runtimeClassName: gvisor", "P63 spec.runtimeClassName"),
        ("schedulingGates: [{name: a}]", "P63 spec.schedulingGates"),
    ] {
        refuses(&pod("", spec), begins);
    }
}

#[test]
fn p64_same_files_have_same_digest() {
    let text = of_kind("Deployment", SELECTOR, "");
    assert_eq!(plan(&text).pods[0].digest, plan(&text).pods[0].digest);
    assert_ne!(plan(&text).pods[0].digest, plan(&text.replace("i:1", "i:2")).pods[0].digest);
}

/// If an enumeration has an unknown value, or several exclusive fields are set, the object is refused (rules P24 to
/// P63). In each pair, the first value is valid.
#[test]
fn p63_enumerations_are_those_of_kubernetes() {
    let mut failed = Vec::new();
    let mut check = |good: &str, bad: &str, at: &str| {
        if let Err(list) = checked(good, Strictness::Strict, &options()) {
            failed.push(format!("refused: {list:?}\n{good}"));
        }
        match checked(bad, Strictness::Strict, &options()) {
            Ok(_) => failed.push(format!("accepted: {at}\n{bad}")),
            Err(list) if list.len() != 1 || list[0].path != at => failed.push(format!("{at}: {list:?}\n{bad}")),
            Err(_) => {}
        }
    };
    for (good, bad, at) in [
        ("restartPolicy: Never", "restartPolicy: never", "restartPolicy"),
        ("dnsPolicy: Default", "dnsPolicy: Cluster", "dnsPolicy"),
        ("dnsConfig: {options: [{name: a}]}", "dnsConfig: {options: [{value: a}]}", "dnsConfig.options[0].name"),
        ("preemptionPolicy: Never", "preemptionPolicy: Sometimes", "preemptionPolicy"),
        ("os: {name: linux}", "os: {name: plan9}", "os"),
        ("nodeSelector: {a: b}", "nodeSelector: {a: 'b c'}", "nodeSelector['a']"),
        ("nodeName: a", "nodeName: A", "nodeName"),
        ("priorityClassName: a", "priorityClassName: a_b", "priorityClassName"),
        ("serviceAccountName: a", "serviceAccountName: A", "serviceAccountName"),
        ("subdomain: a", "subdomain: a.b", "subdomain"),
        (
            "readinessGates: [{conditionType: a}]",
            "readinessGates: [{conditionType: 'a b'}]",
            "readinessGates[0].conditionType",
        ),
        ("tolerations: [{operator: Exists}]", "tolerations: [{operator: Has}]", "tolerations[0].operator"),
        ("tolerations: [{key: a, value: b}]", "tolerations: [{value: b}]", "tolerations[0].operator"),
        (
            "tolerations: [{key: a, operator: Exists}]",
            "tolerations: [{key: a, operator: Exists, value: b}]",
            "tolerations[0].value",
        ),
        (
            "tolerations: [{key: a, operator: Lt, value: '5'}]",
            "tolerations: [{key: a, operator: Lt, value: b}]",
            "tolerations[0].value",
        ),
        (
            "tolerations: [{key: a, effect: NoSchedule}]",
            "tolerations: [{key: a, effect: Never}]",
            "tolerations[0].effect",
        ),
        (
            "tolerations: [{key: a, effect: NoExecute, tolerationSeconds: 1}]",
            "tolerations: [{key: a, tolerationSeconds: 1}]",
            "tolerations[0].effect",
        ),
        ("tolerations: [{key: a/b}]", "tolerations: [{key: 'a b'}]", "tolerations[0].key"),
        (
            "volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]",
            "volumes: [{name: v, emptyDir: {medium: Disk}}]",
            "volumes[0].emptyDir.medium",
        ),
        (
            "volumes: [{name: v, emptyDir: {}}]",
            "volumes: [{name: v, emptyDir: {}, secret: {secretName: s}}]",
            "volumes[0]",
        ),
        (
            "volumes: [{name: v, hostPath: {path: /srv/data, type: Directory}}]",
            "volumes: [{name: v, hostPath: {path: /srv/data, type: Folder}}]",
            "volumes[0].hostPath.type",
        ),
        (
            "volumes: [{name: v, image: {reference: 'i:1', pullPolicy: Never}}]",
            "volumes: [{name: v, image: {reference: 'i:1', pullPolicy: Seldom}}]",
            "volumes[0].image.pullPolicy",
        ),
    ] {
        check(&pod("", good), &pod("", bad), &format!("spec.{at}"));
    }
    let spread = |text: &str| pod("", &format!("topologySpreadConstraints: [{{maxSkew: 1, topologyKey: a, {text}}}]"));
    for (good, bad, at) in [
        ("whenUnsatisfiable: DoNotSchedule", "whenUnsatisfiable: Wait", ".whenUnsatisfiable"),
        (
            "whenUnsatisfiable: ScheduleAnyway, nodeTaintsPolicy: Honor",
            "whenUnsatisfiable: ScheduleAnyway, nodeTaintsPolicy: Maybe",
            ".nodeTaintsPolicy",
        ),
        (
            "whenUnsatisfiable: ScheduleAnyway, nodeAffinityPolicy: Ignore",
            "whenUnsatisfiable: ScheduleAnyway, nodeAffinityPolicy: Maybe",
            ".nodeAffinityPolicy",
        ),
        (
            "whenUnsatisfiable: DoNotSchedule, minDomains: 1",
            "whenUnsatisfiable: ScheduleAnyway, minDomains: 1",
            ".minDomains",
        ),
        (
            "whenUnsatisfiable: DoNotSchedule, labelSelector: {matchExpressions: [{key: a, operator: Exists}]}",
            "whenUnsatisfiable: DoNotSchedule, labelSelector: {matchExpressions: [{key: a, operator: Gt}]}",
            ".labelSelector.matchExpressions[0]",
        ),
    ] {
        check(&spread(good), &spread(bad), &format!("spec.topologySpreadConstraints[0]{at}"));
    }
    let node = |text: &str| {
        pod(
            "",
            &format!(
                "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{text}]}}}}}}"
            ),
        )
    };
    let terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    for (good, bad, at) in [
        (
            "{matchExpressions: [{key: a, operator: Gt, values: ['1']}]}",
            "{matchExpressions: [{key: a, operator: Gt}]}",
            "[0].matchExpressions[0]",
        ),
        (
            "{matchExpressions: [{key: a, operator: In, values: [b]}]}",
            "{matchExpressions: [{key: a, operator: Of, values: [b]}]}",
            "[0].matchExpressions[0]",
        ),
        (
            "{matchFields: [{key: metadata.name, operator: In, values: [b]}]}",
            "{matchFields: [{key: metadata.uid, operator: In, values: [b]}]}",
            "[0].matchFields[0]",
        ),
        ("{}", "", ""),
    ] {
        check(&node(good), &node(bad), &format!("{terms}{at}"));
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let preferred = |weight: i32, key: &str| {
            pod(
                "",
                &format!(
                    "affinity: {{{kind}: {{preferredDuringSchedulingIgnoredDuringExecution: [{{weight: {weight}, podAffinityTerm: {{topologyKey: {key}}}}}]}}}}"
                ),
            )
        };
        let at = format!("spec.affinity.{kind}.preferredDuringSchedulingIgnoredDuringExecution[0]");
        check(&preferred(100, "a"), &preferred(101, "a"), &format!("{at}.weight"));
        check(&preferred(1, "a"), &preferred(1, "''"), &format!("{at}.podAffinityTerm.topologyKey"));
    }
    for (good, bad, at) in [
        ("imagePullPolicy: Never", "imagePullPolicy: Seldom", "imagePullPolicy"),
        ("terminationMessagePolicy: File", "terminationMessagePolicy: Both", "terminationMessagePolicy"),
        (
            "ports: [{containerPort: 1, protocol: SCTP}]",
            "ports: [{containerPort: 1, protocol: tcp}]",
            "ports[0].protocol",
        ),
        (
            "livenessProbe: {httpGet: {port: 1, scheme: HTTP}}",
            "livenessProbe: {httpGet: {port: 1, scheme: FTP}}",
            "livenessProbe.httpGet.scheme",
        ),
        (
            "livenessProbe: {tcpSocket: {port: 1}}",
            "livenessProbe: {tcpSocket: {port: 1}, exec: {command: [a]}}",
            "livenessProbe",
        ),
        (
            "lifecycle: {preStop: {sleep: {seconds: 1}}}",
            "lifecycle: {preStop: {sleep: {seconds: 1}, exec: {command: [a]}}}",
            "lifecycle.preStop",
        ),
        ("lifecycle: {stopSignal: SIGUSR1}", "lifecycle: {stopSignal: SIGBYE}", "lifecycle.stopSignal"),
        (
            "env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
            "env: [{name: A, value: a, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
            "env[0]",
        ),
        ("securityContext: {procMount: Default}", "securityContext: {procMount: Some}", "securityContext.procMount"),
        (
            "securityContext: {seccompProfile: {type: RuntimeDefault}}",
            "securityContext: {seccompProfile: {type: Default}}",
            "securityContext.seccompProfile",
        ),
        (
            "securityContext: {appArmorProfile: {type: Unconfined}}",
            "securityContext: {appArmorProfile: {type: None}}",
            "securityContext.appArmorProfile",
        ),
    ] {
        check(&pod(good, ""), &pod(bad, ""), &format!("spec.containers[0].{at}"));
    }
    let mount =
        |text: &str| pod(&format!("volumeMounts: [{{name: v, mountPath: /v, {text}}}]"), "volumes: [{name: v}]");
    for (good, bad, at) in [
        ("mountPropagation: None", "mountPropagation: Shared", "mountPropagation"),
        (
            "readOnly: true, recursiveReadOnly: IfPossible",
            "readOnly: true, recursiveReadOnly: Maybe",
            "recursiveReadOnly",
        ),
        ("subPath: a", "subPath: a, subPathExpr: b", "subPathExpr"),
    ] {
        check(&mount(good), &mount(bad), &format!("spec.containers[0].volumeMounts[0].{at}"));
    }
    for (kind, good, bad, at) in [
        ("Deployment", "strategy: {type: Recreate}", "strategy: {type: Replace}", "strategy.type"),
        (
            "Deployment",
            "strategy: {type: RollingUpdate, rollingUpdate: {}}",
            "strategy: {type: Recreate, rollingUpdate: {}}",
            "strategy.rollingUpdate",
        ),
        (
            "Deployment",
            "strategy: {rollingUpdate: {maxUnavailable: 100%}}",
            "strategy: {rollingUpdate: {maxUnavailable: 101%}}",
            "strategy.rollingUpdate.maxUnavailable",
        ),
        ("StatefulSet", "podManagementPolicy: Parallel", "podManagementPolicy: Serial", "podManagementPolicy"),
        (
            "StatefulSet",
            "updateStrategy: {type: OnDelete}",
            "updateStrategy: {type: OnDelete, rollingUpdate: {}}",
            "updateStrategy.rollingUpdate",
        ),
        (
            "StatefulSet",
            "updateStrategy: {rollingUpdate: {maxUnavailable: 1}}",
            "updateStrategy: {rollingUpdate: {maxUnavailable: 0}}",
            "updateStrategy.rollingUpdate.maxUnavailable",
        ),
        (
            "StatefulSet",
            "persistentVolumeClaimRetentionPolicy: {whenScaled: Delete}",
            "persistentVolumeClaimRetentionPolicy: {whenScaled: Keep}",
            "persistentVolumeClaimRetentionPolicy.whenScaled",
        ),
        ("DaemonSet", "updateStrategy: {type: OnDelete}", "updateStrategy: {type: Recreate}", "updateStrategy.type"),
        (
            "DaemonSet",
            "updateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}",
            "updateStrategy: {rollingUpdate: {maxSurge: 1}}",
            "updateStrategy.rollingUpdate.maxSurge",
        ),
        (
            "DaemonSet",
            "updateStrategy: {rollingUpdate: {maxUnavailable: 1}}",
            "updateStrategy: {rollingUpdate: {maxUnavailable: 0}}",
            "updateStrategy.rollingUpdate",
        ),
    ] {
        let with = |spec: &str| of_kind(kind, &format!("{spec}, {SELECTOR}"), "");
        check(&with(good), &with(bad), &format!("spec.{at}"));
    }
    for (good, bad, at) in [
        ("completionMode: NonIndexed", "completionMode: Some", "completionMode"),
        ("podReplacementPolicy: Failed", "podReplacementPolicy: Never", "podReplacementPolicy"),
        (
            "manualSelector: true, selector: {matchLabels: {app: web}}",
            "selector: {matchLabels: {app: web}}",
            "selector",
        ),
        ("manualSelector: false", "manualSelector: true", "selector"),
    ] {
        let with = |spec: &str| of_kind("Job", spec, "restartPolicy: Never, ");
        check(&with(good), &with(bad), &format!("spec.{at}"));
    }
    let cron = |spec: &str| of_kind("CronJob", &format!("schedule: '@daily', {spec}"), "restartPolicy: Never, ");
    check(&cron("concurrencyPolicy: Replace"), &cron("concurrencyPolicy: Stop"), "spec.concurrencyPolicy");
    check(&cron("timeZone: Etc/UTC"), &cron("timeZone: Local"), "spec.timeZone");
    assert!(failed.is_empty(), "{} of the pairs:\n{}", failed.len(), failed.join("\n"));
}
