//! Formats the demo: headings, quoted output, facts in columns, checked claims, a verdict.
//!
//! Colours only on a terminal without NO_COLOR.

use std::io::IsTerminal as _;
use std::process::ExitCode;

const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";
const RED: &str = "1;31";
const CYAN: &str = "36";

/// Prints, and counts the claims.
pub(super) struct Screen {
    colour: bool,
    held: u32,
    failed: Vec<String>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { colour: wanted && std::io::stdout().is_terminal(), held: 0, failed: Vec::new() }
    }

    pub(super) fn title(&self, text: &str) {
        println!("\n  {}\n  {}", self.paint(BOLD, text), self.paint(DIM, &"\u{2500}".repeat(text.chars().count())));
    }

    pub(super) fn heading(&self, text: &str) {
        println!("\n  {}", self.paint(CYAN, text));
    }

    /// Prints the output of another program.
    pub(super) fn quote(&self, lines: &[String]) {
        for line in lines {
            println!("    {} {line}", self.paint(DIM, "\u{2502}"));
        }
    }

    /// Prints names and values, in two columns.
    pub(super) fn facts(&self, facts: &[(String, String)]) {
        let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in facts {
            println!("    {} {} {value}", self.paint(DIM, "\u{2502}"), self.paint(DIM, &format!("{name:<width$} ")));
        }
    }

    /// Prints a promise of the executor, and whether it holds.
    pub(super) fn claim(&mut self, text: &str, holds: bool) {
        self.tick("", text, holds);
    }

    /// Prints a control, which shows that a search works.
    pub(super) fn control(&mut self, text: &str, holds: bool) {
        self.tick("control: ", text, holds);
    }

    fn tick(&mut self, kind: &str, text: &str, holds: bool) {
        if holds {
            self.held += 1;
            println!("  {} {}{text}", self.paint(GREEN, "\u{2714}"), self.paint(DIM, kind));
        } else {
            self.failed.push(format!("{kind}{text}"));
            println!("  {} {}", self.paint(RED, "\u{2718}"), self.paint(RED, &format!("{kind}{text}")));
        }
    }

    /// Prints the last lines, and returns the exit status.
    pub(super) fn verdict(&self) -> ExitCode {
        if self.failed.is_empty() {
            println!("\n  {}\n", self.paint(GREEN, &format!("All {} hold.", self.held)));
            return ExitCode::SUCCESS;
        }
        println!(
            "\n  {}",
            self.paint(RED, &format!("{} of {} failed:", self.failed.len(), self.failed.len() + self.held as usize))
        );
        for claim in &self.failed {
            println!("    {claim}");
        }
        println!();
        ExitCode::FAILURE
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
