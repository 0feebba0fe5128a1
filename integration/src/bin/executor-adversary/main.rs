//! `executor-adversary`: what was found to go through when the executor was attacked, played again, and its variants.
//!
//! In go the product's binaries (of `target/dist/`, or of the directory that EXECUTOR_DIST names). Each entry of [`all`] is
//! a claim with an attack on it, played from one of four positions, and a control: the same judgement where the attack is
//! known to go through, or where there is none, so that an attack that fails only because the judge sees nothing is told.
//! Each is a process of its own, with daemons and directories of its own: a play that panics costs its entry alone.
//!
//! Limits: attacks of minutes, gigabytes or millions are made in hundredths of that by default, enough to see the
//! mechanism; `--long` repeats races and raises numbers, still within what a machine of 8 GB bears.

mod attack;
mod client;
mod container;
mod copies;
mod executord;
mod image;
mod python;
mod report;
mod revive;
mod search;
mod stage;

use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::Parser;

use crate::attack::{Attack, Position, Scale};
use crate::report::{Report, Row};

#[derive(Parser)]
#[command(about = "Attack the executor from the positions of a client, a container, executord's user and an image")]
struct Options {
    /// Print the attacks, and play none
    #[arg(long)]
    list: bool,
    /// Only those whose name has these words in it
    #[arg(long, value_name = "WORDS")]
    filter: Option<String>,
    /// Only those from this position [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    position: Vec<Position>,
    /// Repeat races and raise numbers: about ten minutes
    #[arg(long)]
    long: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
    /// What a process that plays one part is told
    #[arg(long, hide = true, value_names = ["ATTACK", "PART"], num_args = 2)]
    play: Option<Vec<String>>,
}

/// Every attack, in the order in which they are played.
fn all() -> impl Iterator<Item = &'static Attack> {
    [client::ALL, container::ALL, copies::ALL, executord::ALL, image::ALL].into_iter().flatten()
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
        stage::act(attack, part, scale)?;
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
        let row = Row::of(attack, stage::play(attack, "attack", scale)?, stage::play(attack, "control", scale)?);
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
