//! Manages instance identities: issues a certificate and a key to a container as secret files, and renews them before
//! the certificate expires.
//!
//! ```text
//!  request ── check, place ──> files without content ── key, signature ──> files with content, as if in the request
//!                                                             └──> record (no key) of the container ──> renewal
//! ```
//! The key is generated here, written into the file's content, and overwritten together with the request; the CA's key
//! is never in this process's memory. One update replaces all three files; the update fails if other files have been
//! replaced in the meantime. After a restart of executord, renewal continues from the container's record; an overdue
//! certificate is renewed immediately.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use executor_core::backoff::Backoff;
use executor_core::identity::{IdentityNames, IdentitySettings};
use executor_core::lifecycle::State;
use executor_core::protocol::SignRequest;
use executor_core::time::Timestamp;
use executor_core::validate::Violation;
use executor_core::validate::ViolationReason::{Conflict, OutOfRange};
use executor_proto::v1::{self, EnvironmentVariable, File, RunRequest};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use tokio::task::AbortHandle;
use zeroize::Zeroizing;

use crate::api_error::{ApiError, Kind};
use crate::model::container::Handle;
use crate::model::identity::IdentityRecord;
use crate::model::sources::{SourceChange, StaleValue};
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::rotate;

/// Environment variables with the paths of certificate and key, as in Cloud Foundry.
const VARIABLES: [&str; 2] = ["CF_INSTANCE_CERT", "CF_INSTANCE_KEY"];
/// Pause after a concurrent update, and initial pause after a failure.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
/// Maximum pause after failures, for certificates with a long lifetime.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(300);
/// Maximum sleep between checks of the date: the clock may be set, and the host may be suspended.
const SLEEP_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct RequestedIdentity {
    names: IdentityNames,
    ttl_seconds: Option<u64>,
    /// Number of variables that were added to the request.
    variables: usize,
}

/// Checks the requested identity. Adds its files, without content, and its variables to the request.
pub(crate) fn for_request(
    settings: &IdentitySettings,
    request: &mut RunRequest,
) -> Result<Option<RequestedIdentity>, Vec<Violation>> {
    let Some(identity) = request.identity.clone() else { return Ok(None) };
    let v1::Identity { organizational_units, dns_names, ip_addresses, spiffe_id, ttl } = identity;
    let names = IdentityNames { organizational_units, dns_names, ip_addresses, spiffe_id };
    let mut found = Vec::new();
    let ttl_seconds = match ttl {
        None => None,
        Some(prost_types::Duration { seconds, nanos: 0 }) => Some(u64::try_from(seconds).unwrap_or(0)),
        Some(_) => {
            found.push(Violation::new("identity.ttl", OutOfRange.because("must be whole seconds")));
            None
        }
    };
    found.extend(settings.evaluate(&request.id, &names, ttl_seconds));
    if request.writable_files.is_some() {
        let why = "cannot be combined with writable_files: such files cannot be replaced";
        found.push(Violation::new("identity", Conflict.because(why)));
    }
    if !found.is_empty() {
        return Err(found);
    }
    let paths = settings.files().map(|path| path.display().to_string());
    let mut variables = 0;
    for (name, path) in VARIABLES.iter().zip(&paths) {
        if !request.environment.iter().any(|given| given.name == *name) {
            let (name, value) = ((*name).to_owned(), path.clone());
            request.environment.push(EnvironmentVariable { name, value, ..EnvironmentVariable::default() });
            variables += 1;
        }
    }
    let key = paths[1].clone();
    request.volume_mounted_files.extend(paths.into_iter().map(|path| File {
        public: path != key,
        path,
        ..File::default()
    }));
    Ok(Some(RequestedIdentity { names, ttl_seconds, variables }))
}

impl RequestedIdentity {
    /// Runs `act` on the original request, without the added files and variables.
    pub(crate) fn with_original<T>(&self, request: &mut RunRequest, act: impl FnOnce(&RunRequest) -> T) -> T {
        let (files, variables) = (&mut request.volume_mounted_files, &mut request.environment);
        let files = files.split_off(files.len().saturating_sub(3));
        let variables = variables.split_off(variables.len().saturating_sub(self.variables));
        let done = act(request);
        request.volume_mounted_files.extend(files);
        request.environment.extend(variables);
        done
    }

    /// Generates the key, obtains the certificate, and puts both into the request.
    ///
    /// # Errors
    /// Returns the same errors as [`Issued::make`].
    pub(crate) async fn fill(self, node: &Node, request: &mut RunRequest) -> Result<IdentityRecord, ApiError> {
        let files = node.config.identity.files();
        let issued = Issued::make(node, &request.id, &self.names, self.ttl_seconds).await?;
        let record = issued.record(self.names, self.ttl_seconds, files, 0);
        for (path, content) in record.files.iter().zip(issued.into_contents()) {
            let mut content = content;
            let place = request.volume_mounted_files.iter_mut().rev().find(|file| Path::new(&file.path) == path);
            if let Some(place) = place {
                place.content = std::mem::take(&mut *content);
            }
        }
        Ok(record)
    }
}

/// A signed certificate with its private key and CA chain.
struct Issued {
    certificate: String,
    key: Zeroizing<Vec<u8>>,
    chain: String,
    serial: String,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl Issued {
    /// Generates a key, and requests a signed certificate for it.
    ///
    /// # Errors
    /// Returns an error if the names are no longer allowed, the CA cannot sign, no launcher is connected, or no random
    /// numbers are available.
    async fn make(node: &Node, id: &str, names: &IdentityNames, ttl_seconds: Option<u64>) -> Result<Self, ApiError> {
        let pair = make_key();
        executor_secrets::scrub_stack();
        let (key, public_key) = pair.ok_or_else(|| ApiError::new(Kind::Internal, "cannot generate a key"))?;
        let IdentityNames { organizational_units, dns_names, ip_addresses, spiffe_id } = names.clone();
        let request = SignRequest {
            container_id: id.to_owned(),
            public_key,
            ttl_seconds: ttl_seconds.unwrap_or(0),
            organizational_units,
            dns_names,
            ip_addresses,
            spiffe_id,
        };
        let certified = tokio::select! {
            certified = node.signer.sign(&node.launcher, &request) => certified?,
            () = node.until_stopping() => return Err(ApiError::stopping()),
        };
        let signed = certified.signed;
        let time = |seconds: u64| Timestamp(seconds.saturating_mul(1_000_000_000));
        Ok(Self {
            // The container must also present the intermediate certificates.
            certificate: signed.certificate + &certified.chain,
            key,
            chain: certified.chain,
            serial: signed.serial.iter().map(|byte| format!("{byte:02x}")).collect(),
            not_before: time(signed.not_before),
            not_after: time(signed.not_after),
        })
    }

    fn record(
        &self,
        names: IdentityNames,
        ttl_seconds: Option<u64>,
        files: [std::path::PathBuf; 3],
        replaced: u64,
    ) -> IdentityRecord {
        let now = crate::now();
        // Renew after about two thirds of the lifetime. The jitter spreads the renewals of a node's containers.
        let pause = crate::with_jitter(self.not_after.since(now) * 2 / 3);
        let pause = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        IdentityRecord {
            names,
            ttl_seconds,
            serial: self.serial.clone(),
            not_before: self.not_before,
            not_after: self.not_after,
            renew_at: Timestamp(now.0.saturating_add(pause)),
            files,
            replaced,
            stale: None,
        }
    }

    /// Returns the contents of certificate, key and chain.
    fn into_contents(self) -> [Zeroizing<Vec<u8>>; 3] {
        [Zeroizing::new(self.certificate.into_bytes()), self.key, Zeroizing::new(self.chain.into_bytes())]
    }
}

/// Generates a P-256 key. Returns the private key (PKCS#8 as PEM) and the public key. This is a separate function, so
/// that its stack can be overwritten afterwards.
#[inline(never)]
fn make_key() -> Option<(Zeroizing<Vec<u8>>, Vec<u8>)> {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).ok()?;
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document.as_ref(), &random).ok()?;
    let public_key = pair.public_key().as_ref().to_vec();
    let mut encoded = Zeroizing::new(vec![0; document.as_ref().len().div_ceil(3) * 4]);
    let length = BASE64.encode_slice(document.as_ref(), &mut encoded).ok()?;
    let mut pem = Zeroizing::new(Vec::with_capacity(512));
    pem.extend_from_slice(b"-----BEGIN PRIVATE KEY-----\n");
    for line in encoded[..length].chunks(64) {
        pem.extend_from_slice(line);
        pem.push(b'\n');
    }
    pem.extend_from_slice(b"-----END PRIVATE KEY-----\n");
    Some((pem, public_key))
}

/// The task that renews a container's certificate. Dropping this stops the task.
#[derive(Debug)]
pub(crate) struct Renewing(AbortHandle);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Renewing {
    /// Starts the task; `None` if the container has no certificate.
    pub(crate) fn start(node: &Arc<Node>, handle: &Arc<Handle>, facts: &ContainerStatus) -> Option<Self> {
        facts.identity.as_ref()?;
        let (node, handle) = (Arc::clone(node), Arc::clone(handle));
        let task = tokio::spawn(async move { run_renewal(&node, &handle).await });
        Some(Self(task.abort_handle()))
    }
}

/// Result of an attempt to renew a container's certificate.
enum Renewal {
    Replaced,
    Failed,
    /// A concurrent update was applied instead.
    Superseded,
}

async fn run_renewal(node: &Arc<Node>, handle: &Arc<Handle>) {
    let mut backoff: Option<Backoff> = None;
    // True if the last renewal was needed because the clock was set back. Another renewal would yield the same dates.
    let mut set_back = false;
    while let Some(facts) = handle.facts().filter(|facts| facts.state == State::Running) {
        let Some(record) = &facts.identity else { return };
        if backoff.is_none() {
            let now = crate::now();
            let left = record.renew_at.since(now);
            // The clock was set back: peers reject the certificate, because it is not yet valid.
            if now < record.not_before && !set_back {
                set_back = true;
            } else if !left.is_zero() {
                set_back &= now < record.not_before;
                tokio::time::sleep(left.min(SLEEP_MAX)).await;
                continue;
            }
        }
        match renew(node, handle).await {
            Renewal::Replaced => backoff = None,
            // Limits the rate of attempts while other updates replace the files.
            Renewal::Superseded => tokio::time::sleep(RETRY_DELAY_MIN).await,
            Renewal::Failed => {
                let longest = record.not_after.since(record.not_before) / 20;
                let backoff = backoff
                    .get_or_insert(Backoff::new(RETRY_DELAY_MIN, longest.clamp(RETRY_DELAY_MIN, RETRY_DELAY_MAX)));
                tokio::time::sleep(crate::with_jitter(backoff.pause())).await;
            }
        }
    }
}

/// Generates a new key and certificate for the container, and replaces its current key and certificate.
async fn renew(node: &Arc<Node>, handle: &Arc<Handle>) -> Renewal {
    // Record and generation are consistent under the update lock.
    let turn = handle.updating.lock().await;
    let facts = handle.facts();
    drop(turn);
    let Some((facts, old)) = facts.and_then(|facts| Some((Arc::clone(&facts), facts.identity.clone()?))) else {
        return Renewal::Replaced;
    };
    let problem = match Issued::make(node, handle.id().as_str(), &old.names, old.ttl_seconds).await {
        Err(problem) => problem,
        Ok(issued) => {
            let new = issued.record(old.names.clone(), old.ttl_seconds, old.files.clone(), old.replaced + 1);
            let request = update(&facts, &old, issued);
            match rotate::replace(node, request, SourceChange::Identity(Box::new(new))).await {
                Ok(()) => return Renewal::Replaced,
                Err(problem) if problem.kind == Kind::Aborted => return Renewal::Superseded,
                Err(problem) => problem,
            }
        }
    };
    if handle.state() != Some(State::Running) || *node.stopping.borrow() {
        return Renewal::Failed;
    }
    let since = old.stale.as_ref().map_or_else(crate::now, |stale| stale.since);
    let stale = Some(StaleValue { since, why: problem.to_string() });
    if old.stale.as_ref().map(|stale| &*stale.why) != stale.as_ref().map(|stale| &*stale.why) {
        tracing::warn!(container = %handle.id(), "the container's certificate was not replaced: {problem}");
    }
    handle.report_sources(SourceChange::Identity(Box::new(IdentityRecord { stale, ..old }))).await;
    Renewal::Failed
}

/// Creates the update of a container's certificate, key and chain files.
fn update(facts: &ContainerStatus, record: &IdentityRecord, issued: Issued) -> v1::UpdateFilesRequest {
    let key = record.files[1].clone();
    let files = record.files.iter().zip(issued.into_contents()).map(|(path, mut content)| File {
        public: *path != key,
        path: path.display().to_string(),
        content: std::mem::take(&mut *content),
        ..File::default()
    });
    v1::UpdateFilesRequest {
        id: facts.plan.id.to_string(),
        files: files.collect(),
        expected_generation: Some(facts.files_generation),
        ..v1::UpdateFilesRequest::default()
    }
}
