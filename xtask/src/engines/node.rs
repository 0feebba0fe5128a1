//! A node: a container runtime, such as executord with executor-cri, and a kubelet, in the namespaces of a
//! [`Room`](super::room::Room).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use executor_residue::process::Process;
use rustix::process::{Pid, Signal, kill_process};

use super::Kind;
use super::cases;
use super::containerd::{self, REGISTRIES, network};
use super::room::{self, child_of};
use super::site::Site;
use super::supplies::{Registry, Supplies};
use crate::dist;
use crate::workspace::{Workspace, output};

const CONFIGURATION: &str = "docs/kubernetes-node.toml";
/// Time limit of a condition. The kubelet checks static pods, probes and limits only at intervals.
pub(super) const CONDITION_TIMEOUT: Duration = Duration::from_secs(90);
/// Host paths that conformance cases mount.
const CONFORMANCE_PATHS: [&str; 4] = ["/etc/hosts", "/tmp", "/var/log/containers", "/var/log/pods"];
/// Directory of the provider of secrets `shelf`.
pub(super) const SECRETS: &str = "secrets";
/// Configuration that allows pods of some namespaces to use all secrets of a provider.
const SECRET_RULES: &str = "[[cri.secrets]]
annotations = true
namespaces = [\"default\", \"kubelet-expiry\"]
provider = \"shelf\"
paths = [\"/\"]
[[cri.secrets]]
annotations = true
namespaces = [\"away\"]
provider = \"vault\"
paths = [\"/\"]
[[cri.secrets]]
annotations = true
namespaces = [\"vault-expiry\"]
provider = \"vault-tls\"
paths = [\"/\"]
";
/// File with the token for the providers `vault` and `vault-tls`.
const TOKEN: &str = "vault-token";
/// Port on the node's loopback where the server of the provider `vault` is expected.
pub(super) const VAULT_PORT: u16 = 8200;
/// Port on the node's loopback where the server of the provider `bao` is expected. executord logs in to the server with
/// the pod's token.
pub(super) const BAO_PORT: u16 = 8300;
/// Port on the node's loopback where the server of the provider `vault-tls` is expected. The server's certificate is
/// from the cluster's CA.
pub(super) const TLS_VAULT_PORT: u16 = 8201;
/// Script that starts the kubelet (`$1` and its arguments). The kernel parameters that the kubelet sets are replaced by
/// files.
const START_KUBELET: &str = r#"mount --make-rprivate /proc
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
    kernel/keys/root_maxbytes; do
    file="$0/$(basename $name)"; cat /proc/sys/$name >"$file"; mount --bind "$file" /proc/sys/$name
done
exec "$@""#;

pub(super) struct Node {
    site: Arc<Site>,
    programs: PathBuf,
    /// The kubelet and its arguments.
    kubelet: OnceLock<(PathBuf, Vec<String>)>,
    pub(super) streams: PathBuf,
    pub(super) crictl: PathBuf,
    /// Registry with the images.
    _registry: Registry,
    /// Processes of nsenter, whose only child is the program.
    executord: Mutex<Option<Child>>,
    cri: Mutex<Option<Child>>,
    running_kubelet: Mutex<Option<Child>>,
    runtime: Kind,
}

impl Node {
    /// Writes the configuration files of the node, and starts its runtime.
    pub(super) fn start(
        workspace: &Workspace,
        supplies: &Supplies,
        site: &Arc<Site>,
        programs: PathBuf,
        registry: Registry,
        runtime: Kind,
    ) -> anyhow::Result<Self> {
        let directory = &site.directory;
        for name in ["executor/cni", "root/paths", "kernel", SECRETS] {
            fs::create_dir_all(directory.join(name))?;
        }
        // Users of the host must not reach set-user-id programs that a container leaves in this directory.
        room::make_private(&directory.join("root"))?;
        let configuration = fs::read_to_string(workspace.root.join(CONFIGURATION)).context(CONFIGURATION)?;
        fs::write(directory.join("executor/cni/10-engines.conflist"), network(directory, &site.pods).to_string())?;
        containerd::write_configuration(directory, &registry.address, &site.pods)?;
        let settings = settings(&configuration, directory, &registry.address, &site.cgroup)?;
        fs::write(directory.join("executor.toml"), settings)?;
        fs::write(directory.join("executor-cri.toml"), SECRET_RULES)?;
        fs::write(directory.join(TOKEN), "token")?;
        let node = Self {
            site: Arc::clone(site),
            programs,
            kubelet: OnceLock::new(),
            streams: supplies.streams(),
            crictl: supplies.programs().join("crictl"),
            _registry: registry,
            executord: Mutex::default(),
            cri: Mutex::default(),
            running_kubelet: Mutex::default(),
            runtime,
        };
        node.start_runtime()?;
        Ok(node)
    }

    /// Sets the kubelet's program and arguments.
    pub(super) fn set_kubelet(&self, program: PathBuf, arguments: Vec<String>) -> anyhow::Result<()> {
        self.kubelet.set((program, arguments)).ok().context("the kubelet is already set")
    }

    /// Returns the name of the node's parent cgroup.
    pub(super) fn cgroup(&self) -> &str {
        &self.site.cgroup
    }

    /// Returns the name of the node.
    pub(super) fn name(&self) -> &str {
        &self.site.name
    }

    /// Returns the address of the node.
    pub(super) fn address(&self) -> &str {
        &self.site.address
    }

    /// Kills all processes of the node at the same time, like a power failure.
    pub(super) fn cut_power(&self) -> anyhow::Result<()> {
        self.site.room.kill()
    }

    /// Returns a path in the directory of the node.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.site.directory.join(name)
    }

    /// Starts containerd, or executord and executor-cri.
    pub(super) fn start_runtime(&self) -> anyhow::Result<()> {
        if self.runtime == Kind::Containerd {
            return set(&self.cri, containerd::serve(&self.site.room, &self.site.directory)?);
        }
        self.start_executord()?;
        self.start_cri()
    }

    /// Kills the programs of the runtime with SIGKILL.
    pub(super) fn kill_runtime(&self) -> anyhow::Result<()> {
        self.kill_cri()?;
        if self.runtime == Kind::Containerd { Ok(()) } else { self.kill_executord() }
    }

    /// Returns the runtime.
    pub(super) fn runtime(&self) -> Kind {
        self.runtime
    }

    /// Returns the path of the runtime's socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.path(if self.runtime == Kind::Containerd { containerd::SOCKET } else { "cri.sock" })
    }

    pub(super) fn start_executord(&self) -> anyhow::Result<()> {
        let mut command = self.site.room.command(self.programs.join(dist::DAEMON));
        command.arg("--config").arg(self.path("executor.toml"));
        let child = room::serve(command, &self.path("executord.log"), &self.path("executor/run/executor.sock"))?;
        set(&self.executord, child)
    }

    pub(super) fn start_cri(&self) -> anyhow::Result<()> {
        let mut command = self.site.room.command(self.programs.join(dist::CRI));
        // Use the launcher's own score, because the launcher may lack the privilege to lower the score.
        let score = fs::read_to_string("/proc/self/oom_score_adj")?;
        command.args(["--oom-score-adj-min", score.trim(), "--socket"]).arg(self.path("cri.sock"));
        command.arg("--executor").arg(self.path("executor/run/executor.sock"));
        command.arg("--state-dir").arg(self.path("cri")).arg("--config").arg(self.path("executor-cri.toml"));
        let child = room::serve(command, &self.path("executor-cri.log"), &self.path("cri.sock"))?;
        set(&self.cri, child)
    }

    /// Starts the kubelet, without waiting until it serves.
    pub(super) fn start_kubelet(&self) -> anyhow::Result<()> {
        let (program, arguments) = self.kubelet.get().context("the kubelet is not set")?;
        let log = fs::File::options().append(true).create(true).open(self.path("kubelet.log"))?;
        let mut command = self.site.room.command("unshare");
        command.args(["--mount", "--propagation", "unchanged", "sh", "-ec", START_KUBELET]).arg(self.path("kernel"));
        command.arg(program).args(arguments);
        command.args(["--hostname-override", &self.site.name, "--node-ip", &self.site.address, "--v", "2"]);
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start nsenter")?;
        set(&self.running_kubelet, child)
    }

    /// Kills executord with SIGKILL.
    pub(super) fn kill_executord(&self) -> anyhow::Result<()> {
        kill(&self.executord)
    }

    /// Kills the launcher with SIGKILL. The launcher outlives the executord that started it. Returns false if no
    /// launcher runs.
    pub(super) fn kill_launcher(&self) -> anyhow::Result<bool> {
        let all = self.processes(&["executor-launch"]);
        // A child has the same name until it renames itself.
        let is_child = |one: &&Process| all.iter().any(|other| other.pid == one.parent);
        let Some(launcher) = all.iter().find(|one| !is_child(one)) else { return Ok(false) };
        kill_process(Pid::from_raw(launcher.pid.cast_signed()).context("the pid is 0")?, Signal::KILL)?;
        Ok(true)
    }

    /// Returns true if executord has exited by itself.
    pub(super) fn executord_has_exited(&self) -> anyhow::Result<bool> {
        has_exited(&self.executord)
    }

    /// Returns true if executor-cri has exited by itself.
    pub(super) fn cri_has_exited(&self) -> anyhow::Result<bool> {
        has_exited(&self.cri)
    }

    /// Returns true if the kubelet has exited by itself.
    pub(super) fn kubelet_has_exited(&self) -> anyhow::Result<bool> {
        has_exited(&self.running_kubelet)
    }

    /// Kills executor-cri with SIGKILL.
    pub(super) fn kill_cri(&self) -> anyhow::Result<()> {
        kill(&self.cri)
    }

    /// Kills the kubelet with SIGKILL.
    pub(super) fn kill_kubelet(&self) -> anyhow::Result<()> {
        kill(&self.running_kubelet)
    }

    /// Runs a program in the node's namespaces, and returns its standard output.
    pub(super) fn output<'a>(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<String> {
        output(self.site.room.command(program).args(arguments))
    }

    /// Returns a command that runs a program in the node's namespaces.
    pub(super) fn command(&self, program: &Path) -> Command {
        self.site.room.command(program)
    }

    /// Runs crictl, and returns its standard output.
    pub(super) fn crictl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let endpoint = format!("unix://{}", self.socket().display());
        self.output(&self.crictl, ["--runtime-endpoint", &endpoint].into_iter().chain(arguments.iter().copied()))
    }

    /// Sends a request, and returns the body of a successful response.
    pub(super) fn http(&self, method: &str, url: &str) -> anyhow::Result<String> {
        let options = ["--silent", "--show-error", "--fail-with-body", "--insecure", "--max-time", "20", "--request"];
        self.output(Path::new("curl"), options.into_iter().chain([method, url]))
    }

    /// Returns the processes of programs on the node that have one of these names.
    pub(super) fn processes(&self, names: &[&str]) -> Vec<Process> {
        let is_one = |process: &Process| names.contains(&&*process.name) && self.site.room.contains(process.pid);
        Process::all().into_iter().filter(is_one).collect()
    }

    /// Returns the kubelet's log.
    pub(super) fn log(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.path("kubelet.log"))?)
    }

    /// Waits until `poll` returns a value.
    pub(super) fn until<T>(&self, what: &str, poll: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
        cases::until(CONDITION_TIMEOUT, what, poll)
    }
}

fn set(place: &Mutex<Option<Child>>, child: Child) -> anyhow::Result<()> {
    *place.lock().ok().context("a case panicked")? = Some(child);
    Ok(())
}

fn has_exited(place: &Mutex<Option<Child>>) -> anyhow::Result<bool> {
    let mut nsenter = place.lock().ok().context("a case panicked")?;
    Ok(nsenter.as_mut().context("the program was not started")?.try_wait()?.is_some())
}

/// Kills a program with SIGKILL, unless it has exited by itself.
fn kill(place: &Mutex<Option<Child>>) -> anyhow::Result<()> {
    let mut nsenter = place.lock().ok().context("a case panicked")?.take().context("the program was not started")?;
    let pid = loop {
        if nsenter.try_wait()?.is_some() {
            return Ok(());
        }
        if let Some(pid) = child_of(nsenter.id()) {
            break pid;
        }
        std::thread::sleep(Duration::from_millis(1)); // until nsenter has forked
    };
    kill_process(Pid::from_raw(pid.cast_signed()).context("the pid is 0")?, Signal::KILL)?;
    nsenter.wait()?;
    Ok(())
}

/// Rule that allows executor-cri to use all secrets of a provider.
const ALLOW: &str = "allow = [{ uid = 0, paths = [\"/\"] }]\n";

/// Returns the configuration of a node, with the paths and cgroups of this run.
fn settings(configuration: &str, directory: &Path, registry: &str, cgroup: &str) -> anyhow::Result<String> {
    let directory = directory.display();
    let parents = format!("[\"/{cgroup}/kubepods\"]");
    let conformance = CONFORMANCE_PATHS.map(|path| format!("\n    {{ path = {path:?}, suid = true, dev = true }},"));
    let paths = format!("host_paths = [\n    {{ path = \"{directory}/root/paths\" }},{}", conformance.concat());
    let mut settings = format!(
        "run_dir = \"{directory}/executor/run\"\nstate_dir = \"{directory}/disk/executor\"\nkeep_root = true\n\
         listen = \"unix://{directory}/executor/run/executor.sock\"\n{configuration}"
    );
    for (from, to) in [("host_paths = [", &*paths), ("[\"/kubepods\"]", &*parents)] {
        ensure!(settings.contains(from), "{CONFIGURATION} does not contain {from:?}");
        settings = settings.replace(from, to);
    }
    let mirrors =
        REGISTRIES.map(|name| format!("[[images.mirrors]]\nregistry = \"{name}\"\nmirrors = [\"{registry}\"]\n"));
    Ok(format!(
        "{settings}cni_conf_dir = \"{directory}/executor/cni\"\ncni_bin_dirs = [\"/usr/lib/cni\"]\n\
         [launcher]\ncgroup_parent = \"executor-{cgroup}\"\n[[secret_providers]]\nname = \"shelf\"\n\
         type = \"directory\"\npath = \"{directory}/{SECRETS}\"\npoll_seconds = 1\n\
         {ALLOW}[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"http://127.0.0.1:{VAULT_PORT}\"\n\
         token_file = \"{directory}/{TOKEN}\"\n{ALLOW}[[secret_providers]]\nname = \"vault-tls\"\ntype = \"vault\"\n\
         address = \"https://127.0.0.1:{TLS_VAULT_PORT}\"\nca_file = \"{directory}/pki/ca.crt\"\n\
         token_file = \"{directory}/{TOKEN}\"\n{ALLOW}[[secret_providers]]\nname = \"bao\"\ntype = \"vault\"\n\
         address = \"http://127.0.0.1:{BAO_PORT}\"\nauth = \"jwt\"\npoll_seconds = 1\n{ALLOW}{}",
        mirrors.concat()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let configuration = fs::read_to_string(root.join(CONFIGURATION)).unwrap();
        let text = settings(&configuration, Path::new("/d"), "127.0.0.1:5", "kubelet-test").unwrap();
        let settings: toml::Table = text.parse().unwrap();
        assert_eq!(settings["policy"]["cgroup_parents"][0].as_str(), Some("/kubelet-test/kubepods"));
        assert_eq!(settings["policy"]["host_paths"].as_array().unwrap().len(), 6);
    }
}
