//! Target: resolves the user of a process with the passwd and group files of a root file system.
//!
//! Input format: `user:group` as in a request, the passwd file, and the group file. A byte 255 terminates the first
//! two.

use std::path::Path;

use executor_core::limits::{ID_MAX, PATH_MAX};
use executor_core::plan::{Memberships, Principal, UserRef};
use executor_core::users::{GROUPS_MAX, UnknownPrincipal, resolve};
use executor_core::validate::{Draft, Policy, validate};

/// Runs the target of this module.
pub fn run(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 255);
    let wanted = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let (passwd, group) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let draft = Draft { id: "x", path: "/x", user: &wanted, ..Draft::default() };
    let Ok(plan) = validate(&draft, &Policy::default()) else { return };
    evaluate(&plan.user, passwd, group);
    for user in ["root", "app"] {
        evaluate(&UserRef { user: Principal::Name(user.into()), group: None }, passwd, group);
    }
    evaluate(&UserRef { user: Principal::Id(0), group: None }, passwd, group);
}

fn evaluate(wanted: &UserRef, passwd: &[u8], group: &[u8]) {
    for memberships in [Memberships::UnlessGroup, Memberships::Always, Memberships::Never] {
        check(wanted, memberships, passwd, group);
    }
}

fn check(wanted: &UserRef, memberships: Memberships, passwd: &[u8], group: &[u8]) {
    let user = match resolve(wanted, memberships, passwd, group) {
        Ok(user) => user,
        Err(UnknownPrincipal::User(name)) => return assert_eq!(wanted.user, Principal::Name(name)),
        Err(UnknownPrincipal::Group(name)) => return assert_eq!(wanted.group, Some(Principal::Name(name))),
    };
    if let Principal::Id(uid) = wanted.user {
        assert_eq!(user.uid, uid, "a numeric user must not be looked up");
    }
    if let Some(Principal::Id(gid)) = wanted.group {
        assert_eq!(user.gid, gid);
    }
    assert!(user.uid <= ID_MAX && user.gid <= ID_MAX && user.groups.iter().all(|gid| *gid <= ID_MAX));
    assert!(user.groups.windows(2).all(|pair| pair[0] < pair[1]) && user.groups.len() <= GROUPS_MAX);
    let may_have = match memberships {
        Memberships::UnlessGroup => wanted.group.is_none(),
        Memberships::Always => true,
        Memberships::Never => false,
    };
    assert!(may_have || user.groups.is_empty());
    // The home directory becomes the value of a variable, which is a single string for execve.
    let home = user.home.as_os_str().as_encoded_bytes();
    assert!(user.home.is_absolute() && home.len() < PATH_MAX && !home.contains(&0), "{:?}", Path::new(&user.home));
}
