//! The identity files of a container: verified with OpenSSL, and used in a handshake.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use executor_proto::v1::{File, UpdateFilesRequest};
use integration::cli;
use integration::daemon::Setup;
use integration::request::{RequestBuilder as _, program, sh};
use tonic_types::StatusExt as _;

use crate::identity::{Ca, DIR, file, openssl, with_identity};

#[test]
fn openssl_verifies_the_pair_with_its_names() {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    let run = cli::run(
        &daemon.socket(),
        &[
            "run",
            "-d",
            "--id",
            "c-1",
            "--user",
            "1234:1234",
            "--rootfs",
            "host",
            "--identity-ou",
            "app:b",
            "--identity-ou",
            "space:a",
            "--identity-dns",
            "x.apps.internal",
            "--identity-ip",
            "10.1.2.3",
            "--identity-ip",
            "fd00::1",
            "--identity-spiffe",
            "spiffe://cell.example/app/b",
            "--identity-ttl",
            "1h",
            "/bin/sh",
            "-c",
            "echo $CF_INSTANCE_CERT $CF_INSTANCE_KEY; exec sleep 100000",
        ],
    );
    assert_eq!(run.status, 0, "{run:?}");
    let container = daemon.api.get("c-1").unwrap();
    let path = |name: &str| file(&container, name).display().to_string();
    for name in ["instance.crt", "instance.key", "ca.crt"] {
        let metadata = fs::metadata(path(name)).unwrap();
        let owner = fs::metadata(format!("/proc/{}", integration::api::pid(&container))).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o600, owner.uid()), "{name}");
    }
    assert_eq!(fs::read_to_string(path("ca.crt")).unwrap(), fs::read_to_string(ca.path("ca.crt")).unwrap());
    for purpose in ["sslclient", "sslserver"] {
        openssl(&["verify", "-x509_strict", "-purpose", purpose, "-CAfile", &ca.path("ca.crt"), &path("instance.crt")]);
    }
    let reported = openssl(&[
        "x509",
        "-in",
        &path("instance.crt"),
        "-noout",
        "-subject",
        "-serial",
        "-ext",
        "subjectAltName,extendedKeyUsage,keyUsage,basicConstraints",
    ]);
    for part in [
        "subject=OU = app:b, OU = space:a, CN = c-1",
        "DNS:x.apps.internal, URI:spiffe://cell.example/app/b, IP Address:10.1.2.3, IP Address:FD00:0:0:0:0:0:0:1",
        "TLS Web Client Authentication, TLS Web Server Authentication",
        "Digital Signature\n",
        "CA:FALSE",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    let public = |words: &[&str]| openssl(words);
    assert_eq!(
        public(&["x509", "-in", &path("instance.crt"), "-noout", "-pubkey"]),
        public(&["pkey", "-in", &path("instance.key"), "-pubout"])
    );
    let shown = cli::run(&daemon.socket(), &["inspect", "c-1", "--json"]).json();
    let identity = &shown["identity"];
    let serial = identity["serial_number"].as_str().unwrap().to_uppercase();
    assert!(reported.contains(&format!("serial={serial}")), "{identity} {reported}");
    assert_eq!(identity["key_path"], format!("{DIR}/instance.key"));
    let shown = cli::run(&daemon.socket(), &["inspect", "c-1"]).stdout;
    assert!(shown.contains("spiffe://cell.example/app/b") && !shown.contains("PRIVATE KEY"), "{shown}");
    let mut log = daemon.api.follow("c-1");
    let line = log.until(|entry| !entry.data.is_empty()).pop().unwrap().data;
    assert_eq!(String::from_utf8(line).unwrap(), format!("{DIR}/instance.crt {DIR}/instance.key\n"));

    // An update cannot replace the executor's own files.
    let content = b"x".to_vec();
    let update = UpdateFilesRequest {
        id: "c-1".into(),
        files: vec![File { path: format!("{DIR}/instance.key"), content, ..File::default() }],
        removed_paths: vec![format!("{DIR}/ca.crt")],
        ..UpdateFilesRequest::default()
    };
    let refused = daemon.api.update(update).unwrap_err();
    let found = refused.get_details_bad_request().unwrap().field_violations;
    let fields: Vec<&str> = found.iter().map(|violation| &*violation.field).collect();
    assert_eq!(fields, ["files[0].path", "removed_paths[0]"], "{refused}");
}

/// The operator configures the directory and the names of the three files.
#[test]
fn files_have_the_names_of_the_configuration() {
    let ca = Ca::new("cell CA");
    let names =
        "directory = '/run/identity'\ncertificate_name = 'tls.crt'\nkey_name = 'tls.key'\nchain_name = 'chain.pem'\n";
    let daemon = Setup::default().config(&(ca.table() + names)).start();
    let request = sh("cd /run/identity && ls && echo $CF_INSTANCE_CERT $CF_INSTANCE_KEY").id("named");
    daemon.api.run_to_end(with_identity(request, None));
    let expected = "chain.pem\ntls.crt\ntls.key\n/run/identity/tls.crt /run/identity/tls.key\n";
    assert_eq!(daemon.api.output("named").text(), expected);
}

/// A client that presents the certificate to `openssl s_server -Verify`. A response shows that the server has verified
/// the certificate.
const CLIENT: &str = r#"
import os, socket, ssl, subprocess
directory = os.path.dirname(os.environ['CF_INSTANCE_CERT'])
pair = os.environ['CF_INSTANCE_CERT'], os.environ['CF_INSTANCE_KEY']
server = subprocess.Popen(['openssl', 's_server', '-accept', '4433', '-cert', pair[0], '-key', pair[1], '-CAfile',
    directory + '/ca.crt', '-Verify', '1', '-verify_return_error', '-rev', '-quiet'], stdout=subprocess.PIPE)
def connect():
    while True:
        try:
            return socket.create_connection(('127.0.0.1', 4433))
        except ConnectionRefusedError:
            assert server.poll() is None
def ask(with_certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(directory + '/ca.crt')
    if with_certificate:
        context.load_cert_chain(*pair)
    with context.wrap_socket(connect()) as stream:
        stream.sendall(b'ping\n')
        return stream.recv(100)
try:
    print('without', ask(False), flush=True)
except (ssl.SSLError, ConnectionError) as error:
    print('without: refused', flush=True)
print('with', ask(True), flush=True)
server.kill()
"#;

#[test]
fn issued_certificate_is_accepted_by_openssl() {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    let request = program("/usr/bin/python3", &["-c", CLIENT]).id("tls");
    let ended = daemon.api.run_to_end(with_identity(request, None));
    let output = daemon.api.output("tls").text();
    assert!(
        output.contains("without: refused"),
        "control failed: a connection without a certificate is accepted: {output} {ended:?}"
    );
    assert!(output.contains(r"with b'gnip\n'"), "{output} {ended:?}");
}
