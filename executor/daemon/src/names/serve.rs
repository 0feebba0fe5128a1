//! Serves the sockets of a network. A query is dropped if its source address belongs to no container of the network. A
//! container cannot forge its source address, because rules on the host drop such packets.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, UdpSocket as StdUdp};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::forward::forward;
use super::policy::AllowedServers;
use super::wire::{NoQuestion, QUERY_MAX, Question};
use super::zone::Client;
use super::{NameServers, ServedNetwork};
use crate::telemetry::metrics::NameQuery;

/// Time limit for the next query on a TCP connection, and for the client to read a response.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a socket error, such as a lack of memory or descriptors.
const ERROR_DELAY: Duration = Duration::from_millis(100);
/// Number of sockets for each gateway: one for UDP, one for TCP.
const SOCKETS: usize = 2;

/// Counter of name lookups, used to rotate the order of addresses.
static TURN: AtomicUsize = AtomicUsize::new(0);

/// Serves the sockets of a network: for each gateway one UDP socket and one TCP socket.
///
/// # Errors
/// Returns an error if the number of sockets is wrong, or if the runtime cannot register a socket.
pub(super) fn start(names: &Arc<NameServers>, served: &Arc<ServedNetwork>, sockets: Vec<OwnedFd>) -> io::Result<()> {
    let expected = SOCKETS * served.network.gateways().len();
    if sockets.len() != expected {
        return Err(io::Error::other(format!("the launcher sent {} sockets; expected {expected}", sockets.len())));
    }
    let (mut udp, mut tcp) = (Vec::new(), Vec::new());
    let mut sockets = sockets.into_iter();
    while let (Some(datagrams), Some(stream)) = (sockets.next(), sockets.next()) {
        udp.push(UdpSocket::from_std(StdUdp::from(datagrams))?);
        tcp.push(TcpListener::from_std(StdListener::from(stream))?);
    }
    for socket in udp {
        tokio::spawn(serve_udp(Arc::clone(names), Arc::clone(served), Arc::new(socket)));
    }
    for listener in tcp {
        tokio::spawn(serve_tcp(Arc::clone(names), Arc::clone(served), listener));
    }
    Ok(())
}

async fn serve_udp(names: Arc<NameServers>, served: Arc<ServedNetwork>, socket: Arc<UdpSocket>) {
    let mut buffer = [0; QUERY_MAX + 1];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(_) => {
                sleep(ERROR_DELAY).await;
                continue;
            }
        };
        match names.client(&served, from.ip()) {
            Some(client) => names.query(&served, &client, (&socket, from), &buffer[..length]),
            None => {
                let (names, served, socket) = (Arc::clone(&names), Arc::clone(&served), Arc::clone(&socket));
                let packet = buffer[..length].to_vec();
                names.handle_early_query(served, socket, from, packet);
            }
        }
    }
}

async fn serve_tcp(names: Arc<NameServers>, served: Arc<ServedNetwork>, listener: TcpListener) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                sleep(ERROR_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&names.connections).try_acquire_owned() else {
            names.metrics.name_query(NameQuery::Limited);
            continue;
        };
        let (names, served) = (Arc::clone(&names), Arc::clone(&served));
        tokio::spawn(async move {
            let _permit = permit;
            names.serve_connection(&served, stream, from.ip()).await;
        });
    }
}

impl NameServers {
    /// Handles a datagram from a container whose start has not been reported yet.
    fn handle_early_query(
        self: Arc<Self>,
        served: Arc<ServedNetwork>,
        socket: Arc<UdpSocket>,
        from: SocketAddr,
        packet: Vec<u8>,
    ) {
        if served.network.number_of(from.ip()).is_none() || self.waiting.available_permits() == 0 {
            return self.metrics.name_query(NameQuery::Stranger);
        }
        tokio::spawn(async move {
            match self.wait_for_client(&served, from.ip()).await {
                Some(client) => self.query(&served, &client, (&socket, from), &packet),
                None => self.metrics.name_query(NameQuery::Stranger),
            }
        });
    }

    /// Answers or forwards the query in a container's datagram.
    fn query(
        self: &Arc<Self>,
        served: &Arc<ServedNetwork>,
        client: &Arc<Client>,
        (socket, from): (&Arc<UdpSocket>, SocketAddr),
        packet: &[u8],
    ) {
        if !client.quota.take_query() {
            return self.metrics.name_query(NameQuery::Limited);
        }
        // If the socket's buffer is full, the response is lost, as on any network.
        let send = |answer: &[u8]| drop(socket.try_send_to(answer, from));
        let question = match self.parse(packet) {
            Ok(question) => question,
            Err(NoQuestion::Answered(answer)) => return send(&answer),
            Err(NoQuestion::Ignored) => return,
        };
        if let Some(answer) = self.local_answer(served, &question, false) {
            return send(&answer);
        }
        let (names, served, client) = (Arc::clone(self), Arc::clone(served), Arc::clone(client));
        let Some(servers) = names.servers(&served, &client) else {
            return send(&names.not_forwarded(&question));
        };
        let permits = Arc::clone(&client.quota.forwards)
            .try_acquire_owned()
            .and_then(|own| Ok((own, Arc::clone(&names.forwards).try_acquire_owned()?)));
        let Ok(permits) = permits else {
            names.metrics.name_query(NameQuery::Limited);
            return send(&question.fail(ResponseCode::ServFail));
        };
        let socket = Arc::clone(socket);
        tokio::spawn(async move {
            let _permits = permits;
            let answer = names.forward(&question, &servers, false).await;
            let _ = socket.send_to(&answer, from).await;
        });
    }

    /// Serves a TCP connection, one query after the other.
    async fn serve_connection(&self, served: &ServedNetwork, mut stream: TcpStream, from: IpAddr) {
        let Some(client) = self.wait_for_client(served, from).await else {
            return self.metrics.name_query(NameQuery::Stranger);
        };
        let Ok(_permit) = client.quota.connections.try_acquire() else {
            return self.metrics.name_query(NameQuery::Limited);
        };
        let mut buffer = [0; QUERY_MAX];
        loop {
            let query = async {
                let length = usize::from(stream.read_u16().await?);
                let room = buffer.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
                stream.read_exact(room).await
            };
            let Ok(Ok(length)) = timeout(IDLE_TIMEOUT, query).await else { return };
            // The address may belong to another container by now.
            let Some(client) = self.client(served, from).filter(|now| now.handle.id() == client.handle.id()) else {
                return;
            };
            if !client.quota.take_query() {
                return self.metrics.name_query(NameQuery::Limited);
            }
            let answer = match self.parse(&buffer[..length]) {
                Ok(question) => self.answer_tcp(served, &client, &question).await,
                Err(NoQuestion::Answered(answer)) => answer,
                Err(NoQuestion::Ignored) => return,
            };
            let Ok(length) = u16::try_from(answer.len()) else { return };
            let answer = [&length.to_be_bytes()[..], &answer].concat();
            let Ok(Ok(())) = timeout(IDLE_TIMEOUT, stream.write_all(&answer)).await else { return };
        }
    }

    async fn answer_tcp(&self, served: &ServedNetwork, client: &Client, question: &Question) -> Vec<u8> {
        if let Some(answer) = self.local_answer(served, question, true) {
            return answer;
        }
        let Some(servers) = self.servers(served, client) else { return self.not_forwarded(question) };
        let (Ok(_own), Ok(_all)) = (client.quota.forwards.try_acquire(), self.forwards.try_acquire()) else {
            self.metrics.name_query(NameQuery::Limited);
            return question.fail(ResponseCode::ServFail);
        };
        self.forward(question, &servers, true).await
    }

    fn parse(&self, packet: &[u8]) -> Result<Question, NoQuestion> {
        Question::parse(packet).inspect_err(|_| self.metrics.name_query(NameQuery::Malformed))
    }

    /// Answers a question about a name or address of the network. Returns `None` for other questions.
    fn local_answer(&self, served: &ServedNetwork, question: &Question, is_tcp: bool) -> Option<Vec<u8>> {
        let (zone, network) = (self.zone(), &served.network);
        let found = match question.address() {
            Some(address) => {
                network.pools().find(|pool| pool.contains(&address))?;
                zone.id(&network.name, address).map(|id| question.pointer(id.as_str()))
            }
            None => {
                let turn = TURN.fetch_add(1, Ordering::Relaxed);
                let addresses = zone.addresses(&network.name, &question.name()?, turn)?;
                Some(question.select(&addresses))
            }
        };
        self.metrics.name_query(NameQuery::Answered);
        Some(question.answer(found, is_tcp))
    }

    /// Returns the name servers to which the container's query may be forwarded, or `None` if there are none.
    fn servers(&self, served: &ServedNetwork, client: &Client) -> Option<AllowedServers> {
        // Read the status for each query, because egress can be updated.
        let facts = client.handle.facts()?;
        let place = (&served.network, &client.addresses[..]);
        let servers = AllowedServers::select(&facts.plan.connectivity, place, || self.host_servers.get());
        (!servers.is_empty()).then_some(servers)
    }

    /// Answers NXDOMAIN to a question that may not be forwarded, because a server error would make the client repeat
    /// the query.
    fn not_forwarded(&self, question: &Question) -> Vec<u8> {
        self.metrics.name_query(NameQuery::Closed);
        question.fail(ResponseCode::NXDomain)
    }

    async fn forward(&self, question: &Question, servers: &AllowedServers, is_tcp: bool) -> Vec<u8> {
        match forward(question, servers, is_tcp).await {
            Some(answer) => {
                self.metrics.name_query(NameQuery::Forwarded);
                question.relay(answer, is_tcp)
            }
            None => {
                self.metrics.name_query(NameQuery::Failed);
                question.fail(ResponseCode::ServFail)
            }
        }
    }
}
