//! Renewal before a certificate expires: certificate and key are replaced atomically, after a period without executord,
//! and after failures.

use std::fs;

use executor_proto::v1::WatchEventsRequest;
use executor_proto::v1::event::Kind;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, program, sleeper};
use integration::{cli, metrics, wait};

use crate::identity::{Ca, DIR, file, openssl, with_identity};

/// Constantly reads the certificate and key of one generation, and checks with OpenSSL that they match.
const READER: &str = r#"
import json, os, signal, ssl, sys
directory, going = sys.argv[1], [True]
signal.signal(signal.SIGTERM, lambda *_: going.clear())
seen, certificates = dict(rounds=0, mixed=0, missing=0), set()
print('up', flush=True)
while going:
    at = os.open(os.path.dirname(os.path.realpath(directory + '/instance.crt')), os.O_RDONLY | os.O_DIRECTORY)
    try:
        place = '/proc/self/fd/%d/' % at
        with open(place + 'instance.crt', 'rb') as certificate:
            certificates.add(certificate.read())
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(place + 'instance.crt', place + 'instance.key')
    except ssl.SSLError:
        seen['mixed'] += 1
    except FileNotFoundError:
        seen['missing'] += 1
    finally:
        os.close(at)
    seen['rounds'] += 1
seen['certificates'] = len(certificates)
print(json.dumps(seen), flush=True)
"#;

fn replaced(daemon: &Daemon, id: &str) -> u64 {
    daemon.api.get(id).unwrap().identity.unwrap().replaced
}

fn wait_for_event(daemon: &Daemon, id: &str, kind: Kind) {
    let request = WatchEventsRequest { container_id: id.into(), ..WatchEventsRequest::default() };
    daemon
        .api
        .events(request)
        .unwrap()
        .until(|response| response.event.as_ref().is_some_and(|event| event.kind() == kind));
}

#[test]
fn certificate_and_key_are_renewed_together() {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    let request = program("/usr/bin/python3", &["-c", READER, DIR]).id("r").grace_ms(60_000);
    let container = daemon.api.started(with_identity(request, Some(10)));
    let mut log = daemon.api.follow("r");
    log.until(|entry| entry.data == b"up\n");
    wait::until("the certificate was replaced twice", || (replaced(&daemon, "r") >= 2).then_some(()));
    wait_for_event(&daemon, "r", Kind::IdentityReplaced);
    let certificate = file(&container, "instance.crt").display().to_string();
    openssl(&["x509", "-in", &certificate, "-noout", "-checkend", "0"]);
    let identity = daemon.api.get("r").unwrap().identity.unwrap();
    let serial = openssl(&["x509", "-in", &certificate, "-noout", "-serial"]);
    assert_eq!(serial.trim(), format!("serial={}", identity.serial_number.to_uppercase()));
    daemon.api.stop("r", None).unwrap();
    let reported: Vec<u8> = log.rest().into_iter().flat_map(|entry| entry.data).collect();
    let seen: serde_json::Value = serde_json::from_slice(&reported).unwrap();
    assert_eq!((&seen["mixed"], &seen["missing"]), (&0.into(), &0.into()), "{seen}");
    assert!(seen["certificates"].as_u64().unwrap() >= 3 && seen["rounds"].as_u64().unwrap() > 100, "{seen}");
    let wipe = daemon.api.wait("r").unwrap().result.unwrap().wipe.unwrap();
    assert!(wipe.verified && wipe.files >= 9, "{wipe:?}");
}

#[test]
fn expired_certificate_is_replaced_at_restart() {
    let ca = Ca::new("cell CA");
    let mut daemon = ca.daemon();
    let container = daemon.api.started(with_identity(sleeper("s"), Some(10)));
    let certificate = file(&container, "instance.crt").display().to_string();
    let before = fs::read(&certificate).unwrap();
    daemon.kill();
    wait::until("the certificate has expired", || {
        let words = ["x509", "-in", &certificate, "-noout", "-checkend", "0"];
        (!std::process::Command::new("openssl").args(words).output().unwrap().status.success()).then_some(())
    });
    assert_eq!(fs::read(&certificate).unwrap(), before, "control: the certificate is not renewed without executord");
    daemon.start_again();
    wait::until("the certificate is replaced", || (fs::read(&certificate).unwrap() != before).then_some(()));
    openssl(&["x509", "-in", &certificate, "-noout", "-checkend", "0"]);
    wait_for_event(&daemon, "s", Kind::IdentityReplaced);
}

/// If a CA can no longer sign, the container keeps its certificate. When the CA can sign again, the container gets the
/// next certificate.
#[test]
fn failure_is_reported_and_tried_again() {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    let container = daemon.api.started(with_identity(sleeper("f"), Some(10)));
    let certificate = file(&container, "instance.crt");
    let before = fs::read(&certificate).unwrap();
    fs::rename(ca.path("ca.key"), ca.path("away")).unwrap();
    // The running signer does not need the file any more, so it is killed as well.
    for pid in crate::identity::signers(&daemon) {
        integration::daemon::kill(pid, 9);
    }
    wait_for_event(&daemon, "f", Kind::IdentityNotReplaced);
    let identity = daemon.api.get("f").unwrap().identity.unwrap();
    assert!(identity.problem.contains("ca.key: ") && identity.problem_since.is_some(), "{identity:?}");
    assert_eq!(fs::read(&certificate).unwrap(), before);
    let shown = cli::run(&daemon.socket(), &["inspect", "f"]).stdout;
    assert!(shown.contains("NOT REPLACED"), "{shown}");
    let counted = |value: f64| {
        let is_reported = || (metrics::value(&daemon, "executor_containers_old_certificate") == value).then_some(());
        wait::until("the metrics report the number of old certificates", is_reported);
    };
    counted(1.0);
    fs::rename(ca.path("away"), ca.path("ca.key")).unwrap();
    wait_for_event(&daemon, "f", Kind::IdentityReplaced);
    assert!(daemon.api.get("f").unwrap().identity.unwrap().problem.is_empty());
    counted(0.0);
    assert_ne!(fs::read(&certificate).unwrap(), before);
}
