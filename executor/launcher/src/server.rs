//! Runs the launcher's event loop: handles requests from the daemon, exits of shims, and signals.
//!
//! The loop has one thread and blocks only in `poll`. A daemon that does not read is disconnected, a shim is watched by
//! its pidfd, and a request that must wait for a shim is deferred. A shim whose event loop stops is killed.

mod configuration;
mod execs;
mod idle;
mod network_tasks;
mod ranges;
mod requests;
mod shims;
mod signers;
mod warm_pool;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::idmap::Pool;
use executor_core::shortage;
use executor_layers::Store;
use executor_secrets::TagKey;
use executor_sys::events::Events;
use executor_sys::heap;
use executor_sys::process::{self, SignalEvents};
use executor_sys::ready::readable_by;
use executor_sys::seqpacket::{Seqpacket, SeqpacketListener};
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt};
use rustix::fs::{Mode, OFlags};

use crate::cgroup::Hierarchies;
use crate::cli::Args;
use crate::dirs::Dirs;
use crate::errors::{at, is_full, plain};
use crate::files::{self, ensure_dir, make_dir, remove_tree};
use crate::host::Host;
use crate::ids::Claims;
use crate::layers::{HasLayers, Layers};
use crate::log::{self, Level};
use crate::memfd_exec;
use crate::seccomp::Filter;
use crate::shim_handle::ShimHandle;
use crate::sweep::{self, Swept, Unwiped};
use idle::Idle;

/// Maximum number of connected daemons. Usually there is one, or two while a daemon replaces another.
const DAEMONS_MAX: usize = 4;

/// Time limit of one attempt to lock a run directory. Another launcher may briefly hold the lock to check whether the
/// directory is in use.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// Time limit for the exit of the previous launcher. When the limit has passed, this launcher fails.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(20);

/// Interval between attempts to wipe files on which a process has a lease.
const WIPE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit for the exit of a killed shim or a stopped warm container.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for shims to complete their cleanup when the launcher exits.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);

/// A killed shim that has not exited.
struct StuckShim {
    pid: i32,
    /// True if the shim is a child of this process.
    child: bool,
    pidfd: OwnedFd,
}

struct Server {
    host: Host,
    args: Args,
    filter: Arc<Filter>,
    socket_path: PathBuf,
    listener: Option<SeqpacketListener>,
    lock: Option<File>,
    signals: Option<SignalEvents>,
    daemons: Vec<Rc<Seqpacket>>,
    shims: HashMap<ContainerId, ShimHandle>,
    layers: Layers,
    /// Pool of id ranges for user namespaces.
    pool: Pool,
    /// Blocks of the pool that this launcher has claimed.
    claims: Claims,
    /// Id ranges of containers that have no shim and whose cleanup is incomplete.
    ranges_left: BTreeSet<u32>,
    execs: Vec<execs::Supervisor>,
    warm_pool: warm_pool::WarmPool,
    /// Processes that sign certificates.
    signers: Vec<signers::Signer>,
    /// Tasks on networks: lists, checks, garbage collection and repeated detachments.
    network_tasks: network_tasks::NetworkTasks,
    /// Requests that wait until a shim listens or exits.
    deferred: Vec<requests::Deferred>,
    /// Killed shims that have not exited because they are blocked in the kernel.
    stuck: Vec<StuckShim>,
    /// Secret files of exited containers that are not wiped yet.
    unwiped: Vec<Unwiped>,
    tag_key: Option<TagKey>,
    /// Reserved descriptor. If no other descriptor is free, the reserved descriptor is closed so that a connection can
    /// be accepted.
    spare: Option<OwnedFd>,
    /// True if untracked children may have exited.
    unreaped: bool,
    /// True after the daemon requested the launcher's exit.
    shutdown: bool,
}

/// Events of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A daemon connects.
    Connection,
    /// A signal arrived: SIGCHLD, or a signal that terminates this process.
    Signal,
    /// A daemon sent a request or disconnected.
    Daemon,
    /// The shim with this pid has exited.
    ShimEnded(i32),
    /// The shim with this pid sent a message or closed its socket.
    Report(i32),
    /// A layer worker has exited.
    Layer,
    /// A supervisor of an exec process sent a message or exited.
    Exec,
    /// A warm container is ready or has exited.
    WarmContainer,
    /// A signing process has exited.
    Signer,
    /// A network worker has exited.
    NetworkTask,
}

/// Serves daemons until the launcher must exit.
pub(crate) fn serve(host: Host, filter: Arc<Filter>, pool: Pool, args: Args) -> io::Result<()> {
    let signals = SignalEvents::take(&[Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])?;
    make_run_dirs(&host)?;
    make_state_dirs(&host).or_else(|error| {
        if !is_full(&error) {
            return Err(error);
        }
        log::line(Level::Error, "", format_args!("{error}: no container can be created until disk space is available"));
        Ok(())
    })?;
    let socket_path = host.run_dir.join("launcher.sock");
    let lock = lock(&host.run_dir, &socket_path)?;
    rustix::thread::set_name(memfd_exec::SERVING)?;
    host.hierarchies.make_parent(&host.cgroup_parent)?;
    if let Some(Err(error)) = host.cpusets.as_ref().map(|cpusets| cpusets.make_parent(&host.cgroup_parent)) {
        log::line(Level::Warning, "", format_args!("containers cannot be limited to CPUs: cpuset: {error}"));
    }
    let Swept { shims, unwiped } = sweep::sweep(&host)?;
    Hierarchies::sweep_made_parents(&host.parents())?;
    crate::warm::sweep(&host, || {
        shims.iter().filter_map(|shim| Some(Dirs::new(&host, &shim.id).read_record()?.cgroup)).collect()
    })?;
    let layers = Layers::open(&host); // after the sweep, which killed earlier workers
    let ranges_left = sweep::ranges_left(&host, &shims)?;
    let used = shims
        .iter()
        .flat_map(|shim| [shim.id_range, shim.pod_range])
        .flatten()
        .chain(ranges_left.iter().copied())
        .collect();
    let claims = Claims::open(&host.run_dir, &pool, &used)?;
    let listener = listen(&host, &socket_path)?;
    let shims: HashMap<_, _> = shims.into_iter().map(|shim| (shim.id.clone(), shim)).collect();
    let what = format!(
        "serves {} (cgroups {}, noswap {}, ids {pool}, {} shims found)",
        socket_path.display(),
        host.hierarchies.name(),
        host.noswap,
        shims.len()
    );
    log::line(Level::Info, "", what);
    let (exit_when_idle, ephemeral) = (args.exit_when_idle, args.ephemeral);
    let mut server = Server {
        host,
        args,
        filter,
        socket_path,
        listener: Some(listener),
        lock: Some(lock),
        signals: Some(signals),
        daemons: Vec::new(),
        shims,
        layers,
        pool,
        claims,
        ranges_left,
        execs: Vec::new(),
        warm_pool: warm_pool::WarmPool::default(),
        signers: Vec::new(),
        network_tasks: network_tasks::NetworkTasks::default(),
        deferred: Vec::new(),
        stuck: Vec::new(),
        unwiped,
        tag_key: None,
        spare: spare(),
        unreaped: true, // the sweep may leave exited children
        shutdown: false,
    };
    detect_processor_features();
    // Every shim inherits the remaining memory as shared pages, until the shim writes to them.
    heap::trim();
    heap::fill_holes();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    if crate::network::has_left_attached(&server.host) {
        server.network_tasks.detach_later();
    }
    server.queue_collection();
    let result = server.run(exit_when_idle);
    server.clean_up(ephemeral);
    result
}

impl Server {
    fn run(&mut self, exit_when_idle: bool) -> io::Result<()> {
        let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        let mut watched_at = Instant::now();
        let mut idle = Idle::new(watched_at);
        loop {
            let now = Instant::now();
            let at_rest = self.shims.is_empty() && self.unwiped.is_empty();
            let works = !self.layers.is_idle() || !self.network_tasks.is_idle();
            let nothing = exit_when_idle && self.daemons.is_empty() && at_rest && !works;
            let idle_until = idle.check(nothing, now);
            if self.shutdown && at_rest {
                return Ok(());
            }
            if idle_until.is_some_and(|until| now >= until) && self.stop_listening()? {
                return Ok(());
            }
            let due = [
                watchdog.map(|period| now + period),
                idle_until,
                (!self.unwiped.is_empty()).then_some(now + WIPE_RETRY_INTERVAL),
                self.watch_period().map(|period| watched_at + period),
                self.deferred.iter().map(|deferred| deferred.until).min(),
                self.network_tasks.due(),
                self.shims.values().filter_map(|shim| shim.offer.as_ref()).map(|offer| offer.until).min(),
            ];
            let events = self.wait(due.into_iter().flatten().chain(self.warm_pool_due()))?;
            if watchdog.is_some() {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            if events.contains(&Event::Signal) && self.exit_requested() {
                return Ok(()); // the shims keep running, and the next launcher finds them
            }
            self.handle_events(&events);
            self.kill_silent_warm();
            if self.watch_period().is_some_and(|period| watched_at.elapsed() >= period) {
                watched_at = Instant::now();
                self.watch_shims();
            }
            self.unwiped.retain(Unwiped::is_still_leased);
            self.serve_deferred();
            if events.contains(&Event::Daemon) {
                self.serve_daemons();
            }
            Layers::advance(self);
            self.advance_network_tasks();
            self.fill_warm_pool();
            if self.unreaped {
                self.unreaped = false;
                self.reap_orphans();
            }
        }
    }

    /// Handles connections, reports and exits.
    fn handle_events(&mut self, events: &[Event]) {
        let has = |event: Event| events.contains(&event);
        if has(Event::Connection) {
            self.accept();
        }
        let kind = self.volume_kind();
        for shim in self.shims.values_mut().filter(|shim| has(Event::Report(shim.pid))) {
            shim.recv(kind);
        }
        if has(Event::Exec) {
            self.reap_execs();
        }
        if has(Event::WarmContainer) {
            self.check_warm_pool();
        }
        if has(Event::Signer) {
            self.reap_signers();
        }
        self.reap_shims(|shim| has(Event::ShimEnded(shim.pid)));
        if has(Event::Layer) {
            self.layers.reap();
        }
        if has(Event::NetworkTask) {
            self.network_tasks.reap(&self.host);
        }
        self.unreaped |= [Event::Signal, Event::Exec, Event::Layer, Event::NetworkTask].into_iter().any(has);
    }

    /// Waits for an event or the next deadline.
    fn wait(&self, due: impl Iterator<Item = Instant>) -> io::Result<Vec<Event>> {
        let mut events = Events::default();
        self.listener.iter().for_each(|listener| events.read(listener.as_fd(), Event::Connection));
        self.signals.iter().for_each(|signals| events.read(signals.as_fd(), Event::Signal));
        self.daemons.iter().for_each(|daemon| events.read(daemon.as_fd(), Event::Daemon));
        for shim in self.shims.values() {
            events.read(shim.pidfd.as_fd(), Event::ShimEnded(shim.pid));
            shim.lifeline.iter().for_each(|lifeline| events.read(lifeline.as_fd(), Event::Report(shim.pid)));
        }
        self.layers.pidfds().for_each(|pidfd| events.read(pidfd.as_fd(), Event::Layer));
        self.execs.iter().flat_map(execs::Supervisor::fds).for_each(|fd| events.read(fd, Event::Exec));
        self.warm_pool.fds().for_each(|fd| events.read(fd, Event::WarmContainer));
        self.signers.iter().for_each(|signer| events.read(signer.pidfd.as_fd(), Event::Signer));
        self.network_tasks.pidfds().for_each(|pidfd| events.read(pidfd, Event::NetworkTask));
        events.due(due);
        events.wait()
    }

    /// Reads pending signals. Returns true if one of them requests this process's exit.
    fn exit_requested(&self) -> bool {
        let mut asked = false;
        while let Some(Ok(Some(signal))) = self.signals.as_ref().map(SignalEvents::next) {
            asked |= signal == libc::SIGTERM || signal == libc::SIGINT;
        }
        asked
    }

    /// Stops listening. If a client connected at the last moment, listens again and returns false, because the client
    /// will not start another launcher.
    fn stop_listening(&mut self) -> io::Result<bool> {
        self.listener.iter().try_for_each(SeqpacketListener::refuse)?;
        self.accept();
        if self.daemons.is_empty() {
            return Ok(true);
        }
        self.listener = Some(listen(&self.host, &self.socket_path)?);
        Ok(false)
    }

    fn accept(&mut self) {
        loop {
            let connection = match self.listener.as_ref().map(SeqpacketListener::accept) {
                Some(Ok(connection)) => connection,
                // A pending connection that cannot be accepted would be reported again and again. Therefore, accept it
                // with the spare descriptor and close it.
                Some(Err(error)) if shortage::find(&error).is_some() && self.spare.take().is_some() => {
                    let ended = self.listener.as_ref().is_some_and(|listener| listener.accept().is_ok());
                    self.spare = spare();
                    log::line(Level::Error, "", format_args!("a connection was not accepted: {}", plain(&error)));
                    if ended { continue } else { return }
                }
                Some(Err(_)) | None => {
                    self.spare = self.spare.take().or_else(spare);
                    return;
                }
            };
            let uid = getsockopt(&connection, sockopt::PeerCredentials).map(|peer| peer.uid());
            let served = uid.is_ok_and(|uid| uid == 0 || uid == self.host.daemon_uid);
            if !served {
                let uid = uid.map_or_else(|_| "unknown".to_owned(), |uid| uid.to_string());
                let allowed = self.host.daemon_uid;
                let why = format_args!("refused a connection of uid {uid}: only root and uid {allowed} may connect");
                log::line(Level::Warning, "", why);
                continue;
            }
            if self.daemons.len() >= DAEMONS_MAX {
                let why = format_args!("refused a connection: the maximum of {DAEMONS_MAX} connections is open");
                log::line(Level::Warning, "", why);
                continue;
            }
            connection.set_nonblocking(true);
            self.daemons.push(Rc::new(connection));
        }
    }

    /// Reaps orphans of exited shims. Such orphans become children of this process, which is a subreaper. Shims and
    /// other tracked children are reaped elsewhere.
    fn reap_orphans(&self) {
        let children: BTreeSet<i32> = self.children().collect();
        while let Ok(Some((pid, _))) = process::reap_one(|pid| children.contains(&pid)) {
            log::line(Level::Info, "", format_args!("orphan {pid} was reaped"));
        }
    }

    /// Returns the pids of children that are tracked individually.
    fn children(&self) -> impl Iterator<Item = i32> + '_ {
        let execs = self.execs.iter().map(|exec| exec.pid);
        let stuck = self.stuck.iter().map(|stuck| stuck.pid);
        self.shims
            .values()
            .map(|shim| shim.pid)
            .chain(stuck)
            .chain(self.layers.pids())
            .chain(execs)
            .chain(self.warm_pool.pids())
            .chain(self.signers.iter().map(|signer| signer.pid))
            .chain(self.network_tasks.pids())
    }

    /// Stops the launcher's own processes and, if no container remains, removes unused networks, cgroups and id claims.
    /// If `ephemeral` is true, also removes the state and run directories.
    fn clean_up(&mut self, ephemeral: bool) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let _ = fs::remove_file(&self.socket_path);
        self.layers.kill_workers();
        self.kill_signers();
        self.kill_network_tasks();
        while self.stop_one_warm() {}
        self.recv_from_shims();
        // The containers of these shims have exited, so the shims complete their cleanup soon.
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        let done = self.shims.values().filter(|shim| shim.done);
        let done: Vec<ContainerId> = done
            .filter(|shim| readable_by(&shim.pidfd, deadline).is_ok_and(|ended| ended))
            .map(|shim| shim.id.clone())
            .collect();
        for id in done {
            self.finish_shim(&id);
        }
        if !self.shims.is_empty() {
            log::line(Level::Info, "", format_args!("exiting; {} containers keep running", self.shims.len()));
            return;
        }
        crate::network::remove_unused(&self.host);
        self.host.hierarchies.remove_parent(&self.host.cgroup_parent);
        if let Some(cpusets) = &self.host.cpusets {
            cpusets.remove_parent(&self.host.cgroup_parent);
        }
        if self.ranges_left.is_empty() {
            self.claims.release_all();
        }
        if ephemeral {
            // A directory cannot be removed while this process has a mount on it.
            if let Err(error) = self.host.hierarchies.unmount_view(&self.host.cgroup_view()) {
                log::line(Level::Error, "", format_args!("the view of cgroups was not detached: {error}"));
            }
            for dir in [&self.host.state_dir, &self.host.run_dir] {
                if let Err(error) = remove_tree(dir) {
                    log::line(Level::Error, "", format_args!("{} was not removed: {error}", dir.display()));
                }
            }
        }
    }

    /// In a forked child, closes all resources of the launcher and frees their memory. Each collection is replaced,
    /// because a cleared collection would keep its memory in every shim.
    fn abandon(&mut self) {
        self.listener = None;
        self.lock = None;
        self.signals = None;
        self.daemons = Vec::new();
        self.shims = HashMap::new();
        self.layers.abandon();
        self.execs = Vec::new();
        self.warm_pool = warm_pool::WarmPool::default();
        self.signers = Vec::new();
        self.network_tasks = network_tasks::NetworkTasks::default();
        self.deferred = Vec::new();
        self.stuck = Vec::new();
        self.unwiped = Vec::new();
        self.spare = None;
        self.tag_key = None;
    }
}

impl HasLayers for Server {
    fn layers(&mut self) -> &mut Layers {
        &mut self.layers
    }

    fn abandon_all(&mut self) -> bool {
        self.abandon();
        self.host.image_devices
    }
}

/// Lets the standard library detect the processor's features, so that shims and inits inherit the result. On a virtual
/// machine, each of the 20 CPUID instructions causes an exit to the hypervisor.
fn detect_processor_features() {
    #[cfg(target_arch = "x86_64")]
    let _ = std::arch::is_x86_feature_detected!("avx2");
}

fn spare() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Creates a directory of containers that the daemon's group may read.
fn make_containers(host: &Host, dir: &Path) -> io::Result<()> {
    match make_dir(dir, 0o750, Some(host.daemon_gid)) {
        // The daemon's user may have changed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::os::unix::fs::lchown(dir, Some(0), Some(host.daemon_gid))
        }
        result => result,
    }
}

/// Creates the missing parts of the state directory.
fn make_state_dirs(host: &Host) -> io::Result<()> {
    fs::create_dir_all(&host.state_dir).map_err(|error| at(&host.state_dir, &error))?;
    make_containers(host, &host.containers_state())?;
    ensure_dir(&host.warm_state(), 0o700)?;
    [host.containers_state(), host.warm_state()].iter().try_for_each(|dir| files::spread_subdirectories(dir))?;
    crate::network::make_dirs(host)?;
    Store::create(&host.layers()).map(drop)
}

fn make_run_dirs(host: &Host) -> io::Result<()> {
    fs::create_dir_all(&host.run_dir).map_err(|error| at(&host.run_dir, &error))?;
    make_containers(host, &host.containers_run())?;
    let stage = host.stage();
    ensure_dir(&stage, 0o711)?;
    crate::ids::reachable(&stage)?;
    let view = host.cgroup_view();
    ensure_dir(&view, 0o711)?;
    host.hierarchies.make_view_points(&view)?;
    ensure_dir(&host.parents(), 0o700)?;
    crate::warm::make_dirs(host)?;
    crate::runtime::make_source(host).map_err(|error| at(&host.run_dir, &error))
}

/// Locks the run directory for this launcher. A previous launcher keeps the lock while it stops its warm containers.
fn lock(run_dir: &Path, socket: &Path) -> io::Result<File> {
    let path = run_dir.join("launcher.lock");
    let file =
        File::options().create(true).truncate(false).write(true).open(&path).map_err(|error| at(&path, &error))?;
    let deadline = Instant::now() + PREDECESSOR_TIMEOUT;
    // Another launcher may hold the lock for a moment, to check whether this launcher is running.
    while let Err(error) = files::lock(&file, LOCK_TIMEOUT) {
        let ends = Seqpacket::connect_to_living(socket).is_err();
        if !ends || Instant::now() >= deadline {
            let dir = run_dir.display();
            return Err(io::Error::other(if ends {
                format!("another executor-launcher uses {dir} and does not exit: {error}")
            } else {
                format!("another executor-launcher already serves {dir}")
            }));
        }
    }
    Ok(file)
}

fn listen(host: &Host, path: &Path) -> io::Result<SeqpacketListener> {
    let _ = fs::remove_file(path); // stale, because this launcher holds the lock
    let listener = SeqpacketListener::bind(path).map_err(|error| at(path, &error))?;
    listener.set_nonblocking(true)?;
    std::os::unix::fs::lchown(path, None, Some(host.daemon_gid))?;
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o660))?;
    Ok(listener)
}
