//! Validates pods and their members: a pod runs no program, and a member gets the shared settings from its pod.

use super::ViolationReason::{Conflict, InvalidFormat, UnknownValue};
use super::{Draft, FieldFault, Report, Violation, shorten};
use crate::plan::{Isolation, Medium, Plan, PodRole, VolumeSource, pod_volume_name};

/// Maximum length of the name of a pod's volume, in bytes.
const NAME_MAX: usize = 63;
/// Maximum number of volumes that an error names.
const NAMES_SHOWN: usize = 20;

/// Checks the settings that conflict with a container's role in a pod.
pub(super) fn check(draft: &Draft<'_>, report: &mut Report) {
    if draft.is_pod() {
        check_pod(draft, report);
    }
    check_process(draft, report);
    if let (Some(PodRole::Member { pod, .. }), Some(_)) = (&draft.pod, draft.isolation.id_map) {
        report.add("id_map", Conflict.because(format!("belongs to the pod {pod}: set it when the pod is created")));
    }
}

/// Checks that a pod has no setting that requires a program.
fn check_pod(draft: &Draft<'_>, report: &mut Report) {
    let Isolation { user_namespace, host_pid, host_ipc, id_map, .. } = draft.isolation;
    let plain = Isolation { user_namespace, host_pid, host_ipc, id_map, ..Isolation::default() };
    let surroundings = &draft.surroundings;
    let has_process = draft.actions.is_some() || !draft.steps.is_empty() || draft.checks.is_some();
    let has_files = !draft.files.is_empty() || !draft.file_directories.is_empty() || draft.writable_files.is_some();
    let has_streams = draft.terminal || draft.stdin || draft.await_reader || draft.outputs.is_some();
    let fields = [
        ("action", has_process || surroundings.init),
        ("volume_mounted_files", has_files || !draft.token_path.is_empty()),
        ("stdin", has_streams),
        ("tmpfs", !surroundings.tmpfs.is_empty()),
        ("privileged", draft.isolation != plain),
        ("image", draft.image.is_some()),
    ];
    for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
        report.add(field, Conflict.because("cannot be set for a pod, which runs no program"));
    }
    for (index, volume) in draft.volumes.iter().enumerate() {
        let field = |name: &str| format!("volumes[{index}].{name}");
        match (pod_volume_name(volume), &volume.source) {
            (Some(name), VolumeSource::Empty(empty)) => {
                if let Err(why) = check_pod_volume_name(name) {
                    report.add(field("name"), why);
                }
                if empty.medium == Medium::Memory && empty.bytes == 0 {
                    report.add(
                        field("empty.size_bytes"),
                        Conflict.because("is 0; a pod's volume in memory needs a size"),
                    );
                }
            }
            _ => report.add(field("empty"), Conflict.because("only empty volumes can belong to a pod")),
        }
    }
}

/// Rejects settings that require the container to have its own PID 1, if the container has no PID namespace of its own.
fn check_process(draft: &Draft<'_>, report: &mut Report) {
    let shares = match draft.pod {
        Some(PodRole::Holder { share_processes } | PodRole::Member { share_processes, .. }) => share_processes,
        None => false,
    };
    if let Some(target) = &draft.isolation.pid_of {
        let why = match &draft.pod {
            Some(PodRole::Member { .. }) if draft.isolation.host_pid => "cannot be combined with a pod with `host_pid`",
            Some(PodRole::Member { .. }) if shares => "cannot be combined with a pod with `share_processes`",
            Some(PodRole::Member { .. }) if target.as_str() == draft.id => "is the container itself",
            Some(PodRole::Member { .. }) => "",
            Some(PodRole::Holder { .. }) | None => "needs `pod`: it names another member of the same pod",
        };
        if !why.is_empty() {
            report.add("pid_of", Conflict.because(why));
        }
    }
    let why = if draft.isolation.host_pid {
        if shares {
            report.add("share_processes", Conflict.because("cannot be combined with `host_pid`"));
        }
        "cannot be combined with `host_pid`, because PID 1 is a process of the host"
    } else if shares {
        "cannot be used in a pod that shares processes, because PID 1 is the pod's own process"
    } else if draft.isolation.pid_of.is_some() {
        "cannot be combined with `pid_of`, because PID 1 is a process of the other container"
    } else {
        return;
    };
    if draft.surroundings.init {
        report.add("init", Conflict.because(why));
    }
    if draft.actions.is_some() {
        report.add("action", Conflict.because(format!("a tree of actions {why}")));
    }
}

/// Checks the name of a pod's volume.
///
/// # Errors
/// Returns an error if the name is invalid.
pub fn check_pod_volume_name(name: &str) -> Result<(), FieldFault> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if plain && name.len() <= NAME_MAX && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let why = format!(
        "\"{}\" is not a valid name: 1 to {NAME_MAX} of [A-Za-z0-9._-], beginning with a letter or a digit, are allowed",
        shorten(name)
    );
    Err(InvalidFormat.because(why))
}

/// Checks a member's plan against the plan of its pod: the member's plan must repeat the shared settings, and name
/// existing volumes of the pod.
///
/// # Errors
/// Returns all violations if the member's plan does not match the pod's plan.
pub fn check_member(member: &Plan, pod: &Plan) -> Result<(), Vec<Violation>> {
    let mut report = Report::default();
    let share_processes = match &pod.pod {
        Some(PodRole::Holder { share_processes }) => *share_processes,
        Some(PodRole::Member { .. }) | None => {
            return Err(vec![Violation::new("pod", Conflict.because(format!("{} is not a pod", pod.id)))]);
        }
    };
    let shared = [
        ("pod", member.member_of() == Some(&pod.id) && member.shares_processes() == share_processes),
        ("network", member.network == pod.network && member.connectivity == pod.connectivity.for_members()),
        ("extra_hosts", member.surroundings.extra_hosts == pod.surroundings.extra_hosts),
        ("shm_bytes", member.surroundings.shm_bytes == pod.surroundings.shm_bytes),
        ("sysctls", member.surroundings.sysctls.is_empty()),
        ("user_namespace", member.isolation.user_namespace == pod.isolation.user_namespace),
        ("host_pid", member.isolation.host_pid == pod.isolation.host_pid),
        ("host_ipc", member.isolation.host_ipc == pod.isolation.host_ipc),
        ("cgroup_parent", member.host_options.cgroup_parent == pod.host_options.cgroup_parent),
    ];
    for (field, _) in shared.into_iter().filter(|(_, is_same)| !is_same) {
        report.add(field, Conflict.because(format!("differs from the setting of the pod {}", pod.id)));
    }
    for (index, volume) in member.volumes.iter().enumerate() {
        let VolumeSource::Pod(name) = &volume.source else { continue };
        if !pod.volumes.iter().any(|known| pod_volume_name(known) == Some(name)) {
            report.add(format!("volumes[{index}].pod.name"), unknown(name, pod));
        }
    }
    if report.0.is_empty() { Ok(()) } else { Err(report.0) }
}

/// Returns the error for a volume name that does not exist in the pod.
fn unknown(name: &str, pod: &Plan) -> FieldFault {
    let names: Vec<&str> = pod.volumes.iter().filter_map(pod_volume_name).take(NAMES_SHOWN).collect();
    let has = match (names.len(), pod.volumes.len()) {
        (0, _) => "has no volumes".to_owned(),
        (shown, all) if shown < all => format!("has {} and {} more", names.join(", "), all - shown),
        _ => format!("has {}", names.join(", ")),
    };
    UnknownValue.because(format!("\"{}\" is not a volume of the pod {}; the pod {has}", shorten(name), pod.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{EmptyVolume, Network, Surroundings, UserNamespace, Volume, pod_volume_path};
    use crate::validate::{Policy, recheck, validate};

    fn volume(name: &str, medium: Medium, bytes: u64) -> Volume {
        let source = VolumeSource::Empty(EmptyVolume { medium, bytes, mode: 0o1777, gid: None });
        Volume { path: pod_volume_path(name), source, sub_path: "".into(), read_only: false }
    }

    fn pod() -> Draft<'static> {
        let pod = Some(PodRole::Holder { share_processes: false });
        Draft { id: "p", pod, volumes: vec![volume("data", Medium::Disk, 0)], ..Draft::default() }
    }

    fn member() -> Draft<'static> {
        let pod = Some(PodRole::Member { pod: "p".parse().unwrap(), share_processes: false });
        Draft { id: "m", path: "/bin/true", pod, ..Draft::default() }
    }

    fn fields(reported: Result<impl Sized, Vec<Violation>>) -> Vec<String> {
        reported.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn pod_has_no_process_and_is_revalidated() {
        let policy = Policy { allow_host_userns: true, allow_privileged: true, ..Policy::default() };
        let plan = validate(&pod(), &policy).unwrap();
        assert!(plan.processes.is_empty() && plan.is_pod() && plan.makes_network());
        recheck(&plan, &policy).unwrap();
        let mut wrong = pod();
        (wrong.terminal, wrong.isolation.privileged, wrong.token_path) = (true, true, "/t");
        wrong.volumes.push(volume("m", Medium::Memory, 0));
        wrong.volumes.push(volume("-x", Medium::Disk, 0));
        let expected =
            ["volume_mounted_files", "stdin", "privileged", "volumes[1].empty.size_bytes", "volumes[2].name"];
        assert_eq!(fields(validate(&wrong, &policy)), expected);
        // A plan without a process is accepted only for a pod.
        let mut empty = plan;
        empty.pod = None;
        assert_eq!(fields(recheck(&empty, &policy)), ["action"]);
    }

    #[test]
    fn a_member_has_what_its_pod_has() {
        let policy = Policy { allow_host_userns: true, allow_host_network: true, ..Policy::default() };
        let pod = validate(&pod(), &policy).unwrap();
        let of_pod = |name: &str| Volume { source: VolumeSource::Pod(name.into()), ..volume("x", Medium::Disk, 0) };
        let with = |volumes: Vec<Volume>| Draft { volumes, ..member() };
        let plan = validate(&with(vec![of_pod("data")]), &policy).unwrap();
        recheck(&plan, &policy).unwrap();
        assert!(!plan.makes_network() && plan.member_of().is_some());
        check_member(&plan, &pod).unwrap();
        let unknown = validate(&with(vec![of_pod("other")]), &policy).unwrap();
        let reported = check_member(&unknown, &pod).unwrap_err();
        assert_eq!(reported[0].field, "volumes[0].pod.name");
        assert!(reported[0].description.contains("has data"), "{reported:?}");
        let mut other = plan.clone();
        (other.network, other.isolation.user_namespace) = (Network::Host, UserNamespace::Host);
        other.surroundings = Surroundings { sysctls: [("a".into(), "1".into())].into(), ..other.surroundings };
        assert_eq!(fields(check_member(&other, &pod)), ["network", "sysctls", "user_namespace"]);
        assert_eq!(fields(check_member(&plan, &plan)), ["pod"], "a member is not a pod");
        // Only members can use a volume of a pod.
        let alone = Draft { pod: None, ..with(vec![of_pod("data")]) };
        assert_eq!(fields(validate(&alone, &policy)), ["volumes[0].pod"]);
    }

    #[test]
    fn host_namespaces_are_checked_again() {
        let open = Policy { allow_host_userns: true, allow_host_pid: true, allow_host_ipc: true, ..Policy::default() };
        let closed = Policy { allow_host_userns: true, ..Policy::default() };
        let isolation =
            Isolation { user_namespace: UserNamespace::Host, host_pid: true, host_ipc: true, ..Isolation::default() };
        let holder = validate(&Draft { isolation: isolation.clone(), ..pod() }, &open).unwrap();
        let plan = validate(&Draft { isolation, ..member() }, &open).unwrap();
        recheck(&plan, &open).unwrap();
        check_member(&plan, &holder).unwrap();
        assert!(holder.owns_processes() && !plan.owns_processes());
        assert_eq!(fields(recheck(&plan, &closed)), ["host_pid", "host_ipc"]);
        assert_eq!(fields(recheck(&holder, &closed)), ["host_pid", "host_ipc"]);
        let apart = Isolation { user_namespace: UserNamespace::Host, ..Isolation::default() };
        let apart = validate(&Draft { isolation: apart, ..pod() }, &open).unwrap();
        assert_eq!(fields(check_member(&plan, &apart)), ["host_pid", "host_ipc"]);
    }

    #[test]
    fn pid_of_needs_a_plain_pod() {
        let isolation = Isolation { pid_of: Some("web".parse().unwrap()), ..Isolation::default() };
        let asked = || Draft { isolation: isolation.clone(), ..member() };
        let plan = validate(&asked(), &Policy::default()).unwrap();
        recheck(&plan, &Policy::default()).unwrap();
        check_member(&plan, &validate(&pod(), &Policy::default()).unwrap()).unwrap();
        assert!(!plan.owns_processes());
        let init = Surroundings { init: true, ..Surroundings::default() };
        let sharing = Some(PodRole::Member { pod: "p".parse().unwrap(), share_processes: true });
        let wrong = [
            (Draft { surroundings: init, ..asked() }, "init"),
            (Draft { id: "web", ..asked() }, "pid_of"),
            (Draft { pod: None, ..asked() }, "pid_of"),
            (Draft { pod: sharing, ..asked() }, "pid_of"),
        ];
        for (draft, field) in wrong {
            assert_eq!(fields(validate(&draft, &Policy::default())), [field]);
        }
        let host = Isolation { host_pid: true, user_namespace: UserNamespace::Host, ..isolation.clone() };
        let policy = Policy { allow_host_pid: true, allow_host_userns: true, ..Policy::default() };
        assert_eq!(fields(validate(&Draft { isolation: host, ..asked() }, &policy)), ["pid_of"]);
    }

    #[test]
    fn shared_process_namespace_refuses_own_init() {
        let asked = |share_processes| Draft {
            pod: Some(PodRole::Member { pod: "p".parse().unwrap(), share_processes }),
            surroundings: Surroundings { init: true, ..Surroundings::default() },
            ..member()
        };
        assert_eq!(fields(validate(&asked(true), &Policy::default())), ["init"]);
        assert_eq!(fields(validate(&asked(false), &Policy::default())), [""; 0], "control failed");
    }
}
