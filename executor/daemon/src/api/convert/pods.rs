//! Converts pods to API messages.

use executor_core::lifecycle::State;
use executor_core::plan::{CniArgument, CniBandwidth, CniOptions, Volume, pod_volume_name};
use executor_proto::v1;

use super::{dns, extra_host, id_mapping, network, network_status, port, result, timestamp, user_namespace, volumes};
use crate::model::status::ContainerStatus;
use crate::requests::draft;

/// Converts a pod to its API message. A `closed` pod accepts no new members.
pub(in crate::api) fn pod(facts: &ContainerStatus, closed: bool, members: Vec<v1::PodMember>) -> v1::Pod {
    use v1::pod::State as Stage;
    let stage = match facts.state {
        State::Reserved | State::Initializing | State::Created => Stage::Creating,
        State::Running if !closed => Stage::Ready,
        State::Running | State::Stopping | State::Wiping => Stage::Stopping,
        State::Completed => Stage::Ended,
    };
    v1::Pod {
        id: facts.plan.id.to_string(),
        state: stage.into(),
        spec: Some(spec(facts)),
        created_at: Some(timestamp(facts.created_at)),
        ended_at: facts.end.as_ref().map(|end| timestamp(end.finished_at)),
        network_status: network_status(facts),
        id_range_start: facts.id_range_start.unwrap_or(0),
        members,
        failure: facts.end.as_deref().and_then(|end| result(end).failure),
    }
}

fn cni_options(options: &CniOptions) -> v1::CniOptions {
    let CniOptions { arguments, bandwidth, cgroup_path, pod_annotations } = options;
    let argument =
        |CniArgument { name, value }: &CniArgument| v1::CniArgument { name: name.clone(), value: value.clone() };
    let limits = |CniBandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }| v1::CniBandwidth {
        ingress_rate,
        ingress_burst,
        egress_rate,
        egress_burst,
    };
    v1::CniOptions {
        arguments: arguments.iter().map(argument).collect(),
        bandwidth: bandwidth.map(limits),
        cgroup_path: cgroup_path.clone(),
        pod_annotations: pod_annotations.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
    }
}

fn spec(facts: &ContainerStatus) -> v1::PodSpec {
    let plan = &facts.plan;
    let connectivity = &plan.connectivity;
    let volume = |volume: &Volume| {
        let name = pod_volume_name(volume)?.to_owned();
        Some(v1::PodVolume { name, empty: volume.empty().map(volumes::empty) })
    };
    v1::PodSpec {
        labels: plan.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        network: network(plan.network).into(),
        network_name: connectivity.network_name.clone(),
        network_namespace: connectivity.network_namespace.display().to_string(),
        ports: connectivity.ports.iter().map(port).collect(),
        egress: connectivity.egress,
        egress_rules: connectivity.egress_rules.iter().map(draft::egress_message).collect(),
        hostname: executor_core::names::hostname(plan),
        network_aliases: connectivity.network_aliases.clone(),
        cgroup_parent: plan.host_options.cgroup_parent.display().to_string(),
        host_pid: plan.isolation.host_pid,
        host_ipc: plan.isolation.host_ipc,
        id_map: plan.isolation.id_map.map(id_mapping),
        cni: connectivity.cni.as_ref().map(cni_options),
        dns: Some(dns(connectivity)),
        extra_hosts: plan.surroundings.extra_hosts.iter().map(extra_host).collect(),
        sysctls: plan.surroundings.sysctls.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        shm_bytes: plan.surroundings.shm_bytes,
        user_namespace: user_namespace(plan.isolation.user_namespace).into(),
        share_processes: plan.shares_processes(),
        keep_until_deleted: plan.keep_until_deleted,
        volumes: plan.volumes.iter().filter_map(volume).collect(),
        warnings: facts.prepared.as_ref().map(|prepared| prepared.warnings.clone()).unwrap_or_default(),
    }
}
