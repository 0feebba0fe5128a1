//! `executor-adversary`: repeats attacks on the executor that once succeeded, and variants of them.
//!
//! Input is the product's binaries (in `target/dist/`, or the directory in EXECUTOR_DIST). Each entry of [`all`] is a
//! claim with an attack on it from one of six positions, and a control: the same judgement where the attack is known
//! to succeed, or where there is none, so that an attack that fails only because the judge sees nothing is noticed.
//! Each part runs in a process of its own, with daemons and directories of its own: a panic costs only its entry.
//!
//! Limits: attacks of minutes, gigabytes or millions are scaled down to a hundredth by default, enough to see the
//! mechanism; `--long` repeats races and raises numbers, still within what a machine of 8 GB bears.

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
    /// Print the attacks, and run none
    #[arg(long)]
    list: bool,
    /// Only attacks whose name contains these words
    #[arg(long, value_name = "WORDS")]
    filter: Option<String>,
    /// Only attacks from this position [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    position: Vec<Position>,
    /// Repeat races and raise numbers: about ten minutes
    #[arg(long)]
    long: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// Attack and part for a child process
    #[arg(long, hide = true, value_names = ["ATTACK", "PART"], num_args = 2)]
    play: Option<Vec<String>>,
}

/// Every attack, in the order in which they run.
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
        let Some(attack) = all().find(|attack| attack.name == name) else { bail!("no attack is called {name:?}") };
        stage::run_here(attack, part, scale)?;
        return Ok(true);
    }
    let is_wanted = |attack: &&Attack| {
        options.filter.as_ref().is_none_or(|words| attack.name.contains(words.as_str()))
            && (options.position.is_empty() || options.position.contains(&attack.position))
    };
    let wanted: Vec<&Attack> = all().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "no attack is meant; --list prints all");
    if options.list {
        wanted
            .iter()
            .for_each(|attack| println!("{:<10} {:<46} {}", attack.position.name(), attack.name, attack.claim));
        return Ok(true);
    }
    ensure!(nix::unistd::geteuid().is_root(), "containers and the positions of others need root");
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
