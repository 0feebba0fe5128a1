//! Builds the OCI specification of a warm container, which is created in advance, and decides which plans can use a
//! warm container.
//!
//! A warm container has its own namespaces, /proc, /dev and /sys on a skeleton root, and a waiting init with every
//! capability in its user namespace. The settings of a plan (root file system, user, capabilities, limits) are applied
//! later.

use std::path::Path;

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    LinuxBuilder, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType, ProcessBuilder, RootBuilder, Spec,
    SpecBuilder, UserBuilder,
};

use super::{CapabilitySets, capabilities, cgroup, kernel_mounts, sys, without_resources};
use crate::plan::{HostOptions, Isolation, Plan, Propagation, Rootfs, SHM_BYTES_DEFAULT, UserNamespace, Volume};
use crate::validate::CAPABILITIES;

/// Values resolved on the host that the specification of a warm container needs.
#[derive(Clone, Copy, Debug)]
pub struct Skeleton<'a> {
    /// Directory with the mount points: the root of the warm container.
    pub root: &'a Path,
    /// Cgroup of the warm container, relative to each hierarchy's mount.
    pub cgroup: &'a Path,
    /// Path of the user namespace to enter.
    pub user_namespace: &'a Path,
    /// View of the container's cgroup, as in [`super::Resolved`].
    pub cgroup_view: Option<&'a Path>,
}

/// Returns true if a warm container can be used for this plan. Such a plan shares no namespace, has a directory or an
/// image as its root, adds no privileges, and uses the default seccomp filter, masked paths, /dev and /dev/shm.
pub fn fits_warm(plan: &Plan) -> bool {
    let isolation = &plan.isolation;
    let isolated = isolation.user_namespace == UserNamespace::Own
        && !isolation.privileged
        && !isolation.docker_socket
        && isolation.capabilities_added.is_empty()
        && isolation.seccomp_profile.is_empty()
        && isolation.id_map.is_none()
        && !isolation.allow_new_privileges
        && !isolation.seccomp_unconfined
        && isolation.masked_paths.is_none()
        && isolation.readonly_paths.is_none();
    let rooted = matches!(plan.rootfs, Rootfs::Dir(_) | Rootfs::Image(_));
    let surroundings = &plan.surroundings;
    let plain = surroundings.tmpfs.is_empty() && surroundings.shm_bytes == SHM_BYTES_DEFAULT;
    let alone = plan.pod.is_none() && plan.makes_network();
    let mounted = |volume: &Volume| !volume.is_mounted_late() && volume.propagation() == Propagation::Private;
    let mounted = plan.volumes.iter().all(mounted);
    isolated && rooted && plain && alone && mounted && plan.host_options == HostOptions::default()
}

/// Builds the specification of a warm container.
///
/// # Errors
/// Returns an error if a builder of oci-spec fails, which does not happen.
pub fn warm(skeleton: Skeleton<'_>) -> Result<Spec, OciSpecError> {
    let isolation = Isolation::default();
    let mut mounts = kernel_mounts(SHM_BYTES_DEFAULT, false)?;
    mounts.push(sys(false)?);
    mounts.push(cgroup(skeleton.cgroup_view, false)?);
    let linux = LinuxBuilder::default()
        .namespaces(namespaces(skeleton.user_namespace)?)
        .cgroups_path(Path::new("/").join(skeleton.cgroup))
        .masked_paths(isolation.masked())
        .readonly_paths(isolation.readonly())
        .build()
        .map(without_resources)?;
    let everything = CapabilitySets::new(CAPABILITIES.into_iter().collect());
    let process = ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(0u32).gid(0u32).build()?)
        .args(vec!["init".to_owned()])
        .env(vec!["PATH=/".to_owned(), "HOME=/".to_owned()]) // the same in every container
        .cwd("/")
        .capabilities(capabilities::sets(&everything)?)
        .rlimits(Vec::new()) // limits are applied later; a lowered hard limit could not be raised again
        .no_new_privileges(true)
        .build()?;
    let mut spec = SpecBuilder::default()
        .version("1.0.2")
        .root(RootBuilder::default().path(skeleton.root).readonly(false).build()?)
        .mounts(mounts)
        .process(process)
        .linux(linux)
        .build()?;
    spec.set_hostname(None);
    Ok(spec)
}

fn namespaces(user_namespace: &Path) -> Result<Vec<LinuxNamespace>, OciSpecError> {
    use LinuxNamespaceType::{Cgroup, Ipc, Mount, Network, Pid, User, Uts};
    let namespace = |kind| {
        let one = LinuxNamespaceBuilder::default().typ(kind);
        if kind == User { one.path(user_namespace).build() } else { one.build() }
    };
    [User, Pid, Mount, Ipc, Uts, Cgroup, Network].into_iter().map(namespace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{MASKED, Network, PodRole, READONLY, Tmpfs};
    use crate::validate::{Draft, Policy, validate};

    fn fitting() -> Plan {
        let draft = Draft { id: "c1", path: "/bin/app", rootfs: "dir:/srv", ..Draft::default() };
        validate(&draft, &Policy::default()).unwrap()
    }

    #[test]
    fn special_requirements_do_not_fit_warm_containers() {
        assert!(fits_warm(&fitting()));
        let tmpfs = Tmpfs { path: "/t".into(), bytes: 1, mode: 0o755, uid: 0, gid: 0, exec: false };
        let member = PodRole::Member { pod: "p".parse().unwrap(), share_processes: false };
        type PlanChange = Box<dyn Fn(&mut Plan)>;
        let changes: [(&str, PlanChange); 15] = [
            ("the host's ids", Box::new(|plan| plan.isolation.user_namespace = UserNamespace::Host)),
            ("privileged", Box::new(|plan| plan.isolation.privileged = true)),
            ("Docker's socket", Box::new(|plan| plan.isolation.docker_socket = true)),
            ("a capability", Box::new(|plan| plan.isolation.capabilities_added.push("CAP_CHOWN".into()))),
            ("a filter", Box::new(|plan| plan.isolation.seccomp_profile.push('{'))),
            ("new privileges", Box::new(|plan| plan.isolation.allow_new_privileges = true)),
            ("no filter", Box::new(|plan| plan.isolation.seccomp_unconfined = true)),
            ("masked paths", Box::new(|plan| plan.isolation.masked_paths = Some(Vec::new()))),
            ("read-only paths", Box::new(|plan| plan.isolation.readonly_paths = Some(Vec::new()))),
            ("the host's root", Box::new(|plan| plan.rootfs = Rootfs::Host)),
            ("the host's network", Box::new(|plan| plan.network = Network::Host)),
            ("a tmpfs", Box::new(move |plan| plan.surroundings.tmpfs.push(tmpfs.clone()))),
            ("another /dev/shm", Box::new(|plan| plan.surroundings.shm_bytes += 1)),
            ("a pod", Box::new(move |plan| plan.pod = Some(member.clone()))),
            ("a score", Box::new(|plan| plan.host_options.oom_score_adj = Some(1))),
        ];
        for (what, change) in changes {
            let mut plan = fitting();
            change(&mut plan);
            assert!(!fits_warm(&plan), "{what}");
        }
        let mut less = fitting();
        less.isolation.capabilities_dropped.push("ALL".into());
        less.isolation.read_only_rootfs = true;
        less.terminal = true;
        assert!(fits_warm(&less));
    }

    #[test]
    fn warm_container_has_own_namespaces_without_limits() {
        let skeleton = Skeleton {
            root: Path::new("/r"),
            cgroup: Path::new("c"),
            user_namespace: Path::new("/proc/self/fd/9"),
            cgroup_view: None,
        };
        let spec = serde_json::to_value(warm(skeleton).unwrap()).unwrap();
        let namespaces = spec["linux"]["namespaces"].as_array().unwrap();
        let named: Vec<_> = namespaces.iter().filter(|one| one.get("path").is_some()).collect();
        assert_eq!((namespaces.len(), named.len()), (7, 1), "{namespaces:?}");
        assert_eq!(named[0]["type"], "user");
        assert_eq!(spec["linux"]["maskedPaths"].as_array().unwrap().len(), MASKED.len());
        assert_eq!(spec["linux"]["readonlyPaths"].as_array().unwrap().len(), READONLY.len());
        assert_eq!(spec["linux"].get("resources"), None);
        assert_eq!(spec["process"].get("rlimits").and_then(|limits| limits.as_array()).map_or(0, Vec::len), 0);
        assert_eq!(spec["process"]["noNewPrivileges"], true);
    }
}
