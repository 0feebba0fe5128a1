//! Formats the isolation settings of a container that differ from the defaults.

use executor_cli_kit::view::quantity::bytes;
use executor_cli_kit::view::table::Table;
use executor_client::v1::empty_volume::Medium;
use executor_client::v1::host_path::Propagation;
use executor_client::v1::volume_mount::Source;
use executor_client::v1::{ContainerSpec, HostPath, UserNamespace, VolumeMount};

pub(super) fn table(spec: &ContainerSpec) -> Table {
    let mut table = Table::bare(2);
    if spec.user_namespace() == UserNamespace::Host {
        table.pair("users", "the host's");
    }
    for (name, is_set) in [("processes", spec.host_pid), ("IPC", spec.host_ipc)] {
        if is_set {
            table.pair(name, "the host's");
        }
    }
    if !spec.pid_of.is_empty() {
        table.pair("processes", format!("shared with {}", spec.pid_of));
    }
    if spec.privileged {
        table.pair("privileged", "yes");
    }
    if spec.docker_socket {
        table.pair("Docker's socket", "the host's");
    }
    let capabilities = spec.capabilities.clone().unwrap_or_default();
    for (name, list) in [("capabilities dropped", capabilities.drop), ("capabilities added", capabilities.add)] {
        if !list.is_empty() {
            table.pair(name, list.join(", "));
        }
    }
    if spec.read_only_rootfs {
        table.pair("root file system", "read-only");
    }
    if spec.custom_seccomp_profile {
        table.pair("system calls", "by the request's own profile");
    }
    if spec.seccomp_unconfined {
        table.pair("system calls", "without a filter");
    }
    if spec.allow_new_privileges {
        table.pair("new privileges", "allowed");
    }
    for (name, list) in [("masked paths", &spec.masked_paths), ("read-only paths", &spec.readonly_paths)] {
        if let Some(list) = list {
            table.pair(name, if list.paths.is_empty() { "none".to_owned() } else { list.paths.join(", ") });
        }
    }
    if spec.init {
        table.pair("first process", "the executor's init");
    }
    for tmpfs in &spec.tmpfs {
        let mode = tmpfs.mode.unwrap_or(0);
        table.pair("in memory", format!("{} (at most {}, mode {mode:04o})", tmpfs.path, bytes(tmpfs.size_bytes)));
    }
    for one in &spec.volumes {
        table.pair("volume", volume(one));
    }
    for one in &spec.devices {
        let is_cdi = one.path.is_empty();
        let source = if one.host_path.is_empty() { &one.name } else { &one.host_path };
        let shown = if is_cdi { one.name.clone() } else { format!("{}: {source} ({})", one.path, one.permissions) };
        table.pair("device", shown);
    }
    if !spec.apparmor_profile.is_empty() {
        table.pair("AppArmor", &*spec.apparmor_profile);
    }
    let mut sysctls: Vec<String> = spec.sysctls.iter().map(|(name, value)| format!("{name}={value}")).collect();
    sysctls.sort_unstable();
    sysctls.into_iter().for_each(|setting| table.pair("kernel parameter", setting));
    table
}

/// Formats the mount options of a host path: `, with the mounts below it, host to container`.
fn host_path_options(path: &HostPath) -> String {
    let propagation = match path.propagation() {
        Propagation::Private => "",
        Propagation::HostToContainer => ", host to container",
        Propagation::Bidirectional => ", bidirectional",
    };
    let flags = [
        (path.recursive && !path.recursive_read_only, ", with the mounts below it"),
        (path.recursive_read_only, ", with the mounts below it, all read-only"),
        (path.suid, ", suid"),
        (path.dev, ", dev"),
        (path.follow_links, ", links followed"),
    ];
    let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, words)| words).collect();
    flags + propagation
}

/// Formats a volume on one line: `/data: cache, its directory js, read-only`.
fn volume(volume: &VolumeMount) -> String {
    let mut line = match &volume.source {
        Some(Source::Empty(empty)) => {
            let medium = if empty.medium() == Medium::Memory { "in memory" } else { "on disk" };
            match empty.size_bytes {
                0 => format!("empty, {medium}"),
                size => format!("empty, {medium}, at most {}", bytes(size)),
            }
        }
        Some(Source::Host(named)) => named.name.clone(),
        Some(Source::HostPath(of)) => format!("{} of the host{}", of.path, host_path_options(of)),
        Some(Source::Image(image)) => image.reference.clone(),
        Some(Source::Pod(named)) => format!("{} of the pod", named.name),
        None => "unknown".to_owned(),
    };
    if !volume.sub_path.is_empty() {
        line = format!("{line}, its directory {}", volume.sub_path);
    }
    let read_only = if volume.read_only { ", read-only" } else { "" };
    format!("{}: {line}{read_only}", volume.path)
}
