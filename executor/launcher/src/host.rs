//! Abilities of the host, found out once at the start and inherited by every shim.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_core::identity::IdentitySettings;
use executor_core::limits::CORE_FILE_MAX;
use executor_core::plan::Principal;
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

/// The host, and how this launcher was configured.
#[derive(Debug)]
pub(crate) struct Host {
    /// Sockets, and records of running containers.
    pub run_dir: PathBuf,
    /// Logs, exit records, upper layers.
    pub state_dir: PathBuf,
    /// User that executord runs as.
    pub daemon_uid: u32,
    /// Group: may read records and logs.
    pub daemon_gid: u32,
    /// Limits on what requests may ask for.
    pub policy: Policy,
    /// The cgroup hierarchies in use.
    pub hierarchies: Hierarchies,
    /// The hierarchy of processors and memory nodes, if the host has it.
    pub cpusets: Option<Cpusets>,
    /// Cgroup that the containers' own are below, relative to each hierarchy's mount.
    pub cgroup_parent: PathBuf,
    /// tmpfs has `noswap`.
    pub noswap: bool,
    /// Highest RLIMIT_NOFILE that can be set.
    pub nofile_max: u64,
    /// Out-of-memory score adjustment of the launcher and its shims.
    pub oom_score_adj: i32,
    /// Number of processors that containers can run on.
    pub processors: u64,
    /// Bytes of a page.
    pub page: u64,
    /// A log file is rotated at this size.
    pub log_bytes_max: u64,
    /// Layers of images may bring devices.
    pub image_devices: bool,
    /// The mount namespace that this process was started in: what networks' plugins see.
    pub mounts: OwnedFd,
    /// A proc file system that is mounted nowhere, for settings of the kernel.
    pub proc: OwnedFd,
    /// Time that such a plugin may take.
    pub cni_patience: Duration,
    /// Time that a shim has for a turn of its loop; none where shims are not watched.
    pub watchdog: Option<Duration>,
    /// Certificates of containers.
    pub identity: IdentitySettings,
    /// Number of shells that wait for containers.
    pub warm_pool_size: usize,
    /// Digests of the sections of the configuration in force.
    pub configuration: SectionDigests,
}

impl Host {
    /// Finds out. `mounts` is the mount namespace of the host.
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
            cni_patience: config.launcher.cni_patience(),
            watchdog: config.launcher.watchdog(),
            identity: config.identity,
            warm_pool_size: config.warm_pool.size as usize,
            run_dir,
        })
    }

    /// Shows in the command line what the calling process is, and the run directory, by which [`crate::orphans`] finds it.
    pub(crate) fn show_role(&self, role: &[&str]) {
        let role = role.iter().map(|word| word.as_bytes());
        let run_dir = [&b"--run-dir"[..], self.run_dir.as_os_str().as_encoded_bytes()];
        let line: Vec<&[u8]> = std::iter::once(&b"executor-launcher"[..]).chain(role).chain(run_dir).collect();
        title::set_arguments(&line);
    }

    /// Takes another configuration over, for the containers that are made from now on.
    ///
    /// # Errors
    /// Returns the keys that only the start of a launcher can change, if they differ. Nothing is taken over then.
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
        self.cni_patience = config.launcher.cni_patience();
        self.watchdog = config.launcher.watchdog();
        self.warm_pool_size = config.warm_pool.size as usize;
        (self.policy, self.identity, self.configuration) = (config.policy, config.identity, config.digests);
        Ok(())
    }

    /// Returns the directory of running containers.
    pub(crate) fn containers_run(&self) -> PathBuf {
        self.run_dir.join("containers")
    }

    /// Returns the directory of shells.
    pub(crate) fn warm_pool(&self) -> PathBuf {
        self.run_dir.join("shells")
    }

    /// Returns the directory of what shells will keep of containers.
    pub(crate) fn warm_state(&self) -> PathBuf {
        self.state_dir.join("shells")
    }

    /// Returns the root file system of shells.
    pub(crate) fn skeleton(&self) -> PathBuf {
        self.run_dir.join("skeleton")
    }

    /// The layers of images.
    pub(crate) fn layers(&self) -> PathBuf {
        self.state_dir.join("layers")
    }

    /// Returns the place where each shim mounts its container's root, in its own mount namespace: an empty directory that
    /// every user may pass through, as the root of a container is one.
    pub(crate) fn stage(&self) -> PathBuf {
        self.run_dir.join("root")
    }

    /// Returns the place where each shim mounts the view of its container's cgroup.
    pub(crate) fn cgroup_view(&self) -> PathBuf {
        self.run_dir.join("cgroup")
    }

    /// Returns the directory of what is kept of containers.
    pub(crate) fn containers_state(&self) -> PathBuf {
        self.state_dir.join("containers")
    }
}

/// Returns the cgroup of all containers of a launcher, which its run directory tells apart.
fn cgroup_parent(config: &Config, run_dir: &Path) -> PathBuf {
    let digest = Sha256::digest(run_dir.as_os_str().as_encoded_bytes());
    Path::new(&config.launcher.cgroup_parent).join(hex::encode(&digest[..4]))
}

/// Lets containers have the limit on core files that keeps the kernel from piping them: it is 1, and a hard limit of 0, as
/// a unit with `LimitCORE=0` has, is below it.
fn allow_core_limit() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_CORE)?;
    if hard >= CORE_FILE_MAX {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_CORE, soft, CORE_FILE_MAX).map_err(|error| {
        let why =
            "the hard limit on core files (RLIMIT_CORE) is 0 and cannot be raised: start with 1, as LimitCORE=1 does";
        io::Error::new(io::Error::from(error).kind(), why)
    })
}

/// The daemon's ids, from the host's own files: this binary is static and asks no name service.
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
