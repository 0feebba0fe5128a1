//! Certificates are replaced while calls are made.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use executor_client::Client;
use integration::daemon::kill;
use integration::tls::{Authority, Issued, OPERATOR, TlsDaemon, write_pair};
use integration::wait;
use rcgen::{CertificateParams, DnType, date_time_ymd};

const CALLS: usize = 10_000;
const LANES: usize = 8;
/// Number of calls after which a lane opens a new connection. Every second call uses the lane's first connection.
const EACH: usize = 25;

/// Returns the subject of the certificate that the daemon presents.
fn presented(tls: &TlsDaemon) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &tls.address]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find(|line| line.starts_with("subject=")).unwrap_or_default().replace(' ', "")
}

fn is_presented(tls: &TlsDaemon, name: &str) {
    wait::until("the new certificate is presented", || (presented(tls) == format!("subject=CN={name}")).then_some(()));
}

/// While the certificate, key and CA of the node are replaced, no call fails, neither on existing connections nor on
/// new connections.
#[test]
fn certificates_are_replaced_under_load() {
    let tls = TlsDaemon::start("", "connections_per_address = 1000");
    let files = tls.operator();
    let (made, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let api = &tls.daemon.api;
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            let (address, files, made) = (tls.address.clone(), files.clone(), Arc::clone(&made));
            api.spawn(async move {
                let kept = Client::connect_tls(&address, &files).await.unwrap();
                let mut client = kept.clone();
                for call in 0..CALLS / LANES {
                    if call % EACH == 0 {
                        client = Client::connect_tls(&address, &files).await.unwrap();
                    }
                    let one = if call % 2 == 0 { &kept } else { &client };
                    // The generated client does not retry.
                    one.rpc().info(executor_client::v1::InfoRequest {}).await.unwrap();
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut replaced = 0;
    std::thread::scope(|scope| {
        let (tls, ended) = (&tls, Arc::clone(&over));
        let replacing = scope.spawn(move || {
            let mut replaced = 0;
            while !ended.load(Ordering::Relaxed) {
                let next = Authority::new(&format!("CA {replaced}"));
                let bundle = tls.dir().join(".ca.crt");
                fs::write(&bundle, tls.authority.pem() + &next.pem()).unwrap();
                fs::rename(&bundle, tls.dir().join("ca.crt")).unwrap();
                replaced += 1;
                write_pair(&tls.dir(), &tls.authority.node(&format!("node-{replaced}")));
                is_presented(tls, &format!("node-{replaced}"));
            }
            replaced
        });
        let failed = lanes.into_iter().filter_map(|lane| wait_for(api, lane).err()).collect::<Vec<_>>();
        over.store(true, Ordering::Relaxed);
        replaced = replacing.join().unwrap();
        assert!(failed.is_empty(), "{failed:?}");
    });
    assert_eq!(made.load(Ordering::Relaxed), CALLS);
    assert!(replaced > 3, "control failed: only {replaced} replacements");
}

fn wait_for(api: &integration::api::Api, lane: tokio::task::JoinHandle<()>) -> Result<(), tokio::task::JoinError> {
    wait::until("the calls are made", || lane.is_finished().then_some(()));
    api.block_on(lane)
}

/// Links and whole directories are replaced as in Kubernetes. A new certificate that is invalid or expired is reported,
/// and the earlier certificate stays in use.
#[test]
fn linked_certificates_reload_and_bad_ones_reported() {
    let tls = TlsDaemon::start("", "");
    let files = tls.operator();
    let kept = tls.connect(&files).unwrap();
    let api = &tls.daemon.api;
    let put = |directory: &str, issued: &Issued| {
        let at = tls.dir().join(directory);
        fs::create_dir(&at).unwrap();
        write_pair(&at, issued);
        let (link, new) = (tls.dir().join("..data"), tls.dir().join("..data_tmp"));
        symlink(directory, &new).unwrap();
        fs::rename(&new, &link).unwrap();
    };
    put("..1", &tls.authority.node("one"));
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), tls.dir().join("new")).unwrap();
        fs::rename(tls.dir().join("new"), tls.dir().join(name)).unwrap();
    }
    is_presented(&tls, "one");
    put("..2", &tls.authority.node("two"));
    is_presented(&tls, "two");
    let reported = |what: &str| {
        wait::until("the message is logged", || tls.daemon.setup().logged().contains(what).then_some(()));
        assert_eq!(presented(&tls), "subject=CN=two");
        tls.connect(&files).unwrap();
    };
    let mut expired = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    expired.distinguished_name.push(DnType::CommonName, "expired");
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    put("..3", &tls.authority.issue(&expired));
    reported("cannot load new certificates, the previous certificates stay in use: ");
    reported("tls.crt: the certificate expired ");
    let mut broken = tls.authority.node("broken");
    broken.certificate = "no certificate".to_owned();
    put("..4", &broken);
    reported("no certificate in PEM");
    kill(tls.daemon.pid(), 1);
    reported("SIGHUP: reading the certificates again");
    put("..5", &tls.authority.node("five"));
    is_presented(&tls, "five");
    api.block_on(kept.info()).expect("the first connection continues");
    // A caller is refused once its CA is removed.
    let other = Authority::new("other CA");
    fs::write(tls.dir().join(".ca"), other.pem()).unwrap();
    fs::rename(tls.dir().join(".ca"), tls.dir().join("ca.crt")).unwrap();
    let mut files = tls.files("other", &other.caller(OPERATOR));
    files.ca = tls.daemon.setup().home().join("node-ca.crt");
    fs::write(&files.ca, tls.authority.pem()).unwrap();
    wait::until_ok("the new CA is in force", || tls.connect(&files).map(drop));
    let mut former = tls.operator();
    former.ca = files.ca;
    let error = tls.connect(&former).err().unwrap().to_string();
    assert!(error.contains("does not trust the CA"), "{error}");
    wait::until("the first connection closes", || {
        let mut rpc = kept.rpc();
        let called = api.block_on(rpc.info(executor_client::v1::InfoRequest {}));
        called.is_err().then_some(())
    });
}
