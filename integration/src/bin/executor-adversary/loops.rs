//! Attacks by endless repetition, and on a machine that has no free processes or that stops processes.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use executor_proto::v1::restart_policy::Mode;
use executor_proto::v1::{Container, RestartPolicy, RunRequest, WatchEventsRequest};
use integration::daemon::{Daemon, Setup, kill};
use integration::request::{RequestBuilder as _, program, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{Executed, start};
use integration::{footprint, host, wait, warm_pool};
use tonic::Code;

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "loops: restarts without a pause",
        position: Position::Client,
        claim: "containers that restart in loops exhaust neither the event log nor a processor",
        attack: restarts,
        control: restarts_control,
    },
    Attack {
        name: "faults: no process left",
        position: Position::Machine,
        claim: "a Run or an Exec without free processes returns RESOURCE_EXHAUSTED, and the node works afterwards",
        attack: processes,
        control: processes_control,
    },
    Attack {
        name: "faults: warm containers that are stopped",
        position: Position::Machine,
        claim: "a warm container that does not respond delays a launch by a second, and the container runs once",
        attack: stopped_warm,
        control: stopped_warm_control,
    },
];

/// Number of restarts of a container without delay (docs/restarts.md).
const BURST: u64 = 10;
/// Seconds after which one more restart is allowed.
const REFILL_SECONDS: u64 = 5;

/// Runs containers whose process exits immediately, until each container waits for at least a second before a restart.
/// Returns the number of restarts of each container.
fn run_restart_loops(daemon: &Daemon, count: usize) -> Vec<u64> {
    let every = prost_types::Duration { seconds: 0, nanos: 100_000_000 };
    let policy =
        RestartPolicy { mode: Mode::Always.into(), max_retries: 0, min_delay: Some(every), max_delay: Some(every) };
    for index in 0..count {
        let request = program("/bin/true", &[]).id(&format!("loop{index}"));
        daemon.api.started(RunRequest { restart_policy: Some(policy), ..request });
    }
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let waits = |container: Container| {
        let restart = container.restart?;
        let next = u64::try_from(restart.next_start_at?.seconds).ok()?;
        (next > now() + 1).then_some(restart.count)
    };
    (0..count)
        .map(|index| wait::until("the loop waits", || waits(daemon.api.get(&format!("loop{index}")).ok()?)))
        .collect()
}

fn restarts(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    daemon.api.run_to_end(program("/bin/true", &[]).id("other"));
    let begun = Instant::now();
    let restarts = run_restart_loops(&daemon, scale.pick(5, 100));
    let most = BURST + begun.elapsed().as_secs() / REFILL_SECONDS + 1;
    // The other client's events are still available, including the first event.
    let first = daemon.api.events(WatchEventsRequest::default())?.message()?.context("the event stream is empty")?;
    let kept = first.event.as_ref().is_some_and(|event| event.container_id == "other");
    let fault = match restarts.iter().max() {
        Some(restarts) if *restarts > most => Some(format!("{restarts} restarts; at most {most} are allowed")),
        _ => (!kept).then(|| format!("the first event is {first:?}, expected an event of \"other\"")),
    };
    Ok(Outcome::new(fault, format!("{} loops are delayed, and no event is lost", restarts.len())))
}

/// Control: a container is restarted at least [`BURST`] times before the delay.
fn restarts_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let restarts = run_restart_loops(&daemon, 1);
    ensure!(
        restarts.iter().all(|count| *count >= BURST),
        "{restarts:?} restarts, expected at least {BURST} of each container"
    );
    Ok(format!("{restarts:?} restarts before the delay"))
}

/// A cgroup that limits the number of processes. Dropping this value moves the processes back and removes the cgroup.
struct PidsLimit {
    dir: PathBuf,
    parent: PathBuf,
}

impl PidsLimit {
    /// Starts a daemon whose launcher and all its descendants are in the cgroup.
    fn around_launcher() -> anyhow::Result<(Daemon, Self)> {
        let limit = Self::new()?;
        fs::write(limit.dir.join("cgroup.procs"), std::process::id().to_string())?;
        let daemon = Setup::default().config("[warm_pool]\nsize = 0\n").start();
        for pid in [daemon.pid(), std::process::id() as i32] {
            fs::write(limit.parent.join("cgroup.procs"), pid.to_string())?;
        }
        Ok((daemon, limit))
    }

    fn new() -> anyhow::Result<Self> {
        let first = PathBuf::from("/sys/fs/cgroup/pids");
        let parent = if first.is_dir() { first } else { PathBuf::from("/sys/fs/cgroup") };
        if parent.join("cgroup.subtree_control").exists() {
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+pids"); // a service manager may have done this
        }
        let dir = parent.join(format!("executor-adversary-{}", std::process::id()));
        fs::create_dir(&dir)?;
        Ok(Self { dir, parent })
    }

    fn set(&self, most: &str) -> anyhow::Result<()> {
        fs::write(self.dir.join("pids.max"), most).context("cannot write pids.max")
    }
}

impl Drop for PidsLimit {
    fn drop(&mut self) {
        let _ = wait::within(wait::DEFAULT_TIMEOUT, || {
            let members = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
            for pid in members.lines() {
                let _ = fs::write(self.parent.join("cgroup.procs"), pid);
            }
            fs::remove_dir(&self.dir)
        });
    }
}

/// Maximum number of containers to start until one is refused.
const CONTAINERS: usize = 60;

/// Starts containers, and then processes, until no more can be created. Reports error codes other than
/// RESOURCE_EXHAUSTED.
fn processes(scale: Scale) -> anyhow::Result<Outcome> {
    let (mut reported, mut faults) = (Vec::new(), Vec::new());
    for room in scale.pick(&[5_u32, 6, 7][..], &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12]) {
        let (daemon, limit) = PidsLimit::around_launcher()?;
        limit.set(&room.to_string())?;
        let refused = (0..CONTAINERS).find_map(|index| daemon.api.run(sleeper(&format!("c{index}"))).err());
        let refused = refused.with_context(|| format!("no Run of {CONTAINERS} was refused with {room} processes"))?;
        let mut statuses = vec![("Run", refused)];
        let execute = || Executed::start(&daemon.api, start("c0", "/bin/sleep", &["100000"]));
        let mut begun = Vec::new();
        if daemon.api.get("c0").is_ok() {
            let refused = (0..CONTAINERS).find_map(|_| execute().map(|process| begun.push(process)).err());
            statuses.push((
                "Exec",
                refused.with_context(|| format!("no Exec of {CONTAINERS} was refused with {room} processes"))?,
            ));
        }
        for (call, status) in statuses {
            match status.code() {
                Code::ResourceExhausted => reported.push(format!("{call} with {room}")),
                code => faults.push(format!("{call} with {room}: {code:?}: {}", status.message())),
            }
        }
        limit.set("max")?;
        if let Err(status) = daemon.api.run(sleeper("after")) {
            faults.push(format!("afterwards: {status}"));
        }
    }
    let held = format!("RESOURCE_EXHAUSTED: {}", reported.join(", "));
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), held))
}

/// Control: without the limit, 10 containers run.
fn processes_control(_: Scale) -> anyhow::Result<String> {
    let (daemon, limit) = PidsLimit::around_launcher()?;
    limit.set("max")?;
    for index in 0..10 {
        daemon.api.run(sleeper(&format!("c{index}")))?;
    }
    Ok("without a limit 10 containers run".into())
}

/// Starts a daemon with two warm containers and returns their processes.
fn with_warm_pool() -> anyhow::Result<(Daemon, Vec<i32>)> {
    let daemon = Setup::default().config("[warm_pool]\nsize = 2\n").start();
    daemon.api.wait_until_warm_pool_is_ready();
    let launcher = daemon.launcher().context("executord has no launcher")?;
    let all = footprint::processes(&daemon.setup().run_dir(), Some(launcher));
    let own = warm_pool::processes(&all).into_iter().filter(|pid| host::parent(*pid) == Some(launcher));
    let own: Vec<i32> = own.collect();
    ensure!(own.len() == 2, "warm containers {own:?}, expected 2");
    Ok((daemon, own))
}

fn stopped_warm(_: Scale) -> anyhow::Result<Outcome> {
    let (daemon, warm_pool) = with_warm_pool()?;
    let rootfs = Rootfs::busybox();
    for pid in &warm_pool {
        kill(*pid, 19);
        wait::until("the warm container is stopped", || {
            host::status(*pid, "State").filter(|state| state.starts_with('T'))
        });
    }
    for id in ["a", "b"] {
        daemon.api.up(sh("echo up; exec busybox sleep 100000").id(id).rootfs(&rootfs.reference()));
        let printed = daemon.api.logs_so_far(id);
        if printed != "up\n" {
            return Ok(Outcome::Through(format!("{id} printed {printed:?}")));
        }
    }
    let given_up = daemon.setup().logged().matches("did not acknowledge the launch").count();
    let fault = (given_up != 2).then(|| format!("{given_up} of 2 stopped warm containers were discarded"));
    Ok(Outcome::new(fault, "both containers run without the warm pool"))
}

/// Control: a warm container that is not stopped is used for a Run.
fn stopped_warm_control(_: Scale) -> anyhow::Result<String> {
    let (daemon, _) = with_warm_pool()?;
    let rootfs = Rootfs::busybox();
    daemon.api.up(sh("echo up; exec busybox sleep 100000").id("a").rootfs(&rootfs.reference()));
    match daemon.api.info().warm_pool.map(|warm_pool| warm_pool.used) {
        Some(1) => Ok("a container used a warm container".into()),
        used => bail!("{used:?} warm containers were used, expected 1"),
    }
}
