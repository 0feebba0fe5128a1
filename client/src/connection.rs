//! Connections to TCP ports in pods.

use executor_proto::v1::connect_port_request::Part as Request;
use executor_proto::v1::connect_port_response::Part;
use executor_proto::v1::{ConnectPortEnd, ConnectPortRequest, ConnectPortResponse, ConnectPortStart};
use tonic::Streaming;

use crate::connect::Client;
use crate::error::Error;
use crate::input::{Input, Item, Queue, queue};
use crate::pods::Pods;

/// Event that [`Connection::next`] returns.
#[derive(Clone, PartialEq, Eq)]
pub enum Received {
    /// Bytes from the port.
    Data(Vec<u8>),
    /// No more bytes follow from the port. The process at the port may still read.
    End,
}

/// Connection to a TCP port in a pod. Dropping this value closes the connection.
pub struct Connection {
    client: Client,
    input: Input,
    _queue: Queue,
    answers: Streaming<ConnectPortResponse>,
}

impl Pods {
    /// Connects to a TCP port on the loopback addresses of a pod. A broken connection is not restored.
    ///
    /// # Errors
    /// Returns an error if the operator does not allow connections, the pod is not ready, or the port refuses.
    pub async fn connect_port(&self, id: &str, port: u16) -> Result<Connection, Error> {
        let start = ConnectPortStart { id: id.to_owned(), port: port.into() };
        let (input, queue) = queue();
        let requests =
            queue.stream(vec![ConnectPortRequest { part: Some(Request::Start(start)) }], |item| ConnectPortRequest {
                part: match item {
                    Item::Bytes(bytes) => Some(Request::Data(bytes)),
                    Item::End => Some(Request::End(ConnectPortEnd {})),
                    Item::Window(_) | Item::Detach => None, // apply only to processes
                },
            });
        let client = self.client();
        let answers = client.answer(self.rpc().connect_port(requests).await)?;
        Ok(Connection { client: client.clone(), input, _queue: queue, answers })
    }
}

impl Connection {
    /// Returns the input of the port: bytes, at most 64 KiB at a time, and the end of input.
    pub fn input(&self) -> Input {
        self.input.clone()
    }

    /// Returns the next event; `None` after both directions are closed. This method is cancel safe.
    ///
    /// # Errors
    /// Returns an error if the connection broke.
    pub async fn next(&mut self) -> Result<Option<Received>, Error> {
        loop {
            let answer = self.answers.message().await.map_err(|status| self.client.error(&status))?;
            return Ok(Some(match answer.map(|answer| answer.part) {
                None => return Ok(None),
                Some(Some(Part::Data(bytes))) => Received::Data(bytes),
                Some(Some(Part::End(_))) => Received::End,
                Some(Some(Part::Started(_)) | None) => continue,
            }));
        }
    }
}
