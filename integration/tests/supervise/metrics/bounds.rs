//! A scrape is limited, and blocks no other call.

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{daemon, scrape, send, socket, value};

#[test]
fn requests_are_bounded() {
    let daemon = daemon("");
    let of = |request: &str| send(&daemon, request);
    assert_eq!(of("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status, 404);
    let post = of("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert!(post.status == 405 && post.head.contains("allow: get, head"), "{post:?}");
    let head = of("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.status == 200 && head.body.is_empty() && head.head.contains("text/plain; version=0.0.4"), "{head:?}");
    let long = of(&format!("GET /metrics HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(20_000)));
    assert_eq!(long.status, 431, "{long:?}");
    let many: String = (0..100).map(|i| format!("X{i}: 1\r\n")).collect();
    assert_eq!(of(&format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{many}\r\n")).status, 431);
    assert_eq!(of("nonsense\r\n\r\n").status, 400);
    // Silent clients do not occupy slots permanently: their connections are closed, and other clients are served.
    let silent: Vec<UnixStream> = (0..10)
        .map(|_| {
            let mut stream = UnixStream::connect(socket(&daemon)).unwrap();
            stream.write_all(b"GET /metr").unwrap();
            stream
        })
        .collect();
    daemon.api.run_to_end(sh("exit 0").id("meanwhile"));
    assert!(scrape(&daemon, "*/*").contains("executor_build_info"));
    drop(silent);
}

/// If there are more containers than `max_containers` and the shim of one container does not respond, a scrape returns
/// the other series, and calls still return.
#[test]
fn hanging_shim_blocks_neither_scrape_nor_calls() {
    let daemon = daemon("containers = \"on\"\nmax_containers = 1");
    for id in ["a", "b"] {
        daemon.api.started(sleeper(id));
    }
    let text = scrape(&daemon, "text/plain");
    assert_eq!(value(&text, "executor_containers_unreported"), Some(1.0));
    assert_eq!(text.matches("executor_container_processes{").count(), 1, "{text}");
    assert_eq!(value(&text, "executor_container_processes{container=\"a\"}"), Some(1.0));
    assert_eq!(value(&text, "executor_containers_unanswered"), Some(0.0));

    let shim = Pid::from_raw(daemon.record("a").shim.pid);
    kill(shim, Signal::SIGSTOP).unwrap();
    let text = wait::until("the scrape omits the stopped shim", || {
        let text = scrape(&daemon, "text/plain");
        (value(&text, "executor_containers_unanswered") == Some(1.0)).then_some(text)
    });
    assert!(!text.contains("executor_container_processes{") && text.contains("executor_containers{"), "{text}");
    daemon.api.run_to_end(sh("exit 0").id("meanwhile"));
    kill(shim, Signal::SIGCONT).unwrap();
    wait::until("the shim responds again", || {
        value(&scrape(&daemon, "text/plain"), "executor_container_processes{container=\"a\"}")
    });
}
