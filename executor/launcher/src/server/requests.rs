//! Handles the daemon's requests: replies to each request, or defers the request until a shim listens or exits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::payload::BYTES_MAX;
use executor_core::protocol::{
    Done, Hello, Launch, LauncherAnswer, LauncherCall, LauncherRequest, NameSockets, PLAN_MAX, Reason, Refused,
    RemoveLayer, VERSION, Welcome,
};
use executor_core::time::Timestamp;
use executor_secrets::TagKey;
use executor_sys::heartbeat::Heartbeat;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, Fork};
use executor_sys::ready::{is_readable, readable_by};
use executor_sys::seqpacket::Seqpacket;
use prost::Message;

use super::network_tasks::NetworkTask;
use super::warm_pool;
use super::{EXIT_TIMEOUT, Server};
use crate::dirs::Dirs;
use crate::errors::failed;
use crate::layers::ReplyDestination;
use crate::log::{self, Level};
use crate::network::{self, PluginTimeouts};
use crate::shim;
use crate::shim_handle::{Killed, Offer, ShimHandle};

/// Maximum size of a request, in bytes: enough for ids, a digest and a key, or for the digests of 127 layers. The
/// buffer is on the stack, so that a shim that is forked for a request does not keep the buffer while its container
/// runs.
const REQUEST_MAX: usize = 8192;
/// Time limit between a shim's last message and its exit.
const SHIM_EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the cleanup of a container.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit between a shim's fork and its listening. After this limit, a waiting daemon is accepted even if the shim
/// does not listen.
const SHIM_LISTEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a warm container to acknowledge a launch.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of deferred requests with descriptors, of all daemons.
const LAUNCHES_MAX: usize = 64;
/// Maximum number of deferred requests without descriptors. Most of these requests remove deleted containers. The limit
/// is separate, so that these requests do not block launches.
const REMOVALS_MAX: usize = 2048;

/// A request that waits for a shim.
pub(super) struct Deferred {
    client: ReplyDestination,
    call: LauncherCall,
    fds: Vec<OwnedFd>,
    pub(super) until: Instant,
}

impl Server {
    /// Handles all pending requests of the daemons.
    pub(super) fn serve_daemons(&mut self) {
        let mut index = 0;
        while index < self.daemons.len() {
            match self.serve(index) {
                Ok(true) => {}
                Ok(false) => index += 1,
                Err(DaemonGone) => {
                    self.daemons.remove(index);
                }
            }
        }
    }

    /// Handles one request from one daemon. Returns true if there was a request.
    fn serve(&mut self, index: usize) -> Result<bool, DaemonGone> {
        let mut buffer = [0; REQUEST_MAX];
        let (length, fds) = match self.daemons[index].recv_or_report(&mut buffer) {
            Ok(None) => return Err(DaemonGone),
            Ok(Some(message)) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(_) => return Err(DaemonGone),
        };
        let LauncherRequest { sequence, call } = LauncherRequest::decode(&buffer[..length]).map_err(|_| DaemonGone)?;
        let client = ReplyDestination::new(&self.daemons[index], sequence);
        let fds = match fds {
            Ok(fds) => fds,
            Err(error) => {
                let refused = LauncherAnswer::Refused(failed("cannot receive the descriptors of a request", &error));
                return if client.answer(refused) { Ok(true) } else { Err(DaemonGone) };
            }
        };
        let unknown = || Refused::new(Reason::Invalid, "unknown request: this launcher is older than the daemon");
        if let Some(LauncherCall::Launch(_)) = call {
            self.recv_from_shims(); // read refusals first: the client may already request the same id again
            self.claim_for_a_launch();
        }
        let asked = call.ok_or_else(unknown).and_then(|call| {
            let Some(timeout) = self.shim_wait_limit(&call) else { return Ok(Some((call, fds))) };
            let bare = fds.is_empty();
            let max = if bare { REMOVALS_MAX } else { LAUNCHES_MAX };
            if self.deferred.iter().filter(|other| other.fds.is_empty() == bare).count() >= max {
                let why =
                    format!("too many requests are waiting for shims to start or exit (at most {max}); try again");
                return Err(Refused::new(Reason::Busy, why));
            }
            let client = ReplyDestination::new(&self.daemons[index], sequence);
            self.deferred.push(Deferred { client, call, fds, until: Instant::now() + timeout });
            Ok(None)
        });
        let is_there = match asked {
            Ok(Some((call, fds))) => self.execute(&client, call, fds),
            Ok(None) => true,
            Err(refused) => client.answer(LauncherAnswer::Refused(refused)),
        };
        if is_there { Ok(true) } else { Err(DaemonGone) }
    }

    /// Executes deferred requests that are ready, one at a time: a child that is forked for one request closes the
    /// descriptors of the others.
    pub(super) fn serve_deferred(&mut self) {
        let is_due = |server: &Self, deferred: &Deferred| {
            deferred.until <= Instant::now() || server.shim_wait_limit(&deferred.call).is_none()
        };
        while let Some(index) = self.deferred.iter().position(|deferred| is_due(self, deferred)) {
            let Deferred { client, call, fds, .. } = self.deferred.remove(index);
            self.execute(&client, call, fds);
        }
    }

    /// Returns the time that a request may wait for a shim that is about to listen or exit. Returns `None` if the
    /// request can be executed now.
    fn shim_wait_limit(&self, call: &LauncherCall) -> Option<Duration> {
        let shim = |id: &str| self.shims.get(&id.parse::<ContainerId>().ok()?).filter(|shim| !is_readable(&shim.pidfd));
        match call {
            // A new shim listens after a moment. A daemon that is accepted earlier would consider the shim lost.
            LauncherCall::Hello(_) => {
                self.shims.values().any(|shim| !shim.listening && !shim.done).then_some(SHIM_LISTEN_TIMEOUT)
            }
            // Wait if a shim with this id is exiting or has closed its socket, or if every id range is in use and a
            // shim is still cleaning up.
            LauncherCall::Launch(launch) => shim(&launch.container_id)
                .map_or_else(
                    || self.is_range_being_released(),
                    |shim| shim.lifeline.is_none() || self.has_finished(shim),
                )
                .then_some(SHIM_EXIT_TIMEOUT),
            // The daemon has seen the exit, and cleanup is in progress.
            LauncherCall::Remove(remove) => shim(&remove.container_id)
                .is_some_and(|shim| Dirs::new(&self.host, &shim.id).has_exit())
                .then_some(CLEANUP_TIMEOUT),
            _ => None,
        }
    }

    /// Executes a request and replies. Returns true if the daemon is still connected.
    fn execute(&mut self, client: &ReplyDestination, call: LauncherCall, fds: Vec<OwnedFd>) -> bool {
        let answer = match call {
            LauncherCall::Hello(hello) => self.hello(&hello),
            LauncherCall::Launch(launch) => self.launch(launch, fds),
            LauncherCall::Exec(exec) => self.exec(exec, None, fds),
            LauncherCall::Archive(archive) => self.archive(archive, fds),
            LauncherCall::Remove(remove) => self.remove(&remove.container_id),
            LauncherCall::CountWarmPool(_) => Ok(LauncherAnswer::WarmPool(self.count_warm_pool())),
            LauncherCall::OpenSigner(_) => self.open_signer(fds),
            // The forked process sends the response.
            LauncherCall::ListNetworks(request) => {
                match self.queue_network_task(NetworkTask::List(request), client.again()) {
                    Ok(()) => return true,
                    Err(refused) => Err(refused),
                }
            }
            LauncherCall::CheckNetwork(request) => {
                match self.queue_network_task(NetworkTask::Check(request), client.again()) {
                    Ok(()) => return true,
                    Err(refused) => Err(refused),
                }
            }
            LauncherCall::OpenNameSockets(request) => match network::open_name_sockets(&self.host, &request) {
                Ok(sockets) => {
                    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                    return client.answer_with_fds(LauncherAnswer::NameSockets(NameSockets {}), &sockets);
                }
                Err(refused) => Err(refused),
            },
            LauncherCall::Shutdown(_) => {
                self.shutdown = true;
                Ok(LauncherAnswer::Done(Done {}))
            }
            // Long operations send their reply when they are done.
            LauncherCall::UnpackLayer(unpack) => {
                let later = client.again();
                let unpacked = self
                    .create_missing_directories()
                    .and_then(|()| self.layers.unpack(&unpack, fds.into_iter().next(), later));
                match unpacked {
                    Ok(None) => return true,
                    Ok(Some(answer)) => Ok(answer),
                    Err(refused) => Err(refused),
                }
            }
            LauncherCall::MeasureLayers(_) => match self.layers.measure(client.again()) {
                Ok(None) => return true,
                Ok(Some(answer)) => Ok(answer),
                Err(refused) => Err(refused),
            },
            LauncherCall::RemoveLayer(remove) => match self.remove_layer(&remove, client.again()) {
                Ok(None) => return true,
                Ok(Some(answer)) => Ok(answer),
                Err(refused) => Err(refused),
            },
        };
        client.answer(answer.unwrap_or_else(LauncherAnswer::Refused))
    }

    fn hello(&mut self, hello: &Hello) -> Result<LauncherAnswer, Refused> {
        if hello.version != VERSION {
            let why = format!("this launcher has protocol version {VERSION}, the daemon has {}", hello.version);
            return Err(Refused::new(Reason::Precondition, why));
        }
        // The key survives a restart of the daemon or of the launcher, because the other process still has it.
        let internal = |error: &dyn std::fmt::Display| {
            Refused::new(Reason::Internal, format!("cannot create or read the tag key: {error}"))
        };
        let key = match self.tag_key.take() {
            Some(key) => key,
            None if hello.tag_key.is_empty() => TagKey::random().map_err(|error| internal(&error))?,
            None => TagKey::from_bytes(&hello.tag_key).map_err(|error| internal(&error))?,
        };
        let stale = self.compare_configuration(hello);
        let welcome = Welcome {
            pid: std::process::id(),
            version: VERSION,
            configuration: Some(self.configuration()),
            stale,
            tag_key: key.as_bytes().to_vec(),
            noswap: self.host.noswap,
            cgroups: self.host.hierarchies.name().to_owned(),
        };
        self.tag_key = Some(key);
        Ok(LauncherAnswer::Welcome(welcome))
    }

    fn launch(&mut self, launch: Launch, fds: Vec<OwnedFd>) -> Result<LauncherAnswer, Refused> {
        let id: ContainerId =
            launch.container_id.parse().map_err(|bad| Refused::new(Reason::Invalid, format!("container id: {bad}")))?;
        if self.recv_from_shim(&id).is_some_and(|shim| is_readable(&shim.pidfd)) {
            self.finish_shim(&id);
        }
        if self.shims.contains_key(&id) {
            return Err(Refused::new(Reason::Exists, format!("container {id} already exists")));
        }
        let Ok([connection, plan, process, files]) = <[OwnedFd; 4]>::try_from(fds) else {
            return Err(Refused::new(
                Reason::Invalid,
                "a launch needs four descriptors: connection, plan, process, files",
            ));
        };
        let invalid = |error: io::Error| Refused::new(Reason::Invalid, error.to_string());
        let connection = Seqpacket::from_peer(connection).map_err(invalid)?;
        let plan = MemFile::from_fd(plan, PLAN_MAX).map_err(invalid)?;
        let payload = |fd| MemFile::from_fd_to_wipe(fd, BYTES_MAX as u64).map_err(invalid);
        let (process, files) = (payload(process)?, payload(files)?);
        self.create_missing_directories()?;
        if launch.fits_warm {
            let network = launch.network.as_deref();
            let on_network = network.is_some_and(|name| network::is_warm_network(&self.host, name));
            let fds = [connection.as_fd(), plan.as_fd(), process.as_fd(), files.as_fd()];
            if let Some(warm_pool::PooledContainer { pid, pidfd, lifeline, place, id_range, heartbeat, .. }) =
                self.warm_pool.send_launch(&launch, &fds, on_network)
            {
                let watched =
                    ShimHandle::from_child(id.clone(), Timestamp(launch.created_at), (pid, pidfd, lifeline), heartbeat);
                let (inputs, id_range) = (vec![process, files], Some(id_range));
                let offer = Offer { launch, connection, plan, until: Instant::now() + ACKNOWLEDGE_TIMEOUT };
                let shim = ShimHandle { inputs, id_range, warm: Some(place), offer: Some(offer), ..watched };
                self.shims.insert(id, shim);
                return Ok(LauncherAnswer::Done(Done {}));
            }
        }
        self.launch_without_warm(id, launch, (connection, plan), [process, files])?;
        Ok(LauncherAnswer::Done(Done {}))
    }

    /// Forks a shim that creates a container without a warm container.
    fn launch_without_warm(
        &mut self,
        id: ContainerId,
        launch: Launch,
        (connection, plan): (Seqpacket, MemFile),
        [process, files]: [MemFile; 2],
    ) -> Result<(), Refused> {
        let heartbeat = Heartbeat::create().map_err(|error| failed("cannot create the heartbeat", &error))?;
        let (lifeline, theirs) = Seqpacket::pair().map_err(|error| failed("cannot create the lifeline", &error))?;
        lifeline.set_nonblocking(true);
        let pod_range = self.pod_range(&launch.pod_id)?;
        let id_range = match launch.given_ids {
            0 => self.pool_range(),
            start => Some(self.given_range(start)?),
        };
        let launcher = std::process::id();
        let room = process::room_for_one(lifeline.as_fd()).map_err(|error| failed("cannot fork a shim", &error))?;
        let pid = match process::fork().map_err(|error| failed("cannot fork a shim", &error))? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                drop((lifeline, room));
                self.abandon();
                let created_at = Timestamp(launch.created_at);
                let launch = shim::Launch {
                    id,
                    request_tag: launch.request_tag,
                    created_at,
                    id_range,
                    pod_range,
                    launcher,
                    connection,
                    heartbeat,
                    plan,
                    process,
                    files,
                };
                process::exit_now(shim::run(&self.host, &self.filter, launch, theirs))
            }
        };
        drop(room);
        let pidfd = process::pidfd(pid).map_err(|error| failed("cannot open the shim process", &error))?;
        let watched =
            ShimHandle::from_child(id.clone(), Timestamp(launch.created_at), (pid, pidfd, lifeline), heartbeat);
        let shim = ShimHandle { inputs: vec![process, files], id_range, pod_range, ..watched };
        self.shims.insert(id, shim);
        Ok(())
    }

    /// Kills warm containers that have not acknowledged their launch in time, and launches their containers without a
    /// warm container. A warm container that has not acknowledged has changed nothing for the launch.
    pub(super) fn kill_silent_warm(&mut self) {
        let is_late = |shim: &&ShimHandle| shim.offer.as_ref().is_some_and(|offer| offer.until <= Instant::now());
        let late: Vec<ContainerId> = self.shims.values().filter(is_late).map(|shim| shim.id.clone()).collect();
        for id in late {
            let Some(shim) = self.recv_from_shim(&id).filter(|shim| shim.offer.is_some()) else { continue };
            let _ = process::pidfd_signal(shim.pidfd.as_fd(), libc::SIGKILL); // the process may have just exited
            if !readable_by(&shim.pidfd, Instant::now() + EXIT_TIMEOUT).unwrap_or(false) {
                shim.offer = None; // blocked in the kernel: the watchdog handles it
                continue;
            }
            let Some(shim) = self.recv_from_shim(&id) else { continue };
            // If the shim acknowledged at the last moment, it may have changed the container's files. Its exit is then
            // handled like the exit of any other shim.
            let Some(Offer { launch, connection, plan, .. }) = shim.offer.take() else { continue };
            let (pid, place) = (shim.pid, shim.warm.take());
            let again = |input: &MemFile| {
                let handle = input.as_fd().try_clone_to_owned()?;
                MemFile::from_fd_to_wipe(handle, BYTES_MAX as u64)
            };
            let inputs: io::Result<Vec<MemFile>> = shim.inputs.iter().map(again).collect();
            log::line(
                Level::Warning,
                id.as_str(),
                "the warm container did not acknowledge the launch: creating the container without it",
            );
            let _ = process::wait_for(pid);
            self.unreaped = true;
            if let Some(place) = &place {
                self.clear(place);
            }
            let inputs = inputs.map_err(|error| failed("cannot read the start payloads", &error));
            let inputs = inputs.and_then(|inputs| {
                <[MemFile; 2]>::try_from(inputs)
                    .map_err(|_| Refused::new(Reason::Internal, "start payloads are missing"))
            });
            let lost = self.shims.remove(&id);
            let launched =
                inputs.and_then(|inputs| self.launch_without_warm(id.clone(), launch, (connection, plan), inputs));
            if let (Err(refused), Some(lost)) = (launched, lost) {
                // The launch has already succeeded for the daemon, so report the failure as a lost shim.
                let killed = Some(Killed { at: Instant::now(), why: refused.message });
                self.shims.insert(id.clone(), ShimHandle { killed, ..lost });
                self.finish_shim(&id);
            }
        }
    }

    /// Creates directories for which the disk had no space when this launcher started.
    fn create_missing_directories(&self) -> Result<(), Refused> {
        if self.host.layers().is_dir() {
            return Ok(()); // the directory of layers is created last
        }
        super::make_state_dirs(&self.host).map_err(|error| failed("cannot create the state directories", &error))
    }

    fn remove_layer(
        &mut self,
        remove: &RemoveLayer,
        client: ReplyDestination,
    ) -> Result<Option<LauncherAnswer>, Refused> {
        self.recv_from_shims();
        // A shim that is still starting may have no record, and could mount any layer.
        if let Some(shim) = self.shims.values().find(|shim| !shim.listening && !shim.done) {
            let why = format!("container {} is being created and may use the layer; try again", shim.id);
            return Err(Refused::new(Reason::Busy, why));
        }
        self.layers.remove(&self.host, remove, client)
    }

    fn remove(&mut self, id: &str) -> Result<LauncherAnswer, Refused> {
        let id: ContainerId =
            id.parse().map_err(|bad| Refused::new(Reason::Invalid, format!("container id: {bad}")))?;
        if self.shims.get(&id).is_some_and(|shim| is_readable(&shim.pidfd)) {
            self.finish_shim(&id);
        }
        if self.host.containers_run().join(id.as_str()).exists() {
            let why = if Dirs::new(&self.host, &id).has_exit() { "is still being removed" } else { "is not completed" };
            return Err(Refused::new(Reason::Precondition, format!("container {id} {why}")));
        }
        // Try again, in case a plugin failed at the container's exit.
        if let Err(why) = network::detach(&self.host, &id, PluginTimeouts::brief(&self.host)) {
            log::line(
                Level::Error,
                id.as_str(),
                format_args!("the container was not detached from its network: {why}"),
            );
            self.follow_up_detachment(&id);
        }
        match Dirs::new(&self.host, &id).remove_state() {
            Ok(()) => Ok(LauncherAnswer::Done(Done {})),
            Err(error) => {
                log::line(Level::Error, id.as_str(), format_args!("the state directory was not removed: {error}"));
                Err(failed("cannot remove the container's state directory", &error))
            }
        }
    }
}

/// The daemon has disconnected or sent an invalid message.
struct DaemonGone;
