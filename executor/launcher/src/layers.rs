//! Unpacks and removes image layers in separate processes, so that the launcher never blocks on this work.
//!
//! A request waits until fewer than [`RUNNING_MAX`] processes run and no process works on the same layer. Then a
//! process is forked for the request (see [`worker`]). After the process has exited, the client gets the reply if it is
//! still connected. If a process was killed, another process removes its leftovers.

mod sizes;
mod worker;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::{Rc, Weak};

use executor_core::image::LAYERS_MAX;
use executor_core::plan::Plan;
use executor_core::protocol::{
    Done, LauncherAnswer, LauncherReply, Reason, Refused, RemoveLayer, UnpackLayer, Unpacked,
};
use executor_layers::stream::Compression;
use executor_layers::{DiffId, Limits, Store, UnpackError};
use executor_sys::process::{self, ChildExit, Fork};
use executor_sys::ready::is_readable;
use executor_sys::seqpacket::Seqpacket;
use prost::Message;

use crate::dirs::Dirs;
use crate::errors::{failed, plain};
use crate::host::Host;
use crate::log::{self, Level};
use crate::sweep;
use sizes::{LayerSizes, SizeReport};

/// Maximum number of running processes. Each process can use a CPU and a disk completely.
const RUNNING_MAX: usize = 2;
/// Maximum number of waiting requests. Each request holds a descriptor.
const WAITING_MAX: usize = 64;
/// Maximum size of a process's report, in bytes.
const ANSWER_MAX: usize = 8192;

/// Work that a separate process does on the layer store.
pub(crate) enum LayerWork {
    Unpack {
        diff_id: DiffId,
        compression: Compression,
        parents: Vec<DiffId>,
        bytes_max: u64,
        blob: File,
    },
    /// Remove directories that are no longer referenced.
    Clear(Vec<String>),
    Measure(Vec<String>),
}

pub(crate) struct ReplyDestination {
    connection: Weak<Seqpacket>,
    sequence: u64,
}

impl ReplyDestination {
    pub(crate) fn new(connection: &Rc<Seqpacket>, sequence: u64) -> Self {
        Self { connection: Rc::downgrade(connection), sequence }
    }

    /// Duplicates the reply destination: same client and request.
    pub(crate) fn again(&self) -> Self {
        Self { connection: Weak::clone(&self.connection), sequence: self.sequence }
    }

    /// Sends the reply. Returns true if the daemon is still connected. After a reconnect the daemon repeats the request
    /// and finds the layer.
    pub(crate) fn answer(&self, answer: LauncherAnswer) -> bool {
        self.answer_with_fds(answer, &[])
    }

    /// Sends the reply with descriptors. Returns true if the daemon is still connected.
    pub(crate) fn answer_with_fds(&self, answer: LauncherAnswer, fds: &[BorrowedFd<'_>]) -> bool {
        let reply = LauncherReply { sequence: self.sequence, answer: Some(answer) };
        self.connection.upgrade().is_some_and(|daemon| daemon.send(&reply.encode_to_vec(), fds).is_ok())
    }
}

struct WaitingWork {
    work: LayerWork,
    client: Option<ReplyDestination>,
}

struct RunningWork {
    layer: Option<DiffId>,
    /// Layers below `layer` in its image.
    parents: Vec<DiffId>,
    /// Names of the directory trees that the process measures.
    measured: Vec<String>,
    client: Option<ReplyDestination>,
    pid: i32,
    pidfd: OwnedFd,
    reported: Seqpacket,
}

/// Waiting requests and running processes.
pub(crate) struct Layers {
    store: Store,
    waiting: VecDeque<WaitingWork>,
    running: Vec<RunningWork>,
    /// True if a process may have left files behind.
    has_leftovers: bool,
    sizes: LayerSizes,
}

impl Layers {
    /// Opens the store in the state directory. A later process removes leftovers in the store. The processes that
    /// created these leftovers must have exited.
    pub(crate) fn open(host: &Host) -> Self {
        let store = Store::at(&host.layers());
        Self { store, waiting: VecDeque::new(), running: Vec::new(), has_leftovers: true, sizes: LayerSizes::default() }
    }

    /// Returns true if no process runs and no request waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Returns the pidfds of running processes. A pidfd becomes readable when its process exits.
    pub(crate) fn pidfds(&self) -> impl Iterator<Item = &OwnedFd> {
        self.running.iter().map(|running| &running.pidfd)
    }

    /// Returns the pids of running processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.running.iter().map(|running| running.pid)
    }

    /// Unpacks a layer, unless the store already has it. Returns `None` if the reply is sent later.
    pub(crate) fn unpack(
        &mut self,
        request: &UnpackLayer,
        blob: Option<OwnedFd>,
        client: ReplyDestination,
    ) -> Result<Option<LauncherAnswer>, Refused> {
        let invalid = |why: String| Refused::new(Reason::Invalid, why);
        let diff_id: DiffId = request.diff_id.parse().map_err(|error| invalid(format!("diff_id: {error}")))?;
        if request.parents.len() >= LAYERS_MAX {
            return Err(invalid(format!(
                "parents: {} layers; at most {} are allowed",
                request.parents.len(),
                LAYERS_MAX - 1
            )));
        }
        let parents: Option<Vec<DiffId>> =
            request.parents.iter().map(|bytes| Some(DiffId::from_bytes(bytes.as_slice().try_into().ok()?))).collect();
        let parents = parents.ok_or_else(|| invalid("parents: each must be a digest of 32 bytes".into()))?;
        if self.store.has(&diff_id, &parents) {
            return Ok(Some(self.unpacked_reply(&diff_id, &parents)));
        }
        let Some(blob) = blob else {
            return Err(Refused::new(Reason::NotFound, format!("the layer {diff_id} is not unpacked")));
        };
        let compression = request.media_type.parse().map_err(|error| refused(&error))?;
        let work =
            LayerWork::Unpack { diff_id, compression, parents, bytes_max: request.bytes_max, blob: File::from(blob) };
        self.enqueue(work, Some(client)).map(|()| None)
    }

    /// Removes a layer from the store, if no container uses it. Returns `None` if the reply is sent after the removal.
    pub(crate) fn remove(
        &mut self,
        host: &Host,
        request: &RemoveLayer,
        client: ReplyDestination,
    ) -> Result<Option<LauncherAnswer>, Refused> {
        let layer: DiffId =
            request.diff_id.parse().map_err(|error| Refused::new(Reason::Invalid, format!("diff_id: {error}")))?;
        if self.waiting.len() >= WAITING_MAX {
            return Err(too_many());
        }
        if let Some(id) = user_of(host, &request.diff_id)
            .map_err(|error| failed("cannot list the containers that use the layer", &error))?
        {
            return Err(Refused::new(Reason::Busy, format!("the layer {layer} is in use by container {id}")));
        }
        self.sizes.remove(&layer);
        let taken =
            self.store.take_out(&layer).map_err(|error| failed("cannot remove the layer from the store", &error))?;
        if taken.is_empty() {
            return Err(Refused::new(Reason::NotFound, format!("the layer {layer} is not unpacked")));
        }
        self.enqueue(LayerWork::Clear(taken), Some(client)).map(|()| None)
    }

    /// Measures all layers. Returns `None` if the reply is sent later.
    pub(crate) fn measure(&mut self, client: ReplyDestination) -> Result<Option<LauncherAnswer>, Refused> {
        let trees = self.store.trees().map_err(|error| failed("cannot list the stored layers", &error))?;
        match self.sizes.sum(trees) {
            Ok(sum) => Ok(Some(LauncherAnswer::LayersMeasured(sum))),
            Err(missing) => self.enqueue(LayerWork::Measure(missing), Some(client)).map(|()| None),
        }
    }

    /// Handles the exit of a measuring process: stores the sizes, and starts the next measurement or replies.
    fn measured(&mut self, one: RunningWork) {
        let Some(client) = one.client.as_ref().map(ReplyDestination::again) else { return };
        let answer = match one.take_sizes() {
            Ok(report) => {
                self.sizes.extend(one.measured, report);
                self.measure(client.again())
            }
            Err(refused) => Err(refused),
        };
        match answer {
            Ok(None) => {}
            Ok(Some(answer)) => drop(client.answer(answer)),
            Err(refused) => drop(client.answer(LauncherAnswer::Refused(refused))),
        }
    }

    /// Returns the reply for a layer that is in the store, with the warning about omitted entries of its archive, if
    /// there is one.
    fn unpacked_reply(&self, layer: &DiffId, parents: &[DiffId]) -> LauncherAnswer {
        match self.store.warning(layer, parents) {
            Some(warning) => LauncherAnswer::Unpacked(Unpacked { warning }),
            None => LauncherAnswer::Done(Done {}),
        }
    }

    fn enqueue(&mut self, work: LayerWork, client: Option<ReplyDestination>) -> Result<(), Refused> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(too_many());
        }
        self.waiting.push_back(WaitingWork { work, client });
        Ok(())
    }

    /// Reaps processes that have exited, and replies to their requests.
    pub(crate) fn reap(&mut self) {
        let (ended, running) = std::mem::take(&mut self.running).into_iter().partition(|one| is_readable(&one.pidfd));
        self.running = running;
        let ended: Vec<RunningWork> = ended;
        for one in ended {
            if !one.measured.is_empty() {
                self.measured(one);
                continue;
            }
            let answer = one.take();
            if let Err((refused, in_order)) = &answer {
                self.has_leftovers |= !in_order;
                match &one.layer {
                    Some(layer) => {
                        log::line(Level::Warning, "", format_args!("layer {layer}: {}", refused.message));
                    }
                    None => log::line(Level::Warning, "", format_args!("removal of layers: {}", refused.message)),
                }
            }
            if let Some(client) = one.client {
                client.answer(match (answer, one.layer) {
                    (Err((refused, _)), _) => LauncherAnswer::Refused(refused),
                    (Ok(()), Some(layer)) => self.unpacked_reply(&layer, &one.parents),
                    (Ok(()), None) => LauncherAnswer::Done(Done {}),
                });
            }
        }
    }

    /// Returns the next request to start, if there is capacity.
    fn next(&mut self) -> Option<WaitingWork> {
        if self.running.len() >= RUNNING_MAX {
            return None;
        }
        // No process is running, so a removed directory without a waiting request is a leftover.
        if self.has_leftovers && self.running.is_empty() {
            self.has_leftovers = false;
            let queued = |name: &String| {
                self.waiting
                    .iter()
                    .any(|waiting| matches!(&waiting.work, LayerWork::Clear(names) if names.contains(name)))
            };
            match self.store.left_over() {
                Ok(names) => {
                    let names: Vec<_> = names.into_iter().filter(|name| !queued(name)).collect();
                    if !names.is_empty() {
                        return Some(WaitingWork { work: LayerWork::Clear(names), client: None });
                    }
                }
                Err(error) => log::line(Level::Error, "", format_args!("layer store: {}", plain(&error))),
            }
        }
        let busy = |work: &LayerWork| {
            work.layer().is_some_and(|layer| self.running.iter().any(|running| running.layer == Some(layer)))
        };
        let index = self.waiting.iter().position(|waiting| !busy(&waiting.work))?;
        self.waiting.remove(index)
    }

    /// Starts waiting requests. `abandon_all` is called in each forked process, to close the launcher's resources.
    pub(crate) fn advance(server: &mut impl HasLayers) {
        while let Some(WaitingWork { work, client }) = server.layers().next() {
            // Another request may have unpacked the same layer in the meantime.
            if let LayerWork::Unpack { diff_id, parents, .. } = &work
                && server.layers().store.has(diff_id, parents)
            {
                let there = server.layers().unpacked_reply(diff_id, parents);
                client.iter().for_each(|client| {
                    client.answer(there.clone());
                });
                continue;
            }
            match Self::start(server, work) {
                Ok(running) => server.layers().running.push(RunningWork { client, ..running }),
                Err(error) => {
                    let answer = LauncherAnswer::Refused(failed("cannot start the layer worker", &error));
                    client.iter().for_each(|client| {
                        client.answer(answer.clone());
                    });
                }
            }
        }
    }

    fn start(server: &mut impl HasLayers, work: LayerWork) -> io::Result<RunningWork> {
        let layer = work.layer();
        let parents = match &work {
            LayerWork::Unpack { parents, .. } => parents.clone(),
            LayerWork::Clear(_) | LayerWork::Measure(_) => Vec::new(),
        };
        let measured = match &work {
            LayerWork::Measure(trees) => trees.clone(),
            LayerWork::Unpack { .. } | LayerWork::Clear(_) => Vec::new(),
        };
        let (reported, theirs) = Seqpacket::pair()?;
        reported.set_nonblocking(true);
        let parent = std::process::id();
        let room = process::room_for_one(reported.as_fd())?;
        let pid = match process::fork()? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                drop((reported, room));
                let (store, devices) = (server.layers().store.clone(), server.abandon_all());
                process::exit_now(worker::run(&store, work, parent, devices, &theirs))
            }
        };
        drop(room);
        Ok(RunningWork { layer, parents, measured, client: None, pid, pidfd: process::pidfd(pid)?, reported })
    }

    /// Kills the running processes. Called when the launcher exits. The next launcher removes leftover files.
    pub(crate) fn kill_workers(&mut self) {
        self.waiting.clear();
        for one in self.running.drain(..) {
            let _ = process::pidfd_signal(one.pidfd.as_fd(), libc::SIGKILL);
            let _ = process::wait_for(one.pid);
        }
    }

    /// Drops all requests and processes in a forked child, because they belong to the launcher.
    pub(crate) fn abandon(&mut self) {
        self.waiting.clear();
        self.running.clear();
    }
}

/// Owner of [`Layers`]. The launcher's server implements this trait.
pub(crate) trait HasLayers {
    /// Returns the requests and the layer workers.
    fn layers(&mut self) -> &mut Layers;
    /// Closes the launcher's resources in a forked child. Returns true if layers may contain device nodes.
    fn abandon_all(&mut self) -> bool;
}

impl LayerWork {
    fn layer(&self) -> Option<DiffId> {
        match self {
            Self::Unpack { diff_id, .. } => Some(*diff_id),
            Self::Clear(_) | Self::Measure(_) => None,
        }
    }
}

impl RunningWork {
    /// Returns the sizes that the process has reported.
    fn take_sizes(&self) -> Result<SizeReport, Refused> {
        let ended = process::wait_for(self.pid).map_err(|error| failed("cannot wait for the layer worker", &error))?;
        let mut buffer = vec![0; ANSWER_MAX];
        if let (ChildExit::Code(0), Ok(Some((length, _)))) = (ended, self.reported.recv(&mut buffer))
            && let Ok(report) = SizeReport::decode(&buffer[..length])
        {
            return Ok(report);
        }
        Err(Refused::new(Reason::Internal, format!("the layer worker exited with {ended} while measuring layers")))
    }

    /// Returns the result of the process. The error contains a refusal, and true if the process itself reported the
    /// failure, after removing its files.
    fn take(&self) -> Result<(), (Refused, bool)> {
        let ended = process::wait_for(self.pid);
        let mut buffer = vec![0; ANSWER_MAX];
        if let Ok(Some((length, _))) = self.reported.recv(&mut buffer)
            && let Ok(refused) = Refused::decode(&buffer[..length])
        {
            return Err((refused, true));
        }
        match ended {
            Ok(ChildExit::Code(0)) => Ok(()),
            Ok(ended) => Err((Refused::new(Reason::Internal, format!("the layer worker exited with {ended}")), false)),
            Err(error) => Err((failed("cannot wait for the layer worker", &error), false)),
        }
    }
}

fn too_many() -> Refused {
    Refused::new(
        Reason::Busy,
        format!("too many layers are waiting to be unpacked or removed (at most {WAITING_MAX}); try again"),
    )
}

/// Returns the id of a container that uses the layer and has not been completed.
fn user_of(host: &Host, layer: &str) -> io::Result<Option<String>> {
    let has = |plan: &Plan| plan.images().any(|(_, layers)| layers.iter().any(|one| one == layer));
    let user = sweep::ids(&host.containers_run())?
        .into_iter()
        .find(|id| Dirs::new(host, id).read_record().is_some_and(|record| has(&record.plan)));
    Ok(user.map(|id| id.to_string()))
}

/// Returns the refusal for a layer that was not unpacked.
fn refused(error: &UnpackError) -> Refused {
    let reason = match error {
        UnpackError::Host { about, error } => return failed(about, error),
        // The policy forbids device nodes, but the layer is valid.
        UnpackError::Device { .. } => Reason::Denied,
        _ => Reason::Precondition,
    };
    Refused::new(reason, error.to_string())
}

/// Returns the limits for a layer, including the client's limit on bytes.
fn limits(bytes_max: u64) -> Limits {
    Limits::default().within(bytes_max)
}
