//! Measures calls over TLS while unauthenticated clients make handshakes: the duration of a call, and executord's
//! memory.
//!
//! Windows with and without unauthenticated clients alternate. These clients connect from an address of their own,
//! 10,000 times a minute. Half of them have a certificate of another authority, the others have none. They run on the
//! same machine, so the figures include the load of their own handshake work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use integration::tls::{Authority, TlsDaemon, identity};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;

use crate::stats::Sample;

/// Number of unauthenticated handshakes per minute.
pub(crate) const A_MINUTE: u32 = 10_000;
const WINDOW_LENGTH: Duration = Duration::from_secs(10);
/// Number of windows of each kind.
const WINDOWS: usize = 3;
/// Delay between two calls of the authenticated caller.
const CALL_DELAY: Duration = Duration::from_millis(5);
/// Interval, in calls, between two calls on a new connection.
const NEW: usize = 20;

/// Figures without and with unauthenticated clients.
pub(crate) struct Strangers {
    pub(crate) quiet: Calls,
    pub(crate) beset: Calls,
    /// Number of handshakes that unauthenticated clients started.
    pub(crate) handshakes: u64,
    /// Total length of the windows with unauthenticated clients.
    pub(crate) over: Duration,
    /// Resident memory of executord in bytes: initial and maximum.
    pub(crate) resident: (u64, u64),
}

/// Durations of calls.
#[derive(Default)]
pub(crate) struct Calls {
    /// Calls on a persistent connection.
    pub(crate) kept: Sample,
    /// Calls on a new connection, including the handshake.
    pub(crate) new: Sample,
}

pub(crate) async fn measure() -> anyhow::Result<Strangers> {
    tokio::task::spawn_blocking(measured).await?
}

fn measured() -> anyhow::Result<Strangers> {
    let tls = TlsDaemon::start("", "");
    let files = tls.operator();
    let kept = tls.connect(&files)?;
    let pid = tls.daemon.pid();
    let kinds = Arc::new([stranger(&tls, None)?, stranger(&tls, Some(&Authority::new("another CA")))?]);
    let address: SocketAddr = tls.address.parse()?;
    let before = resident(pid)?;
    let mut reported = Strangers {
        quiet: Calls::default(),
        beset: Calls::default(),
        handshakes: 0,
        over: Duration::ZERO,
        resident: (before, before),
    };
    for window in 0..2 * WINDOWS {
        let beset = window % 2 == 1;
        let begun = Instant::now();
        let crowd = beset.then(|| UnauthenticatedClients::start(address, Arc::clone(&kinds))).transpose()?;
        let calls = if beset { &mut reported.beset } else { &mut reported.quiet };
        let mut number = 0;
        while begun.elapsed() < WINDOW_LENGTH {
            number += 1;
            let is_new = number % NEW == 0;
            let at = Instant::now();
            let client = if is_new { &tls.connect(&files)? } else { &kept };
            tls.daemon.api.block_on(client.info())?;
            let sample = if is_new { &mut calls.new } else { &mut calls.kept };
            sample.add(at.elapsed());
            reported.resident.1 = reported.resident.1.max(resident(pid)?);
            std::thread::sleep(CALL_DELAY);
        }
        if let Some(crowd) = crowd {
            reported.handshakes += crowd.end()?;
            reported.over += begun.elapsed();
        }
    }
    Ok(reported)
}

/// Unauthenticated clients that connect from a separate thread.
struct UnauthenticatedClients {
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
    begun: Arc<AtomicU64>,
}

impl UnauthenticatedClients {
    fn start(address: SocketAddr, kinds: Arc<[Arc<ClientConfig>; 2]>) -> anyhow::Result<Self> {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let begun = Arc::new(AtomicU64::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let count = Arc::clone(&begun);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = run_handshakes(address, &kinds, &count) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { stop, thread, begun })
    }

    fn end(self) -> anyhow::Result<u64> {
        let _ = self.stop.send(()); // stops the thread
        self.thread.join().map_err(|_| anyhow::anyhow!("the thread of the unauthenticated clients panicked"))?;
        Ok(self.begun.load(Ordering::Relaxed))
    }
}

/// Starts handshakes at a constant rate, in an endless loop.
async fn run_handshakes(address: SocketAddr, kinds: &[Arc<ClientConfig>; 2], begun: &AtomicU64) {
    let mut pace = tokio::time::interval(Duration::from_secs(60) / A_MINUTE);
    let mut knocks = tokio::task::JoinSet::new();
    loop {
        pace.tick().await;
        let number = begun.fetch_add(1, Ordering::Relaxed);
        let config = Arc::clone(&kinds[usize::from(number % 2 == 1)]);
        knocks.spawn(async move {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::from(([127, 0, 0, 2], 0)))?;
            let stream = socket.connect(address).await?;
            let name = ServerName::IpAddress(address.ip().into());
            let mut stream = TlsConnector::from(config).connect(name, stream).await?;
            stream.read_to_end(&mut Vec::new()).await
        });
        while knocks.try_join_next().is_some() {}
    }
}

/// Returns the TLS configuration of an unauthenticated client: it trusts the node, and has no certificate or a
/// certificate of another authority.
fn stranger(tls: &TlsDaemon, authority: Option<&Authority>) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(tls.dir().join("ca.crt")).context("cannot read the node's CA")?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])?;
    let config = config.with_root_certificates(roots);
    Ok(Arc::new(match authority {
        None => config.with_no_client_auth(),
        Some(authority) => {
            let issued = authority.issue(&identity("spiffe://elsewhere/stranger"));
            let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes())?;
            config.with_client_auth_cert(vec![certificate], PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?)?
        }
    }))
}

fn resident(pid: i32) -> anyhow::Result<u64> {
    let text = integration::host::status(pid, "VmRSS").context("executord has exited")?;
    Ok(text.trim_end_matches("kB").trim().parse::<u64>()? << 10)
}
