//! Reads OCI layouts (image-spec, image-layout.md) from a directory or an archive.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use executor_core::image::Digest;
use executor_sys::open::{Links, open_beneath};
use oci_spec::image::{Descriptor, ImageIndex};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::{FoundImage, ImportFormat, Section, Source, required, several};
use crate::choice::{self, Candidate, Chain, Search};
use crate::documents::Documents;
use crate::error::ImageError;
use crate::hash;
use crate::manifest::{self, Manifest};
use crate::platform::Host;

/// Name of the file that lists the images of the layout.
pub(super) const INDEX: &str = "index.json";
/// Annotations that hold an image's name (image-spec; containerd).
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

/// A layout as a directory. Links cannot escape the directory.
pub(super) struct Directory {
    dir: File,
    path: PathBuf,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, ImageError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, path, flags, Mode::empty());
        dir.map(|dir| Self { dir: dir.into(), path: path.to_owned() })
            .map_err(|error| ImageError::caller_io("open directory", path, error.into()))
    }
}

impl Source for Directory {
    fn open(&mut self, name: &str) -> Result<Option<Section>, ImageError> {
        let path = self.path.join(name);
        let io = |error: std::io::Error| ImageError::caller_io("open", &path, error);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file: File = match open_beneath(self.dir.as_fd(), Path::new(name), flags, Links::Beneath) {
            Ok(file) => file.into(),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(io(error.into())),
        };
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(ImageError::Malformed { what: path.display().to_string(), why: "not a regular file".into() });
        }
        Ok(Some(Section { file, at: 0, size: metadata.len() }))
    }
}

/// Finds the image with the name `selected` in a layout. If `selected` is `None`, finds the only image, or this host's
/// image.
pub(super) fn find(
    source: &mut dyn Source,
    form: ImportFormat,
    selected: Option<&str>,
    image_bytes_max: u64,
    what: &str,
) -> Result<FoundImage, ImageError> {
    let index = required(source, INDEX, what)?;
    let Manifest::Index(index) = manifest::parse(&index, "", &format!("{INDEX} of {what}"))? else {
        return Err(ImageError::Malformed { what: what.to_owned(), why: format!("{INDEX} is not an image index") });
    };
    let entry = named(&index, form, selected, what)?.clone();
    let names = NAMES.iter().filter_map(|key| entry.annotations().as_ref()?.get(*key));
    // Short names (`latest`) have no meaning outside of the layout.
    let names = names.filter(|name| name.contains('/')).filter_map(|name| {
        executor_core::image::ImageReference::parse_short(name).ok().map(|reference| reference.to_string())
    });
    let names: Vec<String> = names.take(1).collect();
    let (digest, size) = manifest::digest_and_size(&entry, what)?;
    let mut candidate = Candidate { digest, size, indexes: Arc::default() };
    let mut search = Search::new(Host::here(), what);
    loop {
        let Candidate { digest, size, indexes } = candidate;
        let bytes = blob(source, &digest, size, what)?;
        match manifest::parse(&bytes, "", what)? {
            Manifest::Image(image) if !indexes.is_empty() && !manifest::is_image(&image) => {}
            Manifest::Image(image) => {
                let (config_digest, config_size) = manifest::digest_and_size(image.config(), what)?;
                let config = blob(source, &config_digest, config_size, what)?;
                let index_digest = indexes.first().map(|(digest, _)| digest.clone());
                match Documents::new((digest, bytes), index_digest, (config_digest, config), image_bytes_max, what) {
                    Ok(documents) => {
                        let files = documents.layers.iter().map(|layer| path(&layer.digest)).collect();
                        return Ok(FoundImage { documents, files, names });
                    }
                    Err(error) => search.pass_over(error)?,
                }
            }
            Manifest::Index(index) => {
                let mut indexes = Chain::clone(&indexes);
                indexes.push((digest, bytes));
                search.add(&index, indexes)?;
            }
        }
        candidate = search.next()?;
    }
}

/// Returns the index entry with a name. If no name is given, returns the only entry, or the entry for this host.
fn named<'a>(
    index: &'a ImageIndex,
    form: ImportFormat,
    wanted: Option<&str>,
    what: &str,
) -> Result<&'a Descriptor, ImageError> {
    let called = |descriptor: &&Descriptor, name: &str| {
        NAMES
            .iter()
            .any(|key| descriptor.annotations().as_ref().and_then(|all| all.get(*key)).is_some_and(|is| is == name))
    };
    let unsupported = |why: String| ImageError::Unsupported { what: what.to_owned(), why };
    let all: Vec<&Descriptor> = match wanted {
        None => index.manifests().iter().collect(),
        Some(name) => index.manifests().iter().filter(|descriptor| called(descriptor, name)).collect(),
    };
    match (&all[..], wanted) {
        ([one], _) => Ok(one),
        ([], Some(name)) => Err(ImageError::NotFound { what: format!("image {name:?} in {what}") }),
        ([], None) => Err(unsupported(format!("{INDEX} lists no image"))),
        (many, None) if many.iter().all(|descriptor| descriptor.platform().is_some()) => {
            choice::by_platform(many, &Host::here(), what)
        }
        (many, _) => {
            let names = |descriptor: &&'a Descriptor| {
                let all = descriptor.annotations().as_ref();
                NAMES.iter().find_map(|key| all?.get(*key)).map(|name| &**name)
            };
            let named: Vec<&str> = many.iter().filter_map(names).collect();
            Err(several(many.len(), &named, form, what))
        }
    }
}

fn blob(source: &mut dyn Source, digest: &Digest, size: u64, what: &str) -> Result<Vec<u8>, ImageError> {
    let bytes = required(source, &path(digest), what)?;
    let what = format!("blob {digest} of {what}");
    hash::check_size(size, &bytes, &what)?;
    hash::check_digest(digest, &bytes, &what)?;
    Ok(bytes)
}

fn path(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm().name(), digest.hex())
}
