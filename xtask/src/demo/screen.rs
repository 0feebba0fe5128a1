//! Formats the demo: headings, quoted output, facts in columns, checked claims, and the final result.
//!
//! Colours are used only on a terminal without NO_COLOR.

use std::io::IsTerminal as _;
use std::process::ExitCode;

const PLAIN: &str = "";
const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";
const RED: &str = "1;31";
const CYAN: &str = "36";

/// Prints the demo's lines and counts the claims.
pub(super) struct Screen {
    colour: bool,
    held: u32,
    failed: Vec<String>,
    /// All printed lines, without colours.
    lines: Vec<String>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colour = wanted && std::io::stdout().is_terminal();
        Self { colour, held: 0, failed: Vec::new(), lines: Vec::new() }
    }

    /// Returns all printed lines, without colours.
    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }

    pub(super) fn title(&mut self, text: &str) {
        self.print(&[]);
        self.print(&[(PLAIN, "  "), (BOLD, text)]);
        self.print(&[(PLAIN, "  "), (DIM, &"\u{2500}".repeat(text.chars().count()))]);
    }

    pub(super) fn heading(&mut self, text: &str) {
        self.print(&[]);
        self.print(&[(PLAIN, "  "), (CYAN, text)]);
    }

    /// Prints the output of another program.
    pub(super) fn quote(&mut self, lines: &[String]) {
        for line in lines {
            self.print(&[(PLAIN, "    "), (DIM, "\u{2502} "), (PLAIN, line)]);
        }
    }

    /// Prints names and values, in two columns.
    pub(super) fn facts(&mut self, facts: &[(String, String)]) {
        let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, value) in facts {
            self.print(&[(PLAIN, "    "), (DIM, &format!("\u{2502} {name:<width$}  ")), (PLAIN, value)]);
        }
    }

    /// Prints a claim about the executor, and a mark that shows whether the claim holds.
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
            self.print(&[(PLAIN, "  "), (GREEN, "\u{2714} "), (DIM, kind), (PLAIN, text)]);
        } else {
            self.failed.push(format!("{kind}{text}"));
            self.print(&[(PLAIN, "  "), (RED, &format!("\u{2718} {kind}{text}"))]);
        }
    }

    /// Prints the number of claims that hold, or the failed claims, and returns the exit status.
    pub(super) fn verdict(&mut self) -> ExitCode {
        self.print(&[]);
        if self.failed.is_empty() {
            self.print(&[(PLAIN, "  "), (GREEN, &format!("All {} hold.", self.held))]);
            self.print(&[]);
            return ExitCode::SUCCESS;
        }
        let total = self.failed.len() + self.held as usize;
        self.print(&[(PLAIN, "  "), (RED, &format!("{} of {total} failed:", self.failed.len()))]);
        for claim in self.failed.clone() {
            self.print(&[(PLAIN, "    "), (PLAIN, &claim)]);
        }
        self.print(&[]);
        ExitCode::FAILURE
    }

    /// Prints a line of parts, each with its colour.
    fn print(&mut self, parts: &[(&str, &str)]) {
        let paint = |(code, text): &(&str, &str)| match self.colour && !code.is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => (*text).to_owned(),
        };
        println!("{}", parts.iter().map(paint).collect::<String>());
        self.lines.push(parts.iter().map(|(_, text)| *text).collect());
    }
}
