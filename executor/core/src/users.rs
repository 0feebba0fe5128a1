//! Resolves `user[:group]` with the passwd and group files of a rootfs, never with the host's name services.
//!
//! The input is the bytes of the rootfs' files (an image is untrusted: lines may have any content); the output is the
//! process's user. As in OCI images, a name must have an entry in the files, but a number need not.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::limits::{ID_MAX, PATH_MAX};
use crate::plan::{Memberships, Principal, UserRef};

/// Maximum size of a passwd or group file that is read, in bytes.
pub const FILE_MAX: u64 = 4 << 20;
/// Maximum number of supplementary groups (the kernel's NGROUPS_MAX).
pub const GROUPS_MAX: usize = 65_536;

/// Resolved user of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedUser {
    /// User id in the container.
    pub uid: u32,
    /// Group id in the container.
    pub gid: u32,
    /// Supplementary groups of the process.
    pub groups: Vec<u32>,
    /// Home directory; `/` if the passwd file has none.
    pub home: PathBuf,
}

/// A user or group name that has no entry in the rootfs' files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPrincipal {
    /// The passwd file has no such user.
    #[error("user `{0}` not found in the rootfs' /etc/passwd: use a name in that file, or a number")]
    User(String),
    /// The group file has no such group.
    #[error("group `{0}` not found in the rootfs' /etc/group: use a name in that file, or a number")]
    Group(String),
}

struct User<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
}

struct Group<'a> {
    name: &'a [u8],
    gid: u32,
    members: &'a [u8],
}

/// Resolves a user. A missing file is treated like an empty file.
///
/// # Errors
/// Returns the first unknown name if a name has no entry.
pub fn resolve(
    user: &UserRef,
    memberships: Memberships,
    passwd: &[u8],
    group: &[u8],
) -> Result<ResolvedUser, UnknownPrincipal> {
    let entry = users(passwd).find(|entry| match &user.user {
        Principal::Id(uid) => entry.uid == *uid,
        Principal::Name(name) => entry.name == name.as_bytes(),
    });
    let uid = match (&user.user, &entry) {
        (Principal::Id(uid), _) => *uid,
        (Principal::Name(_), Some(entry)) => entry.uid,
        (Principal::Name(name), None) => return Err(UnknownPrincipal::User(name.clone())),
    };
    let gid = match &user.group {
        None => entry.as_ref().map_or(0, |entry| entry.gid),
        Some(Principal::Id(gid)) => *gid,
        Some(Principal::Name(name)) => gid_of(name, group)?,
    };
    let is_member = match memberships {
        Memberships::UnlessGroup => user.group.is_none(),
        Memberships::Always => true,
        Memberships::Never => false,
    };
    let mut extra: Vec<u32> = match &entry {
        Some(entry) if is_member => groups(group)
            .filter(|group| {
                group.members.split(|b| *b == b',').any(|member| member == entry.name && !member.is_empty())
            })
            .map(|group| group.gid)
            .take(GROUPS_MAX)
            .collect(),
        _ => Vec::new(),
    };
    extra.sort_unstable();
    extra.dedup();
    // The home becomes the value of a variable; an invalid home is ignored.
    let fit = |home: &String| home.starts_with('/') && !home.contains('\0') && home.len() < PATH_MAX;
    let home = entry.map(|entry| String::from_utf8_lossy(entry.home).into_owned()).filter(fit);
    Ok(ResolvedUser { uid, gid, groups: extra, home: home.unwrap_or_else(|| "/".to_owned()).into() })
}

/// Resolves a user of the host, by name or number, to uid and gid. A number without an entry gets the group of the same
/// number and not group 0 as in a container, because the host's group 0 can read files that root owns.
///
/// # Errors
/// Returns the name if the file has no such user.
pub fn resolve_host_user(user: Principal, passwd: &[u8]) -> Result<(u32, u32), UnknownPrincipal> {
    let found = resolve(&UserRef { user, group: None }, Memberships::Never, passwd, &[])?;
    let has_entry = users(passwd).any(|entry| entry.uid == found.uid);
    Ok((found.uid, if has_entry { found.gid } else { found.uid }))
}

/// Resolves additional groups with a group file.
///
/// # Errors
/// Returns the index and the name of the first group that the file does not have, if there is one.
pub fn resolve_groups(groups: &[Principal], file: &[u8]) -> Result<Vec<u32>, (usize, UnknownPrincipal)> {
    let number = |(index, group): (usize, &Principal)| match group {
        Principal::Id(gid) => Ok(*gid),
        Principal::Name(name) => gid_of(name, file).map_err(|unknown| (index, unknown)),
    };
    groups.iter().enumerate().map(number).collect()
}

impl ResolvedUser {
    /// Adds supplementary groups, up to the maximum of a process.
    pub fn join(&mut self, groups: &[u32]) {
        self.groups.extend_from_slice(groups);
        self.groups.sort_unstable();
        self.groups.dedup();
        if self.groups.len() > GROUPS_MAX {
            // Requested groups take precedence over groups of an image that has more groups than the kernel accepts.
            let surplus = self.groups.len() - GROUPS_MAX;
            let mut left = surplus;
            self.groups.retain(|gid| {
                let goes = left > 0 && !groups.contains(gid);
                left -= usize::from(goes);
                !goes
            });
        }
    }
}

/// Returns the id of a group in a group file.
///
/// # Errors
/// Returns the name if the file has no such group.
pub fn gid_of(name: &str, group: &[u8]) -> Result<u32, UnknownPrincipal> {
    let found = groups(group).find(|entry| entry.name == name.as_bytes());
    found.map(|entry| entry.gid).ok_or_else(|| UnknownPrincipal::Group(name.to_owned()))
}

fn users(passwd: &[u8]) -> impl Iterator<Item = User<'_>> {
    passwd.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.split(|b| *b == b':');
        let (name, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let home = fields.nth(1).unwrap_or(b"/");
        Some(User { name, uid: number(uid)?, gid: number(gid)?, home })
    })
}

fn groups(group: &[u8]) -> impl Iterator<Item = Group<'_>> {
    group.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.split(|b| *b == b':');
        let (name, _, gid) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Group { name, gid: number(gid)?, members: fields.next().unwrap_or_default() })
    })
}

/// Parses a decimal id, without sign or blank.
fn number(field: &[u8]) -> Option<u32> {
    if field.is_empty() || !field.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(field).ok()?.parse().ok().filter(|id| *id <= ID_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\n# comment\nbroken\nvcap:x:1000:1000:,,,:/home/vcap:/bin/sh\n\
        high:x:4294967295:1::/:\nneg:x:-1:-1::/:\nshort:x:7:8\nnohome:x:9:9:::\nnul:x:10:10::/x\0y:\n";
    const GROUP: &[u8] = b"root:x:0:\nadm:x:4:vcap,short\nvcap:x:1000:\ndup:x:4:vcap\nempty:x:5:,\nbad:x:zz:vcap\n";

    fn user(text: &str) -> Result<ResolvedUser, UnknownPrincipal> {
        user_with(text, Memberships::default())
    }

    fn user_with(text: &str, memberships: Memberships) -> Result<ResolvedUser, UnknownPrincipal> {
        let one = |part: &str| part.parse().map_or_else(|_| Principal::Name(part.to_owned()), Principal::Id);
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        resolve(&UserRef { user: one(user), group: group.map(one) }, memberships, PASSWD, GROUP)
    }

    #[test]
    fn names_numbers_and_groups() {
        let is = |text, uid, gid, groups: &[u32], home: &str| {
            let expected = ResolvedUser { uid, gid, groups: groups.to_vec(), home: home.into() };
            assert_eq!(user(text).unwrap(), expected, "{text}");
        };
        is("root", 0, 0, &[], "/root");
        is("vcap", 1000, 1000, &[4], "/home/vcap");
        is("1000", 1000, 1000, &[4], "/home/vcap");
        is("vcap:adm", 1000, 4, &[], "/home/vcap");
        is("4242", 4242, 0, &[], "/");
        is("4242:17", 4242, 17, &[], "/");
        is("short", 7, 8, &[4], "/");
        is("nohome", 9, 9, &[], "/");
        is("nul", 10, 10, &[], "/");
    }

    #[test]
    fn memberships_decide_about_group_file() {
        let cases = [
            (Memberships::UnlessGroup, "vcap", vec![4]),
            (Memberships::UnlessGroup, "vcap:17", vec![]),
            (Memberships::Always, "vcap", vec![4]),
            (Memberships::Always, "1000:17", vec![4]),
            (Memberships::Always, "4242:17", vec![]),
            (Memberships::Never, "vcap", vec![]),
        ];
        for (memberships, text, expected) in cases {
            assert_eq!(user_with(text, memberships).unwrap().groups, expected, "{memberships:?} {text}");
        }
    }

    #[test]
    fn groups_are_added() {
        let names = [Principal::Id(7), Principal::Name("adm".into()), Principal::Id(4)];
        let added = resolve_groups(&names, GROUP).unwrap();
        assert_eq!(added, [7, 4, 4]);
        let mut vcap = user("vcap:vcap").unwrap();
        vcap.join(&added);
        assert_eq!(vcap.groups, [4, 7]);
        let missing = [Principal::Id(1), Principal::Name("x".into())];
        assert_eq!(resolve_groups(&missing, GROUP), Err((1, UnknownPrincipal::Group("x".into()))));
        let mut many = ResolvedUser { uid: 0, gid: 0, groups: (0..65_536).collect(), home: "/".into() };
        many.join(&[70_000]);
        assert_eq!((many.groups.len(), many.groups[0], many.groups.last()), (GROUPS_MAX, 1, Some(&70_000)));
    }

    #[test]
    fn unknown_user_error_has_name() {
        assert_eq!(user("nobodyx"), Err(UnknownPrincipal::User("nobodyx".into())));
        assert_eq!(user("vcap:nogrp"), Err(UnknownPrincipal::Group("nogrp".into())));
        for unusable in ["high", "neg", "broken", "# comment"] {
            assert!(user(unusable).is_err(), "{unusable}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(passwd: Vec<u8>, group: Vec<u8>) {
            let name = UserRef { user: Principal::Name("x".into()), group: Some(Principal::Name("y".into())) };
            let _ = resolve(&name, Memberships::Always, &passwd, &group);
        }
    }
}
