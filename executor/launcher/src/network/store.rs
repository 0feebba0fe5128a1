//! What is needed to take containers off their networks: STATE_DIR/networks/ID.json, root's alone.
//!
//! Beside the containers' own directories and not in them: a plugin that fails at a container's end must not keep the
//! container, and is tried again when that is long gone.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use executor_core::cni::Attachment;
use executor_core::ident::ContainerId;

use crate::dirs;
use crate::host::Host;

/// Largest file. A configuration and a result, which have less.
const BYTES_MAX: u64 = 8 << 20;
const ENDING: &str = ".json";

fn dir(host: &Host) -> PathBuf {
    host.state_dir.join("networks")
}

fn path(host: &Host, id: &ContainerId) -> PathBuf {
    dir(host).join(format!("{id}{ENDING}"))
}

/// Makes the directory.
pub(super) fn make_dir(host: &Host) -> io::Result<()> {
    match dirs::make_dir(&dir(host), 0o700, None) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Writes it, replacing what was there.
pub(super) fn write(host: &Host, attachment: &Attachment) -> io::Result<()> {
    let ahead = dir(host).join(format!(".{}", attachment.id));
    let _ = fs::remove_file(&ahead);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&ahead)?;
    file.write_all(&serde_json::to_vec(attachment)?)?;
    fs::rename(ahead, path(host, &attachment.id))
}

/// Reads it; nothing where the container is on no network.
pub(super) fn read(host: &Host, id: &ContainerId) -> io::Result<Option<Attachment>> {
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path(host, id)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Removes it.
pub(super) fn remove(host: &Host, id: &ContainerId) -> io::Result<()> {
    fs::remove_file(path(host, id))
}

/// Containers that there is one of.
pub(super) fn ids(host: &Host) -> Vec<ContainerId> {
    let entries = fs::read_dir(dir(host)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(ENDING)?.parse().ok()).collect()
}
