//! `wait ID...`: until containers are completed, over restarts of executord; exits as the process did.

use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{Container, WaitRequest};

use super::{Session, expected};
use crate::cli::WaitArgs;
use crate::connect::Client;
use crate::exit::Outcome;
use crate::failure::Failure;
use crate::status::is_away;

pub(super) async fn wait(session: &Session, args: WaitArgs) -> Result<u8, Failure> {
    let several = args.ids.len() > 1;
    let ended = session.each(args.ids, |client, id| async move { completed(&client, &id).await }).await;
    let status = |container: &Container| Outcome::of(container.result.as_ref()).status();
    for container in ended.iter().filter_map(|(_, ended)| ended.as_ref().ok()) {
        if several && !session.json {
            session.output.text(format!("{}\n", status(container))).await;
        }
        session.explain_end(container, &[]);
    }
    let containers = session.told(ended).await?;
    Ok(containers.iter().map(status).find(|status| *status != 0).unwrap_or(0))
}

/// The container as it ended.
pub(super) async fn completed(client: &Client, id: &str) -> Result<Container, Failure> {
    let doing = format!("wait for {id}");
    let call = |mut rpc: ExecutorClient<_>| {
        let request = WaitRequest { id: id.to_owned() };
        async move { rpc.wait(request).await }
    };
    let answer = client.patiently(&doing, is_away, call).await?;
    expected(answer.container, &doing)
}
