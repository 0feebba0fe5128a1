//! Builds the OCI runtime specification of a container.
//!
//! The input is a plan and the values resolved on the host; the output is the specification for libcontainer and for
//! the bundle's config.json. The specification contains no argument, variable or working directory of the process: init
//! receives these values when it starts. The specification also contains no seccomp filter: the launcher compiles the
//! filter once, and init installs the filter before the execve.

mod capabilities;
mod devices;
mod warm;

use std::path::{Path, PathBuf};

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Linux, LinuxBuilder, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, Mount, MountBuilder,
    PosixRlimitBuilder, PosixRlimitType, Process, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
};

use crate::limits::{CORE_FILE_MAX, HOST_DEVICES_MAX};
use crate::names;
use crate::plan::{DOCKER_SOCKET, FRESH_OF_HOST, Limits, Plan, Rootfs, Tmpfs, UserNamespace};
use crate::users::ResolvedUser;

pub use capabilities::{CapabilitySets, INSTALLS_FILTERS, ROOT_CAPABILITIES, held};
pub use devices::{DeviceNode, NodeAccess};
pub use warm::{Skeleton, fits_warm, warm};

/// Mount point of a container's own cgroup.
const CGROUP: &str = "/sys/fs/cgroup";

/// Maximum number of terminals of a container. Without this limit, a container could use up all terminals of the kernel
/// (`kernel.pty.max`, 4096).
pub const TERMINALS_MAX: u32 = 256;

/// Values resolved on the host that a specification needs in addition to the plan.
pub struct Resolved<'a> {
    /// Path of the root file system in the shim's mount namespace.
    pub rootfs: &'a Path,
    /// User of the process.
    pub user: &'a ResolvedUser,
    /// Capabilities of the process.
    pub capabilities: &'a CapabilitySets,
    /// Limits that the host can enforce; 0 for none.
    pub limits: &'a Limits,
    /// The container's cgroup, relative to each hierarchy's mount.
    pub cgroup: &'a Path,
    /// Path of an existing user namespace to enter; unset for a container with host ids.
    pub user_namespace: Option<&'a Path>,
    /// The host's Docker socket, if it is mounted into the container.
    pub docker_socket: Option<&'a Path>,
    /// Namespaces of the pod that a member joins.
    pub shared: Option<&'a SharedNamespaces>,
    /// View of the cgroup to bind at /sys/fs/cgroup. If unset, a cgroup file system of version 2 is mounted in the
    /// container's cgroup namespace.
    pub cgroup_view: Option<&'a Path>,
}

/// Paths of the namespaces that a member of a pod joins.
#[derive(Clone, Debug)]
pub struct SharedNamespaces {
    /// Path of the UTS namespace.
    pub uts: PathBuf,
    /// Path of the IPC namespace.
    pub ipc: PathBuf,
    /// Path of the network namespace; unset if the creating process is already in this namespace.
    pub network: Option<PathBuf>,
    /// Path of the PID namespace, if the members share processes.
    pub pid: Option<PathBuf>,
}

/// Builds the OCI specification of a plan's container.
///
/// # Errors
/// Returns an error if a builder of oci-spec fails, which does not happen for a valid plan.
pub fn build(plan: &Plan, resolved: &Resolved<'_>) -> Result<Spec, OciSpecError> {
    let read_only = plan.rootfs == Rootfs::Host || plan.isolation.read_only_rootfs;
    let root = RootBuilder::default().path(resolved.rootfs).readonly(read_only).build()?;
    let linux = LinuxBuilder::default()
        .namespaces(namespaces(plan, resolved)?)
        .cgroups_path(Path::new("/").join(resolved.cgroup))
        .masked_paths(plan.isolation.masked())
        .readonly_paths(plan.isolation.readonly())
        .build()
        .map(without_resources)?;
    let mut spec = SpecBuilder::default()
        .version("1.0.2")
        .root(root)
        .hostname(names::hostname(plan))
        .mounts(mounts(plan, resolved)?)
        .process(process(plan, resolved)?)
        .linux(linux)
        .build()?;
    // A member of a pod shares the pod's UTS namespace.
    if resolved.shared.is_some() {
        spec.set_hostname(None);
    }
    Ok(spec)
}

/// Returns the directories of the container that are empty at the start: its tmpfs file systems and its empty volumes.
pub fn fresh_mounts(plan: &Plan) -> Vec<PathBuf> {
    let of_host = if plan.rootfs == Rootfs::Host { &FRESH_OF_HOST[..] } else { &[] };
    let asked = plan.surroundings.tmpfs.iter().map(|tmpfs| tmpfs.path.clone());
    let volumes = plan.volumes.iter().filter(|volume| volume.empty().is_some()).map(|volume| volume.path.clone());
    of_host.iter().map(PathBuf::from).chain(asked).chain(volumes).collect()
}

fn namespaces(plan: &Plan, resolved: &Resolved<'_>) -> Result<Vec<LinuxNamespace>, OciSpecError> {
    use LinuxNamespaceType::{Cgroup, Ipc, Mount, Network, Pid, User, Uts};
    let shared = resolved.shared;
    let mut kinds = vec![
        // The user namespace is set by path: libcontainer would use systemd's cgroups for a container whose user
        // namespace it creates itself.
        (User, resolved.user_namespace),
        (Pid, shared.and_then(|shared| shared.pid.as_deref())),
        (Mount, None),
        (Ipc, shared.map(|shared| &*shared.ipc)),
        (Uts, shared.map(|shared| &*shared.uts)),
        (Cgroup, None),
        (Network, shared.and_then(|shared| shared.network.as_deref())),
    ];
    kinds.retain(|(kind, path)| match kind {
        User => path.is_some(),
        Network => path.is_some() || plan.makes_network(),
        // A pod runs no program, so its init has a PID namespace of its own.
        Pid => !plan.isolation.host_pid || plan.is_pod(),
        Ipc => !plan.isolation.host_ipc,
        _ => true,
    });
    let namespace = |(kind, path): (LinuxNamespaceType, Option<&Path>)| {
        let one = LinuxNamespaceBuilder::default().typ(kind);
        if let Some(path) = path { one.path(path).build() } else { one.build() }
    };
    kinds.into_iter().map(namespace).collect()
}

/// Returns true if the host's /sys is mounted instead of a new sysfs: a user namespace cannot mount the sysfs of a
/// network namespace that it does not own.
pub fn shows_hosts_sys(plan: &Plan) -> bool {
    !plan.owns_network() && plan.isolation.user_namespace == UserNamespace::Own
}

/// Removes the cgroup limits, which the launcher sets itself.
fn without_resources(mut linux: Linux) -> Linux {
    linux.set_resources(None);
    linux
}

fn process(plan: &Plan, resolved: &Resolved<'_>) -> Result<Process, OciSpecError> {
    let user = UserBuilder::default()
        .uid(resolved.user.uid)
        .gid(resolved.user.gid)
        .additional_gids(resolved.user.groups.clone())
        .build()?;
    let capabilities = capabilities::sets(resolved.capabilities)?;
    let nofile = PosixRlimitBuilder::default()
        .typ(PosixRlimitType::RlimitNofile)
        .soft(resolved.limits.nofile)
        .hard(resolved.limits.nofile)
        .build()?;
    let no_core = PosixRlimitBuilder::default()
        .typ(PosixRlimitType::RlimitCore)
        .soft(CORE_FILE_MAX)
        .hard(CORE_FILE_MAX)
        .build()?;
    ProcessBuilder::default()
        .terminal(false)
        .user(user)
        // Arguments and environment are replaced when init starts. HOME must be set: otherwise libcontainer queries the
        // name services of the image, as root, with every descriptor that init inherited.
        .args(vec!["init".to_owned()])
        .env(vec!["PATH=/".to_owned(), "HOME=/".to_owned()])
        .cwd("/")
        .capabilities(capabilities)
        .rlimits(vec![nofile, no_core])
        .no_new_privileges(!plan.isolation.allow_new_privileges)
        .build()
}

fn mounts(plan: &Plan, resolved: &Resolved<'_>) -> Result<Vec<Mount>, OciSpecError> {
    let mut all = kernel_mounts(plan.surroundings.shm_bytes, plan.host_options.has_whole_dev())?;
    if !shows_hosts_sys(plan) {
        all.push(sys(plan.isolation.privileged)?);
    }
    all.push(cgroup(resolved.cgroup_view, plan.isolation.has_writable_cgroup())?);
    // With volumes or CDI devices, the shim mounts the tmpfs file systems, so that outer mounts come first.
    if !plan.has_ordered_mounts() {
        for one in in_memory(plan) {
            all.push(one.mount()?);
        }
    }
    if let Some(socket) = resolved.docker_socket {
        all.push(mount(
            DOCKER_SOCKET,
            "bind",
            &socket.to_string_lossy(),
            &["bind", "rw", "nosuid", "nodev", "noexec"],
        )?);
    }
    Ok(all)
}

/// Maximum number of files in a container's /dev, besides all devices of the host.
const DEV_ENTRIES: usize = 128;

/// Returns the mounts of /proc and of the file systems below /dev.
fn kernel_mounts(shm_bytes: u64, has_whole_dev: bool) -> Result<Vec<Mount>, OciSpecError> {
    let entries = if has_whole_dev { DEV_ENTRIES + HOST_DEVICES_MAX } else { DEV_ENTRIES };
    let entries = format!("nr_inodes={entries}");
    let terminals = format!("max={TERMINALS_MAX}");
    let shm = format!("size={shm_bytes}");
    Ok(vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"])?,
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "noexec", "strictatime", "mode=755", "size=64k", &entries])?,
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", &terminals],
        )?,
        mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", &shm])?,
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"])?,
    ])
}

/// Returns the mount of /sys.
fn sys(writable: bool) -> Result<Mount, OciSpecError> {
    mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", if writable { "rw" } else { "ro" }])
}

/// Returns the mount of the container's own cgroup. With a view, the mount is read-only, and the mounts below the view
/// keep their own options.
fn cgroup(view: Option<&Path>, is_writable: bool) -> Result<Mount, OciSpecError> {
    let flags = ["nosuid", "noexec", "nodev", if is_writable && view.is_none() { "rw" } else { "ro" }];
    match view {
        Some(view) => {
            let options: Vec<&str> = std::iter::once("rbind").chain(flags).collect();
            mount(CGROUP, "bind", &view.to_string_lossy(), &options)
        }
        None => mount(CGROUP, "cgroup", "cgroup", &flags),
    }
}

/// A tmpfs of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InMemory {
    /// Mount point in the container.
    pub path: PathBuf,
    /// Maximum size, in the syntax of the mount option.
    pub size: String,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Owner of the root directory, as an id in the container.
    pub uid: u32,
    /// Group of the root directory, as an id in the container.
    pub gid: u32,
    /// True if programs on the tmpfs can be executed.
    pub exec: bool,
}

/// Returns the tmpfs file systems of a container. A nested file system comes after its parent.
pub fn in_memory(plan: &Plan) -> impl Iterator<Item = InMemory> {
    let asked = &plan.surroundings.tmpfs;
    let is_free = |path: &str| {
        let mut taken = asked.iter().map(|tmpfs| &tmpfs.path).chain(plan.volumes.iter().map(|volume| &volume.path));
        !taken.any(|taken| taken == Path::new(path))
    };
    let of_host = if plan.rootfs == Rootfs::Host { &FRESH_OF_HOST[..] } else { &[] };
    let of_host = of_host.iter().zip([("50%", 0o1777, true), ("16m", 0o755, false)]);
    let of_host = of_host.filter(move |(path, _)| is_free(path)).map(|(path, (size, mode, exec))| InMemory {
        path: path.into(),
        size: size.to_owned(),
        mode,
        uid: 0,
        gid: 0,
        exec,
    });
    let of_request = asked.iter().map(|Tmpfs { path, bytes, mode, uid, gid, exec }| InMemory {
        path: path.clone(),
        size: bytes.to_string(),
        mode: *mode,
        uid: *uid,
        gid: *gid,
        exec: *exec,
    });
    of_host.chain(of_request)
}

impl InMemory {
    fn mount(&self) -> Result<Mount, OciSpecError> {
        let Self { path, size, mode, uid, gid, exec } = self;
        let data = [format!("mode={mode:o}"), format!("size={size}"), format!("uid={uid}"), format!("gid={gid}")];
        let flags = ["nosuid", "nodev", if *exec { "exec" } else { "noexec" }];
        let options: Vec<&str> = flags.into_iter().chain(data.iter().map(String::as_str)).collect();
        mount(&path.to_string_lossy(), "tmpfs", "tmpfs", &options)
    }
}

fn mount(target: &str, kind: &str, source: &str, options: &[&str]) -> Result<Mount, OciSpecError> {
    MountBuilder::default()
        .destination(target)
        .typ(kind)
        .source(source)
        .options(options.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>())
        .build()
}

#[cfg(test)]
mod tests;
