//! The user that the daemon serves as. Users and groups are looked up in /etc/passwd and /etc/group, not through the
//! name services, whose libraries a static program cannot load.

use executor_core::plan::{Principal, UserRef};
use executor_core::users::{self, FILE_MAX};

use super::BootError;
use crate::config::Config;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Default users, of which the first that exists is taken.
const DEFAULTS: [&str; 2] = ["executor", "nobody"];

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name or number, as it was given.
    pub name: String,
    /// Uid.
    pub uid: u32,
    /// Gid of the primary group.
    pub gid: u32,
}

impl Account {
    /// Finds the user that the daemon will serve as.
    ///
    /// # Errors
    /// There is no such user.
    pub(super) fn to_serve_as(config: &Config, root: bool) -> Result<Self, BootError> {
        if !root || config.keep_root {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            return Ok(Self { name: uid.to_string(), uid, gid });
        }
        if let Some(name) = &config.user {
            return Self::named(name);
        }
        DEFAULTS.iter().map(|name| Self::named(name)).find(Result::is_ok).unwrap_or_else(|| Self::named(DEFAULTS[1]))
    }

    fn named(name: &str) -> Result<Self, BootError> {
        let user = UserRef { user: principal(name), group: None };
        let found = users::resolve(&user, &read(PASSWD)?, &[]);
        let found = found.map_err(|_| BootError::NoSuch { what: "user", name: name.to_owned(), file: PASSWD })?;
        Ok(Self { name: name.to_owned(), uid: found.uid, gid: found.gid })
    }
}

/// Finds the gid of a group, by its name or its number.
///
/// # Errors
/// There is no such group.
pub(super) fn group(name: &str) -> Result<u32, BootError> {
    let user = UserRef { user: Principal::Id(0), group: Some(principal(name)) };
    let found = users::resolve(&user, &[], &read(GROUP)?);
    Ok(found.map_err(|_| BootError::NoSuch { what: "group", name: name.to_owned(), file: GROUP })?.gid)
}

fn principal(name: &str) -> Principal {
    name.parse().map_or_else(|_| Principal::Name(name.to_owned()), Principal::Id)
}

fn read(path: &'static str) -> Result<Vec<u8>, BootError> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes))
        .map_err(|source| BootError::Path { what: "read", path: path.into(), source })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_by_name_and_number() {
        let nobody = Account::named("nobody").unwrap();
        assert!(nobody.uid != 0 && nobody.gid != 0);
        assert_eq!(Account::named("12345").unwrap().uid, 12_345);
        assert_eq!(group("root").unwrap(), 0);
        assert_eq!(group("777").unwrap(), 777);
        let told = [Account::named("no-such-user").unwrap_err(), group("no-such-group").unwrap_err()];
        assert_eq!(told[0].to_string(), "there is no user `no-such-user` in /etc/passwd");
        assert_eq!(told[1].to_string(), "there is no group `no-such-group` in /etc/group");
    }
}
