//! Assembles the root of an image: an overlay over the image's layers, which all containers of the image share.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use executor_core::plan::PlannedImage;
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::Violation;
use executor_layers::{DiffId, Store, UnpackError};
use executor_sys::mount::{Follow, attach, clone_tree, open_in_root};
use rustix::fs::{Mode, OFlags};

use super::{Overlay, Tree, etc, overlay};
use crate::dirs::Dirs;
use crate::errors::failed;
use crate::ids::Ids;

/// Mounts an overlay over the image's layers, which must be unpacked in the store. Returns warnings about omitted parts
/// of the layers, and the overlay.
pub(super) fn assemble(
    image: &PlannedImage,
    store: &Path,
    names: Option<&etc::Contents>,
    dirs: &Dirs,
    ids: &Ids,
) -> Result<(Vec<String>, Overlay), Refused> {
    let violation = |why: String| Refused::from_fields(Reason::Precondition, &[Violation::new("rootfs", why)]);
    let layers: Result<Vec<DiffId>, _> = image.layers.iter().map(|layer| layer.parse()).collect();
    let layers = layers.map_err(|error| violation(format!("`{}`: {error}", image.reference)))?;
    let opened = Store::at(store).open(&layers).map_err(|error| match error {
        UnpackError::Parent(layer) => {
            violation(format!("`{}`: layer {layer} is not unpacked on this host", image.reference))
        }
        UnpackError::Host { about, error } => failed(&about, &error),
        other => Refused::new(Reason::Internal, other.to_string()),
    })?;
    let lower: Vec<_> = opened.dirs.iter().map(AsFd::as_fd).collect();
    let mounted = overlay::assemble(&image.reference, &lower, opened.root.as_ref(), names, dirs, ids)?;
    Ok((opened.warnings.into_iter().map(|warning| format!("rootfs: {warning}")).collect(), mounted))
}

impl Tree {
    /// Creates the directories that the image declares as volumes, if they are missing. Writes to these directories go
    /// to the container's own layer. If `read_only` is true, each directory becomes a separate mount, so that the
    /// directory stays writable when the root becomes read-only.
    pub(super) fn make_volumes(&self, image: &PlannedImage, read_only: bool) -> Result<(), Refused> {
        for volume in &image.volumes {
            let above: Vec<&Path> = volume.ancestors().filter(|path| path.parent().is_some()).collect();
            for path in above.into_iter().rev() {
                if let Some(what) = self.require_dir(path)? {
                    let (image, path) = (&image.reference, path.display());
                    let why = format!("`{image}`: {path} is {what}, but a volume of the image is below it");
                    return Err(Refused::from_fields(Reason::Precondition, &[Violation::new("rootfs", why)]));
                }
            }
            if read_only {
                self.bind_on_itself(volume).map_err(|error| {
                    failed(&format!("rootfs: cannot mount the volume {}", volume.display()), &error)
                })?;
            }
        }
        Ok(())
    }

    /// Bind-mounts a directory on itself.
    fn bind_on_itself(&self, path: &Path) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let dir = open_in_root(self.root(), path, flags, Mode::empty(), Follow::NoLinks)?;
        attach(clone_tree(dir.as_fd(), Path::new(""), false)?.as_fd(), dir.as_fd())
    }
}
