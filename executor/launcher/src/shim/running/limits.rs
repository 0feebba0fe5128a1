//! Determines which limits of a plan this host can enforce, and replaces limits of a running container.
//!
//! Limits that the host cannot enforce are refused with their field name or, if the operator configured this
//! (`unenforceable_limits`), reported as warnings. A limit on open files above the host's limit is lowered to the
//! host's limit, with a warning: the container gets less than requested, never more.

use std::io;
use std::path::{Path, PathBuf};

use executor_core::lifecycle::State;
use executor_core::plan::{HostOptions, Limits, Plan};
use executor_core::protocol::{Reason, Refused, UpdateLimits};
use executor_core::record::ContainerRecord;
use executor_core::validate::{Unenforceable, Violation, validate_limits};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::cgroup::page_pool;
use crate::cpuset::unavailable;
use crate::errors::failed;
use crate::host::Host;
use crate::log::{self, Level};
use crate::shim::Ready;
use crate::shim::files::update::reserve_record_space;

/// Number of descriptors that a shim needs in addition to the container's files: connections, clients, pipes.
const DESCRIPTORS: u64 = 256;

/// Prefix of a warning about a limit of the request.
const WARNING: &str = "limits.";

/// Returns the limits that are enforced, with 0 for unset and unenforceable limits, and warnings.
pub(crate) fn in_force(host: &Host, plan: &Plan) -> Result<(Limits, Vec<String>), Refused> {
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
    limits.cpu_quota_us = if held("cpu", "limits.cpu_quota_us", asked.cpu_quota_us) { asked.cpu_quota_us } else { 0 };
    limits.cpu_shares = if held("cpu", "limits.cpu_shares", asked.cpu_shares.into()) { asked.cpu_shares } else { 0 };
    limits.io_weight = if held("io", "limits.io_weight", asked.io_weight.into()) { asked.io_weight } else { 0 };
    lacking.extend(unsupported_options(host, &plan.host_options, controllers.contains("hugetlb")));
    // If the request allows unlimited swap, there is nothing to enforce.
    let bounded = asked.swap_bytes != Some(-1);
    if limits.memory_bytes > 0 && bounded && !host.hierarchies.holds_swap() {
        let why =
            "cannot be enforced: this host has swap but no swap accounting (boot with swapaccount=1, or use cgroup v2)";
        lacking.push(Violation::new("limits.memory_bytes", why));
    }
    if !lacking.is_empty() && host.policy.unenforceable_limits == Unenforceable::Refuse {
        return Err(Refused::from_fields(Reason::Precondition, &lacking));
    }
    let mut warnings: Vec<String> = lacking.iter().map(ToString::to_string).collect();
    limits.nofile = plan.limits.nofile.min(host.nofile_max);
    if limits.nofile < plan.limits.nofile {
        let (asked, given) = (plan.limits.nofile, limits.nofile);
        warnings.push(format!("nofile {asked} exceeds the launcher's hard limit; using {given}"));
    }
    let (asked, processors) = (asked.cpu_millis, host.processors);
    if asked > processors * 1000 {
        warnings.push(format!(
            "limits.cpu_millis: allows {} processors; the launcher may use {processors}",
            asked as f64 / 1000.0
        ));
    }
    Ok((limits, warnings))
}

/// Returns a violation for each limit on huge pages that the host cannot enforce and, on a host with cgroup v1, for
/// each file of cgroup v2. If the pool of a page size is empty and cannot grow, a limit on this page size needs no
/// controller.
fn unsupported_options(host: &Host, options: &HostOptions, has_hugetlb: bool) -> Vec<Violation> {
    let pages = options.hugepage_bytes.keys().filter_map(|size| {
        let why = match page_pool(size) {
            None => "cannot be enforced: this host has no huge pages of this size",
            Some(pool) if !has_hugetlb && has_pages(&pool) => {
                "cannot be enforced: this host has no cgroup controller hugetlb"
            }
            Some(_) => return None,
        };
        Some(Violation::new(format!("limits.hugepage_bytes[{size}]"), why))
    });
    let is_v1 = host.hierarchies.name() != "v2";
    let files = options.unified.keys().filter(|_| is_v1).map(|file| {
        Violation::new(format!("limits.unified[{file}]"), "cannot be enforced: this host uses cgroup version 1")
    });
    pages.chain(files).collect()
}

/// Returns true if a pool has huge pages or can get huge pages.
fn has_pages(pool: &Path) -> bool {
    ["nr_hugepages", "nr_overcommit_hugepages"]
        .iter()
        .any(|file| std::fs::read_to_string(pool.join(file)).map_or(true, |text| text.trim() != "0"))
}

/// Replaces limits of the container. If the record cannot be written, the old limits are restored, so that the record
/// matches the limits in force.
pub(crate) fn update(host: &Host, ready: &mut Ready, update: &UpdateLimits) -> Result<(), Refused> {
    let before = &ready.record;
    let id = &before.plan.id;
    if before.state != State::Running {
        let why = format!("container {id} is {}: limits can be replaced only while it runs", before.state.name());
        return Err(Refused::new(Reason::Precondition, why));
    }
    // Validate with the launcher's own policy, not with the daemon's policy.
    let plan = validate_limits(update, &before.plan, &host.policy)
        .map_err(|violations| Refused::from_fields(Reason::Invalid, &violations))?;
    let (old, _) = in_force(host, &before.plan)?;
    let (new, warnings) = in_force(host, &plan)?;
    let mut prepared = before.prepared.clone();
    if let Some(prepared) = &mut prepared {
        prepared.warnings.retain(|warning| !warning.starts_with(WARNING));
        prepared.warnings.extend(warnings.into_iter().filter(|warning| warning.starts_with(WARNING)));
    }
    let record = ContainerRecord { plan, prepared, limits_generation: before.limits_generation + 1, ..before.clone() };
    reserve_record_space(ready, &record)?;
    if new.memory_max() < old.memory_max() {
        fits(host, &record.cgroup, &new)?;
    }
    let (from, to) = ((&old, &before.plan.host_options), (&new, &record.plan.host_options));
    let cpusets = cpusets(host, &record, from.1)?;
    let replaced =
        host.hierarchies.replace_limits(&record.cgroup, from, to, cpusets).map_err(|error| match error.kind() {
            // The kernel could not reclaim the memory.
            io::ErrorKind::ResourceBusy => {
                Refused::new(Reason::Precondition, format!("limits of container {id}: {error}"))
            }
            _ => failed("cannot set the limits", &error),
        })?;
    if let Err(error) = ready.remains.dirs.write_record(&record) {
        if let Err(error) = replaced.undo() {
            log::line(Level::Error, id.as_str(), format_args!("cannot restore the old limits: {error}"));
        }
        return Err(failed("cannot write the container's record", &error));
    }
    ready.record = record;
    Ok(())
}

/// Returns the files to write, with their contents, if the CPUs or memory nodes of a container differ from the `old`
/// options.
///
/// # Errors
/// Returns a violation for each list with a number that containers of this host cannot use.
fn cpusets(host: &Host, record: &ContainerRecord, old: &HostOptions) -> Result<Vec<(PathBuf, String)>, Refused> {
    let new = &record.plan.host_options;
    // Without the controller, a warning about the lists was reported when the container was created.
    let Some(cpusets) = &host.cpusets else { return Ok(Vec::new()) };
    let changes = cpusets.changes(&record.cgroup, old, new);
    if changes.is_empty() {
        return Ok(changes);
    }
    let parent = record.cgroup.parent().unwrap_or(&record.cgroup);
    let available = cpusets.available(parent).map_err(|error| failed("cannot read the available cpuset", &error))?;
    let violations = unavailable(new, &available);
    if violations.is_empty() { Ok(changes) } else { Err(Refused::from_fields(Reason::Precondition, &violations)) }
}

/// Checks that the memory in use, without reclaimable memory, is not above a new limit. Otherwise cgroup v2 would kill
/// a process immediately.
fn fits(host: &Host, cgroup: &Path, new: &Limits) -> Result<(), Refused> {
    let Some(used) = host.hierarchies.memory_used(cgroup) else { return Ok(()) };
    if used <= new.memory_bytes {
        return Ok(());
    }
    let why = format!("is {}; the container uses {used} bytes", new.memory_bytes);
    Err(Refused::from_fields(Reason::Precondition, &[Violation::new("limits.memory_bytes", why)]))
}

/// Raises this shim's limit on open files, so that the shim can hold a container's files: the current files, their
/// replacements, and some old generations. If the host does not permit this, an update reports the error.
pub(crate) fn allow_descriptors(files: usize) {
    let wanted = DESCRIPTORS + 4 * files as u64;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))
            .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    }
}
