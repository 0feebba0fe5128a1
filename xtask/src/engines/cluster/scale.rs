//! `cargo xtask cluster-scale`: measures the processor time and memory of 100 pods with probes on a node, with
//! executor-cri and with containerd, and the requests of a node to the API server. docs/scale.md has the results, and
//! estimates for large clusters.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, Seek as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::control::AUDIT;
use super::kubectl::Cluster;
use super::space::{SERVE, Space, pod, spread};
use super::{NODES, Start, build};
use crate::engines::Kind;
use crate::engines::cases::programs;
use crate::engines::site::Site;
use crate::engines::usage::{self, Usage};
use crate::workspace::{Workspace, output, step};

/// Number of pods in the measurement. A node has at most 110 pods, including the pods of kube-system.
const PODS: u32 = 100;
const MEASUREMENT_PERIOD: Duration = Duration::from_secs(120);
/// Pause between the readiness of all pods and the measurement, for the last updates of their status.
const SETTLE_DELAY: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measure only this part
    #[arg(long, value_enum)]
    only: Option<Part>,
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

/// Part of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Programs of a node with 100 pods, with both runtimes
    Node,
    /// Requests of three nodes to the API server
    Api,
}

#[derive(Default, Serialize)]
struct Figures {
    /// Highest processor use of the idle machine before a run. 1.0 is one whole processor.
    rest: f64,
    nodes: Vec<NodeFigure>,
    api: Option<ApiFigure>,
}

/// Resource usage of a node with pods.
#[derive(Serialize)]
struct NodeFigure {
    runtime: String,
    /// Seconds until all pods were ready.
    start_seconds: f64,
    /// Processor time that the machine uses, in milliseconds per second: without the pods, and with the pods.
    machine_ms: [f64; 2],
    programs: BTreeMap<String, ProgramFigure>,
}

/// Resource usage of the processes of a program while all pods run, including reaped children.
#[derive(Default, Serialize)]
struct ProgramFigure {
    processes: u32,
    /// Processor time in milliseconds per second.
    ms: f64,
    memory_kib: u64,
}

/// Requests of a node to the API server while no object changes: the mean of the nodes without the control plane.
#[derive(Default, Serialize)]
struct ApiFigure {
    pods_per_node: f64,
    /// Requests per second, by the program of the node, the verb and the resource.
    requests: BTreeMap<String, f64>,
    /// Watches, by the program of the node.
    watches: BTreeMap<String, f64>,
    /// Bytes per second: from the node, and to the node.
    bytes: [f64; 2],
}

/// Measures both runtimes and three nodes. Fails if the machine is busy.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let supplies = build(workspace, Kind::Containerd)?;
    let programs = programs(workspace, options.programs.as_deref())?;
    let start = |runtime, nodes| Start::new(workspace, &supplies, &programs, runtime, nodes);
    let mut figures = Figures::default();
    if options.only != Some(Part::Api) {
        for runtime in [Kind::Executor, Kind::Containerd] {
            figures.rest = figures.rest.max(usage::rest()?);
            figures.nodes.push(start(runtime, 1).run(options.logs.as_deref(), node_figure)?);
        }
    }
    if options.only != Some(Part::Node) {
        figures.rest = figures.rest.max(usage::rest()?);
        figures.api = Some(start(Kind::Executor, NODES).run(options.logs.as_deref(), api_figure)?);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        print!("{figures}");
    }
    Ok(if usage::is_rest(figures.rest) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn node_figure(cluster: &Cluster, sites: &[Arc<Site>]) -> anyhow::Result<NodeFigure> {
    let runtime = cluster.get(&["nodes"])?["items"][0]["status"]["nodeInfo"]["containerRuntimeVersion"].take();
    let runtime = runtime.as_str().unwrap_or_default().replace("://", " ");
    let processes = sites[0].room.processes();
    step(&format!("{runtime}: measuring without pods"));
    std::thread::sleep(SETTLE_DELAY); // no notification says that the last update was sent
    let without = machine()?;
    let space = Space::create(cluster, "scale")?;
    let start_seconds = start_pods(&space)?;
    step(&format!("{runtime}: measuring with {PODS} pods, which were ready after {start_seconds:.0} s"));
    std::thread::sleep(SETTLE_DELAY); // no notification says that the last update was sent
    let (begin, before) = (Instant::now(), usage::by_program(&processes)?);
    let with = machine()?;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), usage::by_program(&processes)?);
    let figure = |(name, used): (&String, &Usage)| {
        let earlier = before.get(name).copied().unwrap_or_default();
        let ms = (used.seconds - earlier.seconds).max(0.0) * 1000.0 / seconds;
        (name.clone(), ProgramFigure { processes: used.processes, ms, memory_kib: used.memory_kib })
    };
    let programs = after.iter().map(figure).collect();
    Ok(NodeFigure { runtime, start_seconds, machine_ms: [without, with], programs })
}

/// Returns the processor time of the machine during [`MEASUREMENT_PERIOD`], in milliseconds per second.
fn machine() -> anyhow::Result<f64> {
    let (begin, busy) = (Instant::now(), usage::busy_seconds()?);
    std::thread::sleep(MEASUREMENT_PERIOD); // the time that is measured
    Ok((usage::busy_seconds()? - busy) * 1000.0 / begin.elapsed().as_secs_f64())
}

/// Creates pods with a readiness and a liveness probe, and returns the seconds until all are ready.
fn start_pods(space: &Space<'_>) -> anyhow::Result<f64> {
    let probes = json!({
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}},
        "livenessProbe": {"exec": {"command": ["true"]}},
    });
    let mut spec = pod(SERVE, probes);
    spread(&mut spec, "web");
    let begin = Instant::now();
    space.deploy("web", PODS, &spec)?;
    Ok(begin.elapsed().as_secs_f64())
}

fn api_figure(cluster: &Cluster, sites: &[Arc<Site>]) -> anyhow::Result<ApiFigure> {
    let space = Space::create(cluster, "scale")?;
    start_pods(&space)?;
    step(&format!("Measuring the requests of {NODES} nodes"));
    std::thread::sleep(SETTLE_DELAY); // no notification says that the last update was sent
    let (first, others) = sites.split_first().context("the cluster has no node")?;
    let log = first.directory.join(AUDIT);
    // The first node has an interface for each other node, which receives the packets of the other node.
    let bytes = || -> anyhow::Result<[f64; 2]> {
        let mut sum = [0.0; 2];
        for site in others {
            let printed =
                output(first.room.command("ip").args(["-json", "-stats", "link", "show", "dev", &site.name]))?;
            let statistics = &serde_json::from_str::<Value>(&printed)?[0]["stats64"];
            for (index, direction) in ["rx", "tx"].into_iter().enumerate() {
                sum[index] +=
                    statistics[direction]["bytes"].as_f64().context("the JSON of ip has no number of bytes")?;
            }
        }
        Ok(sum)
    };
    let (from, before, begin) = (fs::metadata(&log)?.len(), bytes()?, Instant::now());
    std::thread::sleep(MEASUREMENT_PERIOD); // the time that is measured
    let (to, after, seconds) = (fs::metadata(&log)?.len(), bytes()?, begin.elapsed().as_secs_f64());
    ensure!(to > from, "the audit log {} has no new requests", log.display());
    let mut figure = ApiFigure::default();
    let count = others.len() as f64;
    figure.bytes = [0, 1].map(|index| (after[index] - before[index]) / count / seconds);
    let pods = space.pods("web")?;
    let on_others = pods.iter().filter(|pod| pod["spec"]["nodeName"] != *first.name).count();
    figure.pods_per_node = on_others as f64 / count;
    let mut open = BTreeMap::new();
    for Request { program, node, verb, resource, stage, id, at } in requests(&log)? {
        if at >= to || !others.iter().any(|site| site.name == node) {
            continue;
        }
        match (&*verb, &*stage) {
            ("watch", "ResponseStarted") => drop(open.insert(id, program)),
            ("watch", _) => drop(open.remove(&id)),
            _ if at >= from => {
                *figure.requests.entry(format!("{program} {verb} {resource}")).or_default() += 1.0 / count / seconds;
            }
            _ => {}
        }
    }
    for program in open.into_values() {
        *figure.watches.entry(program).or_default() += 1.0 / count;
    }
    Ok(figure)
}

/// A request of a node's program in the API server's log.
struct Request {
    program: String,
    node: String,
    verb: String,
    resource: String,
    stage: String,
    /// Id of the request, shared by all of its stages.
    id: String,
    /// Offset in the log, in bytes.
    at: u64,
}

fn requests(log: &Path) -> anyhow::Result<Vec<Request>> {
    let mut file = BufReader::new(fs::File::open(log).with_context(|| format!("cannot open {}", log.display()))?);
    let (mut line, mut all) = (String::new(), Vec::new());
    loop {
        let at = file.stream_position()?;
        line.clear();
        if file.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(all);
        }
        let entry: Value = serde_json::from_str(&line).context("cannot parse a line of the audit log")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let user = text(&entry["user"]["username"]);
        let (program, node) = match user.strip_prefix("system:node:") {
            Some(node) => ("kubelet".to_owned(), node.to_owned()),
            None => {
                let name = &entry["user"]["extra"]["authentication.kubernetes.io/node-name"][0];
                (user.rsplit(':').next().unwrap_or_default().to_owned(), text(name))
            }
        };
        let [verb, stage, id] = ["verb", "stage", "auditID"].map(|key| text(&entry[key]));
        let reference = &entry["objectRef"];
        let resource = match text(&reference["subresource"]) {
            sub if sub.is_empty() => text(&reference["resource"]),
            sub => format!("{}/{sub}", text(&reference["resource"])),
        };
        all.push(Request { program, node, verb, resource, stage, id, at });
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !usage::is_rest(self.rest) {
            writeln!(f, "The machine was busy: these figures are not valid.\n")?;
        }
        writeln!(f, "At rest the machine used at most {:.0} ms of processor time a second.\n", self.rest * 1000.0)?;
        for node in &self.nodes {
            writeln!(
                f,
                "{}: {PODS} pods were ready after {:.1} s. The machine uses {:.0} ms a second without them, {:.0} with them.\n",
                node.runtime, node.start_seconds, node.machine_ms[0], node.machine_ms[1]
            )?;
            writeln!(f, "| program | processes | processor time, ms a second | memory, MiB |\n|---|---|---|---|")?;
            for (name, ProgramFigure { processes, ms, memory_kib }) in &node.programs {
                writeln!(f, "| {name} | {processes} | {ms:.1} | {:.1} |", *memory_kib as f64 / 1024.0)?;
            }
            writeln!(f)?;
        }
        let Some(ApiFigure { pods_per_node, requests, watches, bytes }) = &self.api else { return Ok(()) };
        let sum: f64 = requests.values().sum();
        writeln!(f, "A node with {pods_per_node:.0} pods sends the API server {sum:.2} requests a second.\n")?;
        writeln!(f, "| request | a second |\n|---|---|")?;
        requests.iter().try_for_each(|(name, rate)| writeln!(f, "| {name} | {rate:.3} |"))?;
        let watches: Vec<_> = watches.iter().map(|(name, count)| format!("{name} {count:.0}")).collect();
        writeln!(
            f,
            "\nWatches: {}. Bytes a second from the node {:.0}, to the node {:.0}.",
            watches.join(", "),
            bytes[0],
            bytes[1]
        )
    }
}
