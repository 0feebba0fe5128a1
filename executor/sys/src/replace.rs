//! Replaces a file atomically by rename: a reader sees either the old or the new content.
//!
//! The new content is written to `NAME.new` next to the file. The name `NAME.new` is reserved for this module: a
//! leftover of an earlier attempt is removed, a link is not followed, and the file is removed after an error.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Suffix of a file that is still being written.
pub const PARTIAL: &str = ".new";

/// A pending replacement of a file.
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is written until `write` is called"]
pub struct Replacement<'a> {
    path: &'a Path,
    mode: u32,
    group: Option<u32>,
    durable: bool,
}

impl<'a> Replacement<'a> {
    /// Returns a replacement of the file at `path`, which need not exist. By default only the caller's user can read
    /// and write the file, and the file is not synced.
    pub fn from_path(path: &'a Path) -> Self {
        Self { path, mode: 0o600, group: None, durable: false }
    }

    /// Sets the file's group and mode.
    pub fn shared(self, mode: u32, group: u32) -> Self {
        Self { mode, group: Some(group), ..self }
    }

    /// Makes [`Self::write`] sync the file and its directory entry before it returns.
    pub fn durable(self) -> Self {
        Self { durable: true, ..self }
    }

    /// Writes the content and renames the file into place. Returns the file, open for writing at its end.
    ///
    /// # Errors
    /// Returns an error if the write or rename fails; the old file is then unchanged and no partial file remains. If
    /// only syncing the directory fails, the new content is already in place.
    pub fn write(self, content: &[u8]) -> io::Result<File> {
        let partial = partial(self.path);
        let written = self.create(&partial).and_then(|mut file| {
            file.write_all(content)?;
            self.publish(&file, &partial)?;
            Ok(file)
        });
        written.inspect_err(|_| drop(fs::remove_file(&partial))) // fails if the file was renamed already
    }

    fn create(&self, partial: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.create_new(true).write(true).mode(self.mode).custom_flags(libc::O_NOFOLLOW);
        let file = match options.open(partial) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(partial)?; // left over from an earlier attempt
                options.open(partial)?
            }
            file => file?,
        };
        if let Some(group) = self.group {
            fchown(&file, None, Some(group))?;
            file.set_permissions(Permissions::from_mode(self.mode))?; // regardless of the umask
        }
        Ok(file)
    }

    fn publish(&self, file: &File, partial: &Path) -> io::Result<()> {
        if !self.durable {
            return fs::rename(partial, self.path);
        }
        file.sync_all()?;
        fs::rename(partial, self.path)?;
        self.path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

/// Returns the name of the file while it is written.
fn partial(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(PARTIAL);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        let partial = dir.path().join("record.json.new");
        let victim = dir.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        for before in ["nothing", "leftover", "link"] {
            match before {
                "leftover" => fs::write(&partial, "half of some").unwrap(),
                "link" => symlink(&victim, &partial).unwrap(),
                _ => {}
            }
            Replacement::from_path(&path).durable().write(before.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
            assert!(!partial.exists());
        }
        assert_eq!(fs::read_to_string(victim).unwrap(), "kept");
        let group = rustix::process::getegid().as_raw();
        Replacement::from_path(&path).shared(0o666, group).write(b"for all").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o666, "the umask has no effect");
    }

    #[test]
    fn failed_replacement_keeps_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("occupied");
        fs::create_dir_all(path.join("below")).unwrap();
        assert!(Replacement::from_path(&path).write(b"x").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(path.join("below").exists());
    }
}
