//! `bindings write`: writes all bindings into a local directory, or none.
//!
//! Bindings are written to a temporary directory (`.NAME.agent-cli-...`) next to the destination, synced, and renamed
//! atomically. Then the replaced directory is removed. There is no marker file of this command, because half of the
//! client libraries fail if a directory holds anything except bindings. A directory counts as written by this command
//! if it holds only directories of mode 0700 with a `type`, and regular files of mode 0600 without other hard links,
//! all owned by this command's user. Any other destination is left unchanged.
//!
//! After a SIGKILL, the temporary directory may remain.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use executor_bindings::{BindingFile, Bindings, ONE_FILE};
use executor_cli_kit::text::plain;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Mode of the directories that this command creates.
const DIRECTORY: u32 = 0o700;
/// Mode of the files that this command creates.
const FILE: u32 = 0o600;
/// Mask of the permission bits in a file's mode.
const BITS: u32 = 0o7777;
/// Error message for a directory that this command must not replace.
const FOREIGN: &str = "was not written by `agent-cli bindings write` and is not replaced";

/// Errors from writing bindings. After [`WriteError::Conflict`], nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("cannot write {}", plain(&.path.display().to_string()))]
    Io { path: PathBuf, source: io::Error },
    #[error("{} {why}; nothing was changed", plain(&.path.display().to_string()))]
    Conflict { path: PathBuf, why: &'static str },
}

/// Writes bindings, so that `dir` holds exactly these bindings.
pub(crate) fn write(bindings: &Bindings, dir: &Path) -> Result<(), WriteError> {
    let there = evaluate(dir)?;
    let name = dir.file_name().ok_or(WriteError::Conflict { path: dir.to_owned(), why: "has no file name" })?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = format!(".{}.agent-cli-{}", name.to_string_lossy(), uuid::Uuid::new_v4().simple());
    let temporary = TemporaryDir(parent.join(name));
    fill(bindings.files(), &temporary.0)?;
    let flags = if there { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
    renameat_with(CWD, &temporary.0, CWD, dir, flags).map_err(|error| match error {
        Errno::EXIST => WriteError::Conflict { path: dir.to_owned(), why: "was created in the meantime" },
        error => failed(dir)(error.into()),
    })?;
    // If the replaced directory was changed after the check, restore it.
    if there && let Err(error) = evaluate(&temporary.0) {
        renameat_with(CWD, &temporary.0, CWD, dir, RenameFlags::EXCHANGE).map_err(|error| failed(dir)(error.into()))?;
        return Err(match error {
            WriteError::Conflict { why, .. } => WriteError::Conflict { path: dir.to_owned(), why },
            error => error,
        });
    }
    sync(parent)
}

/// A temporary directory next to the destination, removed on drop. The directory holds unfinished or replaced bindings.
struct TemporaryDir(PathBuf);

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // best effort: on failure a hidden directory remains
    }
}

fn fill(files: &[BindingFile], dir: &Path) -> Result<(), WriteError> {
    let make = |path: &Path| fs::DirBuilder::new().mode(DIRECTORY).create(path).map_err(failed(path));
    make(dir)?;
    let mut made: Vec<PathBuf> = Vec::new();
    for BindingFile { path, content, .. } in files {
        if let Some((binding, _)) = path.split_once('/') {
            let binding = dir.join(binding);
            if made.last() != Some(&binding) {
                make(&binding)?;
                made.push(binding);
            }
        }
        let path = dir.join(path);
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE).open(&path);
        let written = file.and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()));
        written.map_err(failed(&path))?;
    }
    made.iter().try_for_each(|binding| sync(binding))?;
    sync(dir)
}

fn sync(dir: &Path) -> Result<(), WriteError> {
    File::open(dir).and_then(|opened| opened.sync_all()).map_err(failed(dir))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> WriteError + use<> {
    let path = path.to_owned();
    move |source| WriteError::Io { path: path.clone(), source }
}

/// Returns true if `dir` may be replaced, and false if it does not exist. Returns an error if `dir` must not be
/// replaced.
fn evaluate(dir: &Path) -> Result<bool, WriteError> {
    let meta = match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        meta => meta.map_err(failed(dir))?,
    };
    if !meta.is_dir() {
        return Err(WriteError::Conflict { path: dir.to_owned(), why: "is not a directory" });
    }
    let owner = rustix::process::geteuid().as_raw();
    let ours = |meta: &fs::Metadata, mode| meta.uid() == owner && meta.mode() & BITS == mode;
    let file = |meta: &fs::Metadata| meta.is_file() && ours(meta, FILE) && meta.nlink() == 1;
    for (path, meta) in children(dir)? {
        if file(&meta) && path.ends_with(ONE_FILE) {
            continue;
        }
        if !(meta.is_dir() && ours(&meta, DIRECTORY) && path.join("type").is_file()) {
            return Err(WriteError::Conflict { path, why: FOREIGN });
        }
        if let Some((path, _)) = children(&path)?.into_iter().find(|(_, meta)| !file(meta)) {
            return Err(WriteError::Conflict { path, why: FOREIGN });
        }
    }
    Ok(true)
}

/// Lists the entries of a directory; links are not followed.
fn children(dir: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>, WriteError> {
    let child = |entry: io::Result<fs::DirEntry>| {
        let path = entry.map_err(failed(dir))?.path();
        let meta = fs::symlink_metadata(&path).map_err(failed(&path))?;
        Ok((path, meta))
    };
    fs::read_dir(dir).map_err(failed(dir))?.map(child).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use executor_bindings::{Builder, Profile};

    use super::*;

    fn bindings(name: &str, secret: &str) -> Bindings {
        let json = format!(r#"{{"mysql":[{{"name":"{name}","credentials":{{"password":"{secret}"}}}}]}}"#);
        Builder::new().vcap_services(json.as_bytes(), Profile::Libcnb).finish().unwrap()
    }

    /// Lists all files below a directory, with content and mode.
    fn listing(dir: &Path) -> BTreeMap<String, (String, u32)> {
        let mut found = BTreeMap::new();
        let mut todo = vec![dir.to_owned()];
        while let Some(at) = todo.pop() {
            for (path, meta) in children(&at).unwrap() {
                let mode = meta.mode() & BITS;
                if meta.is_dir() {
                    assert_eq!(mode, DIRECTORY);
                    todo.push(path);
                } else {
                    let shown = path.strip_prefix(dir).unwrap().display().to_string();
                    found.insert(shown, (fs::read_to_string(&path).unwrap(), mode));
                }
            }
        }
        found
    }

    fn expected(name: &str, secret: &str) -> BTreeMap<String, (String, u32)> {
        let file = |(entry, content): (&str, &str)| (format!("{name}/{entry}"), (content.to_owned(), FILE));
        [("type", "mysql"), ("provider", "mysql"), ("password", secret)].map(file).into()
    }

    #[test]
    fn a_directory_is_replaced_as_a_whole() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("bindings");
        write(&bindings("db", "one"), &dir).unwrap();
        assert_eq!(listing(&dir), expected("db", "one"));
        write(&bindings("other", "two"), &dir).unwrap();
        assert_eq!(listing(&dir), expected("other", "two"));
        write(&Bindings::one_file(b"{}").unwrap(), &dir).unwrap();
        assert_eq!(listing(&dir), BTreeMap::from([(ONE_FILE.to_owned(), ("{}".to_owned(), FILE))]));
        write(&bindings("db", "three"), &dir).unwrap();
        assert_eq!(listing(&dir), expected("db", "three"));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "a temporary directory remains");
        let empty = home.path().join("empty");
        fs::create_dir(&empty).unwrap();
        write(&bindings("db", "four"), &empty).unwrap();
        assert_eq!(listing(&empty), expected("db", "four"));
        assert!(matches!(write(&bindings("db", "x"), &home.path().join("no/where")), Err(WriteError::Io { .. })));
    }

    #[test]
    fn foreign_files_are_not_overwritten() {
        let home = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        type Spoil<'a> = &'a dyn Fn(&Path);
        let spoil: [(&str, Spoil<'_>); 7] = [
            ("a file at the root", &|dir| fs::write(dir.join("README"), "mine").unwrap()),
            ("a hidden one", &|dir| fs::write(dir.join(".git"), "mine").unwrap()),
            ("an empty directory", &|dir| fs::create_dir(dir.join("src")).unwrap()),
            ("a file that others may read", &|dir| mode(&dir.join("db/type"), 0o644)),
            ("a directory that others may read", &|dir| mode(&dir.join("db"), 0o755)),
            ("a link", &|dir| symlink("/etc/passwd", dir.join("db/x")).unwrap()),
            ("another name of a file", &|dir| fs::hard_link(dir.join("db/type"), dir.join("../link")).unwrap()),
        ];
        for (number, (what, spoil)) in spoil.into_iter().enumerate() {
            let dir = home.path().join(number.to_string()).join("bindings");
            fs::create_dir(dir.parent().unwrap()).unwrap();
            write(&bindings("db", "one"), &dir).unwrap();
            spoil(&dir);
            let error = write(&bindings("db", "two"), &dir).unwrap_err();
            assert!(matches!(error, WriteError::Conflict { .. }), "{what}: {error}");
            assert_eq!(fs::read(dir.join("db/password")).unwrap(), b"one", "{what}");
        }
        let (file, link) = (home.path().join("file"), home.path().join("link"));
        fs::write(&file, "mine").unwrap();
        symlink(home.path().join("0"), &link).unwrap();
        for path in [&file, &link, &PathBuf::from("/"), &home.path().join("0/..")] {
            assert!(write(&bindings("db", "two"), path).is_err(), "{}", path.display());
        }
        assert_eq!(fs::read(&file).unwrap(), b"mine");
    }
}
