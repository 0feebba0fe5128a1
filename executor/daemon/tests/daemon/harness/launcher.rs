//! A launcher that a test controls.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use executor_core::protocol::{
    AttachmentCheck, CheckOutcome, Done, Launch, LauncherAnswer, LauncherCall, LauncherReply, LauncherRequest,
    ListedContainer, ListedNetwork, NetworkChecked, NetworkChecks, NetworkList, NetworksListed, PACKET_MAX, Reason,
    Refused, ShimLost, VERSION, WarmPool, Welcome,
};
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::{Seqpacket, SeqpacketListener};
use prost::Message as _;
use tokio::sync::mpsc;

use super::shim::FakeShim;
use super::{WAIT_TIMEOUT, hang_up, listen};

/// Number of containers on the only network of the launcher's list.
pub(crate) const LISTED: u32 = 10_000;

/// Reaction to the next launch.
pub(crate) enum OnLaunch {
    /// Fork a shim for the launch.
    Fork,
    Refuse(Refused),
    /// Close the connection without a response, and fork no shim.
    Disconnect,
}

pub(crate) struct FakeLauncher {
    shared: Arc<LauncherShared>,
    launches: tokio::sync::Mutex<mpsc::UnboundedReceiver<FakeShim>>,
}

struct LauncherShared {
    dir: PathBuf,
    key: Mutex<Vec<u8>>,
    listener: Mutex<Option<Arc<SeqpacketListener>>>,
    connections: Mutex<Vec<Arc<Seqpacket>>>,
    on_launch: Mutex<OnLaunch>,
    calls: Mutex<Vec<String>>,
    greetings: (Mutex<bool>, Condvar),
    launched: mpsc::UnboundedSender<FakeShim>,
}

impl FakeLauncher {
    pub(crate) fn start(dir: &Path) -> Self {
        for part in ["run/containers", "state/containers"] {
            std::fs::create_dir_all(dir.join(part)).unwrap();
        }
        let (launched, launches) = mpsc::unbounded_channel();
        let shared = Arc::new(LauncherShared {
            dir: dir.to_owned(),
            key: Mutex::new(Vec::new()),
            listener: Mutex::new(None),
            connections: Mutex::default(),
            on_launch: Mutex::new(OnLaunch::Fork),
            calls: Mutex::default(),
            greetings: (Mutex::new(true), Condvar::new()),
            launched,
        });
        let launcher = Self { shared, launches: tokio::sync::Mutex::new(launches) };
        launcher.listen();
        launcher
    }

    /// Listens on the launcher's socket. Can be called again after [`Self::die`].
    pub(crate) fn listen(&self) {
        let path = self.shared.dir.join("run/launcher.sock");
        let listener = listen(&path);
        *self.shared.listener.lock().unwrap() = Some(Arc::clone(&listener));
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            while let Ok(connection) = listener.accept() {
                let connection = Arc::new(connection);
                shared.connections.lock().unwrap().push(Arc::clone(&connection));
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.serve(&connection));
            }
        });
    }

    /// Closes the launcher's socket and connections, as if the launcher had exited. The shims keep running.
    pub(crate) fn die(&self) {
        if let Some(listener) = self.shared.listener.lock().unwrap().take() {
            hang_up(&*listener);
        }
        let _ = std::fs::remove_file(self.shared.dir.join("run/launcher.sock"));
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            hang_up(&*connection);
        }
    }

    pub(crate) fn on_launch(&self, what: OnLaunch) {
        *self.shared.on_launch.lock().unwrap() = what;
    }

    /// Waits for the shim of the next launch.
    pub(crate) async fn launched(&self) -> FakeShim {
        let mut launches = self.launches.lock().await;
        tokio::time::timeout(WAIT_TIMEOUT, launches.recv()).await.expect("no container was launched").unwrap()
    }

    /// Reports that a shim has exited and its container is cleaned up.
    pub(crate) fn shim_lost(&self, id: &str) {
        let lost = LauncherAnswer::ShimLost(ShimLost { container_id: id.to_owned(), created_at: 0 });
        let reply = LauncherReply { sequence: 0, answer: Some(lost) }.encode_to_vec();
        for connection in &*self.shared.connections.lock().unwrap() {
            let _ = connection.send(&reply, &[]);
        }
    }

    /// Delays greetings, as a launcher does while it cleans up containers.
    pub(crate) fn hold_greetings(&self) {
        *self.shared.greetings.0.lock().unwrap() = false;
    }

    /// Sends the delayed greetings.
    pub(crate) fn greet(&self) {
        *self.shared.greetings.0.lock().unwrap() = true;
        self.shared.greetings.1.notify_all();
    }

    /// Returns the calls, except for greetings and launches.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.shared.calls.lock().unwrap().clone()
    }
}

impl Drop for FakeLauncher {
    fn drop(&mut self) {
        self.die();
    }
}

/// Returns a list that is larger than a packet: network `web` with [`LISTED`] containers.
fn network_list() -> MemFile {
    let container = |number| ListedContainer { id: format!("listed-{number}"), ..ListedContainer::default() };
    let containers: Vec<_> = (0..LISTED).map(container).collect();
    let (name, container_count) = ("web".into(), LISTED);
    let network = ListedNetwork { name, containers, container_count, ..ListedNetwork::default() };
    let list = NetworkList { networks: vec![network], warnings: Vec::new() };
    MemFile::new("networks", &[&list.encode_to_vec()]).unwrap()
}

impl LauncherShared {
    fn serve(&self, connection: &Seqpacket) {
        let mut buffer = vec![0; PACKET_MAX];
        while let Ok(Some((length, fds))) = connection.recv(&mut buffer) {
            let request = LauncherRequest::decode(&buffer[..length]).unwrap();
            let Some(call) = request.call else {
                // A starting daemon checks whether the launcher is alive.
                let refused = Refused::new(Reason::Invalid, "the request has no call");
                let reply =
                    LauncherReply { sequence: request.sequence, answer: Some(LauncherAnswer::Refused(refused)) };
                let _ = connection.send(&reply.encode_to_vec(), &[]);
                continue;
            };
            let mut listed = None; // descriptor of the response
            let answer = match call {
                LauncherCall::Hello(hello) => {
                    let (greets, changed) = &self.greetings;
                    drop(changed.wait_while(greets.lock().unwrap(), |greets| !*greets).unwrap());
                    let mut key = self.key.lock().unwrap();
                    if key.is_empty() {
                        *key = if hello.tag_key.is_empty() { vec![7; 32] } else { hello.tag_key };
                    }
                    LauncherAnswer::Welcome(Welcome {
                        version: VERSION,
                        tag_key: key.clone(),
                        noswap: true,
                        cgroups: "v2".into(),
                        pid: 1,
                        configuration: None,
                        stale: String::new(),
                    })
                }
                LauncherCall::Launch(launch) => {
                    match std::mem::replace(&mut *self.on_launch.lock().unwrap(), OnLaunch::Fork) {
                        OnLaunch::Fork => self.fork(&launch, fds),
                        OnLaunch::Refuse(refused) => LauncherAnswer::Refused(refused),
                        OnLaunch::Disconnect => {
                            hang_up(connection);
                            return;
                        }
                    }
                }
                LauncherCall::Remove(remove) => {
                    let _ = std::fs::remove_dir_all(self.dir.join("state/containers").join(&remove.container_id));
                    self.calls.lock().unwrap().push(format!("remove {}", remove.container_id));
                    LauncherAnswer::Done(Done {})
                }
                LauncherCall::UnpackLayer(unpack) => {
                    self.calls.lock().unwrap().push(format!("unpack {}", unpack.diff_id));
                    LauncherAnswer::Done(Done {})
                }
                LauncherCall::RemoveLayer(remove) => {
                    self.calls.lock().unwrap().push(format!("remove layer {}", remove.diff_id));
                    LauncherAnswer::Done(Done {})
                }
                LauncherCall::Exec(exec) => {
                    let why = format!("no process is executed in {}", exec.container_id);
                    LauncherAnswer::Refused(Refused::new(Reason::Precondition, why))
                }
                LauncherCall::Archive(_) => {
                    LauncherAnswer::Refused(Refused::new(Reason::Precondition, "no files are copied"))
                }
                LauncherCall::OpenSigner(_) => {
                    LauncherAnswer::Refused(Refused::new(Reason::Precondition, "nothing is signed"))
                }
                LauncherCall::CountWarmPool(_) => LauncherAnswer::WarmPool(WarmPool::default()),
                LauncherCall::ListNetworks(_) => {
                    listed = Some(network_list());
                    LauncherAnswer::NetworksListed(NetworksListed {})
                }
                LauncherCall::CheckNetwork(request) => {
                    let check = AttachmentCheck {
                        id: request.name,
                        outcome: CheckOutcome::Broken.into(),
                        message: "eth0 is gone".into(),
                    };
                    let checks = NetworkChecks { checks: vec![check], unchecked: 3 };
                    listed = Some(MemFile::new("checks", &[&checks.encode_to_vec()]).unwrap());
                    LauncherAnswer::NetworkChecked(NetworkChecked {})
                }
                LauncherCall::OpenNameSockets(_) => {
                    LauncherAnswer::Refused(Refused::new(Reason::Precondition, "no port is free"))
                }
                LauncherCall::MeasureLayers(_) => {
                    LauncherAnswer::Refused(Refused::new(Reason::Internal, "no layer can be measured"))
                }
                LauncherCall::Shutdown(_) => {
                    self.calls.lock().unwrap().push("shutdown".into());
                    LauncherAnswer::Done(Done {})
                }
            };
            let reply = LauncherReply { sequence: request.sequence, answer: Some(answer) };
            let fds: Vec<_> = listed.iter().map(MemFile::as_fd).collect();
            if connection.send(&reply.encode_to_vec(), &fds).is_err() {
                return;
            }
        }
    }

    fn fork(&self, launch: &Launch, fds: Vec<std::os::fd::OwnedFd>) -> LauncherAnswer {
        let _ = self.launched.send(FakeShim::fork(&self.dir, launch, fds));
        LauncherAnswer::Done(Done {})
    }
}
