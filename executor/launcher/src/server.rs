//! The launcher's loop: requests of the daemon, shims that end, signals.
//!
//! A single thread, a single `poll`, no other wait: a daemon that does not read is let go, a shim is watched by its
//! descriptor, and a request that has to wait for a shim is put off. A shim that does not turn its loop is killed.

mod execs;
mod ranges;
mod requests;
mod shells;
mod signers;

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
use executor_core::protocol::{LauncherAnswer, LauncherReply, ShimLost};
use executor_core::record::VolumeKind;
use executor_core::shortage;
use executor_layers::Store;
use executor_secrets::TagKey;
use executor_sys::events::Events;
use executor_sys::heap;
use executor_sys::process::{self, SignalEvents};
use executor_sys::ready::{is_readable, readable_by};
use executor_sys::seqpacket::{Seqpacket, SeqpacketListener};
use nix::sys::signal::Signal;
use nix::sys::socket::{getsockopt, sockopt};
use prost::Message;
use rustix::fs::{Mode, OFlags};

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
use crate::sweep::{self, Swept, Unwiped};
use crate::watched::{Killed, Shim};

/// Daemons at a time: one, and one that takes over.
const DAEMONS_MAX: usize = 4;
/// With `--exit-when-idle`: how long nothing must be there.
const IDLE: Duration = Duration::from_secs(2);
/// And how long a daemon has to connect at first.
const FIRST_DAEMON: Duration = Duration::from_secs(30);

/// Time that the lock of a run directory may be another launcher's that only looks.
const LOOKED_AT: Duration = Duration::from_millis(200);

/// Time between attempts to wipe files on which some process has a lease.
const WIPE_AGAIN: Duration = Duration::from_secs(1);

/// Number of looks at a shim within the time that it has.
const WATCHES: u32 = 6;
/// Time that a shim that was killed may take to end.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

/// Time that a launcher which is to end gives shims that remove what their containers left.
const LEAVING: Duration = Duration::from_secs(2);

/// A shim that was killed and has not ended.
struct Stuck {
    pid: i32,
    child: bool,
    pidfd: OwnedFd,
}

/// The launcher's state.
struct Server {
    host: Arc<Host>,
    filter: Arc<Filter>,
    socket_path: PathBuf,
    listener: Option<SeqpacketListener>,
    lock: Option<File>,
    signals: Option<SignalEvents>,
    daemons: Vec<Rc<Seqpacket>>,
    shims: HashMap<ContainerId, Shim>,
    layers: Layers,
    /// Ranges of ids for user namespaces.
    pool: Pool,
    /// The blocks of the pool that no other launcher has.
    claims: Claims,
    /// Those of containers that have no shim and could not be ended.
    ranges_left: BTreeSet<u32>,
    execs: Vec<execs::Supervisor>,
    /// Shells that wait for a launch.
    shells: shells::Shells,
    /// Processes that sign certificates.
    signers: Vec<signers::Signer>,
    /// Requests that wait for a shim.
    deferred: Vec<requests::Deferred>,
    /// Shims that were killed and do not end: the kernel holds them.
    stuck: Vec<Stuck>,
    /// Secret files of containers that have ended.
    unwiped: Vec<Unwiped>,
    tag_key: Option<TagKey>,
    /// A descriptor to give up where there is none left for a connection.
    spare: Option<OwnedFd>,
    /// Children that nobody waits for may have ended.
    unreaped: bool,
    /// Asked to end by the daemon.
    shutdown: bool,
}

/// Events of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A daemon connects.
    Connection,
    /// A signal came: a child has ended, or this process is to end.
    Signal,
    /// A daemon asks for something, or is gone.
    Daemon,
    /// The shim of this pid has ended.
    ShimEnded(i32),
    /// The shim of this pid tells something, or has closed its end.
    Report(i32),
    /// A process that unpacks or removes layers has ended.
    Layer,
    /// A supervisor of an executed process tells something, or has ended.
    Exec,
    /// A shell can be used, or has ended.
    Shell,
    /// A process that signs has ended.
    Signer,
}

/// Serves until asked to end.
pub(crate) fn serve(host: Arc<Host>, filter: Arc<Filter>, pool: Pool, args: &Args) -> io::Result<()> {
    let signals = SignalEvents::take(&[Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])?;
    make_run_dirs(&host)?;
    make_state_dirs(&host).or_else(|error| {
        if !is_full(&error) {
            return Err(error);
        }
        log::line(Level::Error, "", format_args!("{error}: no container can be made until there is room"));
        Ok(())
    })?;
    let lock = lock(&host.run_dir)?;
    rustix::thread::set_name(memfd_exec::SERVING)?;
    host.hierarchies.make_parent(&host.cgroup_parent)?;
    if let Some(Err(error)) = host.cpusets.as_ref().map(|cpusets| cpusets.make_parent(&host.cgroup_parent)) {
        log::line(Level::Warning, "", format_args!("containers cannot be limited to processors: cpuset: {error}"));
    }
    let Swept { shims, unwiped } = sweep::sweep(&host)?;
    crate::shells::sweep(&host, || {
        shims.iter().filter_map(|shim| Some(Dirs::of(&host, &shim.id).read_record()?.cgroup)).collect()
    })?;
    let layers = Layers::open(&host); // behind the sweep: it ended who was at work there
    let ranges_left = sweep::ranges_left(&host, &shims)?;
    let used = shims
        .iter()
        .flat_map(|shim| [shim.id_range, shim.pod_range])
        .flatten()
        .chain(ranges_left.iter().copied())
        .collect();
    let claims = Claims::open(&host.run_dir, &pool, &used)?;
    let socket_path = host.run_dir.join("launcher.sock");
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
    let mut server = Server {
        host,
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
        shells: shells::Shells::default(),
        signers: Vec::new(),
        deferred: Vec::new(),
        stuck: Vec::new(),
        unwiped,
        tag_key: None,
        spare: spare(),
        unreaped: true, // by the sweep
        shutdown: false,
    };
    // What is left is what every shim begins with, and shares with all others as long as it writes nothing there.
    heap::trim();
    heap::fill_holes();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let result = server.run(args.exit_when_idle);
    server.end(args.ephemeral);
    result
}

impl Server {
    fn run(&mut self, exit_when_idle: bool) -> io::Result<()> {
        let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / 2);
        let mut idle_at = Instant::now() + FIRST_DAEMON;
        let mut watched_at = Instant::now();
        loop {
            let now = Instant::now();
            let at_rest = self.shims.is_empty() && self.unwiped.is_empty();
            let idle = self.daemons.is_empty() && at_rest && self.layers.is_idle();
            if !idle {
                idle_at = now + IDLE;
            }
            if (self.shutdown && at_rest) || (exit_when_idle && now >= idle_at) {
                return Ok(());
            }
            let due = [
                watchdog.map(|period| now + period),
                (exit_when_idle && idle).then_some(idle_at),
                (!self.unwiped.is_empty()).then_some(now + WIPE_AGAIN),
                self.watch_period().map(|period| watched_at + period),
                self.deferred.iter().map(|deferred| deferred.until).min(),
            ];
            let events = self.wait(due.into_iter().flatten().chain(self.shells_due()))?;
            if watchdog.is_some() {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            if events.contains(&Event::Signal) && self.asked_to_end() {
                return Ok(()); // the shims live on, and the next launcher finds them
            }
            self.attend(&events);
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
            self.tend_shells();
            if self.unreaped {
                self.unreaped = false;
                self.reap_orphans();
            }
        }
    }

    /// Takes connections and reports, and what has ended.
    fn attend(&mut self, events: &[Event]) {
        let has = |event: Event| events.contains(&event);
        if has(Event::Connection) {
            self.accept();
        }
        let kind = self.volume_kind();
        for shim in self.shims.values_mut().filter(|shim| has(Event::Report(shim.pid))) {
            shim.hear(kind);
        }
        if has(Event::Exec) {
            self.look_after_execs();
        }
        if has(Event::Shell) {
            self.look_after_shells();
        }
        if has(Event::Signer) {
            self.look_after_signers();
        }
        self.look_after_shims(|shim| has(Event::ShimEnded(shim.pid)));
        if has(Event::Layer) {
            self.layers.look_after();
        }
        self.unreaped |= has(Event::Signal) || has(Event::Exec) || has(Event::Layer);
    }

    /// Waits until something happens, or is due.
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
        self.shells.fds().for_each(|fd| events.read(fd, Event::Shell));
        self.signers.iter().for_each(|signer| events.read(signer.pidfd.as_fd(), Event::Signer));
        events.due(due);
        events.wait()
    }

    /// Takes the signals that came. Returns whether one asks this process to end.
    fn asked_to_end(&self) -> bool {
        let mut asked = false;
        while let Some(Ok(Some(signal))) = self.signals.as_ref().map(SignalEvents::next) {
            asked |= signal == libc::SIGTERM || signal == libc::SIGINT;
        }
        asked
    }

    fn accept(&mut self) {
        loop {
            let connection = match self.listener.as_ref().map(SeqpacketListener::accept) {
                Some(Ok(connection)) => connection,
                // A connection that cannot be taken would be told again and again: it is taken with the spare, and ended.
                Some(Err(error)) if shortage::of(&error).is_some() && self.spare.take().is_some() => {
                    let ended = self.listener.as_ref().is_some_and(|listener| listener.accept().is_ok());
                    self.spare = spare();
                    log::line(Level::Error, "", format_args!("a connection was not taken: {}", plain(&error)));
                    if ended { continue } else { return }
                }
                Some(Err(_)) | None => {
                    self.spare = self.spare.take().or_else(spare);
                    return;
                }
            };
            let uid = getsockopt(&connection, sockopt::PeerCredentials).map(|peer| peer.uid());
            let served = uid.is_ok_and(|uid| uid == 0 || uid == self.host.daemon_uid);
            if !served || self.daemons.len() >= DAEMONS_MAX {
                log::line(Level::Warning, "", format_args!("a connection of uid {uid:?} was refused"));
                continue;
            }
            connection.set_nonblocking(true);
            self.daemons.push(Rc::new(connection));
        }
    }

    /// Takes what every shim has told.
    fn hear_shims(&mut self) {
        let kind = self.volume_kind();
        self.shims.values_mut().for_each(|shim| shim.hear(kind));
    }

    /// Takes what the shim of this container, if it has one, has told.
    fn hear_shim(&mut self, id: &ContainerId) -> Option<&mut Shim> {
        let kind = self.volume_kind();
        let shim = self.shims.get_mut(id)?;
        shim.hear(kind);
        Some(shim)
    }

    /// Returns the kind of file system that secret files are in on this host.
    fn volume_kind(&self) -> VolumeKind {
        if self.host.noswap { VolumeKind::TmpfsNoswap } else { VolumeKind::Ramfs }
    }

    /// Finishes the containers of shims that have ended.
    fn look_after_shims(&mut self, has_ended: impl Fn(&Shim) -> bool) {
        let ended: Vec<ContainerId> =
            self.shims.values().filter(|shim| has_ended(shim)).map(|shim| shim.id.clone()).collect();
        for id in &ended {
            self.shim_has_ended(id);
        }
        if !ended.is_empty()
            && let Err(error) = self.claims.give_back(&self.ranges(|_| true))
        {
            log::line(Level::Warning, "", format_args!("unused ids were not given back: {error}"));
        }
    }

    /// Takes a shim that has ended, and finishes its container if it did not.
    fn shim_has_ended(&mut self, id: &ContainerId) {
        // To finish a container can take a while, of each of several.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        self.hear_shim(id); // its last words may not have been heard yet
        let Some(shim) = self.shims.remove(id) else { return };
        self.unreaped = true;
        if !is_readable(&shim.pidfd) {
            self.stuck.push(Stuck { pid: shim.pid, child: shim.child, pidfd: shim.pidfd });
        } else if shim.child {
            let _ = process::wait_for(shim.pid);
        }
        if let Some(place) = &shim.shell {
            self.clear(place);
        }
        // One that died before it had a directory has left nothing but its inputs, and a daemon that waits.
        if shim.done && !self.host.containers_run().join(id.as_str()).exists() {
            // It recorded and removed everything itself, and wiped what it could: a file that the container's process made, and
            // on which somebody outside of it has a lease, is still there.
            let volume = shim.volume.map(|volume| Unwiped { id: id.clone(), volume });
            self.unwiped.extend(volume.filter(Unwiped::is_still_leased));
            return;
        }
        let living = self.children().collect();
        self.unwiped.extend(sweep::finish(
            &self.host,
            id,
            shim.volume,
            shim.inputs,
            shim.killed.map(|killed| killed.why),
            &living,
        ));
        if self.host.containers_run().join(id.as_str()).exists() {
            self.ranges_left.extend(shim.id_range.into_iter().chain(shim.pod_range)); // something of it is left: told in the log
        }
        let lost = LauncherAnswer::ShimLost(ShimLost { container_id: id.to_string(), created_at: shim.created_at.0 });
        let reply = LauncherReply { sequence: 0, answer: Some(lost) }.encode_to_vec();
        self.daemons.retain(|daemon| daemon.send(&reply, &[]).is_ok());
    }

    /// Returns the time between looks at shims; `None` while there is none, or they are not watched.
    fn watch_period(&self) -> Option<Duration> {
        let patience = self.host.watchdog.filter(|_| !self.shims.is_empty() || !self.stuck.is_empty())?;
        Some(patience / WATCHES)
    }

    /// Kills shims that do not turn their loop. What they leave is finished when they have ended; one that the kernel does
    /// not let end is not waited for: it comes no more to any step of its own.
    fn watch_shims(&mut self) {
        let Some(patience) = self.host.watchdog else { return };
        let mut given_up = Vec::new();
        for shim in self.shims.values_mut() {
            match &shim.killed {
                Some(killed) if killed.at.elapsed() >= DEATH_PATIENCE => given_up.push(shim.id.clone()),
                Some(_) => {}
                None => {
                    let why = shim.watch.as_mut().and_then(|watch| watch.look(patience, shim.lifeline.as_ref()));
                    if let Some(why) = why {
                        log::line(Level::Error, shim.id.as_str(), format_args!("its shim is killed: it {why}"));
                        let _ = process::pidfd_signal(shim.pidfd.as_fd(), libc::SIGKILL); // it may have ended just now
                        shim.killed = Some(Killed { at: Instant::now(), why });
                    }
                }
            }
        }
        for id in given_up {
            log::line(
                Level::Error,
                id.as_str(),
                "its shim was killed and does not exit: its container is ended without it",
            );
            self.shim_has_ended(&id);
        }
        self.stuck.retain(|stuck| {
            let ended = is_readable(&stuck.pidfd);
            if ended && stuck.child {
                let _ = process::wait_for(stuck.pid);
                self.unreaped = true;
            }
            !ended
        });
    }

    /// The end of a shim's container is told, and what is left of that is being removed. The daemon may have heard so before
    /// this process did.
    fn has_finished(&self, shim: &Shim) -> bool {
        shim.done || self.has_removed(shim)
    }

    /// A shim has removed the directory of its container, which comes last.
    fn has_removed(&self, shim: &Shim) -> bool {
        shim.listening && !self.host.containers_run().join(shim.id.as_str()).exists()
    }

    /// Processes of dead shims come to their sub-reaper; a shim itself is taken above.
    fn reap_orphans(&self) {
        let children: BTreeSet<i32> = self.children().collect();
        while let Ok(Some((pid, _))) = process::reap_one(|pid| children.contains(&pid)) {
            log::line(Level::Info, "", format_args!("orphan {pid} was reaped"));
        }
    }

    /// Returns the pids of children that are looked after one by one.
    fn children(&self) -> impl Iterator<Item = i32> + '_ {
        let execs = self.execs.iter().map(|exec| exec.pid);
        let stuck = self.stuck.iter().map(|stuck| stuck.pid);
        self.shims
            .values()
            .map(|shim| shim.pid)
            .chain(stuck)
            .chain(self.layers.pids())
            .chain(execs)
            .chain(self.shells.pids())
            .chain(self.signers.iter().map(|signer| signer.pid))
    }

    /// Leaves the host as it was.
    fn end(&mut self, ephemeral: bool) {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let _ = fs::remove_file(&self.socket_path);
        self.layers.end();
        self.end_signers();
        while self.end_one_shell() {}
        self.hear_shims();
        // Their containers have ended: what is left of them is gone in a moment.
        let deadline = Instant::now() + LEAVING;
        let done = self.shims.values().filter(|shim| shim.done);
        let done: Vec<ContainerId> = done
            .filter(|shim| readable_by(&shim.pidfd, deadline).is_ok_and(|ended| ended))
            .map(|shim| shim.id.clone())
            .collect();
        for id in done {
            self.shim_has_ended(&id);
        }
        if !self.shims.is_empty() {
            log::line(Level::Info, "", format_args!("ends; {} containers run on", self.shims.len()));
            return;
        }
        self.host.hierarchies.remove_parent(&self.host.cgroup_parent);
        if let Some(cpusets) = &self.host.cpusets {
            cpusets.remove_parent(&self.host.cgroup_parent);
        }
        if self.ranges_left.is_empty() {
            self.claims.end();
        }
        if ephemeral {
            for dir in [&self.host.state_dir, &self.host.run_dir] {
                if let Err(error) = remove_tree(dir) {
                    log::line(Level::Error, "", format_args!("{} was not removed: {error}", dir.display()));
                }
            }
        }
    }

    /// In a forked child: everything that belongs to the launcher is closed, and the memory for it given back. What is only
    /// emptied stays in every shim: a table for a thousand containers in each of a thousand.
    fn abandon(&mut self) {
        self.listener = None;
        self.lock = None;
        self.signals = None;
        self.daemons = Vec::new();
        self.shims = HashMap::new();
        self.layers.abandon();
        self.execs = Vec::new();
        self.shells = shells::Shells::default();
        self.signers = Vec::new();
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

fn spare() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// The directory of containers, which the daemon may read.
fn make_containers(host: &Host, dir: &Path) -> io::Result<()> {
    match make_dir(dir, 0o750, Some(host.daemon_gid)) {
        // Another daemon user than last time.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::os::unix::fs::lchown(dir, Some(0), Some(host.daemon_gid))
        }
        result => result,
    }
}

/// Makes what is missing of the state directory.
fn make_state_dirs(host: &Host) -> io::Result<()> {
    fs::create_dir_all(&host.state_dir).map_err(|error| at(&host.state_dir, &error))?;
    make_containers(host, &host.containers_state())?;
    ensure_dir(&host.shells_state(), 0o700)?;
    crate::network::make_dirs(host)?;
    Store::create(&host.layers()).map(drop)
}

fn make_run_dirs(host: &Host) -> io::Result<()> {
    fs::create_dir_all(&host.run_dir).map_err(|error| at(&host.run_dir, &error))?;
    make_containers(host, &host.containers_run())?;
    let stage = host.stage();
    ensure_dir(&stage, 0o711)?;
    crate::ids::reachable(&stage)?;
    crate::shells::make_dirs(host)?;
    crate::runtime::make_source(host).map_err(|error| at(&host.run_dir, &error))
}

/// Locks the run directory for this launcher.
fn lock(run_dir: &Path) -> io::Result<File> {
    let path = run_dir.join("launcher.lock");
    let file =
        File::options().create(true).truncate(false).write(true).open(&path).map_err(|error| at(&path, &error))?;
    // Another launcher that looks whether this one lives has it for an instant.
    files::lock(&file, LOOKED_AT)
        .map_err(|_| io::Error::other(format!("another executor-launcher serves {} already", run_dir.display())))?;
    Ok(file)
}

fn listen(host: &Host, path: &Path) -> io::Result<SeqpacketListener> {
    let _ = fs::remove_file(path); // of a launcher that is gone: the lock is ours
    let listener = SeqpacketListener::bind(path).map_err(|error| at(path, &error))?;
    listener.set_nonblocking(true)?;
    std::os::unix::fs::lchown(path, None, Some(host.daemon_gid))?;
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o660))?;
    Ok(listener)
}
