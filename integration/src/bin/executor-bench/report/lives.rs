//! Prints the tables of single containers and of throughput.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Report, micros, milliseconds, ratio, sample};
use crate::latency::{Latencies, Latency};
use crate::processor::Used;
use crate::stats::Sample;
use crate::throughput::{self, Throughputs};

/// Contestants with which all other contestants are compared, if measured.
const BASES: [&str; 2] = ["crun", "crun, full seccomp"];

impl Report {
    pub(crate) fn latency(&mut self, latencies: &Latencies) {
        let all = &latencies.all;
        self.rest("latency", latencies.rest);
        let bases = BASES.map(|name| all.iter().find(|latency| latency.name == name));
        println!(
            "\nOne /bin/true, {} runs, in ms. The executor is timed until the exit event, the others until the end of delete.",
            self.json["runs"]
        );
        println!(
            "{:<40} {:>8} {:>8} {:>8}  {:>7} {:>16}  {:>9} {:>11}  {:>9} {:>9}",
            "", "p50", "p99", "min", "/ crun", "/ crun, seccomp", "exit p50", "deleted p50", "machine", "processes"
        );
        let mut rows = Vec::new();
        for latency in all {
            let headline = latency.headline();
            let ratio = |base: Option<&Latency>| base.map(|base| ratio(headline.median(), base.headline().median()));
            let [bare, full] = bases.map(ratio);
            println!(
                "{:<40} {:>8} {:>8} {:>8}  {:>7} {:>16}  {:>9} {:>11}  {:>9} {:>9}",
                latency.name,
                milliseconds(headline.median()),
                milliseconds(headline.percentile(99)),
                milliseconds(headline.min()),
                two_digits(bare),
                two_digits(full),
                milliseconds(latency.exit.median()),
                milliseconds(latency.gone.median()),
                milliseconds(latency.used.machine()),
                milliseconds(latency.used.own()),
            );
            let mut row = figures(latency);
            row["headline"] = if latency.counts_to_exit() { "exit_us" } else { "deleted_us" }.into();
            row["ratio_to_crun"] = bare.into();
            row["ratio_to_crun_full_seccomp"] = full.into();
            rows.push(row);
        }
        report_where_time_goes(all);
        self.json["latency"] = rows.into();
        self.json["latency_processor_at_rest_us_per_second"] = (latencies.rest.load() * 1e6).into();
    }

    /// Compares each contestant of a daemon with the first contestant.
    pub(crate) fn images(&mut self, name: &str, latencies: &Latencies) {
        let Some(base) = latencies.all.first().map(|latency| latency.exit.median()) else { return };
        self.rest("images", latencies.rest);
        println!("\nOne /bin/true of {name} to the exit event, {} runs, in ms, by root file system", self.json["runs"]);
        println!(
            "{:<40} {:>8} {:>8} {:>8}  {:>7}  {:>9} {:>9}",
            "", "p50", "p99", "min", "/ dir:", "machine", "processes"
        );
        let mut rows = Vec::new();
        for latency in &latencies.all {
            let exit = &latency.exit;
            println!(
                "{:<40} {:>8} {:>8} {:>8}  {:>7.3}  {:>9} {:>9}",
                latency.name,
                milliseconds(exit.median()),
                milliseconds(exit.percentile(99)),
                milliseconds(exit.min()),
                ratio(exit.median(), base),
                milliseconds(latency.used.machine()),
                milliseconds(latency.used.own()),
            );
            let mut row = figures(latency);
            row["ratio_to_dir"] = ratio(exit.median(), base).into();
            rows.push(row);
        }
        report_where_time_goes(&latencies.all);
        let rest = latencies.rest.load() * 1e6;
        self.add("images", json!({"name": name, "roots": rows, "processor_at_rest_us_per_second": rest}));
    }

    pub(crate) fn throughput(&mut self, throughputs: &Throughputs) {
        self.rest("throughput", throughputs.rest);
        println!(
            "\nContainers per second, from start to deletion, over {} containers, and ms of processor time per container",
            throughputs.containers
        );
        let mut head = format!("{:<40}", "");
        for lanes in throughput::LANES {
            let _ = write!(head, " {:>10} {:>9} {:>9}", format!("{lanes} lanes"), "machine", "processes");
        }
        println!("{head}");
        let mut rows = Vec::new();
        for one in &throughputs.all {
            let mut line = format!("{:<40}", one.name);
            for (rate, used) in one.rates.iter().zip(&one.used) {
                let _ =
                    write!(line, " {rate:>10.1} {:>9} {:>9}", milliseconds(used.machine()), milliseconds(used.own()));
            }
            println!("{line}");
            let used: Vec<_> = one.used.iter().map(processor).collect();
            rows.push(json!({"name": one.name, "per_second": one.rates, "processor": used}));
        }
        self.json["throughput"] = json!({
            "at_once": throughput::LANES,
            "containers": throughputs.containers,
            "contestants": rows,
            "processor_at_rest_us_per_second": throughputs.rest.load() * 1e6,
        });
    }
}

impl Latency {
    /// Returns true if the work ends with the exit event. Before this event the executor has done the work that a
    /// runtime does in `delete`, except for the removal of the record.
    fn counts_to_exit(&self) -> bool {
        self.name.starts_with("executor")
    }

    fn headline(&self) -> &Sample {
        if self.counts_to_exit() { &self.exit } else { &self.gone }
    }
}

/// Prints the duration of each phase and the CPU time of each process, for contestants that report phases.
fn report_where_time_goes(latencies: &[Latency]) {
    let reported: Vec<_> = latencies.iter().filter(|latency| !latency.phases.is_empty()).collect();
    let Some(first) = reported.first() else { return };
    println!("\nWhere the time goes, in ms (p50 of each phase; rest: client, transport, executord and the launcher)");
    row("", first.phases.iter().map(|(name, _)| (*name).to_owned()));
    for latency in &reported {
        row(&latency.name, latency.phases.iter().map(|(_, took)| milliseconds(took.median())));
    }
    println!("\nProcessor time by process, in ms per container (other: the kernel's own threads, interrupts)");
    row("", first.used.by_process().iter().map(|(name, _)| (*name).to_owned()));
    for latency in &reported {
        row(&latency.name, latency.used.by_process().iter().map(|(_, time)| milliseconds(*time)));
    }
}

fn row(name: &str, cells: impl Iterator<Item = String>) {
    let cells = cells.fold(String::new(), |line, cell| format!("{line} {cell:>9}"));
    println!("{name:<40}{cells}");
}

fn figures(latency: &Latency) -> Value {
    let phases: BTreeMap<_, _> = latency.phases.iter().map(|(name, took)| (*name, sample(took))).collect();
    json!({
        "name": latency.name,
        "exit_us": sample(&latency.exit),
        "deleted_us": sample(&latency.gone),
        "phases_us": phases,
        "processor": processor(&latency.used),
    })
}

/// Returns the CPU time per container: of the whole machine, and by process.
pub(super) fn processor(used: &Used) -> Value {
    let each = |(name, time): (&'static str, Duration)| (name, micros(time));
    json!({
        "lives": used.lives(),
        "machine_us_per_life": micros(used.machine()),
        "own_processes_us_per_life": micros(used.own()),
        "by_process_us_per_life": used.by_process().into_iter().map(each).collect::<BTreeMap<_, _>>(),
    })
}

fn two_digits(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}
