//! Stages 2 and 3 of creating a container: writes its record and assembles its root file system.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use executor_core::placement::MountPoint;
use executor_core::plan::Actions;
use executor_core::protocol::Refused;
use executor_core::record::{ContainerRecord, PreparedStep};
use executor_core::users::ResolvedUser;

use super::admit::Admitted;
use crate::cdi::{self, DeviceEdits};
use crate::dirs::Dirs;
use crate::disk;
use crate::errors::failed;
use crate::host::Host;
use crate::ids::Ids;
use crate::pods::Pod;
use crate::rootfs::{LateMount, MountedVolumes, Tree};
use crate::shim::output::container_log;
use crate::shim::running::control::Control;
use crate::shim::setup::etc_files;
use crate::shim::warm::WarmContainer;
use crate::warm::PremadeFiles;

/// Stage 2: a container with a record, a control socket and a log.
pub(super) struct RecordedContainer {
    pub(super) record: ContainerRecord,
    pub(super) dirs: Dirs,
    pub(super) ids: Rc<Ids>,
    pub(super) pod: Option<Pod>,
    pub(super) warm: Option<WarmContainer>,
    pub(super) log: container_log::Log,
}

/// Stage 3: a container with its root file system.
pub(super) struct Assembled {
    pub(super) recorded: RecordedContainer,
    pub(super) tree: Tree,
    pub(super) user: Arc<ResolvedUser>,
    pub(super) edits: DeviceEdits,
    pub(super) extra_groups: Vec<u32>,
    pub(super) file_groups: BTreeMap<String, u32>,
    pub(super) mounts: Vec<MountPoint>,
    /// Mount point of the termination message file.
    pub(super) message: Option<MountPoint>,
    pub(super) steps: Vec<PreparedStep>,
    /// Volumes that are mounted over the container's own file systems, in the container.
    pub(super) late: Vec<LateMount>,
    /// Warnings about disk limits that cannot be enforced, about CDI files, and about volumes.
    pub(super) warnings: Vec<String>,
}

impl Admitted {
    pub(super) fn record(self, host: &Host, control: &mut Control) -> Result<RecordedContainer, Refused> {
        let Self { record, premade_files, dirs, ids, pod, warm } = self;
        let (listener, file) = match premade_files {
            Some(PremadeFiles { listener, log }) => (listener, Some(log)),
            None => {
                dirs.write_first_record(&record)
                    .map_err(|error| failed("cannot write the container's record", &error))?;
                let listener = dirs.listen().map_err(|error| failed("cannot create the control socket", &error))?;
                dirs.reserve_exit_space(&record)
                    .map_err(|error| failed("cannot reserve space for the record", &error))?;
                (listener, None)
            }
        };
        control.listen(listener);
        let log = container_log::Log::create(&dirs, &record.plan, host.log_bytes_max, file);
        let log = log.map_err(|error| failed("cannot create the log", &error))?;
        Ok(RecordedContainer { record, dirs, ids, pod, warm, log })
    }
}

impl RecordedContainer {
    pub(super) fn assemble(mut self, host: &Host) -> Result<Assembled, Refused> {
        let (plan, project) = (&self.record.plan, self.record.id_range_start);
        let (layer, warning) = disk::lay_out(&host.policy, plan, &self.dirs.state, project)?;
        let mut warnings: Vec<String> = warning.into_iter().collect();
        self.dirs.layer = layer;
        let names = etc_files::contents_ahead(plan)?;
        let mut tree = Tree::assemble(host, plan, names.as_ref(), &self.dirs, &self.ids)?;
        if !plan.has_ordered_mounts() {
            tree.make_room_for_tmpfs(plan)?;
        }
        // Users and groups are resolved with files of the root, not of a volume, so resolve them before mounting
        // volumes.
        let field = match plan.actions.as_ref().and_then(Actions::first_process) {
            Some(first) => format!("{}.run.user", plan.processes[first].id),
            None => "action.run.user".to_owned(),
        };
        let edits = cdi::edits(host, plan, self.ids.map())?;
        warnings.extend_from_slice(&edits.warnings);
        let mut extra_groups = tree.extra_groups(plan)?;
        extra_groups.extend_from_slice(&edits.groups);
        let mut user = tree.resolve_user(&plan.user, plan.memberships(), &field)?;
        let join = |user: &mut ResolvedUser| user.join(&extra_groups);
        join(&mut user);
        let user = Arc::new(user);
        let mut users = tree.step_users(plan)?;
        users.iter_mut().for_each(join);
        let file_groups = tree.file_groups(plan)?;
        etc_files::make_targets(&tree, plan)?;
        let MountedVolumes { warnings: of_volumes, late } =
            tree.mount_volumes(host, plan, &edits.mounts, (&self.dirs, &self.ids, self.pod.as_ref()), &user, project)?;
        warnings.extend(of_volumes);
        if plan.token_file().is_some() {
            tree.make_runtime_dir(plan)?;
        }
        etc_files::make_dir(&tree)?;
        let mounts = tree.place(plan, &plan.files, &host.policy.files_root, &user)?;
        let steps = tree.steps(plan, users, &mounts, (&host.policy.files_root, host.nofile_max))?;
        tree.make_targets(mounts.iter(), &plan.files, &user)?;
        for (process, step) in plan.processes.iter().zip(&steps) {
            tree.make_targets(step.mounts.iter().map(|mount| &mount.point), &process.files, &step.user)?;
        }
        let message = tree.termination_message(plan, &mounts, &user)?;
        let recorded = self;
        Ok(Assembled { recorded, tree, user, edits, extra_groups, file_groups, mounts, message, steps, late, warnings })
    }
}
