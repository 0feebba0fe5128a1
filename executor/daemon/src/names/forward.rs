//! Forwards a query to name servers. Each forwarded query has its own random id. Each UDP query also has a random port,
//! which the kernel chooses. A response is accepted only from the server's address, and only with this id and question.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Metadata, ResponseCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::policy::{AllowedServers, NAMES_PORT};
use super::wire::Question;

/// Time limit for the response of one server. By default, clients wait for 5 s (resolv.conf(5)).
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a response that is received over UDP, in bytes.
const DATAGRAM_MAX: usize = 65_535;

/// Sends the question to the servers in order until one responds. Uses TCP if the client used TCP, or if the response
/// does not fit into a datagram. A response with a server error is returned only if all other servers fail, too.
pub(super) async fn forward(question: &Question, servers: &AllowedServers, is_tcp: bool) -> Option<Vec<u8>> {
    let mut failure = None;
    for server in if is_tcp { &servers.tcp } else { &servers.udp } {
        let may_use_tcp = servers.tcp.contains(server);
        let Some((answer, header)) = query_server(question, *server, is_tcp, may_use_tcp).await else { continue };
        match header.response_code {
            ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp => {
                failure.get_or_insert(answer);
            }
            _ => return Some(answer),
        }
    }
    failure
}

async fn query_server(
    question: &Question,
    server: IpAddr,
    is_tcp: bool,
    may_use_tcp: bool,
) -> Option<(Vec<u8>, Metadata)> {
    let server = SocketAddr::new(server, NAMES_PORT);
    let over_tcp = || timeout(RESPONSE_TIMEOUT, query_tcp(question, server));
    if is_tcp {
        return over_tcp().await.ok()?.ok();
    }
    let answered = timeout(RESPONSE_TIMEOUT, query_udp(question, server)).await.ok()?.ok()?;
    if answered.1.truncation && may_use_tcp {
        return Some(over_tcp().await.ok().and_then(Result::ok).unwrap_or(answered));
    }
    Some(answered)
}

fn random_id() -> io::Result<u16> {
    let mut id = [0; 2];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
    Ok(u16::from_be_bytes(id))
}

async fn query_udp(question: &Question, server: SocketAddr) -> io::Result<(Vec<u8>, Metadata)> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // After this call the kernel drops datagrams from other addresses.
    socket.connect(server).await?;
    let id = random_id()?;
    socket.send(&question.forwarded(id)).await?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(header) = question.check_answer(id, &buffer[..length]) {
            buffer.truncate(length);
            return Ok((buffer, header));
        }
    }
}

async fn query_tcp(question: &Question, server: SocketAddr) -> io::Result<(Vec<u8>, Metadata)> {
    let mut stream = TcpStream::connect(server).await?;
    let id = random_id()?;
    let query = question.forwarded(id);
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &query].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    let header = question.check_answer(id, &answer);
    header.map(|header| (answer, header)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
