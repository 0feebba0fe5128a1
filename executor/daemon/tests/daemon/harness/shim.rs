//! A shim that a test controls.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use executor_core::ident::ProcessIdentity;
use executor_core::lifecycle::State;
use executor_core::logline::{self, Entry, Stream};
use executor_core::payload;
use executor_core::plan::Plan;
use executor_core::protocol::{
    Done, Launch, PACKET_MAX, Reached, Reason, Refused, ShimCall, ShimNews, ShimReport, ShimRequest, state_number,
};
use executor_core::record::{
    ContainerRecord, Exit, ExitRecord, Failure, PreparedContainer, Timings, VolumeKind, WipeRecord,
};
use executor_core::time::Timestamp;
use executor_core::update::FileUpdate;
use executor_core::users::ResolvedUser;
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::{Seqpacket, SeqpacketListener};
use prost::Message as _;
use serde::Serialize;
use tokio::sync::mpsc;

use super::{WAIT_TIMEOUT, hang_up, listen};

/// Reaction to an update of files.
pub(crate) enum OnUpdate {
    /// Apply the update.
    Apply,
    Refuse(Refused),
    /// Refuse the update as stale, as after another daemon's update.
    Stale,
    /// Close the connection without a response.
    Disconnect,
}

/// An update as the daemon sent it.
pub(crate) struct Updated {
    pub(crate) list: FileUpdate,
    pub(crate) contents: Vec<Vec<u8>>,
    pub(crate) signal: i32,
    /// Contents in the memory file, which the daemon overwrites.
    pub(crate) payload: MemFile,
}

pub(crate) struct FakeShim {
    /// Payload of the process, as the launch passed it.
    pub(crate) process: Vec<u8>,
    /// Payload of the files, as the launch passed it.
    pub(crate) files: Vec<u8>,
    shared: Arc<ShimShared>,
    calls: tokio::sync::Mutex<mpsc::UnboundedReceiver<ShimCall>>,
}

struct ShimShared {
    dir: PathBuf,
    record: Mutex<ContainerRecord>,
    connections: Mutex<Vec<Arc<Seqpacket>>>,
    /// Total number of connections so far.
    made: AtomicUsize,
    listener: Mutex<Option<Arc<SeqpacketListener>>>,
    asked: mpsc::UnboundedSender<ShimCall>,
    on_update: Mutex<VecDeque<OnUpdate>>,
    updates: Mutex<Vec<Updated>>,
}

impl FakeShim {
    pub(super) fn fork(dir: &Path, launch: &Launch, fds: Vec<OwnedFd>) -> Self {
        let [connection, plan, process, files] = <[OwnedFd; 4]>::try_from(fds).unwrap();
        let read = |fd| MemFile::from_fd(fd, 1 << 24).unwrap().read(<[u8]>::to_vec).unwrap();
        let plan: Plan = serde_json::from_slice(&read(plan)).unwrap();
        let record = ContainerRecord {
            request_tag: launch.request_tag.clone(),
            ..ContainerRecord::first(plan, (Timestamp(launch.created_at), now()), identity(), "/executor/x".into())
        };
        let (asked, calls) = mpsc::unbounded_channel();
        let shared = Arc::new(ShimShared {
            dir: dir.to_owned(),
            record: Mutex::new(record),
            connections: Mutex::default(),
            made: AtomicUsize::new(0),
            listener: Mutex::new(None),
            asked,
            on_update: Mutex::default(),
            updates: Mutex::default(),
        });
        for dir in [shared.run_dir(), shared.state_dir()] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let connection = Seqpacket::from_peer(connection).unwrap();
        connection.set_nonblocking(false);
        shared.take(connection);
        shared.write_record();
        shared.listen();
        let calls = tokio::sync::Mutex::new(calls);
        Self { process: read(process), files: read(files), shared, calls }
    }

    /// Writes the record of a state, and reports it.
    pub(crate) fn reached(&self, state: State) {
        self.record(state);
        self.report(state);
    }

    /// Writes the record of a state without a report.
    pub(crate) fn record(&self, state: State) {
        {
            let mut record = self.shared.record.lock().unwrap();
            record.state = state;
            if state >= State::Created {
                record.prepared.get_or_insert_with(prepared);
                record.files_generation = record.files_generation.max(1);
            }
            if matches!(state, State::Running | State::Stopping) {
                record.started_at.get_or_insert_with(now);
            }
            record.stopped |= state == State::Stopping;
        }
        self.shared.write_record();
    }

    /// Reports a state without a record.
    pub(crate) fn report(&self, state: State) {
        self.shared.report(ShimNews::Reached(Reached { state: state_number(state) }));
    }

    /// Reports that the container is created and that its process runs.
    pub(crate) fn runs(&self) {
        self.reached(State::Created);
        self.reached(State::Running);
    }

    /// Writes the exit record and removes the run directory, without a report.
    pub(crate) fn write_exit(&self, exit: Option<Exit>, failure: Option<Failure>) {
        self.record_exit(exit, failure);
        let _ = std::fs::remove_dir_all(self.shared.run_dir());
    }

    /// Removes the run directory and disconnects. The exit was reported before.
    pub(crate) fn leaves(&self) {
        let _ = std::fs::remove_dir_all(self.shared.run_dir());
        self.hangs_up();
    }

    /// Writes the exit record, without a report.
    pub(crate) fn record_exit(&self, exit: Option<Exit>, failure: Option<Failure>) {
        let container = self.shared.record.lock().unwrap().clone();
        let wipe = WipeRecord { files: 1, bytes: 2, verified: true, by: "shim".into(), at: now() };
        let timings = Timings { run: Duration::from_millis(5), ..Timings::default() };
        let record = ExitRecord {
            container,
            exit,
            oom_killed: false,
            failure,
            timings,
            wipe: Some(wipe),
            outputs: None,
            output_incomplete: false,
            usage: None,
            termination_message: String::new(),
            finished_at: now(),
        };
        write(&self.shared.state_dir().join("exit.json"), &record);
    }

    /// Writes the exit record with this exit code, reports the completion, and disconnects.
    pub(crate) fn exits(&self, code: i32) {
        self.reached(State::Wiping);
        self.write_exit(Some(Exit::Code(code)), None);
        self.report(State::Completed);
        self.hangs_up();
    }

    pub(crate) fn refuses(&self, refused: Refused) {
        let _ = std::fs::remove_dir_all(self.shared.run_dir());
        let _ = std::fs::remove_dir_all(self.shared.state_dir());
        self.shared.report(ShimNews::Refused(refused));
        self.hangs_up();
    }

    /// Disconnects without a report.
    pub(crate) fn hangs_up(&self) {
        if let Some(listener) = self.shared.listener.lock().unwrap().take() {
            hang_up(&*listener);
        }
        let _ = std::fs::remove_file(self.shared.run_dir().join("shim.sock"));
        self.drops_connections();
    }

    /// Closes the connections, and keeps listening.
    pub(crate) fn drops_connections(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            hang_up(&*connection);
        }
    }

    /// Sends raw bytes on each connection.
    pub(crate) fn sends_raw(&self, bytes: &[u8]) {
        for connection in &*self.shared.connections.lock().unwrap() {
            connection.send(bytes, &[]).unwrap();
        }
    }

    /// Waits for the next call. The shim has already responded to the call.
    pub(crate) async fn next_call(&self) -> ShimCall {
        let mut calls = self.calls.lock().await;
        tokio::time::timeout(WAIT_TIMEOUT, calls.recv()).await.expect("the shim received no call").unwrap()
    }

    /// Sets the reactions to the next updates. Later updates are applied.
    pub(crate) fn on_updates(&self, what: impl IntoIterator<Item = OnUpdate>) {
        self.shared.on_update.lock().unwrap().extend(what);
    }

    /// Takes the received updates.
    pub(crate) fn updates(&self) -> Vec<Updated> {
        std::mem::take(&mut *self.shared.updates.lock().unwrap())
    }

    /// Appends lines to the container's log.
    pub(crate) fn prints(&self, lines: &[&str]) {
        let mut bytes = Vec::new();
        for line in lines {
            let content = line.as_bytes();
            let entry = Entry { time: now(), stream: Stream::Stdout, complete: true, source: "APP", content };
            logline::write(&entry, &mut bytes);
        }
        let path = self.shared.state_dir().join("log");
        let mut file = std::fs::File::options().append(true).create(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
    }

    pub(crate) fn rotates_log(&self) {
        let dir = self.shared.state_dir();
        std::fs::rename(dir.join("log"), dir.join("log.1")).unwrap();
    }

    /// Returns the total number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.made.load(Ordering::SeqCst)
    }

    /// Waits for a connection, as after a restart of the daemon.
    pub(crate) async fn is_connected(&self) {
        super::until("the daemon connects to the shim", || !self.shared.connections.lock().unwrap().is_empty()).await;
    }
}

impl Drop for FakeShim {
    fn drop(&mut self) {
        self.hangs_up();
    }
}

impl ShimShared {
    fn name(&self) -> String {
        self.record.lock().unwrap().plan.id.to_string()
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.join("run/containers").join(self.name())
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.join("state/containers").join(self.name())
    }

    fn write_record(&self) {
        let record = self.record.lock().unwrap().clone();
        write(&self.run_dir().join("container.json"), &record);
    }

    fn listen(self: &Arc<Self>) {
        let path = self.run_dir().join("shim.sock");
        let listener = listen(&path);
        *self.listener.lock().unwrap() = Some(Arc::clone(&listener));
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            while let Ok(connection) = listener.accept() {
                let state = shared.record.lock().unwrap().state;
                let news = ShimNews::Reached(Reached { state: state_number(state) });
                let _ = connection.send(&ShimReport { sequence: 0, news: Some(news) }.encode_to_vec(), &[]);
                let connection = shared.take(connection);
                // The accept was pending when the listener was closed.
                if shared.listener.lock().unwrap().is_none() {
                    hang_up(&*connection);
                }
            }
        });
    }

    fn take(self: &Arc<Self>, connection: Seqpacket) -> Arc<Seqpacket> {
        let connection = Arc::new(connection);
        let taken = Arc::clone(&connection);
        self.connections.lock().unwrap().push(Arc::clone(&connection));
        self.made.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            let mut buffer = vec![0; PACKET_MAX];
            while let Ok(Some((length, fds))) = connection.recv(&mut buffer) {
                let request = ShimRequest::decode(&buffer[..length]).unwrap();
                let call = request.call.unwrap();
                let news = match &call {
                    ShimCall::UpdateFiles(update) => match shared.update(update.signal, fds) {
                        Some(news) => news,
                        None => {
                            hang_up(&*connection);
                            continue;
                        }
                    },
                    _ => ShimNews::Done(Done {}),
                };
                let report = ShimReport { sequence: request.sequence, news: Some(news) };
                let _ = connection.send(&report.encode_to_vec(), &[]);
                let _ = shared.asked.send(call);
            }
            shared.connections.lock().unwrap().retain(|other| !Arc::ptr_eq(other, &connection));
        });
        taken
    }

    /// Returns the response to an update; `None` to close the connection.
    fn update(&self, signal: i32, fds: Vec<OwnedFd>) -> Option<ShimNews> {
        let [list, payload] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        let list =
            MemFile::from_fd(list, 1 << 24).unwrap().read(|bytes| serde_json::from_slice(bytes).unwrap()).unwrap();
        let payload = MemFile::from_fd(payload, 1 << 24).unwrap();
        let strings = |bytes: &[u8]| payload::decode(bytes).unwrap().into_iter().map(<[u8]>::to_vec).collect();
        let contents = payload.read(strings).unwrap();
        let update = Updated { list, contents, signal, payload };
        let on_update = self.on_update.lock().unwrap().pop_front().unwrap_or(OnUpdate::Apply);
        let is_applied = matches!(on_update, OnUpdate::Apply);
        if is_applied || matches!(on_update, OnUpdate::Stale) {
            let mut record = self.record.lock().unwrap();
            record.files_generation += 1;
            record.files_updated_at = Some(now());
            if is_applied {
                record.plan.files.clone_from(&update.list.files);
            }
        }
        self.updates.lock().unwrap().push(update);
        self.write_record();
        Some(match on_update {
            OnUpdate::Apply => {
                self.report(ShimNews::Reached(Reached { state: state_number(State::Running) }));
                ShimNews::Done(Done {})
            }
            OnUpdate::Stale => ShimNews::Refused(Refused::new(Reason::Stale, "overtaken")),
            OnUpdate::Refuse(refused) => ShimNews::Refused(refused),
            OnUpdate::Disconnect => return None,
        })
    }

    fn report(&self, news: ShimNews) {
        let bytes = ShimReport { sequence: 0, news: Some(news) }.encode_to_vec();
        for connection in &*self.connections.lock().unwrap() {
            let _ = connection.send(&bytes, &[]);
        }
    }
}

fn write(path: &Path, record: &impl Serialize) {
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(record).unwrap()).unwrap();
    std::fs::rename(new, path).unwrap();
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

fn identity() -> ProcessIdentity {
    executor_sys::identity::read(std::process::id() as i32).unwrap()
}

fn prepared() -> PreparedContainer {
    PreparedContainer {
        extra_groups: Vec::new(),
        device_environment: Vec::new(),
        init: identity(),
        user: ResolvedUser { uid: 0, gid: 0, groups: Vec::new(), home: "/root".into() },
        mounts: Vec::new(),
        file_groups: std::collections::BTreeMap::new(),
        volume: Some(VolumeKind::TmpfsNoswap),
        nofile: 1024,
        warnings: Vec::new(),
        network: None,
        steps: Vec::new(),
        at: now(),
    }
}
