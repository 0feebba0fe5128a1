//! Loads certificates and key of a TLS listener from files, and reloads them while the listener is running.

use std::fmt;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use executor_sys::mutex::locked;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError as Refused, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, X509Certificate};
use zeroize::Zeroizing;

use super::session::Session;

/// Maximum size of a certificate or key file, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Files of a TLS listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain (PEM).
    pub certificate: PathBuf,
    /// Private key of the certificate (PEM).
    pub key: PathBuf,
    /// CA certificates for client certificates (PEM).
    pub client_ca: PathBuf,
}

/// Decides whether a verified certificate identifies a caller, and which caller.
pub trait CertificatePolicy: fmt::Debug + Send + Sync + 'static {
    /// A caller. `Display` is used in the log.
    type Caller: fmt::Debug + fmt::Display + Send + 'static;

    /// Returns the caller that a DER certificate with a verified chain identifies.
    ///
    /// # Errors
    /// Returns a message for the log if the certificate identifies no caller.
    fn identify(self: &Arc<Self>, certificate: &[u8]) -> Result<Self::Caller, String>;
}

/// Error for a certificate or key file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .path.display(), .why)]
pub struct CertificateError {
    pub path: PathBuf,
    pub why: String,
}

fn fault(path: &Path, why: impl fmt::Display) -> CertificateError {
    CertificateError { path: path.to_owned(), why: why.to_string() }
}

/// Contents of the certificate file, the key file and the CA file, loaded together.
struct Contents {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: Vec<CertificateDer<'static>>,
}

impl PartialEq for Contents {
    fn eq(&self, other: &Self) -> bool {
        let (key, others) = (self.key.secret_der(), other.key.secret_der());
        self.chain == other.chain && key == others && self.roots == other.roots
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, CertificateError> {
        Ok(Self {
            chain: certificates(&files.certificate)?,
            key: {
                let pem = read(&files.key, true)?;
                PrivateKeyDer::from_pem_slice(&pem).map_err(|error| fault(&files.key, error))?
            },
            roots: certificates(&files.client_ca)?,
        })
    }
}

/// Loads a file of certificates.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let pem = read(path, false)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| fault(path, error))?;
    if found.is_empty() {
        return Err(fault(path, "no certificate in PEM (BEGIN CERTIFICATE)"));
    }
    Ok(found)
}

/// Loads a file of limited size. A file with a secret must not be accessible to other users.
fn read(path: &Path, secret: bool) -> Result<Zeroizing<Vec<u8>>, CertificateError> {
    let failed = |error: std::io::Error| fault(path, executor_core::errors::plain(&error));
    let file = std::fs::File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(fault(path, "is not a regular file"));
    }
    if secret && meta.mode() & 0o007 != 0 {
        let why = format!(
            "has mode {:04o}: other users must have no access to a private key (0600 or 0640)",
            meta.mode() & 0o7777
        );
        return Err(fault(path, why));
    }
    if meta.len() > FILE_MAX {
        return Err(fault(path, format!("is {} bytes; the maximum is {FILE_MAX}", meta.len())));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(meta.len() as usize + 1));
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Validity period of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    from: i64,
    pub(super) until: i64,
}

impl Validity {
    /// Reads the validity period of a DER certificate.
    ///
    /// # Errors
    /// Returns a message if the certificate is malformed.
    pub(super) fn from_der(certificate: &[u8]) -> Result<Self, String> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let validity = certificate.validity();
        Ok(Self { from: validity.not_before.timestamp(), until: validity.not_after.timestamp() })
    }

    /// Returns a message if the certificate is expired or not valid yet.
    fn trouble(self) -> Option<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        match self {
            Self { until, .. } if until < now => Some(format!("the certificate expired {} s ago", now - until)),
            Self { from, .. } if from > now => Some(format!("the certificate becomes valid in {} s", from - now)),
            _ => None,
        }
    }
}

/// Certificates and key for handshakes. After a replacement, the certificates of connected callers are verified again.
pub struct Certificates<R> {
    files: TlsFiles,
    /// Name of the setting for [`TlsFiles::client_ca`], used in messages.
    ca_setting: &'static str,
    rules: Arc<R>,
    provider: Arc<CryptoProvider>,
    current: Mutex<Current>,
    /// Reason for which the verifier refused the last certificate. One value suffices, because handshakes run on one
    /// thread, one step at a time.
    refused: Arc<Mutex<Option<String>>>,
    replaced: watch::Sender<()>,
}

struct Current {
    contents: Contents,
    /// Verifies the certificate chains of callers.
    chains: Arc<dyn ClientCertVerifier>,
    config: Arc<ServerConfig>,
    /// Last logged file error, so that each error is logged once.
    reported: Option<CertificateError>,
    validity: Validity,
}

impl<R> fmt::Debug for Certificates<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("files", &self.files).finish_non_exhaustive()
    }
}

impl<R: CertificatePolicy> Certificates<R> {
    /// Loads the files. An expired certificate is reported in the log, and used until it is replaced. `ca_setting` is
    /// the name of the setting for the CA certificates, used in messages.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, is malformed, or does not match the other files.
    pub fn load(files: TlsFiles, ca_setting: &'static str, rules: Arc<R>) -> Result<Self, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let refused = Arc::new(Mutex::new(None));
        let contents = Contents::read(&files)?;
        let current = configuration(&files, contents, &provider, &rules, &refused)?;
        if let Some(trouble) = current.validity.trouble() {
            tracing::error!("{}: {trouble}: clients will refuse the certificate", files.certificate.display());
        }
        let current = Mutex::new(current);
        Ok(Self { files, ca_setting, rules, provider, current, refused, replaced: watch::Sender::new(()) })
    }

    pub fn files(&self) -> [&Path; 3] {
        [&self.files.certificate, &self.files.key, &self.files.client_ca]
    }

    /// Returns the time until the certificate expires, or `None` if it has expired.
    pub fn expires_in(&self) -> Option<Duration> {
        let until = u64::try_from(locked(&self.current).validity.until).ok()?;
        (UNIX_EPOCH + Duration::from_secs(until)).duration_since(SystemTime::now()).ok()
    }

    /// Reloads the files. An error is logged once, and the previous certificates stay in use.
    pub fn reload(&self) {
        let read = Contents::read(&self.files);
        if let Ok(contents) = &read {
            let mut current = locked(&self.current);
            if current.contents == *contents {
                current.reported = None;
                return;
            }
        }
        let usable = read.and_then(|contents| {
            let usable = configuration(&self.files, contents, &self.provider, &self.rules, &self.refused)?;
            match usable.validity.trouble() {
                Some(trouble) => Err(fault(&self.files.certificate, trouble)),
                None => Ok(usable),
            }
        });
        let mut current = locked(&self.current);
        match usable {
            Ok(usable) => {
                *current = usable;
                drop(current);
                self.replaced.send_replace(());
                let certificate = self.files.certificate.display();
                tracing::info!("{certificate}: the certificates were replaced; they apply to new connections");
            }
            Err(error) => {
                if current.reported.as_ref() != Some(&error) {
                    tracing::error!("cannot load new certificates, the previous certificates stay in use: {error}");
                    current.reported = Some(error);
                }
            }
        }
    }

    /// Creates the session for a new handshake.
    pub(super) fn session(&self) -> Result<Session, rustls::Error> {
        let config = Arc::clone(&locked(&self.current).config);
        Session::new(config)
    }

    /// Returns the caller of a session after the handshake.
    ///
    /// # Errors
    /// Returns a message if the certificate identifies no caller.
    pub(super) fn caller(&self, session: &Session) -> Result<R::Caller, String> {
        self.rules.identify(session.certificates().first().map(AsRef::as_ref).unwrap_or_default())
    }

    /// Verifies the chain of a connected caller again.
    ///
    /// # Errors
    /// Returns the reason if a new handshake with the chain would fail.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), String> {
        let chains = Arc::clone(&locked(&self.current).chains);
        let (certificate, rest) = chain.split_first().ok_or("the caller has no certificate")?;
        chains
            .verify_client_cert(certificate, rest, UnixTime::now())
            .map(drop)
            .map_err(|error| describe(&error, self.ca_setting))
    }

    /// Returns a receiver that is notified when the files are replaced.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.replaced.subscribe()
    }

    /// Returns the reason why a handshake failed. Must be called before the next step of any handshake.
    pub(super) fn reason(&self, error: &rustls::Error) -> String {
        locked(&self.refused).take().unwrap_or_else(|| describe(error, self.ca_setting))
    }
}

/// Describes why a certificate was rejected.
fn describe(error: &rustls::Error, ca_setting: &str) -> String {
    match error {
        rustls::Error::InvalidCertificate(why) => match why {
            Refused::UnknownIssuer => format!("the caller's certificate is not signed by a CA of {ca_setting}"),
            Refused::Expired | Refused::ExpiredContext { .. } => "the caller's certificate is expired".to_owned(),
            Refused::NotValidYet | Refused::NotValidYetContext { .. } => {
                "the caller's certificate is not valid yet".to_owned()
            }
            Refused::Other(why) if why.to_string() == "CaUsedAsEndEntity" => {
                "the caller's certificate is a CA certificate (CA:TRUE); a client certificate is required".to_owned()
            }
            other => format!("the caller's certificate is not accepted: {other}"),
        },
        rustls::Error::NoCertificatesPresented => "the caller has no certificate".to_owned(),
        other => format!("the handshake failed: {other}"),
    }
}

fn configuration<R: CertificatePolicy>(
    files: &TlsFiles,
    contents: Contents,
    provider: &Arc<CryptoProvider>,
    rules: &Arc<R>,
    refused: &Arc<Mutex<Option<String>>>,
) -> Result<Current, CertificateError> {
    let mut roots = RootCertStore::empty();
    for root in &contents.roots {
        roots.add(root.clone()).map_err(|error| fault(&files.client_ca, error))?;
    }
    let chains = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    let chains = chains.map_err(|error| fault(&files.client_ca, error))?;
    let validity = Validity::from_der(&contents.chain[0]).map_err(|why| fault(&files.certificate, why))?;
    let certified = CertifiedKey::from_der(contents.chain.clone(), contents.key.clone_key(), provider);
    let certified = certified.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            fault(&files.key, format!("is not the key of {}", files.certificate.display()))
        }
        other => fault(&files.key, other),
    })?;
    let verifier = Verifier { chains: Arc::clone(&chains), rules: Arc::clone(rules), refused: Arc::clone(refused) };
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider));
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(|error| fault(&files.certificate, error))?;
    let resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    let mut config = builder.with_client_cert_verifier(Arc::new(verifier)).with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec()];
    // A resumed session would skip the certificate check, and tickets would let clients use the server's memory.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Current { contents, chains, config: Arc::new(config), reported: None, validity })
}

/// Verifies a client's certificate chain, then checks that the certificate identifies a caller.
#[derive(Debug)]
struct Verifier<R> {
    chains: Arc<dyn ClientCertVerifier>,
    rules: Arc<R>,
    refused: Arc<Mutex<Option<String>>>,
}

impl<R: CertificatePolicy> ClientCertVerifier for Verifier<R> {
    /// Returns no names, so that unauthenticated clients do not learn which CAs are accepted.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chains.verify_client_cert(certificate, chain, now)?;
        match self.rules.identify(certificate) {
            Ok(_) => Ok(verified),
            Err(why) => {
                *locked(&self.refused) = Some(why);
                Err(Refused::ApplicationVerificationFailure.into())
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}
