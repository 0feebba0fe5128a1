//! `info`: shows version, capacity and state of executord.

use std::time::SystemTime;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;

use crate::view::{human, json};

pub(super) async fn info(session: &Session) -> Result<u8, Failure> {
    let info = session.client.info().await.doing("info")?;
    let socket = session.client.address().to_string();
    let document = json::Info::new(&info, socket.clone());
    session.print(&document, || human::info(&info, &socket, SystemTime::now(), session.style)).await;
    Ok(0)
}
