//! A container with canaries in every kind of secret input, a process that keeps the container's secret files open, and
//! a search for residue.
//!
//! The container prints all its secrets, so that its log contains them. The secrets have the sizes that
//! docs/security-claims.md names: 64 bytes, 4 KiB, 64 KiB, and nearly the maximum of each kind.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use executor_core::placement::GENERATIONS_DIR;
use executor_proto::v1::{self, Container, RunRequest, SecretArgument, UpdateFilesRequest};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Report, Search};

use crate::api::pid;
use crate::daemon::Daemon;
use crate::request::{RequestBuilder, program};
use crate::{footprint, wait};

/// Script prefix of a restarted process, which exits with 1 at its first start.
const FAILS_ONCE: &str = "[ -e /tmp/again ] || { echo >/tmp/again; exit 1; }; ";

/// Directory of the secrets, which exists in no image.
const DIR: &str = "/etc/executor-residue";
const TOKEN: &str = "/etc/executor-residue/token";
/// File sizes in bytes. The limit of a generation is 1,048,576 bytes in total.
const FILES: [usize; 4] = [64, 4096, 65_536, 900_000];
/// Sizes of variables and arguments in bytes. The limit is 131,071 bytes including the name, and 2 MiB for all strings
/// together.
const STRINGS: [usize; 4] = [64, 4096, 65_536, 120_000];
/// Prints every secret, then waits for a signal: USR1 exits with 0, USR2 with 3, HUP exceeds the memory limit, WINCH
/// prints the files again.
const SCRIPT: &str = r#"
show() { cat /etc/executor-residue/file-*; }
trap 'exit 0' USR1
trap 'exit 3' USR2
trap 'exec dd if=/dev/zero of=/dev/null bs=1G count=1' HUP
trap 'show; echo residue-again' WINCH
show; cat /etc/executor-residue/token
printf '%s\n' "$SECRET_64" "$SECRET_4096" "$SECRET_65536" "$SECRET_120000" "$@"
echo residue-up
while :; do sleep 100000 & wait $!; done"#;
/// Writes further secrets: in new files next to the container's files and in a new directory, over the content of a
/// file, and at the end of a file. The new secrets are the container's secrets in ROT13. Deletes one file and replaces
/// one.
const WRITES: &str = r#"
cd /etc/executor-residue
other() { printf '%s' "$1" | tr A-Za-z N-ZA-Mn-za-m; }
mkdir made
other "$SECRET_64" >beside
other "$SECRET_4096" >made/new
other "$SECRET_65536" >>file-64
other "$SECRET_120000" 1<>file-900000
rm file-4096
mv made/new file-65536
cd /
"#;
/// Signal (SIGWINCH) after which the script prints the files again.
const SHOW_AGAIN: u32 = 28;

/// Secrets of one container, and the needles to find them.
pub struct ContainerSecrets {
    pub id: String,
    files: Vec<Canary>,
    variables: Vec<Canary>,
    arguments: Vec<Canary>,
    needles: Needles,
    /// True if the process writes further secrets among its files.
    writes: bool,
    /// True if the process is a step of a tree of actions.
    is_step: bool,
    is_restarted: bool,
}

fn canaries(sizes: &[usize]) -> Vec<Canary> {
    sizes.iter().map(|size| Canary::random(*size).expect("randomness")).collect()
}

impl ContainerSecrets {
    pub fn new(id: &str) -> Self {
        let [files, variables, arguments] = [FILES, STRINGS, STRINGS].map(|sizes| canaries(&sizes));
        let needles = Needles::new().expect("randomness");
        let (writes, is_step, is_restarted) = (false, false, false);
        let mut batch = Self { id: id.into(), files, variables, arguments, needles, writes, is_step, is_restarted };
        let kinds = [("file", &batch.files), ("variable", &batch.variables), ("argument", &batch.arguments)];
        for (kind, canaries) in kinds {
            add(&mut batch.needles, kind, canaries);
        }
        batch
    }

    /// Creates secrets for a container whose process writes further secrets among its files.
    pub fn writing(id: &str) -> Self {
        let mut batch = Self { writes: true, ..Self::new(id) };
        for canary in &batch.variables {
            let other: Vec<u8> = canary.as_bytes().iter().copied().map(other).collect();
            batch.needles.add(&format!("written of {}", other.len()), &other);
        }
        batch
    }

    /// Creates secrets for a container whose process is a step of a tree of actions and is followed by another step.
    pub fn from_step(id: &str) -> Self {
        Self { is_step: true, ..Self::new(id) }
    }

    /// Creates secrets for a container whose process fails at first and is restarted by its restart policy.
    pub fn restarted(id: &str) -> Self {
        Self { is_restarted: true, ..Self::new(id) }
    }

    /// Returns true if the process is a step of an action tree. The variables and arguments of a step are not kept.
    pub fn is_step(&self) -> bool {
        self.is_step
    }

    /// Builds the request that starts the container.
    pub fn request(&self) -> RunRequest {
        self.asking_for("/bin/sh")
    }

    /// Builds the request that starts the container with the program at `path` instead of the shell.
    pub fn asking_for(&self, path: &str) -> RunRequest {
        let secrets = ["", "", "", ""];
        let script = if self.writes {
            SCRIPT.replace("echo residue-up", &format!("{WRITES}echo residue-up"))
        } else {
            SCRIPT.into()
        };
        let script = if self.is_restarted { format!("{FAILS_ONCE}{script}") } else { script };
        let request = program(path, &[&["-c", &*script, "sh"], &secrets[..]].concat());
        let mut request = request.id(&self.id).action(|run| {
            for (canary, size) in self.variables.iter().zip(STRINGS) {
                let (name, value) = (format!("SECRET_{size}"), canary.as_str().into());
                run.secret_environment.push(v1::EnvironmentVariable {
                    name,
                    value,
                    ..v1::EnvironmentVariable::default()
                });
            }
            for (canary, index) in self.arguments.iter().zip(3..) {
                run.secret_arguments.push(SecretArgument {
                    index,
                    value: canary.as_str().into(),
                    ..SecretArgument::default()
                });
            }
            run.volume_mounted_files = files(&self.files);
        });
        request.runtime_token_path = TOKEN.into();
        request.writable_files = self.writes.then(v1::WritableFiles::default);
        if self.is_step {
            let after = program("/bin/sh", &["-c", "echo after"]).action;
            let actions = request.action.take().into_iter().chain(after).collect();
            let serial = v1::SerialAction { actions, ..v1::SerialAction::default() };
            request.action = Some(v1::Action { serial: Some(serial), ..v1::Action::default() });
        }
        if self.is_restarted {
            let mode = v1::restart_policy::Mode::OnFailure.into();
            request.restart_policy = Some(v1::RestartPolicy { mode, max_retries: 1, ..v1::RestartPolicy::default() });
        }
        request
    }

    /// Waits until the process has printed its secrets, and adds its token to the needles. Returns the current
    /// container.
    pub fn wait_until_up(&mut self, daemon: &Daemon) -> Container {
        daemon.api.follow(&self.id).until(|entry| entry.data.ends_with(b"residue-up\n"));
        let container = daemon.api.get(&self.id).expect("Get");
        let token = fs::read(format!("/proc/{}/root{TOKEN}", pid(&container))).expect("a token");
        // The token begins with the container's id and a dot.
        self.needles.add("token", token.rsplit(|byte| *byte == b'.').next().expect("a token"));
        container
    }

    /// Replaces every file, and waits until the process has printed the new files.
    pub fn rotate(&mut self, daemon: &Daemon) {
        let new = canaries(&FILES);
        add(&mut self.needles, "new file", &new);
        let mut log = daemon.api.follow(&self.id);
        let request =
            UpdateFilesRequest { id: self.id.clone(), files: files(&new), signal: SHOW_AGAIN, ..Default::default() };
        let mut rpc = daemon.api.rpc();
        daemon.api.block_on(rpc.update_files(request)).expect("UpdateFiles");
        log.until(|entry| entry.data.ends_with(b"residue-again\n"));
    }

    /// Searches every process and file of the daemon, and the processes `also`.
    pub fn search(&self, daemon: &Daemon, also: &[u32]) -> Report {
        let mut search = Search::new(&self.needles);
        let mut pids: Vec<u32> = vec![daemon.pid() as u32];
        let ours = footprint::processes(&daemon.setup().run_dir(), daemon.launcher());
        pids.extend(ours.into_iter().map(|pid| pid as u32).chain(also.iter().copied()));
        pids.sort_unstable();
        pids.dedup();
        pids.into_iter().filter_map(Process::from_pid).for_each(|process| search.process(&process));
        search.files(daemon.setup().home());
        search.report()
    }

    pub fn search_process(&self, pid: u32) -> Report {
        let mut search = Search::new(&self.needles);
        Process::from_pid(pid).iter().for_each(|process| search.process(process));
        search.report()
    }
}

/// Rotates a letter by 13 places, as the script does.
fn other(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' => (byte - b'A' + 13) % 26 + b'A',
        b'a'..=b'z' => (byte - b'a' + 13) % 26 + b'a',
        digit => digit,
    }
}

fn add(needles: &mut Needles, kind: &str, canaries: &[Canary]) {
    for canary in canaries {
        needles.add(&format!("{kind} of {}", canary.as_bytes().len()), canary.as_bytes());
    }
}

fn files(canaries: &[Canary]) -> Vec<v1::File> {
    let file = |canary: &Canary| v1::File {
        path: format!("{DIR}/file-{}", canary.as_bytes().len()),
        content: canary.as_bytes().into(),
        ..v1::File::default()
    };
    canaries.iter().map(file).collect()
}

/// A process that keeps the files with a container's secrets open.
pub struct FileHolder(Child);

impl FileHolder {
    /// Starts a process that opens every secret file: the files visible in the container, and the files that its shim
    /// keeps open outside of the container.
    pub fn new(daemon: &Daemon, container: &Container) -> Self {
        let places = [GENERATIONS_DIR, DIR].map(|place| PathBuf::from(format!("/proc/{}/root{place}", pid(container))));
        let mut paths: Vec<PathBuf> = places.iter().flat_map(|place| regular(place)).collect();
        let shim = format!("/proc/{}/fd", daemon.record(&container.id).shim.pid);
        let descriptors = fs::read_dir(shim).expect("a shim").flatten();
        paths.extend(descriptors.flat_map(|descriptor| regular(&descriptor.path().join("inputs"))));
        // Files of an earlier generation may be unlinked at the same time.
        let open = |path: &PathBuf| match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            opened => Some(opened.expect("a secret file")),
        };
        let files: Vec<File> = paths.iter().filter_map(open).collect();
        for file in &files {
            rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty()).expect("a descriptor");
        }
        let child = Command::new("sleep").arg("100000").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self(child.expect("sleep"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for FileHolder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lists the regular files below a directory, or none if the directory does not exist.
fn regular(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(regular(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

/// Waits until a container's run directory is removed, and then for one second, after which no residue may remain.
pub fn wait_until_settled(daemon: &Daemon, id: &str) -> Container {
    let container = daemon.api.wait(id).expect("Wait");
    wait::until("the container's run directory is gone", || {
        (!daemon.setup().run_dir().join("containers").join(id).exists()).then_some(())
    });
    std::thread::sleep(std::time::Duration::from_secs(1)); // the claim applies one second after the exit
    container
}
