//! Attacks by a process in a container with the default profile: what it takes from the host and from others, and how
//! it hinders a wipe.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_proto::v1::RunRequest;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, program, update};
use integration::runtime::TOKEN;

use crate::attack::{Attack, Outcome, Position, Scale};

/// Attacks of this module.
pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "wipe: a lease on a secret file",
        position: Position::Container,
        claim: "a process that has a lease on a secret file delays neither a rotation nor an end",
        attack: lease,
        control: lease_control,
    },
    Attack {
        name: "host: all asynchronous requests",
        position: Position::Container,
        claim: "a container takes none of the host's asynchronous requests",
        attack: requests,
        control: requests_control,
    },
    Attack {
        name: "host: file locks",
        position: Position::Container,
        claim: "a file lock takes no more of the host's memory than documented: 256 bytes",
        attack: locks,
        control: locks_control,
    },
    Attack {
        name: "host: netlink sockets that nobody reads",
        position: Position::Container,
        claim: "a netlink socket takes no more of the host's memory than documented: 2.5 times net.core.rmem_max",
        attack: netlink,
        control: netlink_control,
    },
    Attack {
        name: "callers: GetSecrets of many users",
        position: Position::Container,
        claim: "a container's users together keep no other container from its secrets",
        attack: starved,
        control: starved_control,
    },
    Attack {
        name: "callers: GetSecrets beside one who connects without end",
        position: Position::Container,
        claim: "a container that connects as fast as it can keeps no other container from its secrets",
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

/// Memory of a container that attacks the host's memory.
const MEMORY: u64 = 48 << 20;
/// Memory of a container with a crowd of processes in it.
const CROWD_MEMORY: u64 = 1 << 30;
/// Longest time for a rotation, or for the forced end of a container.
const AT_ONCE: Duration = Duration::from_secs(5);

fn python(id: &str, script: &str, arguments: &[&str]) -> RunRequest {
    program("/usr/bin/python3", &[&["-c", script], arguments].concat()).id(id).memory(MEMORY)
}

/// Waits until a script has printed a line that begins with a word, and returns its last line.
fn said(daemon: &Daemon, id: &str, word: &str) -> String {
    let entries = daemon.api.follow(id).until(|entry| String::from_utf8_lossy(&entry.data).starts_with(word));
    entries.last().map(|entry| String::from_utf8_lossy(&entry.data).trim().to_owned()).unwrap_or_default()
}

/// Runs a script on the host, without any protection, and returns its output.
fn on_the_host(script: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("/usr/bin/python3").args(["-c", script]).args(arguments).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Rotates a file on which a lease is held, waits until the old content must be gone, and ends the container.
pub(crate) fn lease(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let path = "/etc/cf-service-bindings/a";
    let (mut reported, mut faults) = (Vec::new(), Vec::new());
    for attempt in 0..scale.pick(1, 5) {
        let id = format!("c{attempt}");
        let container = daemon.api.started(python(&id, LEASE, &[path, "stay"]).file("a", b"old"));
        let said = said(&daemon, &id, "lease");
        let fd = said.rsplit(' ').next().unwrap_or_default();
        let old = format!("/proc/{}/fd/{fd}", integration::api::pid(&container));
        ensure!(std::fs::read(&old)? == b"old", "{old} is another file");
        daemon.api.update(update(&id, &[("a", b"new")]))?;
        let rotated = Instant::now();
        while rotated.elapsed() < AT_ONCE && std::fs::read(&old)? == b"old" {
            std::thread::sleep(Duration::from_millis(10)); // nothing announces a wipe
        }
        let (wiped, begun) = (rotated.elapsed(), Instant::now());
        daemon.api.delete(&id, true)?;
        let ended = begun.elapsed();
        let text = format!(
            "{said}: the old value lived {:.1} s, the end took {:.1} s",
            wiped.as_secs_f64(),
            ended.as_secs_f64()
        );
        if wiped >= AT_ONCE || ended >= AT_ONCE { faults.push(text) } else { reported.push(text) }
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported.join("; ")))
}

/// Runs the script on a file of its own: it gets its lease, and a writer that does not wait is refused.
pub(crate) fn lease_control(_: Scale) -> anyhow::Result<String> {
    let path = tempfile::NamedTempFile::new()?.into_temp_path(); // open nowhere
    let said = on_the_host(LEASE, &[path.to_str().context("a path")?, "open"])?;
    ensure!(said.contains("lease taken") && said.contains("writer waits"), "{said}");
    Ok("on the host a lease is taken, and a writer waits for it".into())
}

pub(crate) fn requests(_: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    daemon.api.started(python("c", REQUESTS, &["all"]));
    let taken = said(&daemon, "c", "requests");
    let ours = on_the_host(REQUESTS, &["one"])?;
    let reported = format!("in the container: {taken}; then on the host: {ours}");
    Ok(Outcome::new((!ours.contains("taken 1,")).then(|| reported.clone()), reported))
}

/// Takes all requests by a process of the host, and then another process gets none.
pub(crate) fn requests_control(_: Scale) -> anyhow::Result<String> {
    let said = on_the_host(REQUESTS, &["both"])?;
    ensure!(said.contains("another: EAGAIN"), "{said}");
    Ok(format!("on the host: {said}"))
}

/// Kernel memory of the whole host that cannot be reclaimed.
fn unreclaimable() -> anyhow::Result<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).context("SUnreclaim")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Runs a script, and measures the growth of kernel memory while the script holds what it took. Returns the amount and
/// the growth.
fn growth(script: &str, amount: u64) -> anyhow::Result<(u64, u64)> {
    let daemon = Daemon::start();
    let before = unreclaimable()?;
    daemon.api.started(python("c", script, &[&amount.to_string()]));
    let said = said(&daemon, "c", "taken");
    let grown = unreclaimable()?.saturating_sub(before);
    daemon.api.delete("c", true)?;
    let taken = said.split(' ').nth(1).and_then(|count| count.parse().ok()).context(said)?;
    Ok((taken, grown))
}

/// Most bytes of kernel memory for a lock.
const LOCK_MAX: u64 = 256;

pub(crate) fn locks(scale: Scale) -> anyhow::Result<Outcome> {
    let (taken, grown) = growth(LOCKS, scale.pick(100_000, 400_000))?;
    // Other processes of the host take and release memory meanwhile.
    let reported = format!("{taken} locks took {:.1} MB: {} bytes each", grown as f64 / 1e6, grown / taken.max(1));
    Ok(Outcome::new((grown > taken * LOCK_MAX + (8 << 20)).then(|| reported.clone()), reported))
}

/// Finds the locks in the kernel's list.
pub(crate) fn locks_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let before = std::fs::read_to_string("/proc/locks")?.lines().count();
    daemon.api.started(python("c", LOCKS, &["3000"]));
    said(&daemon, "c", "taken");
    let more = std::fs::read_to_string("/proc/locks")?.lines().count().saturating_sub(before);
    ensure!(more > 2900, "the kernel's list has {more} locks more");
    Ok(format!("the kernel's list has {more} locks more"))
}

fn receive_max() -> anyhow::Result<u64> {
    Ok(std::fs::read_to_string("/proc/sys/net/core/rmem_max")?.trim().parse()?)
}

pub(crate) fn netlink(_: Scale) -> anyhow::Result<Outcome> {
    // Enough sockets for about 64 MB in all, whatever this host allows to each.
    let sockets = ((64 << 20) / (2 * receive_max()?)).clamp(4, 200);
    let (taken, grown) = growth(NETLINK, sockets)?;
    let reported =
        format!("{taken} sockets took {:.1} MB: {:.2} MB each", grown as f64 / 1e6, grown as f64 / 1e6 / taken as f64);
    Ok(Outcome::new((grown > taken * receive_max()? * 5 / 2 + (8 << 20)).then(|| reported.clone()), reported))
}

/// Finds a socket's messages in the kernel's list.
pub(crate) fn netlink_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let container = daemon.api.started(python("c", NETLINK, &["2"]));
    said(&daemon, "c", "taken");
    let table = std::fs::read_to_string(format!("/proc/{}/net/netlink", integration::api::pid(&container)))?;
    let most = table.lines().filter_map(|line| line.split_whitespace().nth(4)?.parse::<u64>().ok()).max();
    ensure!(most.is_some_and(|most| most > 100_000), "no socket has more than {most:?} bytes");
    Ok(format!("the kernel tells of {} bytes that wait in one socket", most.unwrap_or(0)))
}

/// Checks that a container is served while its neighbour takes as much as it can.
pub(crate) fn starved(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let users = scale.pick("8", "100");
    // Each user is a process; the number of processes is not the limit under test.
    daemon.api.started(python("crowd", CROWD, &[users]).runtime_token(TOKEN).memory(CROWD_MEMORY));
    let crowd = said(&daemon, "crowd", "connected");
    daemon.api.started(python("victim", GREETING, &[]).runtime_token(TOKEN));
    let greeted = said(&daemon, "victim", "greeting");
    let reported = format!("{crowd}; another container: {greeted}");
    Ok(Outcome::new((greeted != "greeting came").then(|| reported.clone()), reported))
}

/// Is served without a crowd, and is not served without a server.
pub(crate) fn starved_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    daemon.api.started(python("victim", GREETING, &[]).runtime_token(TOKEN));
    let greeted = said(&daemon, "victim", "greeting");
    ensure!(greeted == "greeting came", "{greeted}");
    daemon.api.started(python("none", GREETING, &[]));
    let alone = said(&daemon, "none", "greeting");
    ensure!(alone != "greeting came", "a container without a token is greeted");
    let socket = integration::runtime::socket(&daemon);
    Ok(format!("without a crowd it comes; the socket is of mode {:o}", std::fs::metadata(socket)?.mode() & 0o777))
}

/// Connects in the middle of a flood.
pub(crate) fn flooded(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let users = scale.pick("4", "64");
    daemon.api.started(python("flood", FLOOD, &[users]).runtime_token(TOKEN).memory(CROWD_MEMORY));
    let flood = said(&daemon, "flood", "flooding");
    daemon.api.started(python("victim", GREETING, &[]).runtime_token(TOKEN));
    let greeted = said(&daemon, "victim", "greeting");
    let reported = format!("{flood}; another container: {greeted}");
    Ok(Outcome::new((greeted != "greeting came").then(|| reported.clone()), reported))
}
