//! A pod: its shared resources and its members.

use std::collections::BTreeMap;

use executor_cli_kit::view::json::time;
use executor_client::v1::{self, Pod, PodSpec, PodVolume};
use serde::Serialize;

use super::{ending, networks, sorted, surroundings};
use crate::view::human::{network, state, word};
use crate::view::pods::stage;

/// A pod as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PodDocument {
    id: String,
    state: String,
    spec: SharedSpec,
    created_at: Option<String>,
    ended_at: Option<String>,
    network_status: Option<networks::Status>,
    id_range_start: Option<u32>,
    members: Vec<Member>,
    failure: Option<ending::Failure>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SharedSpec {
    labels: BTreeMap<String, String>,
    network: String,
    #[serde(flatten)]
    connectivity: networks::Connectivity,
    extra_hosts: Vec<surroundings::ExtraHost>,
    sysctls: BTreeMap<String, String>,
    shm_bytes: u64,
    user_namespace: String,
    share_processes: bool,
    host_pid: bool,
    host_ipc: bool,
    id_map: Option<surroundings::IdMapping>,
    cni: Option<CniOptions>,
    cgroup_parent: String,
    keep_until_deleted: bool,
    volumes: Vec<SharedVolume>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CniOptions {
    arguments: Vec<CniArgument>,
    bandwidth: Option<CniBandwidth>,
    cgroup_path: String,
    pod_annotations: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CniArgument {
    name: String,
    value: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CniBandwidth {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SharedVolume {
    name: String,
    empty: Option<surroundings::EmptyVolume>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Member {
    id: String,
    state: String,
}

impl From<&Pod> for PodDocument {
    fn from(pod: &Pod) -> Self {
        let members = pod.members.iter();
        Self {
            id: pod.id.clone(),
            state: stage(pod),
            spec: SharedSpec::from(&pod.spec.clone().unwrap_or_default()),
            created_at: time(pod.created_at.as_ref()),
            ended_at: time(pod.ended_at.as_ref()),
            network_status: pod.network_status.as_ref().map(networks::Status::from),
            id_range_start: Some(pod.id_range_start).filter(|start| *start != 0),
            members: members.map(|member| Member { id: member.id.clone(), state: state(member.state) }).collect(),
            failure: pod.failure.as_ref().map(ending::Failure::from),
        }
    }
}

impl From<&v1::CniOptions> for CniOptions {
    fn from(options: &v1::CniOptions) -> Self {
        let argument =
            |argument: &v1::CniArgument| CniArgument { name: argument.name.clone(), value: argument.value.clone() };
        let limits = |v1::CniBandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }| CniBandwidth {
            ingress_rate,
            ingress_burst,
            egress_rate,
            egress_burst,
        };
        Self {
            arguments: options.arguments.iter().map(argument).collect(),
            bandwidth: options.bandwidth.map(limits),
            cgroup_path: options.cgroup_path.clone(),
            pod_annotations: sorted(&options.pod_annotations),
        }
    }
}

impl From<&PodSpec> for SharedSpec {
    fn from(spec: &PodSpec) -> Self {
        let volume = |volume: &PodVolume| SharedVolume {
            name: volume.name.clone(),
            empty: volume.empty.as_ref().map(surroundings::EmptyVolume::from),
        };
        Self {
            labels: sorted(&spec.labels),
            network: network(spec.network),
            connectivity: networks::Connectivity::from(spec),
            extra_hosts: spec.extra_hosts.iter().map(surroundings::ExtraHost::from).collect(),
            sysctls: sorted(&spec.sysctls),
            shm_bytes: spec.shm_bytes,
            user_namespace: word(spec.user_namespace().as_str_name(), "USER_NAMESPACE_"),
            share_processes: spec.share_processes,
            host_pid: spec.host_pid,
            host_ipc: spec.host_ipc,
            id_map: spec.id_map.as_ref().map(surroundings::IdMapping::from),
            cni: spec.cni.as_ref().map(CniOptions::from),
            cgroup_parent: spec.cgroup_parent.clone(),
            keep_until_deleted: spec.keep_until_deleted,
            volumes: spec.volumes.iter().map(volume).collect(),
            warnings: spec.warnings.clone(),
        }
    }
}
