//! Rules that hold for every plan and every placement, for any input.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use executor_core::limits::{ARG_TOTAL_MAX, GRACE_MAX, ID_MAX, LABELS_MAX, MEMORY_MIN};
use executor_core::placement::{Content, MountPoint, volume_size};
use executor_core::plan::{MAIN_PROCESS, OutputSource, Plan, Principal, Rootfs};
use executor_core::spec::{self, Resolved};
use executor_core::users::ResolvedUser;
use executor_core::validate::{Policy, recheck};
use oci_spec::runtime::Spec;

/// Kernel directories, which may not contain files and mounts.
const KERNELS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Checks that a path is absolute, has no `.`, `..`, empty components, NUL or newline, and is not below a kernel
/// directory. Such a path needs no normalization.
pub(crate) fn is_plain(path: &Path) {
    let text = path.to_str().expect("the path is UTF-8");
    let mut parts = text.split('/');
    assert_eq!(parts.next(), Some(""), "{text:?} is not absolute");
    for part in parts {
        assert!(!part.is_empty() && part.len() <= 255, "{text:?} has a component of {} bytes", part.len());
        assert!(!part.starts_with("..") && part != ".", "{text:?} has a component {part:?}");
        assert!(!part.contains(['\0', '\n']), "{text:?} has a control character");
    }
    assert!(text.len() < 4096, "the path is {} bytes; the maximum is 4095", text.len());
    assert!(!KERNELS.iter().any(|kernels| path.starts_with(kernels)), "{text:?} is in a kernel directory");
    assert!(path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_))), "{text:?}");
}

/// Checks the rules for a plan that passed validation or the launcher's own check.
pub(crate) fn plan(plan: &Plan, policy: &Policy) {
    assert_eq!(plan.processes.len(), 1);
    assert_eq!(plan.main().expect("the plan has a main process").id, MAIN_PROCESS);
    let id = plan.id.as_str();
    assert!(!id.is_empty() && id.len() <= 128 && !id.starts_with('.') && !id.contains('/'), "{id:?}");
    for principal in std::iter::once(&plan.user.user).chain(&plan.user.group) {
        match principal {
            Principal::Id(id) => assert!(*id <= ID_MAX),
            Principal::Name(name) => assert!(!name.is_empty() && !name.contains([':', '/', '\n', '\0'])),
        }
    }
    match &plan.rootfs {
        Rootfs::Pod => assert!(plan.is_pod() && plan.processes.is_empty()),
        Rootfs::Host => assert!(policy.allow_host_rootfs),
        Rootfs::Dir(dir) => {
            assert!(dir.is_absolute() && !KERNELS.iter().any(|kernels| dir.starts_with(kernels)), "{dir:?}");
            assert!(!dir.components().any(|part| part == Component::ParentDir), "{dir:?}");
            let allowed = &policy.rootfs_dirs;
            assert!(allowed.is_empty() || allowed.iter().any(|root| dir.starts_with(root)), "{dir:?}");
        }
        Rootfs::Image(image) => {
            assert!((1..=127).contains(&image.layers.len()) && image.digest.len() == 71);
            assert!(image.layers.iter().all(|layer| !layer.contains(['/', '.']) && layer.len() == 71));
            image.volumes.iter().for_each(|volume| is_plain(volume));
        }
    }
    let limits = &plan.limits;
    let is_open = policy.allow_no_limits;
    assert!((MEMORY_MIN..=1 << 50).contains(&limits.memory_bytes) || (is_open && limits.memory_bytes == 0));
    assert!((1..=4_194_304).contains(&limits.pids) || (is_open && limits.pids == 0));
    assert!((64..=1 << 30).contains(&limits.nofile) && plan.grace <= GRACE_MAX && plan.labels.len() <= LABELS_MAX);
    let total: u64 = plan.given_files().iter().map(|file| file.size).sum();
    assert!(total <= policy.files_bytes_max, "the files are {total} bytes; the maximum is {}", policy.files_bytes_max);
    for file in &plan.files {
        is_plain(&file.path);
        let others = plan.files.iter().filter(|other| other.path.starts_with(&file.path));
        assert_eq!(others.count(), 1, "{:?} is also the path or a parent of another file", file.path);
    }
    assert!(plan.given_files().iter().all(|file| !file.token), "the token's file is not the last");
    outputs(plan, policy);
    specification(plan);
}

/// Checks that outputs have plain paths, are bounded, and are not secret files.
fn outputs(plan: &Plan, policy: &Policy) {
    let Some(outputs) = &plan.outputs else { return };
    assert!(outputs.bytes_max > 0 && outputs.bytes_max <= policy.outputs_bytes_max);
    let files = match &outputs.source {
        OutputSource::Directory(directory) => std::slice::from_ref(directory),
        OutputSource::Files(files) => {
            assert!(!files.is_empty() && !plan.files.iter().any(|secret| files.contains(&secret.path)));
            files
        }
    };
    for path in files {
        let text = path.to_str().expect("the path is UTF-8");
        assert!(path.is_absolute() && text.len() < 4096 && !text.contains(['\0', '\n']), "{text:?}");
        assert!(!text[1..].split('/').any(|part| matches!(part, "" | "." | "..") || part.len() > 255), "{text:?}");
        assert!(!KERNELS.iter().any(|kernels| path.starts_with(kernels)), "{text:?} is in a kernel directory");
    }
}

/// Checks that a plan is unchanged after conversion to JSON and back, and that the launcher, like the daemon, accepts
/// the plan.
pub(crate) fn check_round_trip(plan: &Plan, policy: &Policy) {
    let json = serde_json::to_vec(plan).expect("a plan is JSON");
    let back: Plan = serde_json::from_slice(&json).expect("a serialized plan is parsed");
    assert_eq!(&back, plan);
    recheck(&back, policy).expect("the launcher agrees with what the daemon admitted");
    assert!(plan.main().map_or(0, |main| main.environment_names.iter().map(String::len).sum()) <= ARG_TOTAL_MAX);
}

/// Checks that the specification can be built, runs `init` and not the process itself, and mounts no host path.
fn specification(plan: &Plan) {
    let user = ResolvedUser { uid: 1234, gid: 5, groups: vec![6], home: "/".into() };
    let resolved = Resolved {
        rootfs: Path::new("/rootfs"),
        user: &user,
        capabilities: &spec::held(&plan.isolation, user.uid),
        limits: &plan.limits,
        cgroup: Path::new("executor/x"),
        user_namespace: None,
        docker_socket: None,
        shared: None,
        cgroup_view: None,
    };
    let spec = spec::build(plan, &resolved).expect("a valid plan has a specification");
    for mount in spec.mounts().as_deref().unwrap_or_default() {
        let kind = mount.typ().as_deref().unwrap_or_default();
        assert!(!kind.is_empty() && kind != "bind", "{mount:?}");
        let source = mount.source().as_deref().expect("the mount has a source");
        assert!(!source.is_absolute(), "{mount:?}");
    }
    let process = spec.process().as_ref().expect("the specification has a process");
    assert_eq!(process.args().as_deref(), Some(&["init".to_owned()][..]));
    assert_eq!(process.no_new_privileges(), Some(true));
    let json = serde_json::to_vec(&spec).expect("a specification is JSON");
    let back: Spec = serde_json::from_slice(&json).expect("a serialized specification is parsed");
    assert_eq!(back, spec);
}

/// Checks mount points: each file is at its path exactly once, no mount point is in a kernel directory, and no mount
/// point is at or below another mount point.
pub(crate) fn placed(plan: &Plan, mounts: &[MountPoint]) {
    let mut seen = BTreeSet::new();
    for mount in mounts {
        is_plain(&mount.target);
        for other in mounts.iter().filter(|other| !std::ptr::eq(*other, mount)) {
            assert!(!other.target.starts_with(&mount.target), "{:?} covers {:?}", mount.target, other.target);
        }
        match &mount.content {
            Content::File(index) => {
                assert_eq!(plan.files[*index].path, mount.target);
                assert!(seen.insert(*index));
            }
            Content::Directory(files) => {
                for (index, below) in files {
                    assert!(below.is_relative() && !below.as_os_str().is_empty());
                    assert_eq!(mount.target.join(below), plan.files[*index].path);
                    assert!(seen.insert(*index));
                }
            }
        }
    }
    assert_eq!(seen.len(), plan.files.len(), "a file has no mount point");
    let size = volume_size(&plan.files, 4096);
    let needed: u64 = plan.files.iter().map(|file| file.size.div_ceil(4096) * 4096).sum();
    assert!(size.bytes >= 2 * needed && size.bytes.is_multiple_of(4096) && size.inodes > plan.files.len() as u64);
}
