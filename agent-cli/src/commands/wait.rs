//! `wait ID`: until the container is completed, over restarts of executord; exits as its process did.

use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{Container, WaitRequest};

use super::{Session, expected};
use crate::connect::{Client, is_away};
use crate::exit::Outcome;
use crate::failure::Failure;
use crate::view::json;

pub(super) async fn wait(session: &Session, id: String) -> Result<u8, Failure> {
    let container = completed(&session.client, &id).await?;
    if session.json {
        session.output.text(json::document(&json::Container::from(&container))).await;
    }
    session.explain_end(&container, &[]);
    Ok(Outcome::of(container.result.as_ref()).status())
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
