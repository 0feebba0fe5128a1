//! Test cases of `cluster-test`, a module for each group.

mod chart;
mod expiry;
mod network;
mod node;
mod nodes;
mod secrets;
mod streams;
mod tokens;
mod volumes;
mod workloads;

use super::kubectl::Cluster;
use crate::engines::cases::{Case, case};

pub(super) use self::tokens::PROGRAM as OPENBAO;

/// Cases that can run at the same time, slow cases first.
pub(super) const TOGETHER: &[Case<Cluster>] = &[
    case("workloads: Deployment of 30 pods, rolling update and rollback", workloads::deployment_is_updated),
    case("workloads: CronJob", workloads::cron_job_is_scheduled),
    case("workloads: Jobs that complete and fail", workloads::jobs_complete_and_fail),
    case("workloads: StatefulSet with volumes", workloads::stateful_set_keeps_its_volumes),
    case("workloads: DaemonSet on the host's network, with a hostPath", workloads::daemon_set_is_on_the_host),
    case("workloads: autoscaler and top, by metrics-server", workloads::autoscaler_adds_a_pod),
    case("workloads: resizing in place", workloads::pod_is_resized_in_place),
    case("workloads: RuntimeClass", workloads::runtime_class_selects_a_handler),
    case("workloads: image pull policies", workloads::images_of_two_pods_are_pulled),
    case("network: Services by address, by name and by the node's port", network::services_have_addresses_and_names),
    case("network: names of pods, dnsPolicy, hostAliases", network::policies_of_names_are_applied),
    case("network: a service account reaches the API server", network::service_account_reaches_the_api_server),
    case("volumes: ConfigMap, Secret and projected volumes that change", volumes::changes_are_seen),
    case("volumes: eviction above sizeLimit and ephemeral-storage", volumes::exceeded_volume_is_evicted),
    case("secrets: a reference that is refused, in the events of the pod", secrets::refused_reference_is_an_event),
    case("secrets: an unreachable provider while 30 pods start", secrets::unreachable_provider_is_waited_for),
    case("secrets: the certificate of a provider expires", expiry::provider_certificate_expires),
    case("streams: logs --follow, --previous, --tail", streams::logs_are_followed),
    case("streams: exec, attach, cp", streams::exec_attach_and_copies_work),
    case("streams: port-forward, proxy", streams::ports_are_forwarded),
    case("streams: debug, by an ephemeral container and on the node", streams::pods_are_debugged),
];

/// Cases that run alone, in this order.
pub(super) const ALONE: &[Case<Cluster>] = &[
    case("node: cordon and drain", node::drained_node_runs_pods_after_uncordon),
    case("node: eviction by a full disk", node::full_disk_evicts),
    case("node: eviction by memory", node::exceeded_memory_evicts),
    case("node: kubelet, executor-cri and executord are killed", node::programs_of_the_node_are_killed),
    case("packaging: the Helm chart", chart::chart_is_installed_and_removed),
    case("node: the kubelet's certificate expires", expiry::kubelet_certificate_expires),
    case("secrets: inline volume of a service account", secrets::inline_volume_has_names_only),
    case("secrets: login to OpenBao with the tokens of pods", tokens::provider_is_asked_as_the_pod),
    case("secrets: the sanity suite of CSI", secrets::sanity_suite_passes),
    case("node: no resources of deleted pods remain", node::nothing_is_left_of_deleted_pods),
];

/// Cases for a cluster of several nodes, in this order. The last case cuts the power of a node.
pub(super) const SEVERAL: &[Case<Cluster>] = &[
    case("nodes: pods of all nodes reach each other and Services", nodes::pods_reach_each_other),
    case("nodes: a DaemonSet, and logs, exec and port-forward on each node", nodes::daemon_set_is_on_each_node),
    case("nodes: a drained node's pods move to others", nodes::drained_pods_move),
    case("nodes: a node dies", nodes::dead_node_is_replaced),
];
