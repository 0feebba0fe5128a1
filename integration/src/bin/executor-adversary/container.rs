//! Attacks by a process in a container with the default profile. The process uses up resources of the host and of other
//! containers, or hinders a wipe.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_proto::v1::RunRequest;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, program, update};
use integration::runtime::TOKEN;

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "wipe: a lease on a secret file",
        position: Position::Container,
        claim: "a process that has a lease on a secret file delays neither a rotation nor a stop",
        attack: lease,
        control: lease_control,
    },
    Attack {
        name: "host: all asynchronous requests",
        position: Position::Container,
        claim: "a container can use none of the host's asynchronous requests",
        attack: requests,
        control: requests_control,
    },
    Attack {
        name: "host: file locks",
        position: Position::Container,
        claim: "a file lock uses no more of the host's memory than documented: 256 bytes",
        attack: locks,
        control: locks_control,
    },
    Attack {
        name: "host: netlink sockets that no process reads",
        position: Position::Container,
        claim: "a netlink socket uses no more of the host's memory than documented: 2.5 times net.core.rmem_max",
        attack: netlink,
        control: netlink_control,
    },
    Attack {
        name: "callers: GetSecrets of many users",
        position: Position::Container,
        claim: "the users of a container together cannot keep another container from its secrets",
        attack: starved,
        control: starved_control,
    },
    Attack {
        name: "callers: GetSecrets during a flood of connections",
        position: Position::Container,
        claim: "a container that connects as fast as possible cannot keep another container from its secrets",
        attack: flooded,
        control: starved_control,
    },
];

const LEASE: &str = include_str!("probes/lease.py");
const REQUESTS: &str = include_str!("probes/requests.py");
const LOCKS: &str = include_str!("probes/locks.py");
const NETLINK: &str = include_str!("probes/netlink.py");
const CROWD: &str = include_str!("probes/crowd.py");
const FLOOD: &str = include_str!("probes/flood.py");
const GREETING: &str = include_str!("probes/greeting.py");

/// Memory limit in bytes of a container that attacks the host's memory.
const MEMORY: u64 = 48 << 20;
/// Memory limit in bytes of a container with many processes.
const CROWD_MEMORY: u64 = 1 << 30;
/// Timeout of a rotation, and of a forced stop.
const REACTION_TIMEOUT: Duration = Duration::from_secs(5);

fn python(id: &str, script: &str, arguments: &[&str]) -> RunRequest {
    program("/usr/bin/python3", &[&["-c", script], arguments].concat()).id(id).memory(MEMORY)
}

/// Waits until a script has printed a line that begins with `word`, and returns that line.
fn wait_for_line(daemon: &Daemon, id: &str, word: &str) -> String {
    let entries = daemon.api.follow(id).until(|entry| String::from_utf8_lossy(&entry.data).starts_with(word));
    entries.last().map(|entry| String::from_utf8_lossy(&entry.data).trim().to_owned()).unwrap_or_default()
}

/// Runs a script on the host without any protection and returns its output.
fn on_the_host(script: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("/usr/bin/python3").args(["-c", script]).args(arguments).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Rotates a file on which the container holds a lease, waits until the old content must be gone, and stops the
/// container.
pub(crate) fn lease(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let path = "/etc/cf-service-bindings/a";
    let (mut reported, mut faults) = (Vec::new(), Vec::new());
    for attempt in 0..scale.pick(1, 5) {
        let id = format!("c{attempt}");
        let container = daemon.api.started(python(&id, LEASE, &[path, "stay"]).file("a", b"old"));
        let said = wait_for_line(&daemon, &id, "lease");
        let fd = said.rsplit(' ').next().unwrap_or_default();
        let old = format!("/proc/{}/fd/{fd}", integration::api::pid(&container));
        ensure!(std::fs::read(&old)? == b"old", "{old} does not contain the old value");
        daemon.api.update(update(&id, &[("a", b"new")]))?;
        let rotated = Instant::now();
        while rotated.elapsed() < REACTION_TIMEOUT && std::fs::read(&old)? == b"old" {
            std::thread::sleep(Duration::from_millis(10)); // poll, because a wipe is not reported
        }
        let (wiped, begun) = (rotated.elapsed(), Instant::now());
        daemon.api.delete(&id, true)?;
        let ended = begun.elapsed();
        let text = format!(
            "{said}: the old value was wiped after {:.1} s, the stop took {:.1} s",
            wiped.as_secs_f64(),
            ended.as_secs_f64()
        );
        if wiped >= REACTION_TIMEOUT || ended >= REACTION_TIMEOUT { faults.push(text) } else { reported.push(text) }
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported.join("; ")))
}

/// Control: on the host, the script gets a lease on its own file, and a non-blocking writer is refused.
pub(crate) fn lease_control(_: Scale) -> anyhow::Result<String> {
    let path = tempfile::NamedTempFile::new()?.into_temp_path(); // not open in any process
    let said = on_the_host(LEASE, &[path.to_str().context("the path is not UTF-8")?, "open"])?;
    ensure!(said.contains("lease taken") && said.contains("writer waits"), "{said}");
    Ok("on the host a lease is acquired, and a writer waits for it".into())
}

pub(crate) fn requests(_: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    daemon.api.started(python("c", REQUESTS, &["all"]));
    let taken = wait_for_line(&daemon, "c", "requests");
    let ours = on_the_host(REQUESTS, &["one"])?;
    let reported = format!("in the container: {taken}; then on the host: {ours}");
    Ok(Outcome::new((!ours.contains("taken 1,")).then(|| reported.clone()), reported))
}

/// Control: on the host, one process uses all request slots, and another process gets none.
pub(crate) fn requests_control(_: Scale) -> anyhow::Result<String> {
    let said = on_the_host(REQUESTS, &["both"])?;
    ensure!(said.contains("another: EAGAIN"), "{said}");
    Ok(format!("on the host: {said}"))
}

/// Returns the unreclaimable kernel memory of the whole host, in bytes.
fn unreclaimable() -> anyhow::Result<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let line =
        meminfo.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).context("/proc/meminfo has no SUnreclaim")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Runs a script, and measures the growth of kernel memory while the script holds its resources. Returns the amount and
/// the growth.
fn growth(script: &str, amount: u64) -> anyhow::Result<(u64, u64)> {
    let daemon = Daemon::start();
    let before = unreclaimable()?;
    daemon.api.started(python("c", script, &[&amount.to_string()]));
    let said = wait_for_line(&daemon, "c", "taken");
    let grown = unreclaimable()?.saturating_sub(before);
    daemon.api.delete("c", true)?;
    let taken = said.split(' ').nth(1).and_then(|count| count.parse().ok()).context(said)?;
    Ok((taken, grown))
}

/// Maximum kernel memory for a lock, in bytes.
const LOCK_MAX: u64 = 256;

pub(crate) fn locks(scale: Scale) -> anyhow::Result<Outcome> {
    let (taken, grown) = growth(LOCKS, scale.pick(100_000, 400_000))?;
    // Other processes of the host also allocate and free memory.
    let reported = format!("{taken} locks used {:.1} MB: {} bytes each", grown as f64 / 1e6, grown / taken.max(1));
    Ok(Outcome::new((grown > taken * LOCK_MAX + (8 << 20)).then(|| reported.clone()), reported))
}

/// Control: the locks are in the kernel's list of locks.
pub(crate) fn locks_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let before = std::fs::read_to_string("/proc/locks")?.lines().count();
    daemon.api.started(python("c", LOCKS, &["3000"]));
    wait_for_line(&daemon, "c", "taken");
    let more = std::fs::read_to_string("/proc/locks")?.lines().count().saturating_sub(before);
    ensure!(more > 2900, "the kernel lists {more} additional locks, expected more than 2900");
    Ok(format!("the kernel lists {more} additional locks"))
}

fn receive_max() -> anyhow::Result<u64> {
    Ok(std::fs::read_to_string("/proc/sys/net/core/rmem_max")?.trim().parse()?)
}

pub(crate) fn netlink(_: Scale) -> anyhow::Result<Outcome> {
    // Enough sockets for about 64 MB in total, independent of this host's limit for each socket.
    let sockets = ((64 << 20) / (2 * receive_max()?)).clamp(4, 200);
    let (taken, grown) = growth(NETLINK, sockets)?;
    let reported =
        format!("{taken} sockets used {:.1} MB: {:.2} MB each", grown as f64 / 1e6, grown as f64 / 1e6 / taken as f64);
    Ok(Outcome::new((grown > taken * receive_max()? * 5 / 2 + (8 << 20)).then(|| reported.clone()), reported))
}

/// Control: a socket's unread messages are in the kernel's list of sockets.
pub(crate) fn netlink_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let container = daemon.api.started(python("c", NETLINK, &["2"]));
    wait_for_line(&daemon, "c", "taken");
    let table = std::fs::read_to_string(format!("/proc/{}/net/netlink", integration::api::pid(&container)))?;
    let most = table.lines().filter_map(|line| line.split_whitespace().nth(4)?.parse::<u64>().ok()).max();
    ensure!(
        most.is_some_and(|most| most > 100_000),
        "the fullest socket has {most:?} bytes, expected more than 100000"
    );
    Ok(format!("the kernel reports {} bytes waiting in one socket", most.unwrap_or(0)))
}

/// Checks that a container is served while another container uses as many resources as possible.
pub(crate) fn starved(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let users = scale.pick("8", "100");
    // Each user is one process; the number of processes is not the limit under test.
    daemon.api.started(python("crowd", CROWD, &[users]).runtime_token(TOKEN).memory(CROWD_MEMORY));
    let crowd = wait_for_line(&daemon, "crowd", "connected");
    daemon.api.started(python("victim", GREETING, &[]).runtime_token(TOKEN));
    let greeted = wait_for_line(&daemon, "victim", "greeting");
    let reported = format!("{crowd}; another container: {greeted}");
    Ok(Outcome::new((greeted != "greeting received").then(|| reported.clone()), reported))
}

/// Control: without the other containers the greeting is received, and a container without a token receives none.
pub(crate) fn starved_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    daemon.api.started(python("victim", GREETING, &[]).runtime_token(TOKEN));
    let greeted = wait_for_line(&daemon, "victim", "greeting");
    ensure!(greeted == "greeting received", "{greeted}");
    daemon.api.started(python("none", GREETING, &[]));
    let alone = wait_for_line(&daemon, "none", "greeting");
    ensure!(alone != "greeting received", "a container without a token receives the greeting");
    let socket = integration::runtime::socket(&daemon);
    Ok(format!(
        "without the other containers the greeting is received; the socket has mode {:o}",
        std::fs::metadata(socket)?.mode() & 0o777
    ))
}

/// Connects to the runtime socket from one container while another container floods the socket with connections.
pub(crate) fn flooded(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let users = scale.pick("4", "64");
    daemon.api.started(python("flood", FLOOD, &[users]).runtime_token(TOKEN).memory(CROWD_MEMORY));
    let flood = wait_for_line(&daemon, "flood", "flooding");
    daemon.api.started(python("victim", GREETING, &[]).runtime_token(TOKEN));
    let greeted = wait_for_line(&daemon, "victim", "greeting");
    let reported = format!("{flood}; another container: {greeted}");
    Ok(Outcome::new((greeted != "greeting received").then(|| reported.clone()), reported))
}
