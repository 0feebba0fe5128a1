//! Attacks by a member of a pod on its peers.

use anyhow::{Context as _, ensure};
use executor_proto::v1::{CreatePodRequest, RunRequest};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh};

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[Attack {
    name: "pods: a peer's secrets through /proc",
    position: Position::Container,
    claim: "members that share processes read neither files, variables nor memory of each other's processes",
    attack: peer,
    control: own,
}];

const PATH: &str = "/etc/cf-service-bindings/a";
/// Script that reads files protected by the kernel's ptrace access check. `$1` is a process id.
const READ: &str = "cd /proc/$1 || exit; cat root/etc/cf-service-bindings/a; tr '\\0' '\\n' <environ; \
     readlink ns/mnt; cat cwd/etc/cf-service-bindings/a; cat fd/0 </dev/null";

fn member(request: RunRequest) -> RunRequest {
    RunRequest { pod: "p".into(), ..request }
}

fn output(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.run_to_end(member(request));
    let output = daemon.api.output(&container.id);
    format!("{}{}", output.text(), String::from_utf8_lossy(&output.stderr))
}

fn daemon_with_pod() -> anyhow::Result<Daemon> {
    let daemon = Daemon::start();
    let pod = CreatePodRequest { id: "p".into(), share_processes: true, ..CreatePodRequest::default() };
    daemon.api.block_on(daemon.api.client().pods().create(&pod))?;
    Ok(daemon)
}

/// Reads a peer's process as root and as the peer's user.
fn peer(_: Scale) -> anyhow::Result<Outcome> {
    let daemon = daemon_with_pod()?;
    let mut faults = Vec::new();
    for (id, user) in [("root", "0:0"), ("user", "1000:1000")] {
        let victim = sh("echo $$; exec sleep 100000").id(id).user(user).file(PATH, b"SECRET-FILE");
        daemon.api.started(member(victim.env("KEY", "SECRET-ENV")));
        let lines = daemon.api.follow(id).until(|entry| !entry.data.is_empty());
        let pid =
            String::from_utf8_lossy(&lines.last().context("the victim printed no process id")?.data).trim().to_owned();
        for by in ["0:0", "1000:1000"] {
            let seen = output(&daemon, sh(&format!("set -- {pid}; {READ}")).user(by));
            ensure!(
                seen.contains("Permission denied") || seen.contains("SECRET"),
                "the attacker's output shows neither a refusal nor the secret: {seen}"
            );
            if seen.contains("SECRET") || seen.contains("mnt:[") {
                faults.push(format!("user {by} reads a secret of a process of user {user}"));
            }
        }
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), "root and the same user are denied"))
}

/// Control: the script reads another process of the same member.
fn own(_: Scale) -> anyhow::Result<String> {
    let daemon = daemon_with_pod()?;
    // While the child executes its program, its environment is empty.
    let executed = "until grep -q ^sleep /proc/$1/cmdline && grep -q . /proc/$1/environ; do :; done";
    let script = format!("sleep 100000 & set -- $!; {executed}; {READ}");
    let seen = output(&daemon, sh(&script).file(PATH, b"SECRET-FILE").env("KEY", "SECRET-ENV").unmasked());
    ensure!(seen.contains("SECRET-FILE") && seen.contains("SECRET-ENV") && seen.contains("mnt:["), "{seen}");
    Ok("a process of the same member is read".into())
}
