//! Validate: the checks of Run and CreatePod without side effects.
//!
//! Returns all violations of a request. The checks use only the request, the configuration, the total capacity and the
//! pod that a container joins: no id is reserved, no image and no secret is fetched, and free capacity is not checked.

use executor_core::capacity::Amount;
use executor_core::plan::Plan;
use executor_core::validate::{Violation, ViolationReason};
use executor_proto::{Wiped, v1};

use super::admit::{check_request, pod_of};
use super::launch::fill_in_id;
use super::pods::plan_of_pod;
use crate::access::Client;
use crate::api_error::{ApiError, Kind};
use crate::node::Node;

/// Checks a request for a container, a pod, or a container in a pod that does not have to exist yet.
///
/// # Errors
/// Returns the error with which Run or CreatePod would refuse the request. Field names start with `run.` or `pod.`.
pub(crate) fn validate(node: &Node, request: v1::ValidateRequest, client: Option<&Client>) -> Result<(), ApiError> {
    let v1::ValidateRequest { run, pod } = request;
    let mut run = run.map(Wiped::new);
    if run.is_none() && pod.is_none() {
        let why = ViolationReason::Required.because("neither `run` nor `pod` is set; set at least one");
        return Err(ApiError::invalid_field("run", why));
    }
    let planned = pod.as_ref().map(|pod| plan_pod(node, pod));
    let of_run = run.as_mut().map(|run| match (&pod, &planned) {
        // If the pod is invalid, check the member against a pod with only the fields that affect members. Skip the
        // check if these fields are invalid, too.
        (Some(pod), Some(Err(_))) => match plan_pod(node, &for_members(pod)) {
            Ok(plan) => validate_run(node, run, Some(&plan), client),
            Err(_) => Ok(()),
        },
        (_, Some(Ok(plan))) => validate_run(node, run, Some(plan), client),
        (_, None) => validate_run(node, run, None, client),
        (None, Some(_)) => Ok(()),
    });
    let of_pod = planned.map_or(Ok(()), |planned| planned.map(drop)).map_err(|problem| below("pod", problem));
    let of_run = of_run.unwrap_or(Ok(())).map_err(|problem| below("run", problem));
    match (of_pod, of_run) {
        (Err(pod), Err(run)) if pod.kind == run.kind && pod.kind == Kind::Invalid => {
            Err(ApiError::invalid([pod.violations, run.violations].concat()))
        }
        (of_pod, of_run) => of_pod.and(of_run),
    }
}

fn plan_pod(node: &Node, pod: &v1::CreatePodRequest) -> Result<Plan, ApiError> {
    let mut pod = pod.clone();
    fill_in_id(&mut pod.id);
    let plan = plan_of_pod(node, &pod)?;
    Node::check_id(&plan.id)?;
    fits_node(node, &plan)?;
    Ok(plan)
}

/// Returns a pod request with only the fields that affect its members.
fn for_members(pod: &v1::CreatePodRequest) -> v1::CreatePodRequest {
    v1::CreatePodRequest {
        id: pod.id.clone(),
        user_namespace: pod.user_namespace,
        share_processes: pod.share_processes,
        host_pid: pod.host_pid,
        host_ipc: pod.host_ipc,
        volumes: pod.volumes.clone(),
        ..v1::CreatePodRequest::default()
    }
}

fn validate_run(
    node: &Node,
    request: &mut v1::RunRequest,
    pod: Option<&Plan>,
    client: Option<&Client>,
) -> Result<(), ApiError> {
    fill_in_id(&mut request.id);
    let known;
    let pod = match pod {
        Some(pod) if request.pod == pod.id.as_str() => Some(pod),
        Some(pod) => {
            let why = format!("is {:?}; if `pod` is set, it must be that pod's id, {}", request.pod, pod.id);
            return Err(ApiError::invalid_field("pod", ViolationReason::Conflict.because(why)));
        }
        None => {
            known = pod_of(node, request)?;
            known.as_deref()
        }
    };
    fits_node(node, &check_request(node, request, pod, client)?.plan)
}

/// Checks that the node's total capacity suffices. Free capacity changes and is not checked.
fn fits_node(node: &Node, plan: &Plan) -> Result<(), ApiError> {
    let Amount { memory_bytes, pids, disk_bytes, .. } = Amount::new(&plan.limits, &plan.volumes);
    let total = node.registry.capacity().total;
    let fields = [
        ("memory_bytes", memory_bytes, total.memory_bytes),
        ("pids", pids, total.pids),
        ("disk_bytes", disk_bytes, total.disk_bytes),
    ];
    let beyond = fields.into_iter().filter(|(_, asked, total)| asked > total).map(|(field, asked, total)| {
        let why = format!("needs {asked}, including the volumes; the node has {total}");
        Violation::new(format!("limits.{field}"), ViolationReason::Insufficient.because(why))
    });
    let violations: Vec<Violation> = beyond.collect();
    match violations.is_empty() {
        true => Ok(()),
        false => Err(ApiError { kind: Kind::Exhausted, ..ApiError::invalid(violations) }),
    }
}

/// Prefixes the fields of an error with a field of ValidateRequest.
fn below(field: &str, problem: ApiError) -> ApiError {
    let moved = |violation: Violation| Violation { field: format!("{field}.{}", violation.field), ..violation };
    ApiError { violations: problem.violations.into_iter().map(moved).collect(), ..problem }
}
