//! Calls convention servers over HTTPS (rules 1 and 15 of `docs/guides/conventions.md`).
//!
//! Each call is one POST request on a separate connection. Redirects are not followed and proxies are not used. The
//! server's certificate must match the host in the URL. The certificate must be issued by an authority in the
//! registration's CA bundle; if there is no bundle, by an authority that the system trusts.

use std::collections::BTreeMap;
use std::sync::Arc;

use executor_http::{Body, BodyError, Client, Destinations, HttpError, HttpRequest, RequestBody, Trust};
use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::registration::Registration;

/// Maximum size of a response in bytes, in addition to the size of the request, which a response may repeat.
pub const ANSWER_MAX: usize = 8 << 20;
/// Maximum size of a request, in bytes.
pub const REQUEST_MAX: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status code.
    pub status: u16,
    pub content_type: Option<String>,
    pub body: Vec<u8>,
}

/// Sends requests to convention servers.
pub trait Transport {
    /// Sends a request to a convention server and returns the response, regardless of its status.
    ///
    /// # Errors
    /// Returns the reason in one sentence if there is no response. The sentence contains no part of the request.
    fn call(&self, registration: &Registration, request: Vec<u8>) -> impl Future<Output = Result<Reply, String>>;
}

/// Sends requests over HTTPS.
#[derive(Debug, Default)]
pub struct Https {
    clients: Mutex<BTreeMap<String, Arc<Client>>>,
}

impl Https {
    async fn client(&self, registration: &Registration) -> Arc<Client> {
        let mut clients = self.clients.lock().await;
        let client = clients.entry(registration.name.clone()).or_insert_with(|| {
            let trust = match &registration.ca_bundle {
                Some(pem) => Trust::Only(pem.clone()),
                None => Trust::System(None),
            };
            // A single timeout applies to the whole call, including the connection.
            Arc::new(Client::trusting(trust, registration.timeout, 0))
        });
        Arc::clone(client)
    }
}

impl Transport for Https {
    async fn call(&self, registration: &Registration, request: Vec<u8>) -> Result<Reply, String> {
        if request.len() > REQUEST_MAX {
            return Err(format!("the request is {} bytes; the maximum is {REQUEST_MAX}", request.len()));
        }
        let client = self.client(registration).await;
        let late = |_| format!("the server did not respond within {} s", registration.timeout.as_secs());
        timeout(registration.timeout, exchange(&client, registration, request)).await.map_err(late)?
    }
}

async fn exchange(client: &Client, registration: &Registration, request: Vec<u8>) -> Result<Reply, String> {
    let most = request.len() + ANSWER_MAX;
    let json = HeaderValue::from_static("application/json");
    let ask = HttpRequest {
        method: Method::POST,
        origin: &registration.endpoint.origin,
        path: &registration.endpoint.path,
        headers: vec![(CONTENT_TYPE, json.clone()), (ACCEPT, json)],
        body: RequestBody::Full(request.into()),
        destinations: Destinations::Any,
    };
    let answer = client.ask(ask).await.map_err(|error| reported(error, registration))?;
    let content_type =
        answer.headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let status = answer.status.as_u16();
    // The body of an error response is not read.
    let body = if status == 200 { read(answer.body, most).await? } else { Vec::new() };
    Ok(Reply { status, content_type, body })
}

async fn read(mut body: Body, most: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    loop {
        match body.next().await {
            Ok(None) => return Ok(bytes),
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Err(BodyError::Ended) => return Err("the connection closed before the response was complete".to_owned()),
            Err(BodyError::Slow { .. }) => return Err("the server sent the response too slowly".to_owned()),
        }
        if bytes.len() > most {
            return Err(format!("the response is larger than the maximum of {most} bytes"));
        }
    }
}

fn reported(error: HttpError, registration: &Registration) -> String {
    match error {
        HttpError::Forbidden(why) => why.to_owned(),
        HttpError::Slow { .. } => format!("the server did not respond within {} s", registration.timeout.as_secs()),
        HttpError::Broken(why) => why,
        HttpError::Untrusted(why) => format!("the server is not trusted: {why}"),
        HttpError::Exhausted(error) => format!("cannot connect: {error}"),
    }
}
