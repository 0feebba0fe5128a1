//! Validates the parent cgroup of a request, its limits on huge pages and its cgroup v2 files, and the operator's lists
//! of parents and files.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::ViolationReason::{
    Conflict, InvalidCharacter, InvalidFormat, NotAllowed, NotUtf8, OutOfRange, Reserved, TooLong, TooMany,
};
use super::{FieldFault, Policy, Report, shorten};
use crate::limits::{CGROUP_DEPTH_MAX, CGROUP_PARENT_MAX, SIZE_MAX};
use crate::plan::{GIVEN_CGROUP, HostOptions};

/// Maximum number of parents, and of files, in the operator's lists.
const LIST_MAX: usize = 1000;
/// Maximum number of page sizes in a request.
const PAGE_SIZES_MAX: usize = 16;
/// Maximum number of cgroup files in a request.
const FILES_MAX: usize = 32;
/// Maximum length of the name of a cgroup file, in bytes.
const FILE_MAX: usize = 64;
/// Maximum length of the value of a cgroup file, in bytes.
const VALUE_MAX: usize = 256;
/// Maximum number of the operator's entries that a message lists.
const NAMES_SHOWN: usize = 20;
/// Cgroup files that other fields of a request set.
const SET_BY_FIELDS: [(&str, &str); 8] = [
    ("cpu.max", "limits.cpu_quota_us"),
    ("cpu.weight", "limits.cpu_weight"),
    ("cpuset.cpus", "limits.cpuset_cpus"),
    ("cpuset.mems", "limits.cpuset_mems"),
    ("io.weight", "limits.io_weight"),
    ("memory.max", "limits.memory_bytes"),
    ("memory.swap.max", "limits.swap_bytes"),
    ("pids.max", "limits.pids"),
];

/// Checks the parent, the limits on huge pages and the files of a request.
pub(super) fn check(options: &HostOptions, policy: &Policy, report: &mut Report) {
    if let Err(why) = parent(&options.cgroup_parent, policy) {
        report.add("cgroup_parent", why);
    }
    hugepages(&options.hugepage_bytes, report);
    unified(&options.unified, policy, report);
}

/// Checks limits on huge pages.
pub(super) fn hugepages(limits: &BTreeMap<String, u64>, report: &mut Report) {
    const FIELD: &str = "limits.hugepage_bytes";
    if limits.len() > PAGE_SIZES_MAX {
        report
            .add(FIELD, TooMany.because(format!("has {} entries; at most {PAGE_SIZES_MAX} are allowed", limits.len())));
        return;
    }
    for (size, bytes) in limits {
        let field = format!("{FIELD}[{}]", shorten(size));
        if page_kilobytes(size).is_none() {
            report.add(field, InvalidFormat.because("is not a page size such as 64KB, 2MB or 1GB"));
        } else if *bytes > SIZE_MAX {
            report.add(field, OutOfRange.because(format!("is {bytes}; 0 to {SIZE_MAX} is allowed")));
        }
    }
}

/// Returns the kilobytes of a page size in the kernel's format, such as `2MB`.
pub fn page_kilobytes(size: &str) -> Option<u64> {
    let (number, shift) = [("KB", 0), ("MB", 10), ("GB", 20)]
        .into_iter()
        .find_map(|(unit, shift)| Some((size.strip_suffix(unit)?, shift)))?;
    let plain =
        (1..=4).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    plain.then(|| number.parse::<u64>().ok()).flatten().map(|number| number << shift)
}

/// Checks the cgroup v2 files of a request.
pub(super) fn unified(files: &BTreeMap<String, String>, policy: &Policy, report: &mut Report) {
    const FIELD: &str = "limits.unified";
    if files.len() > FILES_MAX {
        report.add(FIELD, TooMany.because(format!("has {} entries; at most {FILES_MAX} are allowed", files.len())));
        return;
    }
    for (file, value) in files {
        let field = format!("{FIELD}[{}]", shorten(file));
        if let Err(why) = plain_file(file) {
            report.add(field, why);
        } else if !policy.cgroup_keys.contains(file) {
            let listed = listed(policy.cgroup_keys.iter().map(String::as_str));
            let why =
                format!("is not in policy.cgroup_keys, which {listed} in this daemon's configuration; add {file:?}");
            report.add(field, NotAllowed.because(why));
        } else if value.len() > VALUE_MAX {
            report.add(
                field,
                TooLong.because(format!("has a value of {} bytes; the maximum is {VALUE_MAX}", value.len())),
            );
        } else if value.is_empty() || !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
            report.add(field, InvalidCharacter.because("has an empty value, or a value that is not printable ASCII"));
        }
    }
}

/// Checks the name of a cgroup file.
fn plain_file(file: &str) -> Result<(), FieldFault> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_');
    let (controller, rest) = file.split_once('.').unwrap_or_default();
    if file.len() > FILE_MAX || controller.is_empty() || rest.is_empty() || !file.bytes().all(plain) {
        return Err(InvalidFormat.because("is not the name of a cgroup file, such as memory.high"));
    }
    if let Some((_, field)) = SET_BY_FIELDS.iter().find(|(set, _)| *set == file) {
        return Err(Conflict.because(format!("cannot be set here; use {field}")));
    }
    if controller == "cgroup" {
        return Err(Reserved.because("is reserved for the executor, like every file whose name begins with `cgroup.`"));
    }
    Ok(())
}

fn parent(path: &Path, policy: &Policy) -> Result<(), FieldFault> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    plain_parent(path)?;
    if policy.cgroup_parents.iter().any(|listed| path.starts_with(listed)) {
        return Ok(());
    }
    let listed = listed(policy.cgroup_parents.iter().filter_map(|path| path.to_str()));
    let shown = shorten(&path.display().to_string());
    let why = format!(
        "`{shown}` is not below a cgroup of policy.cgroup_parents, which {listed} in this daemon's configuration; add \
         \"{shown}\" or a cgroup above it"
    );
    Err(NotAllowed.because(why))
}

/// Checks that the path of a parent cgroup is absolute and consists of plain names.
fn plain_parent(path: &Path) -> Result<(), FieldFault> {
    let text = path.to_str().ok_or_else(|| NotUtf8.because("is not UTF-8"))?;
    if text.len() > CGROUP_PARENT_MAX {
        return Err(TooLong.because(format!("is {} bytes; the maximum is {CGROUP_PARENT_MAX}", text.len())));
    }
    let shown = shorten(text);
    let names = text.strip_prefix('/').map(|names| names.split('/').collect::<Vec<_>>()).unwrap_or_default();
    let plain = |name: &&str| name.bytes().all(|b| b.is_ascii_graphic()) && !name.is_empty() && !name.starts_with('.');
    if names.is_empty() || !names.iter().all(plain) {
        let why = format!("`{shown}` is not an absolute path of names of printable ASCII that do not begin with `.`");
        return Err(InvalidFormat.because(why));
    }
    if names.len() > CGROUP_DEPTH_MAX {
        return Err(TooMany.because(format!("has {} names; at most {CGROUP_DEPTH_MAX} are allowed", names.len())));
    }
    if names.iter().any(|name| name.starts_with(GIVEN_CGROUP)) {
        let why = format!("`{shown}` has a name that begins with `{GIVEN_CGROUP}`, which is the cgroup of a container");
        return Err(Reserved.because(why));
    }
    Ok(())
}

fn listed<'a>(entries: impl Iterator<Item = &'a str>) -> String {
    let entries: Vec<&str> = entries.take(NAMES_SHOWN).collect();
    if entries.is_empty() { "is empty".to_owned() } else { format!("lists {}", entries.join(", ")) }
}

/// Checks the operator's list of parents. `own` is the launcher's own parent of cgroups, relative to each hierarchy.
///
/// # Errors
/// Returns the first invalid entry with the reason, if an entry is invalid or overlaps the launcher's own parent.
pub fn check_cgroup_parents(parents: &[PathBuf], own: &str) -> Result<(), String> {
    if parents.len() > LIST_MAX {
        return Err(format!("has {} entries; at most {LIST_MAX} are allowed", parents.len()));
    }
    let own: PathBuf = [Component::RootDir].into_iter().chain(Path::new(own).components()).collect();
    parents.iter().try_for_each(|path| {
        plain_parent(path).map_err(|why| why.to_string())?;
        if own.starts_with(path) || path.starts_with(&own) {
            return Err(format!("`{}` overlaps launcher.cgroup_parent", path.display()));
        }
        Ok(())
    })
}

/// Checks the operator's list of cgroup v2 files.
///
/// # Errors
/// Returns the first invalid entry, if an entry is not the name of a file that requests can set.
pub fn check_cgroup_keys(keys: &[String]) -> Result<(), String> {
    if keys.len() > LIST_MAX {
        return Err(format!("has {} entries; at most {LIST_MAX} are allowed", keys.len()));
    }
    keys.iter().try_for_each(|key| plain_file(key).map_err(|why| format!("{:?} {why}", shorten(key))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Draft, Violation, recheck, validate};

    fn policy() -> Policy {
        Policy {
            cgroup_parents: vec!["/kubepods".into(), "/a/b".into()],
            cgroup_keys: vec!["memory.high".into()],
            ..Policy::default()
        }
    }

    fn asked(options: HostOptions, policy: &Policy) -> Result<(), Vec<Violation>> {
        let draft = Draft { id: "a", path: "/a", host_options: options, ..Draft::default() };
        validate(&draft, policy).and_then(|plan| recheck(&plan, policy))
    }

    fn below(parent: &str, policy: &Policy) -> Result<(), String> {
        let options = HostOptions { cgroup_parent: parent.into(), ..HostOptions::default() };
        asked(options, policy).map_err(|violations| violations[0].to_string())
    }

    /// CRI rule C20: only a cgroup at or below an entry of the operator's list can be the parent, with plain names.
    #[test]
    fn cgroup_parent_outside_policy_fails() {
        for parent in ["", "/kubepods", "/kubepods/burstable/pod1-x", "/a/b/c.slice"] {
            assert_eq!(below(parent, &policy()), Ok(()), "{parent}");
        }
        for parent in
            ["/", "/kubepods2", "/a", "/kubepods/../x", "/kubepods/", "//kubepods", "/kubepods/./x", "kubepods"]
        {
            assert!(below(parent, &policy()).is_err(), "{parent}");
        }
        for parent in ["/kubepods/.x", "/kubepods/a b", "/kubepods/é", "/kubepods/executor-1-c", "/kubepods/x\n"] {
            assert!(below(parent, &policy()).is_err(), "{parent}");
        }
        let refused = below("/kubepods", &Policy::default()).unwrap_err();
        assert!(refused.contains("policy.cgroup_parents, which is empty") && refused.contains("add \"/kubepods\""));
        assert!(below(&format!("/kubepods{}", "/a".repeat(CGROUP_DEPTH_MAX)), &policy()).is_err());
        assert!(below(&format!("/kubepods/{}", "a".repeat(CGROUP_PARENT_MAX)), &policy()).is_err());
    }

    /// CRI rule C29: cgroup v2 files come from the operator's list, and are never files that the executor sets.
    #[test]
    fn unified_files_outside_policy_fail() {
        let set = |file: &str, value: &str, policy: &Policy| {
            let unified = BTreeMap::from([(file.to_owned(), value.to_owned())]);
            asked(HostOptions { unified, ..HostOptions::default() }, policy).map_err(|all| all[0].to_string())
        };
        assert_eq!(set("memory.high", "max", &policy()), Ok(()));
        for (file, value) in [("memory.low", "1"), ("memory.high", ""), ("memory.high", "1\n2"), ("memory/high", "1")] {
            assert!(set(file, value, &policy()).is_err(), "{file} {value:?}");
        }
        assert!(set("memory.high", &"1".repeat(VALUE_MAX + 1), &policy()).is_err());
        assert!(set("memory.low", "1", &policy()).unwrap_err().contains("lists memory.high"));
        let wide = Policy { cgroup_keys: vec!["cgroup.procs".into(), "memory.max".into()], ..policy() };
        for file in ["cgroup.procs", "memory.max"] {
            assert!(set(file, "1", &wide).is_err(), "{file}");
        }
    }

    #[test]
    fn hugepage_sizes_have_the_kernels_format() {
        let sizes = ["64KB", "2MB", "1GB"].map(page_kilobytes);
        assert_eq!(sizes, [Some(64), Some(2048), Some(1 << 20)]);
        for size in ["", "MB", "2M", "02MB", "2mb", "../MB", "99999MB", "-1KB"] {
            assert_eq!(page_kilobytes(size), None, "{size}");
        }
        let limited = |size: &str, bytes| {
            let hugepage_bytes = BTreeMap::from([(size.to_owned(), bytes)]);
            asked(HostOptions { hugepage_bytes, ..HostOptions::default() }, &Policy::default()).is_ok()
        };
        assert!(limited("2MB", 0) && !limited("2MB", SIZE_MAX + 1) && !limited("x", 0));
    }

    #[test]
    fn operators_cgroups_do_not_overlap_own() {
        let parents = |path: &str| check_cgroup_parents(&[path.into()], "executor/x");
        assert!(parents("/kubepods").is_ok() && parents("/executor/y").is_ok());
        for path in ["/", "/executor", "/executor/x", "/executor/x/y", "kubepods", "/a/../b"] {
            assert!(parents(path).is_err(), "{path}");
        }
        let keys = |key: &str| check_cgroup_keys(&[key.to_owned()]);
        assert!(keys("memory.oom.group").is_ok());
        for key in ["memory", "memory.", ".x", "cgroup.kill", "memory.max", "Memory.high"] {
            assert!(keys(key).is_err(), "{key}");
        }
    }
}
