//! Opens the namespaces and mounts that a new member joins in its pod, and network namespaces that other programs have
//! created.
//!
//! ```text
//! open      find the pod by its record, check that it runs and matches the member's plan, open each namespace
//! target    open the first process and the PID namespace of another member, for `pid_of`
//! volume    clone one of the pod's volumes, in the pod's mount namespace
//! shm       clone the pod's /dev/shm, in the pod's mount namespace
//! network   open a network namespace by a path of the operator's list, in the host's mount namespace
//! host_shm  clone the host's /dev/shm, in the host's mount namespace
//! ```
//!
//! If the pod stops while a member joins it, the namespaces of the pod exist until the processes that have joined them
//! exit. executord stops the members.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use executor_core::ident::ContainerId;
use executor_core::idmap::IdMap;
use executor_core::lifecycle::State;
use executor_core::plan::{Network, Plan, UserNamespace, pod_volume_path};
use executor_core::protocol::{Reason, Refused};
use executor_core::record::ContainerRecord;
use executor_core::spec::SharedNamespaces;
use executor_core::validate::ViolationReason::{NotAllowed, NotFound, Unsuitable};
use executor_core::validate::{FieldFault, Violation, check_member};
use executor_sys::mount::{
    Attributes, Follow, clone_tree, open_dir, open_dir_beneath, open_in_root, set_attributes, set_private,
};
use executor_sys::process::{self, ChildExit, Fork};
use executor_sys::seqpacket::Seqpacket;
use executor_sys::{identity, userns};
use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, fstatfs, mkdirat, openat};
use rustix::io::Errno;

use crate::dirs::Dirs;
use crate::errors::{failed, plain};
use crate::host::Host;

/// Directory of POSIX shared memory.
const SHM: &str = "/dev/shm";

/// The open pod that a new member joins.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) record: ContainerRecord,
    init: OwnedFd,
    network: OwnedFd,
    uts: OwnedFd,
    ipc: OwnedFd,
    pid: Option<OwnedFd>,
    /// First process of the member that the plan's `pid_of` names.
    target: Option<OwnedFd>,
}

impl Pod {
    /// Opens the pod that a plan names, if any. `range` is the range of ids that the launcher has assigned to the pod.
    ///
    /// # Errors
    /// Returns violations if the pod does not run or does not match the plan.
    pub(crate) fn open(host: &Host, plan: &Plan, range: Option<u32>) -> Result<Option<Self>, Refused> {
        let Some(id) = plan.member_of() else { return Ok(None) };
        let not_there = || {
            let why = NotFound.because(format!("the pod {id} does not exist or is not running"));
            Refused::from_fields(Reason::Precondition, &[Violation::new("pod", why)])
        };
        let record = Dirs::new(host, id).read_record().filter(|record| record.state == State::Running);
        let record = record.ok_or_else(not_there)?;
        check_member(plan, &record.plan).map_err(|violations| Refused::from_fields(Reason::Invalid, &violations))?;
        let init = record.prepared.as_ref().map(|prepared| prepared.init.clone()).ok_or_else(not_there)?;
        if record.id_range_start.is_some() && record.id_range_start != range {
            return Err(not_there()); // this id belongs to another pod by now
        }
        let namespace = |name: &str| File::open(format!("/proc/{}/ns/{name}", init.pid)).map(OwnedFd::from);
        let open = || -> io::Result<Self> {
            Ok(Self {
                init: process::pidfd(init.pid)?,
                network: namespace("net")?,
                uts: namespace("uts")?,
                ipc: namespace("ipc")?,
                pid: plan.shares_processes().then(|| namespace("pid")).transpose()?,
                target: None,
                record,
            })
        };
        let mut pod = open().map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => not_there(),
            _ => failed(&format!("cannot open the namespaces of pod {id}"), &error),
        })?;
        // Check that the opened descriptors belong to the recorded process and not to a process with a reused pid.
        if !identity::alive(&init) {
            return Err(not_there());
        }
        if let Some(target) = &plan.isolation.pid_of {
            (pod.target, pod.pid) = pod.open_target(host, target).map(|(init, pid)| (Some(init), Some(pid)))?;
        }
        Ok(Some(pod))
    }

    /// Opens the first process, and the PID namespace, of another member of the pod.
    fn open_target(&self, host: &Host, id: &ContainerId) -> Result<(OwnedFd, OwnedFd), Refused> {
        let refused = |why| Refused::from_fields(Reason::Precondition, &[Violation::new("pid_of", why)]);
        let not_there = || refused(NotFound.because(format!("the container {id} does not exist or is not running")));
        let record = Dirs::new(host, id).read_record().filter(|record| record.state == State::Running);
        let record = record.ok_or_else(not_there)?;
        let init = record.prepared.as_ref().map(|prepared| prepared.init.clone()).ok_or_else(not_there)?;
        let user = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/user"));
        let of_pod = self.record.prepared.as_ref().map_or(0, |prepared| prepared.init.pid);
        let open = || -> io::Result<_> {
            let pid = File::open(format!("/proc/{}/ns/pid", init.pid))?.into();
            Ok((process::pidfd(init.pid)?, pid, user(init.pid)? == user(of_pod)?))
        };
        let (process, pid, same_ids) = open().map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => not_there(),
            _ => failed(&format!("cannot open the namespaces of container {id}"), &error),
        })?;
        // Check that the opened descriptors belong to the recorded process and not to a process with a reused pid.
        if !identity::alive(&init) {
            return Err(not_there());
        }
        if record.plan.member_of() != Some(&self.record.plan.id) || !same_ids {
            let why = format!("the container {id} is not a member of the pod {}", self.record.plan.id);
            return Err(refused(Unsuitable.because(why)));
        }
        if !record.plan.owns_processes() {
            let why = format!("the container {id} is in the PID namespace of another container; name that container");
            return Err(refused(Unsuitable.because(why)));
        }
        Ok((process, pid))
    }

    /// Returns the first process of the member that the plan's `pid_of` names.
    pub(crate) fn take_target(&mut self) -> Option<OwnedFd> {
        self.target.take()
    }

    /// Returns the pod's id map, and its user namespace if it has one.
    ///
    /// # Errors
    /// Returns a refusal if the pod has stopped.
    pub(crate) fn ids(&self) -> Result<(IdMap, Option<OwnedFd>), Refused> {
        let init = self.record.prepared.as_ref().map_or(0, |prepared| prepared.init.pid);
        let namespace = match self.record.plan.isolation.user_namespace {
            UserNamespace::Host => None,
            _ => Some(userns::open(init).map_err(|error| failed("cannot open the user namespace of the pod", &error))?),
        };
        Ok((self.id_map(), namespace))
    }

    fn id_map(&self) -> IdMap {
        match self.record.plan.isolation.user_namespace {
            UserNamespace::Host => IdMap::HOST,
            _ => self.record.id_map(),
        }
    }

    /// Returns the paths of the namespaces that the member joins. The paths are valid in children of this process while
    /// this value exists.
    pub(crate) fn namespaces(&self) -> SharedNamespaces {
        let path = |fd: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        SharedNamespaces {
            uts: path(&self.uts),
            ipc: path(&self.ipc),
            // A namespace that the host's user namespace owns cannot be joined from another user namespace: see
            // `enter_network`.
            network: self.record.plan.owns_network().then(|| path(&self.network)),
            pid: self.pid.as_ref().map(path),
        }
    }

    /// Returns a detached mount of a pod's volume, or of a directory in the volume. Creates missing directories like
    /// the kubelet: owned by UID 0 of the pod's user namespace, with the mode of the volume's root directory.
    ///
    /// # Errors
    /// Returns `NotADirectory`, `ELOOP` or `EXDEV` if the path does not lead to a directory in the volume. Returns an
    /// error if the disk is full.
    pub(crate) fn volume(&self, name: &str, sub_path: &Path) -> io::Result<OwnedFd> {
        let path = pod_volume_path(name);
        let root_ids = (self.id_map().to_host(0), self.id_map().to_host(0));
        self.view(|root| {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let volume = open_in_root(root, &path, flags, Mode::empty(), Follow::NoLinks)?;
            match open_dir_beneath(volume.as_fd(), sub_path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => make_dirs(volume, sub_path, root_ids),
                opened => opened,
            }
        })
    }

    /// Returns a detached mount of the pod's /dev/shm.
    ///
    /// # Errors
    /// Returns an error if the pod has stopped.
    pub(crate) fn shm(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        self.view(|root| open_in_root(root, Path::new(SHM), flags, Mode::empty(), Follow::NoLinks))
    }

    /// Clones the mount that `open` opens below the pod's root. The mount is cloned in the pod's mount namespace, as
    /// the kernel requires.
    fn view(&self, open: impl FnOnce(BorrowedFd<'_>) -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
        in_mount_namespace(self.init.as_fd(), || {
            let root = open_dir(Path::new("/"))?;
            clone_tree(open(root.as_fd())?.as_fd(), Path::new(""), false)
        })
    }
}

/// Returns a detached mount of the host's /dev/shm. Mounts do not propagate between this mount and the host.
///
/// # Errors
/// Returns an error if the host has no directory /dev/shm.
pub(crate) fn host_shm(host: &Host) -> io::Result<OwnedFd> {
    let shm = in_mount_namespace(host.mounts.as_fd(), || {
        let root = open_dir(Path::new("/"))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let dir = open_in_root(root.as_fd(), Path::new(SHM), flags, Mode::empty(), Follow::NoLinks)?;
        clone_tree(dir.as_fd(), Path::new(""), false)
    })?;
    set_private(shm.as_fd())?;
    let attributes = Attributes { no_suid: true, no_dev: true, no_exec: true, ..Attributes::default() };
    set_attributes(shm.as_fd(), attributes)?;
    Ok(shm)
}

/// Creates the missing directories of a path below the root of a volume, and opens the last directory. Other members of
/// the pod can change the volume at any time. Therefore each component is opened without following links, and ownership
/// and mode are set on the opened directory.
fn make_dirs(root: OwnedFd, path: &Path, (uid, gid): (u32, u32)) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(fstat(&root)?.st_mode & 0o7777);
    let mut dir = root;
    for name in path {
        let name = Path::new(name);
        dir = match open_dir_beneath(dir.as_fd(), name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match mkdirat(&dir, name, Mode::RWXU) {
                    Err(Errno::EXIST) => {} // another member was faster
                    made => made?,
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = openat(&dir, name, flags, Mode::empty())?;
                // In a setgid directory, the new directory has already inherited the group.
                let inherits = mode.contains(Mode::SGID);
                fchown(&made, Some(Uid::from_raw(uid)), (!inherits).then(|| Gid::from_raw(gid)))?;
                fchmod(&made, mode)?;
                open_dir_beneath(made.as_fd(), Path::new(""))?
            }
            opened => opened?,
        };
    }
    Ok(dir)
}

/// Joins the network namespace at the plan's path. The container's processes cannot join this namespace, because the
/// container's user namespace does not own it. Therefore the shim joins the namespace before it creates the container's
/// first process.
///
/// # Errors
/// Returns a violation if the plan's path is not a network namespace that may be joined.
pub(crate) fn enter_network(host: &Host, plan: &Plan, pod: Option<&Pod>) -> Result<(), Refused> {
    if plan.network != Network::Path {
        return Ok(());
    }
    let path = &plan.connectivity.network_namespace;
    let refused = |why: FieldFault| {
        let violation = Violation::new("network_namespace", why);
        Refused::from_fields(Reason::Precondition, &[violation])
    };
    let found;
    let namespace = match pod {
        Some(pod) => &pod.network,
        None => {
            let opened = in_mount_namespace(host.mounts.as_fd(), || open_network(path)).map_err(|error| {
                let shown = path.display();
                refused(match error.raw_os_error() {
                    Some(libc::ENOENT) => NotFound.because(format!("`{shown}` does not exist")),
                    Some(libc::ELOOP) => Unsuitable.because(format!("`{shown}`: the path contains a symbolic link")),
                    Some(libc::EINVAL) => Unsuitable.because(format!("`{shown}` is not a network namespace")),
                    _ => Unsuitable.because(format!("`{shown}`: {}", plain(&error))),
                })
            })?;
            found = opened;
            &found
        }
    };
    let node = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino()));
    let own = File::open("/proc/self/ns/net").and_then(|own| node(&own));
    let asked = namespace.try_clone().map(File::from).and_then(|asked| node(&asked));
    match own.and_then(|own| Ok(own == asked?)) {
        Ok(false) => {}
        Ok(true) => {
            let why = format!("`{}` is the host's network namespace; use the network `host`", path.display());
            return Err(refused(NotAllowed.because(why)));
        }
        Err(error) => return Err(failed("cannot inspect the network namespace", &error)),
    }
    // The kernel rejects a namespace of another type.
    process::enter_namespaces(namespace.as_fd(), false, true).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => refused(Unsuitable.because(format!("`{}` is not a network namespace", path.display()))),
        _ => failed("cannot enter the network namespace", &error),
    })
}

/// Opens a namespace by its path, without following links. A file that is not a namespace is not opened for reading.
fn open_network(path: &Path) -> io::Result<OwnedFd> {
    let root = open_dir(Path::new("/"))?;
    let found = open_in_root(root.as_fd(), path, OFlags::PATH, Mode::empty(), Follow::NoLinks)?;
    if fstatfs(&found)?.f_type != libc::NSFS_MAGIC {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?.into())
}

/// Calls `open` in another mount namespace, in a child process that exits afterwards.
fn in_mount_namespace(mounts: BorrowedFd<'_>, open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let parent = std::process::id();
    let (ours, theirs) = Seqpacket::pair()?;
    let child = match process::fork()? {
        Fork::Parent(child) => child,
        Fork::Child => {
            drop(ours);
            let done = process::die_with(parent)
                .and_then(|()| process::enter_namespaces(mounts, true, false))
                .and_then(|()| open())
                .and_then(|opened| theirs.send(b"fd", &[opened.as_fd()]));
            process::exit_now(done.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0))
        }
    };
    drop(theirs);
    let received = ours.recv(&mut [0; 2]);
    match process::wait_for(child)? {
        ChildExit::Code(0) => {
            let (_, fds) = received?.ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok(fds.into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?)
        }
        ChildExit::Code(errno) => Err(io::Error::from_raw_os_error(errno)),
        ChildExit::Signal(signal) => Err(io::Error::other(format!("a helper was killed by signal {signal}"))),
    }
}
