//! Connected callers lose their permission if a rule changes or their certificate expires.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use executor_client::{Client, v1};
use integration::daemon::{Daemon, Setup, kill};
use integration::tls::{TlsDaemon, identity};
use integration::wait::{self, DEFAULT_TIMEOUT};

const GUEST: &str = "spiffe://test/guest";

fn guest(methods: &str) -> String {
    format!("[[callers]]\nuri = '{GUEST}'\nmethods = [{methods}]\n")
}

/// Makes one call without retries.
fn call(tls: &TlsDaemon, client: &Client) -> Result<(), tonic::Status> {
    let mut rpc = client.rpc();
    tls.daemon.api.block_on(rpc.info(v1::InfoRequest {})).map(drop)
}

/// A connection with a running call. The call ends only when the connection ends.
struct Watching<'a> {
    tls: &'a TlsDaemon,
    client: Client,
    events: tonic::Streaming<v1::WatchEventsResponse>,
}

impl<'a> Watching<'a> {
    fn start(tls: &'a TlsDaemon, client: Client) -> Self {
        call(tls, &client).unwrap();
        let mut rpc = client.rpc();
        let watched = tls.daemon.api.block_on(rpc.watch_events(v1::WatchEventsRequest::default()));
        Self { tls, client, events: watched.unwrap().into_inner() }
    }

    /// Waits for the end of the stream.
    fn end(mut self) -> Client {
        let ended = async { while let Ok(Some(_)) = self.events.message().await {} };
        let waited = self.tls.daemon.api.block_on(async { tokio::time::timeout(DEFAULT_TIMEOUT, ended).await });
        waited.expect("the stream ends");
        self.client
    }
}

fn is_logged(daemon: &Daemon, words: &str) {
    wait::until(&format!("{words:?} is logged"), || daemon.setup().logged().contains(words).then_some(()));
}

/// If the entry of a caller is removed, its connection is closed, its stream ends, and its calls fail. As a control,
/// the operator's connection continues.
#[test]
fn removed_caller_loses_its_connection() {
    let tls = TlsDaemon::start(&guest("'read'"), "");
    let files = tls.files("guest", &tls.authority.caller(GUEST));
    let operator = tls.connect(&tls.operator()).unwrap();
    let watching = Watching::start(&tls, tls.connect(&files).unwrap());
    tls.replace_callers("");
    let client = watching.end();
    call(&tls, &client).unwrap_err();
    tls.connect(&files).expect_err("a new connection");
    is_logged(
        &tls.daemon,
        "closing a caller's connection: no entry of [[callers]] matches the caller's certificate any longer",
    );
    call(&tls, &operator).unwrap();
    tls.replace_callers(&guest("'read'"));
    wait::until_ok("the entry is in force again", || tls.connect(&files).map(drop));
}

/// If a method is removed from a rule, its running calls end. The next connection can use the other methods.
#[test]
fn removed_method_ends_its_calls() {
    let tls = TlsDaemon::start(&guest("'read'"), "");
    let files = tls.files("guest", &tls.authority.caller(GUEST));
    let watching = Watching::start(&tls, tls.connect(&files).unwrap());
    tls.replace_callers(&guest("'executor.v1.Executor/Info'"));
    watching.end();
    let client = tls.connect(&files).unwrap();
    call(&tls, &client).unwrap();
    let mut rpc = client.rpc();
    let denied = tls.daemon.api.block_on(rpc.watch_events(v1::WatchEventsRequest::default())).unwrap_err();
    assert_eq!(denied.code(), tonic::Code::PermissionDenied);
}

/// A connection is closed when its certificate expires. As a control, a connection with a valid certificate continues.
#[test]
fn expired_certificate_ends_its_connection() {
    let tls = TlsDaemon::start(&guest("'read'"), "");
    let operator = tls.connect(&tls.operator()).unwrap();
    let mut params = identity(GUEST);
    params.not_after = (SystemTime::now() + Duration::from_secs(8)).into();
    let files = tls.files("guest", &tls.authority.issue(&params));
    Watching::start(&tls, tls.connect(&files).unwrap()).end();
    is_logged(&tls.daemon, "closing a caller's connection: the caller's certificate is expired");
    tls.connect(&files).expect_err("a new connection");
    call(&tls, &operator).unwrap();
}

/// If the file is invalid, nothing changes, and the faulty line is logged. If changed keys require a restart, the log
/// names them.
#[test]
fn faulty_file_keeps_the_rules() {
    let tls = TlsDaemon::start(&guest("'read'"), "");
    let files = tls.files("guest", &tls.authority.caller(GUEST));
    let client = tls.connect(&files).unwrap();
    tls.replace_callers("[[callers]]\nmethods = 5\n");
    is_logged(&tls.daemon, "[[callers]] and secret_providers.allow stay as they were: ");
    is_logged(&tls.daemon, "TOML parse error at line ");
    call(&tls, &client).unwrap();
    tls.connect(&files).unwrap();
    tls.replace_callers(&format!("{}[policy]\ndefault_pids = 77\n", guest("'read'")));
    is_logged(&tls.daemon, "changed keys take effect at the next start keys=\"policy.default_pids\"");
    call(&tls, &client).unwrap();
}

/// SIGHUP reloads the file and does not terminate executord, with or without TCP.
#[test]
fn hangup_reads_the_file_and_kills_nothing() {
    let daemon = Setup::default().config("").start();
    kill(daemon.pid(), 1);
    is_logged(&daemon, "SIGHUP: reading the configuration file again");
    daemon.api.info();
    // The daemon's user can no longer read the file.
    fs::set_permissions(daemon.setup().config_file(), fs::Permissions::from_mode(0o600)).unwrap();
    kill(daemon.pid(), 1);
    is_logged(&daemon, "[[callers]] and secret_providers.allow stay as they were: cannot read ");
    daemon.api.info();
}
