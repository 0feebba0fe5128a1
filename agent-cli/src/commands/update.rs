//! `update ID...`: changes limits of running containers.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::limits::LimitArgs;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_client::v1::{Limits, UpdateLimitsRequest};

use super::run::host_options::{CpusetArgs, MemoryArgs};
use super::run::isolation::WeightArgs;
use crate::batch;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    weights: WeightArgs,
    #[command(flatten)]
    cpusets: CpusetArgs,
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

impl UpdateArgs {
    /// Returns the limits of the request; unchanged limits are 0 or unset.
    ///
    /// # Errors
    /// Returns an error if no limit is given, or if the limit on memory and swap is less than the memory limit.
    fn limits(&self) -> Result<Limits, Failure> {
        let mut limits = self.limits.limits();
        self.memory.apply(&mut limits)?;
        self.weights.apply(&mut limits);
        self.cpusets.apply(&mut limits);
        if limits == Limits::default() {
            let why = "update: set at least one limit, such as --memory, --pids or --cpus";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(limits)
    }
}

/// Changes limits of several containers. Prints the id of each, like docker.
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
    batch::in_turn(session, args.ids, replace, done).await
}
