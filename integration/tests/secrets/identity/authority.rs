//! A CA that cannot sign, requests beyond the operator's limits, and a replaced CA.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use executor_proto::v1::{Identity, WritableFiles};
use integration::daemon::{Daemon, kill};
use integration::request::sleeper;
use integration::wait;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::identity::{Ca, file, openssl, with_identity};

fn set_mode(path: &str, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Returns the error of Run with the current CA.
fn refusal(daemon: &Daemon) -> String {
    let refused = daemon.api.run(with_identity(sleeper("bad"), None)).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    refused.message().to_owned()
}

#[test]
fn unusable_ca_is_reported_by_file() {
    let ca = Ca::new("cell CA");
    let (certificate, key) = (ca.path("ca.crt"), ca.path("ca.key"));
    let other = Ca::new("other CA");
    set_mode(&key, 0o640);
    let daemon = ca.daemon();
    let why = refusal(&daemon);
    assert!(why.contains(&format!("{key}: has mode 0640")), "{why}");
    type Change<'a> = &'a dyn Fn();
    let keep = |name: &str| (fs::read(ca.path(name)).unwrap(), ca.path(name));
    let whole = [keep("ca.crt"), keep("ca.key")];
    let write = |path: &str, text: &str| fs::write(path, text).unwrap();
    let leaf = ca.path("leaf.crt");
    let cases: [(Change<'_>, &str, &str); 8] = [
        (&|| fs::remove_file(&key).unwrap(), &key, "No such file"),
        (&|| write(&certificate, "nothing"), &certificate, "has no certificate"),
        (
            &|| fs::write(&certificate, fs::read(other.path("ca.crt")).unwrap()).unwrap(),
            &key,
            "is not the key of the certificate",
        ),
        (&|| drop(openssl(&["ec", "-in", &key, "-out", &key])), &key, "convert it to PKCS#8"),
        (
            &|| {
                let mut old = rcgen::CertificateParams::new(Vec::new()).unwrap();
                old.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
                old.not_after = rcgen::date_time_ymd(2020, 1, 1);
                let pair = rcgen::KeyPair::from_pem(&fs::read_to_string(&key).unwrap()).unwrap();
                write(&certificate, &old.self_signed(&pair).unwrap().pem());
            },
            &certificate,
            "the CA's certificate expired at",
        ),
        (
            &|| {
                let not_a_ca = "basicConstraints=critical,CA:FALSE";
                openssl(&["req", "-x509", "-key", &key, "-subj", "/CN=x", "-addext", not_a_ca, "-out", &leaf]);
                fs::rename(&leaf, &certificate).unwrap();
            },
            &certificate,
            "is not a CA certificate",
        ),
        (&|| write(&key, &"x".repeat(40_000)), &key, "at most 32768 bytes"),
        (
            &|| {
                write(
                    &certificate,
                    &format!("{}{}", fs::read_to_string(&certificate).unwrap(), fs::read_to_string(&key).unwrap()),
                );
            },
            &certificate,
            "only CERTIFICATE",
        ),
    ];
    // The CA must stay invalid between the cases: executord reloads it on its own, and keeps a valid CA that it has
    // loaded.
    for (change, path, expected) in cases {
        change();
        let _ = fs::set_permissions(&key, fs::Permissions::from_mode(0o600)); // the file may have been removed
        let why = refusal(&daemon);
        assert!(why.contains(&format!("{path}: ")) && why.contains(expected), "{expected}: {why}");
        let _ = fs::set_permissions(&key, fs::Permissions::from_mode(0o640));
        whole.iter().for_each(|(content, path)| fs::write(path, content).unwrap());
        set_mode(&key, 0o640);
    }
    set_mode(&key, 0o600);
    daemon.api.started(with_identity(sleeper("good"), None));
    let logged = daemon.setup().logged();
    let text = fs::read_to_string(&key).unwrap();
    let secret = text.lines().nth(1).unwrap();
    assert!(logged.contains("has mode 0640") && !logged.contains(secret), "{logged}");
}

/// All violations are reported together. A node without a CA issues no certificates.
#[test]
fn disallowed_identity_is_refused() {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    let mut request = sleeper("no");
    request.identity = Some(Identity {
        organizational_units: vec!["app:1".into(), "org:1".into()],
        dns_names: vec!["apps.internal.evil".into()],
        ip_addresses: vec!["10.2.0.1".into()],
        spiffe_id: "spiffe://other/x".into(),
        ttl: Some(prost_types::Duration { seconds: 9, nanos: 0 }),
    });
    request.writable_files = Some(WritableFiles::default());
    let refused = daemon.api.run(request).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let found = refused.get_details_bad_request().unwrap().field_violations;
    let fields: Vec<&str> = found.iter().map(|violation| &*violation.field).collect();
    let expected = [
        "identity.ttl",
        "identity.organizational_units[1]",
        "identity.dns_names[0]",
        "identity.ip_addresses[0]",
        "identity.spiffe_id",
        "identity",
    ];
    assert!(fields.ends_with(&expected), "{fields:?}");
    assert!(crate::identity::signers(&daemon).len() <= 1, "nothing was signed");
    let plain = Daemon::start();
    let refused = plain.api.run(with_identity(sleeper("no"), None)).unwrap_err();
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("ca_certificate"), "{refused}");
}

#[test]
fn replaced_ca_signs_broken_one_is_ignored() {
    let ca = Ca::new("first CA");
    let daemon = ca.daemon();
    let issuer = |id: &str| {
        let container = daemon.api.started(with_identity(sleeper(id), None));
        let certificate = file(&container, "instance.crt").display().to_string();
        openssl(&["verify", "-x509_strict", "-CAfile", &ca.path("ca.crt"), &certificate]);
        openssl(&["x509", "-in", &certificate, "-noout", "-issuer"])
    };
    let signs = |name: &str| {
        wait::until(&format!("{name} signs"), || {
            let logged = daemon.setup().logged();
            logged.lines().any(|line| line.contains("the CA can sign") && line.contains(name)).then_some(())
        });
    };
    signs("first CA");
    assert!(issuer("a").contains("OU = one, OU = two, CN = first CA"));
    ca.make("second CA", &["rsa:2048"]); // executord gets no signal
    signs("second CA");
    assert!(issuer("b").contains("CN = second CA"));
    wait::until("the old signer has exited", || (crate::identity::signers(&daemon).len() == 1).then_some(()));
    set_mode(&ca.path("ca.key"), 0o644);
    kill(daemon.pid(), 1);
    wait::until("the broken CA is reported", || daemon.setup().logged().contains("has mode 0644").then_some(()));
    assert!(issuer("c").contains("CN = second CA"), "the current CA continues to sign");
    set_mode(&ca.path("ca.key"), 0o600);
}
