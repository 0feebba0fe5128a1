//! Cuts the machine's power repeatedly during a stream of containers, on the same disk.
//!
//! The guest (`integration/vm/power-cut`) runs containers sequentially and sends reports over its serial port. The port
//! continues to work after a power cut. In each boot, the guest sends these lines:
//!
//! - `@known ID STATE CODE`: a container that executord lists. CODE is the exit code, or `-` if it is unknown. After
//!   the last container, the line is `@looked`.
//! - `@next CODE`: exit code of a container that ran after `@looked`. Then the listed containers are deleted.
//! - `@answered ID CODE`: a container of the stream whose exit was reported.
//! - `@durable N`: the exits of the first N containers of this stream must now be durable. They were reported longer
//!   ago than the delay that the executor promises.
//! - `@failed TEXT`: the guest cannot continue.
//!
//! In the boot after a power cut, executord must know the result of every container up to the last `@durable`. It must
//! not report a different result for any container, and it must run the next container.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::json;

use super::machine::Machine;
use super::root::Root;
use crate::workspace::{run as execute, step};

/// Number of containers whose exit must be durable before the power is cut.
const DURABLE_MIN: usize = 3;
/// Range of the delay before a power cut, and its step, in ms. The step is not a multiple of the executor's own
/// interval.
const SPREAD_MS: u64 = 1500;
const STEP_MS: u64 = 137;

/// Containers of a boot, as reported by the guest.
#[derive(Default)]
struct Stream {
    /// Exit codes by id, in the order of exits.
    answered: Vec<(String, String)>,
    /// Number of entries at the start of `answered` that executord must report after a power cut.
    durable: usize,
}

/// Containers of the previous stream that a boot reports.
#[derive(Default)]
struct Found {
    /// State and exit code of each container, by id.
    known: BTreeMap<String, (String, String)>,
    next: Option<String>,
}

/// Sums over all power cuts.
#[derive(Default)]
struct Figures {
    cuts: u32,
    answered: usize,
    durable: usize,
    lost_after_the_mark: usize,
}

/// Creates the disk. A separate file stores the changes to the root file system.
pub(super) fn disk(root: &Root) -> anyhow::Result<PathBuf> {
    let path = root.disk.with_file_name("power-cut.qcow2");
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&root.disk).arg(&path);
    execute(&mut command)?;
    Ok(path)
}

/// Cuts the power this many times, and boots once more for the last comparison.
pub(super) fn run(machine: &Machine, cuts: u32, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut figures = Figures::default();
    let mut before = Stream::default();
    for boot in 0..=cuts {
        step(&format!(
            "Boot {boot} of {cuts}, after {} containers, of which {} must be known",
            before.answered.len(),
            before.durable
        ));
        let ended = round(machine, boot, boot == cuts);
        let (found, stream) =
            ended.inspect_err(|_| eprintln!("--- last lines of the machine's console:\n{}\n---", machine.console()))?;
        let lost = before.evaluate(&found).with_context(|| format!("boot {boot}"))?;
        figures.lost_after_the_mark += lost;
        figures.answered += stream.answered.len();
        figures.durable += stream.durable;
        figures.cuts = boot;
        before = stream;
    }
    let Figures { cuts, answered, durable, lost_after_the_mark: lost } = figures;
    if as_json {
        println!("{:#}", json!({"passed": true, "cuts": cuts, "answered": answered, "durable": durable, "lost": lost}));
    }
    eprintln!(
        "{cuts} cuts: {answered} containers; all {durable} required results are known; \
         {lost} other containers have no result"
    );
    Ok(ExitCode::SUCCESS)
}

/// Boots once and reads the containers that the boot reports. Except in the last round, continues until the power is
/// cut.
fn round(machine: &Machine, boot: u32, is_last: bool) -> anyhow::Result<(Found, Stream)> {
    let running = machine.boot(&format!("vm.power-cut={boot}"))?;
    let deadline = Instant::now() + machine.deadline;
    let (mut found, mut stream) = (Found::default(), Stream::default());
    let mut cut_at = None;
    loop {
        match running.line(cut_at.unwrap_or(deadline)) {
            Ok(line) => take(&line, &mut found, &mut stream)?,
            Err(RecvTimeoutError::Timeout) if cut_at.is_some() => break,
            Err(RecvTimeoutError::Timeout) => {
                bail!("boot {boot}: the guest did not complete within {} minutes", machine.deadline.as_secs() / 60)
            }
            Err(RecvTimeoutError::Disconnected) => bail!("boot {boot}: the machine stopped unexpectedly"),
        }
        if is_last && found.next.is_some() {
            break;
        }
        if stream.durable >= DURABLE_MIN && cut_at.is_none() {
            let pause = Duration::from_millis(u64::from(boot) * STEP_MS % SPREAD_MS);
            cut_at = Some(Instant::now() + pause);
        }
    }
    for line in running.cut()? {
        take(&line, &mut found, &mut stream)?;
    }
    ensure!(
        found.next.as_deref() == Some("5"),
        "boot {boot}: the next container exited with {:?}, expected 5",
        found.next
    );
    Ok((found, stream))
}

fn take(line: &str, found: &mut Found, stream: &mut Stream) -> anyhow::Result<()> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["@known", id, state, code] => drop(found.known.insert(id.to_owned(), (state.to_owned(), code.to_owned()))),
        ["@next", code] => found.next = Some(code.to_owned()),
        ["@answered", id, code] => stream.answered.push((id.to_owned(), code.to_owned())),
        ["@durable", count] => stream.durable = count.parse().with_context(|| line.to_owned())?,
        ["@failed", ..] => bail!("the guest reported a failure: {line}"),
        _ => {} // a line truncated by the power cut
    }
    Ok(())
}

impl Stream {
    /// Compares the reported results with the results of the next boot. Returns the number of containers whose result
    /// is lost. Returns an error if the result of a durable container is lost.
    fn evaluate(&self, found: &Found) -> anyhow::Result<usize> {
        for (index, (id, code)) in self.answered.iter().enumerate() {
            match found.known.get(id) {
                Some((state, known)) if state == "completed" && known == code => {}
                Some((_, known)) if known != "-" => {
                    bail!("{id} exited with {code}, but the next boot reports {known}")
                }
                other if index < self.durable => bail!("{id} exited with {code}, but the next boot reports {other:?}"),
                _ => {}
            }
        }
        for (id, (state, _)) in &found.known {
            ensure!(state == "completed", "{id} is {state} after the machine was started, expected completed");
        }
        let reported = self.answered.iter().filter(|(id, _)| found.known.get(id).is_none_or(|(_, known)| known == "-"));
        Ok(reported.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(durable: usize, known: &[&str]) -> Result<usize, String> {
        let (mut found, mut stream) = (Found::default(), Stream::default());
        let lines = ["@answered a 1", "@answered b 2"].iter().chain(known).copied();
        lines.for_each(|line| take(line, &mut found, &mut stream).unwrap());
        stream.durable = durable;
        stream.evaluate(&found).map_err(|error| error.to_string())
    }

    #[test]
    fn reported_results_are_durable_except_last() {
        assert_eq!(evaluated(2, &["@known a completed 1", "@known b completed 2"]), Ok(0));
        assert_eq!(evaluated(1, &["@known a completed 1", "@known b completed -"]), Ok(1));
        assert_eq!(evaluated(1, &["@known a completed 1"]), Ok(1));
        for (durable, known) in [
            (2, &["@known a completed 1", "@known b completed -"][..]),
            (2, &["@known a completed 1"]),
            (0, &["@known a completed 2"]),
            (0, &["@known a running -"]),
        ] {
            evaluated(durable, known).unwrap_err();
        }
    }
}
