//! `pod port-forward`: forwards local TCP ports to ports in a pod.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::output::Output;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_line;
use executor_client::{Input, Pods, Received};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Read buffer size, in bytes.
const PIECE: usize = 32 << 10;
/// Pause after a failed accept. An accept fails while this process has no free descriptor. Without the pause, the
/// accept loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of ports.
const PORTS_MAX: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// Local address to listen on
    ///
    /// Everyone who reaches this address reaches the ports in the pod.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    listen: IpAddr,
    /// Id of the pod
    #[arg(value_name = "ID")]
    id: String,
    /// Port in the pod, after a local port if that differs: 80, 8080:80; :80 chooses a free local port
    #[arg(required = true, value_name = "[LOCAL:]PORT", value_parser = ports)]
    ports: Vec<Ports>,
}

/// Local port and port in the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    /// Local port; 0 for any free port.
    local: u16,
    remote: u16,
}

/// Parses a port to forward: `PORT`, `LOCAL:PORT` or `:PORT`.
fn ports(text: &str) -> Result<Ports, String> {
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
    let parsed = match text.split_once(':') {
        None => port(text).map(|remote| Ports { local: remote, remote }),
        Some(("", remote)) => port(remote).map(|remote| Ports { local: 0, remote }),
        Some((local, remote)) => port(local).zip(port(remote)).map(|(local, remote)| Ports { local, remote }),
    };
    parsed.ok_or_else(|| "use PORT, LOCAL:PORT or :PORT, with ports from 1 to 65535".into())
}

/// A forwarded port, for `--json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ForwardedPort {
    /// Local address and port.
    address: SocketAddr,
    /// Port in the pod.
    port: u16,
}

/// Listens on all local ports, then forwards connections until this command is interrupted.
pub(super) async fn forward(session: &Session, args: &ForwardArgs) -> Result<u8, Failure> {
    if args.ports.len() > PORTS_MAX {
        return Err(Failure::Usage(format!("{} ports; at most {PORTS_MAX} are allowed", args.ports.len())));
    }
    let pods = session.client.pods();
    pods.get(&args.id).await.doing(&format!("pod port-forward {}", args.id))?;
    let mut listeners = Vec::new();
    for Ports { local, remote } in &args.ports {
        let address = SocketAddr::new(args.listen, *local);
        let bound = TcpListener::bind(address).await.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) =
            bound.map_err(|error| Failure::Usage(format!("cannot listen on {address}: {error}")))?;
        listeners.push((listener, ForwardedPort { address, port: *remote }));
    }
    let mut tasks = JoinSet::new();
    for (listener, forwarded) in listeners {
        let (address, port) = (forwarded.address, forwarded.port);
        let text = match session.json {
            true => to_line(&forwarded),
            false => format!("{address} -> port {port} of {}\n", plain(&args.id)),
        };
        session.output.text(text).await;
        tasks.spawn(accept(listener, (pods.clone(), args.id.clone(), port), session.output.clone()));
    }
    tasks.join_all().await; // never ends
    Ok(0)
}

/// Accepts connections and forwards each connection independently. If a connection fails, the error is printed and the
/// other connections continue.
async fn accept(listener: TcpListener, (pods, id, port): (Pods, String, u16), output: Output) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (pods, id, output) = (pods.clone(), id.clone(), output.clone());
                    tasks.spawn(async move {
                        if let Err(failure) = serve(stream, &pods, &id, port).await {
                            output.note(failure.describe());
                        }
                    });
                }
                Err(error) => {
                    output.note(format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, pods: &Pods, id: &str, port: u16) -> Result<(), Failure> {
    let doing = format!("connect to port {port} of {id}");
    let mut connection = pods.connect_port(id, port).await.doing(&doing)?;
    let _ = stream.set_nodelay(true); // optional: without it, the connection is only slower
    let (reader, mut writer) = stream.into_split();
    let mut sending = tokio::spawn(send(reader, connection.input()));
    let mut sends = true;
    let received = loop {
        let received = tokio::select! {
            received = connection.next() => received,
            sent = &mut sending, if sends => {
                sends = false;
                match sent {
                    Ok(true) => continue,
                    _ => break Ok(()), // the local client has reset its connection
                }
            }
        };
        match received {
            Ok(Some(Received::Data(bytes))) if writer.write_all(&bytes).await.is_ok() => {}
            Ok(Some(Received::End)) => drop(writer.shutdown().await), // fails if the client has disconnected
            Ok(Some(Received::Data(_)) | None) => break Ok(()),
            Err(error) => break Err(error).doing(&doing),
        }
    };
    sending.abort();
    received
}

/// Sends data from the local client. Returns false if the client's connection broke.
async fn send(mut reader: OwnedReadHalf, input: Input) -> bool {
    let mut buffer = vec![0; PIECE];
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) => return input.end().await,
            Ok(length) if input.send(buffer[..length].to_vec()).await => {}
            Ok(_) | Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_kubectl_reads_them() {
        for (text, local, remote) in [("80", 80, 80), ("8080:80", 8080, 80), (":80", 0, 80)] {
            assert_eq!(ports(text), Ok(Ports { local, remote }), "{text}");
        }
        for text in ["", "0", ":0", "0:80", "80:", "65536", "a", "1:2:3", "-1", "8080:0"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }
}
