//! Kills executor-cri, executord or the launcher at each of its system calls during the life cycle of a Kubernetes pod.
//!
//! A cycle consists of a kubelet's calls for a pod of one container on a CNI network: RunPodSandbox, CreateContainer,
//! StartContainer, ExecSync, StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox. A failed call is
//! repeated until it succeeds, as by a kubelet. Exited processes are restarted as by a supervisor. Afterwards the
//! container must have run exactly once, and none of the three processes may have leftovers of the pod.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum;
use executor_cri_api::v1::image_service_client::ImageServiceClient;
use executor_cri_api::v1::runtime_service_client::RuntimeServiceClient;
use executor_cri_api::v1::{
    ContainerConfig, ContainerMetadata, ContainerState, ContainerStatus, ContainerStatusRequest,
    CreateContainerRequest, ExecSyncRequest, ImageSpec, LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata,
    PullImageRequest, RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest,
    StopContainerRequest, StopPodSandboxRequest,
};
use executor_sys::process::pidfd;
use integration::cri::{self, POLICY};
use integration::footprint::Footprint;
use integration::images::{HandmadeLayer, HandmadeLayout};
use integration::network::Network;
use integration::supervised::{Part, Supervised};
use integration::wait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::evaluate::{CLEANUP_TIMEOUT, Fate, Verdict};
use crate::sweep::{Kill, Outcome};
use crate::tracer::{Counted, StopAction, Trace, TraceTarget};
use crate::{Node, calls};

/// Time limit of a call with its retries.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause before a retry.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PodTarget {
    /// executor-cri
    Cri,
    /// executord
    Executord,
    /// executor-launcher
    Launcher,
}

/// Name of the kubelet's current call.
type Step = Arc<Mutex<&'static str>>;

/// A node for Kubernetes on which many pods are run.
pub(crate) struct Pods {
    cri: Child,
    channel: Channel,
    runtime: Runtime,
    node: Supervised,
    before: Footprint,
    /// Network objects that exist without a pod.
    at_rest: Vec<String>,
    image: String,
    cycles: u64,
    logs: tempfile::TempDir,
    network: Network,
}

impl Pods {
    /// Starts a node and runs one pod without a kill.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let (network, logs) = (Network::new(), tempfile::tempdir_in("/run")?);
        network.configure("10-test.conflist", "test", &[]);
        let toml =
            format!("[policy]\n{}{POLICY}log_dirs = [{:?}]\n[warm_pool]\nsize = 0\n", network.policy(), logs.path());
        let node = Supervised::on_host(&toml, Some(network.namespace()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (cri, channel) = cri::spawn(node.home(), &node.run_dir().join("executor.sock"), &runtime);
        let layout = HandmadeLayout::from_image(&json!({}), &[HandmadeLayer::busybox()]);
        let spec = ImageSpec { image: layout.reference(), ..ImageSpec::default() };
        let request = PullImageRequest { image: Some(spec), ..PullImageRequest::default() };
        let pulled = runtime.block_on(ImageServiceClient::new(channel.clone()).pull_image(request))?;
        let image = pulled.into_inner().image_ref;
        let (before, at_rest) = (node.footprint(), Vec::new());
        let mut pods = Self { cri, channel, runtime, node, before, at_rest, image, cycles: 0, logs, network };
        for _ in 0..2 {
            let (cycle, log) = pods.next_cycle(&Step::default());
            pods.runtime.block_on(cycle).map_err(anyhow::Error::msg)?;
            anyhow::ensure!(
                starts(&log) == 1,
                "without a kill, the pod's container started {} times, expected 1",
                starts(&log)
            );
        }
        pods.node.wait_until_back_at(&pods.before, CLEANUP_TIMEOUT).map_err(anyhow::Error::msg)?;
        pods.before = pods.node.footprint();
        pods.at_rest = pods.network_objects();
        Ok(pods)
    }

    /// Returns the next pod's life cycle, and the path of its container's log.
    fn next_cycle(
        &mut self,
        step: &Step,
    ) -> (impl Future<Output = Result<ContainerStatus, String>> + Send + use<>, String) {
        self.cycles += 1;
        let name = format!("pod-{}", self.cycles);
        let log_directory = self.logs.path().join(&name).display().to_string();
        let log = format!("{log_directory}/0.log");
        let metadata =
            PodSandboxMetadata { name: name.clone(), uid: format!("uid-{name}"), namespace: "test".into(), attempt: 0 };
        let sandbox = PodSandboxConfig {
            metadata: Some(metadata),
            log_directory,
            linux: Some(LinuxPodSandboxConfig::default()),
            ..PodSandboxConfig::default()
        };
        let container = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "c".into(), attempt: 0 }),
            image: Some(ImageSpec { image: self.image.clone(), ..ImageSpec::default() }),
            command: ["sh", "-c", "echo started; exec sleep 100000"].map(String::from).to_vec(),
            log_path: "0.log".into(),
            ..ContainerConfig::default()
        };
        let kubelet = Kubelet { runtime: RuntimeServiceClient::new(self.channel.clone()), step: Arc::clone(step) };
        (kubelet.run_cycle(sandbox, container), log)
    }

    fn network_objects(&self) -> Vec<String> {
        self.network.leftovers_in(&self.node.run_dir(), &self.node.state_dir())
    }

    fn pid(&self, target: PodTarget) -> i32 {
        match target {
            PodTarget::Cri => self.cri.id() as i32,
            PodTarget::Executord => self.node.pid(Part::Executord),
            PodTarget::Launcher => self.node.pid(Part::Launcher),
        }
    }

    /// Waits until the killed process has exited, and restarts exited processes. Waiting for a child would consume the
    /// tracer's stops, so the exit is detected through a pidfd.
    ///
    /// # Errors
    /// Returns an error if the killed process or a restart takes too long.
    fn revive(&mut self, target: PodTarget, killed: &OwnedFd) -> Result<(), String> {
        let has_ended = || match poll(&mut [PollFd::new(killed, PollFlags::IN)], Some(&Timespec::default())) {
            Ok(0) => Err("the killed process has not exited".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("cannot poll the killed process: {error}")),
        };
        wait::within(wait::DEFAULT_TIMEOUT, has_ended)?;
        self.node.revive()?;
        if target == PodTarget::Cri {
            let _ = self.cri.wait();
            let socket = self.node.run_dir().join("executor.sock");
            (self.cri, self.channel) = cri::spawn(self.node.home(), &socket, &self.runtime);
        }
        Ok(())
    }

    /// Checks that a pod has no leftovers.
    fn check(&self, log: &str, ended: Result<ContainerStatus, String>) -> Verdict {
        let mut verdict = Verdict::default();
        match ended {
            Ok(status) if (status.exit_code, &*status.reason) == (137, "Error") => verdict.fate = Some(Fate::Known),
            Ok(status) => verdict.wrong.push(format!("the kubelet did not stop the container: {status:?}")),
            Err(why) => verdict.wrong.push(why),
        }
        if starts(log) != 1 {
            verdict.wrong.push(format!("the container was started {} times, expected 1", starts(log)));
        }
        let tidy = wait::within(CLEANUP_TIMEOUT, || {
            let mut left = self.node.footprint().added_since(&self.before);
            let kinds = ["sandboxes", "containers"].map(|kind| self.node.home().join("cri").join(kind));
            let records = kinds.iter().flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
            records.for_each(|record| left += &format!("record: {}\n", record.display()));
            let objects = self.network_objects();
            if objects != self.at_rest {
                left += &format!("network: {objects:?}\n");
            }
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        verdict.wrong.extend(tidy.err());
        verdict
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let _ = self.cri.kill();
        let _ = self.cri.wait();
    }
}

/// Returns the number of starts in a container's log.
fn starts(log: &str) -> usize {
    fs::read_to_string(Path::new(log)).unwrap_or_default().matches("started").count()
}

/// A client that makes the calls of a kubelet.
struct Kubelet {
    runtime: RuntimeServiceClient<Channel>,
    step: Step,
}

impl Kubelet {
    /// Runs a pod to its removal. Returns the status of its stopped container.
    async fn run_cycle(self, sandbox: PodSandboxConfig, container: ContainerConfig) -> Result<ContainerStatus, String> {
        let runtime = || self.runtime.clone();
        let run = RunPodSandboxRequest { config: Some(sandbox.clone()), ..RunPodSandboxRequest::default() };
        let call = || async { runtime().run_pod_sandbox(run.clone()).await };
        let pod_sandbox_id = self.until_ok("RunPodSandbox", call).await?.pod_sandbox_id;
        let create = CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
            config: Some(container),
            sandbox_config: Some(sandbox),
        };
        let call = || async { runtime().create_container(create.clone()).await };
        let container_id = self.until_ok("CreateContainer", call).await?.container_id;
        let status = || async {
            let request = ContainerStatusRequest { container_id: container_id.clone(), verbose: false };
            runtime().container_status(request).await
        };
        let start = StartContainerRequest { container_id: container_id.clone() };
        // A kubelet reads the status before it starts a container again.
        let call = || async {
            let state = status().await?.into_inner().status.unwrap_or_default().state();
            match state {
                ContainerState::ContainerRunning => Ok(Response::new(Default::default())),
                _ => runtime().start_container(start.clone()).await,
            }
        };
        self.until_ok("StartContainer", call).await?;
        let cmd = ["echo", "x"].map(String::from).to_vec();
        let exec = ExecSyncRequest { container_id: container_id.clone(), cmd, timeout: 10 };
        let executed = self.until_ok("ExecSync", || async { runtime().exec_sync(exec.clone()).await }).await?;
        if executed.stdout != b"x\n" {
            return Err(format!("ExecSync: {executed:?}"));
        }
        let stop = StopContainerRequest { container_id: container_id.clone(), timeout: 0 };
        self.until_ok("StopContainer", || async { runtime().stop_container(stop.clone()).await }).await?;
        let stopped = self.until_ok("ContainerStatus", status).await?.status.unwrap_or_default();
        let remove = RemoveContainerRequest { container_id };
        self.until_ok("RemoveContainer", || async { runtime().remove_container(remove.clone()).await }).await?;
        let stop = StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
        self.until_ok("StopPodSandbox", || async { runtime().stop_pod_sandbox(stop.clone()).await }).await?;
        let remove = RemovePodSandboxRequest { pod_sandbox_id };
        self.until_ok("RemovePodSandbox", || async { runtime().remove_pod_sandbox(remove.clone()).await }).await?;
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = "after the pod";
        Ok(stopped)
    }

    /// Makes a call until it succeeds.
    async fn until_ok<T, F>(&self, step: &'static str, call: impl Fn() -> F) -> Result<T, String>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = step;
        let since = Instant::now();
        loop {
            match call().await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(error) if is_final(error.code()) || since.elapsed() > CALL_TIMEOUT => {
                    return Err(format!("{step}: {:?} {}", error.code(), error.message()));
                }
                Err(_) => tokio::time::sleep(RETRY_DELAY).await, // between two attempts
            }
        }
    }
}

/// Returns true if a retry cannot succeed.
fn is_final(code: Code) -> bool {
    matches!(code, Code::NotFound | Code::AlreadyExists | Code::InvalidArgument | Code::PermissionDenied)
}

impl Node for Pods {
    type Target = PodTarget;

    fn name(target: PodTarget) -> &'static str {
        match target {
            PodTarget::Cri => "cri",
            PodTarget::Executord => "executord",
            PodTarget::Launcher => "launcher",
        }
    }

    fn replay(target: PodTarget, at: u64) -> String {
        format!("--pods {} --at {at}", Self::name(target))
    }

    fn logged(&self) -> String {
        let cri = fs::read_to_string(self.node.home().join("cri.log")).unwrap_or_default();
        format!("{}{cri}", self.node.logged())
    }

    fn renew(&mut self) -> anyhow::Result<()> {
        *self = Self::new()?;
        Ok(())
    }

    fn kill_at(&mut self, target: PodTarget, at: u64) -> anyhow::Result<Outcome> {
        let (step, (reported, kills), victim) = (Step::default(), mpsc::channel(), self.pid(target));
        let pidfd = pidfd(victim).context("cannot open a pidfd")?;
        let act = {
            let step = Arc::clone(&step);
            move |shot: &crate::tracer::StoppedCall| {
                let phase = step.lock().unwrap_or_else(PoisonError::into_inner).to_owned();
                let _ = reported.send(Kill { at: shot.call, call: calls::name(shot.number), phase });
                StopAction::Kill
            }
        };
        let trace = Trace::start(TraceTarget::Living(victim), (Counted::All, at), act)
            .context("cannot attach to the process")?;
        let (cycle, log) = self.next_cycle(&step);
        let cycle = self.runtime.spawn(cycle);
        let (mut kill, mut revived) = (None, Ok(()));
        while kill.is_none() && !cycle.is_finished() {
            kill = kills.recv_timeout(Duration::from_millis(1)).ok();
        }
        if kill.is_some() {
            revived = self.revive(target, &pidfd);
        }
        let ended = self.runtime.block_on(cycle).context("the kubelet failed")?;
        let seen = trace.end().context("cannot trace the process")?;
        if kill.is_none() && seen.shot.is_some() {
            // The kill happened after the last call by the kubelet.
            kill = kills.recv_timeout(Duration::from_secs(1)).ok();
            revived = revived.and_then(|()| self.revive(target, &pidfd));
        }
        let mut verdict = match revived {
            Ok(()) => self.check(&log, ended),
            Err(why) => Verdict { wrong: vec![why], ..Verdict::default() },
        };
        if let (Some(kill), false) = (&kill, verdict.wrong.is_empty()) {
            verdict.wrong.push(format!("killed during {}", kill.phase));
        }
        Ok(Outcome { kill, calls: seen.calls, verdict })
    }
}
