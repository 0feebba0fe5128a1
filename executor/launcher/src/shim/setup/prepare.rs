//! Creates a container from a plan. If a step fails, all earlier steps are undone, so that no resource of the container
//! remains and the id is free.
//!
//! ```text
//!  admit      validates the plan and claims the id                                   Admitted
//!  record     creates the record, control socket and log                             RecordedContainer
//!  assemble   assembles the root file system; resolves users and file targets        Assembled
//!  create     creates or activates init, attaches the network, writes /etc           WaitingInit
//!  inject     injects the secret files and the runtime token                         Injected
//!  finish     reads the values to mask in the output; records the state `created`    BuiltContainer
//! ```
//! Each stage is a type, and the step to the next stage consumes it. The state that is needed for undoing the stages is
//! stored separately, in [`Undo`].

mod admit;
mod assemble;
mod create;
mod inject;

use std::path::PathBuf;
use std::sync::Arc;

use admit::{Admitted, admit};
use executor_core::ident::ContainerId;
use executor_core::protocol::Refused;
use executor_core::time::Timestamp;
use executor_sys::memfile::MemFile;
use inject::BuiltContainer;

use crate::dirs::Dirs;
use crate::disk;
use crate::finish::{Remains, RotationResults, SHIM};
use crate::host::Host;
use crate::seccomp::Filter;
use crate::shim::Ready;
use crate::shim::files::update;
use crate::shim::init;
use crate::shim::running::control::Control;
use crate::shim::running::layer_size::LayerSize;
use crate::shim::warm::WarmContainer;

/// A request for a container, without secrets.
pub(crate) struct Request {
    pub(crate) id: ContainerId,
    pub(crate) plan: MemFile,
    pub(crate) request_tag: String,
    pub(crate) created_at: Timestamp,
    pub(crate) id_range: Option<u32>,
    pub(crate) pod_range: Option<u32>,
    pub(crate) launcher: u32,
    pub(crate) begun: Timestamp,
}

/// Prepares a container stage by stage, and undoes everything if a stage fails. An unused warm container is stopped.
///
/// Never inlined, because the caller's stack frame stays in memory while the container runs.
#[inline(never)]
pub(crate) fn prepare(
    host: &Host,
    filter: &Arc<Filter>,
    request: &Request,
    (inputs, warm): (Vec<MemFile>, &mut Option<WarmContainer>),
    control: &mut Control,
) -> Result<Box<Ready>, Refused> {
    let init = warm.as_ref().map(WarmContainer::init);
    let admitted = admit(host, request, warm);
    let (dirs, cgroup) = match &admitted {
        Ok(admitted) => (admitted.dirs.clone(), admitted.record.cgroup.clone()),
        Err(_) => (Dirs::nowhere(), PathBuf::new()),
    };
    let remains = Remains {
        by: SHIM,
        dirs,
        cgroup,
        volumes: Vec::new(),
        inputs,
        rotated: RotationResults::default(),
        views: Vec::new(),
        on_network: true,
    };
    let mut site = Undo { init: admitted.as_ref().ok().and_then(|admitted| admitted.warm.as_ref()).and(init), remains };
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(refused) => {
            let _ = site.remains.wipe(""); // the error is logged
            return Err(refused);
        }
    };
    let id = request.id.as_str();
    match admitted.build(host, filter, &mut site, control) {
        Ok(BuiltContainer { record, container, target, ports, log, token, watch, steps, message, interfaces }) => {
            Ok(Box::new(Ready {
                record,
                remains: site.remains,
                container,
                target,
                ports,
                log,
                watch,
                token,
                steps,
                message,
                interfaces,
                layer_size: LayerSize::default(),
                begun: request.begun,
                generations: update::Generations::default(),
                paused: None,
            }))
        }
        Err(refused) => {
            site.undo(host, id);
            Err(refused)
        }
    }
}

/// State that is needed for undoing the steps after a failure.
struct Undo {
    /// Pid of init, if it was already cloned.
    init: Option<i32>,
    remains: Remains,
}

impl Undo {
    fn undo(mut self, host: &Host, id: &str) {
        undo(host, id, self.init, &mut self.remains);
    }
}

/// Undoes everything that was done for a container, as if it had never existed.
pub(crate) fn undo(host: &Host, id: &str, init: Option<i32>, remains: &mut Remains) {
    if let Some(pid) = init {
        init::create::kill(pid);
    }
    unmount(&remains.dirs);
    remains.discard(host, id);
}

impl Admitted {
    fn build(
        self,
        host: &Host,
        filter: &Arc<Filter>,
        site: &mut Undo,
        control: &mut Control,
    ) -> Result<BuiltContainer, Refused> {
        let waiting = self.record(host, control)?.assemble(host)?.create(host, filter, site, control)?;
        // Init has been cloned now. Before the clone, this process has read no secret.
        waiting.inject(host, site, control)?.finish(host, filter, site, control)
    }
}

/// Unmounts the container's root and layer in this shim's mount namespace, so that their mount points are empty
/// directories again.
pub(crate) fn unmount(dirs: &Dirs) {
    while executor_sys::mount::detach(&dirs.stage).is_ok() {}
    while executor_sys::mount::detach(&disk::place(&dirs.state)).is_ok() {}
    while executor_sys::mount::detach(&dirs.staging()).is_ok() {}
}
