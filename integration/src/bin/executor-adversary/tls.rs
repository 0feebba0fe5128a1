//! Attacks over TCP with mutual TLS: unauthenticated clients that lock out callers, and callers that keep a revoked
//! permission.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use executor_client::{Client, Tls};
use executor_proto::v1::{Container, File, InfoRequest, SecretReference};
use integration::request::{RequestBuilder as _, sleeper};
use integration::tls::{OPERATOR, TlsDaemon, identity};
use integration::wait;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, sleep_until};

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "tls: half-open handshakes from many addresses",
        position: Position::Client,
        claim: "700 half-open handshakes a second disconnect no caller with a round-trip time of 100 ms",
        attack: half_open,
        control: half_open_control,
    },
    Attack {
        name: "tls: a caller that was removed",
        position: Position::Client,
        claim: "the connections of a removed caller are closed, and its containers get no new value of a reference",
        attack: removed,
        control: removed_control,
    },
    Attack {
        name: "tls: a certificate that expires",
        position: Position::Client,
        claim: "a connection is closed when its caller's certificate expires",
        attack: expired,
        control: expired_control,
    },
];

/// Number of half-open handshakes per second.
const EACH_SECOND: u32 = 700;
/// Interval between batches of half-open handshakes.
const BATCH_INTERVAL: Duration = Duration::from_millis(10);
/// Number of callers that connect during the attack.
const CALLERS: u8 = 8;
/// Connection attempts of each caller.
const ATTEMPTS: usize = 3;
/// One-way delay between caller and daemon.
const ONE_WAY_DELAY: Duration = Duration::from_millis(50);
/// Time within which executord must close a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects from a loopback address.
async fn connect_from(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(IpAddr::V4(from), 0))?;
    socket.connect(to).await
}

/// A flood of half-open handshakes, each from its own address. The flood stops when this value is dropped.
struct Flood {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicU32>,
    since: Instant,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(to: SocketAddr) -> anyhow::Result<Self> {
        let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicU32>::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&opened));
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let (begun, mut number) = (tokio::time::Instant::now(), 0);
                for tick in 1.. {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    for _ in 0..u128::from(EACH_SECOND) * BATCH_INTERVAL.as_millis() / 1000 {
                        number += 1;
                        let from = Ipv4Addr::from_bits((127 << 24 | 1 << 16) + number);
                        tokio::spawn(half_open_handshake(from, to, Arc::clone(&counted)));
                    }
                    sleep_until(begun + BATCH_INTERVAL * tick).await;
                }
            });
        });
        Ok(Self { stop, opened, since: Instant::now(), thread: Some(thread) })
    }

    fn each_second(&self) -> f64 {
        f64::from(self.opened.load(Ordering::Relaxed)) / self.since.elapsed().as_secs_f64()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Sends the beginning of a handshake, and waits until the daemon closes the connection.
async fn half_open_handshake(from: Ipv4Addr, to: SocketAddr, opened: Arc<AtomicU32>) {
    let Ok(mut stream) = connect_from(from, to).await else { return };
    opened.fetch_add(1, Ordering::Relaxed);
    let _ = stream.write_all(&[0x16, 3, 1, 2, 0]).await; // header of a ClientHello
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// Copies bytes with a delay of [`ONE_WAY_DELAY`].
async fn delayed(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        sleep(ONE_WAY_DELAY).await;
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Forwards one connection at a time to the daemon with [`ONE_WAY_DELAY`] in each direction, from a loopback address.
async fn delay_proxy(listener: TcpListener, from: Ipv4Addr, to: SocketAddr) {
    while let Ok((client, _)) = listener.accept().await {
        // Connect only now: on a real link, the daemon would accept the connection at about the time at which the
        // client's first bytes arrive.
        sleep(ONE_WAY_DELAY * 2).await;
        let Ok(server) = connect_from(from, to).await else { continue };
        let ((read, write), (from_server, to_server)) = (client.into_split(), server.into_split());
        let to_client = tokio::spawn(delayed(from_server, write));
        tokio::spawn(async move {
            let mut read = read;
            // The first bytes have been delayed already.
            let mut to_server = to_server;
            let mut first = vec![0; 64 << 10];
            if let Ok(bytes @ 1..) = read.read(&mut first).await
                && to_server.write_all(&first[..bytes]).await.is_ok()
            {
                delayed(read, to_server).await;
            }
            to_client.abort();
        });
    }
}

/// Makes one call without retries.
async fn call(client: &Client) -> Result<(), tonic::Status> {
    client.rpc().info(InfoRequest {}).await.map(drop)
}

/// Returns the number of callers that were served during a flood, and the rate of the flood.
fn flooded(more: &str) -> anyhow::Result<(usize, f64)> {
    let tls = TlsDaemon::start("", more);
    let (to, files) = (tls.address.parse::<SocketAddr>()?, tls.operator());
    let flood = Flood::start(to)?;
    wait::until("all handshake slots are used", || (flood.opened.load(Ordering::Relaxed) > EACH_SECOND).then_some(()));
    let callers: Vec<_> = (1..=CALLERS)
        .map(|number| {
            let files = files.clone();
            tls.daemon.api.spawn(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let address = listener.local_addr()?.to_string();
                let way = tokio::spawn(delay_proxy(listener, Ipv4Addr::new(127, 200, 0, number), to));
                let served = is_served(&address, &files).await;
                way.abort();
                anyhow::Ok(served)
            })
        })
        .collect();
    let mut served = 0;
    for caller in callers {
        served += usize::from(tls.daemon.api.block_on(caller)??);
    }
    Ok((served, flood.each_second()))
}

async fn is_served(address: &str, files: &Tls) -> bool {
    for _ in 0..ATTEMPTS {
        if let Ok(client) = Client::connect_tls(address, files).await
            && call(&client).await.is_ok()
        {
            return true;
        }
    }
    false
}

fn half_open(_: Scale) -> anyhow::Result<Outcome> {
    let (served, rate) = flooded("")?;
    let seen = format!("{served} of {CALLERS} callers were served during {rate:.0} half-open handshakes a second");
    Ok(Outcome::new((served < usize::from(CALLERS)).then(|| seen.clone()), seen))
}

/// Control: with 16 handshake slots, the same flood keeps some callers from being served.
fn half_open_control(_: Scale) -> anyhow::Result<String> {
    let (served, rate) = flooded("handshakes = 16")?;
    ensure!(
        served < usize::from(CALLERS),
        "control failed: all callers were served during {rate:.0} half-open handshakes a second"
    );
    Ok(format!("with 16 slots {served} of {CALLERS} callers were served during {rate:.0} handshakes a second"))
}

const GUEST: &str = "spiffe://test/guest";

/// A directory of secrets. Its configuration tables grant the callers access.
struct Shelf(tempfile::TempDir);

impl Shelf {
    fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self(dir))
    }

    fn put(&self, value: &str) -> anyhow::Result<()> {
        let new = self.0.path().join(".value");
        fs::write(&new, value)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        Ok(fs::rename(new, self.0.path().join("value"))?)
    }

    fn tables(&self, guest: bool) -> String {
        let grants: String = [(OPERATOR, true), (GUEST, guest)]
            .into_iter()
            .filter(|(_, is_there)| *is_there)
            .map(|(uri, _)| format!("{{ uri = '{uri}', paths = ['/'] }}, "))
            .collect();
        let caller = format!("[[callers]]\nuri = '{GUEST}'\nmethods = ['read', 'run']\n");
        format!(
            "{}[[secret_providers]]\nname = 'shelf'\ntype = 'directory'\npath = '{}'\npoll_seconds = 1\nallow = [{grants}]\n",
            if guest { &*caller } else { "" },
            self.0.path().display()
        )
    }
}

/// Runs a container of `client` whose file follows the secret.
fn following(tls: &TlsDaemon, client: &Client, id: &str) -> anyhow::Result<Container> {
    let reference = SecretReference { provider: "shelf".into(), path: "value".into(), ..SecretReference::default() };
    let request = sleeper(id).action(|run| {
        run.volume_mounted_files =
            vec![File { path: "value".into(), from: Some(reference.clone()), ..File::default() }];
    });
    let ran = tls.daemon.api.block_on(client.rpc().run(request))?.into_inner();
    ran.container.context("the response has no container")
}

fn value(container: &Container) -> String {
    let path = format!("/proc/{}/root/etc/cf-service-bindings/value", integration::api::pid(container));
    fs::read_to_string(Path::new(&path)).unwrap_or_default()
}

/// Runs a container of a guest caller, and removes the caller from the configuration if `is_removed`. Returns true if
/// the guest's connection still works, and the value in the guest's container when the operator's container has the
/// newest value.
fn guest(is_removed: bool) -> anyhow::Result<(bool, String)> {
    let shelf = Shelf::new()?;
    shelf.put("1")?;
    let tls = TlsDaemon::start(&shelf.tables(true), "");
    let operator = tls.connect(&tls.operator())?;
    let guest = tls.connect(&tls.files("guest", &tls.authority.caller(GUEST)))?;
    let (ours, its) = (following(&tls, &operator, "ours")?, following(&tls, &guest, "its")?);
    let is_connected = || tls.daemon.api.block_on(call(&guest)).is_ok();
    if is_removed {
        tls.replace_callers(&shelf.tables(false));
        let _ = wait::within(CLOSE_TIMEOUT, || if is_connected() { Err(()) } else { Ok(()) });
    }
    // Write two values: when the second value arrives, every value that was fetched earlier has been delivered.
    for new in ["2", "3"] {
        shelf.put(new)?;
        wait::until("the operator's container has the value", || (value(&ours) == new).then_some(()));
    }
    if !is_removed {
        wait::until("the guest's container has the value", || (value(&its) == "3").then_some(()));
    }
    Ok((is_connected(), value(&its)))
}

fn removed(_: Scale) -> anyhow::Result<Outcome> {
    let (is_connected, value) = guest(true)?;
    let fault = match (is_connected, &*value) {
        (false, "1") => None,
        (true, "1") => Some("the connection of the removed caller is still served".to_owned()),
        (true, new) => {
            Some(format!("the connection of the removed caller is still served, and its container has value {new}"))
        }
        (false, new) => Some(format!("the container of the removed caller has value {new}")),
    };
    Ok(Outcome::new(fault, "the connection was closed, and the container kept value 1 of 3"))
}

/// Control: a caller that stays in the configuration keeps its connection, and its container gets the newest value.
fn removed_control(_: Scale) -> anyhow::Result<String> {
    let (is_connected, value) = guest(false)?;
    ensure!(
        is_connected && value == "3",
        "caller that was not removed: connected {is_connected}, value {value:?}; expected true and \"3\""
    );
    Ok("a caller that is not removed keeps its connection, and its container has value 3 of 3".into())
}

/// Connects with a certificate that expires in a few seconds, or with a certificate that does not expire. Returns true
/// if the connection still works after the expiry.
fn is_served_after_expiry(expires: bool) -> anyhow::Result<bool> {
    const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(6);
    let tls = TlsDaemon::start(&format!("[[callers]]\nuri = '{GUEST}'\nmethods = ['read']\n"), "");
    let mut params = identity(GUEST);
    let end = SystemTime::now() + CERTIFICATE_LIFETIME;
    if expires {
        params.not_after = end.into();
    }
    let client = tls.connect(&tls.files("guest", &tls.authority.issue(&params)))?;
    let answers = || tls.daemon.api.block_on(call(&client)).is_ok();
    ensure!(answers(), "the connection fails before its certificate expires");
    wait::until("the certificate expires", || (SystemTime::now() > end + Duration::from_secs(1)).then_some(()));
    let timeout = if expires { CLOSE_TIMEOUT } else { Duration::ZERO };
    Ok(wait::within(timeout, || if answers() { Err(()) } else { Ok(()) }).is_err())
}

fn expired(_: Scale) -> anyhow::Result<Outcome> {
    let fault = is_served_after_expiry(true)?
        .then(|| format!("the connection is served {} s after its certificate expired", CLOSE_TIMEOUT.as_secs()));
    Ok(Outcome::new(fault, "the connection was closed"))
}

/// Control: a connection whose certificate is still valid is served at the same time.
fn expired_control(_: Scale) -> anyhow::Result<String> {
    ensure!(is_served_after_expiry(false)?, "control failed: a connection with a valid certificate was closed");
    Ok("a connection whose certificate is valid is served at the same time".into())
}
