//! Kills a process at each call that it makes while a container's certificate is renewed.
//!
//! Containers whose certificates have the shortest lifetime run on one daemon, so about every second a certificate is
//! due. A cycle is the next renewal. Tracing starts just before the certificate is due, and the process is killed at
//! its N-th call after that. Exited processes are restarted as by a supervisor. The container must then get the next
//! certificate and key without an error. Then the container is stopped and deleted, and a new container is started
//! under the same id.
//!
//! A thread constantly reads the certificates and keys of all containers. A certificate and its key must match at any
//! time. After a key is replaced, executord, the launcher, the signer and all files are searched for the key. After its
//! container's exit, the shims are searched too; before that, a shim has old values to mask them in the output. The
//! search is repeated in each later cycle. If a shim is killed, its container is lost, and its keys are gone too.
//!
//! Limits: a key that never reached a file, or that was replaced before the next reading, is not searched for.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use executor_core::record::ContainerRecord;
use executor_proto::v1::{Container, InstanceIdentity, RunRequest};
use executor_residue::Needles;
use integration::daemon::{has_ended, kill};
use integration::footprint::Footprint;
use integration::identity::{self, Ca, Pair, due, with_identity};
use integration::request::sleeper;
use integration::supervised::{Part, Supervised};
use integration::{api, wait};

use crate::evaluate::{self, CLEANUP_TIMEOUT, Fate, Verdict, describe};
use crate::sweep::{Kill, Outcome};
use crate::tracer::{Counted, StopAction, Trace, TraceTarget};
use crate::{Node, calls};

/// Number of running containers.
const STANDING: usize = 8;
/// Certificate lifetime in seconds: the minimum. The lifetime of each further container is one second longer, so that
/// the certificates are due at different times.
const TTL: i64 = 10;
/// Time before the renewal at which tracing starts.
const TRACE_LEAD_TIME: Duration = Duration::from_millis(60);
/// Timeout of a renewal, including a restart and further attempts.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time between the close of a killed process's files and the exit of the process.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two readings of all certificates and keys, and polling interval of a renewal.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RenewTarget {
    /// executord
    Executord,
    /// the signer process
    Signer,
    /// the next signer, from its fork, after the previous signer has exited
    NextSigner,
    /// executor-launcher, while it forks the next signer
    Launcher,
    /// the shim of the container whose certificate is renewed
    Shim,
}

/// A node with containers whose certificates are renewed repeatedly.
pub(crate) struct Renewals {
    watch: Watch,
    node: Supervised,
    before: Footprint,
    /// Needles for keys that were replaced.
    replaced: Needles,
    /// Needles for keys of containers that have exited.
    ended: Needles,
    _ca: Ca,
}

impl Renewals {
    /// Starts a node with its containers.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let ca = Ca::new("crash CA");
        let node = Supervised::configured(&(ca.table() + "[warm_pool]\nsize = 0\n"));
        let watch = Watch::start();
        for number in 0..STANDING {
            let request = request(&format!("renewal-{number}"));
            watch.add(&evaluate::run(&node, &request)?.container.context("the response has no container")?)?;
        }
        let in_force = watch.locked().containers.values().map(|it| it.pair.key.clone()).collect::<Vec<_>>();
        let mut keys = Needles::new()?;
        in_force.iter().for_each(|key| identity::add_key(&mut keys, "a key in force", key));
        ensure!(
            evaluate::search(&node, &keys, true).found(),
            "control failed: the search does not find the current keys in the shims"
        );
        let before = node.footprint();
        Ok(Self { watch, node, before, replaced: Needles::new()?, ended: Needles::new()?, _ca: ca })
    }

    /// Returns the container whose certificate is due next. Waits until shortly before the certificate is due.
    fn next(&self) -> anyhow::Result<Container> {
        let moment = SystemTime::now() + 2 * TRACE_LEAD_TIME;
        let ids: Vec<String> = self.watch.locked().containers.keys().cloned().collect();
        let containers = ids.iter().map(|id| self.node.api.get(id)).collect::<Result<Vec<_>, _>>()?;
        let next = containers.into_iter().filter(|container| due(container) > moment).min_by_key(due);
        let next = next.context("no certificate is due later")?;
        wait::until("a certificate is almost due", || {
            (SystemTime::now() + TRACE_LEAD_TIME >= due(&next)).then_some(())
        });
        Ok(next)
    }

    /// Starts the process to trace, if necessary, and returns it.
    fn target(&self, target: RenewTarget, id: &str) -> anyhow::Result<TraceTarget> {
        let launcher = self.node.pid(Part::Launcher);
        let signers = || identity::signers(launcher);
        if matches!(target, RenewTarget::NextSigner | RenewTarget::Launcher) {
            // Another certificate may become due at the same time, and executord then requests the next signer.
            wait::until("no signer runs", || {
                let left = signers();
                left.iter().for_each(|pid| kill(*pid, 9));
                left.is_empty().then_some(())
            });
        }
        Ok(match target {
            RenewTarget::Executord => TraceTarget::Living(self.node.pid(Part::Executord)),
            RenewTarget::Signer => TraceTarget::Living(*signers().first().context("executord has no signer process")?),
            RenewTarget::NextSigner => TraceTarget::Shim { launcher },
            RenewTarget::Launcher => TraceTarget::Living(launcher),
            RenewTarget::Shim => TraceTarget::Living(self.shim(id)?),
        })
    }

    fn shim(&self, id: &str) -> anyhow::Result<i32> {
        let path = self.node.run_dir().join("containers").join(id).join("container.json");
        let record: ContainerRecord = serde_json::from_slice(&fs::read(path)?)?;
        Ok(record.shim.pid)
    }

    /// Returns the container's identity if the certificate was replaced after `since` and there is no problem.
    fn replaced(&self, since: &InstanceIdentity, id: &str) -> Result<InstanceIdentity, String> {
        let identity = self.node.api.get(id).map_err(|status| describe(&status))?.identity.unwrap_or_default();
        if identity.replaced > since.replaced && identity.problem.is_empty() {
            return Ok(identity);
        }
        Err(format!(
            "the certificate was replaced {} times, before {} times; problem: {:?}",
            identity.replaced, since.replaced, identity.problem
        ))
    }

    /// Checks that the container has the next certificate and key, and that executord reports them.
    fn check_replaced(&self, since: &InstanceIdentity, id: &str, verdict: &mut Verdict) {
        let fits = || {
            let identity = self.replaced(since, id)?;
            let pair = self
                .watch
                .locked()
                .containers
                .get(id)
                .map(|it| it.pair.clone())
                .ok_or("the container is not watched")?;
            let not_after = identity.not_after.map_or(0, |time| time.seconds.unsigned_abs());
            let in_force = SystemTime::UNIX_EPOCH + Duration::from_secs(not_after) > SystemTime::now();
            match pair.has_serial(&identity.serial_number) {
                true if in_force => Ok(()),
                true => Err("the certificate has expired".to_owned()),
                false => Err(format!(
                    "Get reports the certificate {}, the container has {}",
                    identity.serial_number, pair.certificate
                )),
            }
        };
        if let Err(why) = wait::within(RENEWAL_TIMEOUT, fits) {
            verdict.wrong.push(format!("the certificate was not replaced: {why}"));
        }
    }

    /// Stops the container and checks its exit.
    fn end(&self, id: &str, was_lost: bool, verdict: &mut Verdict) {
        self.watch.remove(id);
        let ended = wait::within(CLEANUP_TIMEOUT, || match self.node.api.stop(id, Some(0)) {
            Err(status) if status.code() == tonic::Code::Unavailable => Err(status),
            // A lost container has exited already.
            Err(status) if !was_lost => Ok(Err(status)),
            _ => Ok(self.node.api.wait(id)),
        });
        let deleted = ended.and_then(|ended| ended).and_then(|container| {
            let result = container.result.unwrap_or_default();
            verdict.receipt = Some(result.wipe.is_some());
            verdict.fate = Some(if result.exit.is_some() { Fate::Known } else { Fate::Unknown });
            let in_order = result.exit.is_some() && result.wipe.as_ref().is_some_and(|wipe| wipe.verified);
            if !was_lost && !in_order {
                verdict.wrong.push(format!("unexpected result of the container: {result:?}"));
            }
            self.node.api.delete(id, false)
        });
        if let Err(status) = deleted {
            verdict.wrong.push(format!("Stop, Wait, Delete: {}", describe(&status)));
        }
    }

    /// Checks that the node uses no more resources than before, with the same number of containers.
    fn check_footprint(&self, verdict: &mut Verdict) {
        let ids = |footprint: &Footprint| {
            let shown = footprint.processes.iter().map(ToString::to_string);
            (footprint.processes.len(), shown.collect::<Vec<_>>().join(" "))
        };
        let checked = wait::within(CLEANUP_TIMEOUT, || {
            let (mut now, (most, _)) = (self.node.footprint(), ids(&self.before));
            let (number, shown) = ids(&now);
            now.processes.clear();
            match now.added_since(&self.before) {
                left if left.is_empty() && number <= most => Ok(()),
                left => Err(format!("{left}{number} processes, {most} before: {shown}")),
            }
        });
        if let Err(left) = checked {
            verdict.wrong.push(format!("leftovers on the host: {}", left.replace('\n', "; ")));
        }
    }

    /// Searches for every key that is no longer in use.
    fn check_keys(&mut self, verdict: &mut Verdict) {
        self.add_replaced_keys();
        verdict.wrong.extend(evaluate::check_residue(|| evaluate::search(&self.node, &self.replaced, false)));
        verdict.wrong.extend(evaluate::check_residue(|| evaluate::search(&self.node, &self.ended, true)));
    }

    /// Adds the keys that were replaced since the last call.
    fn add_replaced_keys(&mut self) {
        let watched = &mut *self.watch.locked();
        for key in watched.retired.iter_mut().filter(|key| !key.searched) {
            key.searched = true;
            identity::add_key(&mut self.replaced, &format!("a replaced key of {}", key.of), &key.pem);
        }
        let is_over = |key: &mut RetiredKey| !watched.containers.contains_key(&key.of);
        for key in watched.retired.extract_if(.., is_over) {
            identity::add_key(&mut self.ended, &format!("a key of {}, which has exited", key.of), &key.pem);
        }
    }
}

impl Node for Renewals {
    type Target = RenewTarget;

    fn name(target: RenewTarget) -> &'static str {
        match target {
            RenewTarget::Executord => "executord",
            RenewTarget::Signer => "signer",
            RenewTarget::NextSigner => "next-signer",
            RenewTarget::Launcher => "launcher",
            RenewTarget::Shim => "shim",
        }
    }

    fn replay(target: RenewTarget, at: u64) -> String {
        format!("--renewals {} --at {at}", Self::name(target))
    }

    fn kill_at(&mut self, target: RenewTarget, at: u64) -> anyhow::Result<Outcome> {
        ensure!(self.watch.reads(), "the thread that reads the pairs has panicked");
        let mut verdict = Verdict::default();
        let container = self.next()?;
        let (id, since) = (container.id.clone(), container.identity.clone().context("the container has no identity")?);
        let old = Pair::read(api::pid(&container))?;
        let traced = self.target(target, &id)?;
        let (send, kills) = mpsc::channel();
        let act = move |shot: &crate::tracer::StoppedCall| {
            let _ = send.send((shot.call, shot.number));
            StopAction::Kill
        };
        let trace = Trace::start(traced, (Counted::All, at), act).context("cannot attach to the process")?;
        let (begun, moment) = (Instant::now(), due(&container));
        let mut killed = None;
        while killed.is_none() && begun.elapsed() < RENEWAL_TIMEOUT {
            killed = kills.recv_timeout(POLL_INTERVAL).ok();
            // Check this only after the files exist, because each Get causes system calls by executord.
            if killed.is_none() && self.watch.has_other(&id, &old) && self.replaced(&since, &id).is_ok() {
                break;
            }
        }
        let when = SystemTime::now();
        let seen = trace.end().context("cannot trace the process")?;
        let kill = killed.or_else(|| kills.try_recv().ok()).map(|(at, number)| Kill {
            at,
            call: calls::name(number),
            phase: when
                .duration_since(moment)
                .map_or("before it is due".into(), |late| format!("{late:.1?} after it is due")),
        });
        if kill.is_some() {
            for part in [Part::Executord, Part::Launcher] {
                let is_it = matches!(traced, TraceTarget::Living(pid) if pid == self.node.pid(part));
                if is_it {
                    wait::until("the killed process has exited", || self.node.is_dead(part).then_some(()));
                }
            }
            if let TraceTarget::Living(pid) = traced {
                wait::until("the killed process has exited", || has_ended(pid).then_some(()));
            }
            if let Err(why) = self.node.revive() {
                verdict.wrong.push(why);
                return Ok(Outcome { kill, calls: seen.calls, verdict });
            }
        }
        let was_lost = target == RenewTarget::Shim && kill.is_some();
        if !was_lost {
            self.check_replaced(&since, &id, &mut verdict);
            self.check_keys(&mut verdict);
        }
        self.end(&id, was_lost, &mut verdict);
        self.check_keys(&mut verdict);
        match evaluate::run(&self.node, &request(&id)) {
            Ok(run) => self.watch.add(&run.container.context("the response has no container")?)?,
            Err(status) => verdict.wrong.push(format!("the next run: {}", describe(&status))),
        }
        self.check_footprint(&mut verdict);
        verdict.wrong.append(&mut self.watch.locked().wrong);
        Ok(Outcome { kill, calls: seen.calls, verdict })
    }

    fn logged(&self) -> String {
        self.node.logged()
    }

    fn renew(&mut self) -> anyhow::Result<()> {
        *self = Self::new()?;
        Ok(())
    }
}

fn request(id: &str) -> RunRequest {
    let number = id.rsplit('-').next().and_then(|number| number.parse::<i64>().ok()).unwrap_or(0);
    with_identity(sleeper(id), Some(TTL + number))
}

/// A thread that constantly reads the certificates and keys of all containers.
struct Watch {
    watched: Arc<Mutex<Watched>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Watched {
    containers: BTreeMap<String, WatchedContainer>,
    /// Keys that are no longer in use.
    retired: Vec<RetiredKey>,
    wrong: Vec<String>,
}

struct WatchedContainer {
    pid: i32,
    pair: Pair,
}

struct RetiredKey {
    /// Id of the key's container.
    of: String,
    pem: String,
    /// True if the key is already searched for everywhere except in shims.
    searched: bool,
}

impl Watched {
    /// Evaluates one reading of a container's certificate and key.
    fn record_read(&mut self, id: &str, pid: i32, read: Result<Pair, String>) {
        let Some(container) = self.containers.get_mut(id).filter(|container| container.pid == pid) else { return };
        match read.and_then(|pair| pair.check().map(|()| pair)) {
            Ok(pair) => {
                let old = std::mem::replace(&mut container.pair, pair);
                if old.key != container.pair.key {
                    self.retired.push(RetiredKey { of: id.to_owned(), pem: old.key, searched: false });
                }
            }
            Err(why) => self.wrong.push(format!("certificate and key of {id}: {why}")),
        }
    }
}

impl Watch {
    fn start() -> Self {
        let (watched, stop) = (Arc::<Mutex<Watched>>::default(), Arc::<AtomicBool>::default());
        let own = (Arc::clone(&watched), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (watched, stop) = own;
            while !stop.load(Ordering::SeqCst) {
                let all: Vec<(String, i32, Pair)> = lock(&watched)
                    .containers
                    .iter()
                    .map(|(id, container)| (id.clone(), container.pid, container.pair.clone()))
                    .collect();
                for (id, pid, known) in all {
                    match Pair::read(pid) {
                        Ok(pair) if pair == known => {}
                        Ok(pair) => lock(&watched).record_read(&id, pid, Ok(pair)),
                        Err(_) if wait::within(EXIT_TIMEOUT, || has_ended(pid).then_some(()).ok_or(())).is_ok() => {}
                        Err(error) => lock(&watched).record_read(&id, pid, Err(error.to_string())),
                    }
                }
                std::thread::sleep(POLL_INTERVAL); // poll, because a renewal is not reported
            }
        });
        Self { watched, stop, thread: Some(thread) }
    }

    fn locked(&self) -> MutexGuard<'_, Watched> {
        lock(&self.watched)
    }

    /// Starts to read the certificate and key of a container.
    fn add(&self, container: &Container) -> anyhow::Result<()> {
        let pid = api::pid(container);
        let pair = Pair::read(pid).with_context(|| format!("cannot read the key pair of {}", container.id))?;
        self.locked().containers.insert(container.id.clone(), WatchedContainer { pid, pair });
        Ok(())
    }

    /// Stops reading the certificate and key of a container. The key is then no longer in use.
    fn remove(&self, id: &str) {
        let mut watched = self.locked();
        if let Some(container) = watched.containers.remove(id) {
            watched.retired.push(RetiredKey { of: id.to_owned(), pem: container.pair.key, searched: false });
        }
    }

    /// Returns true if the thread is running.
    fn reads(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns true if a container has a certificate and key other than `old`.
    fn has_other(&self, id: &str, old: &Pair) -> bool {
        self.locked().containers.get(id).is_some_and(|container| container.pair != *old)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // [`Watch::reads`] reports a panic
        }
    }
}

fn lock(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}
