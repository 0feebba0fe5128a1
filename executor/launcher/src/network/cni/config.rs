//! Reads the operator's CNI network files from a directory. If the request names no network, the first file by name is
//! used.

use crate::errors::plain;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use executor_core::cni::{CONFIG_MAX, CniNetwork, is_config_name};
use executor_sys::open::read_whole;

/// Maximum number of directory entries.
const ENTRIES_MAX: usize = 1000;

/// Returns the named network, or the first network if the name is empty.
///
/// # Errors
/// Returns an error if the network does not exist. The error lists unreadable files, because one of them may define the
/// network.
pub(in crate::network) fn find(dir: &Path, name: &str) -> Result<CniNetwork, String> {
    let shown = dir.display();
    let mut faulty = Vec::new();
    for (file, network) in read_all(dir).map_err(|error| format!("{shown}: {}", plain(&error)))? {
        match network {
            Ok(network) if name.is_empty() || network.name == name => return Ok(network),
            Ok(_) => {}
            // The first network must not depend on which files are readable.
            Err(why) if name.is_empty() => return Err(format!("{shown}/{file}: {why}")),
            Err(why) => faulty.push(format!("{file}: {why}")),
        }
    }
    let faulty = match faulty.len() {
        0 => String::new(),
        _ => format!("; not read: {}", faulty.join("; ").chars().take(1024).collect::<String>()),
    };
    let what = if name.is_empty() { "no network".to_owned() } else { format!("no network `{name}`") };
    Err(format!("{what} is configured in {shown}{faulty}"))
}

/// Returns an iterator over the files, sorted by name. Each item has the file name, and the network or an error. A file
/// is read when the iterator reaches it.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub(in crate::network) fn read_all(
    dir: &Path,
) -> io::Result<impl Iterator<Item = (String, Result<CniNetwork, String>)>> {
    let dir = dir.to_owned();
    Ok(names(&dir)?.into_iter().map(move |file| {
        let read = read(&dir.join(&file)).map_err(|error| plain(&error));
        let network = read.and_then(|bytes| CniNetwork::parse(&bytes).map_err(|bad| bad.to_string()));
        (file, network)
    }))
}

/// Returns true if no network is configured.
pub(in crate::network) fn is_empty(dir: &Path) -> bool {
    names(dir).is_ok_and(|names| names.is_empty())
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries.take(ENTRIES_MAX) {
        names.extend(entry?.file_name().into_string().ok().filter(|name| is_config_name(name)));
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads a file. Fails if users other than root can write to the file, because the plugins in the file run as root.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("the path is not a regular file"));
    }
    if meta.uid() != 0 || meta.mode() & 0o022 != 0 {
        let (uid, mode) = (meta.uid(), meta.mode() & 0o7777);
        let why = format!("the file is writable by users other than root: it has owner {uid} and mode {mode:04o}");
        return Err(io::Error::other(why));
    }
    read_whole(file, CONFIG_MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn single(name: &str) -> String {
        format!(r#"{{"cniVersion": "1.0.0", "name": "{name}", "type": "bridge"}}"#)
    }

    #[test]
    fn first_or_named_network_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let found = |name: &str| find(dir.path(), name).map(|network| network.name);
        assert!(found("").unwrap_err().contains("no network is configured in"));
        assert!(find(Path::new("/nonexistent"), "x").is_err());
        write("20-b.conflist", &single("b"));
        write("10-a.conf", &single("a"));
        write("05-c.conf.bak", &single("c"));
        assert_eq!((found("").unwrap(), found("b").unwrap()), ("a".into(), "b".into()));
        assert!(found("c").unwrap_err().contains("no network `c` is configured"));
        write("00-broken.json", "{");
        assert!(found("").unwrap_err().contains("00-broken.json: is not"), "the first configuration is unknown");
        assert_eq!(found("b").unwrap(), "b");
        assert!(found("c").unwrap_err().contains("not read: 00-broken.json"));
        write("00-broken.json", &" ".repeat(300 << 10));
        assert!(found("").unwrap_err().contains("has more than"));
    }

    #[test]
    fn configuration_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.conf");
        fs::write(&path, single("a")).unwrap();
        let is_root = fs::metadata(&path).unwrap().uid() == 0;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find(dir.path(), "a").is_ok(), is_root);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        assert!(find(dir.path(), "a").unwrap_err().contains("is writable by users other than root"));
    }
}
