//! Credentials from a credential helper: the program `docker-credential-NAME`, run as Docker and Podman run it.
//!
//! The helper gets the registry on standard input and responds with JSON (`Username`, `Secret`). The helper's run time
//! and output are limited.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::{Credentials, DOCKER_HUB, Secret, VALUE_MAX, secret};

/// Maximum length of the name of a helper, in bytes.
const NAME_MAX: usize = 64;
/// Maximum size of an output, in bytes: two values and their keys.
const ANSWER_MAX: usize = 2 * VALUE_MAX + 1024;
/// Time limit of a helper. Some helpers query a network service.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of a helper message in an error, in characters.
const MESSAGE_MAX: usize = 200;
/// Docker Hub's server name in requests to helpers.
const DOCKER_HUB_SERVER: &str = "https://index.docker.io/v1/";
/// User name that marks the secret as an identity token.
const TOKEN_USER: &str = "<token>";
/// Message of a helper that has no credentials for the registry.
const NOT_FOUND: &str = "credentials not found in native keychain";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    #[serde(deserialize_with = "secret")]
    secret: Secret,
}

/// Runs a helper for the credentials of a registry; `None` if the helper has none.
pub(crate) fn credentials(name: &str, registry: &str) -> Result<Option<Credentials>, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
        return Err(format!("the helper's name must be 1 to {NAME_MAX} letters, digits, `-`, `_` or `.`"));
    }
    let server = if DOCKER_HUB.contains(&registry) { DOCKER_HUB_SERVER } else { registry };
    ask(OsStr::new(&format!("docker-credential-{name}")), server, HELPER_TIMEOUT)
}

fn ask(program: &OsStr, server: &str, within: Duration) -> Result<Option<Credentials>, String> {
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "not found in PATH".to_owned(),
        _ => error.to_string(),
    })?;
    let answer = read(&mut child, server, within);
    // After an error, also kill the helper's children, which may hold the pipe open.
    if let Some(group) = Pid::from_raw(child.id().cast_signed()).filter(|_| answer.is_err()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let answer = answer?;
    if !status.success() {
        let text = String::from_utf8_lossy(&answer);
        let message: String = text.trim().chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect();
        return match message == NOT_FOUND {
            true => Ok(None),
            false => Err(format!("the helper failed ({status}): {message}")),
        };
    }
    let malformed = |_| "the output is not JSON with Username and Secret".to_owned();
    let Answer { username, secret } = serde_json::from_slice(&answer).map_err(malformed)?;
    if secret.len() > VALUE_MAX {
        return Err(format!("the secret is {} bytes; the maximum is {VALUE_MAX}", secret.len()));
    }
    match username == TOKEN_USER {
        true => Ok(Some(Credentials::IdentityToken(secret))),
        false => Credentials::basic(username, secret).map(Some).map_err(str::to_owned),
    }
}

/// Sends the request and reads the whole output.
fn read(child: &mut Child, server: &str, within: Duration) -> Result<Zeroizing<Vec<u8>>, String> {
    let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (question, (sender, receiver)) = (server.to_owned(), channel());
    std::thread::spawn(move || {
        // A helper may respond without reading its input.
        let _ = stdin.as_mut().map(|stdin| stdin.write_all(question.as_bytes()));
        drop(stdin);
        let mut answer = Zeroizing::new(Vec::with_capacity(ANSWER_MAX + 1));
        let read = stdout.map(|stdout| stdout.take(ANSWER_MAX as u64 + 1).read_to_end(&mut answer));
        let _ = sender.send(read.transpose().map(|_| answer));
    });
    match receiver.recv_timeout(within) {
        Ok(Ok(answer)) if answer.len() > ANSWER_MAX => {
            Err(format!("the output is larger than the maximum of {ANSWER_MAX} bytes"))
        }
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(RecvTimeoutError::Timeout) => Err(format!("no response within {} s", within.as_secs())),
        Err(RecvTimeoutError::Disconnected) => Err("cannot read the output".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    fn script(dir: &tempfile::TempDir, text: &str) -> PathBuf {
        let path = dir.path().join("docker-credential-test");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn asked(text: &str) -> Result<Option<Credentials>, String> {
        let dir = tempfile::tempdir().unwrap();
        ask(script(&dir, text).as_os_str(), "r.example:5000", HELPER_TIMEOUT)
    }

    fn basic(username: &str, password: &str) -> Option<Credentials> {
        Credentials::basic(username, Zeroizing::new(password.to_owned())).ok()
    }

    #[test]
    fn helper_answers_for_the_registry_it_reads() {
        let text =
            r#"test "$1" = get || exit 9; printf '{"ServerURL":"x","Username":"u of %s","Secret":"pw"}' "$(cat)""#;
        assert_eq!(
            asked(&text.replace("u of %s", "u-%s").replace("$(cat)", "$(cat | tr -d :)")),
            Ok(basic("u-r.example5000", "pw"))
        );
        let token = Credentials::IdentityToken(Zeroizing::new("refresh".into()));
        assert_eq!(asked(r#"echo '{"Username":"<token>","Secret":"refresh"}'"#), Ok(Some(token)));
        assert_eq!(asked("echo credentials not found in native keychain; exit 1"), Ok(None));
    }

    #[test]
    fn faulty_helper_fails_without_showing_secret() {
        let table = [
            ("echo the vault is locked; exit 3", "the vault is locked"),
            (r#"echo '{"Username":"u","Secret":canary}'"#, "not JSON"),
            (r#"echo '{"Username":"","Secret":"canary"}'"#, "the user name is empty"),
            ("yes canary", "larger than"),
        ];
        for (text, expected) in table {
            let reported = asked(text).unwrap_err();
            assert!(reported.contains(expected) && !reported.contains("canary"), "{text}: {reported}");
        }
        let missing = credentials("is-in-no-directory", "r.example").unwrap_err();
        assert!(missing.contains("PATH"), "{missing}");
        for name in ["", "../x", "a b", &"x".repeat(65)] {
            assert!(credentials(name, "r.example").unwrap_err().contains("helper's name"), "{name}");
        }
    }

    /// A helper's children are killed, too: they would hold the pipe open.
    #[test]
    fn slow_helper_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let path = script(&dir, &format!("sleep 1000 & echo $! $$ >{}; wait", pids.display()));
        let reported = loop {
            let reported = ask(path.as_os_str(), "r.example", Duration::from_secs(1)).unwrap_err();
            // On a busy machine, the helper may be killed before it has started.
            if pids.exists() {
                break reported;
            }
        };
        assert!(reported.contains("within 1 s"), "{reported}");
        let alive =
            |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"));
        for pid in std::fs::read_to_string(&pids).unwrap().split_whitespace() {
            while alive(pid) {
                std::thread::yield_now();
            }
        }
    }
}
