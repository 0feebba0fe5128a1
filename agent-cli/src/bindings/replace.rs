//! Replaces all bindings of a running container.
//!
//! Compares the container's current bindings with the new bindings to compute the update: files to write, paths to
//! remove, and the generation of the current files. With the generation, executord rejects the update if another client
//! has changed the files in the meantime.

use executor_bindings::{Layout, Present, SERVICE_BINDING_ROOT, VCAP_SERVICES_FILE_PATH, obsolete};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::text::plain;
use executor_client::v1::{Container, File, UpdateFilesRequest};
use zeroize::Zeroize as _;

use super::{Delivery, known};

/// An update whose contents are wiped on drop.
pub(crate) struct Update(UpdateFilesRequest);

impl Delivery {
    /// Returns the update that replaces the bindings of `container`, together with the changes of `base`. `files_root`
    /// is executord's directory for files with relative paths; it is empty if executord is too old to report it.
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
        // If the container has no bindings, the variable still shows the layout.
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

/// Returns an error if the layout changes. The layout cannot change because the running program reads the path from a
/// variable that was set at its start.
fn same_layout(id: &str, has: Option<Layout>, new: Layout, root: &str) -> Result<(), Failure> {
    let (id, root) = (plain(id), plain(root));
    let text = match has {
        Some(layout) if layout == new => return Ok(()),
        Some(Layout::Directories) => {
            format!("rotate {id}: the container's bindings are directories; omit --vcap-file")
        }
        Some(Layout::OneFile) => format!("rotate {id}: the container's bindings are one file; add --vcap-file"),
        None => format!(
            "rotate {id}: the container has no bindings below {root}; deliver bindings with `run --vcap-services` or \
             `run --bind`, and name their directory with --binding-root"
        ),
    };
    Err(Failure::Usage(text))
}

impl Update {
    /// Returns a copy of the update's request.
    pub(crate) fn message(&self) -> UpdateFilesRequest {
        self.0.clone()
    }
}

impl Drop for Update {
    fn drop(&mut self) {
        self.0.files.iter_mut().for_each(|file| file.content.zeroize());
        self.0.provider_tokens.iter_mut().for_each(|one| one.token.zeroize());
    }
}
