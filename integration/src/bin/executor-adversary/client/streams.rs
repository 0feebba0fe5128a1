//! Attacks by a caller on resources that all callers share: memory for responses, streams, counter readings, and slots
//! for scrapes.
//!
//! The attacker is a non-root user that executord serves. The victim is root.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use executor_proto::v1;
use integration::daemon::{Daemon, Setup};
use integration::http2::{DATA, END_STREAM, HEADERS, PING, RawClient, WINDOW_UPDATE, connect_as};
use integration::metrics;
use integration::request::{RequestBuilder as _, program, sleeper};
use prost::Message as _;
use tonic::Status;

use super::crowd::{cost, megabytes};
use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "shares: unread responses and PINGs",
        position: Position::Client,
        claim: "a caller that reads nothing and sends PINGs delays no call of another caller",
        attack: |_| flood(false),
        control: flood_control,
    },
    Attack {
        name: "shares: unread responses and a byte of window",
        position: Position::Client,
        claim: "a connection whose client reads a byte at a time is closed when its caller needs the memory",
        attack: |_| flood(true),
        control: flood_control,
    },
    Attack {
        name: "shares: streams of events",
        position: Position::Client,
        claim: "a caller may use a quarter of the response streams, and the rest is left to other callers",
        attack: followers,
        control: followers_control,
    },
    Attack {
        name: "shares: streams of counters",
        position: Position::Client,
        claim: "however many counter streams a caller opens, a shim gets one request per second",
        attack: counters,
        control: counters_control,
    },
    Attack {
        name: "shares: slow scrapers",
        position: Position::Client,
        claim: "metrics clients that send only the beginning of a request lock out no scraper",
        attack: scrapers,
        control: scrapers_control,
    },
];

/// Uid of the attacker.
const ATTACKER: u32 = 54_321;
/// Timeout of a call by root: shorter than the time after which executord closes stalled connections.
const CALL_TIMEOUT: Duration = Duration::from_secs(8);
/// Timeout of a call by the attacker, which waits until its stalled connections are closed.
const ATTACKER_CALL_TIMEOUT: Duration = Duration::from_secs(28);
/// Keep-alive interval of a client that does not read.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of streams on a connection.
const STREAMS: usize = 250;

/// Maximum memory that all streams of one caller may cost, in bytes.
const FOLLOWERS_MAX: u64 = 96 << 20;

const LIST: &str = "/executor.v1.Executor/List";
const EVENTS: &str = "/executor.v1.Executor/WatchEvents";

/// Starts a daemon that serves metrics. Its callers are root and members of group root.
fn daemon() -> Daemon {
    let setup = Setup::default();
    let table = metrics::table(&setup);
    setup.config(&table).arguments(&["--allow-group", "root"]).start()
}

/// Connects with flow-control windows of `window` bytes.
fn connect(socket: &Path, user: u32, window: u32) -> anyhow::Result<RawClient> {
    let mut raw = RawClient::over(connect_as(socket, user)?, window)?.bounded(CALL_TIMEOUT)?;
    raw.settle();
    Ok(raw)
}

/// Opens streams of a method on connections that read nothing. Returns the connections and the number of accepted
/// streams.
fn open(daemon: &Daemon, user: u32, connections: usize, method: &str) -> anyhow::Result<(Vec<RawClient>, usize)> {
    let (mut all, mut accepted) = (Vec::new(), 0);
    for _ in 0..connections {
        let mut raw = connect(&daemon.socket(), user, 0)?;
        accepted += raw.open_streams(method, STREAMS)?;
        all.push(raw);
    }
    Ok((all, accepted))
}

/// Makes a call as root with a timeout.
fn in_time<T>(daemon: &Daemon, within: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, String> {
    match daemon.api.block_on(async { tokio::time::timeout(within, call).await }) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(status)) => Err(format!("{:?}: {}", status.code(), status.message())),
        Err(_) => Err(format!("no response within {} s", within.as_secs())),
    }
}

/// Starts a daemon with completed containers that make a list of a quarter of a megabyte.
fn with_a_long_list() -> Daemon {
    let daemon = daemon();
    for index in 0..20 {
        let mut request = program("/bin/true", &[]).id(&format!("c{index}"));
        request.labels = (0..64).map(|label| (format!("l{label}"), "x".repeat(200))).collect();
        daemon.api.run_to_end(request);
    }
    daemon
}

fn list() -> v1::ListRequest {
    v1::ListRequest { page_size: 1000, ..Default::default() }
}

/// Calls List on connections that send a keep-alive every two seconds and do not read the responses; if `reads` is
/// true, they accept one more byte each time. Meanwhile makes calls as root, and as the attacker on another connection.
fn flood(reads: bool) -> anyhow::Result<Outcome> {
    let daemon = with_a_long_list();
    let (connections, calls) = (8, 8);
    let mut unread = Vec::new();
    for _ in 0..connections {
        let mut raw = connect(&daemon.socket(), ATTACKER, 0)?;
        for _ in 0..calls {
            raw.try_call(LIST, &list().encode_to_vec())?;
        }
        unread.push(raw);
    }
    let over = Arc::new(AtomicBool::new(false));
    let living = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let mut sent = Instant::now();
            while !over.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(20)); // the pace of the attack
                if sent.elapsed() >= KEEP_ALIVE_INTERVAL {
                    sent = Instant::now();
                    // Closed connections are skipped.
                    unread.retain_mut(|raw| {
                        let byte = |raw: &mut RawClient, on| raw.try_frame(WINDOW_UPDATE, 0, on, &[0, 0, 0, 1]);
                        raw.try_frame(PING, 0, 0, &[7; 8]).is_ok()
                            && (!reads || byte(raw, 0).and_then(|()| byte(raw, 1)).is_ok())
                    });
                }
            }
        }
    });
    let mut faults = Vec::new();
    let mut rpc = daemon.api.rpc();
    faults.extend(
        in_time(&daemon, CALL_TIMEOUT, rpc.list(list())).err().map(|why| format!("List called by root: {why}")),
    );
    let get = v1::GetRequest { id: "c1".into() };
    faults.extend(in_time(&daemon, CALL_TIMEOUT, rpc.get(get)).err().map(|why| format!("Get called by root: {why}")));
    let stats = v1::StatsRequest::default();
    faults.extend(
        in_time(&daemon, CALL_TIMEOUT, rpc.stats(stats)).err().map(|why| format!("Stats called by root: {why}")),
    );
    let mut own = connect(&daemon.socket(), ATTACKER, 1 << 20)?;
    own.frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 20).to_be_bytes());
    own.try_call(LIST, &list().encode_to_vec())?;
    let begun = Instant::now();
    let mut bytes = 0;
    own.until(|kind, flags, _, part| {
        bytes += if kind == DATA { part.len() } else { 0 };
        matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0
    });
    let waited = begun.elapsed();
    if bytes < 60_000 || waited > ATTACKER_CALL_TIMEOUT {
        let waited = waited.as_secs();
        faults.push(format!("List on a connection of the attacker that reads: {bytes} bytes after {waited} s"));
    }
    let waited = waited.as_secs_f64();
    over.store(true, Ordering::Release);
    living.join().expect("a thread");
    let held = format!(
        "{} unread responses: root receives a response immediately, the attacker after {waited:.0} s",
        connections * calls
    );
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), held))
}

/// Control: if one connection calls List and does not read, executord sends some responses and delays the others,
/// because the memory for responses is exhausted.
fn flood_control(_: Scale) -> anyhow::Result<String> {
    let daemon = with_a_long_list();
    let mut raw = connect(&daemon.socket(), ATTACKER, 0)?;
    let calls = 200;
    for _ in 0..calls {
        raw.try_call(LIST, &list().encode_to_vec())?;
    }
    let mut made = 0;
    raw.until(|kind, _, _, _| {
        made += usize::from(kind == HEADERS);
        made == 30
    });
    // Some of the waiting responses may be sent during this call.
    in_time(&daemon, CALL_TIMEOUT, daemon.api.rpc().list(list())).map_err(anyhow::Error::msg)?;
    raw.frame(PING, 0, 0, &[9; 8]);
    raw.until(|kind, _, _, said| {
        made += usize::from(kind == HEADERS);
        kind == PING && said == [9; 8]
    });
    ensure!(made < calls, "control failed: all {made} responses were produced although none was read");
    Ok(format!("{made} of {calls} unread responses are produced, and the others wait"))
}

/// Opens more event streams than the limit allows, and then one stream as root.
fn followers(scale: Scale) -> anyhow::Result<Outcome> {
    // The number of events exceeds the buffer of a client that does not read.
    let daemon = with_a_long_list();
    let connections = scale.pick(17, 60);
    let (mut held, mut accepted) = (Vec::new(), 0);
    let cost = cost(daemon.pid(), || {
        (held, accepted) = open(&daemon, ATTACKER, connections, EVENTS)?;
        Ok(())
    })?;
    let mut rpc = daemon.api.rpc();
    let root = in_time(&daemon, CALL_TIMEOUT, rpc.watch_events(v1::WatchEventsRequest::default()));
    drop(held);
    let opened = connections * STREAMS;
    let reported = format!("{accepted} of {opened} streams of one caller are open and cost {}", megabytes(cost));
    let fault = root.err().map(|why| format!("{reported}; the stream of root: {why}"));
    let fault = fault.or_else(|| (accepted > 1024 || cost > FOLLOWERS_MAX).then(|| reported.clone()));
    Ok(Outcome::new(fault, reported))
}

/// Control: root can open the maximum number of streams, and the next stream is refused.
fn followers_control(_: Scale) -> anyhow::Result<String> {
    let daemon = daemon();
    let (_held, accepted) = open(&daemon, 0, 17, EVENTS)?;
    let mut rpc = daemon.api.rpc();
    let next = in_time(&daemon, CALL_TIMEOUT, rpc.watch_events(v1::WatchEventsRequest::default()));
    let Err(refused) = next else {
        anyhow::bail!("executord accepted one more stream although {accepted} streams are open")
    };
    ensure!(refused.contains("ResourceExhausted"), "{refused}");
    Ok(format!("{accepted} streams of root are open; the next stream is refused: {refused}"))
}

/// Returns the number of requests to shims so far.
fn requests(daemon: &Daemon) -> f64 {
    metrics::value(daemon, "executor_container_readings_total")
}

/// Starts a daemon with idle containers.
fn with_containers(count: usize) -> anyhow::Result<Daemon> {
    let daemon = daemon();
    for index in 0..count {
        daemon.api.run(sleeper(&format!("c{index}")))?;
    }
    Ok(daemon)
}

/// Opens streams with counters of all containers and reads the streams. While the streams are open, calls by root must
/// succeed.
fn counters(scale: Scale) -> anyhow::Result<Outcome> {
    let (containers, streams) = scale.pick((5, 100), (40, 200));
    let daemon = with_containers(containers)?;
    let api = &daemon.api;
    let readings = Arc::new(AtomicUsize::new(0));
    let reading: Vec<_> = (0..streams)
        .map(|_| {
            let (mut rpc, readings) = (api.rpc(), Arc::clone(&readings));
            api.spawn(async move {
                let mut stream = rpc.watch_stats(v1::WatchStatsRequest::default()).await?.into_inner();
                while let Some(message) = stream.message().await? {
                    readings.fetch_add(usize::from(message.end_of_reading), Ordering::Relaxed);
                }
                Ok::<_, Status>(())
            })
        })
        .collect();
    let (begun, before) = (Instant::now(), requests(&daemon));
    let mut faults = Vec::new();
    // Wait for an average of five readings per stream.
    while readings.load(Ordering::Relaxed) < 5 * streams {
        let mut rpc = api.rpc();
        let info = in_time(&daemon, CALL_TIMEOUT, rpc.info(v1::InfoRequest {}));
        faults.extend(info.err().map(|why| format!("Info called by root: {why}")));
        ensure!(begun.elapsed() < Duration::from_secs(120), "the streams received too few samples within 120 s");
        std::thread::sleep(Duration::from_millis(50)); // the pace of root's calls
    }
    let asked = requests(&daemon) - before;
    let most = (begun.elapsed().as_secs_f64() / 0.9 + 2.0) * containers as f64;
    reading.iter().for_each(tokio::task::JoinHandle::abort);
    let reported =
        format!("{streams} streams: {asked} requests to {containers} shims in {:.1} s", begun.elapsed().as_secs_f64());
    faults.extend((asked > most).then(|| format!("{reported}; at most {most:.0} are allowed")));
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported))
}

/// Control: each message of one stream of statistics causes one request to each shim, and the requests are counted.
fn counters_control(_: Scale) -> anyhow::Result<String> {
    let (containers, readings) = (3, 5);
    let daemon = with_containers(containers)?;
    let before = requests(&daemon);
    daemon.api.block_on(async {
        let mut stream = daemon.api.rpc().watch_stats(v1::WatchStatsRequest::default()).await?.into_inner();
        for _ in 0..readings {
            stream.message().await?;
        }
        Ok::<_, Status>(())
    })?;
    let least = (containers * (readings - 1)) as f64;
    let asked = integration::wait::until("the requests are counted", || {
        let asked = requests(&daemon) - before;
        (asked >= least).then_some(asked)
    });
    Ok(format!("{readings} readings of {containers} containers: {asked} requests were counted"))
}

/// Returns the path of the metrics socket.
fn scraped(daemon: &Daemon) -> PathBuf {
    daemon.setup().run_dir().join("metrics.sock")
}

/// Scrapes the metrics with the default timeout of Prometheus.
fn scrape(daemon: &Daemon) -> Result<usize, String> {
    let mut stream = UnixStream::connect(scraped(daemon)).map_err(|error| error.to_string())?;
    let why = |error: std::io::Error| error.to_string();
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(why)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").map_err(why)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).map_err(why)?;
    match String::from_utf8_lossy(&text).contains("executor_build_info") {
        true => Ok(text.len()),
        false => Err(format!("the response of {} bytes contains no metrics", text.len())),
    }
}

/// Connects 64 clients to the metrics socket. Each sends the beginning of a request and reconnects when the connection
/// is closed. While the clients are connected, scrapes the metrics.
fn scrapers(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = daemon();
    let (socket, over) = (scraped(&daemon), Arc::new(AtomicBool::new(false)));
    let connected = Arc::new(AtomicUsize::new(0));
    let slow: Vec<_> = (0..64)
        .map(|_| {
            let (socket, over, connected) = (socket.clone(), Arc::clone(&over), Arc::clone(&connected));
            std::thread::spawn(move || {
                while !over.load(Ordering::Acquire) {
                    let Ok(mut stream) = UnixStream::connect(&socket) else { return };
                    let _ = stream.write_all(b"GET /metr");
                    connected.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
                    // Wait for the close.
                    while !over.load(Ordering::Acquire) && stream.read(&mut [0; 64]).map_or(true, |read| read > 0) {}
                }
            })
        })
        .collect();
    integration::wait::until("64 clients are connected", || (connected.load(Ordering::Relaxed) >= 64).then_some(()));
    let mut faults = Vec::new();
    let (mut longest, begun) = (Duration::ZERO, Instant::now());
    for _ in 0..scale.pick(3, 30) {
        let asked = Instant::now();
        faults.extend(scrape(&daemon).err());
        longest = longest.max(asked.elapsed());
    }
    over.store(true, Ordering::Release);
    slow.into_iter().for_each(|client| client.join().expect("a thread"));
    let reported = format!("64 slow clients: scrapes take at most {:.1} s", longest.as_secs_f64());
    let fault =
        format!("{} scrapes in {:.0} s failed: {}", faults.len(), begun.elapsed().as_secs_f64(), faults.join("; "));
    Ok(Outcome::new((!faults.is_empty()).then_some(fault), reported))
}

/// Control: a scrape without other clients succeeds, and a scrape of a killed daemon fails.
fn scrapers_control(_: Scale) -> anyhow::Result<String> {
    let mut daemon = daemon();
    let bytes = scrape(&daemon).map_err(anyhow::Error::msg)?;
    daemon.kill();
    let dead = scrape(&daemon);
    daemon.start_again();
    ensure!(dead.is_err(), "a scrape of a killed daemon succeeds");
    Ok(format!("a daemon without load returns {bytes} bytes, and a killed daemon returns none"))
}
