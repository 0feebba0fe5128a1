//! Attacks by messages on executord's connections to the launcher and to shims: forged and changed messages, and
//! connections that are held open.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_core::lifecycle::State;
use executor_core::payload::ProcessPayload;
use executor_core::plan::Plan;
use executor_core::protocol::{
    Attach, Launch, LauncherAnswer, LauncherCall, PACKET_MAX, Share, ShimCall, ShimRequest, Stop,
};
use executor_core::validate::{Draft, Policy, validate};
use executor_sys::seqpacket::{Seqpacket, SeqpacketListener};
use integration::launcher::{Launcher, Payload, Shim, encoded};
use prost::Message as _;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::RecvFlags;

use crate::attack::{Outcome, Scale};

/// Default uid of executord.
const EXECUTORD_UID: u32 = 65_534;
/// Timeout of a request to a shim or a launcher.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Builds the plan of a container that sleeps, with a label that can be found in the plan's bytes.
fn plan(id: &str) -> anyhow::Result<Plan> {
    let labels = [("label".to_owned(), "a".repeat(200))].into();
    let files = vec![("f[0]".to_owned(), "a", 3).into()];
    let draft =
        Draft { id, path: "/bin/sleep", memory_bytes: 64 << 20, labels, files, stdin: true, ..Draft::default() };
    validate(&draft, &Policy::default()).map_err(|why| anyhow::anyhow!("invalid plan: {why:?}"))
}

/// Makes the descriptors of a launch: both ends of the shim's connection (this process's end first) and two payloads.
fn launch_descriptors() -> anyhow::Result<(Seqpacket, OwnedFd, OwnedFd, OwnedFd)> {
    let (ours, theirs) = Seqpacket::pair()?;
    let process = ProcessPayload::strings(b"/bin/sleep", b"/", b"1", &[b"1000"], &[]);
    Ok((ours, theirs.as_fd().try_clone_to_owned()?, encoded(&process).into(), encoded(&[b"one"]).into()))
}

/// Creates a memory file that is sealed only against a change of size, as a compromised executord could.
fn writable(bytes: &[u8]) -> anyhow::Result<File> {
    let file = File::from(memfd_create("plan", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all_at(bytes, 0)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

fn sealed(bytes: &[u8]) -> anyhow::Result<File> {
    let file = writable(bytes)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
}

fn launch(id: &str) -> LauncherCall {
    LauncherCall::Launch(Launch {
        container_id: id.into(),
        request_tag: "tag".into(),
        created_at: 1,
        fits_warm: true,
        network: None,
        ..Launch::default()
    })
}

/// Stops the container of a shim connection and waits for its exit.
fn end(shim: &Seqpacket) {
    let stop = ShimRequest { sequence: 1, call: Some(ShimCall::Stop(Stop { grace_ms: 0, signal: 0 })) };
    let _ = shim.send(&stop.encode_to_vec(), &[]);
    let mut buffer = vec![0; PACKET_MAX];
    while let Ok(Some(_)) = shim.recv(&mut buffer) {}
}

/// Returns a description of the fault if a record is not valid JSON. A shim could write such a record if the plan
/// changed while the shim reads the plan.
fn broken(record: &[u8]) -> Option<String> {
    match std::str::from_utf8(record) {
        Err(error) => Some(format!("a record is not UTF-8: {error}")),
        Ok(text) => {
            serde_json::from_str::<serde_json::Value>(text).err().map(|error| format!("a record is not JSON: {error}"))
        }
    }
}

pub(crate) fn changing(scale: Scale) -> anyhow::Result<Outcome> {
    let launcher = Launcher::start(&[]);
    let (mut taken, mut refused) = (0, 0);
    for attempt in 0..scale.pick(12, 300) {
        let id = format!("c{attempt}");
        let bytes = serde_json::to_vec(&plan(&id)?)?;
        let at = bytes
            .windows(200)
            .position(|window| window.iter().all(|byte| *byte == b'a'))
            .context("the plan has no label")?;
        let file = writable(&bytes)?;
        let (ours, theirs, process, files) = launch_descriptors()?;
        let (ended, also) = (AtomicBool::new(false), file.try_clone()?);
        let record = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Writes alternately an invalid UTF-8 value and the original value.
                while !ended.load(Ordering::Relaxed) {
                    let _ = also.write_all_at(&[0xff; 200], at as u64);
                    let _ = also.write_all_at(&[b'a'; 200], at as u64);
                }
            });
            let fds = [theirs.as_fd(), file.as_fd(), process.as_fd(), files.as_fd()];
            let answer = launcher.call(launch(&id), &fds);
            drop(theirs);
            let record = launcher.run_dir().join("containers").join(&id).join("container.json");
            let shim = Shim(ours);
            let record = match answer {
                LauncherAnswer::Done(_) if shim.reach(State::Running).is_ok() => std::fs::read(record).ok(),
                _ => None,
            };
            ended.store(true, Ordering::Relaxed);
            end(&shim.0);
            record
        });
        match record {
            None => refused += 1,
            Some(record) => {
                taken += 1;
                if let Some(fault) = broken(&record) {
                    return Ok(Outcome::Through(format!("launch {attempt}: {fault}")));
                }
            }
        }
    }
    Ok(Outcome::Held(format!("{refused} launches refused, {taken} accepted with a complete record")))
}

/// Control: an unchanged plan is launched with an intact record, and a damaged record is detected.
pub(crate) fn changing_control(_: Scale) -> anyhow::Result<String> {
    let launcher = Launcher::start(&[]);
    let payload = Payload { args: vec![b"1000"], files: vec![b"one"], ..Payload::default() };
    let shim = launcher.launch(&plan("c")?, &payload).map_err(|why| anyhow::anyhow!("{why:?}"))?;
    shim.reach(State::Running).map_err(|why| anyhow::anyhow!("{why:?}"))?;
    let mut record = std::fs::read(launcher.run_dir().join("containers/c/container.json"))?;
    ensure!(broken(&record).is_none(), "the check reports an intact record as broken");
    let at =
        record.windows(9).position(|window| window == b"aaaaaaaaa").context("the record does not contain the label")?;
    record[at] = 0xff;
    end(&shim.0);
    broken(&record).context("the check does not report a broken record")
}

pub(crate) fn two_ids(scale: Scale) -> anyhow::Result<Outcome> {
    let launcher = Launcher::start(&[]);
    let (mut refused, mut slowest) = (0, Duration::ZERO);
    let mut shims = Vec::new();
    for attempt in 0..scale.pick(3, 20) {
        let plan = sealed(&serde_json::to_vec(&plan(&format!("real{attempt}"))?)?)?;
        let (ours, theirs, process, files) = launch_descriptors()?;
        let begun = Instant::now();
        let fds = [theirs.as_fd(), plan.as_fd(), process.as_fd(), files.as_fd()];
        let answer = launcher.call(launch("other"), &fds);
        slowest = slowest.max(begun.elapsed());
        match answer {
            LauncherAnswer::Done(_) => shims.push((attempt, Shim(ours))),
            _ => refused += 1,
        }
    }
    let mut faults = Vec::new();
    if slowest > Duration::from_secs(2) {
        faults.push(format!("the launcher did not respond to another request for {:.1} s", slowest.as_secs_f64()));
    }
    for (attempt, shim) in shims {
        // The launcher has a record of a running container, and cleans up the container when its shim dies.
        if shim.reach(State::Running).is_err() {
            refused += 1;
            continue;
        }
        let id = format!("real{attempt}");
        let record = launcher.record(&id).context("a running container has no record")?;
        integration::daemon::kill(record.shim.pid, 9);
        let exit = launcher.state_dir().join("containers").join(&id).join("exit.json");
        let begun = Instant::now();
        while !exit.exists() && begun.elapsed() < REQUEST_TIMEOUT {
            std::thread::sleep(Duration::from_millis(10)); // poll: the launcher does not report unknown containers
        }
        if !exit.exists() {
            faults.push(format!("container {id} continues to run without its shim"));
            let init = record.prepared.map(|prepared| prepared.init.pid).unwrap_or_default();
            integration::daemon::kill(init, 9);
        }
    }
    let reported = format!("{refused} launches refused, the slowest response after {:.2} s", slowest.as_secs_f64());
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported))
}

/// Control: a plan with one id is launched, and the launcher cleans up after the shim is killed.
pub(crate) fn two_ids_control(_: Scale) -> anyhow::Result<String> {
    let launcher = Launcher::start(&[]);
    let plan = sealed(&serde_json::to_vec(&plan("real")?)?)?;
    let (ours, theirs, process, files) = launch_descriptors()?;
    let answer = launcher.call(launch("real"), &[theirs.as_fd(), plan.as_fd(), process.as_fd(), files.as_fd()]);
    ensure!(matches!(answer, LauncherAnswer::Done(_)), "{answer:?}");
    Shim(ours).reach(State::Running).map_err(|why| anyhow::anyhow!("{why:?}"))?;
    integration::daemon::kill(launcher.record("real").context("the container has no record")?.shim.pid, 9);
    launcher.exit("real");
    Ok("a container with one id is launched, and cleaned up when its shim is killed".into())
}

/// Starts a container, and returns its shim.
fn running(launcher: &Launcher, id: &str) -> anyhow::Result<Shim> {
    let payload = Payload { args: vec![b"1000"], files: vec![b"one"], ..Payload::default() };
    let shim = launcher.launch(&plan(id)?, &payload).map_err(|why| anyhow::anyhow!("{why:?}"))?;
    shim.reach(State::Running).map_err(|why| anyhow::anyhow!("{why:?}"))?;
    Ok(shim)
}

/// Stops a container and returns the duration, or `None` if the stop exceeds [`REQUEST_TIMEOUT`].
fn stopped(launcher: &Launcher, shim: &Shim, id: &str) -> Option<Duration> {
    let begun = Instant::now();
    shim.ask(ShimCall::Stop(Stop { grace_ms: 0, signal: 0 }));
    let exit = launcher.state_dir().join("containers").join(id).join("exit.json");
    while begun.elapsed() < REQUEST_TIMEOUT {
        if exit.exists() {
            return Some(begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(10)); // poll: there is no notification for the file
    }
    None
}

/// Sends one message to a shim and makes the socket blocking, so that the shim blocks when it receives the next
/// message. In every second round, removes the message before the shim receives it. Returns true if the shim blocks.
fn blocks_shim(pid: i32, ours: &Seqpacket, theirs: &Seqpacket) -> bool {
    let mut buffer = [0; 16];
    for round in 0..500 {
        theirs.set_nonblocking(false);
        let _ = rustix::net::send(ours.as_fd(), b"\x01", rustix::net::SendFlags::DONTWAIT);
        if round % 2 == 1 {
            let _ = rustix::net::recv(theirs.as_fd(), &mut buffer[..], RecvFlags::DONTWAIT);
        }
        std::thread::sleep(Duration::from_millis(2)); // part of the attack: the shim must run before its state is read
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        if call.split(' ').next().and_then(|number| number.parse().ok()) == Some(nix::libc::SYS_recvmsg) {
            return true;
        }
    }
    false
}

pub(crate) fn waiting(scale: Scale) -> anyhow::Result<Outcome> {
    let launcher = Launcher::start(&[]);
    let (mut slowest, mut waited) = (Duration::ZERO, 0);
    for attempt in 0..scale.pick(1, 5) {
        let id = format!("c{attempt}");
        let shim = running(&launcher, &id)?;
        let (ours, theirs) = Seqpacket::pair()?;
        shim.ask_with(ShimCall::Attach(Attach { input: true, ..Attach::default() }), &[theirs.as_fd()]);
        shim.answer().map_err(|why| anyhow::anyhow!("{why:?}"))?;
        let pid = launcher.record(&id).context("the container has no record")?.shim.pid;
        let waits = blocks_shim(pid, &ours, &theirs);
        let took = stopped(&launcher, &shim, &id);
        drop((ours, theirs));
        match took {
            None => {
                stopped(&launcher, &shim, &id);
                return Ok(Outcome::Through(format!("a shim does not stop its container within {REQUEST_TIMEOUT:?}")));
            }
            Some(took) => {
                slowest = slowest.max(took);
                waited += u32::from(waits);
            }
        }
    }
    Ok(Outcome::Held(format!(
        "the shim blocked {waited} times; its container stopped after {:.1} s at most",
        slowest.as_secs_f64()
    )))
}

/// Control: a container whose shim was not attacked stops within [`REQUEST_TIMEOUT`].
pub(crate) fn waiting_control(_: Scale) -> anyhow::Result<String> {
    let launcher = Launcher::start(&[]);
    let shim = running(&launcher, "c")?;
    let took = stopped(&launcher, &shim, "c")
        .context("control failed: a container is not stopped although its shim was not attacked")?;
    Ok(format!("a container whose shim was not attacked stops in {:.2} s", took.as_secs_f64()))
}

/// Script that requests the handle over the socket on standard input, until the handle arrives or some seconds have
/// passed.
const ASKING: &str = include_str!("../probes/handle.py");

fn share() -> String {
    hex::encode(ShimRequest { sequence: 9, call: Some(ShimCall::Share(Share {})) }.encode_to_vec())
}

/// Runs a process of user `user` that requests the handle on a socket. Returns the response to the process.
fn asked(socket: OwnedFd, user: u32) -> anyhow::Result<String> {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", ASKING, &share()]).uid(user).gid(user).current_dir("/").stdin(Stdio::from(socket));
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub(crate) fn handle(_: Scale) -> anyhow::Result<Outcome> {
    let launcher = Launcher::start(&[]);
    let dir = tempfile::tempdir()?;
    // This process acts as a supervisor that binds a socket for executord. executord connects to the socket and has
    // both ends.
    let listener = SeqpacketListener::bind(&dir.path().join("socket"))?;
    let theirs = Seqpacket::connect(&dir.path().join("socket"))?;
    let ours = listener.accept()?;
    let plan = sealed(&serde_json::to_vec(&plan("c")?)?)?;
    let (unused, _, process, files) = launch_descriptors()?;
    drop(unused);
    let fds = [theirs.as_fd(), plan.as_fd(), process.as_fd(), files.as_fd()];
    let answer = launcher.call(launch("c"), &fds);
    drop(theirs);
    if !matches!(answer, LauncherAnswer::Done(_)) {
        return Ok(Outcome::Held(format!("such a connection is refused: {answer:?}")));
    }
    let asking = ours.as_fd().try_clone_to_owned()?;
    let shim = Shim(ours);
    shim.reach(State::Running).map_err(|why| anyhow::anyhow!("{why:?}"))?;
    let got = asked(asking, EXECUTORD_UID)?;
    end(&shim.0);
    Ok(Outcome::new((got == "a handle").then(|| got.clone()), format!("executord's user gets {got}")))
}

/// Control: root gets the handle over a connection to the shim's own socket.
pub(crate) fn handle_control(_: Scale) -> anyhow::Result<String> {
    let launcher = Launcher::start(&[]);
    let _shim = running(&launcher, "c")?;
    let socket = Seqpacket::connect(&launcher.run_dir().join("containers/c/shim.sock"))?;
    let got = asked(socket.as_fd().try_clone_to_owned()?, 0)?;
    ensure!(got == "a handle", "control failed: root gets {got} instead of a handle");
    Ok("root gets the handle on the shim's own socket".into())
}
