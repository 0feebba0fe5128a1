//! Encryption, and whom it is believed.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::HttpError;

/// Makes connections secure. The certificates are read when the first one is made.
pub(super) struct Tls {
    ca_file: Option<PathBuf>,
    connector: OnceCell<TlsConnector>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("ca_file", &self.ca_file).finish_non_exhaustive()
    }
}

impl Tls {
    pub(super) fn new(ca_file: Option<PathBuf>) -> Self {
        Self { ca_file, connector: OnceCell::new() }
    }

    /// Makes a connection secure.
    ///
    /// # Errors
    /// [`HttpError::Untrusted`] where it never will be: by the certificate, by what the other side speaks, or by the
    /// certificates here.
    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, HttpError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| HttpError::Untrusted(error.to_string()))?;
        let connector = self.connector.get_or_try_init(|| async {
            let ca_file = self.ca_file.clone();
            let made = tokio::task::spawn_blocking(move || connector(ca_file)).await;
            made.map_err(|error| error.to_string())?
        });
        let connector = connector.await.map_err(HttpError::Untrusted)?;
        connector.connect(name, stream).await.map_err(|error| {
            let why = format!("cannot establish a TLS connection: {error}");
            // Everything else is the connection's: it was closed, or reset.
            match error.get_ref().is_some_and(|cause| cause.is::<rustls::Error>()) {
                true => HttpError::Untrusted(why),
                false => HttpError::Broken(why),
            }
        })
    }
}

fn connector(ca_file: Option<PathBuf>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(%error, "cannot read some of the system's certificates");
    }
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = ca_file {
        let shown = path.display();
        let certificates = CertificateDer::pem_file_iter(&path).map_err(|error| format!("{shown}: {error}"))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| format!("{shown}: {error}"))?;
            roots.add(certificate).map_err(|error| format!("{shown}: {error}"))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
