//! Unauthenticated clients connect. They block no other client, and are disconnected.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use executor_client::Client;
use integration::daemon::Setup;
use integration::host;
use integration::metrics;
use integration::tls::TlsDaemon;
use integration::wait::{self, DEFAULT_TIMEOUT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

/// Returns the number of unauthenticated clients. EXECUTOR_TLS_STRANGERS overrides the default; use 10000 for a long
/// run.
fn strangers() -> usize {
    std::env::var("EXECUTOR_TLS_STRANGERS").map_or(600, |count| count.parse().unwrap())
}

/// Maximum memory growth of a daemon in bytes under the load of unauthenticated clients.
const MORE: u64 = 32 << 20;

fn resident(pid: i32) -> u64 {
    let text = host::status(pid, "VmRSS").unwrap();
    text.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

/// Connects from an address that the daemon's own callers do not use.
async fn stranger(address: SocketAddr) -> Option<tokio::net::TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).ok()?;
    socket.connect(address).await.ok()
}

/// Makes one of three kinds of connections: a handshake without a certificate, garbage, or a connection that sends
/// nothing.
async fn connect_as_stranger(address: SocketAddr, number: usize, config: Arc<rustls::ClientConfig>) {
    let Some(mut stream) = stranger(address).await else { return };
    match number % 3 {
        0 => {
            let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
            if let Ok(mut stream) = tokio_rustls::TlsConnector::from(config).connect(name, stream).await {
                let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
                let mut reported = Vec::new();
                let _ = stream.read_to_end(&mut reported).await;
                assert!(reported.is_empty(), "an unauthenticated client received a response: {reported:?}");
            }
        }
        1 => {
            let _ = stream.write_all(&[0x16; 4096]).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        _ => drop(stream.read_to_end(&mut Vec::new()).await),
    }
}

#[test]
fn unauthenticated_clients_block_no_caller() {
    let setup = Setup::default();
    let metrics = metrics::table(&setup);
    let tls = TlsDaemon::new(setup, &metrics, "handshakes = 32\nhandshake_seconds = 5\n");
    let (files, address) = (tls.operator(), tls.address.parse::<SocketAddr>().unwrap());
    let api = &tls.daemon.api;
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(&files.ca).unwrap();
    use rustls::pki_types::pem::PemObject as _;
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let config = Arc::new(config.unwrap().with_root_certificates(roots).with_no_client_auth());
    let kept = tls.connect(&files).unwrap();
    let call = |client: &Client| api.block_on(client.info()).map(drop);
    call(&kept).unwrap();
    let before = resident(tls.daemon.pid());
    let strangers = strangers();
    let knocking = api.spawn(async move {
        let mut knocks = tokio::task::JoinSet::new();
        for number in 0..strangers {
            knocks.spawn(connect_as_stranger(address, number, Arc::clone(&config)));
            if knocks.len() >= 200 {
                knocks.join_next().await.unwrap().unwrap();
            }
        }
        while let Some(ended) = knocks.join_next().await {
            ended.unwrap();
        }
    });
    let (mut calls, mut most) = (0, 0);
    while !knocking.is_finished() {
        call(&kept).expect("an earlier connection");
        call(&tls.connect(&files).expect("a new connection")).expect("a call on the new connection");
        most = most.max(resident(tls.daemon.pid()));
        calls += 2;
    }
    api.block_on(knocking).unwrap();
    assert!(calls >= 10, "control failed: only {calls} calls meanwhile");
    assert!(most.saturating_sub(before) < MORE, "{before} bytes before, at most {most} meanwhile");
    let counted = || metrics::value(&tls.daemon, "executor_strangers_refused_total");
    wait::until("nearly all are counted", || (counted() >= strangers as f64 * 0.9).then_some(()));
    assert!(counted() <= strangers as f64, "callers were counted as unauthenticated clients");
    let reported = tls.refusals().len();
    assert!(
        reported >= 10 && reported < strangers / 2,
        "some refusals are logged individually: {reported} of {strangers}"
    );
}

/// The daemon disconnects a client whose handshake stalls or never ends.
#[test]
fn handshake_that_hangs_is_cut_off() {
    let tls = TlsDaemon::start("", "handshake_seconds = 1");
    let connect = || {
        let stream = TcpStream::connect(&tls.address).unwrap();
        stream.set_read_timeout(Some(DEFAULT_TIMEOUT)).unwrap();
        stream
    };
    let mut silent = connect();
    assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0);
    wait::until("the message is logged", || {
        tls.refusals().iter().any(|line| line.contains("the handshake timed out after 1 s")).then_some(())
    });
    // The daemon does not wait for a handshake message whose header announces 16 MB.
    let mut large = connect();
    let record = [&[22, 3, 1, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &[0; 0x4000 - 4]].concat();
    while large.write_all(&record).is_ok() {}
    let mut reported = Vec::new();
    let _ = large.read_to_end(&mut reported);
    assert!(reported.len() < 100, "an alert at most: {} bytes", reported.len());
    // The number of connections from one address is limited.
    let bounded = TlsDaemon::start("", "connections_per_address = 2");
    let client = bounded.connect(&bounded.operator()).unwrap();
    let other = bounded.connect(&bounded.operator()).unwrap();
    bounded.connect(&bounded.operator()).expect_err("a third connection");
    bounded.daemon.api.block_on(client.info()).unwrap();
    drop(other);
    let again = wait::within(Duration::from_secs(20), || bounded.connect(&bounded.operator()).map(drop));
    again.expect("the slot of the closed connection is free");
}
