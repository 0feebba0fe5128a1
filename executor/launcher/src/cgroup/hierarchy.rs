//! Mounts the version 1 hierarchies in use on a tmpfs, in the launcher's mount namespace.
//!
//! The kernel copies the mounts for each container, so the launcher detaches the unused hierarchies. The shim creates
//! the container's cgroup and joins it, and the processes that libcontainer creates inherit the cgroup. A move by pid
//! would wait for an RCU grace period of the kernel, 5 ms or more, in each hierarchy.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use executor_sys::mount::{attach, clone_tree, detach, detached, open_dir};
use executor_sys::mountinfo::Mount;
use rustix::mount::MountAttrFlags;

use super::{Devices, ROOT, USED};
use crate::errors::at;

/// Maximum size of the file system that holds the mount points.
const SIZE: &str = "64k";
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(super) controllers: Vec<String>,
    pub(super) mount: PathBuf,
    /// Directory of the launcher's own cgroup.
    home: PathBuf,
}

impl Hierarchy {
    /// Detaches the `used` and `unused` hierarchies from their original mount points, and mounts the `used` hierarchies
    /// again, named after their controllers. `own` is the content of /proc/self/cgroup. Returns the used hierarchies.
    /// If `unused` contains cpuset, also mounts cpuset again and returns the new mount point.
    ///
    /// # Errors
    /// Returns an error if a mount fails.
    pub(super) fn remount(used: &[Mount], unused: &[Mount], own: &str) -> io::Result<(Vec<Self>, Option<PathBuf>)> {
        let clone = |mount: &Mount| clone_tree(open_dir(&mount.point)?.as_fd(), Path::new(""), false);
        let trees: Vec<OwnedFd> = used.iter().map(clone).collect::<io::Result<_>>()?;
        let cpuset = unused.iter().find(|mount| mount.kind == "cgroup" && mount.has_option("cpuset"));
        let cpuset = cpuset.map(clone).transpose()?;
        used.iter().chain(unused).try_for_each(|mount| detach(&mount.point))?;
        mount_points("executor", "700", Path::new(ROOT))?;
        let place = |tree: OwnedFd, point: &Path| {
            fs::create_dir(point).map_err(|error| at(point, &error))?;
            attach(tree.as_fd(), open_dir(point)?.as_fd())
        };
        let all = used.iter().zip(trees).map(|(mount, tree)| {
            let taken = Self::named(Path::new(ROOT), mount, own);
            place(tree, &taken.mount)?;
            Ok(taken)
        });
        let all = all.collect::<io::Result<_>>()?;
        let cpuset = cpuset.map(|tree| {
            let point = Path::new(ROOT).join("cpuset");
            place(tree, &point).map(|()| point)
        });
        Ok((all, cpuset.transpose()?))
    }

    /// Returns a hierarchy with its new mount point below a directory.
    fn named(below: &Path, mount: &Mount, own: &str) -> Self {
        let controllers: Vec<String> =
            USED.iter().filter(|name| mount.has_option(name)).map(|name| (*name).to_owned()).collect();
        let point = below.join(controllers.join(","));
        let own = own.lines().find_map(|line| {
            let (names, path) = line.split_once(':')?.1.split_once(':')?;
            names.split(',').any(|name| controllers.iter().any(|one| one == name)).then_some(path)
        });
        // If the launcher's cgroup is outside of the mount, use the root of the mount.
        let home = own.and_then(|path| Path::new(path).strip_prefix(&mount.root).ok()).unwrap_or(Path::new(""));
        let home = if home.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
            point.join(home)
        } else {
            point.clone()
        };
        Self { controllers, mount: point, home }
    }

    /// Returns a hierarchy of the controllers that its mount point is named after.
    #[cfg(test)]
    pub(super) fn from_mount(mount: PathBuf) -> Self {
        let names = mount.file_name().unwrap().to_str().unwrap();
        Self { controllers: names.split(',').map(str::to_owned).collect(), home: mount.clone(), mount }
    }

    /// Moves the calling, single-threaded process back into the launcher's own cgroup.
    pub(super) fn leave(&self) -> io::Result<()> {
        enter(&self.home)
    }

    /// Creates a cgroup. In the devices hierarchy, also writes the device rules.
    pub(super) fn make(&self, path: &Path, devices: &Devices<'_>) -> io::Result<()> {
        let dir = self.mount.join(path);
        fs::create_dir(&dir).map_err(|error| at(&dir, &error))?;
        if self.controllers.iter().any(|name| name == "devices") { devices.open(&dir) } else { Ok(()) }
    }
}

/// Mounts a small tmpfs named `name` for mount points. `mode` consists of octal digits.
pub(super) fn mount_points(name: &str, mode: &str, place: &Path) -> io::Result<OwnedFd> {
    let flags =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let points = detached("tmpfs", name, &[("size", Some(SIZE)), ("mode", Some(mode))], flags)?;
    attach(points.as_fd(), open_dir(place)?.as_fd()).map_err(|error| at(place, &error))?;
    Ok(points)
}

/// Moves the calling, single-threaded process into the cgroup of a directory. A write to `tasks` moves only the calling
/// thread, and does not wait for an RCU grace period of the kernel.
///
/// # Errors
/// Returns the kernel's error if the write fails. ENOENT means that the cgroup was removed because its container is
/// exiting.
pub(super) fn enter(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("tasks"), "0")
}

#[cfg(test)]
mod tests {
    use executor_sys::mountinfo;

    use super::*;

    #[test]
    fn entering_a_removed_cgroup_gives_enoent() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(enter(&dir.path().join("c1")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    /// The mount point has a different name than its controllers, and `home` is always inside the mount.
    #[test]
    fn hierarchy_is_found_at_unusual_mount_point() {
        let own = "4:memory:/a/b\n2:cpuacct,cpu:/\n1:name=systemd:/x\n0::/y\n";
        let named = |line: &str| Hierarchy::named(Path::new("/r"), &mountinfo::parse(line.as_bytes())[0], own);
        let cases = [
            ("30 25 0:26 / /m rw - cgroup cgroup rw,memory", "memory", "a/b"),
            ("30 25 0:26 /a /m rw - cgroup cgroup rw,memory", "memory", "b"),
            ("30 25 0:26 /other /m rw - cgroup cgroup rw,memory", "memory", ""),
            ("31 25 0:27 / /c rw - cgroup cgroup rw,cpu,cpuacct", "cpu,cpuacct", ""),
            ("32 25 0:28 / /p rw - cgroup cgroup rw,pids", "pids", ""),
        ];
        for (line, name, home) in cases {
            let found = named(line);
            assert_eq!(
                (&found.mount, &found.home),
                (&Path::new("/r").join(name), &Path::new("/r").join(name).join(home))
            );
        }
        let outside = Hierarchy::named(
            Path::new("/r"),
            &mountinfo::parse(b"30 25 0:26 / /m rw - cgroup cgroup rw,memory")[0],
            "4:memory:/../../x",
        );
        assert_eq!(outside.home, outside.mount);
    }
}
