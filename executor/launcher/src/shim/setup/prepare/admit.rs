//! Stage 1 of preparing a container: the plan is judged, and the id is taken.

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
use crate::warm::Opened;

/// Stage 1: a plan that the policy allows, and an id that is taken.
pub(super) struct Admitted {
    pub(super) record: ContainerRecord,
    /// Log and socket that a shell brought along; none where the directories are empty.
    pub(super) brought: Option<Opened>,
    pub(super) dirs: Dirs,
    pub(super) ids: Rc<Ids>,
    pub(super) pod: Option<Pod>,
    pub(super) warm: Option<WarmContainer>,
}

/// Reads and judges the plan, and takes the id. A shell that the plan cannot use ends; after a refusal it is the caller's, who tells
/// of that first.
pub(super) fn admit(host: &Host, request: &Request, warm: &mut Option<WarmContainer>) -> Result<Admitted, Refused> {
    let admitted = try_to_admit(host, request, warm)?;
    if let Some(unused) = warm.take() {
        unused.end(host);
    }
    Ok(admitted)
}

/// Takes the shell where the container is admitted with it.
fn try_to_admit(host: &Host, request: &Request, warm: &mut Option<WarmContainer>) -> Result<Admitted, Refused> {
    let internal =
        |what: &str, error: &dyn std::fmt::Display| Refused::new(Reason::Internal, format!("{what}: {error}"));
    if request.plan.len() as u64 > PLAN_MAX {
        return Err(Refused::new(Reason::Invalid, "the plan is too large"));
    }
    let parsed =
        request.plan.read(|bytes| serde_json::from_slice::<Plan>(bytes)).map_err(|error| internal("plan", &error))?;
    let plan = parsed.map_err(|error| internal("plan", &error))?;
    if plan.id != request.id {
        let why = format!("the plan is of container {}, the launch of container {}", plan.id, request.id);
        return Err(Refused::new(Reason::Invalid, why));
    }
    recheck(&plan, &host.policy).map_err(|violations| Refused::from_fields(Reason::Invalid, &violations))?;
    if plan.writable_files.is_some() && !host.noswap {
        return Err(no_bound());
    }
    let pod = Pod::open(host, &plan, request.pod_range)?;
    let used = warm.as_ref().filter(|_| fits_warm(&plan));
    let ids = match (used, &pod) {
        (Some(warm), _) => warm.ids(),
        (None, None) => Rc::new(Ids::new(&plan, request.id_range, &host.policy)?),
        (None, Some(pod)) => Rc::new(Ids::from_pod(pod.ids()?)),
    };
    if warm.is_none() {
        isolate().map_err(|error| failed("mount namespace", &error))?; // a shell has one
    }
    let shim = match used {
        Some(warm) => warm.identity(),
        None => identity::read(std::process::id() as i32).map_err(|error| failed("/proc", &error))?,
    };
    let dirs = Dirs::new(host, &plan.id);
    let cgroup = used.map_or_else(|| host.cgroup_parent.join(plan.id.as_str()), WarmContainer::cgroup);
    let fits = used.is_some();
    let record = ContainerRecord {
        request_tag: request.request_tag.clone(),
        id_range_start: request.id_range.filter(|_| ids.map().is_mapped()),
        pod_range_start: request.pod_range.filter(|_| pod.is_some() && ids.map().is_mapped()),
        ..ContainerRecord::first(plan, (request.created_at, request.begun), shim, cgroup)
    };
    let brought = match warm.as_mut().filter(|_| fits).and_then(WarmContainer::take_premade) {
        Some(premade) => premade.move_to(&dirs, &record).map(Some),
        None => dirs.create().map(|()| None),
    };
    let brought = brought.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Refused::new(Reason::Exists, format!("container {} exists already", record.plan.id))
        }
        _ => failed("", &error),
    })?;
    // From here on the directory keeps the claim on its ids. Without it, a launcher that is gone may have lost them already.
    if ids.map().is_mapped() && std::os::unix::process::parent_id() != request.launcher {
        let _ = dirs.remove_run();
        let _ = dirs.remove_state();
        let why = format!("the launcher ended before container {} had a directory", record.plan.id);
        return Err(Refused::new(Reason::Busy, why));
    }
    Ok(Admitted { record, brought, dirs, ids, pod, warm: if fits { warm.take() } else { None } })
}

/// ramfs, which takes the place of a tmpfs without `noswap`, has neither a size nor a way to tell a hole from zeros.
fn no_bound() -> Refused {
    let why = "needs a tmpfs that is never swapped, which this kernel does not have (Linux 6.4 or later does)";
    Refused::from_fields(Reason::Precondition, &[Violation::new("writable_files", why)])
}
