//! Tests rules P44 to P48 of `docs/guides/kube-rules.md`: users, groups, capabilities, profiles and other security
//! fields.

use executor_client::v1::{Network, UserNamespace};
use executor_kube::options::PodNetwork;
use executor_kube::report::Strictness;
use k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext};

use crate::common::{MAP, checked, file, member, options, plan, plan_with, pod, refuses, request, run, warnings};

/// Effect of a security field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// The requests differ from the requests without the field.
    Applied,
    /// The requests are unchanged, because the value of the field is the default.
    Holds,
    Warned,
    Refused,
}

/// Returns the outcome for a pod. A warning or violation must have the path `at`.
fn outcome(text: &str, at: &str) -> Outcome {
    let made = |text: &str| {
        let (plan, warnings) = plan_with(text, &options());
        let pod = plan.pods[0].clone();
        let non_root: Vec<bool> = pod.members.iter().map(|member| member.non_root).collect();
        ((pod.digest, non_root), warnings)
    };
    match checked(text, Strictness::Strict, &options()) {
        Err(list) => {
            assert!(list.len() == 1 && list[0].path.starts_with(at), "{at}: {list:?}");
            Outcome::Refused
        }
        Ok(_) => {
            let ((found, warnings), (bare, _)) = (made(text), made(&pod("", "")));
            match &warnings[..] {
                [] if found == bare => Outcome::Holds,
                [] => Outcome::Applied,
                [warning] => {
                    assert!(found == bare && warning.path.starts_with(at), "{at}: {warning}");
                    Outcome::Warned
                }
                _ => panic!("{at}: {warnings:?}"),
            }
        }
    }
}

#[test]
fn p44_users_are_lowered() {
    let user = |container: &str, spec: &str| run(&plan(&pod(container, spec))).user;
    let pods = "securityContext: {runAsUser: 1000, runAsGroup: 2000}";
    assert_eq!(user("", pods), "1000:2000");
    assert_eq!(user("securityContext: {runAsUser: 7}", pods), "7:2000");
    assert_eq!(user("securityContext: {runAsUser: 7}", ""), "7");
    refuses(&pod("securityContext: {runAsGroup: 7}", ""), "P44");
    refuses(&pod("securityContext: {runAsUser: 0, runAsNonRoot: true}", ""), "P44");
    refuses(&pod("securityContext: {runAsUser: -1}", ""), "P44");
    refuses(&pod("securityContext: {runAsUser: 2147483648}", ""), "P44 spec.containers[0].securityContext.runAsUser");
    assert!(member(&plan(&pod("securityContext: {runAsNonRoot: true}", ""))).non_root);
    assert!(!member(&plan(&pod("securityContext: {runAsNonRoot: true, runAsUser: 1}", ""))).non_root);
}

#[test]
fn p45_groups_are_lowered() {
    let text = pod(
        "volumeMounts: [{name: v, mountPath: /v}]",
        "securityContext: {fsGroup: 10, supplementalGroups: [20]}\nvolumes: [{name: v, configMap: {name: c, defaultMode: 0400}}]",
    ) + MAP;
    let whole = plan(&text);
    assert_eq!(request(&whole).extra_groups, ["10", "20"]);
    let run = run(&whole);
    assert_eq!((file(&run, "/v/A").mode, file(&run, "/v/A").group.as_deref()), (Some(0o440), Some("10")));
    assert!(!request(&whole).strict_groups);
    assert!(request(&plan(&pod("", "securityContext: {supplementalGroupsPolicy: Strict}"))).strict_groups);
    for (policy, merged) in
        [("", true), (", supplementalGroupsPolicy: Merge", true), (", supplementalGroupsPolicy: Strict", false)]
    {
        let context = format!("securityContext: {{runAsUser: 1, runAsGroup: 2{policy}}}");
        assert_eq!(request(&plan(&pod("", &context))).merge_groups, merged, "{policy}");
    }
    assert!(!request(&plan(&pod("", "securityContext: {runAsUser: 1}"))).merge_groups, "no group is named");
}

#[test]
fn p46_capabilities_are_lowered() {
    let of = |context: &str| request(&plan(&pod(&format!("securityContext: {context}"), "")));
    let capabilities =
        of("{capabilities: {drop: [ALL, NET_RAW], add: [CAP_NET_ADMIN, NET_RAW]}}").capabilities.unwrap();
    assert_eq!(
        (capabilities.add, capabilities.drop),
        (vec!["NET_ADMIN".to_owned()], vec!["ALL".to_owned(), "NET_RAW".into()])
    );
    assert!(of("{allowPrivilegeEscalation: true}").allow_new_privileges, "an absent field permits nothing");
    assert!(!of("{}").allow_new_privileges && !of("{allowPrivilegeEscalation: false}").allow_new_privileges);
    assert!(of("{privileged: true}").privileged && of("{readOnlyRootFilesystem: true}").read_only_rootfs);
    refuses(&pod("securityContext: {privileged: true, allowPrivilegeEscalation: false}", ""), "P46");
    let added = "securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [CAP_SYS_ADMIN]}}";
    refuses(&pod(added, ""), "P46 spec.containers[0].securityContext.allowPrivilegeEscalation");
}

#[test]
fn p47_profiles_are_lowered() {
    // An empty label has no effect.
    for context in
        ["{seccompProfile: {type: RuntimeDefault}}", "{appArmorProfile: {type: Unconfined}}", "{seLinuxOptions: {}}"]
    {
        plan(&pod(&format!("securityContext: {context}"), ""));
    }
    let profile =
        request(&plan(&pod("securityContext: {appArmorProfile: {type: Localhost, localhostProfile: mine}}", "")))
            .apparmor_profile;
    assert_eq!(profile, "mine");
    let of = |context: &str| request(&plan(&pod(&format!("securityContext: {context}"), "")));
    let unmasked = of("{procMount: Unmasked, seccompProfile: {type: Unconfined}}");
    assert!(unmasked.seccomp_unconfined && unmasked.masked_paths.is_some_and(|list| list.paths.is_empty()));
    assert!(unmasked.readonly_paths.is_some_and(|list| list.paths.is_empty()));
    assert!(of("{procMount: Default}").masked_paths.is_none(), "the control");
    for context in [
        "{seccompProfile: {type: Localhost, localhostProfile: a}}",
        "{appArmorProfile: {type: RuntimeDefault}}",
        "{procMount: Other}",
        "{seLinuxOptions: {level: a}}",
        "{seccompProfile: {type: RuntimeDefault, localhostProfile: a}}",
        "{appArmorProfile: {type: Unconfined, localhostProfile: a}}",
        "{windowsOptions: {}}",
    ] {
        refuses(&pod(&format!("securityContext: {context}"), ""), "P47");
    }
}

/// If an annotation of earlier Kubernetes versions sets a profile, the profile is applied or refused.
#[test]
fn p47_annotated_profiles_are_lowered() {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let annotated = |name: &str, value: &str, container: &str| {
        pod(container, "").replace("annotations: {", &format!("annotations: {{{name}: {value}, "))
    };
    let of_app = |value: &str, container: &str| annotated(&format!("{ANNOTATION}app"), value, container);
    let profile = |text: &str| request(&plan(text)).apparmor_profile;
    assert_eq!(profile(&of_app("localhost/mine", "")), "mine");
    assert_eq!(profile(&of_app("unconfined", "")), "");
    let field = "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: mine}}";
    assert_eq!(profile(&of_app("localhost/mine", field)), "mine");
    let at = format!("P47 metadata.annotations[{ANNOTATION}app]");
    refuses(&of_app("localhost/other", field), &at);
    for value in ["runtime/default", "localhost/", "mine"] {
        refuses(&of_app(value, ""), &at);
    }
    refuses(&annotated(&format!("{ANNOTATION}none"), "localhost/mine", ""), "P47 metadata.annotations");
    for name in ["seccomp.security.alpha.kubernetes.io/pod", "container.seccomp.security.alpha.kubernetes.io/app"] {
        assert!(warnings(&annotated(name, "unconfined", ""))[0].starts_with("P47"), "{name}");
    }
}

#[test]
fn p45_policies_are_enumerations() {
    let context = |field: &str| pod("", &format!("securityContext: {{fsGroup: 1, {field}}}"));
    for field in
        ["supplementalGroupsPolicy: Merge", "fsGroupChangePolicy: Always", "fsGroupChangePolicy: OnRootMismatch"]
    {
        plan(&context(field));
    }
    refuses(&context("supplementalGroupsPolicy: Some"), "P45 spec.securityContext.supplementalGroupsPolicy");
    refuses(&context("fsGroupChangePolicy: Never"), "P45 spec.securityContext.fsGroupChangePolicy");
}

#[test]
fn p47_sysctls_are_lowered() {
    let sysctls = |all: &str| pod("", &format!("securityContext: {{sysctls: [{all}]}}"));
    let one = plan(&sysctls("{name: net.core.somaxconn, value: '1024'}")).pods[0].create.sysctls.clone();
    assert_eq!(one.get("net.core.somaxconn").map(String::as_str), Some("1024"));
    refuses(
        &sysctls("{name: net.core.somaxconn, value: '1'}, {name: net/core/somaxconn, value: '2'}"),
        "P47 spec.securityContext.sysctls[1].name",
    );
    let on_host = sysctls("{name: net.core.somaxconn, value: '1'}").replace("spec:\n", "spec:\n  hostNetwork: true\n");
    refuses(&on_host, "P47 spec.securityContext.sysctls[0].name: is a network setting");
}

/// If a security field is set, it is applied, warned about or refused, and never ignored silently.
#[test]
fn p44_p48_security_fields_have_outcomes() {
    use Outcome::{Applied, Holds, Refused, Warned};
    // Fields of both the container's and the pod's security context.
    let both = [
        ("appArmorProfile", "{type: Localhost, localhostProfile: mine}", Applied),
        ("appArmorProfile", "{type: RuntimeDefault}", Refused),
        ("appArmorProfile", "{type: Unconfined}", Holds),
        ("runAsGroup", "7", Refused),
        ("runAsGroup", "7, runAsUser: 1", Applied),
        ("runAsNonRoot", "true", Applied),
        ("runAsNonRoot", "false", Holds),
        ("runAsUser", "7", Applied),
        ("runAsUser", "-1", Refused),
        ("runAsUser", "0, runAsNonRoot: true", Refused),
        ("seLinuxOptions", "{level: a}", Refused),
        ("seccompProfile", "{type: Unconfined}", Applied),
        ("seccompProfile", "{type: Localhost, localhostProfile: a}", Refused),
        ("seccompProfile", "{type: RuntimeDefault}", Holds),
        ("windowsOptions", "{hostProcess: true}", Refused),
    ];
    let container = [
        ("allowPrivilegeEscalation", "false", Holds),
        ("allowPrivilegeEscalation", "true", Applied),
        ("capabilities", "{add: [NET_ADMIN]}", Applied),
        ("capabilities", "{drop: [ALL]}", Applied),
        ("privileged", "true", Applied),
        ("procMount", "Unmasked", Applied),
        ("procMount", "Default", Holds),
        ("readOnlyRootFilesystem", "true", Applied),
    ];
    let whole = [
        ("fsGroup", "7", Applied),
        ("fsGroup", "-1", Refused),
        // Volumes are new for each pod, so both policies have the same effect.
        ("fsGroupChangePolicy", "OnRootMismatch", Holds),
        ("fsGroupChangePolicy", "Never", Refused),
        ("seLinuxChangePolicy", "MountOption", Warned),
        ("seLinuxChangePolicy", "Recursive", Warned),
        ("seLinuxChangePolicy", "Never", Refused),
        ("supplementalGroups", "[7]", Applied),
        ("supplementalGroups", "[1, -1]", Refused),
        ("supplementalGroupsPolicy", "Strict", Applied),
        ("supplementalGroupsPolicy", "Merge", Holds),
        ("sysctls", "[{name: net.ipv4.tcp_syncookies, value: '1'}]", Applied),
    ];
    let spec = [
        ("automountServiceAccountToken", "true", Warned),
        ("automountServiceAccountToken", "false", Holds),
        ("hostIPC", "true", Applied),
        ("hostNetwork", "true", Applied),
        ("hostPID", "true", Applied),
        ("hostUsers", "true", Applied),
        ("hostUsers", "false", Holds),
        ("imagePullSecrets", "[{name: none}]", Warned),
        ("os", "{name: windows}", Refused),
        ("runtimeClassName", "gvisor", Refused),
        ("serviceAccount", "robot", Warned),
        ("serviceAccountName", "robot", Warned),
        ("serviceAccountName", "default", Holds),
        ("shareProcessNamespace", "true", Applied),
    ];
    let context = |field: &str, value: &str| format!("securityContext: {{{field}: {value}}}");
    for (field, value, expected) in both.iter().chain(&container) {
        let found = outcome(&pod(&context(field, value), ""), &format!("spec.containers[0].securityContext.{field}"));
        assert_eq!(found, *expected, "container: {field}: {value}");
    }
    for (field, value, expected) in both.iter().chain(&whole) {
        let found = outcome(&pod("", &context(field, value)), &format!("spec.securityContext.{field}"));
        assert_eq!(found, *expected, "pod: {field}: {value}");
    }
    for (field, value, expected) in spec {
        let found = outcome(&pod("", &format!("{field}: {value}")), &format!("spec.{field}"));
        assert_eq!(found, expected, "{field}: {value}");
    }
    // Ensures that the tables are complete: if a later version of Kubernetes adds a field, this code does not compile.
    let SecurityContext {
        allow_privilege_escalation: _,
        app_armor_profile: _,
        capabilities: _,
        privileged: _,
        proc_mount: _,
        read_only_root_filesystem: _,
        run_as_group: _,
        run_as_non_root: _,
        run_as_user: _,
        se_linux_options: _,
        seccomp_profile: _,
        windows_options: _,
    } = SecurityContext::default();
    let PodSecurityContext {
        app_armor_profile: _,
        fs_group: _,
        fs_group_change_policy: _,
        run_as_group: _,
        run_as_non_root: _,
        run_as_user: _,
        se_linux_change_policy: _,
        se_linux_options: _,
        seccomp_profile: _,
        supplemental_groups: _,
        supplemental_groups_policy: _,
        sysctls: _,
        windows_options: _,
    } = PodSecurityContext::default();
}

#[test]
fn p48_host_namespaces_are_lowered() {
    let create = |spec: &str| plan(&pod("", spec)).pods[0].create.clone();
    assert_eq!(
        (create("").user_namespace(), create("hostUsers: true").user_namespace()),
        (UserNamespace::Own, UserNamespace::Host)
    );
    assert_eq!((create("").network(), create("hostNetwork: true").network()), (Network::None, Network::Host));
    let blue = executor_kube::options::Options { network: PodNetwork::Cni("blue".into()), egress: true, ..options() };
    let with = plan_with(&pod("", ""), &blue).0.pods[0].create.clone();
    assert_eq!((with.network(), with.network_name.as_str(), with.egress), (Network::Cni, "blue", true));
    let shared = create("hostPID: true\nhostIPC: true");
    assert_eq!((shared.host_pid, shared.host_ipc, shared.user_namespace()), (true, true, UserNamespace::Host));
    assert_eq!((create("").host_pid, create("").host_ipc), (false, false), "the control");
    refuses(&pod("", "hostPID: true\nhostUsers: false"), "P48 spec.hostPID");
    refuses(&pod("", "hostIPC: true\nhostUsers: false"), "P48 spec.hostIPC");
    refuses(&pod("", "hostPID: true\nshareProcessNamespace: true"), "P48 spec.shareProcessNamespace");
}
