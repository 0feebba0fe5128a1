//! What became of each attack: a line while it goes on, a table for people, JSON for machines.

use std::fmt;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::attack::Attack;
use crate::stage::Told;

/// What became of all of them.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
}

/// What became of one.
pub(crate) struct Row {
    attack: &'static Attack,
    told: Told,
    control: Told,
}

impl Row {
    pub(crate) fn of(attack: &'static Attack, told: Told, control: Told) -> Self {
        Self { attack, told, control }
    }

    /// The attack was played and held, and its control showed that this means something.
    pub(crate) fn is_good(&self) -> bool {
        !self.told.failed && !self.told.through && !self.control.failed
    }

    /// Its name and what became of it.
    pub(crate) fn line(&self) -> String {
        let seconds = (self.told.took + self.control.took).as_secs_f64();
        let Attack { name, position, .. } = self.attack;
        format!("{:<10} {name:<46} {:<14} {seconds:6.1} s", position.name(), self.outcome())
    }

    fn outcome(&self) -> &'static str {
        match (&self.told, &self.control) {
            (told, _) if told.failed => "NOT PLAYED",
            (told, _) if told.through => "WENT THROUGH",
            (_, control) if control.failed => "CONTROL FAILED",
            _ => "held",
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}\n    attack:  {}\n    control: {}", self.line(), self.told.text, self.control.text)
    }
}

impl Report {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let _ = writeln!(text, "{row}");
        }
        let bad = self.rows.iter().filter(|row| !row.is_good()).count();
        let _ = writeln!(text, "{} attacks, {bad} of them not held or without a control", self.rows.len());
        text
    }

    /// For machines.
    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "name": row.attack.name,
                "position": row.attack.position.name(),
                "claim": row.attack.claim,
                "outcome": row.outcome(),
                "told": row.told.text,
                "control": row.control.text,
                "seconds": (row.told.took + row.control.took).as_secs_f64(),
            })
        });
        json!({ "attacks": rows.collect::<Vec<_>>() })
    }
}
