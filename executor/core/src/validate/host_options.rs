//! Validates CPUs, devices, AppArmor profiles and attributes of processes, and the operator's lists of devices and
//! profiles.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::ViolationReason::{
    Conflict, Duplicate, InvalidCharacter, InvalidFormat, NotAllowed, OutOfRange, Required, TooLong, TooMany,
    UnknownValue,
};
use super::dev_paths::{below_dev, check_device_path};
use super::volumes::{check_name, unknown_name};
use super::{FieldFault, Policy, Report, cgroups, is_nested, shorten, surroundings};
use crate::cdi_name::QualifiedName;
use crate::cpulist::{BadCpuList, CpuList};
use crate::limits::{APPARMOR_PROFILE_MAX, DEVICES_MAX, OOM_SCORE_MAX};
use crate::plan::{Device, DevicePermissions, HostDevice, HostOptions, Isolation, Ulimit, UserNamespace};

/// Names of resource limits, except the limit on open files.
pub const ULIMITS: [&str; 15] = [
    "as",
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];
/// Maximum number of entries in the operator's lists of devices and of AppArmor profiles.
const LIST_MAX: usize = 1000;
/// Maximum number of directories of CDI files.
const CDI_DIRS_MAX: usize = 16;
/// Maximum number of the operator's CDI devices that a message lists.
const NAMES_SHOWN: usize = 20;

/// Default permissions on a device that is requested by its path.
const PATH_PERMISSIONS_DEFAULT: &str = "rw";

/// Checks lists of CPUs and memory nodes, and returns the lists in their shortest form.
pub(super) fn cpusets(lists: [&str; 2], report: &mut Report) -> [String; 2] {
    let mut list = |field: &str, text: &str| -> String {
        if text.is_empty() {
            return String::new();
        }
        let list = text.parse::<CpuList>().map(|list| list.to_string());
        list.unwrap_or_else(|bad| {
            let reason = if matches!(bad, BadCpuList::Long(_)) { TooLong } else { InvalidFormat };
            report.add(field, reason.because(bad.to_string()));
            String::new()
        })
    };
    let [cpus, memory_nodes] = lists;
    [list("limits.cpuset_cpus", cpus), list("limits.cpuset_mems", memory_nodes)]
}

/// Checks the requested options, and fills in defaults.
pub(super) fn check(options: &HostOptions, isolation: &Isolation, policy: &Policy, report: &mut Report) -> HostOptions {
    let HostOptions { cpus, memory_nodes, oom_score_adj, ulimits, apparmor_profile, devices, .. } = options;
    let [cpus, memory_nodes] = cpusets([cpus, memory_nodes], report);
    if let Some(score) = *oom_score_adj {
        if !(-OOM_SCORE_MAX..=OOM_SCORE_MAX).contains(&score) {
            let why = format!("is {score}; -{OOM_SCORE_MAX} to {OOM_SCORE_MAX} is allowed");
            report.add("oom_score_adj", OutOfRange.because(why));
        } else if score < policy.oom_score_adj_min {
            let least = policy.oom_score_adj_min;
            let why = format!("is {score}; this daemon's configuration allows {least} or more (oom_score_adj_min)");
            report.add("oom_score_adj", NotAllowed.because(why));
        }
    }
    check_ulimits(ulimits, policy, report);
    cgroups::check(options, policy, report);
    if let Err(why) = profile(apparmor_profile, policy) {
        report.add("apparmor_profile", why);
    }
    HostOptions {
        cpus,
        memory_nodes,
        oom_score_adj: *oom_score_adj,
        ulimits: ulimits.clone(),
        apparmor_profile: apparmor_profile.clone(),
        devices: check_devices(devices, isolation, policy, report),
        cgroup_parent: options.cgroup_parent.clone(),
        hugepage_bytes: options.hugepage_bytes.clone(),
        unified: options.unified.clone(),
    }
}

fn check_ulimits(asked: &[Ulimit], policy: &Policy, report: &mut Report) {
    if asked.len() > ULIMITS.len() {
        report.add(
            "ulimits",
            TooMany.because(format!("has {} entries; at most {} are allowed", asked.len(), ULIMITS.len())),
        );
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, Ulimit { name, soft, hard }) in asked.iter().enumerate() {
        let field = |name: &str| format!("ulimits[{index}].{name}");
        if name == "nofile" {
            let why = "\"nofile\" cannot be set here; use resource_limits.nofile of the run action";
            report.add(field("name"), Conflict.because(why));
            continue;
        }
        if !ULIMITS.contains(&&**name) {
            let why = format!("{:?} is not a limit; use one of {}", shorten(name), ULIMITS.join(", "));
            report.add(field("name"), UnknownValue.because(why));
            continue;
        }
        if !seen.insert(name) {
            report.add(field("name"), Duplicate.because(format!("{name:?} is given twice")));
        }
        for (name, value) in [("soft", *soft), ("hard", *hard)] {
            if value < -1 {
                let why = format!("is {value}; 0 or more is allowed, or -1 for no limit");
                report.add(field(name), OutOfRange.because(why));
            }
        }
        if above(*soft, *hard) {
            report.add(field("soft"), OutOfRange.because(format!("is {soft}, above the hard limit of {hard}")));
        }
        if name == "core" && (*soft, *hard) != (0, 0) {
            let why = format!("is {hard}; only 0 is allowed: core files could contain the container's secrets");
            report.add(field("hard"), NotAllowed.because(why));
        }
        if let Some(most) = policy.ulimits_max.get(name)
            && above(*hard, *most)
        {
            let why = format!("is {hard}; this daemon's configuration allows at most {most} (ulimits_max.{name})");
            report.add(field("hard"), NotAllowed.because(why));
        }
    }
}

/// Returns true if a limit is above another; -1 is above every number.
fn above(limit: i64, other: i64) -> bool {
    other != -1 && (limit == -1 || limit > other)
}

fn profile(name: &str, policy: &Policy) -> Result<(), FieldFault> {
    let known = &policy.apparmor_profiles;
    if name.is_empty() || known.iter().any(|known| known == name) {
        return Ok(());
    }
    if name.len() > APPARMOR_PROFILE_MAX {
        return Err(TooLong.because(format!("is {} bytes; the maximum is {APPARMOR_PROFILE_MAX}", name.len())));
    }
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let FieldFault { description, .. } = unknown_name(name, &known, "AppArmor profiles (`apparmor.profiles`)");
    Err(NotAllowed.because(description))
}

fn check_devices(asked: &[Device], isolation: &Isolation, policy: &Policy, report: &mut Report) -> Vec<Device> {
    if asked.len() > DEVICES_MAX {
        report
            .add("devices", TooMany.because(format!("has {} entries; at most {DEVICES_MAX} are allowed", asked.len())));
        return Vec::new();
    }
    let mut filled: Vec<Device> = Vec::new();
    for (index, device) in asked.iter().enumerate() {
        let field = |name: &str| format!("devices[{index}].{name}");
        if device.is_cdi() {
            check_cdi_device(device, &filled, policy, &field, report);
            filled.push(device.clone());
            continue;
        }
        let (on_host, most) = match offered(device, policy) {
            Ok(offered) => offered,
            Err((name, why)) => {
                report.add(field(name), why);
                continue;
            }
        };
        let path = if device.path.as_os_str().is_empty() { on_host } else { &device.path };
        // Nodes of other entries take precedence over the nodes of the entry for all devices.
        let mut others = filled.iter().filter(|other| !other.is_cdi() && other.is_whole_dev() == device.is_whole_dev());
        if device.is_whole_dev() {
            if !isolation.privileged || isolation.user_namespace != UserNamespace::Host {
                let why = "`/dev` means all devices of the host; it requires privileged and the host's user namespace";
                report.add(field("host_path"), Conflict.because(why));
            } else if others.next().is_some() {
                report.add(field("path"), Duplicate.because("`/dev` is given twice"));
            }
        } else if let Err(why) = check_device_path(path) {
            report.add(field("path"), why);
        } else if others.clone().any(|other| other.path == *path) {
            report.add(field("path"), Duplicate.because(format!("`{}` is given twice", path.display())));
        } else if let Some(other) = others.find(|other| is_nested(&other.path, path)) {
            let why = format!("`{}` and `{}` cannot both be device nodes", path.display(), other.path.display());
            report.add(field("path"), Conflict.because(why));
        }
        let text = if device.permissions.is_empty() { most } else { &*device.permissions };
        let permissions = match text.parse::<DevicePermissions>() {
            Err(why) => {
                let why = format!("\"{}\" is not valid: {why}", shorten(text));
                report.add(field("permissions"), InvalidFormat.because(why));
                String::new()
            }
            Ok(permissions) => {
                let is_within = permissions.are_within(most.parse().unwrap_or_default());
                if device.host_path.is_none() && !is_within {
                    let name = &device.name;
                    let why = format!("is {text:?}; this daemon's configuration allows {most:?} for `{name}`");
                    report.add(field("permissions"), NotAllowed.because(why));
                }
                permissions.to_string()
            }
        };
        filled.push(Device { path: path.to_owned(), permissions, ..device.clone() });
    }
    filled
}

/// Returns the path on the host of a device that is not a CDI device, and its default permissions. For a device with a
/// name, these permissions are also the maximum.
fn offered<'a>(device: &'a Device, policy: &'a Policy) -> Result<(&'a Path, &'a str), (&'static str, FieldFault)> {
    let Some(path) = &device.host_path else {
        let known = policy.devices.iter().find(|known| known.name == device.name);
        return known.map(|known| (&*known.path, &*known.permissions)).ok_or_else(|| {
            let names: Vec<&str> = policy.devices.iter().map(|known| &*known.name).collect();
            ("name", unknown_name(&device.name, &names, "devices (tables `[[devices]]`)"))
        });
    };
    if !device.name.is_empty() {
        return Err(("host_path", Conflict.because("cannot be set together with name")));
    }
    surroundings::plain_path(path).map_err(|why| ("host_path", why))?;
    if policy.device_paths.iter().any(|listed| path.starts_with(listed)) {
        return Ok((path, PATH_PERMISSIONS_DEFAULT));
    }
    let shown = shorten(&path.display().to_string());
    let listed: Vec<String> =
        policy.device_paths.iter().take(NAMES_SHOWN).map(|listed| listed.display().to_string()).collect();
    let listed = if listed.is_empty() { "is empty".to_owned() } else { format!("lists {}", listed.join(", ")) };
    let why = format!(
        "`{shown}` is not allowed by policy.device_paths, which {listed} in this daemon's configuration: add it"
    );
    Err(("host_path", NotAllowed.because(why)))
}

/// Checks a CDI device, but not its CDI file, which the launcher reads.
fn check_cdi_device(
    device: &Device,
    others: &[Device],
    policy: &Policy,
    field: &dyn Fn(&str) -> String,
    report: &mut Report,
) {
    let name = &device.name;
    match QualifiedName::parse(name) {
        Err(why) => {
            report.add(field("name"), InvalidFormat.because(format!("\"{}\" is not valid: {why}", shorten(name))));
        }
        Ok(_) if others.iter().any(|other| other.name == *name) => {
            report.add(field("name"), Duplicate.because(format!("`{name}` is given twice")));
        }
        Ok(_) if policy.cdi_devices.iter().any(|pattern| allows_cdi(pattern, name)) => {}
        Ok(_) => {
            let listed: Vec<&str> = policy.cdi_devices.iter().take(NAMES_SHOWN).map(String::as_str).collect();
            let listed = if listed.is_empty() { "is empty".to_owned() } else { format!("lists {}", listed.join(", ")) };
            let why =
                format!("`{name}` is not allowed by policy.cdi_devices, which {listed} in this daemon's configuration");
            report.add(field("name"), NotAllowed.because(why));
        }
    }
    for (name, is_set) in [
        ("path", !device.path.as_os_str().is_empty()),
        ("permissions", !device.permissions.is_empty()),
        ("host_path", device.host_path.is_some()),
    ] {
        if is_set {
            report.add(field(name), Conflict.because("cannot be set for a CDI device: its CDI file sets the nodes"));
        }
    }
}

/// Returns true if an entry of the operator's list covers the qualified name.
fn allows_cdi(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(kind) => name.starts_with(kind), // ends with `=`
        None => pattern == name,
    }
}

/// Checks the operator's list of devices.
///
/// # Errors
/// Returns the first invalid entry if there is one.
pub fn check_host_devices(devices: &[HostDevice]) -> Result<(), String> {
    if devices.len() > LIST_MAX {
        return Err(format!("has {} entries; at most {LIST_MAX} are allowed", devices.len()));
    }
    let mut seen = BTreeSet::new();
    for HostDevice { name, path, permissions } in devices {
        check_name(name)?;
        if !seen.insert(name) {
            return Err(format!("`{name}` is given twice"));
        }
        below_dev(path).map_err(|why| format!("the path of `{name}`: {why}"))?;
        let written: DevicePermissions = permissions
            .parse()
            .map_err(|why| format!("the permissions of `{name}`: \"{}\" is not valid: {why}", shorten(permissions)))?;
        if written.to_string() != *permissions {
            return Err(format!("the permissions of `{name}`: write {permissions:?} as \"{written}\""));
        }
    }
    Ok(())
}

/// Checks the operator's list of CDI devices.
///
/// # Errors
/// Returns the reason if the list has too many entries, or if an entry is neither a qualified name nor
/// `VENDOR/CLASS=*`; the reason names the first such entry.
pub fn check_cdi_devices(devices: &[String]) -> Result<(), String> {
    if devices.len() > LIST_MAX {
        return Err(format!("has {} entries; at most {LIST_MAX} are allowed", devices.len()));
    }
    devices.iter().try_for_each(|pattern| {
        let whole_class = pattern.strip_suffix("=*").map(|kind| format!("{kind}=a"));
        let parsed = QualifiedName::parse(whole_class.as_deref().unwrap_or(pattern));
        parsed.map(drop).map_err(|why| format!("\"{}\" is not valid: {why}", shorten(pattern)))
    })
}

/// Checks the operator's list of directories of CDI files.
///
/// # Errors
/// Returns the reason if the list has too many entries, or if an entry is not an absolute path without `..`.
pub fn check_cdi_spec_dirs(dirs: &[PathBuf]) -> Result<(), String> {
    if dirs.len() > CDI_DIRS_MAX {
        return Err(format!("has {} entries; at most {CDI_DIRS_MAX} are allowed", dirs.len()));
    }
    dirs.iter().try_for_each(|dir| surroundings::plain_path(dir).map_err(|why| why.to_string()))
}

/// Checks the operator's list of AppArmor profiles.
///
/// # Errors
/// Returns the reason if the list has too many entries, or if a name is invalid.
pub fn check_apparmor_profiles(profiles: &[String]) -> Result<(), String> {
    if profiles.len() > LIST_MAX {
        return Err(format!("has {} entries; at most {LIST_MAX} are allowed", profiles.len()));
    }
    let fault = |name: &String| {
        if name.is_empty() {
            return Some(Required.because("a name is empty"));
        }
        let plain = name.trim() == name && !name.chars().any(crate::text::is_harmful);
        (!plain || name.len() > APPARMOR_PROFILE_MAX).then(|| {
            let why = format!(
                "\"{}\" is not valid: use at most {APPARMOR_PROFILE_MAX} bytes, without control characters and without \
                 white space at the ends",
                shorten(name)
            );
            InvalidCharacter.because(why)
        })
    };
    profiles.iter().find_map(fault).map_or(Ok(()), |fault| Err(fault.to_string()))
}

/// Checks the operator's maximum of a resource limit.
///
/// # Errors
/// Returns an error if the limit cannot be raised or the value is below -1.
pub fn check_ulimit_max(name: &str, most: i64) -> Result<(), String> {
    if name == "core" || !ULIMITS.contains(&name) {
        let others: Vec<&str> = ULIMITS.into_iter().filter(|name| *name != "core").collect();
        return Err(format!("{:?} is not a limit that can be raised; use one of {}", shorten(name), others.join(", ")));
    }
    if most < -1 {
        return Err(format!("{name} is {most}; 0 or more is allowed, or -1 for no limit"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
