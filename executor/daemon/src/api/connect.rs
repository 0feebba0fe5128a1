//! ConnectPort: forwards bytes between a client and a TCP port in a pod. The pod's shim creates the socket in the pod's
//! network namespace, and this process connects it. Each side is read only as fast as the other side accepts the data.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::protocol::{MakeSocket, ShimCall};
use executor_core::validate::{ViolationReason, connect_port};
use executor_proto::v1::connect_port_request::Part as In;
use executor_proto::v1::connect_port_response::Part as Out;
use executor_proto::v1::{
    ConnectPortEnd, ConnectPortRequest, ConnectPortResponse, ConnectPortStart, ConnectPortStarted,
};
use executor_transport::wire::conversation::{Answers, Conversation, Outlet, Requests};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tonic::{Status, Streaming};
use zeroize::{Zeroize as _, Zeroizing};

use super::first_message;
use crate::api_error::{ApiError, Kind};
use crate::model::container::link::shim_is_gone;
use crate::model::container::{Handle, Presence};
use crate::node::Node;

/// Read buffer size, in bytes.
const PIECE: usize = 32 << 10;
/// Maximum size of the data in one message of the client, in bytes.
const DATA_MAX: usize = 64 << 10;
/// Time limit for creating a socket and connecting it to a loopback address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to the port that the first message names.
pub(super) async fn connect(
    node: &Arc<Node>,
    requests: Streaming<ConnectPortRequest>,
    conversation: &Conversation,
) -> Result<Answers<ConnectPortResponse>, Status> {
    let mut requests = conversation.requests(requests);
    let first = first_message(&mut requests).await?;
    let Some(In::Start(ConnectPortStart { id, port })) = first.and_then(|first| first.part) else {
        let why = "is not set: it must be in the first message";
        return Err(ApiError::invalid_field("start", ViolationReason::Required.because(why)).into());
    };
    let port = connect_port(port, &node.config.policy).map_err(ApiError::invalid)?;
    let handle = node.find_pod(&id)?;
    if handle.state() != Some(State::Running) {
        return Err(ApiError::pod_unavailable(&id).into());
    }
    let permit = Arc::clone(&handle.connections).try_acquire_owned().map_err(|_| {
        let why = format!("pod {id} has the maximum number of client connections; close one of them");
        ApiError::new(Kind::Exhausted, why)
    })?;
    let stream = open(&handle, port).await?;
    let (sender, answers) = conversation.answers();
    let _ = sender.send(Ok(ConnectPortResponse { part: Some(Out::Started(ConnectPortStarted {})) })).await;
    tokio::spawn(forward(Arc::clone(node), handle, port, (stream, permit), requests, sender));
    Ok(answers)
}

/// Connects to the port at the IPv4 loopback address, or else at the IPv6 loopback address.
async fn open(pod: &Handle, port: u16) -> Result<TcpStream, ApiError> {
    let mut refused = None;
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let address = SocketAddr::new(address, port);
        let connected = async {
            let socket = socket(pod, address.is_ipv6()).await?;
            Ok::<_, ApiError>(socket.connect(address).await)
        };
        match timeout(CONNECT_TIMEOUT, connected).await {
            Ok(Ok(Ok(stream))) => {
                let _ = stream.set_nodelay(true); // affects only the latency
                return Ok(stream);
            }
            Ok(Ok(Err(error))) => refused = refused.or(Some(error.to_string())),
            // The namespace may have no IPv6.
            Ok(Err(problem)) => {
                if refused.is_none() {
                    return Err(problem);
                }
            }
            Err(_) => {
                let limit = CONNECT_TIMEOUT.as_secs();
                refused = refused.or_else(|| Some(format!("no response within {limit} s")));
            }
        }
    }
    let why = format!("port {port} of pod {}: {}", pod.id(), refused.unwrap_or_default());
    Err(ApiError::new(Kind::Precondition, why))
}

/// Gets a socket in the pod's network namespace.
async fn socket(pod: &Handle, ipv6: bool) -> Result<TcpSocket, ApiError> {
    let link = pod.shim().ok_or_else(|| shim_is_gone(pod.id()))?;
    match link.call_with_fds(ShimCall::MakeSocket(MakeSocket { ipv6 }), &[]).await {
        Ok(Some(fd)) => Ok(TcpSocket::from_std_stream(fd.into())),
        Ok(None) => Err(ApiError::new(Kind::Internal, format!("the shim of pod {} sent no socket", pod.id()))),
        Err(Some(refused)) => Err(refused.into()),
        Err(None) => Err(shim_is_gone(pod.id())),
    }
}

/// Forwards data until both directions are closed, the client disconnects, or the pod or this daemon stops.
async fn forward(
    node: Arc<Node>,
    pod: Arc<Handle>,
    port: u16,
    (stream, _permit): (TcpStream, OwnedSemaphorePermit),
    requests: Requests<ConnectPortRequest>,
    sender: Outlet<ConnectPortResponse>,
) {
    let (reader, writer) = stream.into_split();
    let both = async { tokio::try_join!(forward_output(reader, &sender), forward_input(writer, requests)) };
    let failure = tokio::select! {
        ended = both => match ended {
            Ok(_) => {
                sender.drained().await;
                None
            }
            Err(ConnectionEnd::Client) => None,
            Err(ConnectionEnd::Invalid(status)) => Some(status),
            Err(ConnectionEnd::Port(error)) => {
                let why = format!("port {port} of pod {}: {error}", pod.id());
                Some(ApiError::new(Kind::Aborted, why).into())
            }
        },
        () = sender.closed() => None,
        () = ended(&pod) => {
            Some(ApiError::new(Kind::Precondition, format!("pod {} has stopped", pod.id())).into())
        }
        () = node.until_stopping() => Some(ApiError::stopping().into()),
    };
    if let Some(status) = failure {
        tokio::select! {
            _ = sender.send(Err(status)) => {}
            () = node.until_stopping() => {}
        }
    }
}

/// Waits until the pod has stopped: an open socket would keep the pod's network namespace alive.
async fn ended(pod: &Handle) {
    let over = |presence: &Presence| !matches!(presence, Presence::Present(facts) if facts.state < State::Wiping);
    let mut watch = pod.watch();
    let _ = watch.wait_for(over).await;
}

/// Reason why forwarding in one direction ended early.
enum ConnectionEnd {
    /// The client has disconnected.
    Client,
    /// The client sent an invalid request, or its stream failed.
    Invalid(Status),
    /// The connection to the port broke.
    Port(io::Error),
}

async fn forward_output(mut port: OwnedReadHalf, sender: &Outlet<ConnectPortResponse>) -> Result<(), ConnectionEnd> {
    let mut buffer = Zeroizing::new(vec![0; PIECE]);
    loop {
        let length = port.read(&mut buffer).await.map_err(ConnectionEnd::Port)?;
        let part = match length {
            0 => Out::End(ConnectPortEnd {}),
            _ => Out::Data(buffer[..length].to_vec()),
        };
        buffer[..length].zeroize(); // the next read may take long
        sender.send(Ok(ConnectPortResponse { part: Some(part) })).await.map_err(|_| ConnectionEnd::Client)?;
        if length == 0 {
            return Ok(());
        }
    }
}

async fn forward_input(
    mut port: OwnedWriteHalf,
    mut requests: Requests<ConnectPortRequest>,
) -> Result<(), ConnectionEnd> {
    let invalid = |field: &str, fault| Err(ConnectionEnd::Invalid(ApiError::invalid_field(field, fault).into()));
    loop {
        let Some(request) = requests.next().await.map_err(ConnectionEnd::Invalid)? else { break };
        match request.part {
            Some(In::Data(bytes)) if bytes.len() > DATA_MAX => {
                let why = format!("is {} bytes; the maximum is {DATA_MAX}", bytes.len());
                return invalid("data", ViolationReason::TooLong.because(why));
            }
            Some(In::Data(bytes)) => {
                let bytes = Zeroizing::new(bytes);
                match port.write_all(&bytes).await {
                    Ok(()) => {}
                    // The server reads no more. Continue to forward its output; if the connection is broken, reading
                    // fails, too.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                    Err(error) => return Err(ConnectionEnd::Port(error)),
                }
            }
            Some(In::End(_)) => break,
            Some(In::Start(_)) => {
                let why = "is set a second time; only the first message may have it";
                return invalid("start", ViolationReason::Duplicate.because(why));
            }
            None => return invalid("part", ViolationReason::Required.because("is not set")),
        }
    }
    let _ = port.shutdown().await; // fails if the connection is closed
    Ok(())
}
