//! Searches all of the machine's memory one second after containers have exited, including free pages and the buffers
//! of the kernel.
//!
//! The guest (`integration/vm/memory`) runs containers with secrets of every kind and with every entry point, and stops
//! half of them. The guest's memory is a file on this machine, which is searched after qemu was killed. The guest sends
//! these lines:
//!
//! - `@secret STATE DOOR KIND DIGITS`: a secret in hexadecimal. In each digit the highest bit is changed, so that the
//!   guest holds the secret only where it was delivered. DOOR is the entry point through which the secret was passed.
//!   STATE is `gone` if the container has exited, and `kept` if a running container holds the secret.
//! - `@settled RELEASE`: one second has passed since the last exit, and the third disk contains /proc/kpageflags.
//! - `@failed TEXT`: the guest cannot continue.
//!
//! As a control, the same search must find every kept secret. For every other secret, the search reports where the
//! secret was found. With `init_on_free=1`, none of these other secrets may be found.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use executor_residue::{Needles, Place, Search, WINDOW};
use serde_json::json;

use super::machine::{Machine, Shown};
use super::root::Root;
use crate::workspace::step;

/// Memory of the machine, in MiB: enough for the containers. Less memory is searched faster.
const MEMORY_MB: u32 = 1024;
/// Size of /proc/kpageflags: 8 bytes for each page of 4 KiB.
const PAGES_BYTES: u64 = MEMORY_MB as u64 * 256 * 8;
const PAGE: u64 = 4096;

/// Name of a secret: its entry point and its kind.
type Name = (String, String);
/// Number of bytes of a secret that were found, by the kind of page.
type Places = BTreeMap<&'static str, u64>;

/// Secrets of a single boot.
#[derive(Default)]
struct Secrets {
    gone: BTreeMap<Name, Vec<u8>>,
    kept: BTreeMap<Name, Vec<u8>>,
    /// Release of the kernel; `None` until all secrets have been reported.
    settled: Option<String>,
}

#[derive(Default)]
struct Found {
    gone: BTreeMap<Name, Places>,
    kept: BTreeMap<Name, Places>,
}

/// Returns the files that will hold the machine's memory.
pub(super) fn files(root: &Root) -> Shown {
    let at = |name: &str| root.disk.with_file_name(name);
    Shown { memory: at("memory"), memory_mb: MEMORY_MB, pages: at("memory.pages") }
}

/// Searches with the kernel's defaults, and with `init_on_free=1`.
pub(super) fn run(machine: &Machine, as_json: bool) -> anyhow::Result<ExitCode> {
    let mut reported = Vec::new();
    let mut passed = true;
    for parameter in ["", "init_on_free=1"] {
        let name = if parameter.is_empty() { "default parameters" } else { parameter };
        step(&format!("Booting the virtual machine: {name}"));
        let ended = round(machine, parameter);
        let (release, found) =
            ended.inspect_err(|_| eprintln!("--- last lines of the machine's console:\n{}\n---", machine.console()))?;
        let faults = found.faults(!parameter.is_empty());
        eprintln!("Linux {release}, {name}: searched {MEMORY_MB} MiB");
        found.lines().iter().for_each(|line| eprintln!("  {line}"));
        faults.iter().for_each(|fault| eprintln!("✘ {fault}"));
        passed &= faults.is_empty();
        let rows = |names: &BTreeMap<Name, Places>| {
            let of = |((door, kind), places): (&Name, &Places)| json!({"door": door, "kind": kind, "bytes": places});
            names.iter().map(of).collect::<Vec<_>>()
        };
        let (gone, control) = (rows(&found.gone), rows(&found.kept));
        reported.push(
            json!({"parameter": parameter, "release": release, "gone": gone, "control": control, "faults": faults}),
        );
    }
    if as_json {
        println!("{:#}", json!({"passed": passed, "kernels": reported}));
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Boots the machine once, and searches its memory.
fn round(machine: &Machine, parameter: &str) -> anyhow::Result<(String, Found)> {
    let shown = machine.shown.as_ref().context("the memory of the machine is not a shared file")?;
    for (file, bytes) in [(&shown.memory, u64::from(MEMORY_MB) << 20), (&shown.pages, PAGES_BYTES)] {
        let made = File::create(file).and_then(|file| file.set_len(bytes));
        made.with_context(|| format!("cannot create {}", file.display()))?;
    }
    let running = machine.boot(&format!("vm.memory {parameter}"))?;
    let deadline = Instant::now() + machine.deadline;
    let mut secrets = Secrets::default();
    let release = loop {
        match running.line(deadline) {
            Ok(line) => secrets.take(&line)?,
            Err(RecvTimeoutError::Timeout) => {
                bail!("the guest did not complete within {} minutes", machine.deadline.as_secs() / 60)
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the machine stopped unexpectedly"),
        }
        if let Some(release) = secrets.settled.take() {
            break release;
        }
    };
    running.cut()?;
    let mut needles = Needles::new()?;
    for (state, names) in [("gone", &secrets.gone), ("kept", &secrets.kept)] {
        for ((door, kind), secret) in names {
            needles.add(&format!("{state} {door} {kind}"), secret);
        }
    }
    let mut search = Search::new(&needles);
    search.memory_image(&shown.memory, &shown.pages)?;
    let report = search.report();
    ensure!(
        report.bytes >= u64::from(MEMORY_MB) << 20,
        "{} bytes were searched, expected at least {MEMORY_MB} MiB",
        report.bytes
    );
    let mut found = Found {
        gone: secrets.gone.into_keys().map(|name| (name, BTreeMap::new())).collect(),
        kept: secrets.kept.into_keys().map(|name| (name, BTreeMap::new())).collect(),
    };
    for hit in report.hits {
        let Place::Kernel { page } = hit.place else { continue };
        let words: Vec<&str> = hit.label.split(' ').collect();
        let [state, door, kind] = words[..] else { continue };
        let names = if state == "gone" { &mut found.gone } else { &mut found.kept };
        names.entry((door.into(), kind.into())).or_default().insert(page, hit.windows * WINDOW as u64);
        if state == "gone" && page != "free" {
            eprintln!("  {door} {kind}: {page} page {}, address {:#x}", hit.at / PAGE, hit.at);
        }
    }
    Ok((release, found))
}

impl Secrets {
    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["@secret", state, door, kind, digits] => {
                let names = match state {
                    "gone" => &mut self.gone,
                    "kept" => &mut self.kept,
                    _ => bail!("the guest reported an unknown state of a secret: {line}"),
                };
                let secret = unmasked(digits).with_context(|| line.to_owned())?;
                ensure!(
                    secret.len() >= 2 * WINDOW,
                    "the secret of the guest is {} bytes; the minimum is {}: {line}",
                    secret.len(),
                    2 * WINDOW
                );
                names.insert((door.to_owned(), kind.to_owned()), secret);
            }
            ["@settled", release] => self.settled = Some(release.to_owned()),
            ["@failed", ..] => bail!("the guest reported a failure: {line}"),
            _ => {}
        }
        Ok(())
    }
}

/// Decodes hexadecimal digits in which the highest bit of each digit was changed.
fn unmasked(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok().map(|byte| byte ^ 0x88)).collect()
}

impl Found {
    /// Returns the violations: a control that was not found, and, if the kernel overwrites freed pages, a gone secret
    /// that was found.
    fn faults(&self, frees_clean: bool) -> Vec<String> {
        let mut faults = Vec::new();
        for ((door, kind), places) in &self.kept {
            if places.is_empty() {
                faults.push(format!("the control failed: memory does not hold the secret of a running container ({kind}, passed by {door})"));
            }
        }
        for ((door, kind), places) in &self.gone {
            if frees_clean && !places.is_empty() {
                faults.push(format!(
                    "memory holds a secret of a stopped container ({kind}, passed by {door}): {}",
                    line(places)
                ));
            }
        }
        if self.kept.is_empty() || self.gone.is_empty() {
            faults.push("the guest reported no secrets".to_owned());
        }
        faults
    }

    /// Formats a line for each entry point and kind, with the residue of gone secrets and the control.
    fn lines(&self) -> Vec<String> {
        let mut names: Vec<&Name> = self.gone.keys().chain(self.kept.keys()).collect();
        names.sort();
        names.dedup();
        let of = |name: &&Name| {
            let [gone, kept] =
                [&self.gone, &self.kept].map(|names| names.get(*name).map_or_else(|| "-".to_owned(), line));
            format!("{:<8} {:<20} {gone:<44} control: {kept}", name.0, name.1)
        };
        names.iter().map(of).collect()
    }
}

/// Formats `64000 free, 64 slab`, in bytes.
fn line(places: &Places) -> String {
    let texts: Vec<String> = places.iter().map(|(page, bytes)| format!("{bytes} {page}")).collect();
    if texts.is_empty() { "0".to_owned() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(lines: &[&str], left: &[&str], frees_clean: bool) -> usize {
        let mut secrets = Secrets::default();
        let digits = "00".repeat(32);
        lines.iter().for_each(|line| secrets.take(&format!("@secret {line} {digits}")).unwrap());
        let places = |state: &str, names: BTreeMap<Name, Vec<u8>>| {
            let of = |name: Name| {
                let is_left = left.contains(&&*format!("{state} {} {}", name.0, name.1));
                (name, if is_left { [("free", 64)].into() } else { Places::new() })
            };
            names.into_keys().map(of).collect()
        };
        Found { gone: places("gone", secrets.gone), kept: places("kept", secrets.kept) }.faults(frees_clean).len()
    }

    #[test]
    fn kernel_residue_is_tolerated_but_control_required() {
        let lines = ["gone unix file", "kept unix file"];
        assert_eq!(faults(&lines, &["kept unix file"], true), 0);
        assert_eq!(faults(&lines, &["kept unix file", "gone unix file"], false), 0);
        assert_eq!(faults(&lines, &["kept unix file", "gone unix file"], true), 1);
        assert_eq!(faults(&lines, &[], false), 1);
        assert_eq!(faults(&lines[..1], &[], true), 1, "no control");
        assert_eq!(faults(&lines[1..], &["kept unix file"], true), 1, "nothing that is gone");
    }

    #[test]
    fn secrets_are_reported_in_other_digits() {
        assert_eq!(unmasked("c9ba").unwrap(), b"A2");
        for wrong in ["c9b", "xx"] {
            assert_eq!(unmasked(wrong), None);
        }
        let mut secrets = Secrets::default();
        for wrong in ["@secret gone unix file c9ba", "@secret lost unix file c9ba", "@failed at the end"] {
            secrets.take(wrong).unwrap_err();
        }
    }
}
