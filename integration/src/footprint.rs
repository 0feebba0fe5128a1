//! All host resources of a daemon and its children. A test takes the footprint before and after an operation, to check
//! for leftovers.
//!
//! Only resources of this daemon count (its directories, its launcher, its cgroup), because other daemons may run on
//! the same machine.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::fs;
use std::path::{Path, PathBuf};

use executor_proto::v1::Capacity;
use sha2::{Digest, Sha256};

use crate::api::Api;
use crate::{host, warm_pool};

/// Host resources of a daemon and its children.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    /// Mounts that exist in the launcher's mount namespace but not in the host's, and the host's mounts in the daemon's
    /// directories.
    pub mounts: BTreeSet<String>,
    /// Directories of the daemon's own cgroup, in each hierarchy.
    pub cgroups: BTreeSet<PathBuf>,
    /// All of the daemon's processes except executord and the launcher: shims, processes of containers, and zombies.
    pub processes: BTreeSet<i32>,
    /// Sorted targets of the descriptors that executord and the launcher have open.
    pub descriptors: [Vec<String>; 2],
    /// Files and directories below the run and state directories, except the files of the ledger.
    pub files: BTreeSet<PathBuf>,
    /// Number of warm containers. Other resources of warm containers are not listed, because the pool changes at any
    /// time.
    pub warm_pool: usize,
    /// The daemon's remaining capacity, as Info reports it.
    pub remaining: Option<Capacity>,
}

impl Footprint {
    /// Takes the footprint of a daemon whose directories are `home/run` and `home/state`.
    pub fn take(home: &Path, executord: i32, launcher: Option<i32>, api: &Api) -> Self {
        let (run, state) = (home.join("run"), home.join("state"));
        let info = if launcher.is_some() { api.wait_until_warm_pool_is_ready() } else { api.info() };
        let waiting = warm_pool::waiting(&run);
        let mut others = processes(&run, launcher);
        others.retain(|pid| *pid != executord && Some(*pid) != launcher);
        let others = others.difference(&warm_pool::processes(&others)).copied().collect();
        let files = files(&run, &state);
        Self {
            mounts: mounts(home, launcher),
            cgroups: cgroups(&run),
            processes: others,
            descriptors: [host::descriptor_kinds(executord), launcher.map(host::descriptor_kinds).unwrap_or_default()],
            files,
            warm_pool: waiting.len(),
            remaining: info.remaining,
        }
    }

    /// Describes the resources that are not in `before`. Returns an empty string if there are none.
    pub fn added_since(&self, before: &Self) -> String {
        let mut left = String::new();
        let mut report = |what: &str, more: &dyn Debug| {
            let _ = writeln!(left, "{what}: {more:?}");
        };
        if !self.mounts.is_subset(&before.mounts) {
            report("mounts", &self.mounts.difference(&before.mounts).collect::<Vec<_>>());
        }
        if !self.cgroups.is_subset(&before.cgroups) {
            report("cgroups", &self.cgroups.difference(&before.cgroups).collect::<Vec<_>>());
        }
        if !self.processes.is_subset(&before.processes) {
            report("processes", &self.processes.difference(&before.processes).collect::<Vec<_>>());
        }
        if !self.files.is_subset(&before.files) {
            report("files", &self.files.difference(&before.files).collect::<Vec<_>>());
        }
        for (which, (now, before)) in
            ["executord", "launcher"].iter().zip(self.descriptors.iter().zip(&before.descriptors))
        {
            if now.len() > before.len() {
                report(&format!("descriptors of {which}"), &(now, "before:", before));
            }
        }
        if self.warm_pool > before.warm_pool {
            report("warm containers", &(self.warm_pool, "before:", before.warm_pool));
        }
        if self.remaining != before.remaining {
            report("capacity", &(self.remaining, "before:", before.remaining));
        }
        left
    }
}

/// Mounts on the host, and cgroups of one launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// Lines of mountinfo without their varying numbers.
    pub mounts: BTreeSet<String>,
    pub cgroups: BTreeSet<PathBuf>,
}

/// Lists the mounts on the host and the cgroups of one launcher. Excludes cgroups of other launchers, because they
/// change at any time.
pub fn inventory_of(run_dir: &Path) -> Inventory {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = table.lines().map(|line| line.split(' ').skip(3).collect::<Vec<_>>().join(" ")).collect();
    Inventory { mounts, cgroups: cgroups(run_dir) }
}

/// Returns the daemon's own cgroup in each hierarchy. The cgroup's name is derived from the run directory.
pub fn cgroup_roots(run_dir: &Path) -> Vec<PathBuf> {
    let name = hex::encode(&Sha256::digest(run_dir.as_os_str().as_encoded_bytes())[..4]);
    let controllers = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    controllers
        .chain([PathBuf::from("/sys/fs/cgroup")])
        .map(|hierarchy| hierarchy.join("executor").join(&name))
        .filter(|root| root.is_dir())
        .collect()
}

/// Returns the directories of the daemon's own cgroup, without cgroups of warm containers.
pub fn cgroups(run_dir: &Path) -> BTreeSet<PathBuf> {
    // The second scan finds warm containers that were created between the first scan and the cgroup listing.
    let mut waiting = warm_pool::waiting(run_dir);
    let mut found = all_cgroups(run_dir);
    waiting.append(&mut warm_pool::waiting(run_dir));
    found.retain(|path| !warm_pool::is_cgroup_of(path, &waiting));
    found
}

/// Returns all directories of the daemon's own cgroup.
pub fn all_cgroups(run_dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for root in cgroup_roots(run_dir) {
        found.insert(root.clone());
        directories(&root, &mut found);
    }
    found
}

/// Returns the processes with the run directory in their command line, descendants of the launcher, and members of the
/// daemon's cgroup.
pub fn processes(run_dir: &Path, launcher: Option<i32>) -> BTreeSet<i32> {
    let named = run_dir.display().to_string();
    let mut found: BTreeSet<i32> = host::processes()
        .into_iter()
        .filter(|pid| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).any(|argument| argument == named.as_bytes())
        })
        .collect();
    found.extend(launcher.into_iter().flat_map(host::descendants));
    for cgroup in all_cgroups(run_dir) {
        let members = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        found.extend(members.lines().filter_map(|pid| pid.parse::<i32>().ok()).filter(|pid| *pid > 0));
    }
    found
}

/// Returns the mounts in the launcher's mount namespace that the host does not have, and the host's mounts below
/// `home`.
pub fn mounts(home: &Path, launcher: Option<i32>) -> BTreeSet<String> {
    let home = home.display().to_string();
    let host = mount_table("self");
    let mut found: BTreeSet<String> = host.iter().filter(|line| line.contains(&home)).cloned().collect();
    if let Some(pid) = launcher {
        found.extend(mount_table(&pid.to_string()).difference(&host).cloned());
    }
    found
}

/// Returns the root, mount point, options, type and source of each mount. The leading numbers and the propagation are
/// left out, because they differ between namespaces.
fn mount_table(pid: &str) -> BTreeSet<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    let facts = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').skip(3).take(3).collect();
        Some(format!("{} {after}", fields.join(" ")))
    };
    table.lines().filter_map(facts).collect()
}

/// Returns the files and directories below the two directories. Excludes files that change at any time: the ledger, the
/// daemon's logs, cached responses of CNI plugins, and files of warm containers.
pub fn files(run_dir: &Path, state_dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for dir in [run_dir, state_dir] {
        everything(dir, &mut found);
    }
    let others = [
        state_dir.join("ledger"),
        run_dir.join("cni/versions"),
        warm_pool::directory(run_dir),
        warm_pool::directory(state_dir),
    ];
    found.retain(|path| !others.iter().any(|other| path.starts_with(other)) && !warm_pool::is_network_record(path));
    found
}

fn everything(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        found.insert(entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            everything(&entry.path(), found);
        }
    }
}

fn directories(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.insert(entry.path());
            directories(&entry.path(), found);
        }
    }
}
