//! Captures the outputs of a run, after its process has exited and before its secrets are wiped.
//!
//! ```text
//!  walk    a forked helper: enters the container's mount namespace, changes to the process's user, opens the declared
//!          paths and sends each file to the shim as a descriptor                                  (outputs/walk.rs)
//!  store   the shim: checks each descriptor again and copies it into the state directory           (outputs/store.rs)
//! ```
//! The process that reads the container's tree has no privilege, and the process that writes never enters the
//! container. All processes of the container have exited, so the container cannot change the tree.
//!
//! These are never captured: symbolic links and paths through a symbolic link, secret files (identified by the device
//! of their file system), anything but regular files, files that the process's user may not read, and files beyond the
//! limits (core's `outputs`). Each of them is reported with a reason.
//!
//! The cleanup of the container waits for the capture at most [`CAPTURE_TIMEOUT`], and after a Stop at most the grace
//! period. Files that are not captured within this time are reported as skipped. The helper is killed before the
//! secrets are wiped.

mod store;
mod walk;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use executor_core::outputs::OutputsList;
use executor_core::plan::{OutputSource, Plan, PlannedOutputs, UserNamespace};
use executor_core::record::{ContainerRecord, OutputsRecord};
use executor_sys::events::Events;
use executor_sys::memfile::MemFile;
use executor_sys::process::{self, ChildExit, SignalEvents};
use executor_sys::ready::{is_readable, readable_by};
use executor_sys::seqpacket::Seqpacket;
use executor_sys::userns;
use rustix::fs::fstat;

use super::drain::OutputDrain;
use crate::errors::plain;
use crate::finish::Remains;
use crate::host::Host;
use crate::log::{self, Level};
use crate::shim::running::control::Control;
use store::Store;
use walk::{OutputMessage, OutputSearch};

/// Time limit for capturing outputs.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for leftover processes of a container to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a killed helper to exit.
const HELPER_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Source of the outputs, opened while init exists.
pub(crate) struct OutputsSource {
    planned: PlannedOutputs,
    namespaces: io::Result<Namespaces>,
}

/// Namespaces of the container whose outputs are captured.
pub(crate) struct Namespaces {
    /// Mount namespace.
    pub(crate) mount: OwnedFd,
    /// User namespace, if it is not the host's.
    pub(crate) user: Option<OwnedFd>,
}

impl OutputsSource {
    /// Opens the namespaces of a container that declares outputs. Returns `None` if the container declares none.
    pub(crate) fn from_process(plan: &Plan, init: i32) -> Option<Self> {
        let planned = plan.outputs.clone()?;
        let own = plan.isolation.user_namespace == UserNamespace::Own;
        let namespaces = || {
            let user = own.then(|| userns::open(init)).transpose()?;
            Ok(Namespaces { mount: process::mount_namespace(init)?, user })
        };
        Some(Self { planned, namespaces: namespaces() })
    }
}

/// Captures the outputs and returns the result. If the capture fails, the cleanup of the container continues.
pub(crate) fn capture(
    host: &Host,
    record: &ContainerRecord,
    remains: &Remains,
    source: OutputsSource,
    (control, signals): (&mut Control, &SignalEvents),
    last: &mut OutputDrain<'_>,
) -> OutputsRecord {
    control.heartbeat().start(EXIT_TIMEOUT + HELPER_EXIT_TIMEOUT);
    let mut attention = CaptureEvents { control, signals, last, ends: Instant::now() + CAPTURE_TIMEOUT };
    match attempt(host, record, remains, source, &mut attention) {
        Ok(list) => list.summary(),
        Err(why) => {
            let id = record.plan.id.as_str();
            log::line(Level::Error, id, format_args!("the outputs were not captured: {why}"));
            if let Err(error) = remains.dirs.remove_outputs() {
                log::line(Level::Error, id, format_args!("partially captured outputs were not removed: {error}"));
            }
            OutputsRecord { failure: Some(why), ..OutputsRecord::default() }
        }
    }
}

fn attempt(
    host: &Host,
    record: &ContainerRecord,
    remains: &Remains,
    source: OutputsSource,
    attention: &mut CaptureEvents<'_, '_>,
) -> Result<OutputsList, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {}", plain(&error));
    let OutputsSource { planned, namespaces } = source;
    let namespaces = namespaces.map_err(failed("cannot open the namespaces"))?;
    let prepared = record.prepared.as_ref().ok_or("the container was not prepared")?;
    host.hierarchies.kill_all(&record.cgroup, EXIT_TIMEOUT).map_err(failed("cannot kill the processes"))?;
    let secret_devices = secret_devices(remains).map_err(failed("cannot determine the devices of the secret files"))?;
    let mut store =
        Store::create(&remains.dirs, planned.bytes_max, &secret_devices).map_err(failed("cannot store the outputs"))?;
    let walk = OutputSearch { outputs: &planned.source, user: &prepared.user, secret_devices: &secret_devices };
    let helper = OutputsHelper::fork(&walk, &namespaces).map_err(failed("cannot fork a helper"))?;
    drop(namespaces); // the helper has its own descriptors
    let taken = take_all(&helper, &planned.source, &mut store, attention);
    helper.kill(record.plan.id.as_str());
    taken?;
    store.finish()
}

/// Returns the devices of the file systems with secret files and of the file system of memory files. Files on these
/// file systems are never captured.
fn secret_devices(remains: &Remains) -> io::Result<Vec<u64>> {
    let mut devices = vec![fstat(MemFile::create("outputs", 1)?.as_fd())?.st_dev];
    for volume in &remains.volumes {
        devices.push(fstat(volume.handle())?.st_dev);
    }
    Ok(devices)
}

/// Stores the files that the helper finds, until the helper is done or the time limit is reached.
fn take_all(
    helper: &OutputsHelper,
    declared: &OutputSource,
    store: &mut Store<'_>,
    attention: &mut CaptureEvents<'_, '_>,
) -> Result<(), String> {
    let mut handled = 0;
    let why = loop {
        if let Some(why) = attention.wait(&helper.socket) {
            break why.to_owned();
        }
        match helper.recv() {
            Ok(None) => continue,
            Ok(Some((OutputMessage::Done, _))) => return Ok(()),
            Ok(Some((OutputMessage::Failed(why), _))) => return Err(why),
            Ok(Some((OutputMessage::Skipped { path, reason }, _))) => store.skip(path, reason),
            Ok(Some((OutputMessage::File { path, mode }, Some(file)))) => {
                store.take(path, mode, &file.into(), &mut || attention.poll());
            }
            Ok(Some((OutputMessage::File { path, .. }, None))) => {
                store.skip(path, "the file's descriptor could not be passed");
            }
            Err(why) => break why,
        }
        handled += 1;
        helper.acknowledge();
    };
    let rest: &[PathBuf] = match declared {
        OutputSource::Files(files) => files.get(handled..).unwrap_or_default(),
        OutputSource::Directory(directory) => std::slice::from_ref(directory),
    };
    for path in rest {
        store.skip(path.display().to_string(), &*why);
    }
    Ok(())
}

/// The helper and its socket. The helper waits for one byte after each message.
struct OutputsHelper {
    pid: i32,
    socket: Seqpacket,
}

impl OutputsHelper {
    fn fork(walk: &OutputSearch<'_>, namespaces: &Namespaces) -> io::Result<Self> {
        let (socket, theirs) = Seqpacket::pair()?;
        let parent = std::process::id() as i32;
        match process::fork()? {
            process::Fork::Parent(pid) => Ok(Self { pid, socket }),
            process::Fork::Child => {
                if let Err(error) = walk.execute(namespaces, &theirs, parent) {
                    walk::send(&theirs, &OutputMessage::Failed(plain(&error)), None);
                }
                process::exit_now(0)
            }
        }
    }

    /// Returns the next message. Returns `None` if no message has arrived yet.
    fn recv(&self) -> Result<Option<(OutputMessage, Option<OwnedFd>)>, String> {
        if !is_readable(&self.socket) {
            return Ok(None);
        }
        let mut buffer = vec![0; walk::MESSAGE_MAX];
        let lost = || "the helper process that captures outputs exited".to_owned();
        let (length, fds) = self.socket.recv(&mut buffer).map_err(|error| plain(&error))?.ok_or_else(lost)?;
        let found = serde_json::from_slice(&buffer[..length]).map_err(|error| error.to_string())?;
        Ok(Some((found, fds.into_iter().next())))
    }

    fn acknowledge(&self) {
        let _ = self.socket.send(b"+", &[]); // the next receive detects an exit
    }

    /// Kills and reaps the helper, so that its mount namespace is released.
    fn kill(self, id: &str) {
        let Ok(pidfd) = process::pidfd(self.pid) else { return };
        let _ = process::pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
        if readable_by(&pidfd, Instant::now() + HELPER_EXIT_TIMEOUT).unwrap_or(false) {
            let _: io::Result<ChildExit> = process::wait_for(self.pid);
        } else {
            log::line(Level::Error, id, "the helper process that captures outputs cannot be killed");
        }
    }
}

/// Events that are handled during the capture: commands, clients, host shutdown, and the time limit.
struct CaptureEvents<'a, 'b> {
    control: &'a mut Control,
    signals: &'a SignalEvents,
    last: &'a mut OutputDrain<'b>,
    ends: Instant,
}

impl CaptureEvents<'_, '_> {
    /// Waits for the helper or another event. Returns the reason if capturing must stop.
    fn wait(&mut self, helper: &Seqpacket) -> Option<&'static str> {
        let mut events = Events::default();
        events.read(helper.as_fd(), ());
        self.last.register(&mut events, self.control, self.signals);
        events.due([self.ends]);
        self.control.heartbeat().rest();
        let _ = events.wait(); // the next iteration polls all sources
        self.poll()
    }

    /// Handles pending events without waiting. Returns the reason if capturing must stop.
    fn poll(&mut self) -> Option<&'static str> {
        self.last.poll(self.control, self.signals);
        let now = Instant::now();
        if self.last.stop_asked().is_some_and(|at| at <= now) {
            return Some("the container was stopped before the capture");
        }
        (self.ends <= now).then_some("not captured within 60 s")
    }
}
