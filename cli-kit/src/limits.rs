//! Resource limit flags of a container.

use clap::Args;
use executor_client::v1::Limits;

use crate::units;

/// A limit of a flag: an amount, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Amount(u64),
    Unlimited,
}

impl Limit {
    /// Returns the amount, 0 if unset or unlimited, and true if unlimited.
    fn parts(limit: Option<Self>) -> (u64, bool) {
        match limit {
            None => (0, false),
            Some(Self::Amount(amount)) => (amount, false),
            Some(Self::Unlimited) => (0, true),
        }
    }
}

fn memory(text: &str) -> Result<Limit, String> {
    if text == "-1" { Ok(Limit::Unlimited) } else { units::size(text).map(Limit::Amount) }
}

fn pids(text: &str) -> Result<Limit, String> {
    if text == "-1" { Ok(Limit::Unlimited) } else { units::count(text).map(Limit::Amount) }
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Memory limit, including swap: 64M, 1GiB, 1.5G (powers of 1024); -1 for no limit
    ///
    /// A limit of -1 must be permitted in executord's configuration (allow_no_limits).
    #[arg(long, short, value_name = "SIZE", value_parser = memory, allow_negative_numbers = true)]
    memory: Option<Limit>,
    /// Limit of processes and threads; -1 for no limit
    #[arg(
        long,
        visible_alias = "pids-limit",
        value_name = "N",
        value_parser = pids,
        allow_negative_numbers = true
    )]
    pids: Option<Limit>,
    /// Processor limit: 2, 0.5
    #[arg(long, value_name = "N", value_parser = units::cpus)]
    cpus: Option<u64>,
}

impl LimitArgs {
    /// Returns the limits of a request; unset limits are executord's defaults.
    pub fn limits(&self) -> Limits {
        let (memory_bytes, unlimited_memory) = Limit::parts(self.memory);
        let (pids, unlimited_pids) = Limit::parts(self.pids);
        Limits {
            memory_bytes,
            pids,
            unlimited_memory,
            unlimited_pids,
            cpu_millis: self.cpus.unwrap_or(0),
            ..Limits::default()
        }
    }
}
