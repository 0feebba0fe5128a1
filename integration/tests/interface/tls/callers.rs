//! Tests which certificates are accepted and which calls each caller may make.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use executor_client::{Code, ListFilter, Run, ServerAddress, Tls};
use executor_proto::v1;
use integration::daemon::Setup;
use integration::request::{RequestBuilder as _, sh};
use integration::tls::{Authority, OPERATOR, TlsDaemon, identity, unnamed};
use integration::wait;
use prost::Message as _;
use rcgen::{BasicConstraints, DnType, IsCa, SanType, date_time_ymd};

const CALLERS: &str = "\
    [[callers]]\nuri = 'spiffe://test/reader'\nmethods = ['read']\n\
    [[callers]]\nou = 'organization:a'\ncn = 'rep'\nmethods = ['executor.v1.Executor/Info']\n";

/// Each unauthorized client gets an error with the reason and no other response. The daemon logs one line for each of
/// these clients.
#[test]
fn strangers_are_refused_with_the_reason() {
    let tls = TlsDaemon::start(CALLERS, "");
    let other = Authority::new("other CA");
    let mut expired = identity(OPERATOR);
    (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let mut future = identity(OPERATOR);
    (future.not_before, future.not_after) = (date_time_ymd(2090, 1, 1), date_time_ymd(2091, 1, 1));
    let mut half = unnamed();
    half.distinguished_name.push(DnType::CommonName, "rep");
    half.distinguished_name.push(DnType::OrganizationalUnitName, "organization:b\u{1b}[31m");
    let mut two = identity(OPERATOR);
    two.subject_alt_names.push(SanType::URI("spiffe://test/x".try_into().unwrap()));
    let mut authority = identity(OPERATOR);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = &tls.authority;
    let table = [
        ("other", other.caller(OPERATOR), "does not trust the CA", "not signed by a CA of listen.tcp.client_ca"),
        ("expired", own.issue(&expired), "is expired or not valid yet", "the caller's certificate is expired"),
        ("future", own.issue(&future), "is expired or not valid yet", "the caller's certificate is not valid yet"),
        (
            "unnamed",
            own.issue(&unnamed()),
            "entry with an identity of",
            "matches the caller's certificate (no identity)",
        ),
        ("stranger", own.caller("spiffe://test/x"), "entry with an identity of", "(uri \"spiffe://test/x\")"),
        (
            "authority",
            own.issue(&authority),
            "executord refused",
            "the caller's certificate is a CA certificate (CA:TRUE)",
        ),
        (
            "two",
            own.issue(&two),
            "entry with an identity of",
            "uri \"spiffe://test/operator\", uri \"spiffe://test/x\"",
        ),
        ("half", own.issue(&half), "entry with an identity of", "cn \"rep\", ou \"organization:b\\u{1b}[31m\""),
    ];
    for (number, (name, issued, client, server)) in table.iter().enumerate() {
        let error = tls.connect(&tls.files(name, issued)).err().unwrap().to_string();
        assert!(error.contains(client) && error.contains(&tls.address), "{name}: {error}");
        let lines = wait::until("the refusal is logged", || Some(tls.refusals()).filter(|lines| lines.len() > number));
        assert!(lines.len() == number + 1 && lines[number].contains(server), "{name}: {lines:?}");
    }
    // If the caller does not trust the node, the node receives no call either.
    let mut untrusting = tls.operator();
    untrusting.ca = tls.daemon.setup().home().join("other.crt");
    std::fs::write(&untrusting.ca, other.pem()).unwrap();
    let error = tls.connect(&untrusting).err().unwrap().to_string();
    assert!(error.contains("executord's certificate is not signed by a CA of"), "{error}");
    let mut named = tls.operator();
    named.server_name = Some("node-2".to_owned());
    let error = tls.connect(&named).err().unwrap().to_string();
    assert!(error.contains("executord's certificate is not for \"node-2\""), "{error}");
    let client = tls.connect(&tls.operator()).unwrap();
    assert_eq!(client.address(), &ServerAddress::Tcp(tls.address.clone()), "control failed");
}

#[test]
fn caller_calls_what_its_entries_allow() {
    let tls = TlsDaemon::start(CALLERS, "");
    let api = &tls.daemon.api;
    let reader = tls.connect(&tls.files("reader", &tls.authority.caller("spiffe://test/reader"))).unwrap();
    let mut rep = unnamed();
    rep.distinguished_name.push(DnType::CommonName, "rep");
    rep.distinguished_name.push(DnType::OrganizationalUnitName, "organization:a");
    let rep = tls.connect(&tls.files("rep", &tls.authority.issue(&rep))).unwrap();
    let operator = tls.connect(&tls.operator()).unwrap();
    let run = |id: &str| Run::new("host", "/bin/true").id(id).memory_bytes(64 << 20);
    api.block_on(async {
        assert!(reader.is_serving().await.unwrap());
        reader.info().await.unwrap();
        assert_eq!(reader.list(&ListFilter::default()).await.unwrap().len(), 0);
        let denied = reader.run(&run("a")).await.err().unwrap();
        assert_eq!(denied.code(), Some(Code::PermissionDenied));
        let reported = denied.to_string();
        for part in ["spiffe://test/reader", "/executor.v1.Executor/Run", "[[callers]]"] {
            assert!(reported.contains(part), "{reported}");
        }
        rep.info().await.unwrap();
        for denied in [rep.list(&ListFilter::default()).await.err(), rep.is_serving().await.err()] {
            assert_eq!(denied.unwrap().code(), Some(Code::PermissionDenied));
        }
        operator.run(&run("a")).await.unwrap();
        operator.wait("a").await.unwrap();
        operator.delete("a", false).await.unwrap();
    });
    // The unix socket still works.
    assert!(api.run(sh("exit 0").id("b")).unwrap().created);
}

/// A Python client with grpcio over TLS finds the interface by reflection and controls the whole lifecycle of a
/// container.
#[test]
fn python_client_uses_reflection_over_tls() {
    let tls = TlsDaemon::start(CALLERS, "");
    let python = std::env::var_os("EXECUTOR_PYTHON").expect("EXECUTOR_PYTHON is not set: run `cargo xtask test`");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/client.py");
    let client = |files: &Tls| {
        let mut command = Command::new(&python);
        command.arg(&script).arg(&tls.address).args([&files.certificate, &files.key, &files.ca]).output().unwrap()
    };
    let lived = client(&tls.operator());
    assert!(lived.status.success(), "{}", String::from_utf8_lossy(&lived.stderr));
    let reported: serde_json::Value = serde_json::from_slice(&lived.stdout).unwrap();
    assert_eq!(reported["log"]["LOG_STREAM_STDOUT"], "vcap\nfrom python\nand one more\n");
    assert_eq!(
        (&reported["container"]["result"]["exit"]["code"], &reported["refused"]["code"]),
        (&7.into(), &"INVALID_ARGUMENT".into())
    );
    // A caller with read permission can read the interface and run nothing.
    let read = client(&tls.files("reader", &tls.authority.caller("spiffe://test/reader")));
    let why = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(!read.status.success() && why.contains("PERMISSION_DENIED") && why.contains("Executor/Run"), "{why}");
}

/// Python's grpcio over TLS, with and without a permitted certificate.
#[test]
fn python_client_calls_over_tls() {
    let tls = TlsDaemon::start(CALLERS, "");
    let python = std::env::var_os("EXECUTOR_PYTHON").expect("EXECUTOR_PYTHON is not set: run `cargo xtask test`");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/calls.py");
    let call = |name: &str, uri: &str, method: &str, request: &[u8]| {
        let files = tls.files(name, &tls.authority.caller(uri));
        let mut command = Command::new(&python);
        command.arg(&script).arg(&tls.address).args([&files.certificate, &files.key, &files.ca]);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let line = format!("{method} {}\n", BASE64_STANDARD.encode(request));
        child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        answer.trim_end().to_owned()
    };
    let run = sh("exit 0").id("python").encode_to_vec();
    let (info, of_run) = ("/executor.v1.Executor/Info", "/executor.v1.Executor/Run");
    assert_eq!(call("operator", OPERATOR, of_run, &run), "OK");
    tls.daemon.api.wait("python").unwrap();
    assert_eq!(call("reader", "spiffe://test/reader", info, &v1::InfoRequest::default().encode_to_vec()), "OK");
    let denied = call("reader", "spiffe://test/reader", of_run, &run);
    assert!(denied.starts_with("PERMISSION_DENIED") && denied.contains(of_run), "{denied}");
    let stranger = call("stranger", "spiffe://test/x", info, &[]);
    assert!(stranger.starts_with("UNAVAILABLE"), "{stranger}");
}

/// A provider rule names a caller's certificate. Only this caller may refer to the paths of the rule: no other caller
/// may, and neither may root on this machine.
#[test]
fn provider_rule_is_limited_to_certificate() {
    let setup = Setup::default();
    let secrets = setup.home().join("secrets");
    std::fs::create_dir(&secrets).unwrap();
    std::fs::set_permissions(&secrets, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(secrets.join("password"), "right").unwrap();
    let more = format!(
        "[[callers]]\nuri = 'spiffe://test/other'\nmethods = ['read', 'run']\n[[secret_providers]]\nname = 'shelf'\n\
         type = 'directory'\npath = '{}'\nallow = [{{ uri = '{OPERATOR}', paths = ['password'] }}]\n",
        secrets.display()
    );
    let tls = TlsDaemon::new(setup, &more, "");
    let from = v1::SecretReference { provider: "shelf".into(), path: "password".into(), ..Default::default() };
    let file = v1::File { path: "password".into(), from: Some(from), ..Default::default() };
    let request = |id: &str| {
        let mut request = sh("[ \"$(cat /etc/cf-service-bindings/password)\" = right ]").id(id);
        request.volume_mounted_files.push(file.clone());
        request
    };
    let api = &tls.daemon.api;
    let other = tls.connect(&tls.files("other", &tls.authority.caller("spiffe://test/other"))).unwrap();
    let by_other = api.block_on(other.rpc().run(request("other"))).map(drop);
    let by_root = api.run(request("root")).map(drop);
    for (refused, who) in [(by_other, "spiffe://test/other"), (by_root, "uid 0")] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        assert!(refused.message().contains(who) && refused.message().contains("secret_providers.allow"), "{refused}");
    }
    let operator = tls.connect(&tls.operator()).unwrap();
    api.block_on(operator.rpc().run(request("operator"))).unwrap();
    assert_eq!(integration::api::exit(&api.wait("operator").unwrap()), Ok(0));
}

/// openssl as the client: TLS 1.2 is refused, TLS 1.3 without a certificate gets no data, and TLS 1.3 with a
/// certificate gets HTTP/2.
#[test]
fn only_tls13_with_certificate_is_accepted() {
    let tls = TlsDaemon::start("", "");
    let files = tls.operator();
    let s_client = |timeout: u64, more: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-alpn", "h2", "-connect", &tls.address, "-CAfile"]).arg(&files.ca).args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Keep the input open, so that the connection stays open and receives data after the handshake.
        let input = child.stdin.take().unwrap();
        let reported = wait::within(std::time::Duration::from_secs(timeout), || match child.try_wait().unwrap() {
            Some(_) => Ok(()),
            None => Err(()),
        });
        drop((input, reported));
        let output = child.wait_with_output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    };
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (certificate, key) = (path(&files.certificate), path(&files.key));
    let old = s_client(30, &["-tls1_2", "-cert", &certificate, "-key", &key]);
    assert!(old.contains("alert protocol version") && old.contains("Cipher is (NONE)"), "{old}");
    let without = s_client(30, &["-tls1_3"]);
    assert!(without.contains("alert certificate required"), "{without}");
    let good = s_client(2, &["-tls1_3", "-cert", &certificate, "-key", &key]);
    assert!(good.contains("ALPN protocol: h2") && good.contains("Verify return code: 0"), "{good}");
    assert!(!good.contains("alert"), "{good}");
}

/// If a key is readable by other users, a key belongs to another certificate, or a file is missing, the start fails
/// with the reason.
#[test]
fn unusable_files_end_the_start() {
    let started = |spoil: &dyn Fn(&Path)| {
        let setup = Setup::default();
        let dir = setup.home().join("tls");
        std::fs::create_dir(&dir).unwrap();
        let authority = Authority::new("test CA");
        integration::tls::write_pair(&dir, &authority.node("node"));
        std::fs::write(dir.join("ca.crt"), authority.pem()).unwrap();
        spoil(&dir);
        let dir = dir.display();
        let setup = setup.config(&format!(
            "[listen.tcp]\naddress = '127.0.0.1:0'\ncertificate = '{dir}/tls.crt'\nkey = '{dir}/tls.key'\n\
             client_ca = '{dir}/ca.crt'\n[[callers]]\ncn = 'a'\nmethods = ['read']\n"
        ));
        assert!(!setup.command().status().unwrap().success());
        let launcher_ended = || integration::daemon::launcher_of(&setup.run_dir()).is_none().then_some(());
        wait::until("the launcher that it started has exited", launcher_ended);
        setup.logged()
    };
    let readable = started(&|dir| {
        std::fs::set_permissions(dir.join("tls.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    });
    assert!(readable.contains("tls.key: has mode 0644: other users must have no access"), "{readable}");
    let other = started(&|dir| {
        let other = Authority::new("x").node("y");
        std::fs::write(dir.join("tls.crt"), other.certificate).unwrap();
    });
    assert!(other.contains("tls.key: is not the key of"), "{other}");
    let missing = started(&|dir| std::fs::remove_file(dir.join("ca.crt")).unwrap());
    assert!(missing.contains("ca.crt: No such file or directory"), "{missing}");
}
