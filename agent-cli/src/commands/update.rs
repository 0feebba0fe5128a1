//! `update ID...`: new limits for running containers.

use clap::Args;
use executor_client::v1::{Limits, UpdateLimitsRequest};

use super::run::host_options::{MemorySwap, memory_swap};
use crate::failure::Failure;
use crate::limits::LimitArgs;
use crate::session::Session;
use crate::status::Doing as _;
use crate::units;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    limits: LimitArgs,
    /// Limit of memory and swap together, with --memory: as much as --memory for no swap, -1 for no limit on swap; where
    /// executord's configuration allows it (swap_bytes_max)
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = memory_swap,
        allow_negative_numbers = true,
        requires = "memory",
        help_heading = "Limits"
    )]
    memory_swap: Option<MemorySwap>,
    /// Memory that the kernel leaves to the container when the host's runs short: at most as much as --memory
    #[arg(long, value_name = "SIZE", value_parser = units::size, help_heading = "Limits")]
    memory_reservation: Option<u64>,
    /// Share of the processors when they are busy: 1 to 10000; the usual weight is 100
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    cpu_weight: Option<u32>,
    /// Share of the disks likewise (cgroup v2 with the io controller)
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    io_weight: Option<u32>,
    /// Ids of the containers, or unique beginnings of them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

impl UpdateArgs {
    /// The limits of the request; 0 or unset for those that stay as they are.
    ///
    /// # Errors
    /// None is given, or memory and swap together are less than the memory.
    fn limits(&self) -> Result<Limits, Failure> {
        let mut limits = self.limits.limits();
        limits.memory_reservation_bytes = self.memory_reservation.unwrap_or(0);
        limits.swap_bytes = self.memory_swap.map(|swap| swap.beyond(limits.memory_bytes)).transpose()?;
        limits.cpu_weight = self.cpu_weight.unwrap_or(0);
        limits.io_weight = self.io_weight.unwrap_or(0);
        if limits == Limits::default() {
            let why = "update: give at least one limit, such as --memory, --pids or --cpus";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(limits)
    }
}

/// Replaces limits of several containers. Prints the id of each, as docker does.
pub(super) async fn update(session: &Session, args: UpdateArgs) -> Result<u8, Failure> {
    let limits = args.limits()?;
    let done = |id, error: Option<String>| json::Done { updated: Some(error.is_none()), ..json::Done::new(id, error) };
    let replace = |id: String| {
        let request = UpdateLimitsRequest { id: id.clone(), limits: Some(limits.clone()) };
        async move {
            session.client.update_limits(request).await.doing(&format!("update {id}"))?;
            Ok(id)
        }
    };
    session.in_turn(args.ids, replace, done).await
}
