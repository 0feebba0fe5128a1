//! Fetches secrets by reference from the operator's providers.
//!
//! ```text
//!  references ──> Providers ── group ──> directory ── openat2 ──> file beneath a directory
//!                                   ├──> vault ────── HTTP ─────> Vault or OpenBao (login, renewal, leases)
//!                                   ├──> kubernetes ─ HTTP ─────> Secrets of a cluster
//!                                   └──> command ──── exec ─────> a program of the operator
//!  values, versions, leases <──────────────┘
//! ```
//! Several keys of one secret are read from one response, so that they are consistent. All results are limited: a value
//! has at most 1 MiB, a fetch has a time limit, and the number of concurrent fetches is small. An error states the
//! cause and contains no part of a response. Values are wiped on drop.

#![forbid(unsafe_code)]

mod command;
mod config;
mod directory;
mod files;
mod http;
mod kubernetes;
mod kubernetes_path;
mod login;
mod vault;
mod vault_path;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::reference::{REFERENCE_VALUE_MAX, SecretReference};
use executor_sys::mutex::locked;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

pub use command::{WORKER_ARGUMENT, work};
pub use config::{Grant, ProviderConfig, Unusable};
pub use login::{Login, WorkloadLogins, WorkloadToken};

/// Maximum number of concurrent fetches per provider.
const CONCURRENT_MAX: usize = 8;

#[derive(Clone, Debug)]
pub struct FetchRequest {
    pub reference: SecretReference,
    /// Path of the rule that allowed the reference. The `directory` provider follows no link that escapes the rule's
    /// directory. If this path is empty, links must not leave the file's directory. If the rule names one file, no link
    /// is followed.
    pub rule: String,
    /// Lease of the existing value. The lease is renewed if possible.
    pub lease: Option<Lease>,
    /// Login of the workload, for providers with `auth = "jwt"`. All requests that are passed to one call of
    /// [`Providers::fetch`] belong to one workload.
    pub login: Option<Arc<Login>>,
}

#[derive(Debug)]
pub enum Fetched {
    Value(Value),
    /// The lease of the existing value was renewed.
    Renewed(Lease),
}

/// A value. `Debug` prints only the size of the content.
#[derive(Clone)]
pub struct Value {
    /// Content of the secret, wiped on drop.
    pub content: Zeroizing<Vec<u8>>,
    /// Version at the provider; empty if the provider has no versions.
    pub version: String,
    /// Lease, if the value has one.
    pub lease: Option<Lease>,
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value")
            .field("content", &format_args!("[REDACTED] ({} bytes)", self.content.len()))
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Lease of a secret that the provider created for this container. The id is not secret, because the id alone gives no
/// access.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lease {
    pub id: String,
    /// Expiry time in seconds since the epoch.
    pub ends_at: u64,
    /// Time at which the lease should be renewed, in seconds since the epoch.
    pub renew_at: u64,
    pub renewable: bool,
}

impl Lease {
    /// Creates the lease of a response that was received now.
    fn new(id: String, seconds: u64, renewable: bool) -> Self {
        let (now, seconds) = (now_seconds(), seconds.max(1));
        Self { id, ends_at: now.saturating_add(seconds), renew_at: now.saturating_add(seconds * 2 / 3), renewable }
    }

    /// Returns the number of seconds until the lease should be renewed. Returns 0 if the number exceeds two thirds of
    /// the lease's lifetime, which means that the clock was set back after an earlier process created the lease.
    pub fn due_in(&self, now: u64) -> u64 {
        let left = self.renew_at.saturating_sub(now);
        // The renewal is due after two thirds of the lease time, rounded down.
        let longest = self.ends_at.saturating_sub(self.renew_at).saturating_mul(2);
        if left > longest { 0 } else { left }
    }
}

/// Returns the current time for leases, in seconds since the epoch. The time does not jump if the wall clock is changed
/// while this process runs.
pub fn now_seconds() -> u64 {
    executor_sys::clock::steady().0 / 1_000_000_000
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The secret does not exist or the reference is invalid. A retry would fail, too.
    NotFound,
    /// The provider denies access.
    Denied,
    /// The value is too large or has an unusable format.
    Unsuitable,
    /// The provider is temporarily unavailable.
    Unavailable,
    /// The token of the workload, which the provider requires, is missing.
    NoToken,
}

/// Error of a fetch. Contains no part of a value.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct FetchError {
    pub kind: ErrorKind,
    /// Reason of the error, on one line.
    pub why: String,
}

impl FetchError {
    pub(crate) fn new(kind: ErrorKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into() }
    }

    pub(crate) fn unavailable(why: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, why)
    }

    /// Returns the error for a request that requires a workload token, if the container has no token.
    pub(crate) fn no_token() -> Self {
        let why = "executord has received no token for this workload since executord started; send one with UpdateFiles \
                   (provider_tokens)";
        Self::new(ErrorKind::NoToken, why)
    }

    pub(crate) fn too_large() -> Self {
        Self::new(ErrorKind::Unsuitable, format!("the value is larger than the maximum of {REFERENCE_VALUE_MAX} bytes"))
    }
}

#[derive(Debug)]
struct Provider {
    config: ProviderConfig,
    kind: Kind,
    /// Error message of the last fetch; empty if it succeeded.
    problem: Mutex<String>,
    permits: Semaphore,
}

#[derive(Debug)]
enum Kind {
    Directory(directory::Directory),
    Vault(Box<vault::Vault>),
    Kubernetes(Box<kubernetes::Kubernetes>),
    Command(command::Program),
}

#[derive(Debug)]
pub struct Providers {
    by_name: BTreeMap<String, Arc<Provider>>,
}

/// Status of a provider for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderStatus {
    pub name: String,
    pub kind: &'static str,
    /// Interval between fetches of a reference, to detect changes.
    pub poll: Duration,
    /// Error message of the last fetch; empty if it succeeded.
    pub problem: String,
}

/// Key for grouping references. One request to a provider fetches all references of a group: several keys of one
/// secret, with one lease.
type BatchKey = (String, String, String, Option<String>, Option<String>, String);

impl Providers {
    /// Creates the providers of a validated configuration.
    pub fn new(configs: Vec<ProviderConfig>) -> Self {
        let credentials: Arc<[PathBuf]> = configs.iter().flat_map(ProviderConfig::credentials).cloned().collect();
        let made = configs.into_iter().map(|config| {
            let kind = match config.kind() {
                config::ProviderKind::Directory => {
                    Kind::Directory(directory::Directory::new(&config, Arc::clone(&credentials)))
                }
                config::ProviderKind::Vault => Kind::Vault(Box::new(vault::Vault::new(&config))),
                config::ProviderKind::Kubernetes => Kind::Kubernetes(Box::new(kubernetes::Kubernetes::new(&config))),
                config::ProviderKind::Command => Kind::Command(command::Program::new(&config)),
            };
            (
                config.name.clone(),
                Arc::new(Provider { config, kind, problem: Mutex::default(), permits: Semaphore::new(CONCURRENT_MAX) }),
            )
        });
        Self { by_name: made.collect() }
    }

    /// Returns the configuration of a provider.
    pub fn config(&self, name: &str) -> Option<&ProviderConfig> {
        self.by_name.get(name).map(|provider| &provider.config)
    }

    /// Returns the status of all providers, ordered by name.
    pub fn statuses(&self) -> Vec<ProviderStatus> {
        let status = |provider: &Arc<Provider>| ProviderStatus {
            name: provider.config.name.clone(),
            kind: provider.config.kind().name(),
            poll: provider.config.poll(),
            problem: locked(&provider.problem).clone(),
        };
        self.by_name.values().map(status).collect()
    }

    /// Fetches secrets concurrently. The results have the order of `requests`. Each fetch completes within the
    /// provider's time limit.
    pub async fn fetch(&self, requests: &[FetchRequest]) -> Vec<Result<Fetched, FetchError>> {
        let mut groups: BTreeMap<BatchKey, Vec<usize>> = BTreeMap::new();
        let mut results: Vec<Option<Result<Fetched, FetchError>>> = requests.iter().map(|_| None).collect();
        for (index, one) in requests.iter().enumerate() {
            let SecretReference { provider, path, key, version } = &one.reference;
            let kind = self.by_name.get(provider).map(|found| &found.kind);
            let whole = matches!(kind, Some(Kind::Vault(_) | Kind::Kubernetes(_)));
            let key = (!whole).then(|| key.clone());
            let lease = one.lease.as_ref().map(|lease| lease.id.clone());
            let rule = if whole { String::new() } else { one.rule.clone() };
            groups.entry((provider.clone(), path.clone(), version.clone(), key, lease, rule)).or_default().push(index);
        }
        let mut tasks = JoinSet::new();
        for ((name, ..), members) in groups {
            let asked: Vec<FetchRequest> = members.iter().map(|index| requests[*index].clone()).collect();
            let provider = self.by_name.get(&name).cloned();
            tasks.spawn(async move {
                let fetched = match provider {
                    Some(provider) => provider.fetch(&asked).await,
                    None => {
                        Err(FetchError::new(ErrorKind::NotFound, format!("{name:?} is not a provider of this node")))
                    }
                };
                (members, fetched)
            });
        }
        while let Some(done) = tasks.join_next().await {
            let Ok((members, fetched)) = done else { continue };
            match fetched {
                Ok(all) => members.into_iter().zip(all).for_each(|(index, one)| results[index] = Some(one)),
                Err(error) => members.into_iter().for_each(|index| results[index] = Some(Err(error.clone()))),
            }
        }
        executor_secrets::scrub_stack();
        let lost = || Err(FetchError::unavailable("the fetch was aborted"));
        results.into_iter().map(|result| result.unwrap_or_else(lost)).collect()
    }

    /// Renews the providers' own credentials. Never returns.
    pub async fn run_renewal(&self) {
        let vaults: Vec<_> =
            self.by_name.values().filter(|provider| matches!(provider.kind, Kind::Vault(_))).cloned().collect();
        let mut tasks = JoinSet::new();
        for provider in vaults {
            tasks.spawn(async move {
                if let Kind::Vault(vault) = &provider.kind {
                    vault.run_renewal().await;
                }
            });
        }
        while tasks.join_next().await.is_some() {}
        std::future::pending::<()>().await;
    }
}

impl Provider {
    /// Fetches secrets that one response contains. The outer error applies to all secrets.
    async fn fetch(&self, wanted: &[FetchRequest]) -> Result<Vec<Result<Fetched, FetchError>>, FetchError> {
        let limit = self.config.timeout();
        let fetched = tokio::time::timeout(limit, async {
            let _permit = self.permits.acquire().await;
            match (&self.kind, wanted) {
                (Kind::Vault(vault), wanted) => vault.fetch(wanted).await,
                (Kind::Kubernetes(cluster), wanted) => cluster.fetch(wanted).await,
                (_, []) => Ok(Vec::new()),
                (Kind::Directory(directory), [one, ..]) => one_value(directory.read(one).await, wanted),
                (Kind::Command(program), [one, ..]) => one_value(program.run(&one.reference).await, wanted),
            }
        });
        let fetched = fetched.await.unwrap_or_else(|_| {
            Err(FetchError::unavailable(format!("no response from the provider within {} s", limit.as_secs())))
        });
        let problem = match &fetched {
            Err(error) if error.kind == ErrorKind::Unavailable => error.why.clone(),
            _ => String::new(),
        };
        *locked(&self.problem) = problem;
        fetched
    }
}

/// Returns copies of one value for all references that requested it.
fn one_value(
    value: Result<Value, FetchError>,
    wanted: &[FetchRequest],
) -> Result<Vec<Result<Fetched, FetchError>>, FetchError> {
    let value = value?;
    Ok(wanted.iter().map(|_| Ok(Fetched::Value(value.clone()))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_before_clock_set_back_is_due() {
        for seconds in [1, 2, 100, 3600] {
            let lease = Lease {
                id: "l".into(),
                ends_at: 50_000 + seconds,
                renew_at: 50_000 + seconds * 2 / 3,
                renewable: true,
            };
            assert_eq!(lease.due_in(50_000), seconds * 2 / 3, "control failed");
            assert_eq!(lease.due_in(50_000 + seconds), 0);
            assert_eq!(lease.due_in(0), 0, "the clock was set back by hours");
        }
    }
}
