//! Test cases of `kubelet-test`, a module for each group.

mod lifecycle;
mod namespaces;
mod probes;
mod resources;
mod restarts;
mod secrets;
mod streams;
mod volumes;

use crate::engines::cases::{Case, case};
use crate::engines::node::Node;

/// Cases that can run at the same time, slow cases first.
pub(super) const TOGETHER: &[Case<Node>] = &[
    case("restarts: back-off grows", lifecycle::back_off_grows),
    case("init containers: a failed container is repeated", lifecycle::failing_init_is_repeated),
    case("logs: rotation loses no output", streams::rotation_loses_nothing),
    case("pod: starts with an address, and leaves no resources", lifecycle::pod_starts_and_leaves_nothing),
    case("pod: a program that does not exist", lifecycle::missing_programs_are_start_errors),
    case("pod: an image that does not exist", lifecycle::missing_images_are_reported),
    case("init containers: run one after the other", lifecycle::init_containers_run_in_order),
    case("sidecars: start first and end last", lifecycle::sidecars_start_first_and_end_last),
    case("hooks: postStart and preStop", lifecycle::hooks_are_executed),
    case("termination: message of a file, and of the log", lifecycle::messages_are_read),
    case("termination: SIGKILL after the grace period", lifecycle::grace_period_ends_with_a_kill),
    case("probes: startup, readiness over HTTP, liveness over TCP", probes::readiness_follows_the_probe),
    case("probes: liveness restarts a container", probes::liveness_restarts),
    case("probes: startup restarts a container", probes::startup_restarts),
    case("probes: gRPC", probes::grpc_is_probed),
    case("volumes: emptyDir, hostPath, downwardAPI, subPath", volumes::volumes_are_mounted),
    case("secrets: references reach the container alone", secrets::references_reach_the_container_alone),
    case("resources: memory that is exceeded", resources::exceeded_memory_is_reported),
    case("resources: cgroups by class of service", resources::cgroups_follow_the_class),
    case("resources: statistics", resources::statistics_are_served),
    case("security: user, groups, capabilities, read-only root", namespaces::security_context_is_applied),
    case("security: RuntimeDefault and Unconfined", namespaces::seccomp_is_the_default),
    case("namespaces: of the host, privileged", namespaces::host_namespaces_are_shared),
    case("namespaces: users of the pod's own", namespaces::users_are_mapped),
    case("namespaces: shared processes", namespaces::processes_are_shared),
    case("network: host port", streams::host_port_is_published),
    case("streams: exec, attach and port-forward", streams::streams_are_connected),
];

/// Cases that run alone, in this order.
pub(super) const ALONE: &[Case<Node>] = &[
    case("log: no error that a containerd node does not have", restarts::log_has_known_errors),
    case("restarts: kubelet", restarts::kubelet_finds_its_pods),
    case("restarts: executor-cri is killed", restarts::executor_cri_is_killed),
    case("restarts: executord is killed", restarts::executord_is_killed),
    case("secrets: a missing secret is named, and the pod starts when it exists", secrets::missing_secret_is_named),
    case("disk: images are collected when it is full", restarts::full_disk_collects_images),
];
