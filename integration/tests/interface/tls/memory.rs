//! executord wipes secrets that were received over TLS, while the connection is open and afterwards.

use std::time::{Duration, Instant};

use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Search};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh};
use integration::tls::TlsDaemon;

const SIZES: [usize; 4] = [64, 4096, 65_536, 1 << 20];

fn is_in_executord(daemon: &Daemon, secret: &Canary) -> bool {
    let mut needles = Needles::new().unwrap();
    needles.add("secret", secret.as_bytes());
    let mut search = Search::new(&needles);
    search.process(&Process::from_pid(daemon.pid() as u32).unwrap());
    let report = search.report();
    assert!(report.processes == 1 && report.unsearched.is_empty(), "{report:?}");
    report.found()
}

/// Checks that the secret is wiped within one second, as docs/security-claims.md states.
fn is_gone(daemon: &Daemon, secret: &Canary, when: &str) {
    let begun = Instant::now();
    while is_in_executord(daemon, secret) {
        assert!(begun.elapsed() < Duration::from_secs(1), "{when}");
    }
}

#[test]
fn tls_secret_is_wiped_after_one_second() {
    let tls = TlsDaemon::start("", "");
    let files = tls.operator();
    let api = &tls.daemon.api;
    for size in SIZES {
        let client = tls.connect(&files).unwrap();
        let mut secrets = Vec::new();
        for round in 0..3 {
            let (secret, id) = (Canary::random(size).unwrap(), format!("tls-{size}-{round}"));
            let request = sh("exit 0").id(&id).file("/etc/x/f", secret.as_bytes());
            api.block_on(async { client.rpc().run(request).await.unwrap() });
            is_gone(&tls.daemon, &secret, &format!("{id} with its connection open"));
            secrets.push(secret);
        }
        drop(client);
        for secret in &secrets {
            is_gone(&tls.daemon, secret, &format!("{size} with the connection closed"));
        }
    }
}

/// The secrets of an incomplete request are wiped when the connection closes, or earlier.
#[test]
fn request_that_breaks_off_leaves_nothing() {
    let tls = TlsDaemon::start("", "");
    let client = tls.connect(&tls.operator()).unwrap();
    let secret = Canary::random(900_000).unwrap();
    let request = sh("exit 0").id("broken").file("/etc/x/f", secret.as_bytes());
    let mut rpc = client.rpc();
    let sending = tls.daemon.api.spawn(async move { rpc.run(request).await.map(drop) });
    sending.abort();
    let _ = tls.daemon.api.block_on(sending);
    drop(client);
    is_gone(&tls.daemon, &secret, "after the connection was closed");
}

/// As a control, the secrets are found if the allocator overwrites nothing.
#[test]
fn control_without_wipe_finds_tls_secret() {
    let tls = TlsDaemon::new(Setup::default().control(), "", "");
    let client = tls.connect(&tls.operator()).unwrap();
    let found = SIZES.map(|size| {
        let secret = Canary::random(size).unwrap();
        let request = sh("exit 0").id(&format!("control-{size}")).file("/etc/x/f", secret.as_bytes());
        tls.daemon.api.block_on(async { client.rpc().run(request).await.unwrap() });
        is_in_executord(&tls.daemon, &secret)
    });
    // Later allocations may overwrite small messages by chance, but they do not overwrite large messages.
    assert!(found.iter().filter(|found| **found).count() >= 2, "{found:?}");
}
