//! Vault's interface as served by OpenBao: logins by AppRole and by certificate, namespaces, versions, rotation,
//! renewal of tokens, leases of a real database, a sealed server. The test's own server sends responses that OpenBao
//! does not send on demand.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use executor_proto::v1::event::Kind;
use executor_proto::v1::{File, SecretReference};
use executor_residue::Canary;
use integration::daemon::{Daemon, Setup};
use integration::request::sleeper;
use integration::web::{WebAnswer, WebServer, free_port};
use integration::{cli, metrics, wait};
use tonic::Code;

use crate::references::openbao::{Bao, Running};
use crate::references::residue::{needles, until_daemon_has_none};
use crate::references::{Shelf, content, events_until, from, reference, wait_for_content};

/// If a secret with two referenced entries changes, both new values arrive in one update, and no part of the old values
/// is left in executord, the launcher and their files.
#[test]
fn vault_values_are_rotated_and_old_wiped() {
    let bao = Bao::start("http", "");
    let (old, new) = (Canary::random(4096).unwrap(), Canary::random(4096).unwrap());
    bao.put("u1", old.as_str());
    let daemon = Setup::default().config(&bao.app_role()).start();
    let mut request = sleeper("v");
    let first = SecretReference { version: "1".into(), ..reference("vault", "kv/app/db", "user") };
    request.volume_mounted_files = vec![
        from("db/user", "vault", "kv/app/db", "user"),
        from("db/password", "vault", "kv/app/db", "password"),
        File { path: "first".into(), from: Some(first), ..File::default() },
    ];
    let container = daemon.api.started(request);
    assert_eq!((&*content(&container, "db/user"), &*content(&container, "db/password")), ("u1", old.as_str()));
    bao.put("u2", new.as_str());
    wait_for_content(&container, "db/password", new.as_str());
    assert_eq!((&*content(&container, "db/user"), &*content(&container, "first")), ("u2", "u1"));
    let reported = wait::until("the version is reported", || {
        Some(daemon.api.get("v").unwrap()).filter(|one| one.secret_sources[0].version == "2")
    });
    assert_eq!(
        (reported.files_generation, &*reported.secret_sources[1].version),
        (2, "2"),
        "both values arrive in one update"
    );
    let old = needles("old", &[&old]);
    until_daemon_has_none(&daemon, "the old value", &old);
    // Tokens are valid for 12 seconds, and for 25 seconds with renewals. They are renewed first, then there is a new
    // login.
    wait::until("a renewal of the token", || (bao.served("auth/token/renew-self") >= 1).then_some(()));
    wait::until("executord logs in a second time", || (bao.served("auth/approle/login") >= 2).then_some(()));
    bao.put("u3", "p3");
    wait_for_content(&container, "db/password", "p3");
}

/// If the server has a certificate of another CA, executord uses the replaced `ca_file` without another login. As a
/// control, the value is stale before the file is replaced.
#[test]
fn replaced_ca_is_used() {
    let (shelf, port) = (Shelf::new(), free_port());
    let put = |value: &str| {
        fs::create_dir_all(shelf.path().join("v1/auth/token")).unwrap();
        fs::create_dir_all(shelf.path().join("v1/kv/data")).unwrap();
        shelf.put("v1/auth/token/lookup-self", r#"{"data":{"ttl":0}}"#);
        shelf
            .put("v1/kv/data/app", format!(r#"{{"data":{{"data":{{"user":"{value}"}},"metadata":{{"version":1}}}}}}"#));
    };
    // Serves the files of the directory over HTTP 1.0, so each request has a connection of its own.
    let serve = |pair: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        shelf.put("server.pem", pair.cert.pem() + &pair.signing_key.serialize_pem());
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-WWW", "-accept", &format!("127.0.0.1:{port}"), "-cert", "server.pem"]);
        command.current_dir(shelf.path());
        Running::start(command, shelf.path().join("server.log"), port)
    };
    let [first, second] = [(); 2].map(|()| rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap());
    put("one");
    let ca_file = shelf.put("ca.pem", first.cert.pem());
    let server = serve(&first);
    let config = format!(
        "[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"https://127.0.0.1:{port}\"\n\
         ca_file = {ca_file:?}\ntoken_file = {:?}\npoll_seconds = 1\nallow = [{{ uid = 0, paths = [\"/\"] }}]\n",
        shelf.put("token", "t")
    );
    let daemon = Setup::default().config(&config).start();
    let mut request = sleeper("c");
    request.volume_mounted_files.push(from("user", "vault", "kv/app", "user"));
    let container = daemon.api.started(request);
    assert_eq!(content(&container, "user"), "one");
    drop(server);
    let _server = serve(&second);
    put("two");
    wait::until("the value is stale", || {
        let source = daemon.api.get("c").unwrap().secret_sources.remove(0);
        (source.stale && source.problem.contains("invalid peer certificate")).then_some(())
    });
    shelf.put("ca.pem", second.cert.pem());
    wait_for_content(&container, "user", "two");
}

/// If secrets are deleted, destroyed, denied or too large, the error names their path. A sealed server makes values
/// stale, and an unsealed server makes them fresh.
#[test]
fn vault_errors_are_reported() {
    let bao = Bao::start("http", "");
    bao.put("canary-1", "p1");
    bao.put("canary-2", "p2");
    bao.put("canary-3", "p3");
    bao.run(&["kv", "delete", "-mount=kv", "-versions=1", "app/db"]);
    bao.run(&["kv", "destroy", "-mount=kv", "-versions=2", "app/db"]);
    bao.run(&["kv", "put", "-mount=kv", "other", "user=canary-4"]);
    let large = bao.shelf.put("large", "canary-5".repeat(250_000)).display().to_string();
    bao.run(&["kv", "put", "-mount=kv", "app/large", &format!("user=@{large}")]);
    bao.run(&["secrets", "enable", "-path=plain", "-version=1", "kv"]);
    bao.run(&["kv", "put", "-mount=plain", "app", "user=version one"]);
    let setup = Setup::default();
    let config = metrics::table(&setup) + &bao.app_role();
    let daemon = setup.config(&config).start();
    let stale_ones = |count: f64| {
        let is_reported = || (metrics::value(&daemon, "executor_containers_stale_secrets") == count).then_some(());
        wait::until("the metrics report the number of stale secrets", is_reported);
    };
    let run = |path: &str, key: &str, version: &str| {
        let mut request = sleeper("s");
        let from = Some(SecretReference { version: version.into(), ..reference("vault", path, key) });
        request.volume_mounted_files = vec![File { path: "x".into(), from, ..File::default() }];
        daemon.api.run(request)
    };
    for (path, key, version, code, expected) in [
        ("kv/app/db", "user", "1", Code::NotFound, "version 1 of the secret was deleted (404)"),
        ("kv/app/db", "user", "2", Code::NotFound, "version 2 of the secret was destroyed (404)"),
        ("kv/app/db", "user", "9", Code::NotFound, "has no such secret (404)"),
        ("kv/app/none", "user", "", Code::NotFound, "has no such secret (404)"),
        ("kv/app/db", "none", "", Code::NotFound, "the secret has no entry \"none\""),
        ("none/app", "user", "", Code::PermissionDenied, "denies access (403)"),
        ("kv/other", "user", "", Code::PermissionDenied, "denies access (403)"),
        ("kv/app/large", "user", "", Code::FailedPrecondition, "larger than the maximum of 1048576 bytes"),
    ] {
        let refused = run(path, key, version).unwrap_err();
        let reported = refused.message();
        assert!(refused.code() == code && reported.contains(expected), "{path}#{key}@{version}: {refused}");
        assert!(
            reported.contains(&format!("vault:{path}#{key}")) && !format!("{refused:?}").contains("canary"),
            "{refused:?}"
        );
    }
    assert!(run("plain/app", "user", "").unwrap().created, "control: version 1 of the engine provides the secret");
    daemon.api.delete("s", true).unwrap();
    assert!(run("kv/app/db", "user", "").unwrap().created, "control failed");
    let container = daemon.api.get("s").unwrap();
    let stale = |why: &str| {
        events_until(&daemon, "s", Kind::SecretsStale);
        wait::until(&format!("reported: {why}"), || {
            let source = daemon.api.get("s").unwrap().secret_sources.remove(0);
            (source.stale && source.problem.contains(why)).then_some(())
        });
        assert_eq!(content(&container, "x"), "canary-3", "the container keeps its value");
    };
    let fresh = |daemon: &Daemon| {
        wait::until("the value is current again", || {
            (!daemon.api.get("s").unwrap().secret_sources[0].stale).then_some(())
        });
    };
    bao.run(&["kv", "delete", "-mount=kv", "app/db"]);
    stale("version 3 of the secret was deleted");
    bao.run(&["kv", "undelete", "-mount=kv", "-versions=3", "app/db"]);
    fresh(&daemon);
    bao.run(&["operator", "seal"]);
    stale("503");
    stale_ones(1.0);
    bao.unseal();
    fresh(&daemon);
    stale_ones(0.0);
}

/// A certificate logs in to a namespace. User and password belong to one lease of a database, and the database accepts
/// them, before and after the rotation.
#[test]
fn certificate_login_receives_database_leases() {
    let bao = Bao::start("https", "team");
    let port = free_port();
    let mut database = Command::new("redis-check-rdb");
    database.arg0("redis-server").args(["--bind", "127.0.0.1", "--save", "", "--requirepass", "root", "--port"]);
    database.arg(port.to_string()).current_dir(bao.shelf.path());
    let _database = Running::start(database, bao.shelf.path().join("database.log"), port);
    let accepts = |user: &str, password: &str| {
        let mut command = Command::new("redis-cli");
        command.args(["--no-auth-warning", "--user", user, "--pass", password, "-p"]).arg(port.to_string());
        let done = command.args(["get", "nothing"]).output().unwrap();
        String::from_utf8(done.stdout).unwrap().trim().is_empty()
    };
    bao.run(&["secrets", "enable", "database"]);
    bao.run(&[
        "write",
        "database/config/real",
        "plugin_name=redis-database-plugin",
        "host=127.0.0.1",
        &format!("port={port}"),
        "username=default",
        "password=root",
        "allowed_roles=app",
    ]);
    let statements = "creation_statements=[\"~*\",\"+@read\"]";
    bao.run(&["write", "database/roles/app", "db_name=real", statements, "default_ttl=6s", "max_ttl=15s"]);
    bao.run(&["auth", "enable", "cert"]);
    let certificate = format!("certificate=@{}", bao.shelf.path().join("client.crt").display());
    bao.run(&["write", "auth/cert/certs/node", &certificate, "token_policies=app", "token_ttl=1h"]);
    let path = |name: &str| bao.shelf.path().join(name).display().to_string();
    let login = format!(
        "namespace = \"team\"\nauth = \"cert\"\nauth_role = \"node\"\nca_file = \"{}\"\ncertificate_file = \"{}\"\n\
         key_file = \"{}\"\n",
        path("server.crt"),
        path("client.crt"),
        path("client.key")
    );
    let daemon = Setup::default().config(&bao.table(&login)).start();
    let reference = |file: &str, key: &str| format!("db/{file}=vault:database/creds/app#{key}");
    let files = [reference("user", "username"), reference("password", "password")];
    let line = ["run", "-d", "--name", "d", "--file", &files[0], "--file", &files[1], "--", "/bin/sleep", "100000"];
    let ran = cli::run(&daemon.socket(), &line);
    assert_eq!(ran.status, 0, "{ran:?}");
    let container = daemon.api.get("d").unwrap();
    let pair = || (content(&container, "db/user"), content(&container, "db/password"));
    let (user, password) = pair();
    assert!(accepts(&user, &password) && !accepts(&user, "wrong"), "the database accepts only this pair");
    wait::until("a renewal of the lease", || (bao.served("sys/leases/renew") >= 1).then_some(()));
    events_until(&daemon, "d", Kind::FilesUpdated);
    let (new, other) = pair();
    assert!(new != user && accepts(&new, &other), "a new pair arrives when the lease cannot be renewed again");
    wait::until("the old user is gone from the database", || (!accepts(&user, &password)).then_some(()));
    assert_eq!(bao.served("auth/cert/login"), 1);
}

/// If a server is a standby, is overloaded, is not a Vault or never finishes its response, the error has its address
/// and status, and does not quote the response. A redirect is not followed, because the token would be sent to its
/// target.
#[test]
fn answers_that_are_no_secret_are_reported() {
    const WORDS: &str = "canary-of-the-answer";
    let elsewhere = WebServer::start(|_, _| WebAnswer::ok(b"{}"));
    let location = elsewhere.url("/v1/kv/data/redirect");
    let server = WebServer::start(move |_, request| {
        let status = match &*request.target {
            "/v1/auth/token/lookup-self" => return WebAnswer::ok(br#"{"data":{"ttl":0,"renewable":false}}"#),
            "/v1/kv/data/redirect" => {
                return WebAnswer::Full("307 Temporary Redirect", vec![("location", location.clone())], Vec::new());
            }
            "/v1/kv/data/hangs" => return WebAnswer::Never,
            "/v1/kv/data/page" => return WebAnswer::ok(WORDS.as_bytes()),
            "/v1/kv/data/one" => return WebAnswer::ok(format!(r#"{{"data":{{"k":"{WORDS}"}}}}"#).as_bytes()),
            "/v1/kv/data/400" => "400 Bad Request",
            "/v1/kv/data/412" => "412 Precondition Failed",
            "/v1/kv/data/429" => "429 Too Many Requests",
            "/v1/kv/data/473" => "473 Standby",
            "/v1/kv/data/500" => "500 Internal Server Error",
            "/v1/kv/data/502" => "502 Bad Gateway",
            "/v1/kv/data/503" => "503 Service Unavailable",
            "/v1/kv/data/good" => {
                return WebAnswer::ok(br#"{"data":{"data":{"k":"v"},"metadata":{"version":1}}}"#);
            }
            other => panic!("{other}"),
        };
        assert_eq!((request.header("x-vault-token"), request.header("x-vault-request")), (Some("t"), Some("true")));
        WebAnswer::Full(status, Vec::new(), format!(r#"{{"errors":["{WORDS}"]}}"#).into_bytes())
    });
    let (shelf, address) = (Shelf::new(), server.url(""));
    let config = format!(
        "[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"{address}\"\ntimeout_seconds = 2\n\
         token_file = \"{}\"\nallow = [{{ uid = 0, paths = [\"kv\"] }}]\n",
        shelf.put("token", "t\n").display()
    );
    let daemon = Setup::default().config(&config).start();
    let run = |name: &str| {
        let mut request = sleeper(name);
        request.volume_mounted_files.push(from("x", "vault", &format!("kv/{name}"), "k"));
        daemon.api.run(request)
    };
    for (name, code, expected) in [
        (
            "redirect",
            Code::Unavailable,
            "redirects to another address (307); configure the address of the active server",
        ),
        ("hangs", Code::Unavailable, "within 2 s"),
        ("page", Code::Unavailable, "not have Vault's format"),
        ("one", Code::FailedPrecondition, "check the version of the mount in kv_mounts"),
        ("400", Code::FailedPrecondition, "rejects the request (400)"),
        ("412", Code::Unavailable, "responded with status 412"),
        ("429", Code::Unavailable, "responded with status 429"),
        ("473", Code::Unavailable, "responded with status 473"),
        ("500", Code::Unavailable, "responded with status 500"),
        ("502", Code::Unavailable, "responded with status 502"),
        ("503", Code::Unavailable, "responded with status 503"),
    ] {
        let refused = run(name).unwrap_err();
        let reported = refused.message();
        assert!(refused.code() == code && reported.contains(expected), "{name}: {refused}");
        assert!(
            reported.contains(&format!("vault:kv/{name}#k")) && !format!("{refused:?}").contains(WORDS),
            "{refused:?}"
        );
    }
    assert!(elsewhere.requests().is_empty(), "no request was sent to the other address");
    run("good").expect("control failed");
}
