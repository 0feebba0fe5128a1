//! Selects the executord to connect to, from flags, environment variables and the contexts file.
//!
//! In order of precedence: `--socket`, `--address` or `--context`; EXECUTOR_SOCKET or EXECUTOR_ADDRESS;
//! EXECUTOR_CONTEXT; the file's current context; the command's default socket. The file holds addresses and paths, but
//! no secrets.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use executor_client::Tls;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Environment variable with the path of executord's socket.
pub const SOCKET: &str = "EXECUTOR_SOCKET";
/// Environment variable with the address of an executord on another machine.
pub const ADDRESS: &str = "EXECUTOR_ADDRESS";
/// Environment variables with the paths of the TLS files, and with the server name in executord's certificate.
pub const TLS_CERT: &str = "EXECUTOR_TLS_CERT";
pub const TLS_KEY: &str = "EXECUTOR_TLS_KEY";
pub const TLS_CA: &str = "EXECUTOR_TLS_CA";
pub const TLS_SERVER_NAME: &str = "EXECUTOR_TLS_SERVER_NAME";
/// Environment variable with the name of a context.
pub const CONTEXT: &str = "EXECUTOR_CONTEXT";
/// Environment variable with the path of the contexts file.
pub const CONTEXTS: &str = "EXECUTOR_CONTEXTS";
/// Maximum size of the contexts file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Maximum number of contexts in the contexts file.
const CONTEXTS_MAX: usize = 1000;
/// Maximum length of a context's name, in bytes.
const NAME_MAX: usize = 64;

/// An executord to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    Socket(PathBuf),
    Tcp(String, Tls),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Tcp(address, _) => f.write_str(address),
        }
    }
}

/// A context in the file: a socket, or an address with its TLS files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_cert: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
}

impl Context {
    /// Returns the server that the context names. `said` maps a field to the flag, variable or key that set it, for
    /// error messages.
    ///
    /// # Errors
    /// Returns an error if fields are missing or conflict.
    pub fn server(&self, said: impl Fn(&str) -> String) -> Result<Server, Failure> {
        let Self { socket, address, tls_cert, tls_key, tls_ca, tls_server_name } = self;
        let files = [("tls_cert", tls_cert), ("tls_key", tls_key), ("tls_ca", tls_ca)];
        let usage = |why: String| Err(Failure::Usage(why));
        let (Some(address), socket) = (address, socket) else {
            let mut tls = files.iter().filter(|(_, file)| file.is_some()).map(|(name, _)| *name).collect::<Vec<_>>();
            tls.extend(tls_server_name.as_ref().map(|_| "tls_server_name"));
            return match (socket, tls.first()) {
                (_, Some(name)) => usage(format!("{} needs {}", said(name), said("address"))),
                (Some(socket), None) => Ok(Server::Socket(socket.clone())),
                (None, None) => usage(format!("{} or {} is missing", said("socket"), said("address"))),
            };
        };
        if socket.is_some() {
            return usage(format!("{} and {} cannot be used together", said("socket"), said("address")));
        }
        let missing: Vec<String> =
            files.iter().filter(|(_, file)| file.is_none()).map(|(name, _)| said(name)).collect();
        if !missing.is_empty() {
            return usage(format!("{} {address} also needs {}", said("address"), missing.join(", ")));
        }
        let file = |file: &Option<PathBuf>| file.clone().unwrap_or_default();
        let tls = Tls {
            certificate: file(tls_cert),
            key: file(tls_key),
            ca: file(tls_ca),
            server_name: tls_server_name.clone(),
        };
        Ok(Server::Tcp(address.clone(), tls))
    }

    pub fn from_server(server: &Server) -> Self {
        match server.clone() {
            Server::Socket(path) => Self { socket: Some(path), ..Self::default() },
            Server::Tcp(address, tls) => Self {
                address: Some(address),
                tls_cert: Some(tls.certificate),
                tls_key: Some(tls.key),
                tls_ca: Some(tls.ca),
                tls_server_name: tls.server_name,
                ..Self::default()
            },
        }
    }

    /// Makes all paths absolute, so that the context works in any directory.
    pub fn absolute(mut self) -> Self {
        let paths = [&mut self.socket, &mut self.tls_cert, &mut self.tls_key, &mut self.tls_ca];
        for path in
            paths.into_iter().flatten().filter(|path| !path.as_os_str().as_encoded_bytes().starts_with(b"unix:"))
        {
            if let Ok(absolute) = std::path::absolute(&path) {
                *path = absolute;
            }
        }
        self
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Contexts {
    /// Name of the default context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    pub contexts: BTreeMap<String, Context>,
}

/// Returns the path of the contexts file; `None` if there is no home directory.
pub fn path() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable(CONTEXTS).or_else(|| {
        let config = variable("XDG_CONFIG_HOME").filter(|dir| dir.is_absolute());
        let config = config.or_else(|| Some(variable("HOME")?.join(".config")));
        Some(config?.join("executor/contexts.toml"))
    })
}

fn fault(path: &Path, why: impl fmt::Display) -> Failure {
    Failure::Usage(format!("{}: {why}", path.display()))
}

impl Contexts {
    /// Reads the contexts file. A missing file has no contexts.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is malformed.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let mut text = String::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(fault(path, format!("{error}: set HOME or {CONTEXTS} to a path that this user may read")));
            }
            Err(error) => return Err(fault(path, error)),
            Ok(length) if length as u64 > FILE_MAX => {
                return Err(fault(path, format!("the file is larger than the maximum of {FILE_MAX} bytes")));
            }
            Ok(_) => {}
        }
        let contexts: Self = toml::from_str(&text).map_err(|error| fault(path, error))?;
        if contexts.contexts.len() > CONTEXTS_MAX {
            return Err(fault(
                path,
                format!("the file has {} contexts; at most {CONTEXTS_MAX} are allowed", contexts.contexts.len()),
            ));
        }
        contexts.contexts.keys().try_for_each(|name| check_name(name).map_err(|why| fault(path, why)))?;
        Ok(contexts)
    }

    /// Writes the contexts file atomically.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self).map_err(|error| fault(path, error))?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let written = std::fs::create_dir_all(dir).and_then(|()| {
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)
        });
        written.map(drop).map_err(|error| fault(path, error))
    }

    /// Returns the context with this name.
    ///
    /// # Errors
    /// Returns an error if there is no such context.
    pub fn get(&self, name: &str, path: &Path) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.contexts.keys().map(String::as_str).take(20).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            fault(path, format!("no context {name:?}; known contexts: {there}"))
        })
    }
}

/// Returns the server of a context.
///
/// # Errors
/// Returns an error if there is no such context, or if it is incomplete.
pub fn for_context(name: &str) -> Result<Server, Failure> {
    let path = path().ok_or_else(|| Failure::Usage(format!("context {name}: neither HOME nor {CONTEXTS} is set")))?;
    let contexts = Contexts::read(&path)?;
    contexts.get(name, &path)?.server(|field| format!("{}: contexts.{name}.{field}", path.display()))
}

/// Returns the name of the current context in the contexts file.
///
/// # Errors
/// Returns an error if the file cannot be read or is malformed.
pub fn current() -> Result<Option<String>, Failure> {
    let Some(path) = path() else { return Ok(None) };
    Ok(Contexts::read(&path)?.current)
}

/// Validates the name of a context.
///
/// # Errors
/// Returns the reason if the name is invalid.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let fits = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain);
    fits.then_some(()).ok_or_else(|| {
        format!("{name:?} is not a valid context name; use 1 to {NAME_MAX} letters, digits, `.`, `_` and `-`")
    })
}

/// Returns the environment variables that select the server in a child process; `None` unsets a variable.
fn environment(server: &Server) -> Vec<(&'static str, Option<OsString>)> {
    let Context { socket, address, tls_cert, tls_key, tls_ca, tls_server_name } = Context::from_server(server);
    let path = |path: Option<PathBuf>| path.map(PathBuf::into_os_string);
    let text = |text: Option<String>| text.as_deref().map(OsStr::new).map(OsStr::to_owned);
    vec![
        (SOCKET, path(socket)),
        (ADDRESS, text(address)),
        (TLS_CERT, path(tls_cert)),
        (TLS_KEY, path(tls_key)),
        (TLS_CA, path(tls_ca)),
        (TLS_SERVER_NAME, text(tls_server_name)),
        (CONTEXT, None),
    ]
}

/// Sets environment variables of a program so that they select this executord, and no other.
pub fn export_server(command: &mut std::process::Command, server: &Server) {
    for (name, value) in environment(server) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(field: &str) -> String {
        format!("--{}", field.replace('_', "-"))
    }

    #[test]
    fn context_is_socket_or_tcp_address() {
        let file = |name: &str| Some(PathBuf::from(name));
        let socket = Context { socket: file("/s"), ..Context::default() };
        assert_eq!(socket.server(said).unwrap(), Server::Socket("/s".into()));
        let tcp = Context {
            address: Some("a:1".into()),
            tls_cert: file("/c"),
            tls_key: file("/k"),
            tls_ca: file("/a"),
            ..Context::default()
        };
        let server = tcp.server(said).unwrap();
        assert_eq!(Context::from_server(&server), tcp);
        for (context, why) in [
            (Context::default(), "--socket or --address is missing"),
            (Context { tls_key: None, tls_ca: None, ..tcp.clone() }, "--address a:1 also needs --tls-key, --tls-ca"),
            (Context { address: None, ..tcp.clone() }, "--tls-cert needs --address"),
            (Context { socket: file("/s"), ..tcp }, "--socket and --address cannot be used together"),
        ] {
            assert_eq!(context.server(said).unwrap_err().describe(), why);
        }
    }

    #[test]
    fn contexts_file_round_trips() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/contexts.toml");
        assert_eq!(Contexts::read(&path).unwrap(), Contexts::default());
        let context = Context { socket: Some("/s".into()), ..Context::default() };
        let contexts =
            Contexts { current: Some("a.b".into()), contexts: [("a.b".to_owned(), context)].into_iter().collect() };
        contexts.write(&path).unwrap();
        assert_eq!(Contexts::read(&path).unwrap(), contexts);
        assert!(contexts.get("b", &path).unwrap_err().describe().ends_with("no context \"b\"; known contexts: a.b"));
        for bad in ["current = 1", "[contexts.a]\nport = 1", "[contexts.'a b']\nsocket = '/s'"] {
            std::fs::write(&path, bad).unwrap();
            assert!(Contexts::read(&path).unwrap_err().describe().contains("contexts.toml"), "{bad}");
        }
    }
}
