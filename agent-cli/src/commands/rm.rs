//! `rm [-f] ID...`: every one is tried; what fails is told and the others go on.

use executor_proto::v1::DeleteRequest;

use super::Session;
use crate::cli::RmArgs;
use crate::failure::Failure;
use crate::view::json;

pub(super) async fn rm(session: &Session, args: RmArgs) -> Result<u8, Failure> {
    let mut done = Vec::with_capacity(args.ids.len());
    let mut failures = Vec::new();
    for id in args.ids {
        let request = DeleteRequest { id: id.clone(), force: args.force };
        let error = match session.client.rpc().delete(request).await {
            Ok(_) => {
                if !session.json {
                    session.output.text(format!("{id}\n")).await;
                }
                None
            }
            Err(status) => {
                let failure = session.client.failure(&format!("remove {id}"), &status);
                let message = failure.describe();
                failures.push(failure);
                Some(message)
            }
        };
        done.push(json::Done { id, deleted: Some(error.is_none()), signal: None, error });
    }
    session.tried(&done, failures).await
}
