//! Tests rules P22 to P52 of `docs/guides/kube-rules.md`: roles, probes, hooks, names and resources.

mod security;

use executor_client::v1::check;
use executor_client::v1::restart_policy::Mode;
use executor_kube::plan::{Hook, Role};

use crate::common::{cni, member, plan, plan_with, pod, refused, refused_with, refuses, request, warnings};

#[test]
fn p22_p23_roles_in_order() {
    let spec = "initContainers: [{name: one, image: i:1}, {name: side, image: i:1, restartPolicy: Always, startupProbe: {tcpSocket: {port: 1}}}, {name: two, image: i:1}]";
    let whole = plan(&pod("", spec));
    let members: Vec<_> = whole.pods[0].members.iter().map(|member| (member.name.as_str(), member.role)).collect();
    assert_eq!(members, [("one", Role::Init), ("side", Role::Sidecar), ("two", Role::Init), ("app", Role::Main)]);
    let modes: Vec<_> = whole.pods[0]
        .members
        .iter()
        .map(|member| member.request.restart_policy.as_ref().map(|policy| policy.mode()))
        .collect();
    assert_eq!(modes, [Some(Mode::OnFailure), Some(Mode::Always), Some(Mode::OnFailure), Some(Mode::Always)]);
    let reported = refused(&pod(
        "",
        "initContainers: [{name: one, image: i:1, lifecycle: {}, readinessProbe: {tcpSocket: {port: 1}}}]",
    ));
    assert!(reported.iter().filter(|one| one.starts_with("P23 spec.initContainers[0].")).count() == 2, "{reported:?}");
}

#[test]
fn p24_p25_restart_policies_are_lowered() {
    let mode = |policy: &str| request(&plan(&pod("", policy))).restart_policy.map(|policy| policy.mode());
    assert_eq!(
        [mode(""), mode("restartPolicy: OnFailure"), mode("restartPolicy: Never")],
        [Some(Mode::Always), Some(Mode::OnFailure), None]
    );
    // The restart delays are executord's defaults, which equal the kubelet's delays (10 s to 300 s).
    assert!(request(&plan(&pod("", ""))).restart_policy.unwrap().min_delay.is_none());
    refuses(&pod("", "restartPolicy: Sometimes"), "P24 spec.restartPolicy");
    refuses(&pod("restartPolicy: Never", ""), "P24 spec.containers[0].restartPolicy");
    refuses(&pod("restartPolicyRules: [{action: Restart}]", ""), "P24 spec.containers[0].restartPolicyRules");
    assert!(warnings(&pod("tty: true", ""))[0].starts_with("P24 spec.containers[0].tty"));
    assert!(request(&plan(&pod("tty: true", "restartPolicy: Never"))).terminal);
}

#[test]
fn p27_deadline_is_lowered() {
    assert_eq!(plan(&pod("", "activeDeadlineSeconds: 5")).pods[0].deadline.unwrap().as_secs(), 5);
    refuses(&pod("", "activeDeadlineSeconds: 0"), "P27");
}

#[test]
fn p31_p32_grace_and_hooks_are_lowered() {
    let grace = |spec: &str| request(&plan(&pod("", spec))).grace_period.unwrap().seconds;
    assert_eq!(
        [grace(""), grace("terminationGracePeriodSeconds: 5"), grace("terminationGracePeriodSeconds: -3")],
        [30, 5, 1]
    );
    let with = member(&plan(&pod(
        "lifecycle: {postStart: {sleep: {seconds: 2}}, preStop: {exec: {command: [sh, -c, 'echo $(X)']}}}",
        "",
    )));
    assert_eq!(with.post_start, Some(Hook::Sleep(std::time::Duration::from_secs(2))));
    let hook = Some(Hook::Exec(vec!["sh".into(), "-c".into(), "echo $(X)".into()]));
    assert_eq!(with.pre_stop, hook);
    // `down` reads the hook from the labels.
    assert_eq!(Hook::from_labels(|name| with.request.labels.get(name).map(String::as_str)), hook);
    let long = pod(&format!("lifecycle: {{preStop: {{exec: {{command: [{}]}}}}}}", "ä".repeat(600)), "");
    let labels = member(&plan(&long)).request.labels.clone();
    assert!(labels.values().all(|value| value.len() <= 256));
    assert_eq!(Hook::from_labels(|name| labels.get(name).map(String::as_str)), Some(Hook::Exec(vec!["ä".repeat(600)])));
    refuses(&pod(&format!("lifecycle: {{preStop: {{exec: {{command: [{}]}}}}}}", "x".repeat(5000)), ""), "P32");
    refuses(
        &pod("lifecycle: {preStop: {httpGet: {port: 80}}}", ""),
        "P32 spec.containers[0].lifecycle.preStop.httpGet",
    );
}

#[test]
fn p32_hook_needs_one_handler_within_grace() {
    for (hook, begins) in [
        ("{exec: {command: [a]}, sleep: {seconds: 1}}", "P32 spec.containers[0].lifecycle.preStop: has exec and sleep"),
        ("{}", "P32 spec.containers[0].lifecycle.preStop: is empty"),
        (
            "{sleep: {seconds: 31}}",
            "P32 spec.containers[0].lifecycle.preStop.sleep.seconds: is 31; it must be 0 to the 30 s",
        ),
        ("{sleep: {seconds: -1}}", "P32 spec.containers[0].lifecycle.preStop.sleep.seconds"),
        ("{exec: {}}", "P32 spec.containers[0].lifecycle.preStop.exec.command"),
    ] {
        refuses(&pod(&format!("lifecycle: {{preStop: {hook}}}"), ""), begins);
    }
    plan(&pod("lifecycle: {preStop: {sleep: {seconds: 0}}, postStart: {sleep: {seconds: 30}}}", ""));
    plan(&pod("lifecycle: {preStop: {sleep: {seconds: 31}}}", "terminationGracePeriodSeconds: 31"));
}

#[test]
fn p33_termination_message_is_lowered() {
    let message =
        request(&plan(&pod("terminationMessagePath: /tmp/end\nterminationMessagePolicy: FallbackToLogsOnError", "")))
            .termination_message
            .unwrap();
    assert_eq!((message.path.as_str(), message.fallback_to_logs), ("/tmp/end", true));
    assert_eq!(request(&plan(&pod("", ""))).termination_message.unwrap().path, "");
    refuses(&pod("terminationMessagePolicy: Log", ""), "P33");
}

#[test]
fn p34_to_p36_probes_are_lowered() {
    let container = "ports: [{name: web, containerPort: 8080}]\n\
                     startupProbe: {httpGet: {port: web, path: ready, httpHeaders: [{name: A, value: b}]}, failureThreshold: 30, periodSeconds: 2}\n\
                     livenessProbe: {tcpSocket: {port: 8080}, initialDelaySeconds: 3}\nreadinessProbe: {exec: {command: [cat, '$(F)']}, successThreshold: 2, timeoutSeconds: 4}\n\
                     env: [{name: F, value: /f}]";
    let checks = request(&plan(&pod(container, ""))).checks.unwrap();
    assert_eq!((checks.startup.len(), checks.liveness.len(), checks.readiness.len()), (1, 1, 1));
    assert_eq!(checks.start_timeout.unwrap().seconds, 61);
    let Some(check::Kind::Http(http)) = &checks.startup[0].kind else { panic!("http") };
    assert_eq!((http.port, http.path.as_str(), http.headers.len(), http.statuses.len()), (8080, "/ready", 1, 0));
    let live = &checks.liveness[0];
    assert_eq!(
        (live.initial_delay.unwrap().seconds, live.interval.unwrap().seconds, live.timeout.unwrap().seconds),
        (3, 10, 1)
    );
    assert_eq!((live.healthy_threshold, live.unhealthy_threshold, checks.startup[0].unhealthy_threshold), (1, 3, 0));
    let Some(check::Kind::Exec(exec)) = &checks.readiness[0].kind else { panic!("exec") };
    assert_eq!((exec.path.as_str(), exec.args[0].as_str(), exec.container_environment), ("cat", "/f", true));
    // If there is no startup probe, the failure threshold of the liveness probe limits the start.
    let alone = request(&plan(&pod("livenessProbe: {tcpSocket: {port: 1}}", ""))).checks.unwrap();
    assert_eq!(alone.start_timeout.unwrap().seconds, 31);
    for (probe, begins) in [
        (
            "livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}",
            "P34 spec.containers[0].livenessProbe.successThreshold",
        ),
        (
            "livenessProbe: {tcpSocket: {port: 1}, timeoutSeconds: 61}",
            "P34 spec.containers[0].livenessProbe.timeoutSeconds",
        ),
        ("livenessProbe: {}", "P34 spec.containers[0].livenessProbe"),
        ("startupProbe: {tcpSocket: {port: 1}, failureThreshold: 1000}", "P34 spec.containers[0].startupProbe"),
    ] {
        refuses(&pod(probe, ""), begins);
    }
}

/// If a field is an empty string, its default is used, as in the API server.
#[test]
fn p24_p42_p43_p60_empty_uses_default() {
    let container = "imagePullPolicy: ''\nterminationMessagePolicy: ''\nports: [{containerPort: 1, protocol: ''}]";
    let whole = plan(&pod(container, "restartPolicy: ''\ndnsPolicy: ''"));
    assert_eq!(request(&whole).restart_policy.map(|policy| policy.mode()), Some(Mode::Always));
}

#[test]
fn p31_unknown_stop_signals_are_refused() {
    let with = |signal: &str| pod(&format!("lifecycle: {{stopSignal: {signal}}}"), "");
    for signal in ["SIGUSR1", "SIGRTMIN", "SIGRTMIN+15", "SIGRTMAX-14"] {
        assert!(warnings(&with(signal))[0].starts_with("P31"), "{signal}");
    }
    for signal in ["USR1", "noSuchSignal", "SIGRTMIN+16", "'9'"] {
        refuses(&with(signal), "P31 spec.containers[0].lifecycle.stopSignal");
    }
}

#[test]
fn p36_probe_grace_period_is_validated() {
    let with = |probe: &str, grace: i32| {
        pod(&format!("{probe}: {{tcpSocket: {{port: 1}}, terminationGracePeriodSeconds: {grace}}}"), "")
    };
    assert!(warnings(&with("livenessProbe", 5))[0].starts_with("P36"));
    refuses(&with("livenessProbe", 0), "P36 spec.containers[0].livenessProbe.terminationGracePeriodSeconds: must be");
    refuses(
        &with("readinessProbe", 5),
        "P36 spec.containers[0].readinessProbe.terminationGracePeriodSeconds: is not allowed for",
    );
}

#[test]
fn p38_p39_invalid_probes_are_refused() {
    for (probe, begins) in [
        ("livenessProbe: {httpGet: {port: 1, scheme: http}}", "P38 spec.containers[0].livenessProbe.httpGet.scheme"),
        (
            "livenessProbe: {httpGet: {port: 1, httpHeaders: [{name: A, value: ''}, {name: 'a b', value: c}]}}",
            "P38 spec.containers[0].livenessProbe.httpGet.httpHeaders[1].name",
        ),
        (
            "livenessProbe: {httpGet: {port: 1}, tcpSocket: {port: 1}}",
            "P34 spec.containers[0].livenessProbe: must have exactly one",
        ),
        ("livenessProbe: {httpGet: {port: 1, scheme: HTTPS}}", "P38 spec.containers[0].livenessProbe.httpGet.scheme"),
        ("livenessProbe: {httpGet: {port: 1, host: example.com}}", "P38 spec.containers[0].livenessProbe.httpGet.host"),
        // A quoted number is a port name, which must contain a letter.
        ("livenessProbe: {httpGet: {port: '80'}}", "P38 spec.containers[0].livenessProbe.httpGet.port"),
        ("livenessProbe: {httpGet: {port: web}}", "P38 spec.containers[0].livenessProbe.httpGet.port"),
        ("livenessProbe: {grpc: {port: 1}}", "P38 spec.containers[0].livenessProbe.grpc"),
        ("livenessProbe: {tcpSocket: {port: 70000}}", "P38"),
    ] {
        refuses(&pod(probe, ""), begins);
    }
}

#[test]
fn p40_p41_names_and_hosts_are_lowered() {
    let create = |spec: &str| plan(&pod("", spec)).pods[0].create.clone();
    let shared = create("hostname: h\nshareProcessNamespace: true\nhostAliases: [{ip: 10.0.0.1, hostnames: [a, b]}]");
    assert_eq!((shared.hostname.as_str(), shared.share_processes, shared.extra_hosts.len()), ("h", true, 2));
    assert_eq!(create("").hostname, "web");
    refuses(&pod("", "hostname: A"), "P40 spec.hostname");
    refuses(&pod("", "hostnameOverride: a"), "P40 spec.hostnameOverride");
    refuses(&pod("", "hostAliases: [{ip: x}]"), "P41 spec.hostAliases[0].ip");
    refuses(&pod("", "hostAliases: [{ip: 1.1.1.1, hostnames: [a, A_b]}]"), "P41 spec.hostAliases[0].hostnames[1]");
}

#[test]
fn p42_dns_settings_are_lowered() {
    let create = |spec: &str| plan(&pod("", spec)).pods[0].create.clone();
    assert!(warnings(&pod("", "dnsPolicy: ClusterFirst"))[0].contains("MissingClusterDNS"));
    let spec = "dnsPolicy: None\ndnsConfig: {nameservers: [1.1.1.1], searches: [a.b], options: [{name: ndots, value: '2'}, {name: edns0}]}";
    let dns = plan(&pod("", spec)).pods[0].create.dns.clone().unwrap();
    assert_eq!(
        (dns.servers, dns.searches, dns.options),
        (vec!["1.1.1.1".into()], vec!["a.b".into()], vec!["ndots:2".into(), "edns0".into()])
    );
    assert_eq!((create("dnsConfig: {}").dns, warnings(&pod("", "dnsConfig: {}")).len()), (None, 0));
    let empty = "dnsConfig: {nameservers: [], searches: [], options: []}";
    assert_eq!((create(empty).dns, warnings(&pod("", empty)).len()), (None, 0));
    refuses(&pod("", "dnsPolicy: None"), "P42 spec.dnsConfig");
    refuses(&pod("", "dnsPolicy: None\ndnsConfig: {}"), "P42 spec.dnsConfig");
    refuses(&pod("", "dnsPolicy: None\ndnsConfig: {nameservers: [a]}"), "P42");
    refuses(&pod("", "dnsPolicy: None\ndnsConfig: {nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4]}"), "P42");
}

#[test]
fn p43_ports_are_lowered() {
    let ports = |text: &str| plan_with(text, &cni()).0.pods[0].create.ports.clone();
    assert_eq!(ports(&pod("ports: [{containerPort: 80}]", "")), []);
    let published = ports(&pod("ports: [{containerPort: 80, hostPort: 8080, protocol: UDP, hostIP: 127.0.0.1}]", ""));
    assert_eq!(
        (published[0].host_port, published[0].container_port, published[0].host_ip.as_str()),
        (8080, 80, "127.0.0.1")
    );
    refuses(
        &pod("ports: [{containerPort: 80, hostPort: 8080}]", ""),
        "P43 spec.containers[0].ports[0].hostPort: needs a network",
    );
    refuses(
        &pod("ports: [{containerPort: 80, hostPort: 8080}]", "hostNetwork: true"),
        "P43 spec.containers[0].ports[0].hostPort: must be equal to containerPort",
    );
    for (ports, begins) in [
        ("{name: Web, containerPort: 80}", "P43 spec.containers[0].ports[0].name: is not a valid port name"),
        ("{name: '8080', containerPort: 80}", "P43 spec.containers[0].ports[0].name"),
        ("{name: a-port-with-a-long-name, containerPort: 80}", "P43 spec.containers[0].ports[0].name"),
        (
            "{name: web, containerPort: 80}, {name: web, containerPort: 81}",
            "P43 spec.containers[0].ports[1].name: `web` is the name of another",
        ),
        ("{containerPort: 80, hostIP: here}", "P43 spec.containers[0].ports[0].hostIP"),
        ("{containerPort: 0}", "P43 spec.containers[0].ports[0].containerPort"),
        ("{containerPort: 80, protocol: tcp}", "P43 spec.containers[0].ports[0].protocol"),
    ] {
        refuses(&pod(&format!("ports: [{ports}]"), ""), begins);
    }
    let twice = pod("ports: [{containerPort: 80, hostPort: 1}, {containerPort: 81, hostPort: 1}]", "");
    assert_eq!(refused_with(&twice, &cni()), ["P43 spec.containers[0].ports[1].hostPort: 1 is published twice"]);
    let two = format!(
        "{}---\n{}",
        pod("ports: [{containerPort: 80, hostPort: 1}]", ""),
        pod("ports: [{containerPort: 80, hostPort: 1}]", "").replace("name: web", "name: other")
    );
    assert!(refused_with(&two, &cni())[0].starts_with("P43 spec: publishes the host's port 1"));
}

#[test]
fn p49_p50_resources_are_lowered() {
    let limits = |resources: &str| request(&plan(&pod(&format!("resources: {resources}"), ""))).limits.unwrap();
    let given = limits("{limits: {cpu: 500m, memory: 64Mi, ephemeral-storage: 1Gi}, requests: {cpu: 250m}}");
    assert_eq!(
        (given.cpu_millis, given.memory_bytes, given.disk_bytes, given.cpu_weight),
        (500, 64 << 20, 1 << 30, 35)
    );
    assert_eq!(limits("{limits: {cpu: 1}}").cpu_weight, 100);
    refuses(
        &pod("resources: {limits: {cpu: 1}, requests: {cpu: 2}}", ""),
        "P50 spec.containers[0].resources.requests: `cpu` exceeds its limit",
    );
    refuses(&pod("resources: {limits: {memory: 1Q}}", ""), "P50 spec.containers[0].resources.limits['memory']");
    refuses(&pod("resources: {limits: {memory: -1}}", ""), "P50");
    assert!(warnings(&pod("resources: {requests: {memory: 1Gi}}", ""))[0].starts_with("P50"));
}

#[test]
fn p51_requests_determine_oom_score() {
    let score = |resources: &str| request(&plan(&pod(&format!("resources: {resources}"), ""))).oom_score_adj;
    assert_eq!(score("{}"), Some(1000));
    assert_eq!(score("{limits: {cpu: 1, memory: 1Gi}}"), None);
    assert_eq!(score("{requests: {memory: 2Gi}}"), Some(750));
    assert_eq!(score("{requests: {cpu: 1}}"), Some(999));
    assert_eq!(score("{requests: {memory: 80Gi}}"), Some(3));
    // An amount of 0 means unset, so a request of 0 differs from the limit.
    assert_eq!(score("{limits: {cpu: 0}, requests: {cpu: 0}}"), Some(1000));
    assert_eq!(score("{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 0}}"), Some(875));
    // The class depends on main and init containers.
    let both = pod("resources: {limits: {cpu: 1, memory: 1Gi}}", "initContainers: [{name: i, image: i:1}]");
    assert_eq!(request(&plan(&both)).oom_score_adj, Some(875));
}

#[test]
fn p52_unsupported_resources_are_reported() {
    for (container, spec, begins) in [
        ("resources: {limits: {nvidia.com/gpu: 1}}", "", "P52 spec.containers[0].resources.limits['nvidia.com/gpu']"),
        ("resources: {requests: {cpus: 1}}", "", "P52 spec.containers[0].resources.requests['cpus']"),
        ("resources: {claims: [{name: a}]}", "", "P52 spec.containers[0].resources.claims"),
        ("resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]", "", "P52"),
        ("", "resources: {limits: {cpu: 1}}", "P52 spec.resources"),
    ] {
        refuses(&pod(container, spec), begins);
    }
    for nothing in ["{}", "{limits: {}, requests: {}, claims: []}"] {
        plan(&pod(&format!("resources: {nothing}"), &format!("resources: {nothing}")));
    }
}
