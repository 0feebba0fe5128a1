//! Implements `generate man|completions|markdown --out DIR`, with the definitions that also parse the command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::failure::Failure;

#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// Kind of files to write
    #[arg(value_enum)]
    pub what: Generated,
    /// Directory to write into; created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Shell to write completions for; can be repeated [default: all]
    #[arg(long, value_enum)]
    pub shell: Vec<ShellArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Generated {
    /// A manual page for the program and one for each command
    Man,
    /// Completions, under the file names that the shells expect
    Completions,
    /// A page with the help of every command
    Markdown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

/// Width of the help texts in a page, in columns.
const PAGE_WIDTH: usize = 100;

/// A program's definitions, and additional text for its manual.
pub struct Documented {
    pub command: clap::Command,
    /// Exit statuses and their meanings.
    pub statuses: &'static [(&'static str, &'static str)],
    /// Commands whose exit status means more than success or failure.
    pub with_statuses: &'static [&'static str],
    /// Names of external programs that are run as commands.
    pub programs: Vec<String>,
}

impl Documented {
    /// Returns the definitions, with external programs and exit statuses in the help.
    pub fn with_help(self) -> clap::Command {
        let mut statuses = String::from("Exit status:\n");
        for (status, meaning) in self.statuses {
            statuses.push_str(&format!("  {status:<7} {meaning}\n"));
        }
        let width = self.programs.iter().map(String::len).max().unwrap_or_default();
        let mut programs = String::new();
        for name in &self.programs {
            programs.push_str(&format!("  {name:<width$}   {}-{name}\n", self.command.get_name()));
        }
        if !programs.is_empty() {
            programs = format!("Programs:\n{programs}\n");
        }
        let mut command = self.command.after_help(programs + &statuses);
        for name in self.with_statuses {
            command = command.mut_subcommand(name, |subcommand| subcommand.after_help(statuses.clone()));
        }
        command
    }
}

impl GenerateArgs {
    /// Writes the manual, the completions or the page with the help, as requested.
    pub fn generate(&self, program: Documented) -> Result<(), Failure> {
        let failed = |source| Failure::Generate { path: self.out.clone(), source };
        if self.what != Generated::Completions && !self.shell.is_empty() {
            return Err(Failure::Usage("--shell is only for `generate completions`".into()));
        }
        fs::create_dir_all(&self.out).map_err(failed)?;
        match self.what {
            Generated::Man => manual(program, &self.out),
            Generated::Completions => completions(program, &self.out, &self.shell),
            Generated::Markdown => markdown(program, &self.out),
        }
        .map_err(failed)
    }
}

/// Writes a manual page for the program and one for each visible command.
fn manual(documented: Documented, out: &Path) -> io::Result<()> {
    let Documented { command, statuses, with_statuses, .. } = documented;
    // The table of statuses gets its own section and is not appended to the help.
    let mut program = command.disable_help_subcommand(true);
    program.build();
    page(out, program.clone(), statuses)?;
    for sub in program.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        page(out, sub.clone(), if with_statuses.contains(&sub.get_name()) { statuses } else { &[] })?;
        for nested in sub.get_subcommands().filter(|nested| nested.get_name() != "help") {
            page(out, nested.clone(), &[])?;
        }
    }
    Ok(())
}

fn page(out: &Path, program: clap::Command, statuses: &[(&str, &str)]) -> io::Result<()> {
    let has_subcommands = program.get_subcommands().any(|sub| !sub.is_hide_set());
    let usage = program.clone().render_usage().to_string();
    let man = Man::new(program).manual("Executor");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    // clap_mangen's own synopsis would list every flag again.
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]).text([roman(usage.trim_start_matches("Usage: "))]);
    synopsis.to_writer(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_subcommands {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    if !statuses.is_empty() {
        roff.control("SH", ["EXIT STATUS"]);
        for (status, meaning) in statuses {
            roff.control("TP", []).text([roman(*status)]).text([roman(*meaning)]);
        }
    }
    roff.control("SH", ["ENVIRONMENT"]);
    roff.control("TP", [])
        .text([roman("EXECUTOR_SOCKET")])
        .text([roman("Socket of executord, if --socket is not given.")]);
    roff.control("TP", [])
        .text([roman(
            "EXECUTOR_ADDRESS, EXECUTOR_TLS_CERT, EXECUTOR_TLS_KEY, EXECUTOR_TLS_CA, EXECUTOR_TLS_SERVER_NAME",
        )])
        .text([roman("Address and TLS files of executord, if --address and the matching flags are not given.")]);
    roff.control("TP", [])
        .text([roman("EXECUTOR_CONTEXT")])
        .text([roman("Name of the context, if no flag or variable above names an executord.")]);
    roff.control("TP", [])
        .text([roman("EXECUTOR_CONTEXTS")])
        .text([roman("File of contexts; by default executor/contexts.toml in XDG_CONFIG_HOME, or in ~/.config.")]);
    roff.control("TP", []).text([roman("EXECUTOR_JSON")]).text([roman("If 1, same as --json.")]);
    roff.control("TP", []).text([roman("NO_COLOR")]).text([roman("If set and not empty, disables colours.")]);
    roff.to_writer(&mut text)?;
    fs::write(out.join(man.get_filename()), text)
}

/// Writes a page with the help of the program and of each visible command.
fn markdown(documented: Documented, out: &Path) -> io::Result<()> {
    let name = documented.command.get_name().to_owned();
    let mut program = Documented { programs: Vec::new(), ..documented }.with_help().disable_help_subcommand(true);
    program.build();
    let mut text = format!("# Commands of {name}\n\nThis page is generated from the definitions of `{name} --help`.\n");
    section(&mut text, &mut program, 2);
    fs::write(out.join(format!("{name}.md")), text)
}

/// Appends the help of a command and of its subcommands. Global options are listed with the program only.
fn section(text: &mut String, command: &mut clap::Command, level: usize) {
    let (heading, name) = ("#".repeat(level), command.get_bin_name().unwrap_or(command.get_name()).to_owned());
    let is_program = level == 2;
    let hidden = |arg: clap::Arg| if arg.is_global_set() { arg.hide(true) } else { arg };
    let mut shown = if is_program { command.clone() } else { command.clone().mut_args(hidden) };
    shown = shown.term_width(PAGE_WIDTH);
    let help = shown.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n{heading} {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
    for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        section(text, sub, (level + 1).min(4));
    }
}

/// Writes completions, under the file names that the shells expect.
fn completions(program: Documented, out: &Path, shells: &[ShellArg]) -> io::Result<()> {
    let mut command = program.command;
    let program_name = command.get_name().to_owned();
    for name in &program.programs {
        command = command.subcommand(clap::Command::new(name.clone()).about(format!("Runs {program_name}-{name}")));
    }
    for (shell, generator) in
        [(ShellArg::Bash, Shell::Bash), (ShellArg::Zsh, Shell::Zsh), (ShellArg::Fish, Shell::Fish)]
    {
        if shells.is_empty() || shells.contains(&shell) {
            clap_complete::generate_to(generator, &mut command, &*program_name, out)?;
        }
    }
    Ok(())
}
