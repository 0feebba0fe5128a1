//! Resource limit flags of a container.

use clap::Args;
use executor_client::v1::Limits;

use crate::units;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Memory limit, including swap: 64M, 1GiB, 1.5G (powers of 1024)
    #[arg(long, short, value_name = "SIZE", value_parser = units::size)]
    memory: Option<u64>,
    /// Limit of processes and threads
    #[arg(long, visible_alias = "pids-limit", value_name = "N", value_parser = units::count)]
    pids: Option<u64>,
    /// Processor limit: 2, 0.5
    #[arg(long, value_name = "N", value_parser = units::cpus)]
    cpus: Option<u64>,
}

impl LimitArgs {
    /// Returns the limits of a request; unset limits are executord's defaults.
    pub fn limits(&self) -> Limits {
        Limits {
            memory_bytes: self.memory.unwrap_or(0),
            pids: self.pids.unwrap_or(0),
            cpu_millis: self.cpus.unwrap_or(0),
            ..Limits::default()
        }
    }
}
