//! Errors of the commands.

use std::path::PathBuf;

use executor_cli_kit::failure::Failure;
use executor_cnab::archive::ArchiveError;
use executor_cnab::id::NoRandomness;
use executor_cnab::store::StoreError;
use executor_cnab::violation::Violations;

/// Error of a command on bundles.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CnabError {
    #[error("{what}:\n  {}", .violations.to_string().replace('\n', "\n  "))]
    Wrong { what: String, violations: Violations },
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is larger than the maximum of {limit} bytes", .path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("{}", .path.display())]
    Archive { path: PathBuf, source: ArchiveError },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Random(#[from] NoRandomness),
    #[error("credential {name}: {why}")]
    Credential { name: String, why: String },
    #[error("{name} is installed already (revision {revision}): upgrade it, uninstall it, or choose another name")]
    Installed { name: String, revision: String },
    #[error(
        "--cred {name}: there is no such credential set, neither a file of this name nor {name}.json, {name}.yaml or \
         {name}.yml in {}", .directory.display()
    )]
    NoSet { name: String, directory: PathBuf },
    #[error("{}", if *.0 == 1 { "1 record cannot be read".to_owned() } else { format!("{} records cannot be read", .0) })]
    Unreadable(usize),
    #[error("{0} is not installed")]
    NotInstalled(String),
    #[error("another agent-cli command is working on {0}")]
    Busy(String),
    #[error("{name}: {status}{}{message}", if .message.is_empty() { "" } else { ": " })]
    ActionFailed { name: String, status: &'static str, message: String, exit: u8 },
    #[error("{installation} has no claim {id}")]
    NoClaim { installation: String, id: String },
    #[error("{0}")]
    Image(String),
    #[error("{0}")]
    Driver(String),
}

impl From<CnabError> for Failure {
    fn from(error: CnabError) -> Self {
        let status = match &error {
            CnabError::ActionFailed { exit, .. } => *exit,
            _ => executor_cli_kit::exit::OURS,
        };
        Self::wrap(error, status)
    }
}
