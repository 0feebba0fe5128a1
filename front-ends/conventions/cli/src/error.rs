//! Errors of the commands.

use std::path::PathBuf;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::text::plain;
use executor_conventions::violation::Violations;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConventionError {
    #[error("cannot read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is larger than the maximum of {limit} bytes", .path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("the files have more than {limit} documents")]
    TooMany { limit: usize },
    #[error("{}", lines(.0))]
    Files(Vec<String>),
    #[error("the registrations are not valid:\n  {}", indented(.0))]
    Registrations(Violations),
    #[error("{}", lines(.0))]
    Objects(Vec<String>),
    #[error("an object cannot be written as YAML: {0}")]
    Write(String),
}

fn lines(all: &[String]) -> String {
    all.iter().map(|line| plain(line)).collect::<Vec<_>>().join("\n  ")
}

fn indented(violations: &Violations) -> String {
    lines(&violations.to_string().lines().map(str::to_owned).collect::<Vec<_>>())
}

impl From<ConventionError> for Failure {
    fn from(error: ConventionError) -> Self {
        Self::wrap(error, executor_cli_kit::exit::OURS)
    }
}
