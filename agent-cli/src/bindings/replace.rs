//! The bindings of a container that runs, replaced as a whole.
//!
//! From the container as it is and the bindings that it is to have to one update: files to be written, paths to be
//! removed, and the generation that this was decided by, so that nobody's update between the look and the call is undone
//! unseen.

use executor_bindings::{Layout, Present, SERVICE_BINDING_ROOT, VCAP_SERVICES_FILE_PATH, obsolete};
use executor_client::v1::{Container, File, UpdateFilesRequest};
use zeroize::Zeroize as _;

use super::{Delivery, known};
use crate::failure::Failure;
use crate::text::plain;

/// An update that wipes itself.
pub(crate) struct Update(UpdateFilesRequest);

impl Delivery {
    /// The update that makes these the bindings of `container`, on top of what `base` asks for. `files_root` is
    /// executord's; empty where it is too old to tell.
    pub(crate) fn update(
        &self,
        base: &UpdateFilesRequest,
        container: &Container,
        files_root: &str,
    ) -> Result<Update, Failure> {
        let Self { bindings, root, access } = self;
        let absolute = root.clone().unwrap_or_else(|| known(files_root));
        let spec = container.spec.as_ref();
        let token = spec.map_or("", |spec| spec.runtime_token_path.as_str());
        let files = container.files.iter().map(|file| file.path.as_str()).filter(|path| *path != token);
        let present = Present::below(&absolute, files);
        let names = spec.map_or(&[][..], |spec| &spec.environment_names);
        let has = |name: &str| names.iter().any(|known| known == name);
        // Without any binding left, the variable still tells their layout.
        let layout = present.layout().or_else(|| match (has(SERVICE_BINDING_ROOT), has(VCAP_SERVICES_FILE_PATH)) {
            (true, _) => Some(Layout::Directories),
            (_, true) => Some(Layout::OneFile),
            _ => None,
        });
        same_layout(&container.id, layout, bindings.layout(), &absolute)?;
        let place = |path: &str| root.as_ref().map_or_else(|| path.to_owned(), |root| format!("{root}/{path}"));
        let mut update = Update(base.clone());
        update.0.files.extend(bindings.files().iter().map(|file| File {
            path: place(&file.path),
            content: file.content.to_vec(),
            public: file.public,
            mode: access.mode,
            group: access.group.clone(),
            from: None,
        }));
        if bindings.layout() == Layout::Directories {
            update.0.removed_paths.extend(obsolete(&present, bindings).iter().map(|path| place(path)));
        }
        update.0.expected_generation = base.expected_generation.or(Some(container.files_generation));
        Ok(update)
    }
}

/// A program looks where the variable leads that it was started with.
fn same_layout(id: &str, has: Option<Layout>, new: Layout, root: &str) -> Result<(), Failure> {
    let (id, root) = (plain(id), plain(root));
    let text = match has {
        Some(layout) if layout == new => return Ok(()),
        Some(Layout::Directories) => format!("rotate {id}: it has its bindings as directories: leave out --vcap-file"),
        Some(Layout::OneFile) => format!("rotate {id}: it has its bindings as one file: add --vcap-file"),
        None => format!(
            "rotate {id}: it has no bindings below {root}; `run` gives it some with --vcap-services or --bind, and \
             --binding-root says where they lie"
        ),
    };
    Err(Failure::Usage(text))
}

impl Update {
    /// A copy for the wire.
    pub(crate) fn message(&self) -> UpdateFilesRequest {
        self.0.clone()
    }
}

impl Drop for Update {
    fn drop(&mut self) {
        self.0.files.iter_mut().for_each(|file| file.content.zeroize());
    }
}
