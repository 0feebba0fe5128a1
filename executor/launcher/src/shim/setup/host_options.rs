//! Applies CPU, device, confinement and process options: checks that the host supports them, and sets some of them from
//! outside of the container while its init waits.

use std::io;
use std::path::{Path, PathBuf};

use executor_core::plan::{HostOptions, Plan};
use executor_core::protocol::{Reason, Refused};
use executor_core::spec::DeviceNode;
use executor_core::validate::ViolationReason::{NotAllowed, Unsupported};
use executor_core::validate::{Unenforceable, Violation};
use executor_sys::process;

use crate::cpuset::{SHOWN, unavailable};
use crate::errors::{failed, plain};
use crate::host::Host;
use crate::{apparmor, devices, ulimits};

/// Out-of-memory score adjustment of a container that does not request one.
const OOM_SCORE_DEFAULT: i32 = 0;

/// Checks that the host supports the plan's options. Raises hard limits of this process to the container's limits.
/// Returns the devices, and adds warnings.
///
/// # Errors
/// Returns a refusal with all violations if this host cannot provide the options.
pub(crate) fn check(host: &Host, plan: &Plan, warnings: &mut Vec<String>) -> Result<Vec<DeviceNode>, Refused> {
    let options = &plan.host_options;
    let mut violations = Vec::new();
    if options.has_cpuset() {
        violations.extend(cpusets(host, plan, warnings)?);
    }
    for (index, own) in ulimits::above_own(&options.ulimits) {
        let ulimit = &options.ulimits[index];
        if !host.policy.ulimits_max.contains_key(&ulimit.name) {
            let (name, hard) = (&ulimit.name, ulimit.hard);
            let why = format!(
                "is {hard}, above the launcher's hard limit of {own}; set ulimits_max.{name} in the daemon's \
                 configuration to allow more"
            );
            violations.push(Violation::new(format!("ulimits[{index}].hard"), NotAllowed.because(why)));
        }
    }
    if violations.iter().all(|violation| !violation.field.starts_with("ulimits"))
        && let Err((index, error)) = ulimits::raise(&options.ulimits)
    {
        let why = format!(
            "is {}, above the launcher's hard limit; raising the limit failed ({}) and requires CAP_SYS_RESOURCE",
            options.ulimits[index].hard,
            plain(&error)
        );
        violations.push(Violation::new(format!("ulimits[{index}].hard"), Unsupported.because(why)));
    }
    if !options.apparmor_profile.is_empty()
        && let Err(why) = apparmor::check(&options.apparmor_profile)
    {
        violations.push(Violation::new("apparmor_profile", why));
    }
    let nodes = devices::find(host, plan).unwrap_or_else(|faults| {
        violations.extend(faults);
        Vec::new()
    });
    if violations.is_empty() { Ok(nodes) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
}

/// Checks the lists of CPUs and memory nodes.
fn cpusets(host: &Host, plan: &Plan, warnings: &mut Vec<String>) -> Result<Vec<Violation>, Refused> {
    let options = &plan.host_options;
    let asked = [("limits.cpuset_cpus", &options.cpus), ("limits.cpuset_mems", &options.memory_nodes)];
    let asked = asked.into_iter().filter(|(_, list)| !list.is_empty());
    let Some(cpusets) = &host.cpusets else {
        let why = "cannot be enforced: this host has no cgroup controller cpuset";
        let lacking = asked.map(|(field, _)| Violation::new(field, Unsupported.because(why))).collect::<Vec<_>>();
        if host.policy.unenforceable_limits == Unenforceable::Refuse {
            return Ok(lacking);
        }
        warnings.extend(lacking.iter().map(ToString::to_string));
        return Ok(Vec::new());
    };
    let available =
        cpusets.available(&host.cgroup_of(plan)).map_err(|error| failed("cannot read the available cpuset", &error))?;
    Ok(unavailable(options, &available))
}

/// Returns the cgroup in the cpuset hierarchy that a container sees. Creates the cgroup if it belongs to this container
/// alone.
///
/// # Errors
/// Returns a refusal if the cgroup cannot be created.
pub(crate) fn cpuset(host: &Host, options: &HostOptions, cgroup: &Path) -> Result<PathBuf, Refused> {
    match host.cpusets.as_ref().filter(|_| options.has_cpuset()) {
        Some(cpusets) => {
            let make = || cpusets.prepare(cgroup);
            let given = host.is_given(cgroup);
            let made = if given { host.hierarchies.make_cpuset_below(&host.parents(), cgroup, make) } else { make() };
            made.map_err(|error| failed("cannot create the cpuset", &error))?;
            Ok(cgroup.to_owned())
        }
        None => Ok(host.cgroup_parent.join(SHOWN)),
    }
}

/// Sets the CPUs and the out-of-memory score adjustment of a container whose init waits.
///
/// # Errors
/// Returns a refusal if the CPUs or the score cannot be set. Lowering the score may require a privilege.
pub(crate) fn set(host: &Host, options: &HostOptions, cgroup: &Path, init: i32) -> Result<(), Refused> {
    if let Some(cpusets) = host.cpusets.as_ref().filter(|_| options.has_cpuset()) {
        cpusets
            .confine(cgroup, init, options)
            .map_err(|error| failed("cannot confine the container to its cpuset", &error))?;
    }
    // Set the default explicitly: the container would inherit the launcher's score, which may protect the launcher.
    let score = options.oom_score_adj.unwrap_or(OOM_SCORE_DEFAULT);
    if score == host.oom_score_adj {
        return Ok(());
    }
    match process::set_oom_score_adj(init.cast_unsigned(), score) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            if options.oom_score_adj.is_none() {
                return Ok(()); // the inherited score is above the default
            }
            let why = format!("is {score}, below the launcher's own score; lowering it requires CAP_SYS_RESOURCE");
            Err(Refused::from_fields(
                Reason::Precondition,
                &[Violation::new("oom_score_adj", Unsupported.because(why))],
            ))
        }
        set => set.map_err(|error| failed("cannot set oom_score_adj", &error)),
    }
}
