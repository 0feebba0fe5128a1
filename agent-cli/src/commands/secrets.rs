//! `secrets`: prints the secret inputs of the container in which this command runs. The command uses the container's
//! runtime token.
//!
//! A single value is printed unchanged, so that a script can use it. All values are printed only if a flag requests
//! this. The token is read from a file, because every user can read a command line.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::output::Stream;
use executor_cli_kit::session::Session;
use executor_cli_kit::status;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_document;
use executor_client::v1::{EnvironmentVariable, File, GetSecretsResponse};
use executor_client::{Code, Error, Secret};

use crate::view::json;

#[derive(Debug, Args)]
pub(crate) struct SecretsArgs {
    /// File that holds the container's runtime token [environment: EXECUTOR_TOKEN_FILE]
    #[arg(long, value_name = "PATH")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print the value of this variable
    #[arg(long, value_name = "NAME", group = "one")]
    pub(crate) env: Option<String>,
    /// Print the argument with this index, counted from 0
    #[arg(long, value_name = "INDEX", group = "one")]
    pub(crate) arg: Option<u32>,
    /// Print the content of this file, named by its absolute path
    #[arg(long, value_name = "PATH", group = "one")]
    pub(crate) file: Option<String>,
    /// Print all values in readable form
    #[arg(long, conflicts_with = "one")]
    pub(crate) reveal: bool,
}

/// Socket of executord inside a container with a token.
pub(crate) const SOCKET: &str = "/run/executor/runtime.sock";
/// Maximum size of a token file, in bytes.
const TOKEN_MAX: u64 = 4096;

impl SecretsArgs {
    /// Checks for conflicting flags that clap's definitions cannot express.
    pub(super) fn check(&self, local: bool, json: bool) -> Result<(), Failure> {
        let Self { env, arg, file, reveal, .. } = self;
        let refused = if local {
            "--local cannot be used with secrets, which connects to the executord of its own container"
        } else if env.is_none() && arg.is_none() && file.is_none() && !reveal && !json {
            "secrets prints one value (--env, --arg, --file); with --json or --reveal it prints all of them"
        } else {
            return Ok(());
        };
        Err(Failure::Usage(refused.to_owned()))
    }
}

pub(super) async fn secrets(session: &Session, args: SecretsArgs) -> Result<u8, Failure> {
    let from_environment =
        || std::env::var_os("EXECUTOR_TOKEN_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let file = args.token_file.clone().or_else(from_environment).ok_or_else(|| {
        Failure::Usage("secrets needs --token-file PATH, with the PATH of the container's --runtime-token".into())
    })?;
    let answer = session.client.secrets(&token(&file)?).await;
    let mut answer = answer.map_err(|error| failure(&file, error))?;
    if let Some(value) = one(&args, &mut answer) {
        let value = value.ok_or_else(|| Failure::Refused { code: Code::NotFound, message: missing(&args) })?;
        session.output.bytes(Stream::Out, value).await;
        return Ok(0);
    }
    if session.json {
        session.output.text(to_document(&json::Secrets::from(std::mem::take(&mut *answer)))).await;
    } else {
        session.output.text(revealed(&answer)).await;
    }
    Ok(0)
}

fn token(file: &Path) -> Result<Secret, Failure> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut token = Vec::with_capacity(TOKEN_MAX as usize + 1);
        std::fs::File::open(file)?.take(TOKEN_MAX + 1).read_to_end(&mut token)?;
        if token.len() as u64 > TOKEN_MAX {
            return Err(std::io::Error::other(format!(
                "the file is not a runtime token: the maximum is {TOKEN_MAX} bytes"
            )));
        }
        Ok(token)
    };
    let token = read().map_err(|error| Failure::Usage(format!("--token-file {}: {error}", file.display())))?;
    Ok(token.into())
}

/// Returns the requested value, or `None` if all values are requested. The inner `None` means that there is no such
/// value.
fn one(args: &SecretsArgs, answer: &mut GetSecretsResponse) -> Option<Option<Vec<u8>>> {
    if let Some(name) = &args.env {
        let found = answer.environment.iter_mut().find(|variable| variable.name == *name);
        return Some(found.map(EnvironmentVariable::take_content));
    }
    if let Some(index) = args.arg {
        let found = answer.arguments.iter_mut().find(|argument| argument.index == index);
        return Some(found.map(|argument| std::mem::take(&mut argument.value).into_bytes()));
    }
    let path = args.file.as_ref()?;
    let found = answer.files.iter_mut().find(|file| file.path == *path);
    Some(found.map(|file| std::mem::take(&mut file.content)))
}

fn missing(SecretsArgs { env, arg, file, .. }: &SecretsArgs) -> String {
    let what = match (env, arg, file) {
        (Some(name), ..) => format!("secret variable {}", plain(name)),
        (_, Some(index), _) => format!("secret argument {index}"),
        (.., Some(path)) => format!("secret file {}", plain(path)),
        _ => "such secret".into(),
    };
    format!("secrets: the container has no {what}")
}

/// Formats all secrets for people, one per line. If a value cannot be displayed, its size is shown instead.
fn revealed(GetSecretsResponse { files, environment, arguments }: &GetSecretsResponse) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: &str| text.push_str(&format!("{}={}\n", plain(what), plain(value)));
    for variable in environment {
        match std::str::from_utf8(variable.content()) {
            Ok(value) => line(&variable.name, value),
            Err(_) => {
                let size = variable.content().len();
                line(&variable.name, &format!("({size} bytes that are not text: use --env)"));
            }
        }
    }
    for argument in arguments {
        line(&format!("[{}]", argument.index), &argument.value);
    }
    for File { path, content, .. } in files {
        match std::str::from_utf8(content) {
            Ok(content) => line(path, content),
            Err(_) => line(path, &format!("({} bytes that are not text: use --file)", content.len())),
        }
    }
    text
}

fn failure(file: &Path, error: Error) -> Failure {
    match error {
        Error::Refused(refusal) if matches!(refusal.code, Code::PermissionDenied | Code::Unauthenticated) => {
            Failure::Refused {
                code: refusal.code,
                message: format!(
                    "secrets: executord at {} does not accept the token in {}: {}",
                    refusal.at,
                    file.display(),
                    plain(&refusal.message)
                ),
            }
        }
        Error::Argument(_) => Failure::Usage(format!("--token-file {}: contains no token", file.display())),
        error => status::failure("secrets", error),
    }
}
