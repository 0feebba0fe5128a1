//! Tests the server with client-go, the Kubernetes client library (CRI rule C34).
//!
//! `EXECUTOR_STREAMS_CLIENT` names the program of `integration/engines/streams`, which `cargo xtask engines-test`
//! builds before it runs these tests.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use executor_streams::{BoxFuture, Connect, Connection, Limits, Outcome, Process, Streams, Wanted};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

const ALL: Wanted = Wanted { stdin: true, stdout: true, stderr: true, tty: false };
const CLIENT_TIMEOUT: Duration = Duration::from_secs(120);

/// Transports and protocols of client-go.
const VARIANTS: [(&str, &str); 8] = [
    ("spdy", ""),
    ("spdy", "v4.channel.k8s.io"),
    ("spdy", "v3.channel.k8s.io"),
    ("spdy", "v2.channel.k8s.io"),
    ("spdy", "channel.k8s.io"),
    ("websocket", ""),
    ("websocket", "v5.channel.k8s.io"),
    ("websocket", "v4.channel.k8s.io"),
];

fn client() -> PathBuf {
    std::env::var_os("EXECUTOR_STREAMS_CLIENT").expect("run by cargo xtask engines-test").into()
}

async fn server() -> Streams {
    let (streams, server) = Streams::bind(0, Limits::default()).await.expect("a free port");
    tokio::spawn(server.run());
    streams
}

fn spawn(client: &PathBuf, arguments: &[&str]) -> Child {
    Command::new(client)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the client")
}

/// Runs an exec with `stdin` and returns the exit code, stdout and stderr.
async fn exec(
    client: &PathBuf,
    variant: (&str, &str),
    url: &str,
    streams: &[&str],
    stdin: &[u8],
) -> (i32, Vec<u8>, String) {
    let mut child = spawn(client, &[&["exec", variant.0, variant.1, url], streams].concat());
    let mut input = child.stdin.take().expect("stdin");
    let stdin = stdin.to_vec();
    tokio::spawn(async move {
        let _ = input.write_all(&stdin).await;
    });
    let output = timeout(CLIENT_TIMEOUT, child.wait_with_output()).await.expect("in time").expect("output");
    (output.status.code().unwrap_or(-1), output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Copies stdin to stdout, writes the length to stderr, and exits with 7.
async fn echo(process: Process) -> Outcome {
    let Process { mut stdin, mut stdout, mut stderr, .. } = process;
    let mut length = 0;
    while let Some(bytes) = stdin.as_mut().expect("stdin").read().await {
        length += bytes.len();
        stdout.as_mut().expect("stdout").write(&bytes).await.expect("stdout");
    }
    stderr.as_mut().expect("stderr").write(format!("{length} bytes\n").as_bytes()).await.expect("stderr");
    Outcome::Exited(7)
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_every_protocol_echoes() {
    let client = client();
    let streams = server().await;
    let input: Vec<u8> = (0..3_000_000_u32).map(|byte| byte as u8).collect();
    for variant in VARIANTS {
        // Version 1 of SPDY and version 4 of WebSocket do not report the end of stdin.
        if variant.1 == "channel.k8s.io" || variant == ("websocket", "v4.channel.k8s.io") {
            continue;
        }
        let url = streams.exec(ALL, echo).expect("a token");
        let (code, stdout, stderr) = exec(&client, variant, &url, &["stdin", "stdout", "stderr"], &input).await;
        // Versions below 4 report an error text without a code.
        assert!(stdout == input, "{variant:?}: {} bytes: {stderr}", stdout.len());
        assert!(stderr.contains("3000000 bytes\n"), "{variant:?}: {stderr}");
        let json = !matches!(variant.1, "v2.channel.k8s.io" | "v3.channel.k8s.io");
        assert_eq!(code, if json { 7 } else { 255 }, "{variant:?}: {stderr}");
        assert!(stderr.contains('7'), "{variant:?}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_only_every_protocol_succeeds() {
    let client = client();
    let streams = server().await;
    for variant in VARIANTS {
        for outcome in [Outcome::Exited(0), Outcome::Failed("no such program".into())] {
            let wanted = Wanted { stdin: false, ..ALL };
            let result = outcome.clone();
            let handler = move |mut process: Process| async move {
                process.stdout.as_mut().expect("stdout").write(b"out").await.expect("stdout");
                result
            };
            let url = streams.attach(wanted, handler).expect("a token");
            let (code, stdout, stderr) = exec(&client, variant, &url, &["stdout", "stderr"], b"").await;
            // The client of version 1 ends with the error or with the output, whichever it reads first.
            if variant.1 != "channel.k8s.io" || outcome == Outcome::Exited(0) {
                assert_eq!(stdout, b"out", "{variant:?}: {stderr}");
                assert_eq!(code, if outcome == Outcome::Exited(0) { 0 } else { 255 }, "{variant:?}: {stderr}");
                assert_eq!(stderr.contains("no such program"), code != 0, "{variant:?}: {stderr}");
            }
            let (code, _, stderr) = exec(&client, variant, &url, &["stdout", "stderr"], b"").await;
            assert_eq!(code, 255, "a token works once: {variant:?}: {stderr}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_size_reaches_the_handler() {
    let client = client();
    let streams = server().await;
    let wanted = Wanted { stdin: true, stdout: true, stderr: false, tty: true };
    for variant in [("spdy", ""), ("spdy", "v3.channel.k8s.io"), ("websocket", ""), ("websocket", "v4.channel.k8s.io")]
    {
        let handler = |mut process: Process| async move {
            let size = process.resizes.as_mut().expect("a terminal").next().await;
            process.stdout.as_mut().expect("stdout").write(format!("{size:?}").as_bytes()).await.expect("stdout");
            Outcome::Exited(0)
        };
        let url = streams.exec(wanted, handler).expect("a token");
        let (code, stdout, stderr) = exec(&client, variant, &url, &["stdin", "stdout", "tty"], b"").await;
        let stdout = String::from_utf8_lossy(&stdout);
        assert!(stdout.contains("width: 123, height: 45"), "{variant:?}: {stdout}: {stderr}");
        assert_eq!(code, 0, "{variant:?}: {stderr}");
    }
}

/// CRI rule C35: even a slow client receives all output before the status.
#[tokio::test(flavor = "multi_thread")]
async fn big_output_arrives_before_the_status() {
    const CHUNK: usize = 64 << 10;
    const CHUNKS: usize = 1600;
    let client = client();
    let streams = server().await;
    let wanted = Wanted { stdout: true, ..Wanted::default() };
    for variant in [("spdy", ""), ("websocket", "")] {
        let written = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&written);
        let handler = move |mut process: Process| async move {
            let chunk = vec![b'x'; CHUNK];
            for _ in 0..CHUNKS {
                process.stdout.as_mut().expect("stdout").write(&chunk).await.expect("stdout");
                counter.fetch_add(CHUNK, Ordering::Relaxed);
            }
            Outcome::Exited(3)
        };
        let url = streams.exec(wanted, handler).expect("a token");
        let mut child = spawn(&client, &["exec", variant.0, variant.1, &url, "stdout"]);
        sleep(Duration::from_secs(3)).await;
        let buffered = written.load(Ordering::Relaxed);
        assert!(buffered < 24 << 20, "{variant:?}: {buffered} bytes are buffered for a client that does not read");
        let mut length = 0;
        let mut stdout = child.stdout.take().expect("stdout");
        let mut buffer = vec![0; CHUNK];
        loop {
            match timeout(CLIENT_TIMEOUT, stdout.read(&mut buffer)).await.expect("in time").expect("stdout") {
                0 => break,
                read => length += read,
            }
        }
        assert_eq!(length, CHUNK * CHUNKS, "{variant:?}");
        let status = timeout(CLIENT_TIMEOUT, child.wait()).await.expect("in time").expect("a status");
        assert_eq!(status.code(), Some(3), "{variant:?}");
    }
}

/// CRI rule C35: the exit of a client terminates its exec, even if its input is not read.
#[tokio::test(flavor = "multi_thread")]
async fn client_death_drops_the_handler() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let client = client();
    let streams = server().await;
    for variant in [("spdy", ""), ("websocket", "")] {
        for input in [0, 32 << 20] {
            let dropped = Arc::new(AtomicBool::new(false));
            let (started, mut starts) = tokio::sync::mpsc::channel(1);
            let guard = Dropped(Arc::clone(&dropped));
            let handler = move |process: Process| async move {
                let _guard = guard;
                started.send(()).await.expect("the test");
                std::future::pending::<()>().await;
                drop(process);
                Outcome::Exited(0)
            };
            let url = streams.exec(ALL, handler).expect("a token");
            let mut child = spawn(&client, &["exec", variant.0, variant.1, &url, "stdin", "stdout", "stderr"]);
            let mut stdin = child.stdin.take().expect("stdin");
            timeout(CLIENT_TIMEOUT, starts.recv()).await.expect("in time").expect("the handler runs");
            let _ = timeout(Duration::from_secs(2), stdin.write_all(&vec![0; input])).await;
            child.kill().await.expect("a process");
            let wait = async {
                while !dropped.load(Ordering::Relaxed) {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("{variant:?} {input}: not dropped"));
        }
    }
}

/// Connects to a port of 127.0.0.1. While `refuse` is set, all connections are refused.
struct Local {
    port: u16,
    refuse: Arc<AtomicBool>,
}

impl Connect for Local {
    fn connect(&self, _: u16) -> BoxFuture<io::Result<Box<dyn Connection>>> {
        let port = if self.refuse.load(Ordering::Relaxed) { 1 } else { self.port };
        Box::pin(async move { Ok(Box::new(TcpStream::connect(("127.0.0.1", port)).await?) as Box<dyn Connection>) })
    }
}

/// Starts a server that echoes bytes, and returns its port. Resets connections that send `reset`.
async fn echo_server() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            tokio::spawn(async move {
                let mut bytes = vec![0; 5];
                if stream.read_exact(&mut bytes).await.is_ok() && bytes == b"reset" {
                    stream.set_zero_linger().expect("an option");
                    return;
                }
                let _ = stream.write_all(&bytes).await;
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    port
}

async fn request(port: u16, bytes: &[u8]) -> Vec<u8> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the forwarder");
    let (mut read, mut write) = stream.into_split();
    let bytes = bytes.to_vec();
    let sent = tokio::spawn(async move {
        let _ = write.write_all(&bytes).await;
        let _ = write.shutdown().await;
        write
    });
    let mut answer = Vec::new();
    let _ = timeout(CLIENT_TIMEOUT, read.read_to_end(&mut answer)).await.expect("in time");
    drop(sent);
    answer
}

/// CRI rule C37: refused and reset connections end only their own pair, 100 times in one session.
#[tokio::test(flavor = "multi_thread")]
async fn refused_connections_spare_the_session() {
    let client = client();
    let streams = server().await;
    let port = echo_server().await;
    for transport in ["spdy", "websocket"] {
        let refuse = Arc::new(AtomicBool::new(false));
        let local = Local { port, refuse: Arc::clone(&refuse) };
        let url = streams.port_forward(Arc::new(local)).expect("a token");
        let mut child = spawn(&client, &["forward", transport, &url, "8080"]);
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
        timeout(CLIENT_TIMEOUT, stdout.read_line(&mut line)).await.expect("in time").expect("a line");
        let forwarded = line.trim().parse().unwrap_or_else(|_| panic!("{transport}: no port: {line:?}"));
        for round in 0..100 {
            refuse.store(true, Ordering::Relaxed);
            assert_eq!(request(forwarded, b"hello").await, b"", "{transport} {round}");
            refuse.store(false, Ordering::Relaxed);
            assert_eq!(request(forwarded, b"reset").await, b"", "{transport} {round}");
            assert_eq!(request(forwarded, b"hello").await, b"hello", "{transport} {round}");
        }
        let big = vec![b'y'; 5 << 20];
        let (one, two) = tokio::join!(request(forwarded, &big), request(forwarded, &big));
        assert!(one == big && two == big, "{transport}: {} and {} bytes", one.len(), two.len());
        drop(child.stdin.take());
        let status = timeout(CLIENT_TIMEOUT, child.wait()).await.expect("in time").expect("a status");
        assert_eq!(status.code(), Some(0), "{transport}");
    }
}
