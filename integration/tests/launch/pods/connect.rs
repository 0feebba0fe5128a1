//! Connections of clients to ports in a pod (`ConnectPort`). See CRI rules G12 and C37 of docs/guides/cri-rules.md.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::process::ExitStatusExt as _;

use executor_client::{Code, Connection, Error, Received};
use executor_core::protocol::{MakeSocket, Reason, ShimCall};
use executor_sys::seqpacket::Seqpacket;
use integration::cli;
use integration::daemon::{Daemon, Setup, kill};
use integration::launcher::Shim;
use integration::request::{RequestBuilder as _, sh};
use integration::wait;
use sha2::{Digest as _, Sha256};

use super::{asked, create, delete, in_pod, pods, stop};

fn open() -> Daemon {
    Setup::default().config("[policy]\nallow_connect = true\n").start()
}

/// Creates a pod that has only a loopback interface, with a member that runs a program for each connection to a port.
fn serve(daemon: &Daemon, pod: &str, programs: &[(u16, &str)]) {
    create(daemon, &asked(pod));
    for (port, program) in programs {
        let id = format!("{pod}-{port}");
        let script = format!(
            "busybox nc -ll -p {port} -e {program} & until grep -q :{port:04X} /proc/net/tcp*; do :; done; echo up; wait"
        );
        daemon.api.up(in_pod(pod, sh(&script).id(&id).memory(256 << 20)));
    }
}

fn connect(daemon: &Daemon, pod: &str, port: u16) -> Result<Connection, Error> {
    daemon.api.block_on(pods(daemon).connect_port(pod, port))
}

fn code(refused: Result<Connection, Error>) -> (Code, String) {
    match refused.err() {
        Some(Error::Refused(refusal)) => (refusal.code, refusal.to_string()),
        other => panic!("{other:?}"),
    }
}

/// Sends bytes and closes the sending direction, and returns all bytes that the port sends until it closes.
fn exchange(daemon: &Daemon, mut connection: Connection, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let input = connection.input();
    let sent = bytes.to_vec();
    let sender = daemon.api.spawn(async move {
        for piece in sent.chunks(64 << 10) {
            input.send(piece.to_vec()).await;
        }
        input.end().await;
    });
    let received = daemon.api.block_on(async {
        let mut all = Vec::new();
        while let Some(received) = connection.next().await? {
            if let Received::Data(bytes) = received {
                all.extend(bytes);
            }
        }
        Ok(all)
    });
    sender.abort();
    received
}

#[test]
fn bytes_pass_in_both_directions() {
    let daemon = open();
    serve(&daemon, "p", &[(7000, "/bin/cat"), (7001, "/usr/bin/sha256sum")]);
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|at| ((at * 31) >> 3) as u8).collect();
    let echoed = exchange(&daemon, connect(&daemon, "p", 7000).unwrap(), &bytes).unwrap();
    assert!(echoed == bytes, "{} of {} bytes", echoed.len(), bytes.len());
    // The program prints only after the end of its input, so the end of one direction does not end the other.
    let digest = exchange(&daemon, connect(&daemon, "p", 7001).unwrap(), &bytes).unwrap();
    let expected: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(String::from_utf8(digest).unwrap(), format!("{expected}  -\n"));
}

/// A connection that is refused or reset affects no other connection, in a hundred attempts.
#[test]
fn broken_connection_ends_alone() {
    let daemon = open();
    serve(&daemon, "p", &[(7000, "/bin/cat"), (7001, "/bin/true")]);
    let lasting = connect(&daemon, "p", 7000).unwrap();
    for _ in 0..100 {
        let (code, message) = code(connect(&daemon, "p", 7002));
        assert_eq!(code, Code::FailedPrecondition, "{message}");
        assert!(message.contains("port 7002 of pod p: Connection refused"), "{message}");
        // `true` exits without reading, so the kernel resets the connection, before or after the program's exit.
        match exchange(&daemon, connect(&daemon, "p", 7001).unwrap(), &[0; 100_000]) {
            Ok(received) => assert_eq!(received, b""),
            Err(Error::Refused(refusal)) => assert_eq!(refusal.code, Code::Aborted, "{refusal}"),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(exchange(&daemon, lasting, b"still here").unwrap(), b"still here");
}

#[test]
fn connection_without_pod_or_policy_fails() {
    let daemon = open();
    serve(&daemon, "p", &[(7000, "/bin/cat")]);
    assert_eq!(code(connect(&daemon, "p", 0)).0, Code::InvalidArgument);
    assert_eq!(code(connect(&daemon, "missing", 80)).0, Code::NotFound);
    assert_eq!(code(connect(&daemon, "p-7000", 7000)).0, Code::NotFound, "a container is no pod");
    stop(&daemon, "p");
    assert_eq!(code(connect(&daemon, "p", 7000)).0, Code::FailedPrecondition);
    let closed = Daemon::start();
    serve(&closed, "p", &[(7000, "/bin/cat")]);
    let (code, message) = code(connect(&closed, "p", 7000));
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.contains("policy.allow_connect = true"), "{message}");
}

/// An open connection does not keep a pod or its network namespace alive. Connections are counted for each pod.
#[test]
fn connections_end_with_their_pod() {
    let daemon = open();
    let before = daemon.footprint();
    serve(&daemon, "p", &[(7000, "/bin/cat")]);
    let mut all: Vec<_> = (0..128).map(|_| connect(&daemon, "p", 7000).unwrap()).collect();
    assert_eq!(code(connect(&daemon, "p", 7000)).0, Code::ResourceExhausted);
    drop(all.pop());
    let again = wait::until_ok("a connection is closed", || connect(&daemon, "p", 7000));
    all.push(again);
    stop(&daemon, "p");
    for mut connection in all {
        let end = daemon.api.block_on(async {
            loop {
                match connection.next().await {
                    Ok(Some(_)) => {}
                    end => return end.map(|_| ()),
                }
            }
        });
        if let Err(error) = end {
            assert!(error.to_string().contains("pod p has stopped") || error.to_string().contains("reset"), "{error}");
        }
    }
    delete(&daemon, "p", true).unwrap();
    daemon.wait_until_back_at(&before);
}

#[test]
fn agent_cli_forwards_local_ports() {
    let daemon = open();
    serve(&daemon, "p", &[(7000, "/bin/cat")]);
    let arguments = ["pod", "port-forward", "p", ":7000", ":7001", "--json"];
    let mut child = cli::command(Some(&daemon.socket()), &arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut forwarded = || {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        (line["address"].as_str().unwrap().to_owned(), line["port"].clone())
    };
    let (echo, refused) = (forwarded(), forwarded());
    assert_eq!((&echo.1, &refused.1), (&7000.into(), &7001.into()));
    for _ in 0..3 {
        // A refused connection is closed, and the other connections continue.
        let mut nothing = String::new();
        TcpStream::connect(&refused.0).unwrap().read_to_string(&mut nothing).unwrap_or_default();
        assert_eq!(nothing, "");
        let mut stream = TcpStream::connect(&echo.0).unwrap();
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut echoed = String::new();
        stream.read_to_string(&mut echoed).unwrap();
        assert_eq!(echoed, "hello");
    }
    kill(child.id() as i32, 2);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr.matches("port 7001 of pod p: Connection refused").count(), 3, "{stderr}");
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    assert!(cli::run(&daemon.socket(), &["pod", "port-forward", "missing", "80"]).status != 0);
}

/// A shim makes a socket in its pod's network only if the launcher's own configuration allows it, so a compromised
/// executord cannot connect. As a control, the shim makes a socket if the operator allows connections.
#[test]
fn shim_checks_its_own_policy() {
    for (daemon, expected) in [(open(), Ok(())), (Daemon::start(), Err(Reason::Denied))] {
        create(&daemon, &asked("p"));
        let socket = daemon.setup().run_dir().join("containers/p/shim.sock");
        let shim = Shim(Seqpacket::connect(&socket).unwrap());
        shim.ask(ShimCall::MakeSocket(MakeSocket { ipv6: false }));
        assert_eq!(shim.answer().map_err(|refused| refused.reason()), expected);
    }
}
