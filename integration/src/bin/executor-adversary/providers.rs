//! Attacks by a client on secret providers: the client tries to read executord's own credentials, and secrets that no
//! rule grants to it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use anyhow::ensure;
use executor_proto::v1::{Container, File, SecretReference};
use integration::api::pid;
use integration::daemon::{Daemon, Setup};
use integration::request::sleeper;
use integration::web::{WebAnswer, WebServer};

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "providers: executord's own token",
        position: Position::Client,
        claim: "a caller whose rule covers every path of a Vault reads neither executord's token nor the server's own mounts",
        attack: token,
        control: token_control,
    },
    Attack {
        name: "providers: links within a directory",
        position: Position::Client,
        claim: "a link in a directory of secrets leads neither out of the rule's paths nor to executord's credentials",
        attack: links,
        control: links_control,
    },
];

/// Vault token of executord.
const TOKEN: &str = "token-3f0c7a9be1";
/// Secret that the caller is not allowed to read.
const CANARY: &str = "canary-4b17d0";

/// Creates a directory that the daemon's user can read.
fn shelf() -> anyhow::Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

fn put(path: &Path, content: &str) -> std::io::Result<()> {
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

/// Runs a container with a secret file by reference, and returns the file's content.
fn content(daemon: &Daemon, provider: &str, path: &str, key: &str) -> Result<String, String> {
    let mut request = sleeper("reader");
    let from =
        SecretReference { provider: provider.into(), path: path.into(), key: key.into(), version: String::new() };
    request.volume_mounted_files.push(File { path: "x".into(), from: Some(from), ..File::default() });
    daemon.api.run(request).map_err(|refused| refused.message().to_owned())?;
    let read =
        |container: &Container| fs::read_to_string(format!("/proc/{}/root/etc/cf-service-bindings/x", pid(container)));
    let container = integration::wait::until("the container runs", || {
        daemon.api.get("reader").ok().filter(|container| container.state() == executor_proto::v1::State::Running)
    });
    let content = read(&container).map_err(|error| error.to_string());
    daemon.api.delete("reader", true).map_err(|error| error.to_string())?;
    content
}

/// Starts a server that responds as Vault does: it decodes the path once, and accepts a namespace before a mount.
fn vault() -> WebServer {
    WebServer::start(|_, request| {
        let target = decoded(&request.target);
        let own = format!(r#"{{"data":{{"id":"{TOKEN}","ttl":0,"renewable":false,"k":"{TOKEN}"}}}}"#);
        if target.ends_with("auth/token/lookup-self") || target.contains("/sys/") || target.contains("cubbyhole/") {
            WebAnswer::ok(own.as_bytes())
        } else if target == "/v1/kv/data/app" {
            WebAnswer::ok(format!(r#"{{"data":{{"data":{{"k":"{TOKEN}"}},"metadata":{{"version":1}}}}}}"#).as_bytes())
        } else {
            WebAnswer::Full("404 Not Found", Vec::new(), b"{}".to_vec())
        }
    })
}

/// Decodes percent-encoded ASCII characters.
fn decoded(target: &str) -> String {
    let mut parts = target.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        text.extend(byte.map(char::from));
        text.push_str(part.get(2..).unwrap_or_default());
    }
    text
}

/// Starts a daemon with a Vault provider whose rule covers every path.
fn with_vault(vault: &WebServer, dir: &Path) -> anyhow::Result<Daemon> {
    put(&dir.join("token"), TOKEN)?;
    let config = format!(
        "[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"{}\"\ntoken_file = \"{}\"\n\
         allow = [{{ uid = 0, paths = [\"/\"] }}]\n",
        vault.url(""),
        dir.join("token").display()
    );
    Ok(Setup::default().config(&config).start())
}

/// Requests executord's own token by its path and by other spellings of the path.
fn token(_: Scale) -> anyhow::Result<Outcome> {
    let (vault, dir) = (vault(), shelf()?);
    let daemon = with_vault(&vault, dir.path())?;
    let paths = [
        ("auth/token/lookup-self", "id"),
        ("team/auth/token/lookup-self", "id"),
        ("Auth/token/lookup-self", "id"),
        ("%61uth/token/lookup-self", "id"),
        ("team%2Fauth%2Ftoken%2Flookup-self", "id"),
        ("sys/storage/raw/core", "k"),
        ("team/cubbyhole/response", "k"),
    ];
    let read = |(path, key): &(&str, &str)| {
        content(&daemon, "vault", path, key).ok().map(|got| format!("{path}#{key}: {got}"))
    };
    let fault = paths.iter().find_map(read);
    Ok(Outcome::new(fault, format!("{} paths are refused", paths.len())))
}

/// Control: a secret with the same value at an allowed path is read.
fn token_control(_: Scale) -> anyhow::Result<String> {
    let (vault, dir) = (vault(), shelf()?);
    let daemon = with_vault(&vault, dir.path())?;
    let got = content(&daemon, "vault", "kv/app", "k").map_err(anyhow::Error::msg)?;
    ensure!(got == TOKEN, "{got}");
    Ok("a secret with the same text is read".into())
}

/// Starts a daemon with a directory provider and a Vault provider. The directory contains the token of the Vault
/// provider, and secrets of two owners. A rule covers only one owner.
fn with_directory(dir: &Path) -> anyhow::Result<Daemon> {
    for part in ["app", "app/v1", "other"] {
        fs::create_dir(dir.join(part))?;
        fs::set_permissions(dir.join(part), fs::Permissions::from_mode(0o755))?;
    }
    put(&dir.join("other/pw"), CANARY)?;
    put(&dir.join("app/v1/pw"), CANARY)?;
    put(&dir.join("token"), CANARY)?;
    for (target, link) in
        [("../other/pw", "ln"), ("../other", "dir"), ("../token", "token"), ("v1/pw", "within"), ("ln", "twice")]
    {
        symlink(target, dir.join("app").join(link))?;
    }
    fs::hard_link(dir.join("token"), dir.join("app/hard"))?;
    let (path, token) = (dir.display(), dir.join("token"));
    let config = format!(
        "[[secret_providers]]\nname = \"shelf\"\ntype = \"directory\"\npath = \"{path}\"\n\
         allow = [{{ uid = 0, paths = [\"app/\"] }}]\n\
         [[secret_providers]]\nname = \"whole\"\ntype = \"directory\"\npath = \"{path}\"\n\
         allow = [{{ uid = 0, paths = [\"/\"] }}]\n\
         [[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"http://127.0.0.1:1\"\ntoken_file = \"{}\"\n",
        token.display()
    );
    Ok(Setup::default().config(&config).start())
}

/// Requests secrets through links that lead to another owner's secret and to executord's token.
fn links(_: Scale) -> anyhow::Result<Outcome> {
    let dir = shelf()?;
    let daemon = with_directory(dir.path())?;
    let paths = [
        ("shelf", "app/ln"),
        ("shelf", "app/dir/pw"),
        ("shelf", "app/twice"),
        ("shelf", "app/token"),
        ("shelf", "app/hard"),
        ("whole", "token"),
        ("whole", "app/token"),
    ];
    let read = |(provider, path): &(&str, &str)| {
        content(&daemon, provider, path, "").ok().map(|got| format!("{provider}:{path}: {got}"))
    };
    Ok(Outcome::new(paths.iter().find_map(read), format!("{} paths are refused", paths.len())))
}

/// Control: links within the rule's paths are followed, and all links are followed if the rule covers the whole
/// directory.
fn links_control(_: Scale) -> anyhow::Result<String> {
    let dir = shelf()?;
    let daemon = with_directory(dir.path())?;
    for (provider, path) in [("shelf", "app/within"), ("whole", "app/ln")] {
        let got = content(&daemon, provider, path, "").map_err(anyhow::Error::msg)?;
        ensure!(got == CANARY, "{provider}:{path}: {got}");
    }
    Ok("links within the rule's paths are followed".into())
}
