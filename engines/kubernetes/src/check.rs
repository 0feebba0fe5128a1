//! `executor-cri --check`: finds the missing settings of the host, executord's policy and the kubelet's configuration,
//! each with the line to add.
//!
//! executord validates the requests of an ordinary pod, of a privileged pod in the host's namespaces, and of pods with
//! the ids of the kubelet, without any effect (Validate).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use executor_client::v1::{CreatePodRequest, RunRequest, ValidateRequest};
use executor_client::{Client, Error, Violation, Wiped};
use executor_cri_api::v1::{
    Capability, ContainerConfig, IdMapping, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, MountPropagation,
    NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata, UserNamespace,
};
use executor_yaml::{Limits, decode, parse};
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::config::{Config, UserNamespaces};
use crate::lower::container::{self, Origin};
use crate::lower::sandbox::{self, Host};
use crate::options::Options;
use crate::secrets::RequestSecrets;

/// Number of ids of a pod's user namespace.
const IDS_OF_A_POD: u32 = 65_536;
/// Maximum size of a file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Id of the requests, which are only validated.
const ID: &str = "check";
/// Fields of requests to executord, each with the line of `[policy]` that allows the field.
const LINES: [(&str, &str); 23] = [
    ("pod.user_namespace", "allow_host_userns = true"),
    ("run.user_namespace", "allow_host_userns = true"),
    ("pod.sysctls", "host_ids_sysctls = true"),
    ("pod.egress", "allow_egress = true"),
    ("pod.cni", "cni_args = true"),
    ("pod.keep_until_deleted", "keep_until_deleted_max = 1000"),
    ("run.keep_until_deleted", "keep_until_deleted_max = 1000"),
    ("pod.network", "allow_host_network = true"),
    ("pod.host_pid", "allow_host_pid = true"),
    ("pod.host_ipc", "allow_host_ipc = true"),
    ("run.limits.unlimited_memory", "allow_no_limits = true"),
    ("run.limits.unlimited_pids", "allow_no_limits = true"),
    ("run.limits.unified", "cgroup_keys = [\"memory.high\", \"memory.low\", \"memory.min\", \"memory.oom.group\"]"),
    ("run.seccomp_unconfined", "allow_no_seccomp = true"),
    ("run.allow_new_privileges", "allow_new_privileges = true"),
    ("run.masked_paths", "allow_unmasked = true"),
    ("run.readonly_paths", "allow_unmasked = true"),
    (
        "run.volumes",
        "host_paths = [{ path = \"/var/lib/kubelet\", propagation = \"bidirectional\", suid = true, dev = true }]",
    ),
    ("run.oom_score_adj", "oom_score_adj_min = -997"),
    ("pod.id_map", "given_id_ranges = [\"2013265920-2020474879\"]"),
    ("run.privileged", "allow_privileged = true"),
    ("run.capabilities", "capabilities_allowed = [\"ALL\"]"),
    ("run.devices", "device_paths = [\"/dev\"]"),
];

/// Files of cgroup version 2 that a kubelet sets for containers with limits.
const UNIFIED: [(&str, &str); 5] = [
    ("memory.high", "max"),
    ("memory.low", "0"),
    ("memory.min", "0"),
    ("memory.oom.group", "1"),
    ("memory.swap.max", "0"),
];
/// Files with the ids that the kubelet gives to pods with `hostUsers: false`.
const IDS: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
/// Program by which the kubelet reads [`IDS`].
const GETSUBIDS: &str = "getsubids";
/// Line of [`IDS`] for 110 pods, above the pool of executord.
const IDS_LINE: &str = "kubelet:2013265920:7208960";
/// `oom_score_adj` of the QoS class Guaranteed and of critical pods.
const GUARANTEED: i64 = -997;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MissingSetting {
    /// Description of the problem.
    pub(crate) what: String,
    /// The line to add; empty if no single line corrects the problem.
    pub(crate) line: String,
    /// True if all pods need the setting; false for settings of system pods, `hostUsers: false` and secrets.
    pub(crate) is_needed: bool,
}

/// Part of a kubelet's configuration (KubeletConfiguration), with the kubelet's defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Kubelet {
    container_runtime_endpoint: String,
    cgroup_driver: String,
    cgroup_root: String,
    pod_logs_dir: String,
    #[serde(rename = "failCgroupV1")]
    fail_cgroup_v1: Option<bool>,
}

impl Kubelet {
    /// Returns the kubelet's configuration, or `None` if the text is not YAML.
    fn from_yaml(text: &str) -> Option<Self> {
        parse(text, 1, &Limits::OBJECT).ok().and_then(|parsed| decode::<Self>(&parsed.root).value)
    }

    /// Returns the parent of the cgroups that the kubelet creates for pods.
    fn pod_cgroups(&self) -> String {
        match self.cgroup_root.trim_matches('/') {
            "" => "/kubepods".to_owned(),
            root => format!("/{root}/kubepods"),
        }
    }

    /// Returns the directory for the logs of pods.
    fn pod_logs(&self) -> &str {
        match self.pod_logs_dir.trim_end_matches('/') {
            "" => "/var/log/pods",
            logs => logs,
        }
    }

    /// Returns the line of `[policy]` that allows a field of a request to executord.
    fn line_for(&self, field: &str) -> Option<String> {
        let begins = |prefix: &str| {
            field.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        match field {
            _ if begins("pod.cgroup_parent") => Some(format!("cgroup_parents = [{:?}]", self.pod_cgroups())),
            _ if begins("run.log_file") => Some(format!("log_dirs = [{:?}]", self.pod_logs())),
            _ => LINES.iter().find(|(prefix, _)| begins(prefix)).map(|(_, line)| (*line).to_owned()),
        }
    }
}

/// Returns the missing settings for a kubelet and the server on `options.socket`. `kubelet` is the text of the
/// kubelet's configuration file; if it is `None`, the kubelet's settings are not checked.
///
/// # Errors
/// Returns an error if executord does not respond.
pub(crate) async fn check(
    client: &Client,
    options: &Options,
    config: &Config,
    kubelet: Option<&str>,
) -> Result<Vec<MissingSetting>, Error> {
    let info = client.info().await?;
    let mut missing = Vec::new();
    let mut add = |what: &str, line: &str| {
        missing.push(MissingSetting { what: what.to_owned(), line: line.to_owned(), is_needed: true });
    };
    if !info.launcher_connected {
        add("no launcher is connected to executord", "systemctl enable --now executor-launcher");
    } else if !client.networks(&[]).await?.networks.iter().any(|network| network.driver == "cni") {
        add("executord has no usable CNI network: put a CNI configuration into the directory policy.cni_conf_dir", "");
    }
    if info.image_policy.as_ref().is_some_and(|policy| policy.set && policy.allow.is_empty()) {
        add("executord pulls no images: images.allow is empty", "[images] with allow = [\"*\"]");
    }
    for provider in config.providers() {
        if !info.secret_providers.iter().any(|known| known.name == provider) {
            missing.push(MissingSetting {
                what: format!("the configuration names the provider {provider:?}, which executord does not have"),
                line: format!("[[secret_providers]] with name = {provider:?}"),
                is_needed: false,
            });
        }
    }
    let mut settings = Kubelet::default();
    let mut ids_of_pods = Vec::new();
    if let Some(text) = kubelet {
        missing.extend(check_kubelet(text, &options.socket, info.cgroups != "v2"));
        settings = Kubelet::from_yaml(text).unwrap_or_default();
        let [users, groups] = IDS.map(|file| ids_of_kubelet(&read(Path::new(file)).unwrap_or_default()));
        let has_user =
            read(Path::new("/etc/passwd")).is_ok_and(|text| text.lines().any(|line| line.starts_with("kubelet:")));
        if has_user && !is_program(GETSUBIDS, &std::env::var_os("PATH").unwrap_or_default()) {
            missing.push(MissingSetting {
                what: format!("the kubelet does not start without {GETSUBIDS}; install it (package uidmap on Debian)"),
                line: String::new(),
                is_needed: true,
            });
        }
        match users.filter(|_| users == groups) {
            Some(first_and_last) => ids_of_pods.extend(first_and_last),
            None => missing.push(MissingSetting {
                what: format!(
                    "{} do not assign the same id range to the user kubelet; {}",
                    IDS.join(" and "),
                    if has_user {
                        "the kubelet does not start"
                    } else {
                        "ids of pods may overlap with other users' ids"
                    }
                ),
                line: IDS_LINE.to_owned(),
                is_needed: has_user,
            }),
        }
    }
    let kubelet = &settings;
    let mut pods = vec![(ordinary(kubelet), true), (system(kubelet), false)];
    pods.extend(ids_of_pods.into_iter().map(|first| (with_ids(kubelet, first), false)));
    for (mut pod, is_needed) in pods {
        if info.cgroups == "v2" {
            let resources = pod.1.linux.get_or_insert_default().resources.get_or_insert_default();
            resources.unified = UNIFIED.map(|(file, value)| (file.to_owned(), value.to_owned())).into();
        }
        let requests = requests(&pod, kubelet.pod_logs(), options.oom_score_adj_min, config.user_namespaces);
        let (pod, run) = requests.map_err(|status| Error::Argument(status.message().to_owned()))?;
        let pod = ValidateRequest { pod: Some(pod), run: None };
        let run = ValidateRequest { pod: None, run: Some(run) };
        for request in [pod, run] {
            let found = match client.validate(&Wiped::new(request)).await {
                Ok(()) => continue,
                Err(error) if error.violations().is_empty() => return Err(error),
                Err(error) => to_missing(kubelet, error.violations(), is_needed),
            };
            for setting in found {
                if setting.line.is_empty() || missing.iter().all(|known| known.line != setting.line) {
                    missing.push(setting);
                }
            }
        }
    }
    Ok(missing)
}

/// Reads a file of the host.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a regular file, or is larger than [`FILE_MAX`].
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if metadata.len() > FILE_MAX {
        return Err(io::Error::other(format!("{} bytes, the limit is {FILE_MAX}", metadata.len())));
    }
    std::fs::read_to_string(path)
}

/// Returns the missing settings of a kubelet's configuration. Unset keys have the kubelet's defaults.
fn check_kubelet(text: &str, socket: &Path, has_v1: bool) -> Vec<MissingSetting> {
    let mut missing = Vec::new();
    let mut add =
        |what: String, line: &str| missing.push(MissingSetting { what, line: line.to_owned(), is_needed: true });
    let Some(kubelet) = Kubelet::from_yaml(text) else {
        add("the kubelet's configuration is not a valid KubeletConfiguration in YAML".to_owned(), "");
        return missing;
    };
    let endpoint = format!("unix://{}", socket.display());
    if kubelet.container_runtime_endpoint != endpoint {
        let now = &kubelet.container_runtime_endpoint;
        add(format!("the kubelet uses the runtime at {now:?}"), &format!("containerRuntimeEndpoint: {endpoint}"));
    }
    if kubelet.cgroup_driver == "systemd" {
        add("a kubelet before 1.36 would use the cgroup driver systemd".to_owned(), "cgroupDriver: cgroupfs");
    }
    if has_v1 && kubelet.fail_cgroup_v1 != Some(false) {
        add("the kubelet does not start on a host with cgroup version 1".to_owned(), "failCgroupV1: false");
    }
    missing
}

/// Returns the first id of the first pod and the first id of the last pod, or `None` if the file has no valid range for
/// the kubelet.
fn ids_of_kubelet(text: &str) -> Option<[u32; 2]> {
    let line = text.lines().find_map(|line| line.strip_prefix("kubelet:"))?;
    let (first, length) = line.split_once(':')?;
    let (first, length): (u32, u32) = (first.parse().ok()?, length.trim().parse().ok()?);
    let end = first.checked_add(length)?;
    Some([first, end.checked_sub(IDS_OF_A_POD).filter(|&last| last >= first)?])
}

/// Returns true if a directory of `path`, which has the format of the variable PATH, contains a program.
fn is_program(name: &str, path: &OsStr) -> bool {
    std::env::split_paths(path).any(|directory| directory.join(name).is_file())
}

/// Converts violations to missing settings. Violations that are corrected by the same configuration line are merged
/// into one setting.
fn to_missing(kubelet: &Kubelet, violations: &[Violation], is_needed: bool) -> Vec<MissingSetting> {
    let mut by_line: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut others = Vec::new();
    for violation in violations {
        let what = format!("{}: {}", violation.field, violation.description);
        match kubelet.line_for(&violation.field) {
            Some(line) => by_line.entry(line).or_default().push(what),
            None => others.push(MissingSetting { what, line: String::new(), is_needed }),
        }
    }
    let named = by_line.into_iter().map(|(line, whats)| MissingSetting { what: whats.join("; "), line, is_needed });
    named.chain(others).collect()
}

/// The kubelet's requests for a sandbox and for its container.
type Pod = (PodSandboxConfig, ContainerConfig);

fn metadata() -> Option<PodSandboxMetadata> {
    Some(PodSandboxMetadata { name: ID.into(), uid: ID.into(), namespace: ID.into(), attempt: 0 })
}

/// Returns a pod without special settings, as the kubelet requests it.
fn ordinary(kubelet: &Kubelet) -> Pod {
    let cgroup_parent = format!("{}/besteffort/podcheck", kubelet.pod_cgroups());
    let linux = LinuxPodSandboxConfig { cgroup_parent, ..LinuxPodSandboxConfig::default() };
    let sandbox = PodSandboxConfig { metadata: metadata(), linux: Some(linux), ..PodSandboxConfig::default() };
    let mounts = vec![Mount {
        container_path: "/data".into(),
        host_path: "/var/lib/kubelet/pods/check/volumes".into(),
        ..Mount::default()
    }];
    let resources = LinuxContainerResources { oom_score_adj: GUARANTEED, ..LinuxContainerResources::default() };
    let linux = LinuxContainerConfig { resources: Some(resources), ..LinuxContainerConfig::default() };
    let command = vec!["/bin/true".into()];
    (sandbox, ContainerConfig { command, mounts, linux: Some(linux), ..ContainerConfig::default() })
}

/// Returns a pod with `hostUsers: false`, whose ids begin with `host_id` on the host.
fn with_ids(kubelet: &Kubelet, host_id: u32) -> Pod {
    let (mut sandbox, container) = ordinary(kubelet);
    let mapping = vec![IdMapping { host_id, container_id: 0, length: IDS_OF_A_POD }];
    let ids = UserNamespace { mode: NamespaceMode::Pod.into(), uids: mapping.clone(), gids: mapping };
    let options = NamespaceOption { userns_options: Some(ids), ..NamespaceOption::default() };
    let security = LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
    sandbox.linux.get_or_insert_default().security_context = Some(security);
    (sandbox, container)
}

/// Returns a privileged pod in the host's namespaces.
fn system(kubelet: &Kubelet) -> Pod {
    let node = NamespaceMode::Node.into();
    let options = NamespaceOption { network: node, pid: node, ipc: node, ..NamespaceOption::default() };
    let (mut sandbox, mut container) = ordinary(kubelet);
    let security = LinuxSandboxSecurityContext {
        namespace_options: Some(options),
        privileged: true,
        ..LinuxSandboxSecurityContext::default()
    };
    sandbox.linux.get_or_insert_default().security_context = Some(security);
    let security = LinuxContainerSecurityContext {
        privileged: true,
        capabilities: Some(Capability { add_capabilities: vec!["ALL".into()], ..Capability::default() }),
        ..LinuxContainerSecurityContext::default()
    };
    container.linux.get_or_insert_default().security_context = Some(security);
    container.mounts[0].propagation = MountPropagation::PropagationBidirectional.into();
    (sandbox, container)
}

fn requests(
    (sandbox, container): &Pod,
    logs: &str,
    oom_score_adj_min: i32,
    user_namespaces: UserNamespaces,
) -> Result<(CreatePodRequest, RunRequest), Status> {
    let host = Host::default();
    let pod = sandbox::lower(ID, sandbox, "", &host, user_namespaces)?;
    let (volumes, log) = (BTreeMap::new(), &*format!("{logs}/check/0.log"));
    let rootfs = "docker://registry.invalid/check";
    let origin = Origin {
        sandbox: ID,
        sandbox_config: sandbox,
        rootfs,
        log,
        volumes: &volumes,
        secrets: &RequestSecrets::default(),
        oom_score_adj_min,
        allows_all_devices: true,
    };
    let run = container::lower(&origin, container.clone())?;
    // Validate the container without the pod, because executord does not validate the container of a refused pod.
    let user_namespace = pod.user_namespace;
    let id_map = pod.id_map;
    Ok((pod, RunRequest { id: "check-container".into(), pod: String::new(), user_namespace, id_map, ..run }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = std::env::join_paths([Path::new("/nowhere"), directory.path()]).unwrap();
        assert!(!is_program(GETSUBIDS, &path));
        std::fs::write(directory.path().join(GETSUBIDS), "").unwrap();
        assert!(is_program(GETSUBIDS, &path));
        assert!(!is_program(GETSUBIDS, OsStr::new("")));
    }

    #[test]
    fn kubelets_settings_are_compared() {
        let socket = Path::new("/run/executor-cri/cri.sock");
        let lines = |text: &str, has_v1| {
            let missing = check_kubelet(text, socket, has_v1);
            missing.into_iter().map(|setting| setting.line).collect::<Vec<_>>()
        };
        let good = "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/executor-cri/cri.sock\n";
        assert_eq!(lines(good, false), Vec::<String>::new());
        assert_eq!(lines(good, true), ["failCgroupV1: false"]);
        let other = "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\ncgroupDriver: systemd\n";
        let expected = ["containerRuntimeEndpoint: unix:///run/executor-cri/cri.sock", "cgroupDriver: cgroupfs"];
        assert_eq!(lines(other, false), expected);
        assert_eq!(lines("[", false), [""]);
    }

    #[test]
    fn ids_of_the_kubelet_are_read() {
        let text = "a:1:2\nkubelet:2013265920:7208960\n";
        assert_eq!(ids_of_kubelet(text), Some([2_013_265_920, 2_020_409_344]));
        assert_eq!(ids_of_kubelet(&format!("{IDS_LINE}\n")), ids_of_kubelet(text));
        for text in ["", "kubelets:1:65536", "kubelet:1:65535", "kubelet:4294967295:65536", "kubelet:x"] {
            assert_eq!(ids_of_kubelet(text), None, "{text}");
        }
    }

    #[test]
    fn violations_of_one_key_are_joined() {
        let violation =
            |field: &str| Violation { field: field.into(), description: "why".into(), reason: "NOT_ALLOWED".into() };
        let fields = ["run.limits.unlimited_pids", "run.limits.unlimited_memory", "run.volumes[0].host_path", "run.x"];
        let missing = to_missing(&Kubelet::default(), &fields.map(violation), true);
        let lines: Vec<&str> = missing.iter().map(|setting| &*setting.line).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((lines[0], lines[2]), ("allow_no_limits = true", ""));
        assert!(lines[1].starts_with("host_paths"));
    }

    #[test]
    fn both_pods_can_be_lowered() {
        let kubelet = Kubelet::default();
        for pod in [ordinary(&kubelet), system(&kubelet), with_ids(&kubelet, 2_013_265_920)] {
            requests(&pod, kubelet.pod_logs(), i32::MIN, UserNamespaces::Requested).unwrap();
        }
    }

    #[test]
    fn kubelet_directories_are_read() {
        for (text, cgroups, logs) in [
            ("", "/kubepods", "/var/log/pods"),
            ("cgroupRoot: /\npodLogsDir: ''", "/kubepods", "/var/log/pods"),
            ("cgroupRoot: /a/b/\npodLogsDir: /srv/logs/", "/a/b/kubepods", "/srv/logs"),
        ] {
            let kubelet = Kubelet::from_yaml(&format!("kind: KubeletConfiguration\n{text}\n")).unwrap();
            assert_eq!((&*kubelet.pod_cgroups(), kubelet.pod_logs()), (cgroups, logs));
            let (pod, run) = requests(&ordinary(&kubelet), kubelet.pod_logs(), 0, UserNamespaces::All).unwrap();
            assert_eq!(pod.cgroup_parent, format!("{cgroups}/besteffort/podcheck"));
            assert_eq!(run.log_file, format!("{logs}/check/0.log"));
            assert_eq!(kubelet.line_for("pod.cgroup_parent").unwrap(), format!("cgroup_parents = [{cgroups:?}]"));
            assert_eq!(kubelet.line_for("run.log_file").unwrap(), format!("log_dirs = [{logs:?}]"));
        }
    }
}
