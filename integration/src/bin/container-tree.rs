//! `container-tree PID`: prints the file tree of a running container as the container's root user sees it.
//!
//! Owners and file capabilities depend on the reader's user namespace. Therefore this process enters the container's
//! user and mount namespaces. Only a single-threaded process can do this, and tests have many threads. The output
//! consists of names and lines as in `integration::tree`, each terminated by NUL. For a mount point, only the name is
//! listed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use executor_sys::mountinfo;
use integration::tree::listing_without_mounts;
use nix::sched::{CloneFlags, setns};

fn main() -> anyhow::Result<()> {
    let pid: u32 = std::env::args()
        .nth(1)
        .context("usage: container-tree PID")?
        .parse()
        .context("the argument is not a process id")?;
    let mounts = mounts(&fs::read(format!("/proc/{pid}/mountinfo"))?);
    let namespace = |name: &str| File::open(format!("/proc/{pid}/ns/{name}"));
    let (user, mount) = (namespace("user")?, namespace("mnt")?);
    setns(user, CloneFlags::CLONE_NEWUSER).context("cannot enter the user namespace")?;
    // setns changes the root and working directory to those of the namespace.
    setns(mount, CloneFlags::CLONE_NEWNS).context("cannot enter the mount namespace")?;
    let mut out = Vec::new();
    for (path, line) in listing_without_mounts(Path::new("/"), &mounts) {
        out.extend([path.as_os_str().as_bytes(), &[0], line.as_bytes(), &[0]].concat());
    }
    Ok(std::io::stdout().write_all(&out)?)
}

/// Returns the mount points below the root, without nested mount points.
fn mounts(table: &[u8]) -> BTreeSet<PathBuf> {
    let points: BTreeSet<PathBuf> = mountinfo::parse(table).into_iter().map(|mount| mount.point).collect();
    let below = |path: &&PathBuf| {
        path.parent()
            .is_some_and(|parent| parent.ancestors().all(|above| above == Path::new("/") || !points.contains(above)))
    };
    points.iter().filter(below).filter_map(|path| path.strip_prefix("/").ok()).map(Path::to_owned).collect()
}
