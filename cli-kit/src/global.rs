//! Flags shared by all commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::contexts::{self, ADDRESS, CONTEXT, Context, SOCKET, Server, TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME};
use crate::failure::Failure;

/// Variable that enables JSON output.
pub const JSON: &str = "EXECUTOR_JSON";

/// Connection and output flags.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Connection and output")]
pub struct Global {
    /// Socket of executord [environment: EXECUTOR_SOCKET; default: /run/executor/executor.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Address of executord on another machine, with mutual TLS [environment: EXECUTOR_ADDRESS]
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// Certificate for --address, with its chain (PEM) [environment: EXECUTOR_TLS_CERT]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM) [environment: EXECUTOR_TLS_KEY]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// CA certificates for executord's certificate (PEM) [environment: EXECUTOR_TLS_CA]
    #[arg(long, global = true, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Name in executord's certificate; defaults to the host of --address [environment: EXECUTOR_TLS_SERVER_NAME]
    #[arg(long, global = true, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// Context that names the executord (see `agent-cli context`) [environment: EXECUTOR_CONTEXT]
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Start a private executord in a temporary directory and stop it afterwards (needs root)
    ///
    /// The executord program is searched for next to agent-cli, then in PATH. Its containers end with the command.
    #[arg(long, global = true)]
    pub local: bool,
    /// Print JSON: one document, or one object per line for streams [environment: EXECUTOR_JSON=1]
    ///
    /// Times are RFC 3339 in UTC, durations are seconds, sizes are bytes, unknown values are null.
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// Sets `json` if the environment requests JSON output.
    pub fn apply_environment(&mut self) {
        self.json |= std::env::var_os(JSON).is_some_and(|json| json == "1");
    }

    /// Returns true if a flag names the executord.
    pub fn has_server_flag(&self) -> bool {
        self.socket.is_some() || self.context.is_some() || self.address.is_some() || self.has_tls()
    }

    fn has_tls(&self) -> bool {
        let files = [&self.tls_cert, &self.tls_key, &self.tls_ca];
        files.iter().any(|file| file.is_some()) || self.tls_server_name.is_some()
    }

    /// Checks for conflicting flags that clap's definitions cannot express.
    pub fn check(&self) -> Result<(), Failure> {
        let named = [
            ("--socket", self.socket.is_some()),
            ("--address", self.address.is_some()),
            ("--context", self.context.is_some()),
        ];
        let named: Vec<&str> = named.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect();
        let why = match &named[..] {
            [flag, ..] if self.local => {
                format!("--local and {flag} cannot be used together: --local starts a private executord")
            }
            [one, other, ..] => format!("{one} and {other} cannot be used together: each names an executord"),
            [flag] if *flag != "--address" && self.has_tls() => {
                format!("{flag} and the TLS flags (--tls-...) cannot be used together: TLS is only for --address")
            }
            [] if self.local && self.has_tls() => {
                "--local and the TLS flags (--tls-...) cannot be used together: TLS is only for --address".to_owned()
            }
            _ => return Ok(()),
        };
        Err(Failure::Usage(why))
    }

    /// Returns the executord that flags and environment name. If they name no executord, returns the executord of the
    /// current context. Without a current context, returns the command's default socket.
    ///
    /// # Errors
    /// Returns an error if flags or variables conflict or are incomplete, or if there is no such context.
    pub fn server(&self, default: &str) -> Result<Server, Failure> {
        self.configured_server().map(|named| named.unwrap_or_else(|| Server::Socket(default.into())))
    }

    /// Returns the executord like [`Self::server`], but `None` instead of the command's default socket.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::server`].
    pub fn configured_server(&self) -> Result<Option<Server>, Failure> {
        self.check()?;
        if let Some(name) = &self.context {
            return contexts::for_context(name).map(Some);
        }
        if self.has_server_flag() || text(ADDRESS)?.is_some() || path(SOCKET).is_some() {
            return self.explicit_server().map(Some);
        }
        match text(CONTEXT)? {
            Some(name) => contexts::for_context(&name).map(Some),
            None => contexts::current()?.map(|name| contexts::for_context(&name)).transpose(),
        }
    }

    /// Sets the environment of a program so that it uses the executord of these flags, variables or contexts. Changes
    /// nothing if no executord is selected.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::server`].
    pub fn export_to(&self, command: &mut Command) -> Result<(), Failure> {
        self.configured_server().map(|named| named.iter().for_each(|server| contexts::export_server(command, server)))
    }

    /// Returns the executord that flags and variables name directly, without a context.
    ///
    /// # Errors
    /// Returns an error if flags or variables conflict or are incomplete.
    pub fn explicit_server(&self) -> Result<Server, Failure> {
        if let Some(socket) = &self.socket {
            return Ok(Server::Socket(socket.clone()));
        }
        let of_socket = if self.address.is_some() { None } else { path(SOCKET) };
        let address = self.address.clone().map_or_else(|| text(ADDRESS), |address| Ok(Some(address)))?;
        let remote = address.is_some() || self.has_tls();
        let file = |flag: &Option<PathBuf>, variable: &str| {
            if remote { flag.clone().or_else(|| path(variable)) } else { None }
        };
        let context = Context {
            socket: of_socket,
            tls_cert: file(&self.tls_cert, TLS_CERT),
            tls_key: file(&self.tls_key, TLS_KEY),
            tls_ca: file(&self.tls_ca, TLS_CA),
            tls_server_name: match (&self.tls_server_name, remote) {
                (Some(name), _) => Some(name.clone()),
                (None, true) => text(TLS_SERVER_NAME)?,
                (None, false) => None,
            },
            address,
        };
        context.server(|field| {
            let upper = field.to_uppercase();
            format!("--{} (EXECUTOR_{upper})", field.replace('_', "-"))
        })
    }
}

/// Returns the value of an environment variable; `None` if the variable is unset or empty.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn path(name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from)
}

fn text(name: &str) -> Result<Option<String>, Failure> {
    let utf8 = |value: OsString| value.into_string().map_err(|_| Failure::Usage(format!("{name} is not UTF-8")));
    variable(name).map(utf8).transpose()
}
