//! Options of `run` about how far a container is kept from the host, and what it gets of it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use executor_client::v1::{Capabilities, Limits, RunRequest, UserNamespace};

use crate::failure::Failure;
use crate::units;

/// Largest profile that is sent, in bytes: the interface's limit.
const PROFILE_MAX: u64 = 256 << 10;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Isolation")]
pub(crate) struct IsolationArgs {
    /// Capability to add for root of the container, or for another user: KILL, CAP_NET_RAW, ALL; may be repeated
    ///
    /// executord's configuration says which capabilities may be added (capabilities_allowed).
    #[arg(long = "cap-add", value_name = "CAPABILITY", value_delimiter = ',')]
    cap_add: Vec<String>,
    /// Capability to take away before that; may be repeated
    #[arg(long = "cap-drop", value_name = "CAPABILITY", value_delimiter = ',')]
    cap_drop: Vec<String>,
    /// Host ids of the container's users: a range that no other container has, or the host's own ids where executord's
    /// configuration allows that
    #[arg(long, value_enum, default_value_t = UsernsArg::Own)]
    userns: UsernsArg,
    /// Supplementary group of every process: a number, or a name in the container's /etc/group; may be repeated
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    group_add: Vec<String>,
    /// All capabilities, no filter on system calls, nothing masked; where executord's configuration allows it
    #[arg(long)]
    privileged: bool,
    /// Make the root file system read-only
    #[arg(long)]
    read_only: bool,
    /// File with a filter on system calls, JSON as Docker and the OCI specification have it; where executord's
    /// configuration allows it
    #[arg(long, value_name = "FILE")]
    seccomp_profile: Option<PathBuf>,
    /// Limit of disk: bytes that the container may add to its root file system [default: executord's]
    #[arg(help_heading = "Limits", long, value_name = "SIZE", value_parser = units::size)]
    disk: Option<u64>,
    #[command(flatten)]
    weights: WeightArgs,
}

/// User namespace of a container, as `--userns` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum UsernsArg {
    /// Range of ids that no other container has
    #[default]
    Own,
    /// Ids of the host
    Host,
}

/// Weights, which `run` and `update` have.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct WeightArgs {
    /// Share of the processors when they are busy: 1 to 10000; the usual weight is 100
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    cpu_weight: Option<u32>,
    /// Share of the disks likewise (cgroup v2 with the io controller)
    #[arg(help_heading = "Limits", long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    io_weight: Option<u32>,
}

impl WeightArgs {
    /// Puts them into limits.
    pub(crate) fn apply(&self, limits: &mut Limits) {
        limits.cpu_weight = self.cpu_weight.unwrap_or(0);
        limits.io_weight = self.io_weight.unwrap_or(0);
    }
}

impl IsolationArgs {
    /// Puts the options into a request.
    ///
    /// # Errors
    /// The profile cannot be read, or is too large.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        if !self.cap_add.is_empty() || !self.cap_drop.is_empty() {
            request.capabilities = Some(Capabilities { add: self.cap_add, drop: self.cap_drop });
        }
        request.user_namespace = match self.userns {
            UsernsArg::Own => UserNamespace::Own.into(),
            UsernsArg::Host => UserNamespace::Host.into(),
        };
        request.extra_groups = self.group_add;
        request.privileged = self.privileged;
        request.read_only_rootfs = self.read_only;
        if let Some(path) = self.seccomp_profile {
            request.seccomp_profile = profile(&path)?;
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
        return Err(wrong(format!("has more than {PROFILE_MAX} bytes")));
    }
    // In a request an empty one would mean executord's own filter, also where no other is allowed.
    if text.trim().is_empty() {
        return Err(wrong(
            "is empty; a filter is a JSON document, and without the option executord's own is in force".into(),
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_is_refused_and_does_not_mean_executords_own() {
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
}
