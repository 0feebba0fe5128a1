//! Attacks by a client on other clients, through connections, memory and descriptors. Also tests executord on a full
//! disk.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_proto::v1::{self, RunRequest, StreamLogsRequest};
use integration::daemon::{Daemon, Setup};
use integration::http2::RawClient;
use integration::request::{RequestBuilder as _, program, sleeper, update};
use integration::streams::{Executed, start};
use prost::Message as _;
use rustix::process::{Resource, Rlimit, setrlimit};
use tonic::Code;

use crate::attack::{Outcome, Scale};
use crate::python::CCore;
use crate::revive::start_or_end;

/// Maximum time for which silent connections may keep other clients out.
const LOCKED_OUT_MAX: Duration = Duration::from_secs(30);

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens more connections than executord serves, all of them silent, and then makes a call.
pub(crate) fn silent(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let count = scale.pick(300, 2000);
    let silent: Vec<UnixStream> = (0..count).filter_map(|_| UnixStream::connect(daemon.socket()).ok()).collect();
    let begun = Instant::now();
    let answered = loop {
        if answers(&daemon.socket()) {
            break true;
        }
        if begun.elapsed() > LOCKED_OUT_MAX {
            break false;
        }
        std::thread::sleep(Duration::from_millis(50)); // a client's pause between attempts
    };
    let seconds = begun.elapsed().as_secs_f64();
    let fault = (!answered).then(|| format!("{} silent connections: no response within {seconds:.0} s", silent.len()));
    Ok(Outcome::new(fault, format!("{} silent connections: a response after {seconds:.1} s", silent.len())))
}

/// Returns true if executord responds on a new connection within a second.
fn answers(socket: &Path) -> bool {
    let socket = socket.to_owned();
    let asked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let ask = async {
            let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{}", socket.display())).ok()?;
            let channel = endpoint.connect().await.ok()?;
            let mut rpc = integration::api::Rpc::new(channel);
            rpc.info(v1::InfoRequest {}).await.ok()
        };
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(1), ask).await.ok().flatten() })
    });
    asked.join().ok().flatten().is_some()
}

/// Control: a call without silent connections succeeds immediately, and a call to a killed daemon fails.
pub(crate) fn silent_control(_: Scale) -> anyhow::Result<String> {
    let mut daemon = Daemon::start();
    ensure!(answers(&daemon.socket()), "a daemon without load does not respond");
    daemon.kill();
    let dead = answers(&daemon.socket());
    daemon.start_again();
    ensure!(!dead, "a killed daemon responds");
    Ok("a daemon without load responds, and a killed daemon does not".into())
}

/// Returns the peak memory of a process since [`reset_peak`], in bytes.
fn peak(pid: i32) -> anyhow::Result<u64> {
    let line = integration::host::status(pid, "VmHWM").with_context(|| format!("process {pid} does not exist"))?;
    let kilobytes: u64 = line.trim_end_matches(" kB").parse()?;
    Ok(kilobytes << 10)
}

fn reset_peak(pid: i32) -> std::io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// Runs an action and returns the increase of a process's peak memory, in bytes.
pub(super) fn cost(pid: i32, act: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<u64> {
    reset_peak(pid)?;
    let before = peak(pid)?;
    act()?;
    Ok(peak(pid)?.saturating_sub(before))
}

pub(super) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Builds a request of `bytes` bytes of empty actions in a list, nested `depth` levels deep.
fn nested_actions(bytes: usize, depth: usize) -> Vec<u8> {
    // Action { serial: SerialAction { actions: [..] } }, from the inside out.
    let within = |inner: &[u8]| {
        let mut serial = Vec::new();
        prost::encoding::encode_key(1, prost::encoding::WireType::LengthDelimited, &mut serial);
        prost::encoding::encode_varint(inner.len() as u64, &mut serial);
        serial.extend(inner);
        let mut action = Vec::new();
        prost::encoding::encode_key(8, prost::encoding::WireType::LengthDelimited, &mut action);
        prost::encoding::encode_varint(serial.len() as u64, &mut action);
        action.extend(serial);
        action
    };
    // An empty action takes two bytes in its list: 0x0a 0x00.
    let mut list = Vec::with_capacity(bytes);
    while list.len() + 2 <= bytes {
        list.extend([0x0a, 0x00]);
    }
    let mut action = Vec::new();
    prost::encoding::encode_key(8, prost::encoding::WireType::LengthDelimited, &mut action);
    prost::encoding::encode_varint(list.len() as u64, &mut action);
    action.extend(list);
    for _ in 1..depth {
        action = within(&action);
    }
    let mut request = RunRequest { id: "x".into(), ..RunRequest::default() }.encode_to_vec();
    prost::encoding::encode_key(action_tag(), prost::encoding::WireType::LengthDelimited, &mut request);
    prost::encoding::encode_varint(action.len() as u64, &mut request);
    request.extend(action);
    request
}

/// Returns the field number of `action` in a RunRequest.
fn action_tag() -> u32 {
    let action = Some(v1::Action::default());
    let bytes = RunRequest { action, ..RunRequest::default() }.encode_to_vec();
    prost::encoding::decode_key(&mut &bytes[..]).map_or(0, |(tag, _)| tag)
}

/// Maximum memory that a request of actions may cost, in bytes.
const NESTED_MAX: u64 = 48 << 20;

/// Sends a request of 1.9 MB of empty actions.
pub(crate) fn nested(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let mut most = 0;
    for depth in scale.pick(&[1][..], &[1, 2, 10, 30, 90]) {
        let request = nested_actions(1_900_000, *depth);
        let mut client = CCore::connect(&daemon.socket())?;
        client.call("/executor.v1.Executor/Info", &[])?;
        let cost = cost(daemon.pid(), || {
            let code = client.call("/executor.v1.Executor/Run", &request)?;
            ensure!(
                ["UNIMPLEMENTED", "INVALID_ARGUMENT", "INTERNAL", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED"]
                    .contains(&&*code),
                "{code}"
            );
            Ok(())
        })?;
        most = most.max(cost);
    }
    let reported = format!("1.9 MB of actions cost {}", megabytes(most));
    Ok(Outcome::new((most > NESTED_MAX).then(|| reported.clone()), reported))
}

/// Control: a request with the same number of bytes in one field increases the measured memory.
pub(crate) fn nested_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let request = program("/bin/true", &[]).rootfs("nowhere").file("a", &vec![b'x'; 900_000]).encode_to_vec();
    let mut client = CCore::connect(&daemon.socket())?;
    client.call("/executor.v1.Executor/Info", &[])?;
    let cost = cost(daemon.pid(), || {
        let code = client.call("/executor.v1.Executor/Run", &request)?;
        ensure!(code == "INVALID_ARGUMENT", "{code}, expected INVALID_ARGUMENT");
        Ok(())
    })?;
    ensure!(cost > 200_000, "a request of 900 kB costs only {cost} bytes: the measurement misses memory");
    Ok(format!("0.9 MB of a file cost {}", megabytes(cost)))
}

/// Maximum memory that all unread responses together may cost, in bytes.
const UNREAD_MAX: u64 = 96 << 20;

/// Starts a daemon with containers that have large descriptions, so that List returns a long list.
fn with_a_long_list(containers: usize) -> Daemon {
    let daemon = Daemon::start();
    for index in 0..containers {
        let labels = (0..64).map(|label| (format!("l{label}"), "x".repeat(200)));
        let mut request = program("/bin/true", &[]).id(&format!("c{index}"));
        request.labels = labels.collect();
        daemon.api.run_to_end(request);
    }
    daemon
}

/// Calls List for a long list on many connections, with a flow-control window of 0: executord cannot send the bodies.
pub(crate) fn unread(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = with_a_long_list(scale.pick(20, 100));
    let size = daemon.api.list(v1::ListRequest { page_size: 1000, ..Default::default() })?.encoded_len() as u64;
    let (connections, calls) = scale.pick((10, 90_u64), (40, 90));
    let mut all = Vec::new();
    let cost = cost(daemon.pid(), || {
        for _ in 0..connections {
            let mut raw = RawClient::with_window(&daemon.socket(), 0)?.bounded(CALL_TIMEOUT)?;
            let list = v1::ListRequest { page_size: 1000, ..Default::default() }.encode_to_vec();
            for _ in 0..calls {
                if raw.try_call("/executor.v1.Executor/List", &list).is_err() {
                    break; // executord stopped reading, which bounds its memory too
                }
            }
            raw.drain(CALL_TIMEOUT);
            all.push(raw);
        }
        Ok(())
    })?;
    let asked = size * calls * connections as u64;
    let reported = format!("{} of unread responses cost {}", megabytes(asked), megabytes(cost));
    ensure!(asked > 2 * UNREAD_MAX, "the requested responses are too small: {reported}");
    Ok(Outcome::new((cost > UNREAD_MAX).then(|| reported.clone()), reported))
}

/// Control: a client that reads receives the same list.
pub(crate) fn unread_control(_: Scale) -> anyhow::Result<String> {
    let daemon = with_a_long_list(20);
    let list = v1::ListRequest { page_size: 1000, ..Default::default() }.encode_to_vec();
    let mut raw = RawClient::with_window(&daemon.socket(), 1 << 20)?;
    raw.try_call("/executor.v1.Executor/List", &list)?;
    let bytes = raw.drain(CALL_TIMEOUT);
    ensure!(bytes > 60_000, "the list is {bytes} bytes, expected more than 60000");
    Ok(format!("a client that reads gets {bytes} bytes of the same list"))
}

/// Number of containers to run with few descriptors.
const CONTAINERS: usize = 60;

/// Starts a daemon whose processes may have at most `most` descriptors. The limit also applies to this process
/// afterwards.
fn with_descriptors(most: u64) -> anyhow::Result<Daemon> {
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) })?;
    Ok(Daemon::start())
}

/// Calls Run and then Exec until executord can open no more descriptors, and then makes other calls. Each call must
/// succeed or fail with RESOURCE_EXHAUSTED.
pub(crate) fn descriptors(scale: Scale) -> anyhow::Result<Outcome> {
    let (mut codes, mut faults) = (Vec::new(), Vec::new());
    for most in scale.pick(&[80][..], &[96, 90, 84, 80, 77, 74]) {
        let daemon = with_descriptors(*most)?;
        let run = |index| daemon.api.run(sleeper(&format!("c{index}")).file("a", b"1"));
        let refused = (0..CONTAINERS).find_map(|index| run(index).err());
        let refused = refused.with_context(|| format!("no Run of {CONTAINERS} was refused with {most} descriptors"))?;
        let mut reported = vec![("Run", refused)];
        daemon.api.delete("c1", true)?; // frees descriptors for an Exec
        let mut executed = Vec::new();
        let refused = (0..CONTAINERS).find_map(|_| {
            Executed::start(&daemon.api, start("c0", "/bin/sleep", &["100000"]))
                .map(|process| executed.push(process))
                .err()
        });
        reported.push((
            "Exec",
            refused.with_context(|| format!("no Exec of {CONTAINERS} was refused with {most} descriptors"))?,
        ));
        reported.extend(daemon.api.update(update("c0", &[("a", b"2")])).err().map(|status| ("UpdateFiles", status)));
        reported.extend(
            daemon
                .api
                .logs(StreamLogsRequest { id: "c0".into(), ..Default::default() })
                .err()
                .map(|status| ("StreamLogs", status)),
        );
        reported.extend(daemon.api.stop("c0", Some(0)).err().map(|status| ("Stop", status)));
        for (call, status) in reported {
            match status.code() {
                Code::ResourceExhausted => codes.push(format!("{call} with {most}")),
                code => faults.push(format!("{call}, {most} descriptors: {code:?}: {}", status.message())),
            }
        }
    }
    let reported = format!("RESOURCE_EXHAUSTED: {}", codes.join(", "));
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported))
}

/// Control: with 1,024 descriptors, every Run and every Exec succeeds.
pub(crate) fn descriptors_control(_: Scale) -> anyhow::Result<String> {
    let daemon = with_descriptors(1024)?;
    let mut executed = Vec::new();
    for index in 0..CONTAINERS {
        daemon.api.run(sleeper(&format!("c{index}")))?;
        executed.push(Executed::start(&daemon.api, start("c0", "/bin/sleep", &["100000"]))?);
    }
    Ok(format!("with 1,024 descriptors {CONTAINERS} containers and {} processes of Exec run", executed.len()))
}

/// Fills a file system to its last byte.
fn fill(dir: &Path) -> anyhow::Result<()> {
    use std::io::Write as _;
    for (index, size) in [1 << 16, 4096, 512, 64, 1].into_iter().enumerate() {
        let mut file = fs::File::create(dir.join(format!("ballast{index}")))?;
        let block = vec![1; size];
        while file.write_all(&block).is_ok() {}
    }
    Ok(())
}

/// Creates a stopped daemon with one completed container on a full disk.
fn stopped_on_a_full_disk() -> anyhow::Result<Daemon> {
    let mut daemon = Setup::default().disk(7 << 20).start();
    daemon.api.run_to_end(program("/bin/true", &[]).id("old"));
    daemon.terminate();
    fill(&daemon.setup().state_dir())?;
    Ok(daemon)
}

/// Starts executord on the full disk. executord must refuse a new container and delete a completed container.
pub(crate) fn full_disk(_: Scale) -> anyhow::Result<Outcome> {
    let mut daemon = stopped_on_a_full_disk()?;
    let fault = match start_or_end(&daemon)? {
        Err(status) => Some(format!("executord does not start: {status}")),
        Ok((mut child, api)) => {
            let refused = api.run(sleeper("new")).err();
            let deleted = api.delete("old", false).err();
            child.kill()?;
            child.wait()?;
            match (refused, deleted) {
                (None, _) => Some("a container was accepted".to_owned()),
                (_, Some(status)) => Some(format!("cannot delete a container: {status}")),
                _ => None,
            }
        }
    };
    for index in 0..5 {
        let _ = fs::remove_file(daemon.setup().state_dir().join(format!("ballast{index}")));
    }
    daemon.start_again();
    Ok(Outcome::new(fault, "executord starts, refuses a new container and deletes a completed container"))
}

/// Control: the disk is full, and after the ballast files are removed a container runs.
pub(crate) fn full_disk_control(_: Scale) -> anyhow::Result<String> {
    let mut daemon = stopped_on_a_full_disk()?;
    let full = fs::write(daemon.setup().state_dir().join("more"), "x").is_err();
    ensure!(full, "the disk is not full");
    for index in 0..5 {
        fs::remove_file(daemon.setup().state_dir().join(format!("ballast{index}")))?;
    }
    let _ = fs::remove_file(daemon.setup().state_dir().join("more"));
    daemon.start_again();
    daemon.api.started(sleeper("new"));
    Ok("the disk was full; without the ballast a container runs".into())
}
