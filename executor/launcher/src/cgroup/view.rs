//! Shows a container the view of its own cgroup at /sys/fs/cgroup. Only a privileged container can write to the view.
//!
//! Programs read their limits from this view, for example to choose the size of a heap. On version 1 a shim mounts the
//! container's directory of each hierarchy below [`crate::host::Host::cgroup_view`], in its own mount namespace, and
//! libcontainer binds the whole tree into the container:
//!
//! ```text
//! RUN_DIR/cgroup/              tmpfs, read-only, mounted by the launcher and shared by all containers
//! RUN_DIR/cgroup/memory/       the container's directory of the memory hierarchy
//! RUN_DIR/cgroup/cpu,cpuacct/  a hierarchy with two controllers
//! RUN_DIR/cgroup/cpu           link to cpu,cpuacct
//! RUN_DIR/cgroup/cpuset/       directory of a container with its own CPUs, or an empty cgroup for all other containers
//! ```
//! On version 2 libcontainer mounts the cgroup2 file system in the container's cgroup namespace.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use executor_sys::mount::{Attributes, attach, clone_tree, detach, open_dir, set_attributes};

use super::Hierarchies;
use super::hierarchy::mount_points;
use crate::errors::at;

/// Name of the cpuset hierarchy. A JVM recognizes version 1 only if this hierarchy exists.
const CPUSET: &str = "cpuset";

impl Hierarchies {
    /// Returns the mount points of the hierarchies, and their controllers.
    fn views(&self) -> impl Iterator<Item = (&Path, Vec<&str>)> {
        let (all, cpuset) = match self {
            Self::V1 { all, cpuset, .. } => (all.as_slice(), cpuset.as_deref()),
            Self::V2 { .. } => (&[][..], None),
        };
        let all = all.iter().map(|one| (&*one.mount, one.controllers.iter().map(String::as_str).collect()));
        all.chain(cpuset.map(|mount| (mount, vec![CPUSET])))
    }

    /// Returns true if [`Self::mount_view`] mounts the view.
    pub(crate) fn has_view(&self) -> bool {
        matches!(self, Self::V1 { .. })
    }

    /// Mounts the shared tmpfs at `view`, and creates in it the directories on which the containers' cgroup directories
    /// are mounted later. The launcher calls this once.
    ///
    /// # Errors
    /// Returns an error with the path if a mount point or link cannot be created.
    pub(crate) fn make_view_points(&self, view: &Path) -> io::Result<()> {
        if !self.has_view() {
            return Ok(());
        }
        let points = mount_points("cgroup", "755", view)?;
        for (mount, controllers) in self.views() {
            let name = mount.file_name().unwrap_or_default();
            let point = view.join(name);
            fs::create_dir(&point).map_err(|error| at(&point, &error))?;
            for link in controllers.into_iter().filter(|controller| name != *controller) {
                symlink(name, view.join(link)).map_err(|error| at(&view.join(link), &error))?;
            }
        }
        set_attributes(points.as_fd(), Attributes { read_only: true, ..Attributes::default() })
    }

    /// Mounts a container's cgroup directories below `view`, in the calling process's mount namespace. `cpuset` is the
    /// container's cgroup in the cpuset hierarchy, or the shared cgroup. The shared cgroup is always read-only.
    ///
    /// # Errors
    /// Returns an error with the path if a directory cannot be mounted.
    pub(crate) fn mount_view(&self, cgroup: &Path, cpuset: &Path, is_writable: bool, view: &Path) -> io::Result<()> {
        if !self.has_view() {
            return Ok(());
        }
        // Put all views below one mount, so that a single call detaches them.
        let points = open_dir(view).and_then(|points| {
            let own = clone_tree(points.as_fd(), Path::new(""), false)?;
            attach(own.as_fd(), points.as_fd())
        });
        points.map_err(|error| at(view, &error))?;
        for (mount, controllers) in self.views() {
            let is_cpuset = controllers == [CPUSET];
            let dir = mount.join(if is_cpuset { cpuset } else { cgroup });
            let tree = match open_dir(&dir) {
                // The launcher could not create the shared cgroup, and has logged the error.
                Err(error) if is_cpuset && error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.and_then(|dir| clone_tree(dir.as_fd(), Path::new(""), false)),
            };
            let tree = tree.map_err(|error| at(&dir, &error))?;
            let read_only = !is_writable || is_cpuset && cpuset != cgroup;
            let shown = Attributes { read_only, no_suid: true, no_dev: true, no_exec: true, recursive: false };
            set_attributes(tree.as_fd(), shown).map_err(|error| at(&dir, &error))?;
            let point = view.join(mount.file_name().unwrap_or_default());
            open_dir(&point)
                .and_then(|point| attach(tree.as_fd(), point.as_fd()))
                .map_err(|error| at(&point, &error))?;
        }
        Ok(())
    }

    /// Detaches the mounts of [`Self::mount_view`]. Only a process that starts another container needs this.
    ///
    /// # Errors
    /// Returns an error if there are no such mounts.
    pub(crate) fn unmount_view(&self, view: &Path) -> io::Result<()> {
        if self.has_view() { detach(view) } else { Ok(()) }
    }
}
