//! Stores records of installations on disk, as `installations/NAME.json` and `locks/NAME` below one directory.
//!
//! A record is written under a temporary name, synced and renamed, and then its directory is synced. Even after a
//! crash, the record is complete or absent. Directories have mode 0700, files 0600.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{Installation, check_name};

/// Maximum size of a record, in bytes.
const RECORD_MAX: u64 = 4 << 20;
/// Value of `O_NOFOLLOW` on Linux, which depends on the architecture.
const NO_FOLLOW: i32 = if cfg!(target_arch = "aarch64") { 0o100_000 } else { 0o400_000 };

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{} cannot be {doing}", .path.display())]
    Io { path: PathBuf, doing: &'static str, source: io::Error },
    #[error("{} is not a valid record: {why}", .path.display())]
    Broken { path: PathBuf, why: String },
    #[error("{0}")]
    Name(String),
    #[error("another agent-cli command is working on {0}")]
    Busy(String),
    #[error("there is no installation {0:?}")]
    Missing(String),
}

#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// Lock on an installation, released when dropped.
#[derive(Debug)]
pub struct Locked {
    name: String,
    _file: File,
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, doing, source }
}

impl Store {
    /// Returns a store in a directory. The directory is created on the first write.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the directory of the records, which may not exist yet. A new record is renamed into this directory.
    pub fn directory(&self) -> PathBuf {
        self.root.join("installations")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory().join(format!("{name}.json"))
    }

    /// Returns the temporary path of a record. A file that remains there after a kill is ignored, and is removed
    /// together with the record.
    fn partial(&self, name: &str) -> PathBuf {
        self.directory().join(format!(".partial-{name}"))
    }

    /// Locks an installation, which may not exist yet.
    ///
    /// # Errors
    /// Returns an error if the name is not valid, another process holds the lock, or the lock file cannot be created.
    pub fn lock(&self, name: &str) -> Result<Locked, StoreError> {
        check_name(name).map_err(StoreError::Name)?;
        let path = self.root.join("locks").join(name);
        make_dir(&self.root.join("locks"))?;
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_FOLLOW).open(&path);
        let file = file.map_err(failed(&path, "opened"))?;
        match file.try_lock() {
            Ok(()) => Ok(Locked { name: name.to_owned(), _file: file }),
            Err(fs::TryLockError::WouldBlock) => Err(StoreError::Busy(name.to_owned())),
            Err(fs::TryLockError::Error(error)) => Err(failed(&path, "locked")(error)),
        }
    }

    /// Returns the names of all installations, sorted.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let directory = self.directory();
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed(&directory, "read"))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed(&directory, "read"))?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned));
        }
        names.retain(|name| check_name(name).is_ok());
        names.sort();
        Ok(names)
    }

    /// Reads an installation; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the record cannot be read or is not valid.
    pub fn read(&self, name: &str) -> Result<Option<Installation>, StoreError> {
        check_name(name).map_err(StoreError::Name)?;
        let path = self.path(name);
        let file = match OpenOptions::new().read(true).custom_flags(NO_FOLLOW).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed(&path, "read"))?,
        };
        let mut bytes = Vec::new();
        file.take(RECORD_MAX + 1).read_to_end(&mut bytes).map_err(failed(&path, "read"))?;
        let broken = |why: String| StoreError::Broken { path: path.clone(), why };
        if bytes.len() as u64 > RECORD_MAX {
            return Err(broken(format!("the record is larger than the maximum of {RECORD_MAX} bytes")));
        }
        let found: Installation = serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        if found.name != name {
            return Err(broken(format!("the record belongs to the installation {:?}", found.name)));
        }
        Ok(Some(found))
    }

    /// Writes a locked installation.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub fn write(&self, locked: &Locked, installation: &Installation) -> Result<(), StoreError> {
        let path = self.path(&locked.name);
        let directory = self.directory();
        make_dir(&directory)?;
        let partial = self.partial(&locked.name);
        let content = serde_json::to_vec_pretty(installation).unwrap_or_default();
        let result = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(NO_FOLLOW)
                .open(&partial)?;
            file.write_all(&content)?;
            file.sync_all()?;
            fs::rename(&partial, &path)
        })();
        if let Err(error) = result {
            let _ = fs::remove_file(&partial); // best effort: a hidden file may remain
            return Err(failed(&path, "written")(error));
        }
        sync(&directory)
    }

    /// Removes the record of a locked installation.
    ///
    /// # Errors
    /// Returns an error if the record cannot be removed.
    pub fn remove(&self, locked: &Locked) -> Result<(), StoreError> {
        for path in [self.partial(&locked.name), self.path(&locked.name)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(failed(&path, "removed"))?,
            }
        }
        let directory = self.directory();
        if directory.is_dir() { sync(&directory) } else { Ok(()) }
    }
}

/// Creates a directory and its parents, and syncs the parent of each created directory.
fn make_dir(directory: &Path) -> Result<(), StoreError> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_dir(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => {
            made.map_err(failed(directory, "created"))?;
            parent.map_or(Ok(()), sync)
        }
    }
}

fn sync(directory: &Path) -> Result<(), StoreError> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed(directory, "synced"))
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;

    #[test]
    fn records_are_locked_written_whole_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("new/dir"));
        assert_eq!((store.names().unwrap().len(), store.read("demo").unwrap()), (0, None));
        let locked = store.lock("demo").unwrap();
        assert!(matches!(store.lock("demo"), Err(StoreError::Busy(_))));
        let record = Installation::new("demo", Options { partial: true, ..Options::default() });
        store.write(&locked, &record).unwrap();
        assert_eq!(store.read("demo").unwrap(), Some(record));
        assert_eq!(store.names().unwrap(), ["demo"]);
        // A temporary file that remains after a crash is not an installation.
        let installations = dir.path().join("new/dir/installations");
        fs::write(installations.join(".partial-demo"), "x").unwrap();
        assert_eq!(store.names().unwrap(), ["demo"]);
        fs::write(installations.join("other.json"), fs::read(installations.join("demo.json")).unwrap()).unwrap();
        assert!(matches!(store.read("other"), Err(StoreError::Broken { .. })));
        fs::write(installations.join("demo.json"), "{").unwrap();
        assert!(matches!(store.read("demo"), Err(StoreError::Broken { .. })));
        store.remove(&locked).unwrap();
        assert_eq!(store.read("demo").unwrap(), None);
        fs::remove_file(installations.join("other.json")).unwrap();
        assert_eq!(fs::read_dir(&installations).unwrap().count(), 0);
        drop(locked);
        assert!(store.lock("demo").is_ok() && matches!(store.lock("../x"), Err(StoreError::Name(_))));
    }
}
