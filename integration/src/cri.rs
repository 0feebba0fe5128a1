//! A Kubernetes node: executord with its launcher, executor-cri, and CRI clients.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use executor_cri_api::v1::image_service_client::ImageServiceClient;
use executor_cri_api::v1::runtime_service_client::RuntimeServiceClient;
use executor_cri_api::v1::{
    ContainerConfig, ContainerMetadata, ContainerState, ContainerStatus, ContainerStatusRequest,
    CreateContainerRequest, ExecSyncRequest, ExecSyncResponse, ImageSpec, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    PodSandboxStatus, PodSandboxStatusRequest, PullImageRequest, RemoveContainerRequest, RemovePodSandboxRequest,
    RunPodSandboxRequest, StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};

use crate::daemon::{Daemon, Setup};
use crate::dist;
use crate::images::{Endpoint as Server, HandmadeLayer, HandmadeLayout};
use crate::wait;

/// Keys of `[policy]` that a node for Kubernetes needs.
pub const POLICY: &str = "allow_privileged = true\nallow_host_network = true\nallow_host_userns = true\n\
     allow_host_pid = true\nallow_host_ipc = true\nallow_egress = true\nallow_connect = true\n\
     allow_new_privileges = true\nallow_no_seccomp = true\nallow_unmasked = true\nallow_no_limits = true\n\
     host_ids_sysctls = true\ncni_args = true\nkeep_until_deleted_max = 1000\ncapabilities_allowed = [\"ALL\"]\nports_allowed = [\"1-65535\"]\n";

/// A Kubernetes node. executor-cri is killed when this value is dropped.
pub struct KubernetesNode {
    pub daemon: Daemon,
    cri: Child,
    /// Tokio runtime that drives the connection to executor-cri.
    executor: Runtime,
    channel: Channel,
    /// Reference of an image with busybox that is in the image store.
    pub image: String,
    _layout: HandmadeLayout,
}

impl Drop for KubernetesNode {
    fn drop(&mut self) {
        let _ = self.cri.kill();
        let _ = self.cri.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.daemon.setup().home().join("cri.log"));
            eprintln!("--- log of executor-cri:\n{}", log.unwrap_or_default());
        }
    }
}

/// A port of 127.0.0.1 that refuses connections: its socket does not listen. No other process gets the port while this
/// value exists.
pub struct RefusingPort(TcpListener);

impl RefusingPort {
    /// Binds a free port.
    pub fn bind() -> Self {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        // The type has `local_addr`; the conversion does not call `listen`.
        Self(TcpListener::from(socket))
    }
}

impl Server for RefusingPort {
    fn port(&self) -> u16 {
        self.0.local_addr().expect("an address").port()
    }
}

/// Returns the directory for the logs of pods.
pub fn log_dir(setup: &Setup) -> PathBuf {
    setup.home().join("pods")
}

impl KubernetesNode {
    /// Starts a node on this host whose pods use the host's network.
    pub fn start() -> Self {
        let setup = Setup::default();
        let config = format!("[policy]\n{POLICY}log_dirs = [{:?}]\n", log_dir(&setup));
        Self::with(setup.config(&config))
    }

    /// Starts a node with an executord of this configuration.
    pub fn with(setup: Setup) -> Self {
        let logs = log_dir(&setup);
        fs::create_dir(&logs).expect("mkdir");
        fs::set_permissions(&logs, fs::Permissions::from_mode(0o755)).expect("chmod");
        let daemon = setup.start();
        let executor =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (cri, channel) = spawn_for(&daemon, &executor);
        let layout = HandmadeLayout::from_image(&json!({}), &[HandmadeLayer::busybox()]);
        let mut node = Self { daemon, cri, executor, channel, image: String::new(), _layout: layout };
        let image = ImageSpec { image: node._layout.reference(), ..ImageSpec::default() };
        let mut images = node.images();
        let pulled = node
            .block_on(async { images.pull_image(PullImageRequest { image: Some(image), ..Default::default() }).await });
        node.image = pulled.expect("the image").into_inner().image_ref;
        node
    }

    /// Kills executor-cri with SIGKILL and starts it again.
    pub fn restart_cri(&mut self) {
        self.cri.kill().expect("kill");
        self.cri.wait().expect("wait");
        (self.cri, self.channel) = spawn_for(&self.daemon, &self.executor);
    }

    /// Simulates a restart of the host: kills all processes, empties the run directory and changes the boot id.
    /// Requires [`Setup::simulate_boots`].
    pub fn reboot(&mut self) {
        self.cri.kill().expect("kill");
        self.cri.wait().expect("wait");
        self.daemon.reboot();
        (self.cri, self.channel) = spawn_for(&self.daemon, &self.executor);
    }

    /// Returns the pid of executor-cri.
    pub fn pid(&self) -> u32 {
        self.cri.id()
    }

    /// Returns the directory with the records of executor-cri.
    pub fn records(&self) -> PathBuf {
        self.daemon.setup().home().join("cri")
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.executor.block_on(future)
    }

    /// Starts a call in the background.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.executor.spawn(future)
    }

    pub fn runtime(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(64 << 20)
    }

    /// Returns the low-level client, for calls with messages that the test defines.
    pub fn client(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone())
    }

    pub fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone())
    }

    pub fn run_sandbox(&self, config: &PodSandboxConfig) -> Result<String, Status> {
        let request = RunPodSandboxRequest { config: Some(config.clone()), ..RunPodSandboxRequest::default() };
        let mut runtime = self.runtime();
        Ok(self.block_on(runtime.run_pod_sandbox(request))?.into_inner().pod_sandbox_id)
    }

    pub fn stop_sandbox(&self, id: &str) -> Result<(), Status> {
        let mut runtime = self.runtime();
        self.block_on(runtime.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: id.into() })).map(drop)
    }

    pub fn remove_sandbox(&self, id: &str) -> Result<(), Status> {
        let mut runtime = self.runtime();
        self.block_on(runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: id.into() })).map(drop)
    }

    pub fn create(&self, sandbox: &str, config: &ContainerConfig) -> Result<String, Status> {
        let mut runtime = self.runtime();
        let (pod_sandbox_id, config) = (sandbox.into(), Some(config.clone()));
        let request = CreateContainerRequest { pod_sandbox_id, config, ..CreateContainerRequest::default() };
        Ok(self.block_on(runtime.create_container(request))?.into_inner().container_id)
    }

    pub fn start_container(&self, id: &str) -> Result<(), Status> {
        let mut runtime = self.runtime();
        self.block_on(runtime.start_container(StartContainerRequest { container_id: id.into() })).map(drop)
    }

    pub fn stop_container(&self, id: &str, timeout: i64) -> Result<(), Status> {
        let mut runtime = self.runtime();
        self.block_on(runtime.stop_container(StopContainerRequest { container_id: id.into(), timeout })).map(drop)
    }

    pub fn remove_container(&self, id: &str) -> Result<(), Status> {
        let mut runtime = self.runtime();
        self.block_on(runtime.remove_container(RemoveContainerRequest { container_id: id.into() })).map(drop)
    }

    pub fn status(&self, id: &str) -> Result<ContainerStatus, Status> {
        let mut runtime = self.runtime();
        let request = ContainerStatusRequest { container_id: id.into(), verbose: false };
        Ok(self.block_on(runtime.container_status(request))?.into_inner().status.expect("a status"))
    }

    pub fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus, Status> {
        let mut runtime = self.runtime();
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        Ok(self.block_on(runtime.pod_sandbox_status(request))?.into_inner().status.expect("a status"))
    }

    pub fn exec(&self, id: &str, command: &[&str], timeout: i64) -> Result<ExecSyncResponse, Status> {
        let mut runtime = self.runtime();
        let cmd = command.iter().map(|&word| word.into()).collect();
        let request = ExecSyncRequest { container_id: id.into(), cmd, timeout };
        Ok(self.block_on(runtime.exec_sync(request))?.into_inner())
    }

    pub fn started(&self, sandbox: &str, config: &ContainerConfig) -> String {
        let id = self.create(sandbox, config).expect("created");
        self.start_container(&id).expect("started");
        id
    }

    /// Waits until the status of a container reports its exit, as a kubelet does.
    pub fn until_ended(&self, id: &str) -> ContainerStatus {
        wait::until("the container has exited", || {
            Some(self.status(id).expect("a status")).filter(|status| status.state() == ContainerState::ContainerExited)
        })
    }

    /// Returns the configuration of a container that executes a shell script.
    pub fn script(&self, name: &str, script: &str) -> ContainerConfig {
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(ImageSpec { image: self.image.clone(), ..ImageSpec::default() }),
            command: ["sh", "-c", script].map(String::from).to_vec(),
            ..ContainerConfig::default()
        }
    }

    /// Returns the configuration of a sandbox on the host's network. Each container has its own PID namespace.
    pub fn sandbox(&self, name: &str) -> PodSandboxConfig {
        let options = NamespaceOption {
            network: NamespaceMode::Node.into(),
            pid: NamespaceMode::Container.into(),
            ..NamespaceOption::default()
        };
        let security =
            LinuxSandboxSecurityContext { namespace_options: Some(options), ..LinuxSandboxSecurityContext::default() };
        let metadata =
            PodSandboxMetadata { name: name.into(), uid: format!("uid-{name}"), namespace: "test".into(), attempt: 0 };
        PodSandboxConfig {
            metadata: Some(metadata),
            log_directory: log_dir(self.daemon.setup()).join(name).display().to_string(),
            linux: Some(LinuxPodSandboxConfig { security_context: Some(security), ..LinuxPodSandboxConfig::default() }),
            ..PodSandboxConfig::default()
        }
    }

    /// Returns the configuration of a sandbox with namespaces of its own, as most pods have, without logs.
    pub fn networked_sandbox(&self, name: &str) -> PodSandboxConfig {
        let mut config = self.sandbox(name);
        config.linux = Some(LinuxPodSandboxConfig::default());
        config.log_directory.clear();
        config
    }
}

fn spawn_for(daemon: &Daemon, runtime: &Runtime) -> (Child, Channel) {
    spawn(daemon.setup().home(), &daemon.socket(), runtime)
}

/// Starts executor-cri for the executord at the socket `executor`, and waits until executor-cri accepts connections.
/// All files are in `home`, such as the configuration `cri.toml`. The runtime drives the returned connection.
///
/// # Panics
/// Panics if executor-cri exits or does not serve in time.
pub fn spawn(home: &Path, executor: &Path, runtime: &Runtime) -> (Child, Channel) {
    let log = File::options().create(true).append(true).open(home.join("cri.log")).expect("a log");
    let socket = home.join("cri.sock");
    let mut command = Command::new(dist::binary("executor-cri"));
    command.arg("--socket").arg(&socket).arg("--executor").arg(executor);
    command.arg("--state-dir").arg(home.join("cri")).args(["--log", "debug"]);
    let config = home.join("cri.toml");
    if config.exists() {
        command.arg("--config").arg(config);
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("executor-cri starts");
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).expect("an address");
    let channel = wait::until("executor-cri serves", || {
        if let Some(status) = child.try_wait().expect("wait") {
            panic!("executor-cri exited ({status}):\n{}", fs::read_to_string(home.join("cri.log")).unwrap_or_default());
        }
        runtime.block_on(endpoint.connect()).ok()
    });
    (child, channel)
}
