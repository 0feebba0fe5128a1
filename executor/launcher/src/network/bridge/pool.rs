//! Leases addresses of a bridge network. STATE_DIR/networks/NAME.leases/NUMBER is a symbolic link whose target is the
//! id of the container that has the addresses with this number. A link is created and read atomically, so a lease is
//! never incomplete.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::files;
use crate::host::Host;
use crate::network::store;

const ENDING: &str = ".leases";

fn dir(host: &Host, network: &str) -> PathBuf {
    store::dir(host).join(format!("{network}{ENDING}"))
}

/// Creates the directory of a network's leases.
///
/// # Errors
/// Returns an error if a file operation fails.
pub(super) fn make_dir(host: &Host, network: &str) -> io::Result<()> {
    files::ensure_dir(&dir(host, network), 0o700)
}

/// Leases a free number of the range to `owner`. Calls `prepare` with each candidate before the candidate is leased.
/// Returns `None` if all numbers are leased.
///
/// # Errors
/// Returns an error if a file operation or `prepare` fails.
pub(super) fn lease(
    host: &Host,
    network: &str,
    numbers: &RangeInclusive<u32>,
    owner: &str,
    mut prepare: impl FnMut(u32) -> io::Result<()>,
) -> io::Result<Option<u32>> {
    let dir = dir(host, network);
    // Start at a random number, so that an address is not reused soon: peers may still cache the last owner.
    let count = numbers.end() - numbers.start() + 1;
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let first = u32::from_ne_bytes(random) % count;
    let mut candidates = (0..count).map(|step| numbers.start() + (first + step) % count);
    let mut leased = None; // set when the first candidate is already leased
    loop {
        let Some(number) = candidates.next() else { return Ok(None) };
        if leased.as_ref().is_some_and(|leased: &std::collections::BTreeSet<u32>| leased.contains(&number)) {
            continue;
        }
        prepare(number)?;
        match std::os::unix::fs::symlink(owner, dir.join(number.to_string())) {
            Ok(()) => return Ok(Some(number)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                leased = Some(leases(host, network)?.into_iter().map(|(number, _)| number).collect());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Transfers a lease to another owner.
///
/// # Errors
/// Returns an error if a file operation fails. The lease is then unchanged.
pub(super) fn transfer(host: &Host, network: &str, number: u32, owner: &str) -> io::Result<()> {
    let (dir, name) = (dir(host, network), number.to_string());
    let temporary = dir.join(format!(".{owner}"));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(owner, &temporary)?;
    fs::rename(&temporary, dir.join(name))
}

/// Returns the owner of a number, if it is leased.
///
/// # Errors
/// Returns an error if a file operation fails.
pub(super) fn owner(host: &Host, network: &str, number: u32) -> io::Result<Option<String>> {
    match fs::read_link(dir(host, network).join(number.to_string())) {
        Ok(owner) => Ok(owner.into_os_string().into_string().ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Releases the lease of a number if `owner` holds the lease.
///
/// # Errors
/// Returns an error if a file operation fails.
pub(super) fn release(host: &Host, network: &str, number: u32, owner: &str) -> io::Result<()> {
    if self::owner(host, network, number)?.as_deref() != Some(owner) {
        return Ok(());
    }
    fs::remove_file(dir(host, network).join(number.to_string()))
}

/// Returns every leased number with its owner.
///
/// # Errors
/// Returns an error if a file operation fails.
pub(super) fn leases(host: &Host, network: &str) -> io::Result<Vec<(u32, String)>> {
    let entries = match fs::read_dir(dir(host, network)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut leases = Vec::new();
    for entry in entries {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(number) = number
            && let Some(owner) = owner(host, network, number)?
        {
            leases.push((number, owner));
        }
    }
    leases.sort_unstable();
    Ok(leases)
}

/// Returns the number of leases.
///
/// # Errors
/// Returns an error if a file operation fails.
pub(super) fn count(host: &Host, network: &str) -> io::Result<usize> {
    match fs::read_dir(dir(host, network)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        entries => Ok(entries?.count()),
    }
}

/// Returns the networks that have a directory of leases, including networks that are no longer configured.
pub(super) fn networks(host: &Host) -> Vec<String> {
    let entries = fs::read_dir(store::dir(host)).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(ENDING)?.to_owned())).collect()
}
