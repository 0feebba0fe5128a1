//! `rm [-f] ID...`: every one is tried; what fails is told and the others go on.

use clap::Args;

use crate::failure::Failure;
use crate::ids;
use crate::session::Session;
use crate::status::Doing as _;
use crate::view::json;

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Kill a running container first
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Ids of the containers, or unique beginnings of them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

pub(super) async fn rm(session: &Session, args: RmArgs) -> Result<u8, Failure> {
    let mut done = Vec::with_capacity(args.ids.len());
    let mut failures = Vec::new();
    for id in args.ids {
        let (client, force) = (&session.client, args.force);
        let deleted = ids::with(client, id.clone(), |id| async move {
            client.delete(&id, force).await.doing(&format!("remove {id}")).map(|()| id)
        });
        let (id, error) = match deleted.await {
            Ok(id) => {
                if !session.json {
                    session.output.text(format!("{id}\n")).await;
                }
                (id, None)
            }
            Err(failure) => {
                let message = failure.describe();
                failures.push(failure);
                (id, Some(message))
            }
        };
        done.push(json::Done { id, deleted: Some(error.is_none()), signal: None, error });
    }
    session.tried(&done, failures).await
}
