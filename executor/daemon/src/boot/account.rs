//! Selects the user that the daemon runs as. Users and groups are looked up in /etc/passwd and /etc/group, not through
//! the name services, whose libraries a static program cannot load.
//!
//! The daemon's user may call the daemon and read its files, so no other program may run as the same user. If no user
//! was created for the daemon, it uses an id of systemd's range for dynamic users, and the same id at each start.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use executor_core::plan::{Memberships, Principal, UserRef};
use executor_core::users::{self, FILE_MAX};
use executor_sys::open::read_whole;

use super::BootError;
use crate::config::Config;
use crate::paths::Paths;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Default user, if it exists.
const DEFAULT: &str = "executor";
/// Range of ids that systemd reserves for dynamic users. These ids need no user in /etc/passwd.
const DYNAMIC: RangeInclusive<u32> = 61_184..=65_519;
/// The overflow uid, which the kernel shows for unmapped ids. Programs without a dedicated user often run as this user.
pub(super) const OVERFLOW_UID: u32 = 65_534;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name or number as configured.
    pub name: String,
    pub uid: u32,
    /// Gid of the primary group.
    pub gid: u32,
}

impl Account {
    /// Finds the user that the daemon will run as.
    ///
    /// # Errors
    /// Returns an error if the user does not exist, or if no dynamic id is free.
    pub(super) fn to_serve_as(config: &Config, root: bool) -> Result<Self, BootError> {
        if !root || config.keep_root {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            return Ok(Self { name: uid.to_string(), uid, gid });
        }
        if let Some(name) = &config.user {
            return Self::named(name);
        }
        match Self::named(DEFAULT) {
            Ok(user) => Ok(user),
            Err(BootError::NoSuch { .. }) => Self::dynamic(&config.paths),
            Err(error) => Err(error),
        }
    }

    /// Returns an id that no other program uses: the id of an earlier daemon of this state directory, or an id that is
    /// derived from the directory's path.
    fn dynamic(paths: &Paths) -> Result<Self, BootError> {
        let (users, groups) = (ids(&read(PASSWD)?), ids(&read(GROUP)?));
        let is_free = |id: &u32| !users.contains(id) && !groups.contains(id);
        let earlier = std::fs::symlink_metadata(paths.ledger()).map(|ledger| ledger.uid()).ok();
        if let Some(id) = earlier.filter(|id| DYNAMIC.contains(id)).filter(is_free) {
            return Ok(Self::numbered(id));
        }
        let running = users_of_processes()?;
        let count = DYNAMIC.end() - DYNAMIC.start() + 1;
        let first = hash(paths.state_dir.as_os_str().as_encoded_bytes()) % count;
        let mut all = (0..count).map(|step| DYNAMIC.start() + (first + step) % count);
        let id = all.find(|id| is_free(id) && !running.contains(id));
        id.map(Self::numbered).ok_or(BootError::NoFreeUser { first: *DYNAMIC.start(), last: *DYNAMIC.end() })
    }

    fn numbered(id: u32) -> Self {
        Self { name: id.to_string(), uid: id, gid: id }
    }

    fn named(name: &str) -> Result<Self, BootError> {
        let found = users::resolve_host_user(principal(name), &read(PASSWD)?);
        let (uid, gid) = found.map_err(|_| BootError::NoSuch { what: "user", name: name.to_owned(), file: PASSWD })?;
        Ok(Self { name: name.to_owned(), uid, gid })
    }
}

/// Returns an error for the configured user, and one for the configured group, if they do not exist on this host.
pub fn missing(config: &Config) -> Vec<BootError> {
    let user = config.user.as_deref().and_then(|name| Account::named(name).err());
    let group = config.allow_group.as_deref().and_then(|name| group(name).err());
    user.into_iter().chain(group).collect()
}

/// Returns the ids in the third field of /etc/passwd or /etc/group.
fn ids(file: &[u8]) -> BTreeSet<u32> {
    let lines = file.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect()
}

/// Returns the real, effective, saved and file system user ids of all processes.
fn users_of_processes() -> Result<BTreeSet<u32>, BootError> {
    let failed = |source| BootError::Path { what: "read", path: "/proc".into(), source };
    let mut users = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let is_process = name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
        // A process may exit at any time.
        let status = is_process.then(|| std::fs::read_to_string(Path::new("/proc").join(name).join("status")));
        let status = status.and_then(Result::ok).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        users.extend(line.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
    }
    Ok(users)
}

/// Returns the FNV-1a hash of a text. Later versions must return the same hash.
fn hash(text: &[u8]) -> u32 {
    text.iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Finds the gid of a group by name or number.
///
/// # Errors
/// Returns an error if the group does not exist.
pub(super) fn group(name: &str) -> Result<u32, BootError> {
    let user = UserRef { user: Principal::Id(0), group: Some(principal(name)) };
    let found = users::resolve(&user, Memberships::default(), &[], &read(GROUP)?);
    Ok(found.map_err(|_| BootError::NoSuch { what: "group", name: name.to_owned(), file: GROUP })?.gid)
}

fn principal(name: &str) -> Principal {
    name.parse().map_or_else(|_| Principal::Name(name.to_owned()), Principal::Id)
}

fn read(path: &'static str) -> Result<Vec<u8>, BootError> {
    std::fs::File::open(path).and_then(|file| read_whole(file, FILE_MAX)).map_err(|source| BootError::Path {
        what: "read",
        path: path.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_user_stays_and_is_no_others() {
        let home = tempfile::tempdir().unwrap();
        let paths = Paths { run_dir: home.path().join("run"), state_dir: home.path().join("state") };
        let (known, running) = (ids(&read(PASSWD).unwrap()), users_of_processes().unwrap());
        let user = Account::dynamic(&paths).unwrap();
        assert!(DYNAMIC.contains(&user.uid) && user.uid == user.gid, "{user:?}");
        assert!(!known.contains(&user.uid) && !running.contains(&user.uid), "{user:?}");
        assert_eq!(Account::dynamic(&paths).unwrap(), user);
        let other = Paths { state_dir: home.path().join("other"), ..paths.clone() };
        assert_ne!(Account::dynamic(&other).unwrap(), user);
        // The owner of an earlier daemon's files takes precedence if it is a dynamic user. Only root can change the
        // owner.
        std::fs::create_dir_all(paths.ledger()).unwrap();
        for (owner, taken) in [(61_200, 61_200), (OVERFLOW_UID, user.uid)] {
            if std::os::unix::fs::chown(paths.ledger(), Some(owner), Some(owner)).is_ok() {
                assert_eq!(Account::dynamic(&paths).unwrap().uid, taken);
            }
        }
        assert!(known.contains(&0) && running.contains(&0) && known.contains(&OVERFLOW_UID));
    }

    #[test]
    fn users_and_groups_by_name_and_number() {
        let overflow = Account::named("nobody").unwrap();
        assert!(overflow.uid != 0 && overflow.gid != 0);
        let numbered = Account::named("12345").unwrap();
        assert_eq!((numbered.uid, numbered.gid), (12_345, 12_345), "the group is not root's group");
        assert_eq!(group("root").unwrap(), 0);
        assert_eq!(group("777").unwrap(), 777);
        let reported = [Account::named("no-such-user").unwrap_err(), group("no-such-group").unwrap_err()];
        assert_eq!(reported[0].to_string(), "unknown user `no-such-user`: not found in /etc/passwd");
        assert_eq!(reported[1].to_string(), "unknown group `no-such-group`: not found in /etc/group");
    }
}
