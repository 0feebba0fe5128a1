//! `stop ID...`: SIGTERM, the grace period, SIGKILL; comes back when it is over.

use std::time::Duration;

use executor_proto::v1::executor_client::ExecutorClient;
use executor_proto::v1::{Container, StopRequest};

use super::{Session, expected, wait};
use crate::cli::StopArgs;
use crate::connect::Client;
use crate::failure::Failure;
use crate::request::to_proto;
use crate::status::is_lost;

pub(super) async fn stop(session: &Session, args: StopArgs) -> Result<u8, Failure> {
    let StopArgs { grace, no_wait, ids } = args;
    let stopped = session.each(ids, move |client, id| async move {
        let stopping = ask(&client, &id, grace).await?;
        if no_wait { Ok(stopping) } else { wait::completed(&client, &id).await }
    });
    session.told(stopped.await).await.map(|_| 0)
}

/// Asks executord to stop it; asking again does no harm.
pub(super) async fn ask(client: &Client, id: &str, grace: Option<Duration>) -> Result<Container, Failure> {
    let doing = format!("stop {id}");
    let grace_period = grace.map(to_proto).transpose()?;
    let call = |mut rpc: ExecutorClient<_>| {
        let request = StopRequest { id: id.to_owned(), grace_period };
        async move { rpc.stop(request).await }
    };
    let answer = client.patiently(&doing, is_lost, call).await?;
    expected(answer.container, &doing)
}
