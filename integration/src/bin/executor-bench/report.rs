//! Report of the measurements: a table for people as parts complete, and JSON at the end. Field names end with their
//! units.

mod crowds;
mod lives;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::processor::IdleLoad;
use crate::redaction::Speeds;
use crate::stage::Stage;
use crate::stats::Sample;
use crate::strangers::Strangers;

const METHOD: &str = "Interleaved: every contestant runs once per round, in a newly shuffled order. Figures are medians \
                      and ratios of medians from one run. All contestants have the same rootfs, static `true`, \
                      namespaces, limits and user; the executor adds a user namespace; bwrap has no limits and runs \
                      as root without capabilities. Runtimes are timed over create, start, exit and delete. The \
                      executor is timed from the client's call to the exit event (secrets wiped, cgroup removed, \
                      result recorded), with its own seccomp filter, on a persistent connection. Processor time is \
                      the time of the whole machine, including kernel threads, until the deletion has ended, minus \
                      the load of the idle machine.";

/// A report that prints and stores each part when it is added.
pub(crate) struct Report {
    json: Value,
    failed: bool,
    /// Parts during which the machine was not idle.
    disturbed: Vec<&'static str>,
}

impl Report {
    pub(crate) fn new(runs: u32, stage: &Stage<'_>, seccomp: bool) -> Self {
        let mut versions: Vec<_> = stage.peers.iter().filter_map(|peer| peer.version()).collect();
        versions.dedup();
        let host = stage.host;
        let json = json!({
            "method": METHOD,
            "machine": {"kernel": host.kernel, "cpus": host.cpus, "cgroups": host.cgroups},
            "runs": runs,
            "peers": versions,
            "full_seccomp_profile": seccomp,
            "recorded_by_perf": stage.profiler.records(),
        });
        Self { json, failed: false, disturbed: Vec::new() }
    }

    /// Prints the machine and the method.
    pub(crate) fn head(&self) {
        let machine = &self.json["machine"];
        let versions: Vec<_> = self.json["peers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        println!(
            "\nkernel {}, {} processors, cgroups {}; {}",
            machine["kernel"].as_str().unwrap_or_default(),
            machine["cpus"],
            machine["cgroups"].as_str().unwrap_or_default(),
            if versions.is_empty() { "no program to compare with".to_owned() } else { versions.join(", ") },
        );
        println!("Method: {METHOD}");
        if self.json["recorded_by_perf"] == true {
            println!("perf is recording. The recording itself uses processor time.");
        }
    }

    /// Reports the load of the idle machine, before the table of a part.
    fn rest(&mut self, part: &'static str, rest: IdleLoad) {
        let [load, highest] = [rest.load(), rest.highest()].map(|load| load * 1e3);
        println!();
        if !rest.is_quiet() {
            println!(
                "{part}: THE MACHINE WAS NOT IDLE: these figures do not count. Repeat the part on an idle machine."
            );
            self.disturbed.push(part);
        }
        println!(
            "{part}: the idle machine used {load:.1} ms of processor time a second; at most {highest:.1} ms between runs"
        );
    }

    pub(crate) fn redaction(&mut self, speeds: &Speeds, rest: IdleLoad) {
        self.rest("redaction", rest);
        println!(
            "\nMasking {} values ({} forms) in output, MB per second of processor time (median)",
            speeds.values, speeds.forms
        );
        for (name, rate) in &speeds.rates {
            println!("{name:<24} {rate:>9.0}");
        }
        let (build, kilobytes) = (milliseconds(speeds.build), speeds.bytes / 1000);
        println!("built in {build} ms; uses {kilobytes} kB, aho-corasick uses {} kB", speeds.peer_bytes / 1000);
        self.json["redaction"] = json!({
            "values": speeds.values,
            "forms": speeds.forms,
            "megabytes_per_second": speeds.rates.iter().copied().collect::<BTreeMap<_, _>>(),
            "build_us": micros(speeds.build),
            "bytes": speeds.bytes,
            "aho_corasick_bytes": speeds.peer_bytes,
        });
    }

    pub(crate) fn strangers(&mut self, strangers: &Strangers, rest: IdleLoad) {
        self.rest("strangers", rest);
        let Strangers { quiet, beset, handshakes, over, resident: (before, most) } = strangers;
        let a_minute = *handshakes as f64 / over.as_secs_f64() * 60.0;
        println!("\nCalls over TLS, in ms: alone, and during {a_minute:.0} unauthenticated handshakes a minute");
        println!("{:<40} {:>9} {:>9}  {:>9} {:>9}", "", "p50", "p99", "p50", "p99");
        let mut rows = Vec::new();
        for (name, quiet, beset) in
            [("on a kept connection", &quiet.kept, &beset.kept), ("with a new connection", &quiet.new, &beset.new)]
        {
            println!(
                "{name:<40} {:>9} {:>9}  {:>9} {:>9}",
                milliseconds(quiet.median()),
                milliseconds(quiet.percentile(99)),
                milliseconds(beset.median()),
                milliseconds(beset.percentile(99)),
            );
            rows.push(json!({"name": name, "quiet_us": sample(quiet), "beset_us": sample(beset)}));
        }
        println!(
            "executord, resident      {:.1} MB before, at most {:.1} MB",
            megabytes(before >> 10),
            megabytes(most >> 10)
        );
        self.json["strangers"] = json!({
            "handshakes_per_minute": a_minute,
            "calls": rows,
            "executord_resident_before_bytes": before,
            "executord_resident_most_bytes": most,
        });
    }

    /// Adds the figures of a daemon to a part.
    fn add(&mut self, part: &str, figures: Value) {
        match &mut self.json[part] {
            Value::Array(known) => known.push(figures),
            missing => *missing = json!([figures]),
        }
    }

    /// Returns the whole report as JSON.
    pub(crate) fn json(&self) -> String {
        let mut json = self.json.clone();
        json["at_rest"] = self.disturbed.is_empty().into();
        json["parts_not_at_rest"] = json!(self.disturbed);
        format!("{json:#}\n")
    }

    /// Returns the parts during which the machine was not idle.
    pub(crate) fn disturbed(&self) -> &[&'static str] {
        &self.disturbed
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn sample(sample: &Sample) -> Value {
    json!({"p50": micros(sample.median()), "p99": micros(sample.percentile(99)), "min": micros(sample.min())})
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1e3)
}

fn ratio(ours: Duration, base: Duration) -> f64 {
    ours.as_secs_f64() / base.as_secs_f64()
}

/// Converts the kernel's kB (1,024 bytes) into millions of bytes.
#[allow(clippy::cast_precision_loss)] // far below 2^52
fn megabytes(kilobytes: u64) -> f64 {
    kilobytes as f64 * 1024.0 / 1e6
}
