//! `info`: version, capacity, state of executord.

use std::time::SystemTime;

use executor_proto::v1::InfoRequest;

use crate::failure::Failure;
use crate::session::Session;
use crate::view::{human, json};

pub(super) async fn info(session: &Session) -> Result<u8, Failure> {
    let answer = session.client.rpc().info(InfoRequest {}).await;
    let info = answer.map_err(|status| session.client.failure("info", &status))?.into_inner();
    let socket = session.client.socket().display().to_string();
    let document = json::Info::new(&info, socket.clone());
    session.print(&document, || human::info(&info, &socket, SystemTime::now(), session.style)).await;
    Ok(0)
}
