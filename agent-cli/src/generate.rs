//! `generate man|completions --out DIR`: from the very definitions that parse the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::exit::{self, WITH_STATUSES};
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// What to write
    #[arg(value_enum)]
    pub(crate) what: Generated,
    /// Directory to write into; made when it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// For this shell only; may be repeated [default: all]
    #[arg(long, value_enum)]
    pub(crate) shell: Vec<ShellArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Generated {
    /// agent-cli.1 and a page for each command
    Man,
    /// Completions under the names that the shells look for
    Completions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

impl GenerateArgs {
    /// Writes what is asked for, from these definitions.
    pub(crate) fn generate(&self, definitions: clap::Command) -> Result<(), Failure> {
        let failed = |source| Failure::Generate { path: self.out.clone(), source };
        if self.what == Generated::Man && !self.shell.is_empty() {
            return Err(Failure::Usage("--shell goes with `generate completions`".into()));
        }
        fs::create_dir_all(&self.out).map_err(failed)?;
        match self.what {
            Generated::Man => manual(definitions, &self.out),
            Generated::Completions => completions(definitions, &self.out, &self.shell),
        }
        .map_err(failed)
    }
}

/// A page for the program and one for each command that is shown.
fn manual(definitions: clap::Command, out: &Path) -> io::Result<()> {
    // The table of statuses gets a section of its own instead of the text below the help.
    let mut program = definitions.after_help("").disable_help_subcommand(true);
    for name in WITH_STATUSES {
        program = program.mut_subcommand(name, |sub| sub.after_help(""));
    }
    program.build();
    page(out, program.clone(), true)?;
    for sub in program.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        page(out, sub.clone(), WITH_STATUSES.contains(&sub.get_name()))?;
        for nested in sub.get_subcommands().filter(|nested| nested.get_name() != "help") {
            page(out, nested.clone(), false)?;
        }
    }
    Ok(())
}

fn page(out: &Path, program: clap::Command, with_statuses: bool) -> io::Result<()> {
    let has_subcommands = program.get_subcommands().any(|sub| !sub.is_hide_set());
    let usage = program.clone().render_usage().to_string();
    let man = Man::new(program).manual("Executor");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    // The library's own synopsis lists every flag once more.
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]).text([roman(usage.trim_start_matches("Usage: "))]);
    synopsis.to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    if with_statuses {
        roff.control("SH", ["EXIT STATUS"]);
        for (status, meaning) in exit::TABLE {
            roff.control("TP", []).text([roman(status)]).text([roman(meaning)]);
        }
    }
    roff.control("SH", ["ENVIRONMENT"]);
    roff.control("TP", [])
        .text([roman("EXECUTOR_SOCKET")])
        .text([roman("Socket of executord, where --socket is not given.")]);
    roff.control("TP", []).text([roman("NO_COLOR")]).text([roman("When set and not empty: no colour.")]);
    roff.to_writer(&mut text)?;
    fs::write(out.join(man.get_filename()), text)
}

/// Under the names that the shells look for.
fn completions(mut definitions: clap::Command, out: &Path, shells: &[ShellArg]) -> io::Result<()> {
    for (shell, generator) in
        [(ShellArg::Bash, Shell::Bash), (ShellArg::Zsh, Shell::Zsh), (ShellArg::Fish, Shell::Fish)]
    {
        if shells.is_empty() || shells.contains(&shell) {
            clap_complete::generate_to(generator, &mut definitions, "agent-cli", out)?;
        }
    }
    Ok(())
}
