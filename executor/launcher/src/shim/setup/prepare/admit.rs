//! Stage 1 of creating a container: validates the plan and claims the id.

use std::rc::Rc;

use executor_core::plan::Plan;
use executor_core::protocol::{PLAN_MAX, Reason, Refused};
use executor_core::record::ContainerRecord;
use executor_core::spec::fits_warm;
use executor_core::validate::{Violation, recheck};
use executor_sys::identity;

use super::Request;
use crate::dirs::Dirs;
use crate::errors::failed;
use crate::host::Host;
use crate::ids::Ids;
use crate::pods::Pod;
use crate::shim::isolate;
use crate::shim::warm::WarmContainer;
use crate::warm::PremadeFiles;

/// Stage 1: a plan that the policy allows, and a claimed id.
pub(super) struct Admitted {
    pub(super) record: ContainerRecord,
    /// Log and control socket that the warm container has created. `None` if no warm container is used.
    pub(super) premade_files: Option<PremadeFiles>,
    pub(super) dirs: Dirs,
    pub(super) ids: Rc<Ids>,
    pub(super) pod: Option<Pod>,
    pub(super) warm: Option<WarmContainer>,
}

/// Reads and validates the plan, and claims the id. If the plan cannot use the warm container, the warm container is
/// stopped. After a refusal, the caller first reports the refusal and then stops the warm container.
pub(super) fn admit(host: &Host, request: &Request, warm: &mut Option<WarmContainer>) -> Result<Admitted, Refused> {
    let admitted = try_to_admit(host, request, warm)?;
    if let Some(unused) = warm.take() {
        unused.discard(host);
    }
    Ok(admitted)
}

/// Admits the container. Takes the warm container if the plan can use it.
fn try_to_admit(host: &Host, request: &Request, warm: &mut Option<WarmContainer>) -> Result<Admitted, Refused> {
    let internal =
        |what: &str, error: &dyn std::fmt::Display| Refused::new(Reason::Internal, format!("{what}: {error}"));
    if request.plan.len() as u64 > PLAN_MAX {
        let why = format!("the plan is {} bytes; the maximum is {PLAN_MAX}", request.plan.len());
        return Err(Refused::new(Reason::Invalid, why));
    }
    let parsed =
        request.plan.read(|bytes| serde_json::from_slice::<Plan>(bytes)).map_err(|error| internal("plan", &error))?;
    let plan = parsed.map_err(|error| internal("plan", &error))?;
    if plan.id != request.id {
        let why = format!("the plan is for container {}, but the launch is for container {}", plan.id, request.id);
        return Err(Refused::new(Reason::Invalid, why));
    }
    recheck(&plan, &host.policy).map_err(|violations| Refused::from_fields(Reason::Invalid, &violations))?;
    if plan.isolation.id_map.is_some_and(|mapping| request.id_range != Some(mapping.host_id)) {
        return Err(Refused::new(Reason::Invalid, "the plan's id_map differs from the id range of the launch"));
    }
    if plan.writable_files.is_some() && !host.noswap {
        return Err(needs_noswap());
    }
    let pod = Pod::open(host, &plan, request.pod_range)?;
    let used = warm.as_ref().filter(|warm| fits_warm(&plan) && warm.fits_network(host, &plan));
    let ids = match (used, &pod) {
        (Some(warm), _) => warm.ids(),
        (None, None) => Rc::new(Ids::new(&plan, request.id_range, &host.policy)?),
        (None, Some(pod)) => Rc::new(Ids::from_pod(pod.ids()?)),
    };
    if warm.is_none() {
        // A warm container already has its own mount namespace.
        isolate().map_err(|error| failed("cannot create a mount namespace", &error))?;
    }
    let shim = match used {
        Some(warm) => warm.identity(),
        None => identity::read(std::process::id() as i32)
            .map_err(|error| failed("cannot read the shim's identity in /proc", &error))?,
    };
    let dirs = Dirs::new(host, &plan.id);
    let cgroup = used.map_or_else(|| host.cgroup_of(&plan), WarmContainer::cgroup);
    let fits = used.is_some();
    let record = ContainerRecord {
        request_tag: request.request_tag.clone(),
        id_range_start: request.id_range.filter(|_| ids.map().is_mapped()),
        pod_range_start: request.pod_range.filter(|_| pod.is_some() && ids.map().is_mapped()),
        ..ContainerRecord::first(plan, (request.created_at, request.begun), shim, cgroup)
    };
    let premade_files = match warm.as_mut().filter(|_| fits).and_then(WarmContainer::take_premade) {
        Some(premade) => premade.move_to(&dirs, &record).map(Some),
        None => dirs.create().map(|()| None),
    };
    let premade_files = premade_files.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Refused::new(Reason::Exists, format!("container {} already exists", record.plan.id))
        }
        _ => failed("cannot create the container's directories", &error),
    })?;
    if let Some(warm) = warm.as_mut().filter(|_| fits) {
        warm.adopt_network(host, &record.plan.id)?;
    }
    // From here on, the directory protects the claim on the container's ids. If the launcher exited earlier, another
    // launcher may already have claimed the ids.
    if ids.map().is_mapped() && std::os::unix::process::parent_id() != request.launcher {
        let _ = dirs.remove_run();
        let _ = dirs.remove_state();
        let why = format!("the launcher exited before container {} had a directory", record.plan.id);
        return Err(Refused::new(Reason::Busy, why));
    }
    Ok(Admitted { record, premade_files, dirs, ids, pod, warm: if fits { warm.take() } else { None } })
}

/// Returns the refusal for a host on which secret files would be on ramfs, because tmpfs lacks `noswap`. ramfs has no
/// size limit, and holes in its files cannot be distinguished from zeros.
fn needs_noswap() -> Refused {
    let why = "needs a tmpfs with `noswap`, which this kernel lacks (Linux 6.4 or later has it)";
    Refused::from_fields(Reason::Precondition, &[Violation::new("writable_files", why)])
}
