//! GetSecrets: callers that get the values, callers that are refused, the sockets that serve the call, and residue of
//! the call.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_proto::v1::{GetRequest, InfoRequest, RunRequest, UpdateFilesRequest};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Search};
use integration::api::{Api, exit, pid};
use integration::daemon::{Daemon, has_ended, kill};
use integration::request::{RequestBuilder, program, sh};
use integration::rootfs::Rootfs;
use integration::runtime::{TOKEN, get_secrets, socket, token, values, with_token};
use integration::{dist, wait};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const FILE: &str = "/etc/executor-test/pw";
const SINGLE: &str = "/etc/executor-single";

/// Builds a request for a container that runs `script`, with a secret of each kind and a runtime token.
fn secret(id: &str, script: &str) -> RunRequest {
    let request = program("/bin/sh", &["-c", script, "sh", ""]).id(id).runtime_token(TOKEN);
    let request = request.file(FILE, format!("file-of-{id}\n").as_bytes()).file(SINGLE, b"\x00single");
    request.secret_env("PW", &format!("variable-of-{id}")).secret_arg(3, &format!("argument-of-{id}"))
}

fn expected(id: &str) -> Vec<String> {
    vec![
        format!("PW=variable-of-{id}"),
        format!("[3]=argument-of-{id}"),
        format!("{FILE}=file-of-{id}\n"),
        format!("{SINGLE}=\0single"),
    ]
}

const FOREVER: &str = "exec sleep 100000";

/// A container calls GetSecrets with its own token, over the socket in the container, and agent-cli prints the secrets.
/// The runtime directory is read-only in the container and contains nothing else.
#[test]
fn container_reads_its_own_secrets() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    // The host copies agent-cli into the container, because no image has it.
    let script = "echo up; while [ ! -e /tmp/go ]; do sleep 0.05; done; ls /run/executor; touch /run/executor/x && exit 9
        for ask in '--env PW' '--arg 3' '--file /etc/executor-test/pw'; do
          /tmp/agent-cli secrets --token-file /etc/executor-test/token $ask || exit 1; echo; done
        EXECUTOR_TOKEN_FILE=/etc/executor-test/token /tmp/agent-cli secrets --json --socket unix:///run/executor/runtime.sock
        /tmp/agent-cli info --socket /run/executor/runtime.sock";
    for (id, user) in [("as-root", "root"), ("as-user", "vcap")] {
        let request = secret(id, script).user(user).unmasked().memory(1 << 30);
        let init = pid(&daemon.api.up(request));
        // nsenter runs as root of the container's user namespace: no other host id can create a file in the container.
        let mut inside = std::process::Command::new("nsenter");
        inside.args(["--target", &init.to_string(), "--user", "--mount", "--setuid", "0", "--setgid", "0"]);
        inside.args(["sh", "-ec", "cat >/tmp/agent-cli; chmod 755 /tmp/agent-cli; >/tmp/go"]);
        inside.stdin(std::fs::File::open(dist::binary("agent-cli")).unwrap());
        assert!(inside.status().unwrap().success());
        let container = daemon.api.wait(id).unwrap();
        let output = daemon.api.output(id);
        let shown = output.text();
        let rest =
            shown.strip_prefix(&format!("up\nruntime.sock\nvariable-of-{id}\nargument-of-{id}\nfile-of-{id}\n\n"));
        let rest = rest.unwrap_or_else(|| panic!("{output:?}"));
        let json: serde_json::Value = serde_json::from_str(rest).unwrap();
        assert_eq!((&json["environment"][0]["name"], &json["arguments"][0]["index"]), (&"PW".into(), &3.into()));
        assert_eq!((&json["files"][0]["path"], &json["files"][1]["content"]), (&FILE.into(), &"\0single".into()));
        assert_eq!(json["files"].as_array().unwrap().len(), 2, "the response does not contain the token");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("Read-only file system"), "{stderr}");
        assert!(stderr.contains("GetSecrets only") && exit(&container) == Ok(125), "info is not served: {stderr}");
        daemon.api.delete(id, false).unwrap();
    }
    // The first root file system has no /run directory. In the second, /run is a link and cannot be used.
    let request = secret("dir", FOREVER).rootfs(&rootfs.reference());
    let init = pid(&daemon.api.started(request));
    let inside = PathBuf::from(format!("/proc/{init}/root/run/executor/runtime.sock"));
    assert_eq!(values(&with_token(&inside, &token(init)).unwrap()), expected("dir"));
    daemon.api.stop("dir", Some(0)).unwrap();
    daemon.api.delete("dir", true).unwrap();
    assert!(!rootfs.path().join("run").exists(), "a prepared directory is never written to");
    std::fs::create_dir(rootfs.path().join("run")).unwrap();
    rootfs.replace_by_link("run", "tmp");
    let refused = daemon.api.run(secret("link", FOREVER).rootfs(&rootfs.reference())).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("/run is a symbolic link"), "{refused:?}");
    // A container without a token has neither the socket nor the token.
    let init = pid(&daemon.api.started(sh(FOREVER).id("plain").file("f", b"x")));
    assert!(!Path::new(&format!("/proc/{init}/root/run/executor")).exists());
    daemon.api.delete("plain", true).unwrap();
    daemon.wait_until_back_at(&before);
}

/// Root, the control plane, the token of another container and a token after its container's exit are all refused, with
/// the same message.
#[test]
fn other_callers_are_refused_secrets() {
    let daemon = Daemon::start();
    let (main, runtime) = (daemon.socket(), socket(&daemon));
    let one = token(pid(&daemon.api.started(secret("one", FOREVER))));
    let two = token(pid(&daemon.api.started(secret("two", "trap '' TERM; while :; do sleep 1; done"))));
    daemon.api.started(sh(FOREVER).id("plain").secret_env("A", "canary"));
    assert_ne!(one.strip_prefix("one."), two.strip_prefix("two."));
    let missing = |answer: Result<_, (Code, String)>| answer.map(|_| ()).unwrap_err().0 == Code::Unauthenticated;
    let reported = get_secrets(&main, Some("Bearer x"), "").unwrap_err();
    assert_eq!(reported.0, Code::PermissionDenied);
    for socket in [&main, &runtime] {
        assert!(missing(get_secrets(socket, None, "one")) && missing(get_secrets(socket, Some(""), "one")));
        assert_eq!(values(&with_token(socket, &one).unwrap()), expected("one"));
        let scheme = |scheme: &str| get_secrets(socket, Some(&format!("{scheme} {two}")), "two");
        assert_eq!(values(&scheme("bEARER").unwrap()), expected("two"));
        let random = |token: &str| token.rsplit_once('.').unwrap().1.to_owned();
        let bearer = |token: String| format!("Bearer {token}");
        let refused = [
            (bearer(one.clone()), "two"),
            (bearer(format!("two.{}", random(&one))), ""),
            (bearer(format!("one.{}", random(&two))), "one"),
            (bearer(format!("plain.{}", random(&one))), "plain"),
            (bearer(format!("missing.{}", random(&one))), ""),
            (bearer(format!("one.{}", "0".repeat(64))), ""),
            (bearer(one.to_uppercase()), ""),
            (bearer(one[..one.len() - 1].to_owned()), ""),
            (bearer(format!("{one}0")), ""),
            (bearer(format!("../one.{}", random(&one))), ""),
            (bearer("x".repeat(9000)), ""),
            (format!("Basic {one}"), ""),
            (one.clone(), ""),
            ("Bearer".into(), "one"),
        ];
        for (authorization, id) in refused {
            assert_eq!(
                get_secrets(socket, Some(&authorization), id).unwrap_err(),
                reported,
                "{authorization} for {id:?}"
            );
        }
    }
    // A stopping container can still get its secrets. An exited container cannot, whether or not its record still
    // exists.
    daemon.api.stop("two", Some(600_000)).unwrap();
    assert_eq!(values(&with_token(&runtime, &two).unwrap()), expected("two"));
    daemon.api.stop("two", Some(0)).unwrap();
    daemon.api.wait("two").unwrap();
    assert_eq!(with_token(&runtime, &two).unwrap_err(), reported, "after the container's exit");
    daemon.api.delete("two", false).unwrap();
    assert_eq!(with_token(&runtime, &two).unwrap_err(), reported, "after the container was deleted");
    // A new container with the same id has another token.
    let again = token(pid(&daemon.api.started(secret("two", FOREVER))));
    assert_eq!(with_token(&runtime, &two).unwrap_err(), reported);
    assert_eq!(values(&with_token(&runtime, &again).unwrap()), expected("two"));
    // If the shim of a container is killed, its token becomes invalid.
    kill(daemon.record("two").shim.pid, 9);
    daemon.api.wait("two").unwrap();
    assert_eq!(with_token(&runtime, &again).unwrap_err(), reported);
}

/// A token stays valid when executord or the launcher is restarted. The container keeps the runtime directory that it
/// has had since its start.
#[test]
fn token_outlives_daemon_and_launcher() {
    let mut daemon = Daemon::start();
    let init = pid(&daemon.api.started(secret("one", FOREVER)));
    let (token, inside) = (token(init), PathBuf::from(format!("/proc/{init}/root/run/executor/runtime.sock")));
    let asks = || values(&with_token(&inside, &token).unwrap());
    assert_eq!(asks(), expected("one"));
    daemon.kill();
    assert!(UnixStream::connect(&inside).is_err());
    daemon.start_again();
    assert_eq!(asks(), expected("one"));
    let launcher = daemon.launcher().unwrap();
    kill(launcher, 9);
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    assert_eq!(asks(), expected("one"), "no launcher is needed");
    daemon.terminate();
    daemon.start_again();
    assert_eq!(asks(), expected("one"));
}

/// GetSecrets returns the files of the current generation.
#[test]
fn rotated_files_are_answered() {
    let daemon = Daemon::start();
    let token = token(pid(&daemon.api.started(secret("one", FOREVER))));
    let file = |path: &str, content: &[u8]| executor_proto::v1::File {
        path: path.into(),
        content: content.into(),
        public: path == SINGLE,
        ..executor_proto::v1::File::default()
    };
    let update = UpdateFilesRequest {
        id: "one".into(),
        files: vec![file("/etc/executor-test/new", b"added"), file(SINGLE, b"another")],
        removed_paths: vec![FILE.into()],
        ..UpdateFilesRequest::default()
    };
    daemon.api.block_on(daemon.api.rpc().update_files(update)).unwrap();
    let answer = with_token(&socket(&daemon), &token).unwrap();
    let mut reported = values(&answer);
    reported.sort();
    let mut wanted = vec!["/etc/executor-test/new=added".to_owned(), format!("{SINGLE}=another")];
    wanted.extend_from_slice(&expected("one")[..2]);
    wanted.sort();
    assert_eq!(reported, wanted);
    assert!(answer.files.iter().all(|file| file.public == (file.path == SINGLE)));
}

/// The runtime socket serves only GetSecrets, even for root. Every user may connect to it.
#[test]
fn runtime_socket_serves_nothing_else() {
    let daemon = Daemon::start();
    let runtime = socket(&daemon);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&runtime), mode(runtime.parent().unwrap())), (0o666, 0o755));
    let entries = std::fs::read_dir(runtime.parent().unwrap()).unwrap().count();
    assert_eq!(entries, 1, "the directory has only one entry");
    let api = Api::connect(&runtime).unwrap();
    let denied = |code: Code| assert_eq!(code, Code::PermissionDenied);
    denied(api.block_on(api.rpc().info(InfoRequest {})).unwrap_err().code());
    denied(api.run(sh("true")).unwrap_err().code());
    denied(api.block_on(api.rpc().get(GetRequest { id: "x".into() })).unwrap_err().code());
    denied(api.delete("x", true).unwrap_err().code());
    denied(api.events(Default::default()).err().unwrap().code());
    denied(api.logs(Default::default()).err().unwrap().code());
    let mut health = HealthClient::new(api.channel());
    denied(api.block_on(health.check(HealthCheckRequest::default())).unwrap_err().code());
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    let mut reflection = ServerReflectionClient::new(api.channel());
    let asked = tokio_stream::iter([Default::default()]);
    denied(api.block_on(reflection.server_reflection_info(asked)).err().unwrap().code());
    assert_eq!(daemon.api.ids(), [""; 0]);
}

/// If containers open many connections, calls by the control plane and calls by other users on the runtime socket are
/// not blocked. Idle connections are closed.
#[test]
fn many_connections_block_no_other_client() {
    let daemon = Daemon::start();
    let runtime = socket(&daemon);
    let token = token(pid(&daemon.api.started(secret("one", FOREVER))));
    // One user opens more connections than the limit. The last connections are closed immediately, the first
    // connections after a while.
    let idle: Vec<UnixStream> = (0..64).map(|_| UnixStream::connect(&runtime).unwrap()).collect();
    let open = |stream: &UnixStream| {
        stream.set_nonblocking(true).unwrap();
        !matches!((&*stream).read(&mut [0; 64]), Ok(0))
    };
    wait::until("the connections over the limit are closed", || {
        (idle.iter().filter(|stream| open(stream)).count() <= 32).then_some(())
    });
    daemon.api.run_to_end(sh("true").id("busy"));
    assert!(idle.iter().any(open), "control: idle connections are open at first");
    for number in 0..20 {
        daemon.api.run_to_end(sh("true").id(&format!("busy-{number}")));
    }
    wait::until("idle connections are closed", || idle.iter().all(|stream| !open(stream)).then_some(()));
    drop(idle);
    assert_eq!(values(&with_token(&runtime, &token).unwrap()), expected("one"));
}

/// An HTTP/2 client that never acknowledges anything and never closes its connection.
struct Stubborn(UnixStream);

impl Stubborn {
    /// Calls a method with a token that is added to the header table (HPACK: literal with incremental indexing).
    fn call(socket: &Path, method: &str, token: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        let literal = |block: &mut Vec<u8>, head: u8, value: &str| {
            block.push(0x40 | head);
            assert!(value.len() < 127);
            block.push(value.len() as u8);
            block.extend_from_slice(value.as_bytes());
        };
        let mut block = vec![0x83, 0x86]; // POST, http
        literal(&mut block, 4, method); // :path
        literal(&mut block, 1, "localhost"); // :authority
        literal(&mut block, 31, "application/grpc"); // content-type
        literal(&mut block, 23, &format!("Bearer {token}")); // authorization
        block.extend_from_slice(b"\x40\x02te\x08trailers");
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut frame = |kind: u8, flags: u8, on: u8, payload: &[u8]| {
            bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
            bytes.extend_from_slice(&[kind, flags, 0, 0, 0, on]);
            bytes.extend_from_slice(payload);
        };
        frame(4, 0, 0, &[]); // SETTINGS
        frame(1, 4, 1, &block); // HEADERS
        frame(0, 1, 1, &[0; 5]); // DATA: an empty message
        stream.write_all(&bytes).unwrap();
        Self(stream)
    }

    /// Sends a PING.
    fn ping(&mut self) {
        self.0.write_all(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    }

    /// Reads until these bytes have arrived, without a reply to PING or SETTINGS.
    fn read_until(&mut self, wanted: &[u8]) {
        let mut read = Vec::new();
        self.0.set_read_timeout(Some(wait::DEFAULT_TIMEOUT)).unwrap();
        while !read.windows(wanted.len()).any(|window| window == wanted) {
            let mut buffer = [0; 4096];
            let count = self.0.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "closed after {} bytes", read.len());
            read.extend_from_slice(&buffer[..count]);
        }
    }

    /// Returns true if the daemon has closed the connection.
    fn is_closed(&mut self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// One second after a response was read, the daemon's memory contains neither the token nor a value, although the
/// client keeps its connection and acknowledges nothing. A client that does not read its response is disconnected after
/// a while. As a control, an unread response is found in memory.
#[test]
fn daemon_wipes_secrets_response() {
    const METHOD: &str = "/executor.v1.Executor/GetSecrets";
    let daemon = Daemon::start();
    let mut needles = Needles::new().unwrap();
    let mut canary = |label: &str, size| {
        let canary = Canary::random(size).unwrap();
        needles.add(label, canary.as_bytes());
        canary
    };
    let (variable, argument) = (canary("variable", 64), canary("argument", 4096));
    // One file fits into the HTTP/2 window, and the other does not.
    let files = [("small", canary("small", 30_000)), ("large", canary("large", 900_000))];
    let tokens = files.each_ref().map(|(id, file)| {
        let request = program("/bin/sh", &["-c", FOREVER, ""]).id(id).runtime_token(TOKEN);
        let request = request.secret_env("A", variable.as_str()).secret_arg(2, argument.as_str());
        token(pid(&daemon.api.started(request.file(FILE, file.as_bytes()))))
    });
    for token in &tokens {
        needles.add("token", token.rsplit('.').next().unwrap().as_bytes());
    }
    let found = || {
        let mut search = Search::new(&needles);
        search.process(&Process::from_pid(daemon.pid() as u32).unwrap());
        let report = search.report();
        assert!(report.processes == 1 && report.unsearched.is_empty(), "{report:?}");
        let mut labels: Vec<String> = report.hits.iter().map(|hit| hit.label.clone()).collect();
        labels.dedup();
        labels
    };
    daemon.api.info(); // the buffer of Run is overwritten before the next call is read
    assert_eq!(found(), [""; 0], "before");
    for socket in [daemon.socket(), socket(&daemon)] {
        let mut client = Stubborn::call(&socket, METHOD, &tokens[0]);
        client.read_until(&argument.as_bytes()[4000..]); // the last value of the response
        let mut wrong = Stubborn::call(&socket, METHOD, &format!("{}x", tokens[0]));
        // docs/security-claims.md claims that nothing is left after one second.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(found(), [""; 0], "{}", socket.display());
        assert!(!client.is_closed() && !wrong.is_closed());
        let mut client = Stubborn::call(&socket, METHOD, &tokens[1]);
        client.read_until(&files[1].1.as_bytes()[..1000]);
        let other = with_token(&socket, &tokens[1]).unwrap();
        assert!(other.files[0].content == files[1].1.as_bytes(), "other clients are served meanwhile");
        assert!(!found().is_empty(), "control: an unread response is in memory");
        wait::until("the connection is closed", || client.is_closed().then_some(()));
        assert_eq!(found(), [""; 0], "{}", socket.display());
    }
}

/// If a client pauses for longer than a response normally takes, it still gets the whole response, and may send a PING
/// during the pause.
#[test]
fn paused_client_receives_complete_response() {
    let daemon = Daemon::start();
    let content = "0123456789".repeat(3000);
    let request = program("/bin/sh", &["-c", FOREVER]).id("one").runtime_token(TOKEN).file(FILE, content.as_bytes());
    let token = token(pid(&daemon.api.started(request)));
    for socket in [daemon.socket(), socket(&daemon)] {
        let mut client = Stubborn::call(&socket, "/executor.v1.Executor/GetSecrets", &token);
        // The test needs this pause, which is longer than a response normally takes.
        std::thread::sleep(Duration::from_millis(1500));
        client.ping();
        client.read_until(&content.as_bytes()[29_990..]);
    }
}

/// After the container's exit, the memory of the shim, executord and the launcher contains no data of a GetSecrets
/// call.
#[test]
fn nothing_is_left_of_what_was_answered() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let mut batch = integration::residue::ContainerSecrets::new("one");
    daemon.api.started(batch.request());
    let container = batch.wait_until_up(&daemon);
    let path = format!("/proc/{}/root/etc/executor-residue/token", pid(&container));
    let token = std::fs::read_to_string(path).unwrap();
    for _ in 0..3 {
        let answer = with_token(&socket(&daemon), &token).unwrap();
        assert_eq!((answer.environment.len(), answer.arguments.len(), answer.files.len()), (4, 4, 4));
        // This client disconnects during its call.
        drop(Stubborn::call(&socket(&daemon), "/executor.v1.Executor/GetSecrets", &token));
    }
    daemon.api.signal("one", 10).unwrap();
    integration::residue::wait_until_settled(&daemon, "one");
    let report = batch.search(&daemon, &[]);
    assert!(!report.found() && report.unsearched.is_empty(), "{report}");
    daemon.api.delete("one", false).unwrap();
    daemon.wait_until_back_at(&before);
}

/// Only GetSecrets uses the authorization header. On calls by the control plane the header has no effect.
#[test]
fn token_gives_access_to_get_secrets_only() {
    let daemon = Daemon::start();
    let token = token(pid(&daemon.api.started(secret("one", FOREVER))));
    let api = Api::connect(&socket(&daemon)).unwrap();
    let mut request = Request::new(GetRequest { id: "one".into() });
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    assert_eq!(api.block_on(api.rpc().get(request)).unwrap_err().code(), Code::PermissionDenied);
}
