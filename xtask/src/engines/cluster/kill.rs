//! `cargo xtask cluster-kill`: kills the programs of a node at random while pods are created and removed.
//!
//! The container of each pod creates a directory. If a container runs twice, the second run finds the directory and
//! creates a file, which fails the test. Half of the pods belong to Jobs, which show that no exit is lost. The other
//! pods run until they are replaced.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::kubectl::Cluster;
use super::space::{Space, WAIT, extend, pod};
use super::{Start, build, leftovers};
use crate::engines::Kind;
use crate::engines::cases::programs;
use crate::workspace::{Workspace, step};

/// Number of pods of a Job.
const PARALLEL: usize = 5;
/// Interval between updates of the Deployment.
const UPDATE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum delay of a kill in milliseconds.
const KILL_DELAY_MAX_MS: u64 = 8_000;
/// Maximum delay between a kill and the restart, in milliseconds.
const RESTART_DELAY_MAX_MS: u64 = 3_000;
/// Programs that are killed: each program once per round, in a random order.
const PROGRAMS: [&str; 4] = ["kubelet", "executor-cri", "executord", "executor-launcher"];
/// Start of a container's script: creates the directory `UID` at the first run, and the file `UID.twice` at a second
/// run.
const ONCE: &str = "mkdir /marks/$UID || touch /marks/$UID.twice; ";
/// Script of a Job's container.
const WORK: &str = "sleep $SECONDS; touch /marks/$UID.done";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Duration of the kills, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    minutes: u32,
    /// Number of pods
    #[arg(long, value_name = "NUMBER", default_value_t = 60, value_parser = clap::value_parser!(u8).range(10..=80))]
    pods: u8,
    /// Seed of an earlier run, to repeat its kills
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    seed: Option<u64>,
    /// Print only the results on standard output, as JSON
    #[arg(long)]
    json: bool,
    /// Copy the logs of all programs to this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Use the programs of the product in this directory instead of building them
    #[arg(long, value_name = "DIRECTORY")]
    programs: Option<PathBuf>,
}

/// Results of a run.
#[derive(Default, Serialize)]
struct Outcome {
    seed: u64,
    /// Number of kills of each program.
    kills: BTreeMap<&'static str, u32>,
    /// Number of times that the kubelet exited because the runtime was not running when the kubelet started.
    kubelet_exits: u32,
    /// Number of completed Jobs.
    jobs: u32,
    /// Number of pods of Jobs that succeeded.
    succeeded: usize,
    /// Number of pods of Jobs that failed before their container ran: a kubelet that was killed between CreateContainer
    /// and StartContainer treats the created container as exited.
    never_started: usize,
    /// Number of updates of the Deployment.
    updates: u32,
}

/// Starts a cluster with one node, and kills its programs. Fails if a container ran twice, an exit or a pod is lost, or
/// resources of deleted pods remain.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let supplies = build(workspace, Kind::Executor)?;
    let programs = programs(workspace, options.programs.as_deref())?;
    let (supplies, programs) = (&supplies, &*programs);
    let start = Start::new(workspace, supplies, programs, Kind::Executor, 1);
    let outcome = start.run(options.logs.as_deref(), |cluster, _| run(cluster, options))?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        println!("{}", outcome.text());
    }
    Ok(ExitCode::SUCCESS)
}

fn run(cluster: &Cluster, options: &Options) -> anyhow::Result<Outcome> {
    let marks = cluster.node.path("root/paths/marks");
    fs::create_dir_all(&marks)?;
    let space = Space::create(cluster, "churn")?;
    let half = u32::from(options.pods / 2);
    let slots = usize::from(options.pods / 2) / PARALLEL;
    space.deploy("stay", half, &marked(&marks, &format!("{ONCE}{WAIT}"), "0"))?;
    let seed = options.seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| u64::from(since.subsec_nanos()) + 1)
    });
    let (minutes, pods) = (options.minutes, usize::try_from(half)? + slots * PARALLEL);
    step(&format!("{pods} pods; killing for {minutes} minutes, with --seed {seed}"));
    let outcome = Mutex::new(Outcome { seed, ..Outcome::default() });
    let is_over = AtomicBool::new(false);
    let churn = Churn { space: &space, marks: &marks, outcome: &outcome, is_over: &is_over };
    let deadline = Instant::now() + Duration::from_secs(u64::from(minutes) * 60);
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let slots: Vec<_> = (0..slots).map(|slot| scope.spawn(move || churn.jobs(slot))).collect();
        let updates = scope.spawn(|| churn.updates());
        let killed = kill(cluster, seed, &outcome, deadline, &is_over);
        is_over.store(true, Ordering::Relaxed);
        if let Err(error) = &killed {
            step(&format!("FAILED: {error:#}"));
        }
        let threads = slots.into_iter().chain([updates]);
        let joined: Vec<anyhow::Result<()>> =
            threads.map(|thread| thread.join().unwrap_or_else(|_panic| Err(anyhow!("a thread panicked")))).collect();
        killed.and(joined.into_iter().collect())
    })?;
    step("Checking the pods of the Deployment");
    space.roll_out("deployment/stay")?;
    cluster.until_nodes_are_ready()?;
    let id = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        let id = status["containerID"].as_str().unwrap_or_default();
        format!("\"{}\" {}", id.trim_start_matches("executor://"), status["restartCount"])
    };
    let are_equal = || {
        let mut known: Vec<String> = space.pods("stay")?.iter().map(id).collect();
        known.sort();
        Ok((known.len() == usize::try_from(half)? && known == cluster.running("churn", "")?).then_some(()))
    };
    let done = cluster.until("the runtime runs the pods of the Deployment, and no other pods", are_equal);
    space.described(done)?;
    let twice: Vec<String> = names(&marks)?.into_iter().filter(|name| name.ends_with(".twice")).collect();
    ensure!(twice.is_empty(), "containers of these pods ran twice: {twice:?}");
    step("Searching for leftovers");
    space.delete()?;
    leftovers::until_none(cluster)?;
    let outcome = outcome.into_inner().ok().context("a thread panicked")?;
    for name in PROGRAMS {
        ensure!(outcome.kills.contains_key(name), "{name} was never killed; use a larger value of --minutes");
    }
    let most = outcome.kills["kubelet"] as usize * PARALLEL;
    ensure!(
        outcome.never_started <= most,
        "{} pods failed before their container ran; the maximum is {most}",
        outcome.never_started
    );
    Ok(outcome)
}

/// Kills the programs one after the other until the deadline, and starts each again. Ends early if a thread fails.
///
/// # Errors
/// Returns an error if executor-cri or executord exits without a kill.
fn kill(
    cluster: &Cluster,
    seed: u64,
    outcome: &Mutex<Outcome>,
    deadline: Instant,
    is_over: &AtomicBool,
) -> anyhow::Result<()> {
    let node = &cluster.node;
    let (mut random, mut round) = (Random(seed), Vec::new());
    while Instant::now() < deadline && !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(random.below(KILL_DELAY_MAX_MS))); // the time of a kill is random
        let pause = Duration::from_millis(random.below(RESTART_DELAY_MAX_MS));
        if round.is_empty() {
            round = PROGRAMS.to_vec();
        }
        let name = round.swap_remove(usize::try_from(random.below(round.len() as u64))?);
        ensure!(!node.cri_has_exited()?, "executor-cri has exited by itself");
        ensure!(!node.executord_has_exited()?, "executord has exited by itself");
        let mut was_killed = true;
        match name {
            "kubelet" => node.kill_kubelet()?,
            "executor-cri" => node.kill_cri()?,
            "executord" => node.kill_executord()?,
            _ => was_killed = node.kill_launcher()?,
        }
        std::thread::sleep(pause); // part of the input: programs are restarted at random times
        match name {
            "kubelet" => node.start_kubelet()?,
            "executor-cri" => node.start_cri()?,
            "executord" => node.start_executord()?,
            // Starting executord also starts the launcher.
            _ => {
                node.kill_executord()?;
                node.start_executord()?;
            }
        }
        // A kubelet exits if the runtime is not running when the kubelet starts.
        let has_exited = node.kubelet_has_exited()?;
        if has_exited {
            node.start_kubelet()?;
        }
        let mut outcome = outcome.lock().ok().context("a thread panicked")?;
        outcome.kubelet_exits += u32::from(has_exited);
        if was_killed {
            *outcome.kills.entry(name).or_default() += 1;
        }
    }
    let serves = || {
        if node.kubelet_has_exited()? {
            node.start_kubelet()?;
        }
        Ok(node.http("GET", "http://127.0.0.1:10248/healthz").ok())
    };
    cluster.until("the kubelet serves", serves).map(drop)
}

/// Creates and removes pods until the kills are over.
#[derive(Clone, Copy)]
struct Churn<'a> {
    space: &'a Space<'a>,
    marks: &'a Path,
    outcome: &'a Mutex<Outcome>,
    is_over: &'a AtomicBool,
}

impl Churn<'_> {
    /// Runs one Job after another.
    fn jobs(&self, slot: usize) -> anyhow::Result<()> {
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let done = self.job(&format!("job-{slot}-{number}"), slot + 1);
            self.end_on_error(done)?;
        }
        Ok(())
    }

    fn job(&self, name: &str, seconds: usize) -> anyhow::Result<()> {
        let mut spec = marked(self.marks, &format!("{ONCE}{WORK}"), &seconds.to_string());
        extend(&mut spec, json!({"restartPolicy": "Never"}));
        let spec = json!({
            "completions": PARALLEL, "parallelism": PARALLEL, "completionMode": "Indexed", "backoffLimit": 1000,
            "template": {"spec": spec},
        });
        self.space.apply("batch/v1", "Job", name, json!({"spec": spec}))?;
        let job = format!("job/{name}");
        let waited = self.space.kubectl(&["wait", &job, "--for", "condition=Complete", "--timeout", "300s"]);
        self.space.described(waited)?;
        let pods = self.space.get(&["pods", "--selector", &format!("batch.kubernetes.io/job-name={name}")])?;
        let pods = pods["items"].as_array().context("the JSON of kubectl has no list of pods")?;
        let (succeeded, failed): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| pod["status"]["phase"] == "Succeeded");
        ensure!(
            succeeded.len() == PARALLEL,
            "{name}: {} pods succeeded, expected {PARALLEL}: {pods:?}",
            succeeded.len()
        );
        for pod in &succeeded {
            ensure!(
                self.has(pod, ".done"),
                "{name}: a pod succeeded although its container did not complete its work: {pod}"
            );
        }
        for pod in &failed {
            ensure!(!self.has(pod, ""), "{name}: a pod failed although its container ran: {pod}");
            ensure!(
                pod["status"]["reason"].is_null(),
                "{name}: the status of a failed pod has a reason, expected none: {pod}"
            );
        }
        self.space.kubectl(&["delete", &job, "--wait=false"])?;
        let mut outcome = self.outcome.lock().ok().context("a thread panicked")?;
        outcome.jobs += 1;
        outcome.succeeded += succeeded.len();
        outcome.never_started += failed.len();
        Ok(())
    }

    /// Returns true if the container of a pod has made a mark with this extension.
    fn has(&self, pod: &Value, extension: &str) -> bool {
        let uid = pod["metadata"]["uid"].as_str();
        uid.is_some_and(|uid| self.marks.join(format!("{uid}{extension}")).exists())
    }

    /// Replaces the pods of the Deployment repeatedly.
    fn updates(&self) -> anyhow::Result<()> {
        let mut next = Instant::now() + UPDATE_INTERVAL;
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(250)); // between two checks
            if Instant::now() < next {
                continue;
            }
            let update = self.space.kubectl(&["rollout", "restart", "deployment/stay"]);
            self.end_on_error(update.and_then(|_| self.space.roll_out("deployment/stay")))?;
            self.outcome.lock().ok().context("a thread panicked")?.updates += 1;
            next = Instant::now() + UPDATE_INTERVAL;
        }
        Ok(())
    }

    fn end_on_error(&self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        if let Err(error) = &result {
            step(&format!("FAILED: {error:#}"));
            self.is_over.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// Returns the specification of a pod whose script marks its run in a directory of the host.
fn marked(marks: &Path, script: &str, seconds: &str) -> Value {
    let uid = json!({"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}});
    let fields = json!({
        "env": [uid, {"name": "SECONDS", "value": seconds}],
        "volumeMounts": [{"name": "marks", "mountPath": "/marks"}],
    });
    let mut spec = pod(script, fields);
    extend(&mut spec, json!({"volumes": [{"name": "marks", "hostPath": {"path": marks, "type": "Directory"}}]}));
    spec
}

fn names(directory: &Path) -> anyhow::Result<Vec<String>> {
    let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

impl Outcome {
    fn text(&self) -> String {
        let kills: Vec<_> = self.kills.iter().map(|(name, count)| format!("{name} {count}")).collect();
        format!(
            "No container ran twice, no exit or pod was lost, and no resources are left.\n\
             Kills: {}. The kubelet exited {} times by itself.\n\
             {} Jobs with {} pods that succeeded, and {} that failed before their container ran; {} updates.",
            kills.join(", "),
            self.kubelet_exits,
            self.jobs,
            self.succeeded,
            self.never_started,
            self.updates
        )
    }
}

/// Pseudorandom numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}
