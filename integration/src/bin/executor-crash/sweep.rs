//! Runs one cycle in which one of the executor's processes is traced and killed, restarts processes as a supervisor
//! does, and checks the conditions.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use executor_core::record::ContainerRecord;
use executor_proto::v1::RunRequest;
use executor_residue::{Canary, Needles};
use integration::daemon::kill;
use integration::footprint::Footprint;
use integration::network::Network;
use integration::rootfs::Rootfs;
use integration::supervised::{Part, Supervised};

use crate::cycle::{self, Secrets, Step};
use crate::evaluate::{Fate, KilledCycle, Verdict};
use crate::host_network::HostNetwork;
use crate::shelf::Shelf;
use crate::tracer::{Counted, Helper, StopAction, Trace, TraceTarget};
use crate::{Node, calls};

/// Length of a secret in bytes.
const CANARY: usize = 64;

/// Process whose calls are counted, and processes that are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// executord
    Executord,
    /// executor-launcher
    Launcher,
    /// the container's shim
    Shim,
    /// the shim's helper that writes and mounts secret files
    Inject,
    /// the shim's helper that clones the container's init
    Cloner,
    /// the shim's child that makes the container's user namespace
    Namespace,
    /// executord, the launcher and the shim at the same time, at the calls of the shim
    Everything,
    /// the launcher, at the calls of the shim, which continues while the next launcher starts
    Orphan,
    /// with a warm pool: the next warm container, during its creation and while it waits
    Warm,
}

impl Target {
    /// Returns all targets for a node with or without a warm pool.
    pub(crate) fn all(warm_pool: bool) -> Vec<Self> {
        let all = [
            Self::Executord,
            Self::Launcher,
            Self::Shim,
            Self::Inject,
            Self::Cloner,
            Self::Namespace,
            Self::Everything,
            Self::Orphan,
        ];
        all.into_iter().chain(warm_pool.then_some(Self::Warm)).collect()
    }

    fn word(self) -> &'static str {
        match self {
            Self::Executord => "executord",
            Self::Launcher => "launcher",
            Self::Shim => "shim",
            Self::Inject => "inject",
            Self::Cloner => "cloner",
            Self::Namespace => "namespace",
            Self::Everything => "everything",
            Self::Orphan => "orphan",
            Self::Warm => "warm",
        }
    }

    /// Returns the process to trace. With a warm pool, the current warm container becomes the shim, and the next fork
    /// of the launcher creates the next warm container.
    fn trace_target(self, node: &Supervised, warm_shim: Option<i32>) -> TraceTarget {
        let launcher = node.pid(Part::Launcher);
        match (self, warm_shim) {
            (Self::Shim | Self::Everything | Self::Orphan, Some(shim)) => return TraceTarget::Living(shim),
            (Self::Inject, Some(shim)) => return TraceTarget::OfWarmContainer { shim },
            _ => {}
        }
        match self {
            Self::Executord => TraceTarget::Living(node.pid(Part::Executord)),
            Self::Launcher => TraceTarget::Living(launcher),
            Self::Shim | Self::Everything | Self::Orphan | Self::Warm => TraceTarget::Shim { launcher },
            Self::Inject => TraceTarget::Helpers { launcher, which: Helper::Inject },
            Self::Cloner => TraceTarget::Helpers { launcher, which: Helper::Cloner },
            Self::Namespace => TraceTarget::Helpers { launcher, which: Helper::Namespace },
        }
    }

    /// Returns true if the target belongs to the next warm container.
    fn creates_warm(self, warm_pool: bool) -> bool {
        warm_pool && matches!(self, Self::Warm | Self::Cloner | Self::Namespace)
    }

    fn shim_lives(self, warm_pool: bool) -> bool {
        matches!(self, Self::Executord | Self::Launcher | Self::Orphan) || self.creates_warm(warm_pool)
    }
}

/// Result of one attempted kill.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Position of the kill; `None` if the cycle had fewer calls.
    pub(crate) kill: Option<Kill>,
    /// Number of counted calls.
    pub(crate) calls: u64,
    pub(crate) verdict: Verdict,
}

/// Position of a kill in a cycle.
#[derive(Clone, Debug)]
pub(crate) struct Kill {
    /// Number of the counted system call before which the process was killed, from 1.
    pub(crate) at: u64,
    /// Name of this system call.
    pub(crate) call: String,
    /// State of the container according to its records, and call by the client.
    pub(crate) phase: String,
}

/// A node on which many cycles are run.
pub(crate) struct TestNode {
    node: Supervised,
    before: Footprint,
    needles: Needles,
    cycles: u64,
    kind: Cycles,
    /// Root file system of containers from the warm pool. Other containers use the host's root file system.
    rootfs: Rootfs,
    /// Provider of secrets that requests refer to.
    shelf: Option<Arc<Shelf>>,
    /// Simulated host of the node, if its containers are on a network. Dropped last.
    host: Option<HostNetwork>,
}

/// Kind of the cycles on a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycles {
    /// True if the containers run trees of actions.
    pub(crate) tree: bool,
    /// True if the containers start from the warm pool.
    pub(crate) warm_pool: bool,
    /// True if the containers are on a built-in network.
    pub(crate) network: bool,
    /// True if requests refer to secrets instead of containing them.
    pub(crate) references: bool,
}

impl TestNode {
    /// Starts a node, runs one cycle without a kill, and takes the footprint.
    pub(crate) fn new(kind: Cycles) -> anyhow::Result<Self> {
        let shelf = kind.references.then(Shelf::new).transpose()?.map(Arc::new);
        let provider = shelf.as_ref().map(|shelf| shelf.provider()).unwrap_or_default();
        let network = kind.network.then(Network::forwarding);
        let warm_network = if kind.network { "network = \"bridge\"\n" } else { "" };
        let warm_pool = format!("[warm_pool]\nsize = {}\n{warm_network}", u8::from(kind.warm_pool));
        let policy = network.as_ref().map(|network| format!("[policy]\n{}", network.policy())).unwrap_or_default();
        let toml = format!("{provider}{policy}{warm_pool}");
        let node = Supervised::on_host(&toml, network.as_ref().map(Network::namespace));
        let before = node.footprint();
        let (needles, rootfs) = (Needles::new()?, Rootfs::busybox());
        let host = network.map(|network| HostNetwork { network, at_rest: Vec::new() });
        let mut test_node = Self { node, before, needles, cycles: 0, kind, rootfs, shelf, host };
        if kind.network {
            // Executord opens its name server for the first container on the network.
            test_node.run_cycle()?;
            test_node.before = test_node.node.footprint();
        }
        test_node.run_cycle()?;
        test_node.node.wait_until_back_at(&test_node.before, cycle::CALL_TIMEOUT).map_err(anyhow::Error::msg)?;
        test_node.warm();
        if let Some(HostNetwork { network, at_rest }) = &mut test_node.host {
            *at_rest = network.bridge_objects(&test_node.node.run_dir(), &test_node.node.state_dir());
        }
        Ok(test_node)
    }

    /// Runs one cycle without a kill.
    fn run_cycle(&mut self) -> anyhow::Result<()> {
        let (id, secrets) = self.next_cycle()?;
        let request = self.request(&id, &secrets);
        let answers =
            cycle::drive(&self.node.api, async |rpc| cycle::run(rpc, request, secrets, Step::default()).await);
        let ended = answers.wait.context("the run without a kill did not reach Wait")??;
        anyhow::ensure!(
            answers.delete.is_some_and(|delete| delete.is_ok()),
            "Delete of a run without a kill fails; its exit: {ended:?}"
        );
        Ok(())
    }

    fn request(&self, id: &str, secrets: &Secrets) -> RunRequest {
        let rootfs = if self.kind.warm_pool { self.rootfs.reference() } else { "host".to_owned() };
        // A container from the warm pool gets its files without a helper if only files are injected.
        let request = cycle::request(id, secrets, &rootfs, (self.kind.tree, !self.kind.warm_pool));
        if self.kind.network { cycle::on_network(request) } else { request }
    }

    /// Waits for a warm container, if there is a warm pool, and returns its pid.
    fn warm(&self) -> Option<i32> {
        self.kind.warm_pool.then(|| integration::wait::until("a warm container is ready", || self.ready_warm()))
    }

    /// Returns the pid of a warm container if the warm pool is full.
    fn ready_warm(&self) -> Option<i32> {
        let named = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "executor-warm\n")
                && (!self.kind.network || has_network(*pid))
        };
        let warm_pool = self.node.api.try_info().ok()?.warm_pool?;
        let launcher = self.node.pid(Part::Launcher);
        // With a network, there is a second warm container, for requests without a network.
        let wanted = if self.kind.network { 2 } else { 1 };
        (warm_pool.ready >= wanted).then(|| integration::host::descendants(launcher).into_iter().find(named))?
    }

    /// Creates an id and secrets. The secrets are part of all later searches.
    fn next_cycle(&mut self) -> anyhow::Result<(String, Secrets)> {
        self.cycles += 1;
        let mut secret = |which| -> anyhow::Result<String> {
            let canary = Canary::random(CANARY)?;
            self.needles.add(&format!("{which} secret of cycle {}", self.cycles), canary.as_bytes());
            Ok(canary.as_str().to_owned())
        };
        let secrets = Secrets { first: secret("first")?, second: secret("second")?, shelf: self.shelf.clone() };
        secrets.offer_first();
        Ok((format!("cycle-{}", self.cycles), secrets))
    }

    /// Waits until the killed processes have exited. A supervisor gets this information from the kernel.
    fn await_deaths(&mut self, target: Target) {
        let parts: &[Part] = match target {
            Target::Executord => &[Part::Executord],
            Target::Launcher | Target::Orphan => &[Part::Launcher],
            Target::Everything => &[Part::Executord, Part::Launcher],
            Target::Shim | Target::Inject | Target::Cloner | Target::Namespace | Target::Warm => &[],
        };
        for part in parts {
            integration::wait::until("the killed process has exited", || self.node.is_dead(*part).then_some(()));
        }
    }
}

impl Node for TestNode {
    type Target = Target;

    fn name(target: Target) -> &'static str {
        target.word()
    }

    fn replay(target: Target, at: u64) -> String {
        format!("--target {} --at {at}", target.word())
    }

    fn logged(&self) -> String {
        self.node.logged()
    }

    fn renew(&mut self) -> anyhow::Result<()> {
        *self = Self::new(self.kind)?;
        Ok(())
    }

    fn kill_at(&mut self, target: Target, at: u64) -> anyhow::Result<Outcome> {
        let (id, secrets) = self.next_cycle()?;
        let request = self.request(&id, &secrets);
        let warm_shim = self.warm();
        let step = Step::default();
        let (reported, kills) = mpsc::channel();
        let act = {
            let (run, state) = (self.node.run_dir().join("containers"), self.node.state_dir().join("containers"));
            let step = step.clone();
            let also = match target {
                Target::Everything => vec![self.node.pid(Part::Executord), self.node.pid(Part::Launcher)],
                Target::Orphan => vec![self.node.pid(Part::Launcher)],
                _ => Vec::new(),
            };
            move |shot: &crate::tracer::StoppedCall| {
                for pid in also {
                    kill(pid, 9);
                }
                let phase = format!("{} (client: {})", phase(&run.join(&id), &state.join(&id)), step.name());
                let _ = reported.send(Kill { at: shot.call, call: calls::name(shot.number), phase });
                if target == Target::Orphan { StopAction::Release } else { StopAction::Kill }
            }
        };
        let trace = Trace::start(target.trace_target(&self.node, warm_shim), (Counted::All, at), act)
            .context("cannot attach to the process")?;
        let cycle = self.node.api.spawn(cycle::run(self.node.api.rpc(), request.clone(), secrets.clone(), step));
        // Either the process is killed, and the supervisor restarts exited processes while the client continues; or the
        // cycle ends without a kill.
        let (mut kill, mut revived) = (None, Ok(()));
        while kill.is_none() && !cycle.is_finished() {
            kill = kills.recv_timeout(Duration::from_millis(1)).ok();
        }
        let api = self.node.api.clone(); // its runtime runs the cycle
        if kill.is_some() {
            self.await_deaths(target);
            revived = self.node.revive();
        }
        let answers = api.block_on(cycle).context("the client failed")?;
        if kill.is_none() && target.creates_warm(self.kind.warm_pool) {
            // While the processors are busy, the launcher creates the next warm container later than the cycle's end.
            integration::wait::until("the next warm container is ready or killed", || {
                kill = kills.try_recv().ok();
                (kill.is_some() || self.ready_warm().is_some()).then_some(())
            });
            revived = revived.and_then(|()| self.node.revive());
        }
        let seen = trace.end().context("cannot trace the process")?;
        if kill.is_none() && seen.shot.is_some() {
            // The kill happened after the client's last call.
            kill = kills.recv_timeout(Duration::from_secs(1)).ok();
            self.await_deaths(target);
            revived = revived.and_then(|()| self.node.revive());
        }
        if let Err(why) = revived {
            let wrong = vec![why];
            return Ok(Outcome { kill, calls: seen.calls, verdict: Verdict { wrong, ..Verdict::default() } });
        }
        let case = KilledCycle {
            node: &self.node,
            before: &self.before,
            request: &request,
            secrets: &secrets,
            needles: &self.needles,
            host: self.host.as_ref(),
            shim_lived: target.shim_lives(self.kind.warm_pool) || kill.is_none(),
            key_lost: target == Target::Everything,
        };
        let mut verdict = case.evaluate(&answers);
        if kill.is_none() && verdict.fate != Some(Fate::Known) {
            verdict.wrong.push(format!("without a kill: {:?}", verdict.fate));
        }
        Ok(Outcome { kill, calls: seen.calls, verdict })
    }
}

/// Returns true if the init of a warm container has an interface other than loopback.
fn has_network(shim: i32) -> bool {
    let interfaces = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    integration::host::descendants(shim).iter().any(|pid| interfaces(pid).contains("eth0:"))
}

/// Returns the state of a container according to its records.
fn phase(run: &Path, state: &Path) -> String {
    if state.join("exit.json").exists() {
        return if run.exists() { "recorded" } else { "completed" }.into();
    }
    let record = std::fs::read(run.join("container.json")).ok();
    match record.and_then(|bytes| serde_json::from_slice::<ContainerRecord>(&bytes).ok()) {
        Some(record) => record.state.name().into(),
        None if run.exists() || state.exists() => "directories".into(),
        None => "nothing on disk".into(),
    }
}

/// Returns a number that differs between runs.
pub(crate) fn clock() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.subsec_nanos() ^ since.as_secs() as u32
}
