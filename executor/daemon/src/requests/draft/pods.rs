//! Creates pod drafts, and copies a pod's settings into its members' drafts.

use executor_core::limits::MEMORY_MIN;
use executor_core::plan::{Connectivity, Medium, Plan, PodRole, Volume, VolumeSource, pod_volume_path};
use executor_core::validate::ViolationReason::Conflict;
use executor_core::validate::{Draft, VOLUMES_MAX, Violation};
use executor_proto::v1::{CreatePodRequest, Limits, RunRequest};

use super::{connectivity, host_options, isolation, network, surroundings, volumes};

/// Memory limit of a pod's first process, in bytes.
const MEMORY: u64 = 8 * MEMORY_MIN;
/// Process limit of a pod's cgroup.
const PIDS: u64 = 8;

/// Creates the draft of a pod. Also returns the violations of fields that cannot be converted.
pub(crate) fn pod(request: &CreatePodRequest) -> (Draft<'_>, Vec<Violation>) {
    let mut violations = Vec::new();
    let kind = network(request.network).map_err(|violation| violations.push(violation)).ok();
    // Fields that pods and containers share are converted by the same code.
    let shared = RunRequest {
        network_name: request.network_name.clone(),
        network_namespace: request.network_namespace.clone(),
        ports: request.ports.clone(),
        egress: request.egress,
        egress_rules: request.egress_rules.clone(),
        hostname: request.hostname.clone(),
        network_aliases: request.network_aliases.clone(),
        dns: request.dns.clone(),
        extra_hosts: request.extra_hosts.clone(),
        sysctls: request.sysctls.clone(),
        shm_bytes: request.shm_bytes,
        user_namespace: request.user_namespace,
        cgroup_parent: request.cgroup_parent.clone(),
        host_pid: request.host_pid,
        host_ipc: request.host_ipc,
        id_map: request.id_map,
        ..RunRequest::default()
    };
    let listed = request.volumes.iter().take(VOLUMES_MAX + 1).enumerate();
    let volume = |(index, asked): (usize, &executor_proto::v1::PodVolume)| Volume {
        path: pod_volume_path(&asked.name),
        source: VolumeSource::Empty(volumes::empty(index, &asked.empty.unwrap_or_default(), &mut violations)),
        sub_path: "".into(),
        read_only: false,
    };
    let volumes: Vec<Volume> = listed.map(volume).collect();
    let in_memory = volumes.iter().filter_map(Volume::empty).filter(|empty| empty.medium == Medium::Memory);
    let draft = Draft {
        id: &request.id,
        memory_bytes: in_memory.fold(MEMORY, |sum, empty| sum.saturating_add(empty.bytes)),
        pids: PIDS,
        labels: request.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        network: kind,
        isolation: isolation(&shared, &mut violations),
        connectivity: Connectivity {
            cni: request.cni.as_ref().map(connectivity::cni_options),
            ..connectivity::from_request(&shared, &mut violations)
        },
        surroundings: surroundings(&shared, &mut violations),
        host_options: host_options::from_request(&shared, &Limits::default()),
        volumes,
        keep_until_deleted: request.keep_until_deleted,
        pod: Some(PodRole::Holder { share_processes: request.share_processes }),
        ..Draft::default()
    };
    (draft, violations)
}

/// Copies the pod's settings into a member's draft. Fields that belong to the pod must be unset in the request.
pub(crate) fn join(draft: &mut Draft<'_>, request: &RunRequest, pod: &Plan, violations: &mut Vec<Violation>) {
    let set = [
        ("network", request.network != 0),
        ("network_name", !request.network_name.is_empty()),
        ("network_namespace", !request.network_namespace.is_empty()),
        ("network_aliases", !request.network_aliases.is_empty()),
        ("ports", !request.ports.is_empty()),
        ("egress", request.egress),
        ("egress_rules", !request.egress_rules.is_empty()),
        ("hostname", !request.hostname.is_empty()),
        ("dns", request.dns.is_some()),
        ("extra_hosts", !request.extra_hosts.is_empty()),
        ("sysctls", !request.sysctls.is_empty()),
        ("shm_bytes", request.shm_bytes != 0),
        ("user_namespace", request.user_namespace != 0),
        ("id_map", request.id_map.is_some()),
        ("host_pid", request.host_pid),
        ("host_ipc", request.host_ipc),
        ("cgroup_parent", !request.cgroup_parent.is_empty()),
    ];
    for (field, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
        let why = format!("belongs to the pod {}: set it when the pod is created", pod.id);
        violations.push(Violation::new(field, Conflict.because(why)));
    }
    draft.pod = Some(PodRole::Member { pod: pod.id.clone(), share_processes: pod.shares_processes() });
    draft.network = Some(pod.network);
    draft.connectivity = pod.connectivity.for_members();
    draft.surroundings.extra_hosts.clone_from(&pod.surroundings.extra_hosts);
    draft.surroundings.shm_bytes = pod.surroundings.shm_bytes;
    draft.surroundings.sysctls.clear();
    draft.isolation.user_namespace = pod.isolation.user_namespace;
    draft.isolation.id_map = None;
    draft.isolation.host_pid = pod.isolation.host_pid;
    draft.isolation.host_ipc = pod.isolation.host_ipc;
    draft.host_options.cgroup_parent.clone_from(&pod.host_options.cgroup_parent);
}

#[cfg(test)]
mod tests {
    use executor_core::validate::{Policy, check_member, validate};
    use executor_proto::v1::{Action, Dns, EmptyVolume, ExtraHost, IdMapping, PodVolume, RunAction, empty_volume};

    use super::*;

    fn request() -> CreatePodRequest {
        let medium = empty_volume::Medium::Memory.into();
        CreatePodRequest {
            id: "p".into(),
            hostname: "web".into(),
            extra_hosts: vec![ExtraHost { name: "db".into(), address: "10.0.0.1".into() }],
            share_processes: true,
            volumes: vec![
                PodVolume { name: "a".into(), empty: None },
                PodVolume {
                    name: "b".into(),
                    empty: Some(EmptyVolume { medium, size_bytes: 1 << 20, ..Default::default() }),
                },
            ],
            ..CreatePodRequest::default()
        }
    }

    #[test]
    fn pod_memory_includes_its_memory_volumes() {
        let asked = request();
        let (draft, violations) = pod(&asked);
        assert_eq!(violations, []);
        let plan = validate(&draft, &Policy::default()).unwrap();
        assert_eq!(plan.limits.memory_bytes, MEMORY + (1 << 20));
        assert_eq!(plan.volumes[1].path.to_str(), Some("/volumes/b"));
        let wrong = CreatePodRequest {
            network: 7,
            user_namespace: 9,
            volumes: vec![PodVolume { name: "..".into(), empty: None }],
            ..request()
        };
        let (draft, mut violations) = pod(&wrong);
        violations.extend(validate(&draft, &Policy::default()).err().unwrap_or_default());
        let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
        assert!(
            fields.starts_with(&["network", "user_namespace"]) && fields.contains(&"volumes[0].path"),
            "{fields:?}"
        );
    }

    #[test]
    fn member_cannot_request_settings_of_pod() {
        let asked = request();
        let pod = validate(&pod(&asked).0, &Policy::default()).unwrap();
        let run = RunAction { path: "/bin/true".into(), ..Default::default() };
        let plain = RunRequest {
            id: "m".into(),
            action: Some(Action { run: Some(run), ..Default::default() }),
            ..Default::default()
        };
        let joined = |request: &RunRequest| {
            let (mut draft, mut violations) = super::super::from_request(request);
            join(&mut draft, request, &pod, &mut violations);
            (validate(&draft, &Policy::default()), violations)
        };
        let (plan, violations) = joined(&plain);
        assert_eq!(violations, []);
        check_member(&plan.unwrap(), &pod).unwrap();
        let greedy = RunRequest {
            network: 2,
            network_name: "n".into(),
            egress: true,
            hostname: "h".into(),
            dns: Some(Dns::default()),
            extra_hosts: request().extra_hosts,
            shm_bytes: 1 << 20,
            cgroup_parent: "/kubepods".into(),
            id_map: Some(IdMapping::default()),
            host_pid: true,
            host_ipc: true,
            ..plain
        };
        let (_, violations) = joined(&greedy);
        let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
        let expected = ["network", "network_name", "egress", "hostname", "dns", "extra_hosts", "shm_bytes"];
        assert_eq!(fields, [&expected[..], &["id_map", "host_pid", "host_ipc", "cgroup_parent"]].concat());
        assert!(violations[0].description.contains("belongs to the pod p"), "{violations:?}");
    }
}
