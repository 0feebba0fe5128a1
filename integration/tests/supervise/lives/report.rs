//! Prints the figures of a run, as a table for users and as JSON.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::lives::evaluate::{Figures, grown};

/// Number of containers at the start and at the end of a test run whose durations are reported.
const COMPARED: usize = 1000;

/// Results of a complete run.
pub(crate) struct Report<'a> {
    pub(crate) lives: usize,
    /// Number of containers that ran at the same time as others.
    pub(crate) at_once: usize,
    /// Number of results that the daemon keeps.
    pub(crate) kept: usize,
    /// Resource figures after each tenth of the containers.
    pub(crate) figures: &'a [Figures],
    /// Durations of the consecutive containers, from the call to the result.
    pub(crate) took: &'a [Option<Duration>],
}

impl Report<'_> {
    /// Returns the median and the 99th percentile of the durations, in microseconds, for the first and for the last
    /// consecutive containers.
    fn times(&self) -> [(usize, [u128; 2]); 2] {
        let took: Vec<Duration> = self.took.iter().copied().flatten().collect();
        let compared = COMPARED.min(took.len() / 2);
        [&took[..compared], &took[took.len() - compared..]].map(|part| {
            let mut part = part.to_vec();
            part.sort_unstable();
            let percentile = |percent: usize| part[(part.len() * percent).div_ceil(100).max(1) - 1].as_micros();
            (part.len(), [percentile(50), percentile(99)])
        })
    }

    pub(crate) fn print(&self) {
        println!(
            "\n{} containers, {} of them run concurrently; {} results are kept",
            self.lives, self.at_once, self.kept
        );
        println!("{:<28}{}  allowed growth", "after each tenth", " ".repeat(8 * self.figures.len()));
        for (index, row) in Figures::default().rows().iter().enumerate() {
            let cells: String = self.figures.iter().map(|all| format!("{:>8}", all.rows()[index].value)).collect();
            let slack = row.slack.map_or_else(|| "not judged".to_owned(), |slack| slack.to_string());
            println!("{:<28}{cells}  {slack:>14}", row.name);
        }
        for (which, (count, [median, last])) in ["first", "last"].iter().zip(self.times()) {
            println!("the {which} {count} in a row: median {median} us, 99th percentile {last} us");
        }
    }

    pub(crate) fn json(&self) -> String {
        let values = |all: &Figures| {
            all.rows().iter().map(|row| (row.name.to_owned(), row.value.into())).collect::<Map<String, Value>>()
        };
        let slack: Map<String, Value> =
            Figures::default().rows().iter().map(|row| (row.name.to_owned(), row.slack.into())).collect();
        let times = self.times().map(|(count, [median, last])| {
            json!({"lives": count, "p50_us": u64::try_from(median).ok(), "p99_us": u64::try_from(last).ok()})
        });
        let [first, last] = times;
        let reported = json!({
            "lives": self.lives,
            "lives_at_once": self.at_once,
            "results_kept": self.kept,
            "tenths": self.figures.iter().map(values).collect::<Vec<_>>(),
            "allowed_growth": slack,
            "grown": grown(self.figures),
            "first": first,
            "last": last,
        });
        format!("{reported:#}\n")
    }
}
