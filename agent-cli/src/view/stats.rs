//! `stats` for a person: a line for each container.

use executor_client::v1::{ContainerStats, State, Usage};

use super::human::{bytes, state};
use super::style::{Role, Style};
use super::table::Table;

const NOTHING: &str = "-";

/// The table of a reading; `before` is the one before it, from which the share of the processors is computed.
pub(crate) fn table(readings: &[ContainerStats], before: &[ContainerStats], style: Style) -> String {
    let heading = ["ID", "STATE", "CPU %", "CPU TIME", "MEM USAGE / LIMIT", "MEM %", "NET I/O", "BLOCK I/O", "PIDS"];
    let mut table = Table::with_heading(0, &heading);
    for one in readings {
        let last = before.iter().find(|last| last.id == one.id).and_then(|last| last.usage.as_ref());
        let usage = one.usage.as_ref();
        let of = |text: fn(&Usage) -> Option<String>| usage.and_then(text).unwrap_or_else(|| NOTHING.into());
        let memory = one.limits.clone().map_or(0, |limits| limits.memory_bytes);
        let cells = [
            usage.and_then(|usage| share(usage, last?)).map_or_else(|| NOTHING.into(), percent),
            of(|usage| Some(seconds(usage.cpu?.total_ns))),
            usage.and_then(|usage| used(usage, memory)).unwrap_or_else(|| NOTHING.into()),
            usage.and_then(|usage| share_of_limit(usage, memory)).unwrap_or_else(|| NOTHING.into()),
            of(|usage| usage.network.map(|network| pair(network.received_bytes, network.sent_bytes))),
            of(|usage| usage.io.map(|io| pair(io.read_bytes, io.written_bytes))),
            of(|usage| Some(usage.pids?.current.to_string())),
        ];
        let head = [
            (one.id.clone(), Role::Plain),
            (state_of(one), Role::of_state(State::try_from(one.state).unwrap_or_default())),
        ];
        table.row(head.into_iter().chain(cells.map(|text| (text, Role::Plain))));
    }
    table.render(style)
}

/// State of a container, with its health if it has checks: `running (not ready)`.
fn state_of(one: &ContainerStats) -> String {
    let health = one.ready.map(|ready| if ready { " (ready)" } else { " (not ready)" });
    state(one.state) + health.unwrap_or_default()
}

/// Processor time: `1.250 s`.
pub(crate) fn seconds(nanoseconds: u64) -> String {
    format!("{}.{:03} s", nanoseconds / 1_000_000_000, nanoseconds / 1_000_000 % 1000)
}

fn pair(one: u64, other: u64) -> String {
    format!("{} / {}", bytes(one), bytes(other))
}

/// Memory in use, and its limit.
fn used(usage: &Usage, limit: u64) -> Option<String> {
    let used = bytes(usage.memory?.working_set_bytes);
    Some(format!("{used} / {}", if limit == 0 { NOTHING.into() } else { bytes(limit) }))
}

/// Share of the limit of memory that is in use, in percent.
fn share_of_limit(usage: &Usage, limit: u64) -> Option<String> {
    let tenths = (u128::from(usage.memory?.working_set_bytes) * 1000).checked_div(u128::from(limit))?;
    Some(format!("{}.{} %", tenths / 10, tenths % 10))
}

fn percent(tenths: i128) -> String {
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Share of one processor between two readings, in tenths of a percent.
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
        assert_eq!(&words[1..3], ["running (not ready)", "-"], "no share without a reading before");
    }
}
