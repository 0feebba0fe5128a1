//! A daemon that listens on TCP with mutual TLS, and certificates for the daemon and its callers.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use executor_client::{Client, ConnectError, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, SanType,
};

use crate::daemon::{Daemon, Setup};
use crate::http2::RawClient;
use crate::wait;

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate"))
    }

    /// Returns the authority's certificate, as PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a certificate.
    pub fn issue(&self, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Issued { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Issues the certificate of a node at 127.0.0.1 with `name` as common name.
    pub fn node(&self, name: &str) -> Issued {
        self.server(&["127.0.0.1", "localhost"], name)
    }

    /// Issues the certificate of a server with `hosts` as DNS names and addresses, and `name` as common name.
    pub fn server(&self, hosts: &[&str], name: &str) -> Issued {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(&params)
    }

    /// Issues the certificate of the caller with this SPIFFE id.
    pub fn caller(&self, uri: &str) -> Issued {
        self.issue(&identity(uri))
    }
}

/// Returns the parameters of a caller's certificate.
pub fn identity(uri: &str) -> CertificateParams {
    let mut params = unnamed();
    params.subject_alt_names.push(SanType::URI(uri.try_into().expect("a URI")));
    params
}

/// Returns the parameters of a client certificate without any identity.
pub fn unnamed() -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name = DistinguishedName::new();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// SPIFFE id of a caller with all permissions.
pub const OPERATOR: &str = "spiffe://test/operator";

/// A daemon with a TCP listener on its own port.
pub struct TlsDaemon {
    pub daemon: Daemon,
    /// Address of the TCP listener.
    pub address: String,
    /// Authority that issues the certificates of the node and its callers.
    pub authority: Authority,
    /// Table `listen.tcp` of the configuration.
    listen: String,
}

impl TlsDaemon {
    /// Starts a daemon with these callers in addition to the operator. `more` are further lines of `[listen.tcp]`.
    pub fn start(callers: &str, more: &str) -> Self {
        Self::new(Setup::default(), callers, more)
    }

    /// Starts the daemon of `setup` with these callers in addition to the operator. `more` are further lines of
    /// `[listen.tcp]`.
    pub fn new(setup: Setup, callers: &str, more: &str) -> Self {
        let authority = Authority::new("test CA");
        let dir = setup.home().join("tls");
        fs::create_dir(&dir).expect("a directory");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("a mode");
        write_pair(&dir, &authority.node("node"));
        fs::write(dir.join("ca.crt"), authority.pem()).expect("write");
        let file = |name: &str| dir.join(name).display().to_string();
        let listen = format!(
            "[listen.tcp]\naddress = '127.0.0.1:0'\ncertificate = '{}'\nkey = '{}'\nclient_ca = '{}'\n{more}\n",
            file("tls.crt"),
            file("tls.key"),
            file("ca.crt")
        );
        let daemon = setup.config(&with_callers(&listen, callers)).start();
        let address = address_after(&daemon, "");
        Self { daemon, address, authority, listen }
    }

    /// Restarts the daemon on another port.
    pub fn restart(&mut self) {
        self.daemon.terminate();
        let before = self.daemon.setup().logged();
        self.daemon.start_again();
        self.address = address_after(&self.daemon, &before);
    }

    /// Replaces the callers in the configuration file of the running daemon. The operator remains a caller.
    pub fn replace_callers(&self, callers: &str) {
        self.daemon.setup().replace_config(&with_callers(&self.listen, callers));
    }

    /// Returns the directory of the node's files.
    pub fn dir(&self) -> PathBuf {
        self.daemon.setup().home().join("tls")
    }

    /// Writes a caller's files into the directory `name` and returns their paths.
    pub fn files(&self, name: &str, issued: &Issued) -> Tls {
        let dir = self.daemon.setup().home().join(format!("caller-{name}"));
        fs::create_dir_all(&dir).expect("a directory");
        write_pair(&dir, issued);
        Tls {
            certificate: dir.join("tls.crt"),
            key: dir.join("tls.key"),
            ca: self.dir().join("ca.crt"),
            server_name: None,
        }
    }

    /// Returns the certificate files of the operator.
    pub fn operator(&self) -> Tls {
        self.files("operator", &self.authority.caller(OPERATOR))
    }

    /// Connects with these files.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub fn connect(&self, tls: &Tls) -> Result<Client, ConnectError> {
        self.daemon.api.block_on(Client::connect_tls(&self.address, tls))
    }

    /// Connects a low-level client with this certificate and flow-control windows of `window` bytes, and acknowledges
    /// the peer's settings.
    pub fn raw(&self, issued: &Issued, window: u32) -> RawClient {
        use rustls::pki_types::pem::PemObject as _;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
        let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate(&self.authority.pem())).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots);
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).expect("a key");
        let mut config = config.with_client_auth_cert(vec![certificate(&issued.certificate)], key).expect("a pair");
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        let session = rustls::ClientConnection::new(Arc::new(config), name).expect("a session");
        let stream = TcpStream::connect(&self.address).expect("an address that is served");
        let mut raw = RawClient::over(rustls::StreamOwned::new(session, stream), window).expect("a connection");
        raw.settle();
        raw
    }

    /// Returns the lines about refused clients in the daemon's log.
    pub fn refusals(&self) -> Vec<String> {
        let log = self.daemon.setup().logged();
        log.lines().filter(|line| line.contains("refused a client over TCP")).map(str::to_owned).collect()
    }
}

/// Waits until the daemon logs its address after the text `before`.
fn address_after(daemon: &Daemon, before: &str) -> String {
    wait::until("the daemon logs its port", || {
        let log = daemon.setup().logged();
        let (_, after) = log.strip_prefix(before)?.rsplit_once("address=127.0.0.1:")?;
        let port: String = after.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("127.0.0.1:{port}"))
    })
}

fn with_callers(listen: &str, callers: &str) -> String {
    format!("{listen}[[callers]]\nuri = '{OPERATOR}'\nmethods = ['read', 'run', 'admin']\n{callers}\n")
}

/// Writes certificate and key to new files and renames them over the existing files. The daemon's user can read them;
/// other users cannot read the key.
pub fn write_pair(dir: &Path, issued: &Issued) {
    let (uid, gid) = (crate::daemon::USER, crate::daemon::USER);
    for (name, text, mode) in [("tls.crt", &issued.certificate, 0o644), ("tls.key", &issued.key, 0o600)] {
        let new = dir.join(format!(".{name}"));
        fs::write(&new, text).expect("write");
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).expect("a mode");
        chown(&new, Some(uid), Some(gid)).expect("an owner");
        fs::rename(&new, dir.join(name)).expect("rename");
    }
}
