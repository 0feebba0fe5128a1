//! Cases for the streams of kubectl: logs, exec, attach, port-forward, cp, debug.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::engines::Kind;
use crate::engines::cluster::kubectl::{Cluster, output};
use crate::engines::cluster::space::{IMAGE, SERVE, Space, WAIT, extend, pod, same};

/// Number of lines of the log that is followed.
const LINES: usize = 2000;

pub(super) fn logs_are_followed(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "logs")?;
    let script = format!("echo first; until [ -e /go ]; do sleep 0.1; done; seq {LINES}; echo error >&2");
    let mut spec = pod(&script, json!({}));
    extend(&mut spec, json!({"restartPolicy": "OnFailure"}));
    space.run("a", &spec)?;
    let mut follow = space.command();
    let mut follow = follow.args(["logs", "--follow", "a"]).stdout(Stdio::piped()).spawn()?;
    let mut followed = BufReader::new(follow.stdout.take().context("the child has no standard output")?);
    let mut line = String::new();
    followed.read_line(&mut line)?;
    same("the first line", &line, "first\n")?;
    space.execute("a", "touch /go")?;
    followed.read_to_string(&mut line)?; // until the container ends
    ensure!(follow.wait()?.success(), "kubectl logs --follow failed");
    ensure!(
        line.lines().count() == LINES + 2,
        "kubectl logs --follow printed {} lines, expected {}",
        line.lines().count(),
        LINES + 2
    );
    // Standard output and standard error have no common order.
    ensure!(line.lines().any(|one| one == "error"), "kubectl logs --follow printed no line of standard error");
    let whole = space.kubectl(&["logs", "a"])?;
    let last = whole.lines().next_back().context("kubectl logs printed nothing")?;
    same("the last line", &space.kubectl(&["logs", "a", "--tail", "1"])?, &format!("{last}\n"))?;
    let stamped = space.kubectl(&["logs", "a", "--timestamps", "--limit-bytes", "40"])?;
    ensure!(
        stamped.starts_with("20") && stamped.len() == 40,
        "kubectl logs --timestamps --limit-bytes 40: {stamped:?}, expected 40 bytes that begin with a year"
    );
    // Read the log of the previous container while the next container runs.
    let script = format!("echo run >>/v/runs; cat /v/runs; [ $(wc -l </v/runs) = 1 ] && exit 1; {WAIT}");
    let mut spec = pod(&script, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    extend(&mut spec, json!({"volumes": [{"name": "v", "emptyDir": {}}]}));
    space.apply("v1", "Pod", "b", json!({"spec": spec}))?;
    space.wait("pod/b", "jsonpath={.status.containerStatuses[0].restartCount}=1")?;
    same("the previous log", &space.kubectl(&["logs", "b", "--previous"])?, "run\n")?;
    space.delete()
}

pub(super) fn exec_attach_and_copies_work(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "streams")?;
    space.run("a", &pod("read line; echo \"read $line\"; exec sleep 1000", json!({"stdin": true})))?;
    let echoed = space.input("typed\n", &["exec", "--stdin", "a", "--", "sh", "-c", "cat; echo error >&2"])?;
    same("the output of exec", &echoed, "typed\n")?;
    let code = space.command().args(["exec", "a", "--", "sh", "-c", "exit 7"]).stderr(Stdio::null()).status()?;
    ensure!(code.code() == Some(7), "kubectl exec: {code}, expected exit code 7");
    let line = format!("{} --namespace streams exec -it a -- sh -c 'stty size; tty'", cluster.program().display());
    let printed = output(&mut cluster.terminal(&line), "")?.replace('\r', "");
    ensure!(printed.contains("/dev/pts/"), "output of tty in a terminal: {printed:?}, expected /dev/pts/*");
    // attach
    let mut attached = space.command();
    let mut attached =
        attached.args(["attach", "--stdin", "--quiet", "a"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    attached.stdin.as_mut().context("the child has no standard input")?.write_all(b"attached\n")?;
    let mut line = String::new();
    BufReader::new(attached.stdout.take().context("the child has no standard output")?).read_line(&mut line)?;
    let _ = attached.kill();
    attached.wait()?;
    same("the output of attach", &line, "read attached\n")?;
    // cp
    let from = cluster.node.path("copied");
    fs::create_dir_all(from.join("directory"))?;
    fs::write(from.join("directory/file"), [7; 300_000])?;
    let directory = from.display().to_string();
    space.kubectl(&["cp", &directory, "a:/tmp/copied"])?;
    space.kubectl(&["cp", "a:/tmp/copied", &format!("{directory}2")])?;
    let back = fs::read(cluster.node.path("copied2/directory/file"))?;
    ensure!(
        back == [7; 300_000],
        "the file that was copied there and back has other content or is not 300000 bytes long: {} bytes",
        back.len()
    );
    space.delete()
}

pub(super) fn ports_are_forwarded(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "ports")?;
    space.deploy("web", 1, &pod(SERVE, json!({})))?;
    let ports = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
    space.apply("v1", "Service", "web", json!({"spec": ports}))?;
    let name = space.pods("web")?[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    for target in ["deployment/web", "service/web"] {
        let port = if target.starts_with('s') { "80" } else { "8080" };
        same("the response of the port", &space.forward(target, port)?, &format!("{name}\n"))?;
    }
    // The API server forwards requests to the Service.
    let path = "/api/v1/namespaces/ports/services/web/proxy/";
    same("the response of the proxy", &cluster.kubectl(&["get", "--raw", path])?, &format!("{name}\n"))?;
    space.delete()
}

pub(super) fn pods_are_debugged(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "debug")?;
    let mut spec = json!({"containers": [{"name": "a", "image": "registry.k8s.io/pause:3.9"}]});
    extend(&mut spec, json!({"terminationGracePeriodSeconds": 1}));
    space.run("a", &spec)?;
    // The image of the pod has no shell. The ephemeral container sees the processes of the pod.
    space.kubectl(&[
        "debug",
        "a",
        "--image",
        IMAGE,
        "--target",
        "a",
        "--container",
        "d",
        "--profile",
        "general",
        "--",
        "sh",
        "-c",
        "ps; exec sleep 1000",
    ])?;
    let is_seen = || Ok(space.kubectl(&["logs", "a", "--container", "d"]).ok().filter(|log| log.contains("/pause")));
    let seen = cluster.until("the ephemeral container prints the processes", is_seen);
    space.described(seen)?;
    same("the output of exec", &space.kubectl(&["exec", "a", "--container", "d", "--", "echo", "hi"])?, "hi\n")?;
    // A pod on the node has the node's root directory as a volume, which executord refuses.
    space.kubectl(&["debug", "node/node", "--image", IMAGE, "--profile", "general", "--quiet", "--", "true"])?;
    if cluster.node.runtime() == Kind::Executor {
        space.until_event("volumes[0].host_path.path: is the root directory")?;
    } else {
        let has_ended = || Ok(space.kubectl(&["get", "pods"])?.contains("Completed").then_some(()));
        cluster.until("the pod on the node has completed", has_ended)?;
    }
    space.delete()
}
