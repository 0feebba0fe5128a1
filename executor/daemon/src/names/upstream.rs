//! The host's name servers from `/etc/resolv.conf`. The file is read again when it has changed.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Mutex;

use executor_core::names::{HOST_FILE_MAX, servers};
use executor_sys::file_version::FileVersion;
use executor_sys::mutex::locked;

/// Maximum number of name servers, as in resolv.conf(5).
const SERVERS_MAX: usize = 3;

#[derive(Debug)]
pub(super) struct HostServers {
    path: PathBuf,
    last: Mutex<LastRead>,
}

/// Result of the last attempt to read the file.
#[derive(Debug, Default)]
struct LastRead {
    found: Option<(FileVersion, Vec<IpAddr>)>,
    has_failed: bool,
}

impl Default for HostServers {
    fn default() -> Self {
        Self::new("/etc/resolv.conf".into())
    }
}

impl HostServers {
    fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::default() }
    }

    /// Returns the name servers. If the file cannot be read, logs this once and returns no name servers.
    pub(super) fn get(&self) -> Vec<IpAddr> {
        let mut last = locked(&self.last);
        match self.read(last.found.take()) {
            Ok((version, servers)) => {
                *last = LastRead { found: Some((version, servers.clone())), has_failed: false };
                servers
            }
            Err(error) => {
                if !std::mem::replace(&mut last.has_failed, true) {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "cannot read the host's name servers");
                }
                Vec::new()
            }
        }
    }

    fn read(&self, last: Option<(FileVersion, Vec<IpAddr>)>) -> io::Result<(FileVersion, Vec<IpAddr>)> {
        let version = FileVersion::from(&std::fs::metadata(&self.path)?);
        if let Some(last) = last.filter(|(known, _)| *known == version) {
            return Ok(last);
        }
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(HOST_FILE_MAX).read_to_end(&mut bytes)?;
        let mut found = servers(&String::from_utf8_lossy(&bytes));
        found.truncate(SERVERS_MAX);
        Ok((version, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let host = HostServers::new(path.clone());
        let shown = || host.get().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(shown(), "", "the file is missing");
        std::fs::write(&path, "search a\nnameserver 192.0.2.1\nnameserver x\nnameserver ::1\n").unwrap();
        assert_eq!(shown(), "192.0.2.1 ::1");
        std::fs::write(&path, "nameserver 192.0.2.2\n".repeat(5)).unwrap();
        assert_eq!(shown(), "192.0.2.2 192.0.2.2 192.0.2.2");
    }
}
