//! Attacks by clients that hold resources: clients that never read, and clients that call Drain or reserve capacity
//! without limit.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_client::{Client, Code};
use executor_proto::v1::{AttachStart, Resources};
use integration::api::Api;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, program, sh, sleeper};
use integration::streams::Attached;
use integration::tls::TlsDaemon;
use integration::{host, wait};

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "readers: lossless clients that never read",
        position: Position::Client,
        claim: "lossless readers that never read cost bounded memory, and block no other container, no Delete and no Drain",
        attack: unread,
        control: unread_control,
    },
    Attack {
        name: "drains: calls whose clients disconnect",
        position: Position::Client,
        claim: "any number of Drain calls leaves one task, and the next call ends the drain at its deadline",
        attack: drains,
        control: drains_control,
    },
    Attack {
        name: "reservations: all capacity for one caller",
        position: Position::Client,
        claim: "reservations of a caller leave half of the capacity to other callers, reservations of root expire or end with a drain, and a caller that may reserve cannot drain",
        attack: reservations,
        control: reservations_control,
    },
];

/// Grace period, timeout of a drain and lifetime of a reservation that do not expire during an attack.
const LONG_PERIOD: Duration = Duration::from_secs(3600);
/// Timeout of a Delete or a Drain that must not block, on a loaded machine. A drain gives up 30 s after its deadline.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(25);
/// Maximum number of bytes that a process can write while its reader does not read: pipe, queues and windows, with a
/// margin.
const HELD_MAX: u64 = 5 << 20;
/// Maximum memory in bytes for each reader, in executord or in the shim: 1.2 MiB of queues and windows, and 2 MiB in
/// the shim.
const READER_MAX: u64 = 4 << 20;

/// Attaches a reader on its own connection. The reader reads nothing after the first message.
fn reader(daemon: &Daemon, id: &str) -> anyhow::Result<Attached> {
    let api = Api::connect(&daemon.socket()).context("cannot connect")?;
    Ok(Attached::start(&api, AttachStart { id: id.into(), lossless: true, ..AttachStart::default() })?)
}

/// Returns the number of bytes that a process has written.
fn written(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok()).unwrap_or(0)
}

/// Waits until a process has stopped writing, and returns the number of bytes written.
fn held(pid: i32) -> u64 {
    const SAME: usize = 100;
    let (mut last, mut same) = (0, 0);
    wait::until("the process waits for its reader", || {
        let now = written(pid);
        same = if now == last && now > 0 { same + 1 } else { 0 };
        last = now;
        (same >= SAME || now > HELD_MAX).then_some(now)
    })
}

fn resident(pid: i32) -> anyhow::Result<u64> {
    let line = host::status(pid, "VmRSS").with_context(|| format!("process {pid} does not exist"))?;
    Ok(line.trim_end_matches(" kB").parse::<u64>()? << 10)
}

fn parent(pid: i32) -> anyhow::Result<i32> {
    Ok(host::status(pid, "PPid").with_context(|| format!("process {pid} does not exist"))?.parse()?)
}

/// Maximum number of clients that can be attached to a container.
const READERS: u64 = 16;

fn unread(_: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let grace = i64::try_from(LONG_PERIOD.as_millis())?;
    let start = |id: &str| daemon.api.started(program("/usr/bin/yes", &[]).id(id).grace_ms(grace));
    let mut faults = Vec::new();
    let crowded = integration::api::pid(&start("crowded"));
    let shim = parent(crowded)?;
    let before = [resident(daemon.pid())?, resident(shim)?];
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(reader(&daemon, "crowded")?);
    }
    let wrote = held(crowded);
    let grown = [resident(daemon.pid())?, resident(shim)?];
    let grown = [grown[0].saturating_sub(before[0]), grown[1].saturating_sub(before[1])];
    if grown.iter().any(|grown| *grown > READERS * READER_MAX) {
        faults.push(format!("executord and the shim grew by {grown:?} bytes"));
    }
    let pids = ["deleted", "drained", "left"].map(|id| integration::api::pid(&start(id)));
    for id in ["deleted", "drained"] {
        readers.push(reader(&daemon, id)?);
    }
    let leaving = reader(&daemon, "left")?;
    for pid in pids {
        held(pid);
    }
    // Another container can run at the same time, and its output can be read.
    let beside = daemon.api.run_to_end(sh("echo beside").id("beside"));
    ensure!(integration::api::exit(&beside) == Ok(0), "{beside:?}");
    // After its reader has disconnected, the process continues.
    let stood = written(pids[2]);
    drop(leaving);
    let resumed =
        wait::within(COMPLETION_TIMEOUT, || if written(pids[2]) > stood + (1 << 20) { Ok(()) } else { Err(()) });
    if resumed.is_err() {
        faults.push("a process waits for a disconnected reader".to_owned());
    }
    let begun = Instant::now();
    daemon.api.delete("deleted", true)?;
    let deleted = begun.elapsed();
    let begun = Instant::now();
    let mut drain = daemon.api.client().cell().drain(Some(Duration::from_secs(1)), 1, "attack")?;
    let mut last = None;
    while let Some(progress) = daemon.api.block_on(drain.next())? {
        last = Some(progress);
    }
    let drained = begun.elapsed();
    let last = last.context("the drain reported no progress")?;
    if !last.left.is_empty() || deleted > COMPLETION_TIMEOUT || drained > COMPLETION_TIMEOUT {
        faults.push(format!("Delete took {deleted:.1?}, the drain took {drained:.1?} and left {:?}", last.left));
    }
    let reported = format!(
        "{READERS} readers: {wrote} bytes written, executord grew by {:.1} MB, the shim by {:.1} MB; Delete took {deleted:.1?}, a drain of 1 s {drained:.1?}",
        grown[0] as f64 / 1e6,
        grown[1] as f64 / 1e6
    );
    drop(readers);
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported))
}

/// Control: a process without a reader continues to write, and a process whose reader does not read blocks.
fn unread_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let pid = integration::api::pid(&daemon.api.started(program("/usr/bin/yes", &[]).id("free")));
    wait::until("writing continues without a reader", || (written(pid) > HELD_MAX + (1 << 20)).then_some(()));
    let pid = integration::api::pid(&daemon.api.started(program("/usr/bin/yes", &[]).id("held")));
    let _reader = reader(&daemon, "held")?;
    let first = held(pid);
    Ok(format!("without a reader the process continues to write; with a reader it stopped after {first} bytes"))
}

/// Starts a process that ignores SIGTERM, so that a drain takes a long time.
fn stubborn(daemon: &Daemon) -> anyhow::Result<()> {
    let grace = i64::try_from(LONG_PERIOD.as_millis())?;
    daemon.api.up(sh("trap '' TERM; echo up; while :; do sleep 0.05; done").id("stubborn").grace_ms(grace));
    Ok(())
}

/// Calls Drain, reads its first message and disconnects.
fn call(daemon: &Daemon) -> anyhow::Result<()> {
    let mut drain = daemon.api.client().cell().drain(Some(LONG_PERIOD), 1, "attack")?;
    let progress = daemon.api.block_on(drain.next())?.context("the drain reported no progress")?;
    ensure!(!progress.done, "the drain completed although a process ignores SIGTERM");
    Ok(())
}

fn drains(scale: Scale) -> anyhow::Result<Outcome> {
    /// Maximum memory growth in bytes for each call that creates no task: allocator and log.
    const CALL_MAX: u64 = 400;
    let daemon = Daemon::start();
    stubborn(&daemon)?;
    let calls = scale.pick(1500_u64, 30_000);
    for _ in 0..calls / 3 {
        call(&daemon)?; // grows executord's buffers to their final size
    }
    let before = resident(daemon.pid())?;
    for _ in 0..calls {
        call(&daemon)?;
    }
    let grown = resident(daemon.pid())?.saturating_sub(before);
    let begun = Instant::now();
    let mut hurried = daemon.api.client().cell().drain(Some(Duration::from_secs(1)), 1, "attack")?;
    while daemon.api.block_on(hurried.next())?.is_some() {}
    let took = begun.elapsed();
    daemon.api.block_on(daemon.api.client().cell().undrain())?;
    let runs = daemon.api.run_to_end(sh("exit 0").id("after"));
    ensure!(integration::api::exit(&runs) == Ok(0), "{runs:?}");
    let reported = format!(
        "{calls} calls: executord grew by {} bytes for each; the drain then completed in {took:.1?}",
        grown / calls
    );
    Ok(Outcome::new(
        (grown > calls * CALL_MAX + (256 << 10) || took > COMPLETION_TIMEOUT).then(|| reported.clone()),
        reported,
    ))
}

/// Control: a Drain whose client disconnects still drains the cell, so a Run is refused.
fn drains_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    stubborn(&daemon)?;
    call(&daemon)?;
    let refused = daemon.api.run(sleeper("x")).err().context("a Run is accepted during a drain")?;
    ensure!(refused.message().contains("draining"), "{refused}");
    Ok("a call of a disconnected client drains: a Run is refused".into())
}

const SMALL: &str = "[capacity]\nmemory_bytes = \"1G\"\ncontainers = 40\n[policy]\ndefault_memory_bytes = \"16M\"\n";

/// Caller that may run containers and reserve capacity.
const TENANT: &str = "[[callers]]\nuri = 'spiffe://test/tenant'\nmethods = ['read', 'run']\n";

/// Tries `tries` times to reserve capacity. Returns the number of successful reservations.
fn exhaust(api: &Api, client: &Client, prefix: &str, tries: usize, ttl: Duration) -> anyhow::Result<usize> {
    let cell = client.cell();
    let mut made = 0;
    for index in 0..tries {
        match api.block_on(cell.reserve(&format!("{prefix}{index}"), Resources::default(), Some(ttl))) {
            Ok(_) => made += 1,
            Err(refused) => ensure!(refused.code() == Some(Code::ResourceExhausted), "{refused}"),
        }
    }
    Ok(made)
}

fn reservations(scale: Scale) -> anyhow::Result<Outcome> {
    let tls = TlsDaemon::start(&format!("{TENANT}{SMALL}"), "");
    let daemon = &tls.daemon;
    let mut faults = Vec::new();
    let tries = scale.pick(400, 20_000);
    // A tenant can reserve at most half of the capacity, and must not drain.
    let tenant = tls.connect(&tls.files("tenant", &tls.authority.caller("spiffe://test/tenant")))?;
    let before = resident(daemon.pid())?;
    let by_tenant = exhaust(&daemon.api, &tenant, "t", tries, LONG_PERIOD)?;
    let beside = daemon.api.run(sh("exit 0").id("beside"));
    let drained = daemon.api.block_on(tenant.cell().drain(None, 1, "attack")?.next());
    if by_tenant > 20 || beside.is_err() || drained.is_ok() {
        faults.push(format!("a tenant makes {by_tenant} of 40 reservations; another caller: {beside:?}; {drained:?}"));
    }
    let made = by_tenant + exhaust(&daemon.api, &daemon.api.client(), "a", tries, LONG_PERIOD)?;
    let endless =
        daemon.api.block_on(daemon.api.client().cell().reserve("z", Resources::default(), Some(2 * LONG_PERIOD)));
    if endless.is_ok() || made > 40 {
        let longer = endless.is_ok();
        faults.push(format!("{made} reservations of at most 40 were made; accepted for two hours: {longer}"));
    }
    // A drain cancels all reservations before they expire.
    let mut drain = daemon.api.client().cell().drain(Some(Duration::from_secs(1)), 1, "attack")?;
    while daemon.api.block_on(drain.next())?.is_some() {}
    daemon.api.block_on(daemon.api.client().cell().undrain())?;
    let freed = daemon.api.run_to_end(sh("exit 0").id("freed"));
    ensure!(integration::api::exit(&freed) == Ok(0), "{freed:?}");
    // Short reservations expire on their own.
    exhaust(&daemon.api, &daemon.api.client(), "b", tries, Duration::from_secs(1))?;
    let victim = wait::within(COMPLETION_TIMEOUT, || daemon.api.run(sleeper("victim")));
    if let Err(refused) = victim {
        faults.push(format!("reservations of 1 s have not expired after {COMPLETION_TIMEOUT:?}: {refused}"));
    }
    let grown = resident(daemon.pid())?.saturating_sub(before);
    let reported = format!(
        "{} calls: {made} reservations, {by_tenant} of them a tenant's, executord grew by {:.1} MB",
        3 * tries,
        grown as f64 / 1e6
    );
    if grown > 64 << 20 {
        faults.push(reported.clone());
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported))
}

/// Control: while reservations hold all capacity, a Run is refused.
fn reservations_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Setup::default().config(SMALL).start();
    let made = exhaust(&daemon.api, &daemon.api.client(), "a", 60, LONG_PERIOD)?;
    let refused =
        daemon.api.run(sleeper("victim")).err().context("a Run is accepted although all capacity is reserved")?;
    Ok(format!("{made} reservations make a Run fail: {}", refused.message()))
}
