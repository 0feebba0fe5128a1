//! `rm [-f] ID...`: every one is tried; what fails is told and the others go on.

use executor_proto::v1::DeleteRequest;

use super::Session;
use crate::cli::RmArgs;
use crate::failure::Failure;
use crate::ids;
use crate::view::json;

pub(super) async fn rm(session: &Session, args: RmArgs) -> Result<u8, Failure> {
    let mut done = Vec::with_capacity(args.ids.len());
    let mut failures = Vec::new();
    for id in args.ids {
        let (client, force) = (&session.client, args.force);
        let deleted = ids::with(client, id.clone(), |id| async move {
            let answer = client.rpc().delete(DeleteRequest { id: id.clone(), force }).await;
            answer.map(|_| id.clone()).map_err(|status| client.failure(&format!("remove {id}"), &status))
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
