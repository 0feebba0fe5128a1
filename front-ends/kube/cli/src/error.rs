//! Errors of the commands.

use std::path::PathBuf;
use std::time::Duration;

use executor_cli_kit::failure::Failure;
use executor_kube::report::Violations;

#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeError {
    #[error("{}:\n  {}", counted(.0), .0.to_string().replace('\n', "\n  "))]
    Wrong(Violations),
    #[error("conventions: {}", .0.to_string().replace('\n', "\n  "))]
    Conventions(executor_conventions::violation::Violations),
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{}: {message}", .path.display())]
    Input { path: PathBuf, message: String },
    #[error("{0}: no objects; to remove a play, use `kube down`")]
    Empty(String),
    #[error("there is no play `{0}`, and no such file")]
    NoPlay(String),
    #[error("{0}")]
    NoPod(String),
    #[error("pod {pod}: container {container}: {message}")]
    Container { pod: String, container: String, message: String },
    #[error("pod {pod} is not ready after {} s: {message}", .waited.as_secs())]
    NotReady { pod: String, waited: Duration, message: String },
    #[error("pod {pod}: {message}")]
    Pod { pod: String, message: String },
    #[error("{kind} {name} failed: {message}")]
    Job { kind: &'static str, name: String, message: String },
    #[error("{0} belongs to the play `{1}`: remove that play, or play under its name (--name {1})")]
    Other(String, String),
    #[error("{0} exists and does not belong to a play: choose another name, or remove it")]
    Foreign(String),
    #[error("{object}: {field}: cannot be changed (P10): take the play down first, or play with --replace")]
    Frozen { object: String, field: &'static str },
}

fn counted(violations: &Violations) -> String {
    match violations.list.len() + violations.beyond {
        1 => "1 violation".into(),
        count => format!("{count} violations"),
    }
}

impl From<KubeError> for Failure {
    fn from(error: KubeError) -> Self {
        Self::wrap(error, executor_cli_kit::exit::OURS)
    }
}
