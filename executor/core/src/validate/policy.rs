//! Defines the operator's policy: permissions and defaults.

mod ports;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::idmap::{GivenRange, Pool};
use crate::image::ImagePolicy;
use crate::plan::{HostDevice, HostPathRule, HostVolume};

pub use ports::{BadPortRule, PortRule};

/// Capabilities that a request may add by default: the default capabilities of common container engines.
const CAPABILITIES_ALLOWED: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Handling of limits that the host cannot enforce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unenforceable {
    /// The request is refused.
    #[default]
    Refuse,
    /// The container runs, with a warning.
    Report,
}

/// The operator's permissions and defaults. The daemon and the launcher have the same values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Directory that relative paths of files are resolved against.
    pub files_root: PathBuf,
    /// Maximum total size of the contents of a request's files, in bytes. The default is the limit of Diego's BBS.
    #[serde(with = "crate::settings::bytes")]
    pub files_bytes_max: u64,
    /// Maximum and default bytes of a container's outputs.
    #[serde(with = "crate::settings::bytes")]
    pub outputs_bytes_max: u64,
    /// True if requests may use `rootfs: host`.
    pub allow_host_rootfs: bool,
    /// Directories below which the path of `dir:` must be; any path if empty.
    pub rootfs_dirs: Vec<PathBuf>,
    /// True if requests may use `network: host`.
    pub allow_host_network: bool,
    /// Default memory limit in bytes.
    #[serde(with = "crate::settings::bytes")]
    pub default_memory_bytes: u64,
    /// Default limit on processes and threads.
    pub default_pids: u64,
    /// Default limit on open files.
    pub default_nofile: u64,
    /// Default grace period in seconds.
    pub default_grace_seconds: u64,
    /// Default limit on disk space in bytes; 0 = no limit.
    #[serde(with = "crate::settings::bytes")]
    pub default_disk_bytes: u64,
    /// Handling of limits that the host cannot enforce.
    pub unenforceable_limits: Unenforceable,
    /// True if requests may use `privileged`.
    pub allow_privileged: bool,
    /// True if requests may use `user_namespace: host`.
    pub allow_host_userns: bool,
    /// True if requests may use `host_pid`.
    pub allow_host_pid: bool,
    /// True if requests may use `host_ipc`.
    pub allow_host_ipc: bool,
    /// The host's Docker socket; empty if requests may not use it.
    pub docker_socket: PathBuf,
    /// True if requests may contain a seccomp profile.
    pub allow_seccomp_profile: bool,
    /// True if requests may use `allow_new_privileges`.
    pub allow_new_privileges: bool,
    /// True if requests may use `seccomp_unconfined`.
    pub allow_no_seccomp: bool,
    /// True if requests may leave out default paths of `masked_paths` and `readonly_paths`.
    pub allow_unmasked: bool,
    /// Capabilities that requests may add, in the kernel's spelling; `ALL` means all of them.
    pub capabilities_allowed: Vec<String>,
    /// First host id of the pool. Each user namespace gets a range of host ids from the pool.
    pub userns_pool_start: u32,
    /// Number of ranges of 65,536 ids in the pool. This limits the number of containers with user namespaces.
    pub userns_pool_ranges: u32,
    /// Ranges of host ids, outside of the pool, that requests may name (`id_map`).
    pub given_id_ranges: Vec<GivenRange>,
    /// True if requests with `user_namespace: host` may set sysctls of the container's own namespaces.
    pub host_ids_sysctls: bool,
    /// Directory of the configurations of CNI networks.
    pub cni_conf_dir: PathBuf,
    /// Directories of CNI plugins, in search order.
    pub cni_bin_dirs: Vec<PathBuf>,
    /// True if requests may use `egress`.
    pub allow_egress: bool,
    /// Host ports that requests may publish; none if empty.
    pub ports_allowed: Vec<PortRule>,
    /// Default limit on a log's bytes per second; -1 = the maximum, 0 = nothing is kept.
    #[serde(with = "crate::settings::rate")]
    pub default_log_bytes_per_second: i64,
    /// Default limit on a log's lines per second; -1 = the maximum, 0 = nothing is kept.
    pub default_log_lines_per_second: i64,
    /// Maximum limit on a log's bytes per second in a request; -1 = requests may set any limit, or no limit.
    #[serde(with = "crate::settings::rate")]
    pub log_bytes_per_second_max: i64,
    /// Maximum limit on a log's lines per second in a request; -1 = requests may set any limit, or no limit.
    pub log_lines_per_second_max: i64,
    /// True if processes may be executed in running containers.
    pub allow_exec: bool,
    /// Lowest OOM score adjustment in a request.
    pub oom_score_adj_min: i32,
    /// Maximum number of bytes of swap beyond the memory limit in a request; -1 = requests may set any number, or no
    /// limit.
    #[serde(with = "crate::settings::rate")]
    pub swap_bytes_max: i64,
    /// Maximum resource limits in a request, by name; -1 = requests may set any limit, or no limit. For a missing name,
    /// the maximum is the launcher's own hard limit.
    pub ulimits_max: BTreeMap<String, i64>,
    /// True if requests may use downloads and uploads.
    pub allow_transfers: bool,
    /// Paths of network namespaces that containers may join; `DIR/*` means all namespaces in a directory. None if
    /// empty.
    pub network_namespaces: Vec<PathBuf>,
    /// True if clients may connect to ports in pods.
    pub allow_connect: bool,
    /// True if pods may have settings for CNI plugins: arguments and capabilities.
    pub cni_args: bool,
    /// Host directories below which containers may mount any directory or file, and host files that containers may
    /// mount. None if empty.
    pub host_paths: Vec<HostPathRule>,
    /// Device nodes of the host, and directories of nodes, that containers may use by path. None if empty.
    pub device_paths: Vec<PathBuf>,
    /// CDI devices that containers may use: qualified names, or `vendor.com/class=*` for all devices of a class. None
    /// if empty.
    pub cdi_devices: Vec<String>,
    /// Directories of CDI files. Later directories take precedence.
    pub cdi_spec_dirs: Vec<PathBuf>,
    /// Cgroups at or below which requests may place containers. None if empty.
    pub cgroup_parents: Vec<PathBuf>,
    /// True if requests may have no limit on memory or processes.
    pub allow_no_limits: bool,
    /// Directories of the host below which requests may have log files. None if empty.
    pub log_dirs: Vec<PathBuf>,
    /// Cgroup v2 files that requests may set. None if empty.
    pub cgroup_keys: Vec<String>,
    /// Maximum number of containers and pods with `keep_until_deleted`; 0 = requests may not use the setting.
    pub keep_until_deleted_max: usize,
    /// Images that may run (table `images`, which also has keys for executord only).
    #[serde(skip)]
    pub images: ImagePolicy,
    /// Host directories that containers may mount (tables `volumes`).
    #[serde(skip)]
    pub volumes: Vec<HostVolume>,
    /// Host devices that containers may use (tables `devices`).
    #[serde(skip)]
    pub devices: Vec<HostDevice>,
    /// AppArmor profiles that containers may use (table `apparmor`).
    #[serde(skip)]
    pub apparmor_profiles: Vec<String>,
}

impl Policy {
    /// Returns the pool of host ids for user namespaces.
    ///
    /// # Errors
    /// Returns the error of [`Pool::new`] if the range of ids is invalid.
    pub fn userns_pool(&self) -> Result<Pool, String> {
        Pool::new(self.userns_pool_start, self.userns_pool_ranges)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            files_root: "/etc/cf-service-bindings".into(),
            files_bytes_max: 1 << 20,
            outputs_bytes_max: 64 << 20,
            allow_host_rootfs: true,
            rootfs_dirs: Vec::new(),
            allow_host_network: false,
            default_memory_bytes: 256 << 20,
            default_pids: 1024,
            default_nofile: 16_384,
            default_grace_seconds: 10,
            default_disk_bytes: 0,
            unenforceable_limits: Unenforceable::Refuse,
            allow_privileged: false,
            allow_host_userns: false,
            allow_host_pid: false,
            allow_host_ipc: false,
            docker_socket: PathBuf::new(),
            allow_seccomp_profile: false,
            allow_new_privileges: false,
            allow_no_seccomp: false,
            allow_unmasked: false,
            capabilities_allowed: CAPABILITIES_ALLOWED.map(str::to_owned).into(),
            // The pool is above the ids of distributions, and of systemd's containers and dynamic users.
            userns_pool_start: 0x7000_0000,
            userns_pool_ranges: 1024,
            given_id_ranges: Vec::new(),
            host_ids_sysctls: false,
            cni_conf_dir: "/etc/cni/net.d".into(),
            cni_bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            allow_egress: false,
            // Lower ports are reserved for the host's own services.
            ports_allowed: vec![PortRule::from_every_address(1024, u16::MAX)],
            default_log_bytes_per_second: -1,
            default_log_lines_per_second: -1,
            log_bytes_per_second_max: -1,
            log_lines_per_second_max: -1,
            allow_exec: true,
            allow_transfers: true,
            network_namespaces: Vec::new(),
            allow_connect: false,
            cni_args: false,
            host_paths: Vec::new(),
            device_paths: Vec::new(),
            cdi_devices: Vec::new(),
            cdi_spec_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            cgroup_parents: Vec::new(),
            allow_no_limits: false,
            log_dirs: Vec::new(),
            cgroup_keys: Vec::new(),
            keep_until_deleted_max: 0,
            images: ImagePolicy::default(),
            oom_score_adj_min: 0,
            swap_bytes_max: 0,
            ulimits_max: BTreeMap::new(),
            volumes: Vec::new(),
            devices: Vec::new(),
            apparmor_profiles: Vec::new(),
        }
    }
}
