//! Formats the output of `stats` for people, one line per container.

use std::time::SystemTime;

use executor_cli_kit::view::quantity::bytes;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_client::v1::{ContainerStats, State, Usage};
use serde_json::Value;

use super::format::Listed;
use super::human::state;
use super::json;

const NOTHING: &str = "-";

/// Columns of the table: heading and field.
const COLUMNS: [(&str, &str); 9] = [
    ("ID", "ID"),
    ("STATE", "State"),
    ("CPU %", "CPUPerc"),
    ("CPU TIME", "CPUTime"),
    ("MEM USAGE / LIMIT", "MemUsage"),
    ("MEM %", "MemPerc"),
    ("NET I/O", "NetIO"),
    ("BLOCK I/O", "BlockIO"),
    ("PIDS", "PIDs"),
];

/// A reading of a container's counters, and the previous reading of the same container.
pub(crate) struct Reading<'a> {
    now: &'a ContainerStats,
    /// The previous reading, from which the CPU share is computed.
    before: Option<&'a Usage>,
}

/// Pairs each reading with the previous reading.
pub(crate) fn readings<'a>(now: &'a [ContainerStats], before: &'a [ContainerStats]) -> Vec<Reading<'a>> {
    let last = |id: &str| before.iter().find(|last| last.id == id).and_then(|last| last.usage.as_ref());
    now.iter().map(|now| Reading { now, before: last(&now.id) }).collect()
}

/// Formats a table of readings. `before` are the previous readings.
pub(crate) fn table(now: &[ContainerStats], before: &[ContainerStats], style: Style) -> String {
    let mut table = Table::with_heading(0, &COLUMNS.map(|(heading, _)| heading));
    for reading in readings(now, before) {
        let role = |field| match field {
            "State" => Role::from_state(State::try_from(reading.now.state).unwrap_or_default()),
            _ => Role::Plain,
        };
        table.row(COLUMNS.map(|(_, field)| (reading.field(field, SystemTime::UNIX_EPOCH), role(field))));
    }
    table.render(style)
}

impl Listed for Reading<'_> {
    const FIELDS: &'static [(&'static str, &'static str)] = &[
        ("ID", "CONTAINER ID"),
        ("Container", "CONTAINER"),
        ("Name", "NAME"),
        ("State", "STATE"),
        ("CPUPerc", "CPU %"),
        ("CPUTime", "CPU TIME"),
        ("MemUsage", "MEM USAGE / LIMIT"),
        ("MemPerc", "MEM %"),
        ("NetIO", "NET I/O"),
        ("BlockIO", "BLOCK I/O"),
        ("PIDs", "PIDS"),
    ];

    fn field(&self, name: &str, _now: SystemTime) -> String {
        let memory = self.now.limits.as_ref().map_or(0, |limits| limits.memory_bytes);
        let of = |text: &dyn Fn(&Usage) -> Option<String>| {
            self.now.usage.as_ref().and_then(text).unwrap_or_else(|| NOTHING.into())
        };
        match name {
            "ID" | "Container" | "Name" => self.now.id.clone(),
            "State" => state_of(self.now),
            "CPUPerc" => of(&|usage| share(usage, self.before?).map(percent)),
            "CPUTime" => of(&|usage| Some(seconds(usage.cpu?.total_ns))),
            "MemUsage" => of(&|usage| used(usage, memory)),
            "MemPerc" => of(&|usage| share_of_limit(usage, memory)),
            "NetIO" => of(&|usage| usage.network.map(|network| pair(network.received_bytes, network.sent_bytes))),
            "BlockIO" => of(&|usage| usage.io.map(|io| pair(io.read_bytes, io.written_bytes))),
            "PIDs" => of(&|usage| Some(usage.pids?.current.to_string())),
            _ => String::new(),
        }
    }

    fn document(&self) -> Value {
        serde_json::to_value(json::ContainerStats::from(self.now)).unwrap_or_default()
    }
}

/// Formats the state of a container, with its health if it has checks: `running (not ready)`.
fn state_of(one: &ContainerStats) -> String {
    let health = one.ready.map(|ready| if ready { " (ready)" } else { " (not ready)" });
    state(one.state) + health.unwrap_or_default()
}

/// Formats CPU time: `1.250 s`.
pub(crate) fn seconds(nanoseconds: u64) -> String {
    format!("{}.{:03} s", nanoseconds / 1_000_000_000, nanoseconds / 1_000_000 % 1000)
}

fn pair(one: u64, other: u64) -> String {
    format!("{} / {}", bytes(one), bytes(other))
}

/// Formats memory in use and its limit.
fn used(usage: &Usage, limit: u64) -> Option<String> {
    let used = bytes(usage.memory?.working_set_bytes);
    Some(format!("{used} / {}", if limit == 0 { NOTHING.into() } else { bytes(limit) }))
}

/// Formats the used share of the memory limit, in percent.
fn share_of_limit(usage: &Usage, limit: u64) -> Option<String> {
    let tenths = (u128::from(usage.memory?.working_set_bytes) * 1000).checked_div(u128::from(limit))?;
    Some(format!("{}.{} %", tenths / 10, tenths % 10))
}

fn percent(tenths: i128) -> String {
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Returns the used share of one CPU between two readings, in tenths of a percent.
pub(crate) fn share(now: &Usage, before: &Usage) -> Option<i128> {
    let at = |usage: &Usage| {
        let time = usage.time?;
        Some(i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos))
    };
    let elapsed = at(now)? - at(before)?;
    let used = i128::from(now.cpu?.total_ns) - i128::from(before.cpu?.total_ns);
    if elapsed <= 0 || used < 0 {
        return None;
    }
    Some(used * 1000 / elapsed)
}

#[cfg(test)]
mod tests {
    use executor_client::v1::{CpuUsage, IoUsage, Limits, MemoryUsage, PidsUsage};
    use prost_types::Timestamp;

    use super::*;

    #[test]
    fn a_line_for_each_container() {
        let reading = |seconds, total_ns| {
            let usage = Usage {
                time: Some(Timestamp { seconds, nanos: 500_000_000 }),
                cpu: Some(CpuUsage { total_ns, ..CpuUsage::default() }),
                memory: Some(MemoryUsage { working_set_bytes: 3 << 20, ..MemoryUsage::default() }),
                pids: Some(PidsUsage { current: 2 }),
                io: Some(IoUsage { read_bytes: 1024, ..IoUsage::default() }),
                network: None,
                ..Usage::default()
            };
            let limits = Some(Limits { memory_bytes: 64 << 20, ..Limits::default() });
            ContainerStats {
                id: "web".into(),
                state: State::Running.into(),
                usage: Some(usage),
                limits,
                ready: Some(seconds > 10),
            }
        };
        let none = ContainerStats { id: "x".into(), state: State::Created.into(), ..ContainerStats::default() };
        let text = table(&[reading(12, 2_250_000_000), none], &[reading(10, 1_000_000_000)], Style::PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        let words = |line: &str| {
            line.split("   ").map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect::<Vec<_>>()
        };
        assert_eq!(
            words(lines[1]),
            ["web", "running (ready)", "62.5 %", "2.250 s", "3 MiB / 64 MiB", "4.6 %", "-", "1 KiB / 0 bytes", "2"]
        );
        assert_eq!(words(lines[2]), ["x", "created", "-", "-", "-", "-", "-", "-", "-"]);
        let first = table(&[reading(10, 1)], &[], Style::PLAIN);
        let words = words(first.lines().nth(1).unwrap());
        assert_eq!(&words[1..3], ["running (not ready)", "-"], "no share without an earlier reading");
    }
}
