//! Report of the measurements: a table for people as parts complete, and JSON at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::failures::{self, Failures};
use crate::host::Host;
use crate::latency::Latency;
use crate::memory::{self, Memory};
use crate::redaction::Speeds;
use crate::runtime::Runtimes;
use crate::stats::Sample;
use crate::throughput::{self, Throughput};

const METHOD: &str = "interleaved: every contestant once a round, in an order shuffled anew; medians and ratios of one \
                      run; same rootfs, static `true`, namespaces (executor: a user namespace besides), limits and \
                      user. Runtimes: create, start, exit, delete. Executor: from the client's call to the exit event \
                      (wiped, cgroup gone, result recorded), its own seccomp filter always on, on a kept connection.";
/// The contestants that all others are compared with, if they were measured.
const BASES: [&str; 2] = ["crun", "crun, full seccomp"];

/// A report that prints each part as it is handed in, and keeps it.
pub(crate) struct Report {
    json: Value,
    failed: bool,
}

impl Report {
    pub(crate) fn new(runs: u32, host: &Host, runtimes: &Runtimes, seccomp: bool) -> Self {
        let mut versions: Vec<_> = runtimes.0.iter().map(|runtime| runtime.version.as_str()).collect();
        versions.dedup();
        let json = json!({
            "method": METHOD,
            "machine": {"kernel": host.kernel, "cpus": host.cpus, "cgroups": host.cgroups},
            "runs": runs,
            "runtimes": versions,
            "full_seccomp_profile": seccomp,
        });
        Self { json, failed: false }
    }

    /// Prints the machine and the method.
    pub(crate) fn head(&self) {
        let machine = &self.json["machine"];
        let versions: Vec<_> =
            self.json["runtimes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        println!(
            "\nkernel {}, {} processors, cgroups {}; {}",
            machine["kernel"].as_str().unwrap_or_default(),
            machine["cpus"],
            machine["cgroups"].as_str().unwrap_or_default(),
            if versions.is_empty() { "neither crun nor runc is installed".to_owned() } else { versions.join(", ") },
        );
        println!("Method: {METHOD}");
    }

    pub(crate) fn latency(&mut self, latencies: &[Latency]) {
        let bases = BASES.map(|name| latencies.iter().find(|latency| latency.name == name));
        println!(
            "\nOne /bin/true, {} runs, in ms. Counted: executor to the exit event, runtimes to the end of delete.",
            self.json["runs"]
        );
        println!(
            "{:<24} {:>8} {:>8} {:>8}  {:>7} {:>16}  {:>12} {:>11}",
            "", "p50", "p99", "min", "/ crun", "/ crun, seccomp", "exit p50", "deleted p50"
        );
        let mut rows = Vec::new();
        for latency in latencies {
            let sample = latency.headline();
            let ratio = |base: Option<&Latency>| base.map(|base| ratio(sample.median(), base.headline().median()));
            let [bare, full] = bases.map(ratio);
            println!(
                "{:<24} {:>8} {:>8} {:>8}  {:>7} {:>16}  {:>12} {:>11}",
                latency.name,
                milliseconds(sample.median()),
                milliseconds(sample.percentile(99)),
                milliseconds(sample.min()),
                two_digits(bare),
                two_digits(full),
                milliseconds(latency.exit.median()),
                milliseconds(latency.gone.median()),
            );
            rows.push(json!({
                "name": latency.name,
                "exit_us": micros(&latency.exit),
                "deleted_us": micros(&latency.gone),
                "phases_us": phases(latency),
                "headline": if latency.counts_to_exit() { "exit_us" } else { "deleted_us" },
                "ratio_to_crun": bare,
                "ratio_to_crun_full_seccomp": full,
            }));
        }
        tell_phases(latencies);
        self.json["latency"] = rows.into();
    }

    /// Compares each contestant with the first one.
    pub(crate) fn images(&mut self, latencies: &[Latency]) {
        let Some(base) = latencies.first().map(|latency| latency.exit.median()) else { return };
        println!("\nOne /bin/true to the exit event, {} runs, in ms, by its root file system", self.json["runs"]);
        println!("{:<24} {:>8} {:>8} {:>8}  {:>7}", "", "p50", "p99", "min", "/ dir:");
        let mut rows = Vec::new();
        for latency in latencies {
            let sample = &latency.exit;
            println!(
                "{:<24} {:>8} {:>8} {:>8}  {:>7.3}",
                latency.name,
                milliseconds(sample.median()),
                milliseconds(sample.percentile(99)),
                milliseconds(sample.min()),
                ratio(sample.median(), base),
            );
            rows.push(json!({
                "name": latency.name,
                "exit_us": micros(sample),
                "phases_us": phases(latency),
                "ratio_to_dir": ratio(sample.median(), base),
            }));
        }
        tell_phases(latencies);
        self.json["images"] = rows.into();
    }

    pub(crate) fn throughput(&mut self, all: &[Throughput]) {
        println!("\nContainers per second, from begin to delete");
        let mut head = format!("{:<24}", "");
        for lanes in throughput::LANES {
            let _ = write!(head, " {:>9}", format!("{lanes} at once"));
        }
        println!("{head}");
        for one in all {
            let mut line = format!("{:<24}", one.name);
            for rate in &one.rates {
                let _ = write!(line, " {rate:>9.1}");
            }
            println!("{line}");
        }
        let rows = all.iter().map(|one| json!({"name": one.name, "per_second": one.rates}));
        self.json["throughput"] = json!({"at_once": throughput::LANES, "contestants": rows.collect::<Vec<_>>()});
    }

    pub(crate) fn memory(&mut self, memory: &Memory) {
        let count = memory::CONTAINERS;
        println!("\nMemory of our processes (PSS, kB of 1024 bytes), without a container and with {count} idle ones");
        for (role, with) in &memory.with {
            println!("{role:<24} {:>9} {with:>9}", memory.before.get(role).unwrap_or(&0));
        }
        let (before, with) = (memory.before.values().sum::<u64>(), memory.with.values().sum::<u64>());
        println!("{:<24} {before:>9} {with:>9}  in {} processes", "together", memory.processes);
        let each = |kilobytes: u64| megabytes(kilobytes) / f64::from(count);
        let (all, added) = (each(with), each(with.saturating_sub(before)));
        println!("per idle container       {all:.3} MB of everything, {added:.3} MB added by each");
        println!("daemon, resident         {:.1} MB", megabytes(memory.daemon_rss));
        self.json["memory"] = json!({
            "containers": count,
            "pss_kib_without": memory.before,
            "pss_kib_with": memory.with,
            "pss_mb_per_container": all,
            "pss_mb_added_per_container": added,
            "daemon_resident_mb": megabytes(memory.daemon_rss),
            "processes": memory.processes,
        });
    }

    pub(crate) fn failures(&mut self, failures: &Failures) {
        println!(
            "\n{} failures in {} runs, {} at once; {} ms of the machine's processor time each",
            failures.lines.len(),
            failures::RUNS,
            failures::LANES,
            milliseconds(failures.processor)
        );
        for failure in failures.lines.iter().take(5) {
            println!("  {failure}");
        }
        self.failed |= !failures.lines.is_empty();
        self.json["failures"] = json!({
            "runs": failures::RUNS,
            "at_once": failures::LANES,
            "failed": failures.lines.len(),
            "processor_us": failures.processor.as_micros() as u64,
        });
    }

    pub(crate) fn redaction(&mut self, speeds: &Speeds) {
        println!(
            "\nMasking {} values ({} forms) in output, MB per second of processor time (median)",
            speeds.values, speeds.forms
        );
        for (name, rate) in &speeds.rates {
            println!("{name:<24} {rate:>9.0}");
        }
        let (build, kilobytes) = (milliseconds(speeds.build), speeds.bytes / 1000);
        println!("made in {build} ms; holds {kilobytes} kB, aho-corasick {} kB", speeds.peer_bytes / 1000);
        self.json["redaction"] = json!({
            "values": speeds.values,
            "forms": speeds.forms,
            "megabytes_per_second": speeds.rates.iter().copied().collect::<BTreeMap<_, _>>(),
            "build_us": speeds.build.as_micros() as u64,
            "bytes": speeds.bytes,
            "aho_corasick_bytes": speeds.peer_bytes,
        });
    }

    /// Returns the whole report as JSON.
    pub(crate) fn json(&self) -> String {
        format!("{:#}\n", self.json)
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed
    }
}

impl Latency {
    /// Returns whether the exit event is the end of the work: the executor has then done what a runtime does in
    /// `delete`, except for removing the record.
    fn counts_to_exit(&self) -> bool {
        self.name.starts_with("executor")
    }

    fn headline(&self) -> &Sample {
        if self.counts_to_exit() { &self.exit } else { &self.gone }
    }
}

fn tell_phases(latencies: &[Latency]) {
    for latency in latencies.iter().filter(|latency| !latency.phases.is_empty()) {
        let told = latency.phases.iter().map(|(name, took)| format!("{name} {}", milliseconds(took.median())));
        println!("  {} (p50): {}", latency.name, told.collect::<Vec<_>>().join(", "));
    }
}

fn phases(latency: &Latency) -> BTreeMap<&'static str, Value> {
    latency.phases.iter().map(|(name, took)| (*name, micros(took))).collect()
}

fn micros(sample: &Sample) -> Value {
    let micros = |duration: Duration| duration.as_micros() as u64;
    json!({"p50": micros(sample.median()), "p99": micros(sample.percentile(99)), "min": micros(sample.min())})
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1e3)
}

fn two_digits(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn ratio(ours: Duration, base: Duration) -> f64 {
    ours.as_secs_f64() / base.as_secs_f64()
}

/// Converts the kernel's kB (1,024 bytes) into millions of bytes.
#[allow(clippy::cast_precision_loss)] // far below 2^52
fn megabytes(kilobytes: u64) -> f64 {
    kilobytes as f64 * 1024.0 / 1e6
}
