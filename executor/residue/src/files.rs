//! Searches the contents of files below directories, and of files that a process has open.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, major, minor};

use crate::process::{Process, gone};
use crate::{Place, Search};

/// Magic number of a proc file system (statfs(2)).
const PROC_MAGIC: i64 = 0x9fa0;
/// Maximum number of files and directories that one call visits.
const ENTRIES_MAX: usize = 1_000_000;
/// Maximum number of bytes that are read from one file.
const BYTES_MAX: u64 = 64 << 30;

impl Search<'_> {
    /// Searches a file, or every regular file below a directory. Does not follow symbolic links. Searches contents and
    /// not names. Ignores files that are removed during the search.
    pub fn files(&mut self, path: &Path) {
        self.walk(path, &|path| Place::File(path.to_owned()));
    }

    /// Searches files that are accessible only through a process's descriptors: memory files, deleted files, and files
    /// on file systems that are not mounted in this process (a detached tmpfs).
    pub(crate) fn descriptors(&mut self, process: &Process) {
        let mounted = mounted();
        let mut seen = HashSet::new();
        let dir = match Path::new("/proc").join(process.pid.to_string()).join("fd").read_dir() {
            Ok(dir) => dir,
            Err(error) if gone(&error) => return,
            Err(error) => return self.report.unsearched(format!("descriptors of {process}"), error.to_string()),
        };
        for entry in dir.flatten() {
            let link = entry.path();
            let (Ok(target), Ok(meta)) = (link.read_link(), link.metadata()) else { continue };
            let target = target.to_string_lossy().into_owned();
            // A target such as `user:[4026531837]` is a namespace, a kernel object without readable content.
            if !target.starts_with('/') && target.contains(":[") {
                continue;
            }
            // Skip files in /proc: their contents are searched for each process.
            if rustix::fs::statfs(&link).is_ok_and(|stat| stat.f_type == PROC_MAGIC) {
                continue;
            }
            let ordinary = !target.starts_with("/memfd:") && !target.ends_with(" (deleted)");
            if (ordinary && mounted.contains(&device(&meta))) || !seen.insert((meta.dev(), meta.ino())) {
                continue;
            }
            let place = |path: &Path| {
                let below = path.strip_prefix(&link).unwrap_or(path).display().to_string();
                let target = if below.is_empty() { target.clone() } else { format!("{target} {below}") };
                Place::Descriptor { pid: process.pid, name: process.name.clone(), target }
            };
            if meta.is_file() {
                self.file(&link, false, &place);
            } else if meta.is_dir() {
                // Append a component, because `walk` does not follow the link itself.
                self.walk(&link.join("."), &place);
            }
        }
    }

    fn walk(&mut self, top: &Path, place: &dyn Fn(&Path) -> Place) {
        let mut queue: Vec<PathBuf> = vec![top.to_owned()];
        let mut entries = 0;
        while let Some(path) = queue.pop() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return self.report.unsearched(
                    top.display().to_string(),
                    format!("only the first {ENTRIES_MAX} entries of the directory were searched"),
                );
            }
            let read = path.symlink_metadata().and_then(|meta| {
                if meta.is_dir() {
                    for entry in path.read_dir()? {
                        queue.push(entry?.path());
                    }
                } else if meta.is_file() {
                    self.file(&path, true, place);
                }
                Ok(())
            });
            match read {
                Err(error) if !gone(&error) => self.report.unsearched(path.display().to_string(), error.to_string()),
                _ => {}
            }
        }
    }

    fn file(&mut self, path: &Path, no_follow: bool, place: &dyn Fn(&Path) -> Place) {
        let follow = if no_follow { OFlags::NOFOLLOW } else { OFlags::empty() };
        // O_NONBLOCK prevents blocking if a pipe has replaced the file.
        let flags = (OFlags::NONBLOCK | follow).bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(path);
        let searched = opened.and_then(|mut file| {
            let at = || place(path);
            let bytes = self.stream(|buffer, at| if at < BYTES_MAX { file.read(buffer) } else { Ok(0) }, 0, &at)?;
            if bytes >= BYTES_MAX {
                return Err(io::Error::other(format!("only the first {BYTES_MAX} bytes of the file were read")));
            }
            Ok(bytes)
        });
        match searched {
            Ok(bytes) => {
                self.report.files += 1;
                self.report.bytes += bytes;
            }
            Err(error) if gone(&error) => {}
            Err(error) => self.report.unsearched(path.display().to_string(), error.to_string()),
        }
    }
}

/// Returns the devices of the file systems that are mounted in this process, from mountinfo. The device field has no
/// escapes, so it needs no parser.
fn mounted() -> HashSet<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect()
}

fn device(meta: &Metadata) -> String {
    format!("{}:{}", major(meta.dev()), minor(meta.dev()))
}

#[cfg(test)]
mod tests {
    use crate::{Canary, Needles, Place, Search};

    #[test]
    fn deep_files_are_searched_without_following_links() {
        let canary = Canary::random(5000).unwrap();
        let mut needles = Needles::new().unwrap();
        needles.add("it", canary.as_bytes());
        let top = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("a/b")).unwrap();
        std::fs::write(top.path().join("a/nothing"), "x".repeat(3_000_000)).unwrap();
        std::fs::write(elsewhere.path().join("f"), canary.as_bytes()).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), top.path().join("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            top.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        let search = || {
            let mut search = Search::new(&needles);
            search.files(top.path());
            search.files(&top.path().join("not there"));
            search.report()
        };
        let nothing = search();
        assert!(!nothing.found() && nothing.unsearched.is_empty(), "{nothing:?}");
        assert_eq!((nothing.files, nothing.bytes), (1, 3_000_000));
        let path = top.path().join("a/b/c");
        let half = &canary.as_bytes()[2500..];
        for before in [0, 1_000_000, (1 << 20) - 1250, (1 << 20) - 1, (1 << 20) - 16] {
            std::fs::write(&path, [&vec![0; before][..], half].concat()).unwrap();
            let report = search();
            assert_eq!(report.hits.len(), 1, "{before}: {report}");
            assert_eq!(report.hits[0].place, Place::File(path.clone()));
            // 2500 is not a multiple of 16, so the first complete window begins 12 bytes later. Each window is found
            // once.
            assert_eq!((report.hits[0].at, report.hits[0].windows), (before as u64 + 12, (2500 - 12) / 16));
        }
    }
    #[test]
    fn namespaces_are_skipped_deleted_files_searched() {
        let canary = Canary::random(5000).unwrap();
        let mut needles = Needles::new().unwrap();
        needles.add("it", canary.as_bytes());
        let mut deleted = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut deleted, canary.as_bytes()).unwrap();
        let namespace = std::fs::File::open("/proc/self/ns/uts").unwrap();
        assert!(namespace.metadata().unwrap().is_file(), "the control: the entry is a regular file");
        let mut search = Search::new(&needles);
        search.descriptors(&crate::process::Process::from_pid(std::process::id()).unwrap());
        let report = search.report();
        assert!(report.unsearched.is_empty(), "{report:?}");
        assert_eq!(report.hits.len(), 1, "the control: {report}");
        drop(namespace);
    }
}
