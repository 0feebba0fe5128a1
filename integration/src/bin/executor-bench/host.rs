//! Prepares this process for a measurement: a private mount namespace without the cgroup2 mount of a hybrid host,
//! adoption of the containers' init processes, and a tmpfs as runtime directory. Removes the runtimes' cgroups when the
//! benchmark exits.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// The prepared host. Dropping it removes leftover cgroups of runtimes.
pub(crate) struct Host {
    /// Parent cgroup of the runtimes' containers.
    pub(crate) cgroup: String,
    /// Cgroup version: `v1`, `v2`, or `hybrid` (measured as v1, without its cgroup2 mount).
    pub(crate) cgroups: &'static str,
    pub(crate) kernel: String,
    pub(crate) cpus: usize,
    roots: Vec<PathBuf>,
}

impl Host {
    /// Moves this process into a new mount namespace. Call this before any thread is started.
    pub(crate) fn prepare() -> anyhow::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS).context("cannot unshare the mount namespace")?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("cannot make mounts private")?;
        let (v1, v2) = cgroup_mounts()?;
        for path in v2.iter().filter(|_| !v1.is_empty()) {
            umount2(path, MntFlags::MNT_DETACH).with_context(|| format!("cannot detach {}", path.display()))?;
        }
        // The init of a container is orphaned when `create` exits. A subreaper adopts the init and can wait for it.
        nix::sys::prctl::set_child_subreaper(true).context("cannot become a subreaper")?;
        let cgroups = match (v1.is_empty(), v2.is_empty()) {
            (true, _) => "v2",
            (false, true) => "v1",
            (false, false) => "hybrid",
        };
        Ok(Self {
            cgroup: format!("/executor-bench-{}", std::process::id()),
            cgroups,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            roots: if v1.is_empty() { v2 } else { v1 },
        })
    }
}

/// A tmpfs for the runtimes' state, because `/run` is a tmpfs on every host with systemd. Unmounted on drop.
pub(crate) struct RuntimeDirectory(PathBuf);

impl RuntimeDirectory {
    /// Mounts the tmpfs in a directory.
    pub(crate) fn mount(scratch: &Path) -> anyhow::Result<Self> {
        let at = scratch.join("run");
        std::fs::create_dir(&at)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("executor-bench"), &at, Some("tmpfs"), flags, Some("mode=0755"))
            .with_context(|| format!("cannot mount a tmpfs at {}", at.display()))?;
        Ok(Self(at))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RuntimeDirectory {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("executor-bench: cannot unmount {}: {error}", self.0.display());
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for root in &self.roots {
            let ours = root.join(self.cgroup.trim_start_matches('/'));
            if let Err(error) = remove_cgroup(&ours) {
                eprintln!("executor-bench: cannot remove {}: {error}", ours.display());
            }
        }
    }
}

/// Removes a cgroup and its children with rmdir. The files of a cgroup cannot be unlinked.
fn remove_cgroup(directory: &Path) -> std::io::Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in directory.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    std::fs::remove_dir(directory)
}

/// Returns the mount points of v1 hierarchies, and of cgroup2.
fn cgroup_mounts() -> anyhow::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let table = std::fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
    let of = |kind: &str| {
        let lines = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines.filter(|words| words.get(2) == Some(&kind)).map(|words| PathBuf::from(words[1])).collect::<Vec<_>>()
    };
    Ok((of("cgroup"), of("cgroup2")))
}
