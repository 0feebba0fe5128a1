//! Attacks over the network: packets that leave a container without egress, and names whose addresses change.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use executor_proto::v1::egress_rule::Protocol;
use executor_proto::v1::{
    self, Action, Capabilities, DownloadAction, EgressRule, PortRange, RunAction, RunRequest, SerialAction,
    UploadAction,
};
use integration::daemon::{Daemon, Setup};
use integration::dns::NameServer;
use integration::network::{BEYOND, BEYOND_V6, GATEWAY, GATEWAY_V6, HOST, HOST_V6, Network};
use integration::request::{RequestBuilder as _, program};
use integration::tls::{Authority, Issued};
use integration::web::{WebAnswer, WebServer, free_port};
use integration::{cli, wait};
use nix::mount::{MsFlags, mount};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "egress: packets of a container without egress",
        position: Position::Container,
        claim: "without egress, or without a matching rule, no packet of a container leaves its network",
        attack: leave,
        control: leave_control,
    },
    Attack {
        name: "rebinding: downloads",
        position: Position::Server,
        claim: "no name, redirect or retry leads a download to an address of this machine",
        attack: downloads,
        control: downloads_control,
    },
    Attack {
        name: "rebinding: denied addresses",
        position: Position::Server,
        claim: "no name leads a download or an upload to the metadata service or to a network that the operator denies",
        attack: denied,
        control: denied_control,
    },
    Attack {
        name: "rebinding: a Vault",
        position: Position::Server,
        claim: "executord's token is sent only to a server certified by the Vault's authority, and in plain text only to loopback",
        attack: vault,
        control: vault_control,
    },
    Attack {
        name: "rebinding: registries",
        position: Position::Server,
        claim: "a registry that has responded cannot redirect executord to this machine by its name or by its token service",
        attack: registries,
        control: registries_control,
    },
];

const EGRESS: &str = include_str!("probes/egress.py");
/// Port of the servers in the outside world.
const PORT: u16 = 7001;
/// Address of the metadata services of clouds.
const METADATA: &str = "169.254.169.254";
/// Address of the attacker's server, which represents the Internet.
const PUBLIC: &str = "192.0.2.7";
/// Address of a server that the operator's configuration denies.
const SITE: &str = "10.1.2.3";
/// Address of a server that the attacker's name resolves to.
const THIEF: &str = "198.51.100.9";
/// Host name controlled by the attacker.
const NAME: &str = "rebind.test";

/// Servers in the outside world that record received connections and datagrams.
struct OutsideServers {
    network: Network,
    connections: Arc<AtomicUsize>,
    datagrams: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl OutsideServers {
    fn start() -> anyhow::Result<Self> {
        let network = Network::new();
        network.configure_both_families("10-test.conflist", "test");
        network.on_host(&["ip", "route", "add", METADATA, "via", BEYOND]);
        let (tcp, udp) = network.enter_beyond(|| {
            let added = Command::new("ip").args(["address", "add", METADATA, "dev", "in0"]).status();
            added.map(|_| (TcpListener::bind(("::", PORT)), UdpSocket::bind(("::", PORT))))
        })?;
        // Bind on the host too, because the container must not reach the host's servers either.
        let (host_tcp, host_udp) = network.enter(|| (TcpListener::bind(("::", PORT)), UdpSocket::bind(("::", PORT))));
        let (connections, datagrams) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        for listener in [tcp?, host_tcp?] {
            let connections = Arc::clone(&connections);
            std::thread::spawn(move || {
                for _ in listener.incoming() {
                    connections.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for socket in [udp?, host_udp?] {
            let datagrams = Arc::clone(&datagrams);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok((read, _)) = socket.recv_from(&mut buffer) {
                    if let Ok(mut all) = datagrams.lock() {
                        all.push(buffer[..read.min(8)].to_vec());
                    }
                }
            });
        }
        Ok(Self { network, connections, datagrams })
    }

    /// Returns the number of connections and datagrams received so far.
    fn arrived(&self) -> (usize, usize) {
        let datagrams = self.datagrams.lock().map(|all| all.iter().filter(|one| one.starts_with(b"attack")).count());
        (self.connections.load(Ordering::Relaxed), datagrams.unwrap_or(usize::MAX))
    }

    /// Waits until all earlier packets have arrived. Packets keep their order on the link.
    fn settle(&self, daemon: &Daemon) {
        let script = format!(
            "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n[s.sendto(b'settled', (a, {PORT})) for a in ('{BEYOND}', '{GATEWAY}')]"
        );
        let settled =
            || self.datagrams.lock().ok().map_or(0, |all| all.iter().filter(|one| one.starts_with(b"settled")).count());
        let before = settled();
        let request = RunRequest { egress: true, ..container("settle", &script, &[]) };
        daemon.api.run_to_end(request);
        wait::until("the last datagrams arrive", || (settled() >= before + 2).then_some(()));
        let _ = daemon.api.delete("settle", true);
    }
}

fn container(id: &str, script: &str, arguments: &[&str]) -> RunRequest {
    let request = program("/usr/bin/python3", &[&["-c", script], arguments].concat()).id(id).memory(64 << 20);
    RunRequest { network: v1::Network::Cni.into(), ..request }
}

/// Runs the probe and returns its output.
fn probe(daemon: &Daemon, id: &str, more: impl Fn(RunRequest) -> RunRequest) -> String {
    let port = PORT.to_string();
    let mapped = format!("::ffff:{BEYOND}");
    let arguments = [&*port, "10.123.0.77", BEYOND, BEYOND_V6, &mapped, METADATA, GATEWAY, GATEWAY_V6, HOST, HOST_V6];
    daemon.api.run_to_end(more(container(id, EGRESS, &arguments)));
    daemon.api.output(id).text().trim().to_owned()
}

fn leave(scale: Scale) -> anyhow::Result<Outcome> {
    let beyond = OutsideServers::start()?;
    let daemon = beyond.network.daemon("allow_egress = true");
    let rule = |destination: &str, port: u32| EgressRule {
        protocol: Protocol::Tcp.into(),
        destinations: vec![destination.into()],
        ports: vec![PortRange { first: port, last: port }],
        ..EgressRule::default()
    };
    let mut reported = Vec::new();
    for round in 0..scale.pick(1, 20) {
        reported = vec![
            probe(&daemon, &format!("closed-{round}"), |request| request),
            probe(&daemon, &format!("ruled-{round}"), |request| RunRequest {
                egress: true,
                egress_rules: vec![rule(BEYOND, u32::from(PORT) + 1)],
                ..request
            }),
        ];
    }
    ensure!(reported.iter().all(|text| text.starts_with("sent ")), "a probe did not send all packets: {reported:?}");
    // Without open egress, capabilities that permit changes to the rules are refused.
    let mut lifted = Vec::new();
    for capability in ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"] {
        let capabilities = Capabilities { add: vec![capability.into()], ..Capabilities::default() };
        let asked = RunRequest { capabilities: Some(capabilities), ..container(capability, "", &[]) };
        if daemon.api.run(asked).is_ok() {
            lifted.push(capability);
        }
    }
    beyond.settle(&daemon);
    let (connections, datagrams) = beyond.arrived();
    let text = format!("{}: {connections} connections and {datagrams} datagrams arrived", reported.join(", "));
    let fault = match lifted.is_empty() {
        true => (connections + datagrams > 0).then(|| text.clone()),
        false => Some(format!("{lifted:?} is granted without egress")),
    };
    Ok(Outcome::new(fault, text))
}

/// Control: with open egress, the same packets arrive.
fn leave_control(_: Scale) -> anyhow::Result<String> {
    let beyond = OutsideServers::start()?;
    let daemon = beyond.network.daemon("allow_egress = true");
    let reported = probe(&daemon, "open", |request| RunRequest { egress: true, ..request });
    beyond.settle(&daemon);
    let (connections, datagrams) = beyond.arrived();
    ensure!(
        connections > 5 && datagrams > 20,
        "{reported}: {connections} connections and {datagrams} datagrams arrived, expected more than 5 and 20"
    );
    Ok(format!("with egress {connections} connections and {datagrams} datagrams arrive"))
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Returns the addresses of one of the attacker's names. Some names alternate between two addresses, by the number of
/// earlier lookups.
fn resolve(name: &str, number: usize) -> Vec<IpAddr> {
    match name.split('.').next().unwrap_or_default() {
        "rebind" if number.is_multiple_of(2) => addresses(&[PUBLIC]),
        "rebind" => addresses(&["127.0.0.1"]),
        "both" => addresses(&[PUBLIC, "127.0.0.1", "::1"]),
        "own" => addresses(&["127.0.0.1"]),
        "any" => addresses(&["0.0.0.0"]),
        "any6" => addresses(&["::"]),
        "mapped" => addresses(&["::ffff:127.0.0.1"]),
        "mapped-any" => addresses(&["::ffff:0.0.0.0"]),
        "compatible" => addresses(&["::127.0.0.1"]),
        "meta" if number.is_multiple_of(2) => addresses(&[PUBLIC]),
        "meta" => addresses(&[METADATA]),
        "site" if number.is_multiple_of(2) => addresses(&[PUBLIC]),
        "site" => addresses(&[SITE]),
        "vault" if number.is_multiple_of(2) => addresses(&[PUBLIC]),
        "vault" => addresses(&[THIEF]),
        // Response of the name server if /etc/hosts has no localhost.
        "localhost" => addresses(&[THIEF]),
        _ => Vec::new(),
    }
}

/// Downloads these URLs, each in its own container.
fn fetch(daemon: &Daemon, urls: &[String]) -> Vec<String> {
    let download = |url: &String| DownloadAction {
        artifact: "x".into(),
        from: url.clone(),
        to: "/tmp/x".into(),
        user: "root".into(),
        ..DownloadAction::default()
    };
    transfer(daemon, urls.iter().map(|url| Action { download: Some(download(url)), ..Action::default() }))
}

/// Uploads a file to these URLs, each in its own container.
fn send(daemon: &Daemon, urls: &[String]) -> Vec<String> {
    let upload = |url: &String| UploadAction {
        artifact: "x".into(),
        from: "/etc/passwd".into(),
        to: url.clone(),
        user: "root".into(),
        ..UploadAction::default()
    };
    transfer(daemon, urls.iter().map(|url| Action { upload: Some(upload(url)), ..Action::default() }))
}

/// Runs each transfer in a container. Returns the steps of each container, or the reason for its refusal.
fn transfer(daemon: &Daemon, transfers: impl Iterator<Item = Action>) -> Vec<String> {
    let mut reported = Vec::new();
    for (index, transfer) in transfers.enumerate() {
        let run = RunAction { path: "/bin/true".into(), ..RunAction::default() };
        let actions = vec![transfer, Action { run: Some(run), ..Action::default() }];
        let action = Action { serial: Some(SerialAction { actions, ..SerialAction::default() }), ..Action::default() };
        let id = format!("d{index}");
        let request = RunRequest { action: Some(action), ..RunRequest::default() }.id(&id).memory(64 << 20);
        reported.push(match daemon.api.run(request) {
            Err(refused) => refused.message().to_owned(),
            Ok(_) => daemon.api.wait(&id).map_or_else(|gone| gone.to_string(), |ended| format!("{:?}", ended.steps)),
        });
        let _ = daemon.api.delete(&id, true);
    }
    reported
}

/// Starts the attacker's server on its public address and the victim's server on loopback. The attacker's server
/// redirects to its own name and fails at times.
fn servers() -> (u16, WebServer, WebServer) {
    let port = free_port();
    let attacker = WebServer::start_at(&format!("{PUBLIC}:{port}"), move |number, request| {
        if request.target.starts_with("/v2/") {
            let realm = format!("Bearer realm=\"http://{NAME}:{port}/internal/secret\",service=\"x\"");
            return WebAnswer::Full("401 Unauthorized", vec![("www-authenticate", realm)], Vec::new());
        }
        match number % 2 {
            0 => {
                let host = request.header("host").unwrap_or(NAME);
                WebAnswer::Full("302 Found", vec![("location", format!("http://{host}/internal"))], Vec::new())
            }
            _ => WebAnswer::Full("503 Service Unavailable", Vec::new(), Vec::new()),
        }
    });
    let victim = WebServer::start_at(&format!("127.0.0.1:{port}"), |_, _| WebAnswer::ok(b"{\"token\":\"secret\"}"));
    (port, attacker, victim)
}

fn downloads(scale: Scale) -> anyhow::Result<Outcome> {
    let names = NameServer::isolated(&[&format!("{PUBLIC}/32")], resolve);
    let (port, attacker, victim) = servers();
    // The configuration denies only this machine's own addresses. On the second port only the victim listens.
    let config = format!("[transfers]\ndenied = []\nallowed = [\"{PUBLIC}\"]\nattempts = 3\nidle_seconds = 5\n");
    let daemon = Setup::default().config(&config).start();
    let near = WebServer::start(|_, _| WebAnswer::ok(b"secret"));
    let mut urls: Vec<String> = (0..scale.pick(2, 40)).map(|round| format!("http://{NAME}:{port}/{round}")).collect();
    for host in ["both", "own", "any", "any6", "mapped", "mapped-any", "compatible"] {
        urls.push(format!("http://{host}.test:{}/x", near.port()));
    }
    for literal in
        ["0.0.0.0", "[::]", "[::ffff:0.0.0.0]", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "127.1", "2130706433"]
    {
        urls.push(format!("http://{literal}:{}/x", near.port()));
    }
    let reported = fetch(&daemon, &urls);
    let asked = attacker.requests().len();
    ensure!(asked > 0 && names.asked() > 2, "the attacker received no request: {reported:#?}");
    let reached: Vec<String> =
        victim.requests().into_iter().chain(near.requests()).map(|request| request.target).collect();
    let text = format!("{} downloads, the attacker responded to {asked} requests", urls.len());
    Ok(Outcome::new((!reached.is_empty()).then(|| format!("{text}; loopback got {reached:?}")), text))
}

/// Control: if loopback is allowed, the redirect of the same server reaches the victim.
fn downloads_control(_: Scale) -> anyhow::Result<String> {
    let _names = NameServer::isolated(&[&format!("{PUBLIC}/32")], resolve);
    let (port, _attacker, victim) = servers();
    let config = format!("[transfers]\ndenied = []\nallowed = [\"{PUBLIC}\", \"127.0.0.0/8\"]\nattempts = 3\n");
    let daemon = Setup::default().config(&config).start();
    let reported = fetch(&daemon, &[format!("http://{NAME}:{port}/0")]);
    let reached = victim.requests().first().map(|request| request.target.clone());
    ensure!(reached.as_deref() == Some("/internal"), "{reached:?}: {reported:?}");
    Ok("if loopback is allowed, a redirect leads to the victim".into())
}

/// Starts servers at the address of the metadata service and at a denied address, on their own port.
fn denied_servers() -> (u16, WebServer, [WebServer; 2]) {
    let (port, attacker, _loopback) = servers();
    let victim = |address: &str| WebServer::start_at(&format!("{address}:{port}"), |_, _| WebAnswer::ok(b"secret"));
    (port, attacker, [victim(METADATA), victim(SITE)])
}

/// Starts a name server, and an interface with all addresses of the attacker's names.
fn names() -> NameServer {
    let held = [PUBLIC, METADATA, SITE, THIEF].map(|address| format!("{address}/32"));
    NameServer::isolated(&held.each_ref().map(String::as_str), resolve)
}

/// Makes transfers, and returns the paths that were requested from the victims and the messages of the transfers.
fn transferred(allowed: &str, rounds: usize) -> anyhow::Result<(Vec<String>, String)> {
    let names = names();
    let (port, attacker, victims) = denied_servers();
    let config = format!(
        "[transfers]\ndenied = [\"169.254.0.0/16\", \"10.0.0.0/8\"]\nallowed = [{allowed}]\nattempts = 3\nidle_seconds = 5\n"
    );
    let daemon = Setup::default().config(&config).start();
    let hosts = ["meta.test", "site.test"].iter();
    let urls: Vec<String> =
        hosts.flat_map(|host| (0..rounds).map(move |round| format!("http://{host}:{port}/{round}"))).collect();
    let reported = [fetch(&daemon, &urls), send(&daemon, &urls)].concat().join("; ");
    ensure!(!attacker.requests().is_empty() && names.asked() > 4, "the attacker received no request: {reported}");
    let reached = victims.iter().flat_map(WebServer::requests).map(|request| request.target).collect();
    Ok((reached, reported))
}

fn denied(scale: Scale) -> anyhow::Result<Outcome> {
    let (reached, reported) = transferred(&format!("\"{PUBLIC}\""), scale.pick(2, 20))?;
    // This shows that the addresses were checked.
    ensure!(reported.contains("transfers.denied"), "{reported}");
    let text = format!("{} refusals of denied addresses", reported.matches("transfers.denied").count());
    Ok(Outcome::new((!reached.is_empty()).then(|| format!("the victims got {reached:?}")), text))
}

/// Control: if the addresses are allowed, the transfers reach the victims.
fn denied_control(_: Scale) -> anyhow::Result<String> {
    let (reached, reported) = transferred(&format!("\"{PUBLIC}\", \"{METADATA}\", \"{SITE}\""), 2)?;
    ensure!(reached.len() >= 2, "{reached:?}: {reported}");
    Ok(format!("with their addresses allowed the victims got {} requests", reached.len()))
}

/// Vault token of executord.
const TOKEN: &str = "token-7c21d5e0aa";

/// Starts a TLS server that responds to each request with a secret and records received data.
fn tls_server(address: &str, issued: &Issued) -> anyhow::Result<Arc<Mutex<Vec<u8>>>> {
    let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate], key)?);
    let listener = TcpListener::bind(address)?;
    let read = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&read);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Ok(session) = rustls::ServerConnection::new(Arc::clone(&config)) else { continue };
            let mut stream = rustls::StreamOwned::new(session, stream);
            let mut buffer = [0; 4096];
            // A client that does not trust the certificate sends nothing.
            let Ok(length @ 1..) = stream.read(&mut buffer) else { continue };
            if let Ok(mut record) = record.lock() {
                record.extend(&buffer[..length]);
            }
            let body = r#"{"data":{"data":{"k":"secret"},"metadata":{"version":1}}}"#;
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    Ok(read)
}

/// Counts the connections to the attacker's server that contained executord's token: over TLS, and in plain text. The
/// attacker's certificate is issued by the Vault's authority if `is_certified`.
fn stolen(is_certified: bool, rounds: usize) -> anyhow::Result<(usize, usize, String)> {
    let _names = names();
    let hosts = tempfile::NamedTempFile::new()?;
    mount(Some(hosts.path()), Path::new("/etc/hosts"), None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let (right, wrong) = (Authority::new("right"), Authority::new("wrong"));
    let port = free_port();
    let server = right.server(&["vault.test"], "vault");
    let thief = if is_certified { &right } else { &wrong }.server(&["vault.test"], "vault");
    let server = tls_server(&format!("{PUBLIC}:{port}"), &server)?;
    let thief = tls_server(&format!("{THIEF}:{port}"), &thief)?;
    let plain = WebServer::start_at(&format!("{THIEF}:0"), |_, _| WebAnswer::ok(b"{}"));
    for (name, text) in [("ca.pem", right.pem()), ("token", TOKEN.to_owned())] {
        std::fs::write(dir.path().join(name), text)?;
    }
    let provider = |name: &str, address: &str| {
        format!(
            "[[secret_providers]]\nname = \"{name}\"\ntype = \"vault\"\naddress = \"{address}\"\ntoken_file = \"{0}/token\"\n\
             ca_file = \"{0}/ca.pem\"\ntimeout_seconds = 10\nallow = [{{ uid = 0, paths = [\"/\"] }}]\n",
            dir.path().display()
        )
    };
    let config = provider("vault", &format!("https://vault.test:{port}"))
        + &provider("local", &format!("http://localhost:{}", plain.port()));
    let daemon = Setup::default().config(&config).start();
    let mut reported = Vec::new();
    for round in 0..rounds {
        for name in ["vault", "local"] {
            let from = v1::SecretReference {
                provider: name.into(),
                path: "kv/app".into(),
                key: "k".into(),
                ..Default::default()
            };
            let file = v1::File { path: "x".into(), from: Some(from), ..Default::default() };
            let mut request = program("/bin/true", &[]).id(&format!("{name}{round}")).memory(64 << 20);
            request.volume_mounted_files.push(file);
            reported.push(
                daemon.api.run(request).map_or_else(|refused| refused.message().to_owned(), |_| "runs".to_owned()),
            );
        }
    }
    let tokens = |read: &Arc<Mutex<Vec<u8>>>| {
        let read = read.lock().map(|read| String::from_utf8_lossy(&read).into_owned()).unwrap_or_default();
        read.matches(TOKEN).count()
    };
    ensure!(tokens(&server) > 0, "the Vault received no request: {reported:?}");
    let in_plain = plain.requests().iter().filter(|request| request.header("x-vault-token") == Some(TOKEN)).count();
    Ok((tokens(&thief), in_plain, reported.join("; ")))
}

fn vault(scale: Scale) -> anyhow::Result<Outcome> {
    let (over_tls, in_plain, reported) = stolen(false, scale.pick(4, 40))?;
    let fault = format!("another server got the token {over_tls} times over TLS and {in_plain} times in plain text");
    Ok(Outcome::new((over_tls + in_plain > 0).then_some(fault), reported))
}

/// Control: a server at another address gets the token if its certificate was issued by the Vault's authority.
fn vault_control(_: Scale) -> anyhow::Result<String> {
    let (over_tls, _, reported) = stolen(true, 4)?;
    ensure!(over_tls > 0, "{reported}");
    Ok(format!("with a certificate of the Vault's authority the other server gets the token {over_tls} times"))
}

fn insecure(hosts: &[&str]) -> Daemon {
    Setup::default().config(&format!("[images]\ninsecure_registries = {hosts:?}\npatience_seconds = 5\n")).start()
}

fn registries(scale: Scale) -> anyhow::Result<Outcome> {
    let names = NameServer::isolated(&[&format!("{PUBLIC}/32")], resolve);
    let (port, attacker, victim) = servers();
    let daemon = insecure(&[NAME]);
    let mut reported = String::new();
    for round in 0..scale.pick(1, 20) {
        if !names.asked().is_multiple_of(2) {
            // After this lookup, the next response of the name server is the public address.
            let _ = std::net::ToSocketAddrs::to_socket_addrs(&(NAME, 1));
        }
        reported = cli::run(&daemon.socket(), &["image", "pull", &format!("{NAME}:{port}/x:{round}")]).stderr;
    }
    ensure!(!attacker.requests().is_empty(), "the attacker received no request: {reported}");
    let reached = victim.requests().first().map(|request| request.target.clone());
    Ok(Outcome::new(reached.map(|path| format!("loopback received a request for {path}")), reported.trim().to_owned()))
}

/// Control: if the client names a registry on loopback, executord sends a request to the registry.
fn registries_control(_: Scale) -> anyhow::Result<String> {
    let _names = NameServer::isolated(&[&format!("{PUBLIC}/32")], resolve);
    let victim = WebServer::start(|_, _| WebAnswer::Full("404 Not Found", Vec::new(), Vec::new()));
    let daemon = insecure(&["own.test"]);
    let reported = cli::run(&daemon.socket(), &["image", "pull", &format!("own.test:{}/x:1", victim.port())]);
    let first =
        wait::within(Duration::from_secs(5), || victim.requests().first().cloned().context("there is no request"));
    let path = first.map_err(|why| why.context(reported.stderr))?.target;
    Ok(format!("a registry that is initially on loopback received a request for {path}"))
}
