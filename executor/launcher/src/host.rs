//! Holds properties of the host and of the configuration. The properties are determined once at start, and every shim
//! inherits them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use executor_core::bridge::BridgeNetwork;
use executor_core::ident::ContainerId;
use executor_core::identity::IdentitySettings;
use executor_core::limits::CORE_FILE_MAX;
use executor_core::plan::{GIVEN_CGROUP, Plan, Principal};
use executor_core::settings::SectionDigests;
use executor_core::users;
use executor_core::validate::Policy;
use executor_secrets::volume;
use executor_sys::{identity, process, title};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::mount::MountAttrFlags;
use sha2::{Digest, Sha256};

use crate::cgroup::Hierarchies;
use crate::cli::{Args, Config};
use crate::cpuset::Cpusets;

/// The host and the launcher's configuration.
#[derive(Debug)]
pub(crate) struct Host {
    /// Directory of sockets and records of running containers.
    pub run_dir: PathBuf,
    /// Directory of logs, exit records and upper layers.
    pub state_dir: PathBuf,
    /// User that executord runs as.
    pub daemon_uid: u32,
    /// Group that may read records and logs.
    pub daemon_gid: u32,
    /// Limits on the options of requests.
    pub policy: Policy,
    /// Built-in networks by name.
    pub networks: BTreeMap<String, BridgeNetwork>,
    /// The cgroup hierarchies in use.
    pub hierarchies: Hierarchies,
    /// Cpuset hierarchy, if the host has one.
    pub cpusets: Option<Cpusets>,
    /// Parent cgroup of the containers, relative to each hierarchy's mount.
    pub cgroup_parent: PathBuf,
    /// True if tmpfs supports `noswap`.
    pub noswap: bool,
    /// Maximum RLIMIT_NOFILE that can be set.
    pub nofile_max: u64,
    /// Out-of-memory score adjustment of the launcher and its shims.
    pub oom_score_adj: i32,
    /// Number of CPUs that containers can run on.
    pub processors: u64,
    /// Page size in bytes.
    pub page: u64,
    /// Size at which a log file is rotated, in bytes.
    pub log_bytes_max: u64,
    /// True if image layers may contain device nodes.
    pub image_devices: bool,
    /// Mount namespace in which this process was started. CNI plugins run in this namespace.
    pub mounts: OwnedFd,
    /// Detached proc file system, used to set sysctls.
    pub proc: OwnedFd,
    /// Time limit for a CNI plugin.
    pub plugin_timeout: Duration,
    /// True if stale attachments are removed with CNI's GC command.
    pub cni_gc: bool,
    /// Time limit for an iteration of a shim's loop; `None` if shims are not watched.
    pub watchdog: Option<Duration>,
    /// Settings for container certificates.
    pub identity: IdentitySettings,
    /// Configured number of warm containers without a network.
    pub warm_pool_size: usize,
    /// Network of the second pool of warm containers, which is as large as the pool without a network. If empty, there
    /// is no second pool.
    pub warm_pool_network: String,
    /// Digests of the sections of the configuration in force.
    pub configuration: SectionDigests,
}

impl Host {
    /// Determines the properties of the host. `mounts` is the host's mount namespace.
    pub(crate) fn probe(args: &Args, config: Config, mounts: OwnedFd) -> io::Result<Self> {
        let (daemon_uid, daemon_gid) = daemon_user(&args.daemon_user)?;
        allow_core_limit()?;
        identity::boot_id()?; // read once, for every shim
        let run_dir = std::path::absolute(&args.run_dir)?;
        let flags =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let cgroup_parent = cgroup_parent(&config, &run_dir);
        Ok(Self {
            state_dir: std::path::absolute(&args.state_dir)?,
            daemon_uid,
            daemon_gid,
            policy: config.policy,
            networks: config.bridges,
            cpusets: Cpusets::find()?,
            hierarchies: Hierarchies::find()?,
            cgroup_parent,
            noswap: volume::noswap_supported()?,
            nofile_max: getrlimit(Resource::RLIMIT_NOFILE)?.1,
            oom_score_adj: process::oom_score_adj(std::process::id())?,
            processors: u64::from(rustix::thread::sched_getaffinity(None)?.count()),
            page: rustix::param::page_size() as u64,
            log_bytes_max: config.launcher.log_bytes(),
            image_devices: config.launcher.image_devices,
            configuration: config.digests,
            mounts,
            proc: executor_sys::mount::detached("proc", "proc", &[], flags)?,
            plugin_timeout: config.launcher.cni_patience(),
            cni_gc: config.launcher.cni_gc,
            watchdog: config.launcher.watchdog(),
            identity: config.identity,
            warm_pool_size: config.warm_pool.size as usize,
            warm_pool_network: config.warm_pool.network,
            run_dir,
        })
    }

    /// Sets the command line of the calling process to its role and the run directory. [`crate::orphans`] finds
    /// processes by this run directory.
    pub(crate) fn show_role(&self, role: &[&str]) {
        let role = role.iter().map(|word| word.as_bytes());
        let run_dir = [&b"--run-dir"[..], self.run_dir.as_os_str().as_encoded_bytes()];
        let line: Vec<&[u8]> = std::iter::once(&b"executor-launcher"[..]).chain(role).chain(run_dir).collect();
        title::set_arguments(&line);
    }

    /// Adopts a new configuration for containers that are created from now on.
    ///
    /// # Errors
    /// Returns the changed keys that require a restart of the launcher. If there are such keys, nothing is adopted.
    pub(crate) fn reconfigure(&mut self, config: Config) -> Result<(), Vec<&'static str>> {
        let (old, new) = (&self.policy, &config.policy);
        let fixed = [
            ("policy.userns_pool_start", old.userns_pool_start == new.userns_pool_start),
            ("policy.userns_pool_ranges", old.userns_pool_ranges == new.userns_pool_ranges),
            ("launcher.cgroup_parent", self.cgroup_parent == cgroup_parent(&config, &self.run_dir)),
        ];
        let changed: Vec<_> = fixed.into_iter().filter(|(_, is_same)| !is_same).map(|(key, _)| key).collect();
        if !changed.is_empty() {
            return Err(changed);
        }
        self.log_bytes_max = config.launcher.log_bytes();
        self.image_devices = config.launcher.image_devices;
        self.plugin_timeout = config.launcher.cni_patience();
        self.cni_gc = config.launcher.cni_gc;
        self.watchdog = config.launcher.watchdog();
        self.warm_pool_size = config.warm_pool.size as usize;
        self.warm_pool_network = config.warm_pool.network;
        self.networks = config.bridges;
        (self.policy, self.identity, self.configuration) = (config.policy, config.identity, config.digests);
        Ok(())
    }

    /// Returns the directory of running containers.
    pub(crate) fn containers_run(&self) -> PathBuf {
        self.run_dir.join("containers")
    }

    /// Returns the directory of warm containers.
    pub(crate) fn warm_pool(&self) -> PathBuf {
        self.run_dir.join("shells")
    }

    /// Returns the directory of the state directories of warm containers.
    pub(crate) fn warm_state(&self) -> PathBuf {
        self.state_dir.join("shells")
    }

    /// Returns the root file system of warm containers.
    pub(crate) fn skeleton(&self) -> PathBuf {
        self.run_dir.join("skeleton")
    }

    /// Returns the directory of image layers.
    pub(crate) fn layers(&self) -> PathBuf {
        self.state_dir.join("layers")
    }

    /// Returns the mount point for the container's root in each shim's mount namespace: an empty directory that every
    /// user can enter, because the container's root may be an ordinary user on the host.
    pub(crate) fn stage(&self) -> PathBuf {
        self.run_dir.join("root")
    }

    /// Returns the mount point for the view of the container's cgroup in each shim's mount namespace.
    pub(crate) fn cgroup_view(&self) -> PathBuf {
        self.run_dir.join("cgroup")
    }

    /// Returns the directory of the list of created parent cgroups.
    pub(crate) fn parents(&self) -> PathBuf {
        self.run_dir.join("parents")
    }

    /// Returns the path of a container's cgroup, relative to each hierarchy's mount.
    pub(crate) fn cgroup_of(&self, plan: &Plan) -> PathBuf {
        match plan.host_options.cgroup_parent.strip_prefix("/") {
            Ok(parent) => parent.join(self.given_name(&plan.id)),
            Err(_) => self.cgroup_parent.join(plan.id.as_str()),
        }
    }

    /// Returns true if a cgroup is below a parent from the request, not below the launcher's own parent cgroup.
    pub(crate) fn is_given(&self, cgroup: &Path) -> bool {
        !cgroup.starts_with(&self.cgroup_parent)
    }

    /// Returns true if a cgroup from a container's record can belong to the container.
    pub(crate) fn is_cgroup_of(&self, cgroup: &Path, id: &ContainerId) -> bool {
        let is_plain = || cgroup.components().all(|part| matches!(part, Component::Normal(_)));
        !self.is_given(cgroup) || (cgroup.file_name() == Some(OsStr::new(&self.given_name(id))) && is_plain())
    }

    /// Returns the name of a container's cgroup below a parent from the request. No other launcher uses the name.
    fn given_name(&self, id: &ContainerId) -> String {
        let own = self.cgroup_parent.file_name().unwrap_or_default().to_string_lossy();
        format!("{GIVEN_CGROUP}{own}-{id}")
    }

    /// Returns the directory of containers' state directories.
    pub(crate) fn containers_state(&self) -> PathBuf {
        self.state_dir.join("containers")
    }
}

/// Returns the parent cgroup of all containers of a launcher. The cgroup's name is derived from the run directory.
fn cgroup_parent(config: &Config, run_dir: &Path) -> PathBuf {
    let digest = Sha256::digest(run_dir.as_os_str().as_encoded_bytes());
    Path::new(&config.launcher.cgroup_parent).join(hex::encode(&digest[..4]))
}

/// Raises the hard limit on core files to 1 if it is 0, for example by `LimitCORE=0` in a unit. Containers need the
/// limit 1, with which the kernel does not pipe core dumps.
fn allow_core_limit() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_CORE)?;
    if hard >= CORE_FILE_MAX {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_CORE, soft, CORE_FILE_MAX).map_err(|error| {
        let why =
            "the hard limit on core files (RLIMIT_CORE) is 0 and cannot be raised; set it to 1 or more (LimitCORE=1)";
        io::Error::new(io::Error::from(error).kind(), why)
    })
}

/// Returns the daemon's user and group ids from the host's /etc/passwd. The launcher is static and uses no name
/// service.
fn daemon_user(text: &str) -> io::Result<(u32, u32)> {
    let principal = text.parse().map_or_else(|_| Principal::Name(text.to_owned()), Principal::Id);
    let file = |path| {
        std::fs::read(path)
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(Vec::new()) } else { Err(error) })
    };
    users::resolve_host_user(principal, &file("/etc/passwd")?).map_err(|_| {
        io::Error::new(io::ErrorKind::NotFound, format!("--daemon-user: there is no user `{text}` on this host"))
    })
}
