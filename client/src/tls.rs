//! Connections over TCP with mutual TLS.
//!
//! In TLS 1.3, the client's handshake is complete before the server has checked the client's certificate, and a
//! rejection arrives later. Therefore a connection counts as established only when the first bytes from executord have
//! arrived. A rejection is then reported as a connection error with its reason, and not as an error of the first call.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use crate::address::{Tls, host_and_port};

/// Time limit for connecting, including the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of the read-ahead buffer, in bytes. Filling the buffer shows that executord responds.
const AHEAD: usize = 64;

/// Stream of a client connection.
pub(crate) type Stream = TokioIo<BufReader<TlsStream<TcpStream>>>;

/// Error of a connection attempt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// The address or a file cannot be used, or the TLS handshake failed.
    #[error("{0}")]
    Tls(String),
    /// The TCP connection failed.
    #[error(transparent)]
    Tcp(io::Error),
}

#[derive(Clone, Debug)]
pub(crate) struct Connector {
    address: Arc<str>,
    tls: Arc<Tls>,
}

impl Connector {
    pub(crate) fn new(address: &str, tls: &Tls) -> Self {
        Self { address: address.into(), tls: Arc::new(tls.clone()) }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = TlsError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, TlsError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), TlsError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { address, tls } = self.clone();
        Box::pin(async move {
            let late = |_| TlsError::Tls(format!("no response within {} s", CONNECT_TIMEOUT.as_secs()));
            timeout(CONNECT_TIMEOUT, connect(&address, &tls)).await.map_err(late)?
        })
    }
}

async fn connect(address: &str, tls: &Tls) -> Result<Stream, TlsError> {
    let (host, port) = host_and_port(address).ok_or_else(|| TlsError::Tls("not HOST:PORT".to_owned()))?;
    let name = tls.server_name.as_deref().unwrap_or(host);
    let server = ServerName::try_from(name.to_owned())
        .map_err(|_| TlsError::Tls(format!("{name:?} is not a valid server name")))?;
    let files = tls.clone();
    let config = tokio::task::spawn_blocking(move || configuration(&files)).await;
    let config = config.map_err(|error| TlsError::Tls(error.to_string()))?.map_err(TlsError::Tls)?;
    let stream = TcpStream::connect((host, port)).await.map_err(TlsError::Tcp)?;
    let _ = stream.set_nodelay(true);
    let failed = |error: io::Error| match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        Some(cause) => TlsError::Tls(reason(cause, tls, name)),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            TlsError::Tls("executord closed the connection during the handshake".to_owned())
        }
        None => TlsError::Tcp(error),
    };
    let stream = TlsConnector::from(Arc::new(config)).connect(server, stream).await.map_err(failed)?;
    let mut stream = BufReader::with_capacity(AHEAD, stream);
    if stream.fill_buf().await.map_err(failed)?.is_empty() {
        return Err(TlsError::Tls("executord closed the connection after the handshake".to_owned()));
    }
    Ok(TokioIo::new(stream))
}

fn configuration(tls: &Tls) -> Result<ClientConfig, String> {
    let shown = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let read = |path: &Path| std::fs::read(path).map_err(|error| shown(path, &error));
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
        let found = found.map_err(|error| shown(path, &error))?;
        if found.is_empty() {
            return Err(shown(path, &"no certificate in PEM (BEGIN CERTIFICATE)"));
        }
        Ok(found)
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(&tls.ca)? {
        roots.add(root).map_err(|error| shown(&tls.ca, &error))?;
    }
    let chain = certificates(&tls.certificate)?;
    let pem = zeroize::Zeroizing::new(read(&tls.key)?);
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| shown(&tls.key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(roots);
    let mut config = builder.with_client_auth_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => shown(&tls.key, &format!("not the key of {}", tls.certificate.display())),
        other => shown(&tls.key, &other),
    })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Describes a failed handshake and how to correct it.
fn reason(error: &rustls::Error, tls: &Tls, name: &str) -> String {
    let (own, ca) = (tls.certificate.display(), tls.ca.display());
    match error {
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA => {
                format!("executord does not trust the CA of {own} (its listen.tcp.client_ca)")
            }
            AlertDescription::CertificateExpired => format!("{own} is expired or not valid yet"),
            AlertDescription::AccessDenied => {
                format!("executord's configuration has no [[callers]] entry with an identity of {own}")
            }
            AlertDescription::UnsupportedCertificate => {
                format!("{own} is not for clients: its extended key usage lacks clientAuth")
            }
            AlertDescription::ProtocolVersion => "executord does not support TLS 1.3".to_owned(),
            other => format!("executord refused {own} (TLS alert {other:?})"),
        },
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::UnknownIssuer => format!("executord's certificate is not signed by a CA of {ca}"),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "executord's certificate is expired".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "executord's certificate is not valid yet".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("executord's certificate is not for {name:?}; set the server name to a name in the certificate")
            }
            CertificateError::Other(why) if why.to_string() == "CaUsedAsEndEntity" => {
                "executord's certificate is a CA certificate (CA:TRUE); a server certificate is required".to_owned()
            }
            other => format!("executord's certificate is not accepted: {other}"),
        },
        other => format!("the TLS handshake failed: {other}"),
    }
}
