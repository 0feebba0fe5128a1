//! Report of the attacks: a line for each attack when it ends, a table for people, and JSON for programs.

use std::fmt;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::attack::Attack;
use crate::stage::PartResult;

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
}

/// Results of one attack and of its control.
pub(crate) struct Row {
    attack: &'static Attack,
    result: PartResult,
    control: PartResult,
}

impl Row {
    pub(crate) fn new(attack: &'static Attack, result: PartResult, control: PartResult) -> Self {
        Self { attack, result, control }
    }

    /// Returns true if the attack ran and failed, and its control succeeded.
    pub(crate) fn is_good(&self) -> bool {
        !self.result.failed && !self.result.succeeded && !self.control.failed
    }

    /// Formats the name and the outcome of the attack as one line.
    pub(crate) fn line(&self) -> String {
        let seconds = (self.result.took + self.control.took).as_secs_f64();
        let Attack { name, position, .. } = self.attack;
        format!("{:<10} {name:<46} {:<14} {seconds:6.1} s", position.name(), self.outcome())
    }

    fn outcome(&self) -> &'static str {
        match (&self.result, &self.control) {
            (result, _) if result.failed => "NOT RUN",
            (result, _) if result.succeeded => "WENT THROUGH",
            (_, control) if control.failed => "CONTROL FAILED",
            _ => "held",
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}\n    attack:  {}\n    control: {}", self.line(), self.result.text, self.control.text)
    }
}

impl Report {
    /// Formats the results as a table.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let _ = writeln!(text, "{row}");
        }
        let bad = self.rows.iter().filter(|row| !row.is_good()).count();
        let _ = writeln!(text, "{} attacks; {bad} succeeded, did not run, or have a failed control", self.rows.len());
        text
    }

    /// Formats the results as JSON.
    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "name": row.attack.name,
                "position": row.attack.position.name(),
                "claim": row.attack.claim,
                "outcome": row.outcome(),
                "told": row.result.text,
                "control": row.control.text,
                "seconds": (row.result.took + row.control.took).as_secs_f64(),
            })
        });
        json!({ "attacks": rows.collect::<Vec<_>>() })
    }
}
