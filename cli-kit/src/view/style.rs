//! Colours: only on a terminal without NO_COLOR.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style as Ansi};
use executor_client::v1::State;

use crate::exit::Outcome;

/// Meaning of a piece of text, independent of its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Plain,
    Heading,
    Good,
    Bad,
    Attention,
    Faint,
}

impl Role {
    pub fn from_state(state: State) -> Self {
        match state {
            State::Running => Self::Good,
            State::Completed => Self::Faint,
            State::Stopping | State::Wiping => Self::Attention,
            State::Unspecified | State::Reserved | State::Initializing | State::Created => Self::Plain,
        }
    }

    pub fn from_outcome(outcome: Outcome) -> Self {
        if outcome == Outcome::Exited(0) { Self::Good } else { Self::Bad }
    }
}

/// Paints text, or leaves it plain.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Text without colours.
    pub const PLAIN: Self = Self { colour: false };
    /// Text with colours.
    pub const COLOURED: Self = Self { colour: true };

    /// Detects the style that standard output supports.
    pub fn detect() -> Self {
        let (no_color, term) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
        Self { colour: wanted(std::io::stdout().is_terminal(), no_color.as_deref(), term.as_deref()) }
    }

    pub fn paint(self, role: Role, text: &str) -> String {
        let mut painted = String::with_capacity(text.len());
        self.paint_onto(&mut painted, role, text);
        painted
    }

    pub fn paint_onto(self, onto: &mut String, role: Role, text: &str) {
        let ansi = match role {
            Role::Plain => Ansi::new(),
            Role::Heading => Ansi::new().bold(),
            Role::Good => AnsiColor::Green.on_default(),
            Role::Bad => AnsiColor::Red.on_default(),
            Role::Attention => AnsiColor::Yellow.on_default(),
            Role::Faint => Ansi::new().dimmed(),
        };
        if self.colour && !text.is_empty() {
            let _ = write!(onto, "{ansi}{text}{ansi:#}");
        } else {
            onto.push_str(text);
        }
    }
}

/// Returns true if the output is coloured. NO_COLOR applies if it is set and not empty (no-color.org).
fn wanted(terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_on_a_terminal_alone() {
        let text = |text: &'static str| Some(OsStr::new(text));
        assert!(wanted(true, None, text("xterm")));
        assert!(wanted(true, text(""), None));
        assert!(!wanted(false, None, text("xterm")));
        assert!(!wanted(true, text("1"), text("xterm")));
        assert!(!wanted(true, None, text("dumb")));
        assert_eq!(Style::PLAIN.paint(Role::Bad, "x"), "x");
        assert_eq!(Style::COLOURED.paint(Role::Bad, "x"), "\u{1b}[31mx\u{1b}[0m");
    }
}
