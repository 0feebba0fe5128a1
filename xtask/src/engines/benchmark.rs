//! Runs critest's benchmarks against both runtimes in turn, fills each with pods, and compares times and memory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::room::Room;
use super::{Runtime, Stage, usage};
use crate::workspace::{run, step};

/// Number of pods and of containers in a benchmark of critest.
const SAMPLES: usize = 40;
/// Number of simultaneous pods or containers, for each run of critest's benchmarks.
const PARALLEL: [usize; 2] = [1, 4];
/// Maximum number of pods on a node: the kubelet's default.
const PODS: usize = 110;
/// Processes in the namespaces of a [`Room`] that do not belong to the runtime: the registry and the client.
const OWN: [&str; 2] = ["images", "density"];
/// Times in milliseconds by measured operation.
type Times = BTreeMap<String, Vec<f64>>;

/// Figures of all runtimes.
#[derive(Serialize)]
pub(super) struct Figures {
    rounds: usize,
    /// Highest processor use of the idle machine before a run. 1.0 is one whole processor.
    rest: f64,
    runtimes: Vec<Figure>,
}

/// Figures of one runtime.
#[derive(Default, Serialize)]
struct Figure {
    runtime: String,
    times_ms: Times,
    /// Memory in KiB for each idle pod: proportional set size of all processes, including the processes of containers.
    memory_kib_per_pod: u64,
}

/// Results in the report of a critest benchmark.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Results {
    operations_names: Vec<String>,
    datapoints: Vec<Datapoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Datapoint {
    operations_durations_ns: Vec<f64>,
}

/// Output of the program `density`.
#[derive(Deserialize)]
struct Density {
    starts: Vec<f64>,
    lists: Times,
}

/// Runs all benchmarks. The order of the runtimes changes with each round.
pub(super) fn measure(contestants: &[(Stage<'_>, Runtime)], rounds: usize) -> anyhow::Result<Figures> {
    let figure = |(_, runtime): &(_, Runtime)| Figure { runtime: runtime.name.clone(), ..Figure::default() };
    let mut figures = Figures { rounds, rest: 0.0, runtimes: contestants.iter().map(figure).collect() };
    for round in 0..rounds {
        for turn in 0..contestants.len() {
            let index = (round + turn) % contestants.len();
            let (stage, runtime) = &contestants[index];
            for parallel in PARALLEL {
                step(&format!("Round {} of {rounds}: {}, {parallel} in parallel", round + 1, runtime.name));
                figures.rest = figures.rest.max(usage::rest()?);
                let times = critest(stage, runtime, parallel)?;
                times.into_iter().for_each(|(name, times)| {
                    figures.runtimes[index].times_ms.entry(name).or_default().extend(times);
                });
            }
        }
    }
    for ((stage, runtime), figure) in contestants.iter().zip(&mut figures.runtimes) {
        step(&format!("Filling {} with {PODS} pods", runtime.name));
        figures.rest = figures.rest.max(usage::rest()?);
        density(stage, runtime, figure)?;
    }
    Ok(figures)
}

impl Figures {
    /// Returns true if the machine was idle before each run. Otherwise the figures are not valid.
    pub(super) fn are_valid(&self) -> bool {
        usage::is_rest(self.rest)
    }
}

/// Runs critest's benchmarks of pods and of containers once.
fn critest(stage: &Stage<'_>, runtime: &Runtime, parallel: usize) -> anyhow::Result<Times> {
    let output = tempfile::tempdir_in(&stage.directory)?;
    let parameters = output.path().join("parameters.yaml");
    let text = format!(
        "podsNumber: {SAMPLES}\npodsNumberParallel: {parallel}\n\
         containersNumber: {SAMPLES}\ncontainersNumberParallel: {parallel}\n"
    );
    fs::write(&parameters, text)?;
    let endpoint = format!("unix://{}", runtime.socket.display());
    let mut command = stage.room.command(stage.critest);
    command.args(["-benchmark", "-runtime-endpoint", &endpoint, "-image-endpoint", &endpoint, "-ginkgo.no-color"]);
    command.arg("-benchmarking-params-file").arg(&parameters).arg("-benchmarking-output-dir").arg(output.path());
    command.args(["-ginkgo.skip", "benchmark about (start a container from scratch|.*[iI]mages)"]);
    let log = stage.directory.join("benchmark.log");
    let file = fs::File::create(&log)?;
    command.current_dir(stage.work()).stdout(file.try_clone()?).stderr(file);
    run(&mut command).with_context(|| fs::read_to_string(log).unwrap_or_default())?;
    let mut times = Times::new();
    for name in ["pod_benchmark_data.json", "container_benchmark_data.json"] {
        let results: Results = serde_json::from_slice(&fs::read(output.path().join(name)).context(name)?)?;
        ensure!(
            results.datapoints.len() >= SAMPLES / parallel,
            "{name} has {} samples, expected at least {}",
            results.datapoints.len(),
            SAMPLES / parallel
        );
        let kind = name.split('_').next().unwrap_or_default();
        for datapoint in results.datapoints {
            let mut add = |operation: &str, nanoseconds: f64| {
                times.entry(format!("{operation}, {parallel} in parallel")).or_default().push(nanoseconds / 1e6);
            };
            let durations = datapoint.operations_durations_ns;
            // Runtimes prepare a container in different calls, so add up the calls before the first status call.
            let started: f64 = results
                .operations_names
                .iter()
                .zip(&durations)
                .take_while(|(name, _)| !name.starts_with("Status"))
                .map(|(_, time)| time)
                .sum();
            add(&format!("a {kind} is created and started"), started);
            add(&format!("whole life cycle of a {kind}"), durations.iter().sum());
            for (operation, nanoseconds) in results.operations_names.iter().zip(durations) {
                add(operation, nanoseconds);
            }
        }
    }
    Ok(times)
}

/// Fills the runtime with pods, and records the times of starts and lists, and the memory of a pod.
fn density(stage: &Stage<'_>, runtime: &Runtime, figure: &mut Figure) -> anyhow::Result<()> {
    let before = memory(&stage.room)?;
    let mut command = stage.room.command(stage.supplies.programs().join("density"));
    command.args(["-endpoint", &format!("unix://{}", runtime.socket.display()), "-pods", &PODS.to_string()]);
    let log = stage.directory.join("density.log");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&log)?);
    let mut program = command.spawn().context("cannot start the program density")?;
    let mut line = String::new();
    BufReader::new(program.stdout.take().context("the child has no standard output")?).read_line(&mut line)?;
    let result = serde_json::from_str(&line)
        .with_context(|| format!("density failed: {}", fs::read_to_string(&log).unwrap_or_default()));
    let after = memory(&stage.room);
    drop(program.stdin.take()); // density then removes the pods
    let status = program.wait()?;
    let Density { starts, lists } = result?;
    ensure!(status.success(), "density failed: {}", fs::read_to_string(&log).unwrap_or_default());
    figure.memory_kib_per_pod = after?.saturating_sub(before) / PODS as u64;
    figure.times_ms.insert(format!("pod with a container, on a node with up to {PODS}"), starts);
    figure.times_ms.extend(lists.into_iter().map(|(name, times)| (format!("{name}, {PODS} pods"), times)));
    Ok(())
}

/// Returns the proportional set size of all processes in the namespaces of `room` except the processes of this
/// benchmark, in KiB.
fn memory(room: &Room) -> anyhow::Result<u64> {
    let usage = usage::by_program(&room.processes())?;
    Ok(usage.iter().filter(|(name, _)| !OWN.contains(&name.as_str())).map(|(_, usage)| usage.memory_kib).sum())
}

/// Returns the percentile at `share` (0.95 is the 95th percentile), by the nearest-rank method.
fn percentile(times: &[f64], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.are_valid() {
            writeln!(f, "The machine was busy: these figures are not valid.\n")?;
        }
        writeln!(f, "At rest the machine used at most {:.0} ms of processor time a second.\n", self.rest * 1000.0)?;
        let names = self.runtimes.iter().map(|figure| format!("{} |", figure.runtime));
        writeln!(f, "| median and 95th percentile, ms | {}", names.collect::<Vec<_>>().join(" "))?;
        writeln!(f, "|---|{}", "---|".repeat(self.runtimes.len()))?;
        let operations = self.runtimes.iter().flat_map(|figure| figure.times_ms.keys());
        for operation in operations.collect::<std::collections::BTreeSet<_>>() {
            write!(f, "| {operation} |")?;
            for figure in &self.runtimes {
                match figure.times_ms.get(operation) {
                    Some(times) => write!(f, " {:.1}, {:.1} |", percentile(times, 0.5), percentile(times, 0.95))?,
                    None => write!(f, " not implemented |")?,
                }
            }
            writeln!(f)?;
        }
        write!(f, "| memory for each idle pod, KiB |")?;
        self.runtimes.iter().try_for_each(|figure| write!(f, " {} |", figure.memory_kib_per_pod))?;
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!([0.5, 0.95, 1.0].map(|share| percentile(&times, share)), [10.0, 19.0, 20.0]);
        assert_eq!(percentile(&[7.0], 0.5), 7.0);
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn busy_machines_are_named_before_the_table() {
        let times_ms = Times::from([("StopPod, 1 in parallel".to_owned(), vec![2.0, 1.0, 3.0])]);
        let of = |runtime: &str, times_ms| Figure { runtime: runtime.to_owned(), times_ms, memory_kib_per_pod: 9 };
        let runtimes = vec![of("a 1", times_ms), of("b 2", Times::new())];
        let figures = Figures { rounds: 1, rest: 0.5, runtimes };
        let printed = figures.to_string();
        assert!(printed.starts_with("The machine was busy"), "{printed}");
        assert!(printed.contains("| StopPod, 1 in parallel | 2.0, 3.0 | not implemented |\n"), "{printed}");
        assert!(printed.ends_with("| memory for each idle pod, KiB | 9 | 9 |\n"), "{printed}");
        assert!(Figures { rest: 0.01, ..figures }.are_valid());
    }
}
