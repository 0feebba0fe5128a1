//! A launcher for one test. The test sends requests in the daemon's protocol, including requests that a daemon never
//! sends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use executor_core::lifecycle::State;
use executor_core::logline;
use executor_core::payload;
use executor_core::plan::Plan;
use executor_core::protocol::{
    CountWarmPool, Hello, LAUNCH_FDS, Launch, LauncherAnswer, LauncherCall, LauncherReply, LauncherRequest, PACKET_MAX,
    Refused, Remove, ShimCall, ShimNews, ShimReport, ShimRequest, VERSION, state_of,
};
use executor_core::record::{ContainerRecord, ExitRecord};
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;
use prost::Message;
use std::os::fd::{AsFd, BorrowedFd};
use tempfile::TempDir;

use crate::mount::{self, RelocatedDirectory};
use crate::{dist, wait, warm_pool};

/// A running launcher and a connection to it.
pub struct Launcher {
    pub child: Child,
    /// Connection on which the test acts as the daemon.
    pub connection: Seqpacket,
    _state: Option<RelocatedDirectory>,
    dir: TempDir,
    extra: Vec<String>,
}

/// Arguments, environment and files of a container. The plan is separate.
#[derive(Default)]
pub struct Payload<'a> {
    pub args: Vec<&'a [u8]>,
    /// Environment, each entry as `NAME=VALUE`.
    pub env: Vec<&'a [u8]>,
    /// Contents of the plan's files.
    pub files: Vec<&'a [u8]>,
}

/// Memory files of a launch.
pub struct Parts {
    pub plan: MemFile,
    /// The process payload: arguments and environment.
    pub process: MemFile,
    pub files: MemFile,
}

/// Connection to the shim of a launched container.
pub struct Shim(pub Seqpacket);

impl Launcher {
    /// Starts a launcher in a directory of its own.
    pub fn start(extra: &[&str]) -> Self {
        Self::started(extra, "")
    }

    fn started(extra: &[&str], preparation: &str) -> Self {
        let dir = mount::directory_below(Path::new("/run"));
        let state = mount::state(dir.path());
        let extra: Vec<String> = extra.iter().map(|arg| (*arg).to_owned()).collect();
        let (child, connection) = spawn(dir.path(), &extra, preparation);
        Self { child, connection, _state: state, dir, extra }
    }

    /// Starts a launcher from a shell that first runs `preparation`.
    pub fn start_by(preparation: &str) -> Self {
        Self::started(&[], preparation)
    }

    /// Sends SIGKILL to the launcher.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Starts another launcher on the same directories.
    pub fn start_again(&mut self) {
        (self.child, self.connection) = spawn(self.dir.path(), &self.extra, "");
    }

    /// Starts a second launcher on the same directories and captures its messages.
    pub fn spawn_second(&self) -> Child {
        command(self.dir.path(), &self.extra, "").stderr(Stdio::piped()).spawn().expect("the launcher starts")
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Makes a call and returns the response.
    pub fn call(&self, call: LauncherCall, fds: &[BorrowedFd<'_>]) -> LauncherAnswer {
        let request = LauncherRequest { sequence: 7, call: Some(call) };
        self.connection.send(&request.encode_to_vec(), fds).expect("the launcher listens");
        loop {
            let mut buffer = vec![0; PACKET_MAX];
            let (length, _) =
                self.connection.recv(&mut buffer).expect("a response").expect("the launcher is connected");
            let reply = LauncherReply::decode(&buffer[..length]).expect("a reply");
            if reply.sequence == 7 {
                return reply.answer.expect("a response");
            }
        }
    }

    /// Launches a plan.
    ///
    /// # Errors
    /// Returns the launcher's refusal if the call fails.
    pub fn launch(&self, plan: &Plan, payload: &Payload<'_>) -> Result<Shim, Refused> {
        let (ours, theirs) = Seqpacket::pair().expect("socketpair");
        self.launch_forged(plan.id.as_str(), theirs.as_fd(), &Parts::new(plan, payload).fds())?;
        Ok(Shim(ours))
    }

    /// Launches any content of `parts`, as a compromised daemon may.
    ///
    /// # Errors
    /// Returns the launcher's refusal if the call fails.
    pub fn launch_forged(
        &self,
        id: &str,
        connection: BorrowedFd<'_>,
        parts: &[BorrowedFd<'_>; 3],
    ) -> Result<(), Refused> {
        let fds = [&[connection], &parts[..]].concat();
        assert_eq!(fds.len(), LAUNCH_FDS.len());
        let launch = Launch {
            container_id: id.into(),
            request_tag: "tag".into(),
            created_at: 1,
            fits_warm: true, // the shim verifies this
            network: None,
            ..Launch::default()
        };
        match self.call(LauncherCall::Launch(launch), &fds) {
            LauncherAnswer::Done(_) => Ok(()),
            LauncherAnswer::Refused(refused) => Err(refused),
            other => panic!("unexpected response of the launcher: {other:?}"),
        }
    }

    /// Removes a completed container.
    pub fn remove(&self, id: &str) -> LauncherAnswer {
        self.call(LauncherCall::Remove(Remove { container_id: id.into() }), &[])
    }

    /// Returns the record of a running container.
    pub fn record(&self, id: &str) -> Option<ContainerRecord> {
        let bytes = std::fs::read(self.run_dir().join("containers").join(id).join("container.json")).ok()?;
        Some(serde_json::from_slice(&bytes).expect("a record"))
    }

    /// Waits for the exit record of a container.
    pub fn exit(&self, id: &str) -> ExitRecord {
        let path = self.state_dir().join("containers").join(id).join("exit.json");
        let bytes = wait::until(&format!("{}", path.display()), || std::fs::read(&path).ok());
        serde_json::from_slice(&bytes).expect("an exit record")
    }

    /// Waits until a container has released all host resources after its exit was reported. The container's run
    /// directory is removed last.
    pub fn wait_until_removed(&self, id: &str) {
        let path = self.run_dir().join("containers").join(id);
        wait::until("the container is removed", || (!path.exists()).then_some(()));
    }

    /// Returns the output of a container from its log file. The parts of a split line (with the tag `P`, or `F` for the
    /// last part) are joined.
    pub fn log(&self, id: &str) -> String {
        let path = self.state_dir().join("containers").join(id).join("log");
        let (mut lines, mut part_of) = (Vec::<String>::new(), None);
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            let Some(logline::Line::Entry(entry)) = logline::parse(line.as_bytes()) else { continue }; // still being written
            match lines.last_mut() {
                Some(last) if part_of == Some(entry.stream) => last.push_str(&String::from_utf8_lossy(entry.content)),
                _ => lines.push(line.to_owned()),
            }
            part_of = (!entry.complete).then_some(entry.stream);
        }
        lines.join("\n")
    }
}

impl Parts {
    /// Encodes a plan and a payload as a daemon does.
    pub fn new(plan: &Plan, payload: &Payload<'_>) -> Self {
        let main = plan.main().expect("a process");
        let count = payload.args.len().to_string();
        let process = payload::ProcessPayload::strings(
            main.path.as_bytes(),
            main.dir.as_bytes(),
            count.as_bytes(),
            &payload.args,
            &payload.env,
        );
        let plan_json = serde_json::to_vec(plan).expect("a plan is JSON");
        let mut plan = MemFile::create("plan", plan_json.len()).expect("memfd");
        plan.fill(|bytes| bytes.copy_from_slice(&plan_json)).expect("fill");
        Self { plan, process: encoded(&process), files: encoded(&payload.files) }
    }

    /// Returns the descriptors in the order of the launch protocol.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.plan.as_fd(), self.process.as_fd(), self.files.as_fd()]
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Stop the containers of a failed test first, so that the launcher leaves no resources behind.
        end_containers(&self.run_dir());
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.child.wait();
    }
}

impl Shim {
    /// Waits for a state or for the shim's refusal.
    ///
    /// # Errors
    /// Returns the shim's refusal if the call fails.
    pub fn reach(&self, wanted: State) -> Result<(), Refused> {
        let mut buffer = vec![0; PACKET_MAX];
        loop {
            let received = self.0.recv(&mut buffer).expect("a report");
            let (length, _) = received.unwrap_or_else(|| panic!("the shim exited before it was {}", wanted.name()));
            match ShimReport::decode(&buffer[..length]).expect("a report").news {
                Some(ShimNews::Reached(reached)) if state_of(reached.state).is_some_and(|state| state >= wanted) => {
                    return Ok(());
                }
                Some(ShimNews::Refused(refused)) => return Err(refused),
                _ => {}
            }
        }
    }

    /// Sends a call to the shim.
    pub fn ask(&self, call: ShimCall) {
        self.ask_with(call, &[]);
    }

    /// Sends a call to the shim, with descriptors.
    pub fn ask_with(&self, call: ShimCall, fds: &[BorrowedFd<'_>]) {
        self.0.send(&ShimRequest { sequence: 9, call: Some(call) }.encode_to_vec(), fds).expect("the shim listens");
    }

    /// Waits for the response to the last call.
    ///
    /// # Errors
    /// Returns the shim's refusal if the call fails.
    pub fn answer(&self) -> Result<(), Refused> {
        let mut buffer = vec![0; PACKET_MAX];
        loop {
            let (length, _) = self.0.recv(&mut buffer).expect("a response").expect("the shim is connected");
            let report = ShimReport::decode(&buffer[..length]).expect("a report");
            match report.news {
                Some(ShimNews::Done(_)) if report.sequence == 9 => return Ok(()),
                Some(ShimNews::Refused(refused)) if report.sequence == 9 => return Err(refused),
                _ => {}
            }
        }
    }
}

/// Stops every container below a run directory through its shim, without a daemon or launcher, and waits until the
/// shims have exited.
pub fn end_containers(run_dir: &Path) {
    for id in std::fs::read_dir(run_dir.join("containers")).into_iter().flatten().flatten() {
        if let Ok(shim) = Seqpacket::connect(&id.path().join("shim.sock")) {
            let stop = ShimCall::Stop(executor_core::protocol::Stop { grace_ms: 0, signal: 0 });
            let _ = shim.send(&ShimRequest { sequence: 1, call: Some(stop) }.encode_to_vec(), &[]);
            let mut buffer = vec![0; PACKET_MAX];
            while let Ok(Some(_)) = shim.recv(&mut buffer) {}
        }
    }
}

/// Encodes strings as a payload.
pub fn encoded(strings: &[&[u8]]) -> MemFile {
    let length = payload::encoded_len(strings.iter().copied());
    let mut file = MemFile::create("payload", length).expect("memfd");
    file.fill(|bytes| payload::encode(strings.iter().copied(), bytes)).expect("fill");
    file
}

fn command(dir: &Path, extra: &[String], preparation: &str) -> Command {
    let is_configured = preparation.contains("--config") || extra.iter().any(|one| one.starts_with("--config"));
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{preparation} exec \"$@\""))
        .arg("sh")
        .arg(dist::binary("executor-launcher"))
        .arg("--run-dir")
        .arg(dir.join("run"))
        .arg("--state-dir")
        .arg(dir.join("state"))
        .args(["--daemon-user", "0"])
        .args(if is_configured { Vec::new() } else { warm_pool::arguments(dir, "") })
        .args(extra)
        .stdin(Stdio::null());
    command
}

fn spawn(dir: &Path, extra: &[String], preparation: &str) -> (Child, Seqpacket) {
    let mut child = command(dir, extra, preparation).spawn().expect("the launcher starts");
    let socket = dir.join("run/launcher.sock");
    let connection = wait::until("the launcher's socket", || {
        if let Some(status) = child.try_wait().expect("wait") {
            panic!("the launcher exited during its start ({status})");
        }
        Seqpacket::connect_to_living(&socket).ok()
    });
    let hello = LauncherRequest {
        sequence: 1,
        call: Some(LauncherCall::Hello(Hello { version: VERSION, tag_key: Vec::new(), configuration: None })),
    };
    connection.send(&hello.encode_to_vec(), &[]).expect("hello");
    let mut buffer = vec![0; PACKET_MAX];
    connection.recv(&mut buffer).expect("welcome").expect("welcome");
    wait::until("the warm pool is full", || {
        let request = LauncherRequest { sequence: 2, call: Some(LauncherCall::CountWarmPool(CountWarmPool {})) };
        connection.send(&request.encode_to_vec(), &[]).expect("count");
        let (length, _) = connection.recv(&mut buffer).expect("counts").expect("counts");
        let reply = LauncherReply::decode(&buffer[..length]).expect("a reply");
        matches!(reply.answer, Some(LauncherAnswer::WarmPool(counts)) if counts.ready == counts.configured)
            .then_some(())
    });
    (child, connection)
}
