//! Implements the `directory` provider, which reads files beneath a directory, such as systemd's credentials directory
//! or a volume of secrets.
//!
//! A path is opened beneath the directory of the rule that allows it, and links cannot escape that directory.
//! Therefore, a user with write access to one part of the provider's directory cannot refer to secrets in another part.
//! Only regular files are read, and never the files that contain executord's own credentials for a provider.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use executor_core::reference::REFERENCE_VALUE_MAX;
use executor_sys::open::{Links, open_beneath};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::config::ProviderConfig;
use crate::files::{self, ReadError};
use crate::{ErrorKind, FetchError, FetchRequest, Value};

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Credential files of all providers.
    credentials: Arc<[PathBuf]>,
}

impl Directory {
    pub(crate) fn new(config: &ProviderConfig, credentials: Arc<[PathBuf]>) -> Self {
        Self { path: config.path.clone().unwrap_or_default(), credentials }
    }

    /// Reads a file on a blocking thread.
    pub(crate) async fn read(&self, request: &FetchRequest) -> Result<Value, FetchError> {
        let (dir, credentials) = (self.path.clone(), Arc::clone(&self.credentials));
        let (path, rule) = (request.reference.path.clone(), request.rule.clone());
        let read = tokio::task::spawn_blocking(move || {
            let content = read(&dir, &path, &rule, &credentials);
            executor_secrets::scrub_stack();
            content
        });
        read.await.map_err(|error| FetchError::unavailable(error.to_string()))?
    }
}

/// A file of a provider, with its path split at the directory that the rule covers.
#[derive(Debug, PartialEq, Eq)]
struct Covered<'a> {
    /// Directory of the rule, relative to the provider's directory. Empty for the provider's directory itself.
    dir: &'a str,
    /// Path of the file, relative to `dir`.
    path: &'a str,
    /// True if links are followed within `dir`.
    links: bool,
}

impl<'a> Covered<'a> {
    fn new(rule: &'a str, path: &'a str) -> Self {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let bare = rule.strip_suffix('/').unwrap_or(rule);
        match path.strip_prefix(bare).map(|rest| rest.strip_prefix('/').unwrap_or(rest)) {
            _ if rule == "/" => Self { dir: "", path, links: true },
            // The rule names only this file.
            Some("") => Self { dir: parent, path: name, links: false },
            Some(rest) if !bare.is_empty() => Self { dir: bare, path: rest, links: true },
            // There is no rule, so the directory of the file is used.
            _ => Self { dir: parent, path: name, links: true },
        }
    }
}

fn read(dir: &Path, path: &str, rule: &str, credentials: &[PathBuf]) -> Result<Value, FetchError> {
    let credential =
        || FetchError::new(ErrorKind::Denied, "the file contains executord's own credentials for a provider");
    let shown = dir.display();
    if credentials.iter().any(|one| lexical(one) == lexical(&dir.join(path))) {
        return Err(credential());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = open(dir, flags, Mode::empty());
    let dir = opened.map_err(|error| FetchError::unavailable(format!("cannot open {shown}: {}", plain(error))))?;
    let covered = Covered::new(rule, path);
    let file = covered.open(&dir).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR => {
            FetchError::new(ErrorKind::NotFound, format!("the file does not exist in {shown}"))
        }
        Errno::XDEV | Errno::LOOP => {
            let Covered { dir, links, .. } = covered;
            let of_rule = if rule == "/" { String::new() } else { format!("/{dir} (allowed by the rule {rule:?})") };
            let leads = if links { "escapes" } else { "is not followed in" };
            FetchError::new(ErrorKind::Denied, format!("a symbolic link in the path {leads} {shown}{of_rule}"))
        }
        Errno::ACCESS | Errno::PERM => {
            FetchError::new(ErrorKind::Denied, format!("executord has no permission to read the file in {shown}"))
        }
        error => FetchError::unavailable(format!("cannot open the file in {shown}: {}", plain(error))),
    })?;
    let file = File::from(file);
    // Detect a credentials file that was opened by another name, such as a link.
    let of_file = file.metadata().ok().map(|metadata| identity(&metadata));
    let is_same = |one: &PathBuf| std::fs::metadata(one).is_ok_and(|metadata| Some(identity(&metadata)) == of_file);
    if credentials.iter().any(is_same) {
        return Err(credential());
    }
    let content = files::read(&file, REFERENCE_VALUE_MAX).map_err(|error| match error {
        ReadError::NotRegular => {
            FetchError::new(ErrorKind::Unsuitable, format!("the file in {shown} is not a regular file"))
        }
        ReadError::TooLarge => FetchError::too_large(),
        ReadError::Io(error) => FetchError::unavailable(format!("cannot read the file in {shown}: {error}")),
    })?;
    Ok(Value { content, version: String::new(), lease: None })
}

fn plain(error: Errno) -> String {
    let text = std::io::Error::from(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Returns the device number and the inode number of a file.
fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Resolves `.` and `..` in a path without accessing files.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

impl Covered<'_> {
    /// Opens the file. The directory of the rule is opened without following links.
    fn open(&self, provider: &OwnedFd) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let (path, links) = (Path::new(self.path), if self.links { Links::Beneath } else { Links::Refused });
        if self.dir.is_empty() {
            return open_beneath(provider.as_fd(), path, flags, links);
        }
        let dir_flags = OFlags::PATH | OFlags::DIRECTORY;
        let dir = open_beneath(provider.as_fd(), Path::new(self.dir), dir_flags, Links::Refused)?;
        open_beneath(dir.as_fd(), path, flags, links)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_outside_of_the_directory_is_read() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("in");
        std::fs::create_dir_all(dir.join("a")).unwrap();
        std::fs::write(dir.join("a/b"), b"value").unwrap();
        std::fs::write(home.path().join("out"), b"canary").unwrap();
        std::fs::write(dir.join("large"), vec![b'x'; REFERENCE_VALUE_MAX + 1]).unwrap();
        std::fs::write(dir.join("full"), vec![b'x'; REFERENCE_VALUE_MAX]).unwrap();
        symlink("../out", dir.join("link")).unwrap();
        symlink("/proc/self/environ", dir.join("absolute")).unwrap();
        symlink("a/b", dir.join("within")).unwrap();
        let of = |path: &str| read(&dir, path, "/", &[]).map(|value| value.content.to_vec());
        assert_eq!(of("a/b").unwrap(), b"value");
        assert_eq!(of("within").unwrap(), b"value");
        assert_eq!(of("full").unwrap().len(), REFERENCE_VALUE_MAX);
        let table = [
            ("none", ErrorKind::NotFound),
            ("a/b/c", ErrorKind::NotFound),
            ("../out", ErrorKind::Denied),
            ("link", ErrorKind::Denied),
            ("absolute", ErrorKind::Denied),
            ("a", ErrorKind::Unsuitable),
            ("large", ErrorKind::Unsuitable),
        ];
        for (path, kind) in table {
            assert_eq!(of(path).unwrap_err().kind, kind, "{path}");
        }
    }

    #[test]
    fn link_does_not_cross_its_rule() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        for (path, content) in
            [("app/pw", "app"), ("app/v1/pw", "versioned"), ("other/pw", "canary"), ("top", "canary")]
        {
            std::fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.join(path), content).unwrap();
        }
        for (target, link) in [
            ("../other/pw", "app/ln"),
            ("../other", "app/dir"),
            ("../top", "app/up"),
            ("v1/pw", "app/within"),
            ("v1", "app/..data"),
            ("..data/pw", "app/volume"),
            ("other", "alias"),
        ] {
            symlink(target, dir.join(link)).unwrap();
        }
        let of = |rule: &str, path: &str| read(dir, path, rule, &[]).map(|value| value.content.to_vec());
        for (rule, path, content) in [
            ("app/", "app/pw", "app"),
            ("app", "app/within", "versioned"),
            ("app/", "app/volume", "versioned"),
            ("app/pw", "app/pw", "app"),
            ("/", "app/ln", "canary"),
            ("", "app/volume", "versioned"),
        ] {
            assert_eq!(of(rule, path).unwrap(), content.as_bytes(), "{rule} {path}");
        }
        for (rule, path) in [
            ("app/", "app/ln"),
            ("app", "app/dir/pw"),
            ("app/", "app/up"),
            ("app/ln", "app/ln"),
            ("app/within", "app/within"),
            ("alias/", "alias/pw"),
            ("", "app/ln"),
        ] {
            let refused = of(rule, path).unwrap_err();
            assert!(
                refused.kind == ErrorKind::Denied && refused.why.contains("symbolic link"),
                "{rule} {path}: {refused}"
            );
        }
    }

    #[test]
    fn credential_of_provider_is_no_value() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path();
        std::fs::create_dir(dir.join("a")).unwrap();
        for name in ["token", "value"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        symlink("../token", dir.join("a/link")).unwrap();
        std::fs::hard_link(dir.join("token"), dir.join("hard")).unwrap();
        let credentials = [dir.join("a/../token"), dir.join("absent")];
        for path in ["token", "a/link", "hard", "absent"] {
            let refused = read(dir, path, "/", &credentials).unwrap_err();
            assert!(refused.kind == ErrorKind::Denied && refused.why.contains("own credentials"), "{path}: {refused}");
        }
        assert_eq!(read(dir, "value", "/", &credentials).unwrap().content.as_slice(), b"value");
    }
}
