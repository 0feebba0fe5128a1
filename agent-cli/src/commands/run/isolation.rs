//! Options of `run` for the isolation of a container from the host.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::units;
use executor_client::v1::{Capabilities, IdMapping, Limits, PathList, RunRequest, UserNamespace};

/// Maximum size of a seccomp profile in the API, in bytes.
const PROFILE_MAX: u64 = 256 << 10;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Isolation")]
pub(crate) struct IsolationArgs {
    /// Capability to add, for root or another user of the container: KILL, CAP_NET_RAW, ALL; can be repeated
    ///
    /// executord's configuration lists the capabilities that may be added (capabilities_allowed).
    #[arg(long = "cap-add", value_name = "CAPABILITY", value_delimiter = ',')]
    cap_add: Vec<String>,
    /// Capability to remove before others are added; can be repeated
    #[arg(long = "cap-drop", value_name = "CAPABILITY", value_delimiter = ',')]
    cap_drop: Vec<String>,
    /// User ids of the container on the host
    #[arg(long, value_enum, default_value_t = UsernsArg::Own)]
    userns: UsernsArg,
    /// Range of ids on the host for the container's users: 0:HOST:65536
    ///
    /// executord's configuration lists the permitted ranges (given_id_ranges).
    #[arg(long, value_name = "MAPPING", value_parser = id_map)]
    id_map: Option<IdMapping>,
    /// PID namespace: `host` shows the host's processes, `container:ID` joins a running member of the same pod
    ///
    /// `host` requires --userns host, and permission in executord's configuration (allow_host_pid). `container:ID`
    /// requires --pod; when that container exits, the new container is killed.
    #[arg(long, value_name = "NAMESPACE", value_parser = pid_namespace)]
    pid: Option<PidNamespace>,
    /// IPC namespace: `host` gives access to the host's System V IPC and /dev/shm
    ///
    /// Requires --userns host, and permission in executord's configuration (allow_host_ipc).
    #[arg(long, value_enum, value_name = "NAMESPACE")]
    ipc: Option<HostNamespace>,
    /// Supplementary group of every process: a number, or a name in the container's /etc/group; can be repeated
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    group_add: Vec<String>,
    /// Give processes only the groups of --group-add and the group of their user, and not the groups that /etc/group
    /// adds
    #[arg(long)]
    strict_groups: bool,
    /// Keep the groups that /etc/group adds for the user even if --user names a group; by default the named group
    /// replaces them
    #[arg(long, conflicts_with = "strict_groups")]
    merge_groups: bool,
    /// Grant all capabilities, without a system call filter or masked paths; needs permission in executord's
    /// configuration
    #[arg(long)]
    privileged: bool,
    /// Make the root file system read-only
    #[arg(long)]
    read_only: bool,
    /// File with a system call filter, in the JSON format of Docker and the OCI specification; needs permission in
    /// executord's configuration
    #[arg(long, value_name = "FILE")]
    seccomp_profile: Option<PathBuf>,
    /// Isolation to change, as in docker: no-new-privileges=false, seccomp=unconfined, systempaths=unconfined; can be
    /// repeated
    ///
    /// no-new-privileges=false lets set-user-id programs work, seccomp=unconfined removes the system call filter, and
    /// systempaths=unconfined removes the restrictions on paths of /proc and /sys. Each needs permission in executord's
    /// configuration (allow_new_privileges, allow_no_seccomp, allow_unmasked). seccomp=FILE is --seccomp-profile, and
    /// apparmor=NAME is --apparmor-profile.
    #[arg(long, value_name = "OPTION", value_parser = security_opt)]
    security_opt: Vec<SecurityOpt>,
    /// Disk limit: bytes that the container may add to its root file system [default: executord's]
    #[arg(help_heading = "Limits", long, value_name = "SIZE", value_parser = units::size)]
    disk: Option<u64>,
    #[command(flatten)]
    weights: WeightArgs,
}

/// Parses a mapping of ids: `CONTAINER:HOST:LENGTH`.
pub(crate) fn id_map(text: &str) -> Result<IdMapping, String> {
    let numbers = text.split(':').map(str::parse).collect::<Result<Vec<u32>, _>>();
    match numbers.as_deref() {
        Ok(&[container_id, host_id, length]) => Ok(IdMapping { container_id, host_id, length }),
        _ => Err("use CONTAINER:HOST:LENGTH, such as 0:1000000:65536".into()),
    }
}

/// PID namespace of a container, as named by `--pid`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PidNamespace {
    Host,
    Container(String),
}

/// Parses the value of `--pid`: `host` or `container:ID`.
fn pid_namespace(text: &str) -> Result<PidNamespace, String> {
    match text.split_once(':') {
        None if text == "host" => Ok(PidNamespace::Host),
        Some(("container", id)) if !id.is_empty() => Ok(PidNamespace::Container(id.to_owned())),
        _ => Err("use `host` or `container:ID`".into()),
    }
}

/// Namespaces of the host, as named by `pod create`.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct HostNamespaceArgs {
    /// PID namespace: `host` shows the host's processes
    ///
    /// Requires --userns host, and permission in executord's configuration (allow_host_pid).
    #[arg(long, value_enum, value_name = "NAMESPACE", help_heading = "Isolation")]
    pid: Option<HostNamespace>,
    /// IPC namespace: `host` gives access to the host's System V IPC and /dev/shm
    ///
    /// Requires --userns host, and permission in executord's configuration (allow_host_ipc).
    #[arg(long, value_enum, value_name = "NAMESPACE", help_heading = "Isolation")]
    ipc: Option<HostNamespace>,
}

impl HostNamespaceArgs {
    /// Returns the `host_pid` and `host_ipc` of a request.
    pub(crate) fn flags(self) -> (bool, bool) {
        (self.pid.is_some(), self.ipc.is_some())
    }
}

/// A namespace that is not the container's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HostNamespace {
    /// The host's
    Host,
}

/// Value of `--security-opt`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SecurityOpt {
    NewPrivileges(bool),
    SeccompUnconfined,
    SeccompProfile(PathBuf),
    AppArmor(String),
    SystemPathsUnconfined,
}

/// Parses docker's options. Like docker, accepts `:` instead of `=`.
fn security_opt(text: &str) -> Result<SecurityOpt, String> {
    let (name, value) = match text.split_once('=').or_else(|| text.split_once(':')) {
        Some((name, value)) => (name, value),
        None => (text, "true"),
    };
    match (name, value) {
        ("no-new-privileges", "true") => Ok(SecurityOpt::NewPrivileges(false)),
        ("no-new-privileges", "false") => Ok(SecurityOpt::NewPrivileges(true)),
        ("no-new-privileges", _) => Err(format!("\"{value}\" is not valid; use no-new-privileges=true or =false")),
        ("seccomp", "unconfined") => Ok(SecurityOpt::SeccompUnconfined),
        ("seccomp", file) if text != name && !file.is_empty() => Ok(SecurityOpt::SeccompProfile(file.into())),
        ("apparmor", profile) if text != name && !profile.is_empty() => Ok(SecurityOpt::AppArmor(profile.to_owned())),
        ("systempaths", "unconfined") => Ok(SecurityOpt::SystemPathsUnconfined),
        _ => Err("use no-new-privileges=false, seccomp=unconfined, seccomp=FILE, apparmor=NAME or \
                  systempaths=unconfined"
            .to_owned()),
    }
}

/// User namespace of a container, as named by `--userns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum UsernsArg {
    /// A range of ids used by no other container
    #[default]
    Own,
    /// The host's ids, if executord's configuration allows that
    Host,
}

/// Weights, shared by `run` and `update`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct WeightArgs {
    /// CPU weight relative to other containers: 1 to 10000; the default is 100
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    cpu_weight: Option<u32>,
    /// Disk weight relative to other containers: 1 to 10000; the default is 100
    ///
    /// Needs cgroup v2 with the io controller.
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    io_weight: Option<u32>,
    /// CPU shares in the unit of cgroup v1: 2 to 262144; the default is 1024
    #[arg(
        help_heading = "Limits",
        long,
        short = 'c',
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(2..=262_144)
    )]
    cpu_shares: Option<u32>,
    /// Period of --cpu-quota in microseconds: 1000 to 1000000 [default: 100000]
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=1_000_000))]
    cpu_period: Option<u64>,
    /// CPU time in each period, in microseconds: at least 1000; -1 for no limit
    #[arg(help_heading = "Limits", long, value_name = "N", allow_negative_numbers = true)]
    cpu_quota: Option<i64>,
    /// Limit of huge pages of a size: 2MB=64M; can be repeated
    #[arg(help_heading = "Limits", long, value_name = "PAGE=SIZE", value_parser = hugepages)]
    hugepages: Vec<(String, u64)>,
    /// File of the container's cgroup and its value: memory.high=64M; can be repeated
    ///
    /// Needs cgroup v2, and the file in executord's configuration (cgroup_keys).
    #[arg(help_heading = "Limits", long, value_name = "FILE=VALUE", value_parser = units::label)]
    cgroup_conf: Vec<(String, String)>,
}

/// Parses a limit of huge pages: `2MB=64M`.
fn hugepages(text: &str) -> Result<(String, u64), String> {
    let (page, size) = text.split_once('=').ok_or("use PAGE=SIZE, such as 2MB=64M")?;
    // The size may be 0, unlike other sizes.
    let bytes = if size == "0" { 0 } else { units::size(size)? };
    Ok((page.to_owned(), bytes))
}

impl WeightArgs {
    /// Adds weights, quota, huge pages and cgroup files to the limits.
    pub(crate) fn apply(&self, limits: &mut Limits) {
        limits.cpu_weight = self.cpu_weight.unwrap_or(0);
        limits.io_weight = self.io_weight.unwrap_or(0);
        limits.cpu_shares = self.cpu_shares.unwrap_or(0);
        limits.cpu_period_us = self.cpu_period.unwrap_or(0);
        limits.cpu_quota_us = self.cpu_quota.unwrap_or(0);
        limits.hugepage_bytes = self.hugepages.iter().cloned().collect();
        limits.unified = self.cgroup_conf.iter().cloned().collect();
    }
}

impl IsolationArgs {
    /// Adds the options for isolation to a run request.
    ///
    /// # Errors
    /// Returns an error if the profile cannot be read or is too large.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        if !self.cap_add.is_empty() || !self.cap_drop.is_empty() {
            request.capabilities = Some(Capabilities { add: self.cap_add, drop: self.cap_drop });
        }
        request.user_namespace = match self.userns {
            UsernsArg::Own => UserNamespace::Own.into(),
            UsernsArg::Host => UserNamespace::Host.into(),
        };
        request.id_map = self.id_map;
        match self.pid {
            None => {}
            Some(PidNamespace::Host) => request.host_pid = true,
            Some(PidNamespace::Container(id)) => request.pid_of = id,
        }
        request.host_ipc = self.ipc.is_some();
        request.extra_groups = self.group_add;
        request.strict_groups = self.strict_groups;
        request.merge_groups = self.merge_groups;
        request.privileged = self.privileged;
        request.read_only_rootfs = self.read_only;
        if let Some(path) = self.seccomp_profile {
            request.seccomp_profile = profile(&path)?;
        }
        for option in self.security_opt {
            match option {
                SecurityOpt::NewPrivileges(allowed) => request.allow_new_privileges = allowed,
                SecurityOpt::SeccompUnconfined => request.seccomp_unconfined = true,
                SecurityOpt::SeccompProfile(path) => request.seccomp_profile = profile(&path)?,
                // In docker, `unconfined` selects no profile, which is the default here.
                SecurityOpt::AppArmor(profile) if profile == "unconfined" => request.apparmor_profile.clear(),
                SecurityOpt::AppArmor(profile) => request.apparmor_profile = profile,
                SecurityOpt::SystemPathsUnconfined => {
                    request.masked_paths = Some(PathList::default());
                    request.readonly_paths = Some(PathList::default());
                }
            }
        }
        let limits = request.limits.get_or_insert_with(Limits::default);
        limits.disk_bytes = self.disk.unwrap_or(0);
        self.weights.apply(limits);
        Ok(())
    }
}

fn profile(path: &std::path::Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let wrong = |why: String| Failure::Usage(format!("--seccomp-profile {}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    file.take(PROFILE_MAX + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > PROFILE_MAX {
        return Err(wrong(format!("the file is larger than the maximum of {PROFILE_MAX} bytes")));
    }
    // executord uses its own filter if the profile in a request is empty, even if other filters are not allowed.
    if text.trim().is_empty() {
        return Err(wrong(
            "is empty; a filter must be a JSON document; omit the option to use executord's own filter".into(),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_seccomp_profile_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("profile.json");
        for empty in ["", " \n\t"] {
            std::fs::write(&path, empty).expect("write");
            let error = profile(&path).expect_err("refused").to_string();
            assert!(error.contains("--seccomp-profile") && error.contains("profile.json: is empty"), "{error}");
        }
        assert!(profile(std::path::Path::new("")).is_err() && profile(std::path::Path::new("/dev/null")).is_err());
        std::fs::write(&path, "{}").expect("write");
        assert_eq!(profile(&path).expect("taken"), "{}");
    }
    #[test]
    fn security_options_are_dockers() {
        let applied = |options: &[&str]| {
            let security_opt = options.iter().map(|text| security_opt(text).expect("valid")).collect();
            let mut request = RunRequest::default();
            IsolationArgs { security_opt, ..IsolationArgs::default() }.apply(&mut request).expect("applied");
            request
        };
        let request = applied(&["no-new-privileges=false", "seccomp=unconfined", "systempaths=unconfined"]);
        assert!(request.allow_new_privileges && request.seccomp_unconfined);
        assert_eq!(
            (request.masked_paths, request.readonly_paths),
            (Some(PathList::default()), Some(PathList::default()))
        );
        assert_eq!(applied(&["apparmor=mine", "no-new-privileges:false"]).apparmor_profile, "mine");
        let request = applied(&["no-new-privileges", "no-new-privileges:true", "apparmor=unconfined"]);
        let limits = request.limits.clone();
        assert_eq!(request, RunRequest { limits, ..RunRequest::default() }, "the default");
        for wrong in ["", "seccomp", "seccomp=", "apparmor", "systempaths=/x", "no-new-privileges=no", "label=disable"]
        {
            let error = security_opt(wrong).expect_err(wrong);
            assert!(error.contains("no-new-privileges="), "{error}");
        }
    }
}
