//! Tests streams through the URLs of executor-cri: rules C33 to C37.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use executor_cri_api::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use integration::cri::{KubernetesNode, RefusingPort};
use integration::images::Endpoint as _;
use integration::kubernetes_streams::{Channels, PortForward, UNTIL_GO, after_go, response_code};
use rustix::net::sockopt::set_socket_linger;

/// Size of the output, in bytes.
const OUTPUT: usize = 1 << 20;
/// Script that prints [`OUTPUT`] bytes in lines of 64 bytes and exits immediately.
const PRINT: &str =
    "busybox yes 123456789012345678901234567890123456789012345678901234567890123 | busybox head -c 1048576";

fn expected() -> Vec<u8> {
    b"123456789012345678901234567890123456789012345678901234567890123\n".repeat(OUTPUT / 64)
}

/// Returns the output in a log file of the Kubernetes format.
fn logged(path: &str) -> Vec<u8> {
    let mut output = String::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let (tag, content) = line.splitn(3, ' ').nth(2).unwrap().split_once(' ').unwrap();
        output.push_str(content);
        if tag == "F" {
            output.push('\n');
        }
    }
    output.into_bytes()
}

/// CRI complaint X7, rules C32 and C35: all output of a process that exits immediately is in the log file before the
/// container is EXITED, and reaches the clients of attach and exec before their status.
#[test]
fn whole_output_reaches_every_client() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    for attempt in 0..3 {
        let mut config = node.script(&format!("log-{attempt}"), PRINT);
        config.log_path = format!("{attempt}.log");
        let id = node.started(&sandbox, &config);
        let status = node.until_ended(&id);
        let output = logged(&status.log_path);
        assert_eq!(output.len(), OUTPUT);
        assert!(output == expected());
    }
    let mut config = node.script("attached", &format!("read line; {PRINT}"));
    (config.stdin, config.stdin_once) = (true, true);
    let id = node.started(&sandbox, &config);
    let mut runtime = node.runtime();
    let request =
        AttachRequest { container_id: id, stdin: true, stdout: true, stderr: true, ..AttachRequest::default() };
    let url = node.block_on(runtime.attach(request)).unwrap().into_inner().url;
    let mut attached = Channels::open(&url);
    attached.send_input(b"go\n");
    let attached = attached.end().unwrap();
    assert_eq!(attached.stdout.len(), OUTPUT);
    assert!(attached.stdout == expected());
    // Without input the process does not wait for the client. The client reads late and receives the whole output.
    let mut config = node.script("watched", &format!("{UNTIL_GO}; {PRINT}"));
    config.log_path = "watched.log".into();
    let id = node.started(&sandbox, &config);
    let request = AttachRequest { container_id: id.clone(), stdout: true, stderr: true, ..AttachRequest::default() };
    let url = node.block_on(runtime.attach(request)).unwrap().into_inner().url;
    let mut watcher = Channels::open(&url);
    watcher.until_output().unwrap();
    node.exec(&id, &["touch", "/tmp/go"], 10).unwrap();
    let status = node.until_ended(&id);
    for output in [logged(&status.log_path), watcher.end().unwrap().stdout] {
        let output = after_go(&output);
        assert_eq!(output.len(), OUTPUT);
        assert!(output == expected());
    }
    let id = node.started(&sandbox, &node.script("sleeps", "exec sleep 100000"));
    for code in [0, 7] {
        let cmd = ["sh", "-c", &format!("{PRINT}; exit {code}")].map(String::from).to_vec();
        let request = ExecRequest {
            container_id: id.clone(),
            cmd: cmd.clone(),
            stdout: true,
            stderr: true,
            ..ExecRequest::default()
        };
        let url = node.block_on(runtime.exec(request)).unwrap().into_inner().url;
        let executed = Channels::open(&url).end().unwrap();
        assert_eq!((executed.stdout.len(), executed.stderr.len()), (OUTPUT, 0));
        assert!(executed.stdout == expected());
        let status = String::from_utf8(executed.status).unwrap();
        let words = if code == 0 { "Success" } else { "\"message\":\"7\"" };
        assert!(status.contains(words), "{status}");
        let words: Vec<&str> = cmd.iter().map(String::as_str).collect();
        let done = node.exec(&id, &words, 60).unwrap();
        assert!(done.stdout == expected() && done.exit_code == code, "{} bytes", done.stdout.len());
    }
    node.remove_sandbox(&sandbox).unwrap();
}

/// CRI complaint X6, rule C37: 100 refused and 100 reset connections end only their own streams, while another
/// connection of the session continues.
#[test]
fn failed_connections_end_alone() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let [echo, reset] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let refusing = RefusingPort::bind();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let (to_echo, to_reset, to_closed) = (port(&echo), port(&reset), refusing.port());
    std::thread::spawn(move || {
        for mut client in echo.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = client.read(&mut buffer) {
                    client.write_all(&buffer[..length]).unwrap();
                }
            });
        }
    });
    std::thread::spawn(move || {
        for mut client in reset.incoming().flatten() {
            let _ = client.read(&mut [0; 1]);
            set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        }
    });
    let mut runtime = node.runtime();
    let request = PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![to_echo.into()] };
    let url = node.block_on(runtime.port_forward(request)).unwrap().into_inner().url;
    let mut session = PortForward::open(&url);
    let kept = session.connect(to_echo);
    let mut sent = Vec::new();
    for number in 0..100 {
        let refused = session.connect(to_closed);
        let is_over = session.until(refused, |received| received.is_reset || received.is_finished);
        assert!(is_over.is_reset && session.error(refused).is_empty(), "{is_over:?} {}", session.error(refused));
        let broken = session.connect(to_reset);
        session.send(broken, b"x");
        let is_over = session.until(broken, |received| received.is_reset || received.is_finished);
        assert!(is_over.is_reset && session.error(broken).is_empty(), "{is_over:?} {}", session.error(broken));
        let line = format!("line {number}\n");
        session.send(kept, line.as_bytes());
        sent.extend(line.into_bytes());
        session.until(kept, |received| received.bytes == sent);
    }
    session.finish(kept);
    let ended = session.until(kept, |received| received.is_finished);
    assert!(!ended.is_reset && session.error(kept).is_empty());
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C37: port-forward connects to ports in the network namespace of the pod.
#[test]
fn forwarded_ports_are_the_pods() {
    let network = integration::network::Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let node = KubernetesNode::with(network.setup(integration::cri::POLICY));
    let sandbox = node.run_sandbox(&node.networked_sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "exec busybox nc -ll -p 8080 -e /bin/cat"));
    let mut runtime = node.runtime();
    let request = PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![8080] };
    let url = node.block_on(runtime.port_forward(request)).unwrap().into_inner().url;
    integration::wait::until("the port is open", || {
        let open = node.exec(&id, &["busybox", "grep", "-q", ":1F90 .* 0A ", "/proc/net/tcp", "/proc/net/tcp6"], 10);
        (open.ok()?.exit_code == 0).then_some(())
    });
    let mut session = PortForward::open(&url);
    let pair = session.connect(8080);
    session.send(pair, b"hello\n");
    session.until(pair, |received| received.bytes == b"hello\n");
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C33: the URLs of a removed container or pod are revoked. As a control, the URLs of another container stay
/// valid.
#[test]
fn removals_revoke_urls() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let (removed, other) = (
        node.started(&sandbox, &node.script("c", "exec sleep 100000")),
        node.started(&sandbox, &node.script("d", "exec sleep 100000")),
    );
    let mut runtime = node.runtime();
    let mut urls = |id: &str| {
        let exec =
            ExecRequest { container_id: id.into(), cmd: vec!["true".into()], stdout: true, ..ExecRequest::default() };
        let attach = AttachRequest { container_id: id.into(), stdout: true, ..AttachRequest::default() };
        let exec = node.block_on(runtime.exec(exec)).unwrap().into_inner().url;
        [exec, node.block_on(runtime.attach(attach)).unwrap().into_inner().url]
    };
    let (gone, kept) = (urls(&removed), urls(&other));
    let mut runtime = node.runtime();
    let forward = PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![80] };
    let forward = node.block_on(runtime.port_forward(forward)).unwrap().into_inner().url;
    node.remove_container(&removed).unwrap();
    assert_eq!(gone.map(|url| response_code(&url)), ["404", "404"]);
    for url in kept.iter().chain([&forward]) {
        assert_ne!(response_code(url), "404", "{url}");
    }
    node.remove_sandbox(&sandbox).unwrap();
    for url in kept.iter().chain([&forward]) {
        assert_eq!(response_code(url), "404", "{url}");
    }
}
