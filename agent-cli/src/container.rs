//! Calls about one container.

use std::time::Duration;

use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{Container, GetRequest, StopRequest, WaitRequest};
use tonic::Status;

use crate::connect::Client;
use crate::failure::Failure;
use crate::request::to_proto;
use crate::session::Session;
use crate::status::{is_away, is_lost};

/// Asks for a container, over the failures that `away` tells.
pub async fn get(session: &Session, id: &str, doing: &str, away: fn(&Status) -> bool) -> Result<Container, Failure> {
    let call = |mut rpc: ExecutorClient<_>| {
        let request = GetRequest { id: id.to_owned() };
        async move { rpc.get(request).await }
    };
    expected(session.client.patiently(doing, away, call).await?.container, doing)
}

/// The container as it ended.
pub async fn completed(client: &Client, id: &str) -> Result<Container, Failure> {
    let doing = format!("wait for {id}");
    let call = |mut rpc: ExecutorClient<_>| {
        let request = WaitRequest { id: id.to_owned() };
        async move { rpc.wait(request).await }
    };
    let answer = client.patiently(&doing, is_away, call).await?;
    expected(answer.container, &doing)
}

/// Asks executord to stop it; asking again does no harm.
pub async fn ask_to_stop(client: &Client, id: &str, grace: Option<Duration>) -> Result<Container, Failure> {
    let doing = format!("stop {id}");
    let grace_period = grace.map(to_proto).transpose()?;
    let call = |mut rpc: ExecutorClient<_>| {
        let request = StopRequest { id: id.to_owned(), grace_period };
        async move { rpc.stop(request).await }
    };
    let answer = client.patiently(&doing, is_lost, call).await?;
    expected(answer.container, &doing)
}

/// A container that an answer must carry.
pub fn expected(container: Option<Container>, doing: &str) -> Result<Container, Failure> {
    container.ok_or_else(|| Failure::Refused {
        code: tonic::Code::Internal,
        message: format!("{doing}: executord's answer lacks the container"),
    })
}
