//! Cases for logs, streams and ports.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::engines::kubelet::pods::{StaticPod, WAIT, container, run};
use crate::engines::node::Node;

/// Number of lines in a part of the log. A line is 135 bytes in the file, so a part is larger than the kubelet's limit
/// of 1 MiB.
const LINES: usize = 10_000;
/// Number of parts of the log. The kubelet keeps five files.
const PARTS: usize = 3;

pub(super) fn rotation_loses_nothing(node: &Node) -> anyhow::Result<()> {
    let text = "x".repeat(90);
    let script = format!(
        "i=0; for part in $(seq {PARTS}); do end=$((i + {LINES})); while [ $i -lt $end ]; do echo $i {text}; \
         i=$((i+1)); done; until [ -e /go$part ]; do sleep 0.1; done; done; {WAIT}"
    );
    let pod = run(node, "rotation", json!({"containers": [container("a", &script, json!({}))]}))?;
    pod.until_ready()?;
    let shell = |script: &str| {
        let script = format!("cd /var/log/pods/default_rotation-node_*/a && {script}");
        node.output(Path::new("sh"), ["-c", &script])
    };
    for part in 1..=PARTS {
        let files = format!("{}\n", part + 1);
        let is_rotated = || Ok((shell("ls | grep -vc tmp")? == files).then_some(()));
        node.until(&format!("the log is rotated {part} times"), is_rotated)?;
        pod.execute("a", &format!("touch /go{part}"))?;
    }
    ensure!(shell("ls")?.contains(".gz"), "no rotated log file is compressed:\n{}", shell("ls -l")?);
    let read = "for file in 0.log.*; do case $file in *.gz) zcat $file;; *) cat $file;; esac; done && cat 0.log";
    let all = shell(read)?;
    let lines: Vec<&str> = all.lines().collect();
    ensure!(lines.len() == PARTS * LINES, "the log files have {} lines, expected {}", lines.len(), PARTS * LINES);
    for (number, line) in lines.iter().enumerate() {
        ensure!(line.contains(&format!(" stdout F {number} x")), "line {number} is {line:?}, expected number {number}");
    }
    pod.remove()
}

pub(super) fn host_port_is_published(node: &Node) -> anyhow::Result<()> {
    let ports = json!({"ports": [{"containerPort": 8080, "hostPort": 18080}]});
    let script = "mkdir /w; echo served >/w/index.html; exec httpd -f -p 8080 -h /w";
    let pod = run(node, "port", json!({"containers": [container("a", script, ports)]}))?;
    pod.until_ready()?;
    let served = || Ok(node.http("GET", "http://192.0.2.2:18080/").ok());
    let served = node.until("the port is served", served)?;
    ensure!(served == "served\n", "response of the host port: {served:?}, expected \"served\\n\"");
    pod.remove()?;
    ensure!(
        node.http("GET", "http://192.0.2.2:18080/").is_err(),
        "the host port still responds after the removal of the pod"
    );
    Ok(())
}

pub(super) fn streams_are_connected(node: &Node) -> anyhow::Result<()> {
    let script = "mkdir /w; echo served >/w/index.html; httpd -p 8080 -h /w; exec cat";
    let input = json!({"stdin": true});
    let pod = run(node, "streams", json!({"containers": [container("a", script, input)]}))?;
    pod.until_ready()?;
    for transport in ["spdy", "websocket"] {
        let command = "command=sh&command=-c&command=cat%3Bexit%207";
        let url = pod.url("exec", "a", &format!("{command}&input=1&output=1&error=1"));
        let (printed, code) = stream(node, &["exec", transport, "", &url, "stdin", "stdout", "stderr"], "typed\n")?;
        ensure!(
            printed == "typed\n" && code == Some(7),
            "exec over {transport}: {printed:?} and exit code {code:?}, expected \"typed\\n\" and 7"
        );
        // The size arrives after the process has started.
        let script = "until%20stty%20size%20%7C%20grep%20123%3B%20do%20sleep%200.1%3B%20done";
        let url = pod.url("exec", "a", &format!("command=sh&command=-c&command={script}&input=1&output=1&tty=1"));
        let (printed, _) = stream(node, &["exec", transport, "", &url, "stdin", "stdout", "tty"], "")?;
        ensure!(printed.trim() == "45 123", "terminal size over {transport}: {printed:?}, expected 45 123");
        let printed = forward(node, transport, &pod)?;
        ensure!(printed == "served\n", "port-forward over {transport}: {printed:?}, expected \"served\\n\"");
    }
    let url = pod.url("attach", "a", "input=1&output=1&error=1");
    let mut attached = node.command(&node.streams);
    attached.args(["exec", "websocket", "", &url, "stdin", "stdout", "stderr"]);
    let mut attached = attached.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    attached.stdin.as_mut().context("the child has no standard input")?.write_all(b"attached\n")?;
    let is_logged = || Ok((pod.log("a")? == "attached\n").then_some(()));
    let logged = node.until("the container's program reads the input", is_logged);
    let _ = attached.kill();
    attached.wait()?;
    logged?;
    pod.remove()
}

/// Runs the test client of the streaming endpoints, and returns its output and exit code.
fn stream(node: &Node, arguments: &[&str], input: &str) -> anyhow::Result<(String, Option<i32>)> {
    let mut command = node.command(&node.streams);
    let mut client = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    client.stdin.take().context("the child has no standard input")?.write_all(input.as_bytes())?;
    let done = client.wait_with_output()?;
    Ok((String::from_utf8_lossy(&done.stdout).into_owned(), done.status.code()))
}

/// Returns the response of the pod's port through port-forward.
fn forward(node: &Node, transport: &str, pod: &StaticPod<'_>) -> anyhow::Result<String> {
    use std::io::BufRead as _;
    let url = pod.url("portForward", "", "port=8080");
    let mut command = node.command(&node.streams);
    command.args(["forward", transport, &url, "8080"]);
    let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut port = String::new();
    std::io::BufReader::new(client.stdout.take().context("the child has no standard output")?).read_line(&mut port)?;
    let served = node.http("GET", &format!("http://127.0.0.1:{}/", port.trim()));
    drop(client.stdin.take()); // the client serves until its input ends
    client.wait()?;
    served
}
