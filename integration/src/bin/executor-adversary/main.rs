//! `executor-adversary`: repeats attacks on the executor that once succeeded, and variants of them.
//!
//! Input is the product's binaries (in `target/dist/`, or the directory in EXECUTOR_DIST). Each entry of [`all`] is a
//! claim with an attack from one of six positions, and a control. The control applies the same check to an attack that
//! must succeed, or to a run without an attack. This shows that the check can detect a successful attack. Each attack
//! and each control runs in its own process, with its own daemons and directories, so a panic affects no other entry.
//!
//! Limits: attacks that take minutes, gigabytes or millions of requests are scaled down to a hundredth by default,
//! which is enough to exercise the mechanism. `--long` repeats races and uses larger numbers, within the capacity of a
//! machine with 8 GB.

mod attack;
mod client;
mod container;
mod copies;
mod executord;
mod image;
mod loops;
mod machine;
mod network;
mod pods;
mod providers;
mod python;
mod readers;
mod report;
mod revive;
mod search;
mod servers;
mod sources;
mod stage;
mod texts;
mod tls;
mod transfers;

use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::Parser;

use crate::attack::{Attack, Position, Scale};
use crate::report::{Report, Row};

#[derive(Parser)]
#[command(
    about = "Attack the executor from the positions of a client, a container, executord's user, an image, a server and the machine"
)]
struct Options {
    /// List the attacks without running them
    #[arg(long)]
    list: bool,
    /// Run only attacks whose name contains this text
    #[arg(long, value_name = "WORDS")]
    filter: Option<String>,
    /// Run only attacks from this position [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    position: Vec<Position>,
    /// Repeat races and use larger numbers (takes about ten minutes)
    #[arg(long)]
    long: bool,
    /// Leave out the attacks that wait five seconds or more for a time limit
    #[arg(long, conflicts_with = "long")]
    quick: bool,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Attack and part, for a child process
    #[arg(long, hide = true, value_names = ["ATTACK", "PART"], num_args = 2)]
    play: Option<Vec<String>>,
}

/// Names of the attacks that wait five seconds or more for a time limit.
const SLOW: [&str; 12] = [
    "shares: unread responses and PINGs",
    "shares: unread responses and a byte of window",
    "shares: streams of counters",
    "memory: unread responses",
    "callers: GetSecrets of many users",
    "callers: GetSecrets during a flood of connections",
    "shim: the handle for root",
    "clock: jumps under retention and events",
    "readers: lossless clients that never read",
    "drains: calls whose clients disconnect",
    "conventions: a hostile server",
    "tls: a certificate that expires",
];

/// Returns all attacks, in the order in which they run.
fn all() -> impl Iterator<Item = &'static Attack> {
    [
        client::ALL,
        client::streams::ALL,
        container::ALL,
        copies::ALL,
        executord::ALL,
        image::ALL,
        loops::ALL,
        machine::ALL,
        network::ALL,
        pods::ALL,
        providers::ALL,
        readers::ALL,
        servers::ALL,
        sources::ALL,
        texts::ALL,
        tls::ALL,
        transfers::ALL,
    ]
    .into_iter()
    .flatten()
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("executor-adversary: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> anyhow::Result<bool> {
    let scale = if options.long { Scale::Long } else { Scale::Short };
    if let Some([name, part]) = options.play.as_deref() {
        let Some(attack) = all().find(|attack| attack.name == name) else {
            bail!("unknown attack {name:?}; --list prints all attacks")
        };
        stage::run_here(attack, part, scale)?;
        return Ok(true);
    }
    let is_wanted = |attack: &&Attack| {
        options.filter.as_ref().is_none_or(|words| attack.name.contains(words.as_str()))
            && (options.position.is_empty() || options.position.contains(&attack.position))
            && !(options.quick && SLOW.contains(&attack.name))
    };
    let wanted: Vec<&Attack> = all().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "the filters match no attack; --list prints all attacks");
    if options.list {
        wanted
            .iter()
            .for_each(|attack| println!("{:<10} {:<46} {}", attack.position.name(), attack.name, attack.claim));
        return Ok(true);
    }
    ensure!(nix::unistd::geteuid().is_root(), "the attacks require root: run the command as root");
    nix::sys::prctl::set_child_subreaper(true)?;
    let mut report = Report::default();
    for attack in wanted {
        let row =
            Row::new(attack, stage::run_part(attack, "attack", scale)?, stage::run_part(attack, "control", scale)?);
        eprintln!("{}", row.line());
        report.rows.push(row);
    }
    if options.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    Ok(report.rows.iter().all(Row::is_good))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_attacks_exist() {
        for name in SLOW {
            assert!(all().any(|attack| attack.name == name), "{name}");
        }
    }
}
