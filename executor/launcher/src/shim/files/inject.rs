//! Writes and mounts the secret files in a helper process.
//!
//! The helper is forked from the shim and joins the container's memory cgroup, so that the files' pages count against
//! the container's limit. The helper copies the files from the memory file directly into the detached volume, enters
//! the container's namespaces, and moves the mounts into place. The mounts are read-only unless the request makes them
//! writable. The helper exits before the container starts. The helper also writes sysctls, which need the same
//! namespaces.
//!
//! If the container has a runtime token, the helper generates the token, writes it as one of the files and returns its
//! digest. The shim later reads the token from the volume in order to mask it in the output. For such a container, the
//! helper also stores the other secret inputs in the volume, and mounts the directory of the daemon's socket in the
//! container. A view of these inputs is mounted below that directory, accessible only to root of the host. If the shim
//! has exited and the launcher has no handle on the volume, the launcher opens a handle through this view.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use executor_core::disclosure::Manifest;
use executor_core::idmap::IdMap;
use executor_core::payload::{self, ProcessPayload};
use executor_core::placement::{GENERATIONS_DIR, MountPoint, STEPS_DIR};
use executor_core::plan::{Layout, Plan, PlannedFile};
use executor_core::protocol::{Reason, Refused};
use executor_core::record::{PreparedContainer, PreparedStep, gid_among};
use executor_core::spec::DeviceNode;
use executor_core::token::RUNTIME_DIR;
use executor_core::users::ResolvedUser;
use executor_core::validate::{Violation, check_url};
use executor_secrets::volume::{Access, Owner, Pass, StepSecrets, Volume};
use executor_secrets::{Token, TokenDigest};
use executor_sys::memfile::{MemFile, PrivateCopy};
use executor_sys::mount::{self, Follow, open_dir, open_in_root};
use executor_sys::process;
use rustix::fs::{Mode, OFlags};

use super::helper::{self, HelperError, HelperFailure};
use super::sysctls::{self, Settings};
use crate::devices;
use crate::errors::failed;
use crate::host::Host;
use crate::rootfs::{LateMount, place_view, shared_mounts};
use crate::runtime;
use crate::shim::output::termination_message::Placing;

const DEV: &str = "/dev";
const CONSOLE: &str = "/dev/console";
/// Path of the container's first terminal, relative to /dev.
const FIRST_TERMINAL: &str = "pts/0";

/// Parameters of the injection.
pub(crate) struct Injection<'a> {
    pub(crate) host: &'a Host,
    pub(crate) plan: &'a Plan,
    pub(crate) cgroup: &'a Path,
    /// pidfd of init.
    pub(crate) init: BorrowedFd<'a>,
    /// True if [`set_up_network`] was already called, for example for a warm container.
    pub(crate) network_is_set_up: bool,
    /// User and file targets of the container.
    pub(crate) prepared: &'a PreparedContainer,
    /// Maps container ids to host ids.
    pub(crate) id_map: IdMap,
    pub(crate) volume: Option<&'a Volume>,
    /// File for the termination message, if the container has one.
    pub(crate) message: Option<Placing<'a>>,
    /// View of the pod's or the host's /dev/shm, if the container does not have its own.
    pub(crate) shm: Option<&'a OwnedFd>,
    /// Volumes that are mounted over the container's own file systems.
    pub(crate) late: &'a [LateMount],
    pub(crate) process: &'a MemFile,
    pub(crate) files: &'a MemFile,
    /// Directory in the shim's mount namespace. The volume is attached there on kernels that cannot clone detached
    /// mounts.
    pub(crate) staging: &'a Path,
    /// Host devices of the container.
    pub(crate) devices: &'a [DeviceNode],
}

/// Returns the owner of a user's files, and the mode and group of each file, as host ids. `groups` contains the groups
/// that files name.
pub(crate) fn ownership(
    files: &[PlannedFile],
    user: &ResolvedUser,
    groups: &BTreeMap<String, u32>,
    ids: IdMap,
) -> (Owner, Vec<Access>) {
    let access = |file: &PlannedFile| Access { mode: file.mode, gid: ids.to_host(gid_among(groups, file, user)) };
    let owner = Owner { uid: ids.to_host(user.uid), gid: ids.to_host(user.gid) };
    (owner, files.iter().map(access).collect())
}

/// Copies the contents of secret files. The copy is charged to the cgroup of the calling process, so call this before
/// joining the container's cgroup.
pub(crate) fn copy_contents(payload: &MemFile) -> Result<PrivateCopy, HelperFailure> {
    payload.copy().map_err(|error| HelperFailure("cannot read the contents of the secret files".into(), error))
}

/// Returns the content of each file, if the contents have these sizes.
pub(crate) fn decode_contents(payload: &[u8], sizes: impl Iterator<Item = u64>) -> Result<Vec<&[u8]>, HelperFailure> {
    let failed = |error| HelperFailure("cannot read the contents of the secret files".into(), error);
    let contents = payload::decode(payload).map_err(|error| failed(malformed(error)))?;
    if contents.iter().map(|content| content.len() as u64).eq(sizes) {
        Ok(contents)
    } else {
        Err(failed(malformed("the contents do not match the plan")))
    }
}

/// Sets up the network namespace of a container. `init` is a process in this namespace.
pub(crate) fn set_up_network(host: &Host, init: BorrowedFd<'_>) -> Result<(), Refused> {
    let start = || {
        executor_sys::netif::loopback_up()?;
        sysctls::open_ports(host.proc.as_fd())
    };
    process::within_network(init, start).map_err(|error| failed("cannot set up the network", &error))
}

impl Injection<'_> {
    /// Sets up the network in this process and everything else in a helper. Returns the digest of the runtime token, if
    /// there is one.
    pub(crate) fn execute(&self) -> Result<Option<TokenDigest>, Refused> {
        let plan = self.plan;
        if plan.makes_network() && !self.network_is_set_up {
            set_up_network(self.host, self.init)?;
        }
        let placed = !self.devices.is_empty() || self.message.is_some() || self.shm.is_some() || !self.late.is_empty();
        let nothing = !plan.terminal && plan.surroundings.sysctls.is_empty() && !placed;
        if self.volume.is_none() && nothing {
            return Ok(None);
        }
        let reported = helper::run_passing(
            |pass| Ok(self.act(pass)?.map(|token| token.to_bytes()).unwrap_or_default()),
            |file| {
                if let Some(volume) = self.volume {
                    volume.hold(file);
                }
            },
        );
        let reported = reported.map_err(|error| match error {
            HelperError::Failed { ref words, .. } if words.starts_with(sysctls::FAILED) => {
                Refused::from_fields(Reason::Precondition, &[Violation::new("sysctls", words)])
            }
            HelperError::Failed { errno: libc::ELOOP | libc::ENOTDIR | libc::ENOENT, ref words }
                if self.prepared.mounts.iter().any(|mount| self.is_shared(&mount.target)) =>
            {
                Refused::new(
                    Reason::Precondition,
                    format!("{words}; another member of the pod may have changed the volume"),
                )
            }
            error if error.is_out_of_memory() => self.too_small(),
            error => error.into(),
        })?;
        match (self.plan.token_file(), TokenDigest::from_bytes(&reported)) {
            (Some(_), None) => {
                Err(Refused::new(Reason::Internal, "the helper process returned no digest of the token"))
            }
            (_, token) => Ok(token),
        }
    }

    /// Returns true if a mount point is in a volume of the pod.
    fn is_shared(&self, target: &Path) -> bool {
        shared_mounts(self.plan).any(|volume| target.starts_with(volume))
    }

    /// Returns the refusal for files that exceed the container's memory limit, to which they are charged.
    fn too_small(&self) -> Refused {
        let bytes: u64 = self.plan.files.iter().map(|file| file.size).sum();
        let why = format!(
            "is {} bytes, which is too small: the {bytes} bytes of secret files count towards it",
            self.plan.limits.memory_bytes
        );
        Refused::from_fields(Reason::Precondition, &[Violation::new("limits.memory_bytes", why)])
    }

    fn act(&self, pass: &mut Pass<'_>) -> Result<Option<TokenDigest>, HelperFailure> {
        let (mut views, mut runtime, mut token) = (InjectedViews::default(), Vec::new(), None);
        if let Some(volume) = self.volume {
            token = self.fill(volume, pass)?;
            views = self.views(volume)?;
            runtime.extend(views.inputs.take());
        }
        if self.plan.token_file().is_some() {
            runtime.push(
                runtime::view(self.host)
                    .map_err(|error| HelperFailure("cannot create the runtime directory".into(), error))?,
            );
        }
        let devices = match self.devices {
            [] => Vec::new(),
            nodes => devices::make(nodes, self.id_map, self.staging)
                .map_err(|error| HelperFailure("cannot create device nodes".into(), error))?,
        };
        let message = self.message.as_ref().map(|placing| placing.file.view(self.staging)).transpose();
        let message = message
            .map_err(|error| HelperFailure("cannot create the view of the termination message".into(), error))?;
        let settings = Settings::new(self.plan, self.host.proc.as_fd());
        let init = self.init;
        let network = settings.is_some() && self.plan.makes_network();
        let placed = !self.devices.is_empty() || message.is_some() || self.shm.is_some() || !self.late.is_empty();
        let mount = !views.mounts.is_empty() || self.plan.terminal || views.steps.is_some() || placed;
        process::enter_namespaces(init, mount, network)
            .map_err(|error| HelperFailure("cannot enter the namespaces".into(), error))?;
        if settings.as_ref().is_some_and(Settings::has_ipc) {
            process::enter_ipc(init).map_err(|error| HelperFailure("cannot enter the IPC namespace".into(), error))?;
        }
        if self.id_map.is_mapped() {
            // From here on, new files and mounts in the container belong to the container's root.
            process::become_root_of(init)
                .map_err(|error| HelperFailure("cannot enter the user namespace".into(), error))?;
        }
        if let Some(settings) = settings {
            settings.write()?;
        }
        if self.plan.terminal {
            console().map_err(|error| HelperFailure(format!("cannot create {CONSOLE}"), error))?;
        }
        if let Some(shm) = self.shm {
            cover_shm(shm).map_err(|error| HelperFailure("cannot mount /dev/shm".into(), error))?;
        }
        if !self.devices.is_empty() {
            let dev = dev().map_err(|error| HelperFailure(format!("cannot open {DEV}"), error))?;
            devices::place_all(dev.as_fd(), self.devices, &devices, self.id_map).map_err(|(path, error)| {
                HelperFailure(format!("cannot create the device {}", path.display()), error)
            })?;
        }
        for mount in self.late {
            place_late(mount)
                .map_err(|error| HelperFailure(format!("cannot mount at {}", mount.path.display()), error))?;
        }
        if let Some(steps) = &views.steps {
            show_in_dev(STEPS_DIR, steps)?;
        }
        // From here on, this process sees the container's ids.
        let owner = (self.prepared.user.uid, self.prepared.user.gid);
        let owner_at = |target: &Path| (!self.is_shared(target)).then_some(owner);
        show(&self.prepared.mounts, &views.mounts, views.generations.as_ref(), owner_at)?;
        if let (Some(view), Some(Placing { point, .. })) = (message, &self.message) {
            place_view(point, view.as_fd(), Some(owner))
                .map_err(|error| HelperFailure(format!("cannot mount at {}", point.target.display()), error))?;
        }
        if !runtime.is_empty() {
            open_dir(Path::new("/"))
                .and_then(|root| runtime::place(root.as_fd(), &runtime))
                .map_err(|error| HelperFailure(format!("cannot mount at {RUNTIME_DIR}"), error))?;
        }
        Ok(token)
    }

    /// Writes the files and the other secret inputs into the volume. Their memory is charged to the container.
    fn fill(&self, volume: &Volume, pass: &mut Pass<'_>) -> Result<Option<TokenDigest>, HelperFailure> {
        let PreparedContainer { user, file_groups, .. } = self.prepared;
        let (owner, access) = ownership(&self.plan.files, user, file_groups, self.id_map);
        let token = self.plan.token_file().map(|_| Token::random(&self.plan.id)).transpose();
        let token =
            token.map_err(|error| HelperFailure("cannot create the runtime token".into(), io::Error::other(error)))?;
        let of_steps = self.plan.actions.iter().flat_map(|_| &self.plan.processes).flat_map(|process| &process.files);
        let sizes = self.plan.given_files().iter().chain(of_steps).map(|file| file.size);
        let write = |values: Option<&[u8]>| {
            let copy = copy_contents(self.files)?;
            let contents = decode_contents(&copy, sizes)?;
            // If memory is short, let the OOM killer choose this process and not the container's init.
            process::be_expendable().map_err(|error| HelperFailure("cannot set oom_score_adj".into(), error))?;
            self.host
                .hierarchies
                .join_memory(self.cgroup)
                .map_err(|error| HelperFailure("cannot join the memory cgroup".into(), error))?;
            let (own, of_steps) = contents.split_at(self.plan.given_files().len());
            let contents: Vec<&[u8]> = own.iter().copied().chain(token.as_ref().map(Token::as_bytes)).collect();
            let filled = volume.fill(&self.prepared.mounts, &contents, &access, owner, self.plan.layout(), pass);
            filled.map_err(|error| HelperFailure("cannot write the secret files".into(), error))?;
            if self.plan.actions.is_some() {
                let payloads = payload::decode(values.unwrap_or_default()).map_err(malformed);
                let filled = payloads.and_then(|payloads| {
                    self.fill_steps(volume, &payloads, of_steps, pass)?;
                    let lone = payloads.first().filter(|_| keeps_inputs(self.plan));
                    lone.map_or(Ok(()), |payload| self.write(volume, payload, own))
                });
                return filled.map_err(|error| HelperFailure("cannot store the secrets of the steps".into(), error));
            }
            if self.plan.keep_environment {
                let kept = self.keep_environment(volume, values.unwrap_or_default());
                kept.map_err(|error| HelperFailure("cannot store the environment".into(), error))?;
            }
            let values = values.filter(|_| keeps_inputs(self.plan));
            let kept = values.map_or(Ok(()), |values| self.write(volume, values, own));
            kept.map_err(|error| HelperFailure("cannot store the secret inputs".into(), error))
        };
        if keeps_inputs(self.plan) || self.plan.has_hidden_secrets() {
            let written = self.process.read(|values| write(Some(values)));
            written.map_err(|error| HelperFailure("cannot read the secret inputs".into(), error))??;
        } else {
            write(None)?;
        }
        Ok(token.map(|token| TokenDigest::from_token(token.as_bytes())))
    }

    /// Stores the payloads and files of the steps in a tree of actions, and the URLs of its transfers.
    fn fill_steps(
        &self,
        volume: &Volume,
        payloads: &[&[u8]],
        mut contents: &[&[u8]],
        pass: &mut Pass<'_>,
    ) -> io::Result<()> {
        if payloads.len() != self.plan.processes.len() + self.plan.transfers.len() {
            return Err(malformed("the payloads do not match the plan"));
        }
        let steps = volume.make_steps()?;
        let (payloads, urls) = payloads.split_at(self.plan.processes.len());
        for (index, url) in urls.iter().enumerate() {
            std::str::from_utf8(url)
                .ok()
                .filter(|url| check_url(url).is_ok())
                .ok_or_else(|| malformed("the URL of a transfer is invalid"))?;
            volume.fill_transfer(steps.as_fd(), self.plan.processes.len() + index, url)?;
        }
        if self.plan.keep_environment {
            let first = self.plan.first_process().and_then(|first| payloads.get(first));
            let first = ProcessPayload::decode(first.ok_or(io::ErrorKind::InvalidData)?).map_err(malformed)?;
            volume.keep_environment(steps.as_fd(), &first.env)?;
        }
        let all = self.plan.processes.iter().zip(&self.prepared.steps).zip(payloads);
        for (index, ((process, PreparedStep { user, mounts, .. }), payload)) in all.enumerate() {
            let (own, rest) = contents.split_at(process.files.len());
            contents = rest;
            let (owner, access) = ownership(&process.files, user, &self.prepared.file_groups, self.id_map);
            let secrets = StepSecrets { process: index, payload, mounts, contents: own, access: &access, owner };
            volume.fill_step(steps.as_fd(), &secrets, pass)?;
        }
        Ok(())
    }

    /// Stores the environment of a container with a single process.
    fn keep_environment(&self, volume: &Volume, process: &[u8]) -> io::Result<()> {
        let process = ProcessPayload::decode(process).map_err(malformed)?;
        volume.keep_environment(volume.make_steps()?.as_fd(), &process.env)
    }

    /// Stores the secret arguments and variables, and the files that the process may change.
    fn write(&self, volume: &Volume, process: &[u8], files: &[&[u8]]) -> io::Result<()> {
        let main = self.plan.main().ok_or(io::ErrorKind::InvalidData)?;
        let process = ProcessPayload::decode(process).map_err(malformed)?;
        let files = if self.plan.layout() == Layout::Writable { files } else { &[] };
        volume.keep_inputs(&process.secrets(main).map_err(malformed)?, files)
    }

    /// Returns the container's views of the volume. If the kernel cannot clone a detached mount, the volume is first
    /// attached in the shim's mount namespace.
    fn views(&self, volume: &Volume) -> Result<InjectedViews, HelperFailure> {
        let views = || -> io::Result<InjectedViews> {
            Ok(InjectedViews {
                inputs: keeps_inputs(self.plan).then(|| volume.inputs_view()).transpose()?,
                mounts: volume.views(&self.prepared.mounts, self.plan.layout())?,
                generations: volume.generations_view(&self.prepared.mounts, self.plan.layout())?,
                steps: self.plan.has_hidden_secrets().then(|| volume.steps_views()).transpose()?,
            })
        };
        create_views(volume, self.staging, views)
            .map_err(|error| HelperFailure("cannot create views of the secret files".into(), error))
    }
}

#[derive(Default)]
struct InjectedViews {
    /// Views of the secret files, one per mount point.
    mounts: Vec<OwnedFd>,
    /// View of the generations to which the links point, if any.
    generations: Option<OwnedFd>,
    /// View of the inputs that the container may request, if any.
    inputs: Option<OwnedFd>,
    /// View of the steps' secrets or the environment, and the mount that covers this view, if any.
    steps: Option<[OwnedFd; 2]>,
}

/// Creates views of a volume. If the kernel cannot clone a detached mount, the volume is first attached at `staging`.
pub(crate) fn create_views<T>(volume: &Volume, staging: &Path, views: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match views() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            open_dir(staging).and_then(|staging| volume.attach(staging.as_fd())).and_then(|()| views())
        }
        views => views,
    }
}

/// Mounts views of secret files, and of their generations, at the mount points. The calling process is root of the
/// container's user namespace and in its mount namespace. `owner` returns the owner of directories that are created for
/// a target.
pub(crate) fn show(
    mounts: &[MountPoint],
    views: &[OwnedFd],
    generations: Option<&OwnedFd>,
    owner: impl Fn(&Path) -> Option<(u32, u32)>,
) -> Result<(), HelperFailure> {
    if let Some(generations) = generations {
        show_in_dev(GENERATIONS_DIR, [generations])?;
    }
    for (mount, view) in mounts.iter().zip(views) {
        place_view(mount, view.as_fd(), owner(&mount.target))
            .map_err(|error| HelperFailure(format!("cannot mount at {}", mount.target.display()), error))?;
    }
    Ok(())
}

/// Creates a directory in the container's /dev, and mounts the views there, each over the previous view.
fn show_in_dev<'a>(path: &str, views: impl IntoIterator<Item = &'a OwnedFd>) -> Result<(), HelperFailure> {
    let show = || -> io::Result<()> {
        let dev = dev()?;
        let name = Path::new(path).strip_prefix(DEV).map_err(io::Error::other)?;
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
        for view in views {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let target = open_in_root(dev.as_fd(), name, flags, Mode::empty(), Follow::NoLinks)?;
            mount::attach(view.as_fd(), target.as_fd())?;
        }
        Ok(())
    };
    show().map_err(|error| HelperFailure(format!("cannot mount at {path}"), error))
}

/// Mounts a shared /dev/shm over the container's own /dev/shm.
fn cover_shm(shm: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let target = open_in_root(dev()?.as_fd(), Path::new("shm"), flags, Mode::empty(), Follow::NoLinks)?;
    mount::attach(shm.as_fd(), target.as_fd())
}

/// Mounts a volume. Creates the mount point if it is below /dev.
fn place_late(LateMount { path, view, is_file }: &LateMount) -> io::Result<()> {
    let root = open_dir(Path::new("/"))?;
    match path.strip_prefix(DEV) {
        Ok(below) if below != Path::new("shm") => {
            let dev = dev()?;
            devices::make_parents(dev.as_fd(), below)?;
            let mode = Mode::from_raw_mode(if *is_file { 0o600 } else { 0o755 });
            if *is_file {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                open_in_root(dev.as_fd(), below, flags, mode, Follow::NoLinks)?;
            } else {
                match rustix::fs::mkdirat(&dev, below, mode) {
                    Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    let flags = if *is_file { OFlags::PATH } else { OFlags::PATH | OFlags::DIRECTORY };
    let target = open_in_root(root.as_fd(), path, flags, Mode::empty(), Follow::NoLinks)?;
    mount::attach(view.as_fd(), target.as_fd())
}

/// Creates `/dev/console` in the new /dev, as the OCI runtime specification requires for a container with a terminal.
/// The program's terminal will be the first terminal of the container's devpts. `/dev/console` is a symbolic link,
/// because other processes could replace the target of a mount.
fn console() -> io::Result<()> {
    Ok(rustix::fs::symlinkat(FIRST_TERMINAL, dev()?, "console")?)
}

/// Opens the container's /dev. The calling process is in the container's mount namespace.
fn dev() -> io::Result<OwnedFd> {
    let root = open_dir(Path::new("/"))?;
    open_in_root(root.as_fd(), Path::new(DEV), OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Follow::NoLinks)
}

/// Returns true if the container has a runtime token and may request inputs other than files, or writable files, with
/// this token. These inputs are stored in the container's volume.
pub(crate) fn keeps_inputs(plan: &Plan) -> bool {
    let manifest = Manifest::from_plan(plan);
    let more = manifest.inputs() > 0 || (plan.layout() == Layout::Writable && !manifest.files.is_empty());
    plan.token_file().is_some() && more
}

fn malformed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
