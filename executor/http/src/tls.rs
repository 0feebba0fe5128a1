//! TLS connections and trusted authorities.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::HttpError;

/// PEM files of a client certificate with its chain, and of its private key.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// Certificate and intermediate certificates.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Authorities that are trusted to certify servers.
#[derive(Clone)]
pub enum Trust {
    /// The system's authorities, and the authorities in a PEM file.
    System(Option<PathBuf>),
    /// Trust only these certificates (PEM).
    Only(Vec<u8>),
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(file) => f.debug_tuple("System").field(file).finish(),
            Self::Only(_) => f.write_str("Only(..)"),
        }
    }
}

/// Returns the number of certificates in PEM, and checks that each can be used as an authority.
///
/// # Errors
/// Returns an error if a certificate is invalid.
pub fn count_certificates(pem: &[u8]) -> Result<usize, String> {
    let mut roots = RootCertStore::empty();
    add_certificates(&mut roots, pem)?;
    Ok(roots.len())
}

fn add_certificates(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), String> {
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Establishes TLS connections. The certificates are read for the first connection.
pub(super) struct Tls {
    trust: Trust,
    own: Option<ClientCertificate>,
    connector: OnceCell<TlsConnector>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("trust", &self.trust).finish_non_exhaustive()
    }
}

impl Tls {
    pub(super) fn new(trust: Trust, own: Option<ClientCertificate>) -> Self {
        Self { trust, own, connector: OnceCell::new() }
    }

    /// Establishes TLS on a connection.
    ///
    /// # Errors
    /// Returns [`HttpError::Untrusted`] if the server's certificate, its protocol or the local certificates are not
    /// accepted, so that a retry would fail, too. Returns [`HttpError::Broken`] if the connection fails.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, HttpError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| HttpError::Untrusted(error.to_string()))?;
        let connector = self.connector.get_or_try_init(|| async {
            let (trust, own) = (self.trust.clone(), self.own.clone());
            let made = tokio::task::spawn_blocking(move || connector(trust, own)).await;
            made.map_err(|error| error.to_string())?
        });
        let connector = connector.await.map_err(HttpError::Untrusted)?;
        connector.connect(name, stream).await.map_err(|error| {
            let why = format!("cannot establish a TLS connection: {}", describe(&error));
            // Any other error means that the connection was closed or reset.
            match error.get_ref().is_some_and(|cause| cause.is::<rustls::Error>()) {
                true => HttpError::Untrusted(why),
                false => HttpError::Broken(why),
            }
        })
    }
}

/// Describes why a connection failed, with readable certificate times and the remedy.
fn describe(error: &std::io::Error) -> String {
    let at = |time: rustls::pki_types::UnixTime| {
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
    };
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::ExpiredContext { not_after, .. })) => {
            format!("the server's certificate expired at {}; renew the certificate on the server", at(*not_after))
        }
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidYetContext {
            not_before, ..
        })) => {
            format!("the server's certificate is not valid before {}; check the clocks of both hosts", at(*not_before))
        }
        _ => error.to_string(),
    }
}

fn connector(trust: Trust, own: Option<ClientCertificate>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::Only(pem) => add_certificates(&mut roots, &pem)?,
        Trust::System(ca_file) => add_system(&mut roots, ca_file)?,
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(ClientCertificate { certificate, key }) => {
            let (shown, secret) = (certificate.display(), key.display());
            let chain = CertificateDer::pem_file_iter(&certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let chain = chain.map_err(|error| format!("{shown}: {error}"))?;
            let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| format!("{secret}: {error}"))?;
            config.with_client_auth_cert(chain, key).map_err(|error| format!("{shown}: {error}"))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn add_system(roots: &mut RootCertStore, ca_file: Option<PathBuf>) -> Result<(), String> {
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(%error, "cannot read some of the system's certificates");
    }
    roots.add_parsable_certificates(system.certs);
    let Some(path) = ca_file else { return Ok(()) };
    let shown = path.display();
    let pem = std::fs::read(&path).map_err(|error| format!("{shown}: {error}"))?;
    add_certificates(roots, &pem).map_err(|error| format!("{shown}: {error}"))
}
