//! Collects the privileges of one container, including privileges from fields of its pod.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Holder, entries, text, volume};
use crate::grant::Grant;

/// Name of the privilege to have all capabilities.
pub(super) const ALL_CAPABILITIES: &str = "all capabilities";
/// Capabilities of a container that neither adds nor drops capabilities.
const DEFAULT_CAPABILITIES: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Prefixes of the annotations that set profiles in earlier Kubernetes versions.
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP: [&str; 2] =
    ["container.seccomp.security.alpha.kubernetes.io/", "seccomp.security.alpha.kubernetes.io/pod"];

pub(super) fn collect(holder: &mut Holder<'_>, container: &Value, pod: &Value, annotations: &Value) {
    let (own, of_pod) = (&container["securityContext"], &pod["securityContext"]);
    let effective = |field: &str| if own[field].is_null() { &of_pod[field] } else { &own[field] };
    if own["privileged"] == true || effective("windowsOptions")["hostProcess"] == true {
        holder.add(Grant::Privileged, "securityContext.privileged", "privileged mode");
    }
    if own["allowPrivilegeEscalation"] != false {
        let what = "programs that gain privileges";
        holder.keeps(Grant::PrivilegeEscalation, "securityContext.allowPrivilegeEscalation", what);
    }
    capabilities(holder, &own["capabilities"]);
    user(holder, effective("runAsUser"), effective("runAsGroup"), effective("runAsNonRoot"));
    profiles(holder, effective("seccompProfile"), effective("appArmorProfile"), annotations);
    if own["procMount"] == "Unmasked" {
        holder.add(Grant::Isolation, "securityContext.procMount", "an unmasked /proc");
    }
    if own["readOnlyRootFilesystem"] != true {
        holder.keeps(Grant::Isolation, "securityContext.readOnlyRootFilesystem", "a writable root file system");
    }
    match effective("seLinuxOptions") {
        Value::Null => holder.keeps(Grant::Isolation, "securityContext.seLinuxOptions", "the default SELinux label"),
        label => holder.add(Grant::Isolation, "securityContext.seLinuxOptions", format!("the SELinux label {label}")),
    }
    for port in entries(&container["ports"]) {
        if let Some(port) = port["hostPort"].as_u64().filter(|port| *port > 0) {
            holder.add(Grant::HostNamespaces, "ports", format!("the host's port {port}"));
        }
    }
    for variable in entries(&container["env"]) {
        let reference = &variable["valueFrom"]["secretKeyRef"];
        if !reference.is_null() {
            let (grant, what) = volume::secret(text(&reference["name"]), Some(text(&reference["key"])));
            holder.add(grant, &format!("env[{}].valueFrom.secretKeyRef", text(&variable["name"])), what);
        }
    }
    for source in entries(&container["envFrom"]) {
        let reference = &source["secretRef"];
        if !reference.is_null() {
            let (grant, what) = volume::secret(text(&reference["name"]), None);
            holder.add(grant, "envFrom", what);
        }
    }
    mounts(holder, container, pod);
    resources(holder, &container["resources"]);
}

fn capabilities(holder: &mut Holder<'_>, capabilities: &Value) {
    let names = |field: &str| -> BTreeSet<String> {
        let upper = |value: &Value| text(value).to_ascii_uppercase();
        entries(&capabilities[field]).iter().map(upper).map(|name| name.trim_start_matches("CAP_").to_owned()).collect()
    };
    let (add, drop) = (names("add"), names("drop"));
    for name in DEFAULT_CAPABILITIES {
        if !drop.contains("ALL") && !drop.contains(name) && !add.contains(name) {
            holder.keeps(Grant::Capabilities, "securityContext.capabilities.drop", format!("the capability {name}"));
        }
    }
    for name in add {
        let default = DEFAULT_CAPABILITIES.contains(&&*name);
        let what = if name == "ALL" { ALL_CAPABILITIES.to_owned() } else { format!("the capability {name}") };
        match default {
            true => holder.keeps(Grant::Capabilities, "securityContext.capabilities.add", what),
            false => holder.add(Grant::Capabilities, "securityContext.capabilities.add", what),
        }
    }
}

fn user(holder: &mut Holder<'_>, user: &Value, group: &Value, non_root: &Value) {
    match user.as_i64() {
        Some(0) => holder.add(Grant::Root, "securityContext.runAsUser", "user 0"),
        Some(_) => {}
        None if *non_root == true => {}
        None => holder.keeps(Grant::Root, "securityContext.runAsUser", "the image's user, which may be user 0"),
    }
    // User 0 includes the privilege to run as the image's user.
    if *user == 0 {
        holder.keeps(Grant::Root, "securityContext.runAsUser", "the image's user, which may be user 0");
    }
    if *group == 0 {
        holder.add(Grant::Root, "securityContext.runAsGroup", "group 0");
    }
}

/// Adds the privileges of missing or weak profiles. A container without a profile has the privileges of all weaker or
/// equal profiles.
fn profiles(holder: &mut Holder<'_>, seccomp: &Value, apparmor: &Value, annotations: &Value) {
    let name = holder.name.to_owned();
    let annotated = |key: &str| annotations.get(key).and_then(Value::as_str).map(str::to_owned);
    let of_field = |profile: &Value| match text(&profile["type"]) {
        "" => None,
        "Localhost" => Some(format!("localhost/{}", text(&profile["localhostProfile"]))),
        "RuntimeDefault" => Some("runtime/default".to_owned()),
        other => Some(other.to_ascii_lowercase()),
    };
    let of_seccomp = || annotated(&format!("{}{name}", SECCOMP[0])).or_else(|| annotated(SECCOMP[1]));
    let filters = [
        ("seccomp", "securityContext.seccompProfile", of_field(seccomp).or_else(of_seccomp)),
        (
            "AppArmor",
            "securityContext.appArmorProfile",
            of_field(apparmor).or_else(|| annotated(&format!("{APPARMOR}{name}"))),
        ),
    ];
    for (kind, field, profile) in filters {
        let what = |profile: &str| format!("the {kind} profile {profile}");
        let default = "runtime/default";
        match profile.as_deref() {
            Some("unconfined") => {
                holder.add(Grant::Isolation, field, what("unconfined"));
                holder.keeps(Grant::Isolation, field, format!("no {kind} profile of its own"));
                holder.keeps(Grant::Isolation, field, what(default));
            }
            None => {
                holder.keeps(Grant::Isolation, field, format!("no {kind} profile of its own"));
                holder.keeps(Grant::Isolation, field, what(default));
            }
            Some("docker/default" | "runtime/default") => holder.keeps(Grant::Isolation, field, what(default)),
            Some(other) => holder.add(Grant::Isolation, field, what(other)),
        }
    }
}

fn mounts(holder: &mut Holder<'_>, container: &Value, pod: &Value) {
    let volume = |name: &str| entries(&pod["volumes"]).iter().find(|volume| text(&volume["name"]) == name);
    for mount in entries(&container["volumeMounts"]) {
        let field = format!("volumeMounts[{}]", text(&mount["mountPath"]));
        let Some(volume) = volume(text(&mount["name"])) else { continue };
        for (grant, what) in volume::privileges(volume) {
            if matches!(grant, Grant::Secrets | Grant::ServiceAccount) {
                holder.add(grant, &field, what);
                continue;
            }
            let below = [&mount["subPath"], &mount["subPathExpr"]].into_iter().map(text).find(|path| !path.is_empty());
            let below = below.map(|path| format!(" below {path}")).unwrap_or_default();
            holder.add(grant, &field, format!("{what}{below}"));
            if mount["readOnly"] != true {
                holder.add(grant, &field, format!("{what}{below}, writable"));
            }
            match text(&mount["mountPropagation"]) {
                "" | "None" => {}
                propagation => holder.add(grant, &field, format!("{what} with propagation {propagation}")),
            }
        }
    }
    for device in entries(&container["volumeDevices"]) {
        let field = format!("volumeDevices[{}]", text(&device["devicePath"]));
        let source = volume(text(&device["name"])).map(volume::privileges).unwrap_or_default();
        let source = source.into_iter().map(|(_, what)| what).collect::<Vec<_>>().join(", ");
        holder.add(Grant::Devices, &field, format!("the device of {source}"));
    }
}

/// Adds the privileges of resource claims and of extended resources, whose names have a prefix (`vendor.example/gpu`).
/// Both give a container devices of the host.
fn resources(holder: &mut Holder<'_>, resources: &Value) {
    for list in ["limits", "requests"] {
        for name in resources[list].as_object().into_iter().flat_map(|all| all.keys()) {
            if name.contains('/') && !name.starts_with("kubernetes.io/") {
                holder.add(Grant::Devices, "resources", format!("the resource {name}"));
            }
        }
    }
    for claim in entries(&resources["claims"]) {
        holder.add(Grant::Devices, "resources.claims", format!("the resource claim {}", text(&claim["name"])));
    }
}
