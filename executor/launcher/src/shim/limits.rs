//! Limits and privileges of a plan that this host can enforce or give.
//!
//! Others are refused by the field's name, or told as a warning where the operator wants that
//! (`unenforceable_limits`). A number of open files above the host's own limit is lowered to it, and told: the container
//! gets less than it asked for, never more.

use executor_core::plan::{Limits, Plan, UserNamespace};
use executor_core::protocol::{Reason, Refused};
use executor_core::spec::Held;
use executor_core::validate::{Unenforceable, Violation};
use executor_sys::capabilities::is_in_bounding_set;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::host::Host;

/// Descriptors of a shim beside its container's files: connections, clients, pipes.
const DESCRIPTORS: u64 = 256;

/// Limits in force, with 0 for what is not set, and what to tell.
pub(super) fn in_force(host: &Host, plan: &Plan) -> Result<(Limits, Vec<String>), Refused> {
    let mut limits = plan.limits;
    let mut lacking = Vec::new();
    let controllers = host.hierarchies.controllers();
    let mut held = |controller: &str, field: &str, limit: u64| {
        let is_held = limit == 0 || controllers.contains(controller);
        if !is_held {
            let why = format!("cannot be enforced: this host has no cgroup controller {controller}");
            lacking.push(Violation::new(field, why));
        }
        is_held
    };
    let asked = plan.limits;
    limits.memory_bytes =
        if held("memory", "limits.memory_bytes", asked.memory_bytes) { asked.memory_bytes } else { 0 };
    limits.pids = if held("pids", "limits.pids", asked.pids) { asked.pids } else { 0 };
    limits.cpu_millis = if held("cpu", "limits.cpu_millis", asked.cpu_millis) { asked.cpu_millis } else { 0 };
    limits.cpu_weight = if held("cpu", "limits.cpu_weight", asked.cpu_weight.into()) { asked.cpu_weight } else { 0 };
    limits.io_weight = if held("io", "limits.io_weight", asked.io_weight.into()) { asked.io_weight } else { 0 };
    // Nothing is to be held where any amount of swap may be used.
    let bounded = asked.swap_bytes != Some(-1);
    if limits.memory_bytes > 0 && bounded && !host.hierarchies.holds_swap() {
        let why = "cannot be enforced: this host has swap and does not account it (boot with swapaccount=1, or use cgroup v2)";
        lacking.push(Violation::new("limits.memory_bytes", why));
    }
    if !lacking.is_empty() && host.policy.unenforceable_limits == Unenforceable::Refuse {
        return Err(Refused::of_fields(Reason::Precondition, &lacking));
    }
    let mut warnings: Vec<String> = lacking.iter().map(ToString::to_string).collect();
    limits.nofile = plan.limits.nofile.min(host.nofile_max);
    if limits.nofile < plan.limits.nofile {
        let (asked, given) = (plan.limits.nofile, limits.nofile);
        warnings.push(format!("nofile {asked} is above this host's hard limit: {given} is in force"));
    }
    let (asked, processors) = (asked.cpu_millis, host.processors);
    if asked > processors * 1000 {
        warnings.push(format!(
            "limits.cpu_millis: allows {} processors; this host has {processors}",
            asked as f64 / 1000.0
        ));
    }
    Ok((limits, warnings))
}

/// Lets this shim hold a container's files open, however many there are: those in force, those that replace them, and
/// some generations that linger. Where the host does not, an update says so.
pub(super) fn allow_descriptors(files: usize) {
    let wanted = DESCRIPTORS + 4 * files as u64;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
            .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    }
}

/// Capabilities that the shim cannot give because it has not got them itself: the unit that it runs under says so. In a
/// user namespace of its own a container has the whole set.
pub(super) fn can_be_given(plan: &Plan, held: &Held) -> Result<(), Refused> {
    if plan.isolation.user_namespace == UserNamespace::Own {
        return Ok(());
    }
    let can_give = |name: &str| name.parse().is_ok_and(is_in_bounding_set);
    let lacking: Vec<&str> = held.names.iter().copied().filter(|name| !can_give(name)).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let field = if plan.isolation.privileged { "privileged" } else { "capabilities.add" };
    let why = format!("the launcher lacks {} itself", lacking.join(", "));
    Err(Refused::of_fields(Reason::Precondition, &[Violation::new(field, why)]))
}
