//! Writes and mounts the secret files of a warm container that is being activated, without a helper process. Used if
//! only files are injected.
//!
//! The init of a warm container still has the privilege to mount in its own namespaces, and mounts the files when it
//! replaces its root ([`super::activation`]). The shim writes the files before init replaces its root. While writing,
//! the shim is in the container's memory cgroup, so that the files' pages count against the container's limit, as if a
//! helper had written them ([`crate::shim::files::inject`]). A helper is still used for containers that need more than
//! files or have little memory, and on hosts where moving between cgroups is slow.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use executor_core::idmap::IdMap;
use executor_core::placement::{self, MountPoint, VolumeSize};
use executor_core::plan::Plan;
use executor_core::protocol::Refused;
use executor_core::users::ResolvedUser;
use executor_secrets::volume::Volume;
use executor_sys::memfile::{MemFile, PrivateCopy};

use crate::errors::failed;
use crate::finish::Remains;
use crate::host::Host;
use crate::shim::files::helper::HelperFailure;
use crate::shim::files::inject::{copy_contents, create_views, decode_contents, ownership};
use crate::shim::running::control::Control;
use crate::shim::running::limits;

/// Maximum number of views in a command to init, including the view of the generations.
pub(crate) const VIEWS_MAX: usize = 4;
/// Memory in bytes that a container's memory limit must allow in addition to twice the size of its files. If the limit
/// is lower, a helper writes the files, so that the OOM killer does not kill the shim.
const ROOM: u64 = 16 << 20;

/// Parameters for writing the files.
pub(crate) struct WarmFiles<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) cgroup: &'a Path,
    pub(crate) mounts: &'a [MountPoint],
    pub(crate) user: &'a ResolvedUser,
    pub(crate) file_groups: &'a BTreeMap<String, u32>,
    pub(crate) id_map: IdMap,
    /// Directory at which the volume is attached, on kernels that cannot clone detached mounts.
    pub(crate) staging: &'a Path,
}

/// Result of writing the files.
pub(crate) struct WrittenFiles {
    /// Views of the files. Init mounts them.
    pub(crate) views: WarmViews,
    /// Copy of the contents from which the files were written.
    pub(crate) contents: PrivateCopy,
}

/// Views of secret files, to be mounted by init.
pub(crate) struct WarmViews {
    pub(crate) mounts: Vec<OwnedFd>,
    pub(crate) generations: Option<OwnedFd>,
}

impl WarmFiles<'_> {
    /// Writes the files. Returns `None` if a helper must write them. The volume is added to `remains` as soon as it
    /// exists.
    ///
    /// # Errors
    /// Returns a refusal if there is no space or a payload does not match the plan.
    pub(crate) fn write(
        &self,
        host: &Host,
        remains: &mut Remains,
        control: &mut Control,
    ) -> Result<Option<WrittenFiles>, Refused> {
        let size = placement::volume_size(&self.plan.files, host.page);
        if !self.fits_command() || !self.fits_memory_limit(size) || !host.hierarchies.moves_at_once() {
            return Ok(None);
        }
        let system = |error| failed("cannot create the secret file system", &error);
        let volume = Volume::create(size).map_err(system)?;
        limits::allow_descriptors(self.plan.files.len());
        control.share_volume(&volume);
        remains.volumes.push(volume);
        let volume = &remains.volumes[0];
        let contents =
            self.fill(host, volume, &remains.inputs[1]).map_err(|HelperFailure(what, error)| failed(&what, &error))?;
        let layout = self.plan.layout();
        let views = || -> std::io::Result<WarmViews> {
            let mounts = volume.views(self.mounts, layout)?;
            Ok(WarmViews { mounts, generations: volume.generations_view(self.mounts, layout)? })
        };
        let views = create_views(volume, self.staging, views).map_err(system)?;
        Ok(Some(WrittenFiles { views, contents }))
    }

    /// Returns true if only files are injected and the files need at most [`VIEWS_MAX`] views.
    fn fits_command(&self) -> bool {
        let layout = self.plan.layout();
        let views = self.mounts.len() + usize::from(placement::shows_generations_dir(self.mounts, layout));
        injects_only_files(self.plan) && !self.mounts.is_empty() && views <= VIEWS_MAX
    }

    fn fits_memory_limit(&self, size: VolumeSize) -> bool {
        let limit = self.plan.limits.memory_bytes;
        limit == 0 || limit >= size.bytes.saturating_mul(2).saturating_add(ROOM)
    }

    fn fill(&self, host: &Host, volume: &Volume, contents: &MemFile) -> Result<PrivateCopy, HelperFailure> {
        let files = &self.plan.files;
        let (owner, access) = ownership(files, self.user, self.file_groups, self.id_map);
        let copy = copy_contents(contents)?;
        let contents = decode_contents(&copy, files.iter().map(|file| file.size))?;
        let mut hold = |file: OwnedFd| {
            volume.hold(file);
            Ok(())
        };
        let fill = || volume.fill(self.mounts, &contents, &access, owner, self.plan.layout(), &mut hold);
        let filled = host.hierarchies.within_memory(self.cgroup, fill);
        filled
            .and_then(|filled| filled)
            .map_err(|error| HelperFailure("cannot write the secret files".into(), error))?;
        Ok(copy)
    }
}

/// Returns true if nothing except secret files is injected into a container of this plan.
pub(crate) fn injects_only_files(plan: &Plan) -> bool {
    !plan.terminal
        && plan.surroundings.sysctls.is_empty()
        && plan.termination_message.is_none()
        && plan.token_file().is_none()
        && !plan.has_hidden_secrets()
}
