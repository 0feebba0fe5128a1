//! Runs a warm container: a shim with a waiting init in its own cgroup and namespaces. A launch turns a warm container
//! into the requested container, if the plan permits that.
//!
//! ```text
//! fork from the launcher
//!   make       creates ids, cgroup, namespaces, skeleton root; init waits     (WarmContainer::make)
//!   wait       waits for a launch; exits if the lifeline closes               (wait)
//!   become     sets limits, root, user; init then belongs to the container    (WarmContainer::become_container)
//! ```
//! A warm container has no information about the program that it will run, and is used only once. A warm container that
//! a launch cannot use is stopped. The warm container's directory in RUN_DIR/shells keeps its name until the
//! container's record exists. A launcher that finds such a directory without a process removes the leftovers
//! ([`crate::warm`]).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use executor_core::ident::{ContainerId, ProcessIdentity};
use executor_core::payload::BYTES_MAX;
use executor_core::placement::MountPoint;
use executor_core::plan::{Limits, Plan};
use executor_core::protocol::{Launch as LaunchCall, PLAN_MAX, Refused};
use executor_core::record::ContainerRecord;
use executor_core::spec::{self, CapabilitySets, Skeleton};
use executor_core::time::Timestamp;
use executor_core::validate::{Draft, recheck, validate};
use executor_sys::events::Events;
use executor_sys::heap;
use executor_sys::heartbeat::Heartbeat;
use executor_sys::identity;
use executor_sys::memfile::MemFile;
use executor_sys::mount::{Attributes, clone_tree, open_dir, set_attributes};
use executor_sys::process;
use executor_sys::seqpacket::Seqpacket;
use prost::Message;
use rustix::fs::{Mode, OFlags};

use super::files::inject;
use super::init::activation::{ActivationCommand, GROUPS_MAX};
use super::init::create::{self, Created, Creation};
use super::init::init_spec::InitSpec;
use super::init::warm_files::WarmViews;
use super::{Launch, isolate, set_up};
use crate::cgroup::Devices;
use crate::cpuset::SHOWN;
use crate::errors::{failed, failed_by};
use crate::host::Host;
use crate::ids::Ids;
use crate::log::{self, Level};
use crate::network::{self, WarmNetwork};
use crate::orphans::children;
use crate::seccomp::Filter;
use crate::warm::{Premade, WarmPaths};

/// Process name of a warm container until it receives a launch.
const NAME: &CStr = c"executor-warm";
/// Maximum size of a launch message, in bytes.
const LAUNCH_MAX: usize = 8192;
/// Message of a warm container that is ready for use.
pub(crate) const READY: &[u8] = b"ready";
/// Message that acknowledges a launch, sent before anything is changed for the container.
pub(crate) const STARTED: &[u8] = b"begun";

/// Parameters of a warm container.
pub(crate) struct WarmInput {
    /// Cgroup and directories of the warm container.
    pub place: WarmPaths,
    /// First host id of the range for the user namespace.
    pub id_range: u32,
    /// Pid of the launcher, which has claimed the range.
    pub launcher: u32,
    /// Heartbeat, used after the warm container has received a launch.
    pub heartbeat: Heartbeat,
    /// True if the warm container must be attached to the warm pool's network.
    pub on_network: bool,
}

/// A warm container with a waiting init.
pub(super) struct WarmContainer {
    place: WarmPaths,
    ids: Rc<Ids>,
    created: Created,
    identity: ProcessIdentity,
    /// Directories for the future container. `None` after a launch has renamed them.
    premade: Option<Premade>,
    /// Attachment to a network, if there is one.
    network: Option<WarmNetwork>,
}

/// Properties of the container that a warm container becomes.
pub(super) struct Activation<'a> {
    pub(super) plan: &'a Plan,
    pub(super) part: InitSpec,
    pub(super) nofile: u64,
    pub(super) held: &'a CapabilitySets,
    pub(super) stdio: [OwnedFd; 3],
    /// Path of the root file system in this process's mount namespace.
    pub(super) rootfs: &'a Path,
    /// Mount points and views of the secret files, if init mounts them.
    pub(super) shown: Option<(&'a [MountPoint], WarmViews)>,
}

/// Creates a warm container, waits for a launch, and runs the container. Returns the exit status of the process.
pub(crate) fn run(host: &Host, filter: &Arc<Filter>, input: WarmInput, lifeline: Seqpacket) -> i32 {
    let WarmInput { place, id_range, launcher, heartbeat, on_network } = input;
    host.show_role(&["warm"]);
    let made = set_up(NAME).map_err(|error| failed("cannot set up the shim", &error)).and_then(|signals| {
        isolate().map_err(|error| failed("cannot create a mount namespace", &error))?;
        Ok((signals, WarmContainer::make(host, filter, &place, (id_range, on_network))?))
    });
    let (signals, warm) = match made {
        Ok(made) => made,
        Err(refused) => {
            log::line(Level::Error, "", format_args!("a warm container was not created: {}", refused.message));
            place.clear(host);
            return 1;
        }
    };
    heap::trim();
    let _ = process::trim_stack();
    rehearse(host);
    match wait(&lifeline, &warm) {
        Ok(Some((call, fds))) => {
            match acknowledge(&lifeline).and_then(|()| launch(&call, fds, (id_range, launcher, heartbeat))) {
                Ok(launch) => super::run_container(host, filter, launch, lifeline, (Some(warm), signals)),
                Err(error) => {
                    log::line(Level::Error, "", format_args!("a warm container cannot accept a launch: {error}"));
                    warm.discard(host);
                    1
                }
            }
        }
        // The launcher no longer needs the warm container, or has exited.
        Ok(None) => {
            warm.discard(host);
            0
        }
        Err(error) => {
            log::line(
                Level::Error,
                "",
                format_args!("a warm container cannot wait for a launch and is removed: {error}"),
            );
            warm.discard(host);
            1
        }
    }
}

/// Reads and checks a sample plan and serializes a sample record, so that the required memory is already allocated when
/// a launch arrives.
#[inline(never)] // as in [`super::setup::prepare::prepare`]
fn rehearse(host: &Host) {
    let draft = Draft { id: "rehearsal", path: "/", rootfs: "dir:/", ..Draft::default() };
    let Ok(plan) = validate(&draft, &host.policy) else { return };
    let read = serde_json::to_vec(&plan).and_then(|words| serde_json::from_slice::<Plan>(&words));
    let Ok(plan) = read else { return };
    let result = recheck(&plan, &host.policy);
    let shim = ProcessIdentity { pid: 0, start_time: 0, boot_id: String::new() };
    let record = ContainerRecord::first(plan, (Timestamp(0), Timestamp(0)), shim, PathBuf::new());
    drop(std::hint::black_box((result, serde_json::to_vec(&record))));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Launch,
    InitEnded,
}

/// Reports to the launcher that the warm container is ready, and waits for a launch. Returns `None` if the launcher has
/// closed the connection.
fn wait(lifeline: &Seqpacket, warm: &WarmContainer) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    lifeline.send(READY, &[])?;
    loop {
        let mut events = Events::default();
        events.read(lifeline.as_fd(), Event::Launch);
        events.read(warm.created.pidfd().as_fd(), Event::InitEnded);
        let happened = events.wait()?;
        if happened.contains(&Event::InitEnded) {
            return Err(io::Error::other("the init process has exited"));
        }
        if happened.contains(&Event::Launch) {
            let mut buffer = vec![0; LAUNCH_MAX];
            return Ok(lifeline.recv(&mut buffer)?.map(|(length, fds)| {
                buffer.truncate(length);
                (buffer, fds)
            }));
        }
    }
}

/// Acknowledges a launch. Succeeds even if the launcher has exited.
fn acknowledge(lifeline: &Seqpacket) -> io::Result<()> {
    match lifeline.send(STARTED, &[]) {
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
        sent => sent,
    }
}

#[inline(never)] // as in [`super::setup::prepare::prepare`]
fn launch(
    call: &[u8],
    fds: Vec<OwnedFd>,
    (id_range, launcher, heartbeat): (u32, u32, Heartbeat),
) -> io::Result<Launch> {
    rustix::thread::set_name(super::NAME)?;
    let call = LaunchCall::decode(call).map_err(io::Error::other)?;
    let Ok([connection, plan, process, files]) = <[OwnedFd; 4]>::try_from(fds) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    Ok(Launch {
        id: call.container_id.parse().map_err(|bad| io::Error::other(format!("container id: {bad}")))?,
        request_tag: call.request_tag,
        created_at: Timestamp(call.created_at),
        id_range: Some(id_range),
        pod_range: None,
        launcher,
        connection: Seqpacket::from_peer(connection)?,
        heartbeat,
        plan: MemFile::from_fd(plan, PLAN_MAX)?,
        process: MemFile::from_fd_to_wipe(process, BYTES_MAX as u64)?,
        files: MemFile::from_fd_to_wipe(files, BYTES_MAX as u64)?,
    })
}

impl WarmContainer {
    /// Creates a warm container at the lowest priority, so that launches have precedence.
    #[inline(never)] // as in [`super::setup::prepare::prepare`]
    fn make(host: &Host, filter: &Arc<Filter>, place: &WarmPaths, input: (u32, bool)) -> Result<Self, Refused> {
        let own = process::lower_priority().map_err(|error| failed("cannot lower the priority", &error))?;
        let warm = Self::try_to_make(host, filter, place, input)?;
        let init = warm.init();
        let restored = own.map_or(Ok(()), |own| {
            process::set_priority(init, own).and_then(|()| process::set_priority(std::process::id() as i32, own))
        });
        match restored {
            Ok(()) => Ok(warm),
            Err(error) => {
                warm.created.kill();
                Err(failed("cannot restore the priority", &error))
            }
        }
    }

    fn try_to_make(
        host: &Host,
        filter: &Arc<Filter>,
        place: &WarmPaths,
        (id_range, on_network): (u32, bool),
    ) -> Result<Self, Refused> {
        let ids = Ids::from_range(id_range)?;
        let namespace: PathBuf = ids.namespace_path().unwrap_or_default();
        let view = host.hierarchies.has_view().then(|| host.cgroup_view());
        let skeleton = Skeleton {
            root: &host.skeleton(),
            cgroup: &place.cgroup,
            user_namespace: &namespace,
            cgroup_view: view.as_deref(),
        };
        let spec =
            spec::warm(skeleton).map_err(|error| failed_by(format!("cannot create the OCI specification: {error}")))?;
        let null = || {
            let opened = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
            opened.map_err(|error| failed("cannot open /dev/null", &error.into()))
        };
        let stdio = [null()?, null()?, null()?];
        let creation = Creation {
            dir: &place.dir,
            cgroup: (&place.cgroup, Devices::These(&[])),
            cpuset: &host.cgroup_parent.join(SHOWN),
            has_writable_cgroup: false,
            spec: &spec,
            filter: Arc::clone(filter),
            stdio,
            part: None,
        };
        let mut created = create::create(host, creation)?;
        let released = created.release();
        let released = released.and_then(|()| inject::set_up_network(host, created.pidfd().as_fd()));
        let released =
            released.and_then(|()| place.empty().map_err(|error| failed("cannot empty the run directory", &error)));
        let attach = || WarmNetwork::attach(host, &place.name(), created.pidfd().as_fd());
        let network = match released.and_then(|()| on_network.then(attach).transpose()) {
            Ok(network) => network,
            Err(refused) => {
                created.kill();
                return Err(refused);
            }
        };
        // Reap the child that created the user namespace. The child has exited or is about to exit.
        for pid in children().into_iter().filter(|pid| *pid != created.pid()) {
            let _ = process::wait_for(pid);
        }
        let furnished = identity::read(std::process::id() as i32)
            .and_then(|identity| Ok((identity, Premade::make(host, place, ids.map().to_host(0))?)));
        match furnished {
            Ok((identity, premade)) => {
                Ok(Self { place: place.clone(), ids: Rc::new(ids), created, identity, premade: Some(premade), network })
            }
            Err(error) => {
                created.kill();
                Err(failed("cannot create the directories of the warm container", &error))
            }
        }
    }

    /// Returns the ids and the user namespace that maps them.
    pub(super) fn ids(&self) -> Rc<Ids> {
        Rc::clone(&self.ids)
    }

    /// Returns the cgroup, relative to each hierarchy's mount.
    pub(super) fn cgroup(&self) -> PathBuf {
        self.place.cgroup.clone()
    }

    pub(super) fn identity(&self) -> ProcessIdentity {
        self.identity.clone()
    }

    /// Removes and returns the premade directories.
    pub(super) fn take_premade(&mut self) -> Option<Premade> {
        self.premade.take()
    }

    /// Returns true if a plan can use the network attachment of this warm container, or there is none.
    pub(super) fn fits_network(&self, host: &Host, plan: &Plan) -> bool {
        self.network.is_none() || plan.own_network().is_some_and(|name| network::is_warm_network(host, name))
    }

    /// Assigns the network attachment to the container with this id.
    ///
    /// # Errors
    /// Returns a refusal if the record of the attachment cannot be changed.
    pub(super) fn adopt_network(&mut self, host: &Host, id: &ContainerId) -> Result<(), Refused> {
        self.network = self.network.take().map(|network| network.adopt(host, id)).transpose()?;
        Ok(())
    }

    /// Removes and returns the network attachment.
    pub(super) fn take_network(&mut self) -> Option<WarmNetwork> {
        self.network.take()
    }

    /// Returns the pid of init in the host's pid namespace.
    pub(super) fn init(&self) -> i32 {
        self.created.pid()
    }

    /// Sets the container's limits.
    ///
    /// # Errors
    /// Returns a refusal if a limit cannot be set.
    pub(super) fn limit(&self, host: &Host, limits: &Limits) -> Result<(), Refused> {
        host.hierarchies.limit(&self.place.cgroup, limits).map_err(|error| failed("cannot set the limits", &error))
    }

    /// Turns the warm container into a container whose init waits for its start. If `at_once` is true, the activation
    /// command is sent later, together with the payload, at the start.
    ///
    /// # Errors
    /// Returns a refusal if a step of init fails.
    pub(super) fn become_container(mut self, on: Activation<'_>, at_once: bool) -> Result<Created, Refused> {
        let Activation { plan, part, nofile, held, stdio, rootfs, shown } = on;
        let root = open_dir(rootfs).and_then(|root| {
            let root = clone_tree(root.as_fd(), Path::new(""), true)?;
            if plan.isolation.read_only_rootfs {
                set_attributes(root.as_fd(), Attributes { read_only: true, ..Attributes::default() })?;
            }
            Ok(root)
        });
        let root = root.map_err(|error| failed("cannot prepare the rootfs", &error))?;
        let (mounts, views) = shown.map(|(mounts, views)| (mounts.to_vec(), views)).unzip();
        let command = ActivationCommand::new(
            part,
            executor_core::names::hostname(plan),
            nofile,
            held,
            mounts.unwrap_or_default(),
        );
        self.created.activate(command.into_message(root, stdio, views)?, at_once)?;
        Ok(self.created)
    }

    /// Returns true if a user's supplementary groups fit into a command to a warm container.
    pub(super) fn has_room_for(groups: usize) -> bool {
        groups <= GROUPS_MAX
    }

    /// Stops the warm container and removes all its resources.
    pub(super) fn discard(self, host: &Host) {
        self.created.kill();
        self.place.clear(host);
        if let Err(error) = host.hierarchies.unmount_view(&host.cgroup_view()) {
            log::line(Level::Error, "", format_args!("the cgroup view of a warm container was not detached: {error}"));
        }
    }
}
