//! Figures of a run, as a table for people and as JSON for programs.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::evaluate::Fate;
use crate::sweep::Outcome;

/// Number of log lines that are shown with a failure.
const LOG_LINES: usize = 40;

/// Figures of all targets.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// Failures, one per line.
    pub(crate) failures: Vec<String>,
}

/// Figures of one target.
#[derive(Default)]
pub(crate) struct Row {
    target: &'static str,
    /// Number of system calls of a whole cycle: the maximum of all cycles.
    pub(crate) calls: u64,
    /// Number of cycles with a kill.
    pub(crate) kills: u64,
    /// Outcomes of the containers in cycles with a kill.
    fates: [u64; Fate::ALL.len()],
    /// Number of results with and without a wipe receipt.
    receipts: [u64; 2],
    /// Number of cycles that violated a condition.
    pub(crate) wrong: u64,
    took: Duration,
}

impl Row {
    pub(crate) fn add(&mut self, outcome: &Outcome, took: Duration) {
        self.calls = self.calls.max(outcome.calls);
        self.took += took;
        self.wrong += u64::from(!outcome.verdict.wrong.is_empty());
        if outcome.kill.is_none() {
            return;
        }
        self.kills += 1;
        if let Some(fate) = outcome.verdict.fate {
            self.fates[fate as usize] += 1;
        }
        if let Some(receipt) = outcome.verdict.receipt {
            self.receipts[usize::from(!receipt)] += 1;
        }
    }
}

impl Report {
    pub(crate) fn row(&mut self, target: &'static str) -> &mut Row {
        let index = self.rows.iter().position(|row| row.target == target).unwrap_or_else(|| {
            self.rows.push(Row { target, ..Row::default() });
            self.rows.len() - 1
        });
        &mut self.rows[index]
    }

    /// Returns the number of cycles that violated a condition, over all targets.
    pub(crate) fn leaks(&self) -> u64 {
        self.rows.iter().map(|row| row.wrong).sum()
    }

    /// Formats the figures as a table.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let head = ["target", "calls", "kills", "known", "unknown", "refused", "receipts", "none", "leaks", "seconds"];
        let line = |text: &mut String, cells: &[String]| {
            let _ = write!(text, "{:<12}", cells[0]);
            for cell in &cells[1..] {
                let _ = write!(text, " {cell:>8}");
            }
            text.push('\n');
        };
        line(&mut text, &head.map(str::to_owned));
        for row in &self.rows {
            let numbers = [row.calls, row.kills].into_iter().chain(row.fates).chain(row.receipts).chain([row.wrong]);
            let mut cells = vec![row.target.to_owned()];
            cells.extend(numbers.map(|number| number.to_string()));
            cells.push(format!("{:.1}", row.took.as_secs_f64()));
            line(&mut text, &cells);
        }
        for (name, fate) in ["known", "unknown", "refused"].iter().zip(Fate::ALL) {
            let _ = writeln!(text, "{name}: {}", fate.name());
        }
        text.push_str("receipts: results with a wipe receipt; none: results without a receipt\n");
        for failure in &self.failures {
            let _ = writeln!(text, "WRONG {failure}");
        }
        text
    }

    /// Formats the figures as JSON.
    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "target": row.target,
                "calls": row.calls,
                "kills": row.kills,
                "known": row.fates[Fate::Known as usize],
                "unknown": row.fates[Fate::Unknown as usize],
                "refused": row.fates[Fate::Refused as usize],
                "receipts": row.receipts[0],
                "without_receipt": row.receipts[1],
                "leaks": row.wrong,
                "seconds": row.took.as_secs_f64(),
            })
        });
        json!({ "targets": rows.collect::<Vec<_>>(), "failures": self.failures })
    }
}

/// Returns the last lines of a log.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| format!("    {line}\n")).collect()
}
