//! Prints the tables of measurements with many containers: bursts, idle containers, a thousand containers, and failure
//! counts.

use serde_json::json;

use super::lives::processor;
use super::{Report, megabytes, micros, milliseconds, sample};
use crate::burst::{BURSTS, Bursts};
use crate::failures::{self, Failures};
use crate::many::{self, Many};
use crate::memory::{self, Idle};
use crate::processor::Used;

impl Report {
    pub(crate) fn burst(&mut self, bursts: &Bursts) {
        let count = bursts.containers;
        self.rest("burst", bursts.rest);
        println!(
            "\n{count} containers requested at the same time, {BURSTS} times; ms until an exit is known (p50), and ms of processor time per container"
        );
        println!("{:<40} {:>9} {:>9} {:>9}  {:>9} {:>9}", "", "first", "median", "last", "machine", "processes");
        let mut rows = Vec::new();
        for burst in &bursts.all {
            println!(
                "{:<40} {:>9} {:>9} {:>9}  {:>9} {:>9}",
                burst.name,
                milliseconds(burst.first.median()),
                milliseconds(burst.median.median()),
                milliseconds(burst.last.median()),
                milliseconds(burst.used.machine()),
                milliseconds(burst.used.own()),
            );
            rows.push(json!({
                "name": burst.name,
                "first_exit_us": sample(&burst.first),
                "median_exit_us": sample(&burst.median),
                "last_exit_us": sample(&burst.last),
                "processor": processor(&burst.used),
            }));
        }
        self.json["burst"] = json!({
            "containers": count,
            "bursts": BURSTS,
            "contestants": rows,
            "processor_at_rest_us_per_second": bursts.rest.load() * 1e6,
        });
    }

    pub(crate) fn memory(&mut self, idle: &Idle) {
        let (count, name) = (memory::CONTAINERS, &idle.name);
        println!("\nMemory of {name}'s processes (PSS, kB of 1024 bytes), without a container and with {count} idle");
        for (role, with) in &idle.with.pss {
            println!("{role:<40} {:>9} {with:>9}", idle.before.pss.get(role).unwrap_or(&0));
        }
        let (before, with) = (idle.before.together(), idle.with.together());
        println!("{:<40} {before:>9} {with:>9}  in {} processes", "total", idle.with.processes);
        let each = |kilobytes: u64| megabytes(kilobytes) / f64::from(count);
        let (all, added) = (each(with), each(with.saturating_sub(before)));
        println!("per idle container       {all:.3} MB of the total, {added:.3} MB added by each");
        println!("executord, resident      {:.1} MB", megabytes(idle.with.executord_rss));
        let figures = json!({
            "name": name,
            "containers": count,
            "pss_kib_without": idle.before.pss,
            "pss_kib_with": idle.with.pss,
            "pss_mb_per_container": all,
            "pss_mb_added_per_container": added,
            "executord_resident_mb": megabytes(idle.with.executord_rss),
            "processes": idle.with.processes,
        });
        self.add("memory", figures);
    }

    pub(crate) fn many(&mut self, many: &Many) {
        let (count, part) = (many.containers, many.part);
        self.rest("many", many.rest);
        println!("\n{count} idle containers of {} at the same time; {} concurrent calls", many.name, many::LANES);
        println!(
            "started in               {:.2} s; {} ms each of the first {part}, {} ms each of the last {part}",
            many.start.as_secs_f64(),
            milliseconds(many.first),
            milliseconds(many.last),
        );
        println!("deleted in               {:.2} s", many.delete.as_secs_f64());
        println!(
            "processor time           {} ms of the machine for each start, {} ms for each deletion",
            milliseconds(many.start_used.machine()),
            milliseconds(many.delete_used.machine()),
        );
        for (what, used) in [("start", &many.start_used), ("deletion, with the shim", &many.delete_used)] {
            println!("  of each {what}: {}", reported(used));
        }
        let together = many.memory.together();
        let each = megabytes(together) / f64::from(count);
        let roles: Vec<_> = many.memory.pss.iter().map(|(role, kilobytes)| format!("{role} {kilobytes}")).collect();
        println!("PSS, kB of 1024 bytes    {together} in {} processes: {}", many.memory.processes, roles.join(", "));
        println!("per container            {each:.3} MB of the total");
        println!("executord, resident      {:.1} MB", megabytes(many.memory.executord_rss));
        let left: Vec<_> = many.left.named().iter().map(|(what, count)| format!("{count} {what}")).collect();
        println!("leftovers after deletion {}", left.join(", "));
        self.failed |= !many.left.is_zero();
        let left: serde_json::Map<_, _> =
            many.left.named().map(|(what, count)| (what.to_owned(), count.into())).into_iter().collect();
        let figures = json!({
            "name": many.name,
            "containers": count,
            "at_once": many::LANES,
            "start_us": micros(many.start),
            "part_containers": part,
            "first_part_us_per_container": micros(many.first),
            "last_part_us_per_container": micros(many.last),
            "delete_us": micros(many.delete),
            "start_processor": processor(&many.start_used),
            "delete_processor": processor(&many.delete_used),
            "pss_kib": many.memory.pss,
            "pss_mb_per_container": each,
            "executord_resident_mb": megabytes(many.memory.executord_rss),
            "processes": many.memory.processes,
            "left_count": left,
            "processor_at_rest_us_per_second": many.rest.load() * 1e6,
        });
        self.add("many", figures);
    }

    pub(crate) fn failures(&mut self, failures: &Failures) {
        self.rest("failures", failures.rest);
        println!(
            "\n{}: {} failures in {} runs, {} concurrent; {} ms of the machine's processor time each",
            failures.name,
            failures.lines.len(),
            failures::RUNS,
            failures::LANES,
            milliseconds(failures.used.machine()),
        );
        for failure in failures.lines.iter().take(5) {
            println!("  {failure}");
        }
        println!("  by process, in ms: {}", reported(&failures.used));
        self.failed |= !failures.lines.is_empty();
        let figures = json!({
            "name": failures.name,
            "runs": failures::RUNS,
            "at_once": failures::LANES,
            "failed": failures.lines.len(),
            "processor": processor(&failures.used),
            "processor_at_rest_us_per_second": failures.rest.load() * 1e6,
        });
        self.add("failures", figures);
    }
}

/// Returns the CPU time by process per container, in milliseconds.
fn reported(used: &Used) -> String {
    let reported: Vec<_> =
        used.by_process().iter().map(|(name, time)| format!("{name} {}", milliseconds(*time))).collect();
    reported.join(", ")
}
