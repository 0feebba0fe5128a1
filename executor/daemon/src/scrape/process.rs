//! Collects metrics of the daemon's process under the standard exporter names, and the daemon's version.

use rustix::process::{Resource, getrlimit};

use super::families::{Families, Kind};
use crate::node::Node;

pub(super) fn add_process_metrics(families: &mut Families, node: &Node) {
    let version = [(vec![("version".into(), executor_secrets::VERSION.into())], 1)];
    families.series(Kind::Gauge, "executor_build_info", "1, with the version of executord", version);
    #[allow(clippy::cast_precision_loss)]
    let started = node.started_at.0 as f64 / 1e9;
    let help = "Start of executord, in seconds since the epoch";
    families.put(Kind::Gauge, "process_start_time_seconds", help, started);
    if let Some(Stat { cpu_seconds, threads, virtual_bytes, resident_bytes }) = Stat::read() {
        families.put(Kind::Counter, "process_cpu_seconds", "CPU time of executord", cpu_seconds);
        families.put(Kind::Gauge, "process_threads", "Threads of executord", threads);
        families.put(Kind::Gauge, "process_virtual_memory_bytes", "Virtual memory of executord", virtual_bytes);
        families.put(Kind::Gauge, "process_resident_memory_bytes", "Resident memory of executord", resident_bytes);
    }
    if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
        families.put(Kind::Gauge, "process_open_fds", "Open descriptors of executord", fds.count() as u64);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        families.put(Kind::Gauge, "process_max_fds", "Descriptors that executord may have open", most);
    }
}

/// Values of `/proc/self/stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    threads: u64,
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl Stat {
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&text, rustix::param::clock_ticks_per_second(), rustix::param::page_size() as u64)
    }

    fn parse(text: &str, ticks: u64, page: u64) -> Option<Self> {
        // The process name may contain any characters, so fields are counted after the last `)`.
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        #[allow(clippy::cast_precision_loss)]
        let cpu_seconds = (number(14)? + number(15)?) as f64 / ticks.max(1) as f64;
        Some(Self {
            cpu_seconds,
            threads: number(20)?,
            virtual_bytes: number(23)?,
            resident_bytes: number(24)?.saturating_mul(page),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_whatever_the_name_is() {
        let text = "7 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 16 17 18 19 4 21 22 8192 3 25";
        let expected = Stat { cpu_seconds: 2.0, threads: 4, virtual_bytes: 8192, resident_bytes: 12288 };
        assert_eq!(Stat::parse(text, 100, 4096), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1", 100, 4096), None);
        assert!(Stat::read().is_some());
    }
}
