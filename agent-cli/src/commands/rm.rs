//! `rm [-f] ID...`: removes containers. If a container cannot be removed, reports the error and continues.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;

use crate::batch;
use crate::view::json;

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Kill a running container first
    #[arg(long, short)]
    pub(crate) force: bool,
    /// No effect, for compatibility with docker: a container's own volumes are always removed with it
    #[arg(long, short, hide = true)]
    pub(crate) volumes: bool,
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

pub(super) async fn rm(session: &Session, args: RmArgs) -> Result<u8, Failure> {
    let (client, force) = (&session.client, args.force);
    let delete =
        |id: String| async move { client.delete(&id, force).await.doing(&format!("remove {id}")).map(|()| id) };
    let done = |id, error: Option<String>| json::Done { deleted: Some(error.is_none()), ..json::Done::new(id, error) };
    batch::in_turn(session, args.ids, delete, done).await
}
