//! Finds and searches the processes and directories of the executor on this machine, without executord's help.
//!
//! executord is the peer of its socket. If systemd created the socket, executord is the process that locks the state
//! directory. The launcher is the process that locks the run directory. Shims descend from the launcher, or were
//! reparented if their launcher died. Processes in another PID namespace belong to a container.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use executor_client::v1::InfoResponse;
use executor_residue::process::Process;
use executor_residue::{Needles, Report, Search};

use super::inputs::Kind;

const EXECUTORD: &str = "executord";
/// `executor-launcher`, which the kernel truncates to 15 bytes.
const LAUNCHER: &str = "executor-launch";
const SHIM: &str = "executor-shim";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Executord,
    Launcher,
    Shim,
    Container,
}

/// Socket and directories of an executor.
#[derive(Clone, Debug)]
pub(crate) struct SearchScope {
    socket: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
    /// True if the journal is also searched.
    pub(crate) journal: bool,
    pub(crate) begun: SystemTime,
}

#[derive(Debug)]
pub(crate) struct SearchHits {
    pub(crate) report: Report,
    pub(crate) roles: HashMap<u32, Role>,
}

impl SearchScope {
    /// Returns the scope for the executord that returned `info`. If `info` has no directories, the run directory is the
    /// directory of the socket, and the state directory is the default.
    pub(crate) fn new(socket: &Path, info: &InfoResponse, journal: bool) -> Self {
        let directory =
            |dir: &str, otherwise: &Path| if dir.is_empty() { otherwise.to_owned() } else { PathBuf::from(dir) };
        let beside = socket.parent().unwrap_or(Path::new("/run/executor"));
        Self {
            socket: socket.to_owned(),
            run_dir: directory(&info.run_dir, beside),
            state_dir: directory(&info.state_dir, Path::new("/var/lib/executor")),
            journal,
            begun: SystemTime::now(),
        }
    }

    /// Finds all processes of the executor, with their roles.
    fn processes(&self) -> Vec<(Process, Role)> {
        let all = Process::all();
        let named = |pid: u32, name: &str| all.iter().find(|process| process.pid == pid && process.name == name);
        let daemon = peer(&self.socket).and_then(|pid| named(pid, EXECUTORD)).or_else(|| {
            let pid = holder(&self.state_dir.join("ledger/lock"))?;
            named(pid, EXECUTORD)
        });
        let launcher = holder(&self.run_dir.join("launcher.lock")).and_then(|pid| named(pid, LAUNCHER));
        let launchers: Vec<u32> = all.iter().filter(|one| one.name == LAUNCHER).map(|one| one.pid).collect();
        let mut below = launcher.map_or_else(Vec::new, |launcher| Process::descendants(&all, launcher.pid));
        for orphan in all.iter().filter(|one| one.name == SHIM && !one.contained && !launchers.contains(&one.parent)) {
            below.push(orphan.clone());
            below.extend(Process::descendants(&all, orphan.pid));
        }
        let below = below.into_iter().map(|process| {
            let role = if process.contained { Role::Container } else { Role::Shim };
            (process, role)
        });
        let daemon = daemon.map(|process| (process.clone(), Role::Executord));
        let launcher = launcher.map(|process| (process.clone(), Role::Launcher));
        daemon.into_iter().chain(launcher).chain(below).collect()
    }

    /// Searches all processes and files; slow and blocking. `container` lists the host paths of the container's files.
    pub(crate) fn search(&self, needles: &Needles, container: &[PathBuf]) -> SearchHits {
        let processes = self.processes();
        let mut search = Search::new(needles);
        for (process, _) in &processes {
            search.process(process);
        }
        search.files(&self.run_dir);
        if !self.state_dir.starts_with(&self.run_dir) {
            search.files(&self.state_dir);
        }
        for path in container {
            search.files(path);
        }
        if self.journal {
            search.journal(self.begun);
        }
        let mut report = search.report();
        for (role, name) in [(Role::Executord, EXECUTORD), (Role::Launcher, "executor-launcher")] {
            if !processes.iter().any(|(_, one)| *one == role) {
                let why = "the process is not in this pid namespace: run the audit in the pid namespace of executord";
                report.unsearched.push(executor_residue::Unsearched { what: name.into(), why: why.into() });
            }
        }
        SearchHits { report, roles: processes.into_iter().map(|(process, role)| (process.pid, role)).collect() }
    }

    /// Searches all of the machine's memory.
    pub(crate) fn search_kernel(needles: &Needles) -> Report {
        let mut search = Search::new(needles);
        search.kernel_memory();
        search.report()
    }
}

/// Returns true if a container's files contain a canary. Used for files that no longer exist at the time of the full
/// search.
pub(crate) fn contains_canary(needles: &Needles, container: &[PathBuf], kind: Kind) -> bool {
    let mut search = Search::new(needles);
    container.iter().for_each(|path| search.files(path));
    search.report().hits.iter().any(|hit| hit.label == kind.name())
}

/// Returns the process that listens on a socket, according to the kernel.
fn peer(socket: &Path) -> Option<u32> {
    let socket = socket.to_str()?;
    let stream = UnixStream::connect(socket.strip_prefix("unix://").unwrap_or(socket)).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

/// Returns the process that holds the lock (flock) on a file.
fn holder(file: &Path) -> Option<u32> {
    let inode = std::fs::metadata(file).ok()?.ino();
    lock_in(&std::fs::read_to_string("/proc/locks").ok()?, inode)
}

/// Returns the process that holds the flock on the file with this inode, from the text of /proc/locks: `1: FLOCK
/// ADVISORY WRITE 815 00:1b:4711 0 EOF`.
fn lock_in(locks: &str, inode: u64) -> Option<u32> {
    let fields = locks.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let end = format!(":{inode}");
    let mut of_file = fields.filter(|fields| fields.get(5).is_some_and(|file| file.ends_with(&end)));
    of_file.find_map(|fields| fields.get(4)?.parse().ok().filter(|pid| *pid > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_holding_file_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:1b:11 0 EOF\n2: FLOCK  ADVISORY  WRITE 815 00:1b:4711 0 EOF\n";
        assert_eq!(lock_in(locks, 4711), Some(815));
        assert_eq!(lock_in(locks, 711), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(holder(file.path()), None);
        file.as_file().lock().unwrap();
        assert_eq!(holder(file.path()), Some(std::process::id()));
    }

    #[test]
    fn listening_process_of_socket_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert_eq!(peer(&path), None);
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(peer(&path), Some(std::process::id()));
    }

    #[test]
    fn directories_are_reported_or_guessed() {
        let scene = |info: &InfoResponse| SearchScope::new(Path::new("/run/x/executor.sock"), info, false);
        let old = scene(&InfoResponse::default());
        assert_eq!((old.run_dir, old.state_dir), ("/run/x".into(), "/var/lib/executor".into()));
        let info = InfoResponse { run_dir: "/a".into(), state_dir: "/b".into(), ..InfoResponse::default() };
        let reported = scene(&info);
        assert_eq!((reported.run_dir, reported.state_dir), ("/a".into(), "/b".into()));
    }
}
