//! Vault: logins, versions, renewal of tokens and leases, and two entries of one secret that change at once.

use std::fs;
use std::process::{Child, Command, Stdio};

use executor_proto::v1::event::Kind;
use executor_proto::v1::{File, SecretReference};
use integration::cli;
use integration::daemon::Setup;
use integration::request::sleeper;
use integration::wait;
use serde_json::{Map, Value, json};
use tonic::Code;

use crate::{Shelf, content, events_until, from, reference, wait_for_content};

/// A server of secrets, written from the documentation of Vault's interface (vault.py).
pub(crate) struct Server {
    shelf: Shelf,
    child: Child,
    port: String,
    secure: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts it; with TLS where the certificate and key of the server, and the client's certificate, are given.
    pub(crate) fn start(tls: Option<[String; 3]>) -> Self {
        let shelf = Shelf::new();
        shelf.put("token", "root-token\n");
        shelf.put("role_id", "role-1\n");
        shelf.put("secret_id", "secret-1\n");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/references/vault.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(shelf.path()).stdin(Stdio::null());
        let secure = tls.is_some();
        for (name, text) in ["server.crt", "server.key", "client.crt"].into_iter().zip(tls.into_iter().flatten()) {
            command.arg(shelf.put(name, text));
        }
        let child = command.spawn().expect("python3");
        let port = wait::until("the server listens", || fs::read_to_string(shelf.path().join("port")).ok());
        let server = Self { shelf, child, port, secure };
        server.set(&[], "");
        server
    }

    /// Sets the versions of `kv/app/db`, and further state as JSON.
    pub(crate) fn set(&self, versions: &[&[(&str, &str)]], more: &str) {
        let version = |entries: &&[(&str, &str)]| {
            Value::Object(entries.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect::<Map<_, _>>())
        };
        let versions: Vec<Value> = versions.iter().map(version).collect();
        let mut state = json!({
            "root": "root-token", "approle": ["role-1", "secret-1"], "database": "dynamic", "kv": { "app/db": versions },
        });
        if !more.is_empty() {
            let more: Map<String, Value> = serde_json::from_str(more).unwrap();
            state.as_object_mut().unwrap().extend(more);
        }
        self.shelf.put("state.json", state.to_string());
    }

    /// A table of the configuration with one way to log in.
    pub(crate) fn provider(&self, auth: &str, more: &str) -> String {
        let file = |name: &str| self.shelf.path().join(name).display().to_string();
        let login = match auth {
            "token_file" => format!("token_file = \"{}\"", file("token")),
            "approle" => format!(
                "auth = \"approle\"\nrole_id_file = \"{}\"\nsecret_id_file = \"{}\"",
                file("role_id"),
                file("secret_id")
            ),
            _ => format!(
                "auth = \"cert\"\nca_file = \"{}\"\ncertificate_file = \"{}\"\nkey_file = \"{}\"",
                file("server.crt"),
                file("client.crt"),
                file("client.key")
            ),
        };
        let scheme = if self.secure { "https://localhost" } else { "http://127.0.0.1" };
        format!(
            "[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"{scheme}:{}\"\npoll_seconds = 1\n\
             timeout_seconds = 5\nallow = [{{ uid = 0, paths = [\"kv/app/\", \"database/creds/app\"] }}]\n{login}\n{more}\n",
            self.port
        )
    }

    fn log(&self) -> String {
        fs::read_to_string(self.shelf.path().join("log")).unwrap_or_default()
    }
}

#[test]
fn two_entries_of_a_secret_change_at_once() {
    let server = Server::start(None);
    server.set(&[&[("user", "u1"), ("password", "p1")]], r#"{"namespace": "team"}"#);
    let daemon = Setup::default().config(&server.provider("token_file", "namespace = \"team\"")).start();
    let mut request = sleeper("v");
    request.volume_mounted_files =
        vec![from("db/user", "vault", "kv/app/db", "user"), from("db/password", "vault", "kv/app/db", "password")];
    let first = SecretReference { version: "1".into(), ..reference("vault", "kv/app/db", "user") };
    request.volume_mounted_files.push(File { path: "first".into(), from: Some(first), ..File::default() });
    let container = daemon.api.started(request);
    assert_eq!((content(&container, "db/user").as_str(), content(&container, "first").as_str()), ("u1", "u1"));
    let told: Vec<_> = container.secret_sources.iter().map(|one| (one.version.as_str(), one.followed)).collect();
    assert_eq!(told, [("1", true), ("1", true), ("1", false)]);
    server.set(
        &[&[("user", "u1"), ("password", "p1")], &[("user", "u2"), ("password", "p2")]],
        r#"{"namespace": "team"}"#,
    );
    wait_for_content(&container, "db/password", "p2");
    assert_eq!((content(&container, "db/user").as_str(), content(&container, "first").as_str()), ("u2", "u1"));
    let now = wait::until("the version is told", || {
        Some(daemon.api.get("v").unwrap()).filter(|one| one.secret_sources[0].version == "2")
    });
    assert_eq!((now.files_generation, now.secret_sources[1].version.as_str()), (2, "2"), "one update for both");
    // The server is away and comes back.
    server.set(&[&[("user", "u3"), ("password", "p3")]], r#"{"namespace": "team", "down": true}"#);
    events_until(&daemon, "v", Kind::SecretsStale);
    let problem = daemon.api.get("v").unwrap().secret_sources[0].problem.clone();
    assert!(problem.contains("503") && problem.contains("127.0.0.1"), "{problem}");
    assert!(daemon.api.info().secret_providers[0].problem.contains("503"));
    server.set(&[&[("user", "u3"), ("password", "p3")]], r#"{"namespace": "team"}"#);
    wait_for_content(&container, "db/password", "p3");
    events_until(&daemon, "v", Kind::SecretsFresh);
    // A redirect is not followed: the token would go there.
    server.set(&[], r#"{"namespace": "team", "redirect": "http://127.0.0.1:1"}"#);
    let mut request = sleeper("redirected");
    request.volume_mounted_files.push(from("x", "vault", "kv/app/db", "user"));
    let refused = daemon.api.run(request).unwrap_err();
    assert!(refused.code() == Code::Unavailable && refused.message().contains("redirects"), "{refused}");
}

/// Tokens live for a few seconds: they are renewed once, and then a new login is needed.
#[test]
fn an_approle_logs_in_renews_and_logs_in_again() {
    let server = Server::start(None);
    server.set(&[&[("password", "p1")]], r#"{"ttl": 12}"#);
    let daemon = Setup::default().config(&server.provider("approle", "")).start();
    let file = "db/password=vault:kv/app/db#password";
    let lease = "db/dynamic=vault:database/creds/app#password";
    let line = ["run", "--detach", "--name", "a", "--file", file, "--file", lease, "--", "/bin/sleep", "100000"];
    assert_eq!(cli::run(&daemon.socket(), &line).status, 0);
    let container = daemon.api.get("a").unwrap();
    assert_eq!(content(&container, "db/password"), "p1");
    let dynamic = content(&container, "db/dynamic");
    assert!(dynamic.starts_with("dynamic-"), "{dynamic}");
    // The lease is renewed once; then there is a new secret.
    let logged = |line: &str| server.log().lines().filter(|one| *one == line).count();
    wait::until("a new dynamic secret", || (content(&container, "db/dynamic") != dynamic).then_some(()));
    assert!(logged("POST /v1/sys/leases/renew 200") >= 1, "{}", server.log());
    assert_eq!(content(&container, "db/password"), "p1");
    wait::until("the token was renewed", || (logged("POST /v1/auth/token/renew-self 200") >= 1).then_some(()));
    wait::until("a second login", || (logged("POST /v1/auth/approle/login 200") >= 2).then_some(()));
    server.set(&[&[("password", "p1")], &[("password", "p2")]], r#"{"ttl": 12}"#);
    wait_for_content(&container, "db/password", "p2");
    let refused = cli::run(&daemon.socket(), &["run", "--file", "x=vault:kv/app/none#a", "--", "/bin/true"]);
    assert!(refused.status != 0 && refused.stderr.contains("vault:kv/app/none#a"), "{}", refused.stderr);
    let denied = cli::run(&daemon.socket(), &["run", "--file", "x=vault:kv/apple#a", "--", "/bin/true"]);
    assert!(denied.status != 0 && denied.stderr.contains("may not use"), "{}", denied.stderr);
}

#[test]
fn a_certificate_logs_in() {
    let make = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (own, client) = (make("localhost"), make("client"));
    let server = Server::start(Some([own.cert.pem(), own.signing_key.serialize_pem(), client.cert.pem()]));
    server.shelf.put("client.key", client.signing_key.serialize_pem());
    server.set(&[&[("password", "p1")]], "");
    let daemon = Setup::default().config(&server.provider("cert", "")).start();
    let mut request = sleeper("t");
    request.volume_mounted_files.push(from("x", "vault", "kv/app/db", "password"));
    let container = daemon.api.started(request);
    assert_eq!(content(&container, "x"), "p1");
    assert!(server.log().contains("POST /v1/auth/cert/login 200"), "{}", server.log());
}
