//! Reads bundles and catalogs from sources for both command lines, and defines their errors.

use std::path::{Path, PathBuf};

use executor_bundles::catalog::{Catalog, LoadError, Objects, load};
use executor_bundles::fault::Faults;
use executor_bundles::resolve::ResolveError;
use executor_bundles::source::{self, Files, Source, SourceError};
use executor_cli_kit::failure::Failure;

use crate::registry::{RegistryArgs, fetch};

/// Image label whose value is the directory of the catalog's files.
const CONFIGS_LABEL: &str = "operators.operatorframework.io.index.configs.v1";
/// Directory of the catalog's files in an image without that label.
const CONFIGS: &str = "configs";

/// Error of a command on bundles or catalogs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("{what} is refused: {}\n  {}", count(.faults.count()), .faults.to_string().replace('\n', "\n  "))]
    Refused { what: String, faults: Faults },
    #[error("{what}")]
    Load { what: String, source: LoadError },
    #[error("{what}")]
    Source { what: String, source: SourceError },
    #[error(transparent)]
    Resolve(#[from] ResolveError),
}

impl From<BundleError> for Failure {
    fn from(error: BundleError) -> Self {
        let status = if matches!(error, BundleError::Refused { .. }) { 1 } else { executor_cli_kit::exit::OURS };
        Self::wrap(error, status)
    }
}

fn count(faults: usize) -> String {
    if faults == 1 { "1 fault".to_owned() } else { format!("{faults} faults") }
}

/// A catalog's objects, and the temporary directory that holds their files.
pub(crate) struct Opened {
    pub(crate) objects: Objects,
    _unpacked: Option<tempfile::TempDir>,
}

/// Reads the objects of a catalog: from a file, a directory, an archive or an image.
pub(crate) fn objects(text: &str, digests: bool, registry: &RegistryArgs) -> Result<Opened, BundleError> {
    let wrong = |source| BundleError::Source { what: text.to_owned(), source };
    let found = Source::parse(text).map_err(wrong)?;
    let (path, unpacked): (PathBuf, _) = match &found {
        Source::Directory { path } => (path.clone(), None),
        other => {
            let dir = tempfile::tempdir().map_err(|error| wrong(SourceError::Write(std::env::temp_dir(), error)))?;
            let files = match other {
                Source::Image { reference } => fetch(reference, registry, Some(dir.path())),
                other => source::write(other, dir.path()),
            };
            let files = files.map_err(wrong)?;
            (configs(dir.path(), other, files.labels.get(CONFIGS_LABEL)).map_err(wrong)?, Some(dir))
        }
    };
    let objects = load(&path, digests).map_err(|error| match error {
        LoadError::Faults(faults) => BundleError::Refused { what: text.to_owned(), faults },
        source => BundleError::Load { what: text.to_owned(), source },
    })?;
    Ok(Opened { objects, _unpacked: unpacked })
}

/// Returns the directory of a catalog's files in an unpacked source.
fn configs(root: &Path, source: &Source, label: Option<&String>) -> Result<PathBuf, SourceError> {
    let is_image = matches!(source, Source::Layout { .. } | Source::Image { .. });
    if !is_image {
        return Ok(root.to_owned());
    }
    let named = label.map_or(CONFIGS, |label| label.trim_matches('/'));
    let outside = Path::new(named).components().any(|part| !matches!(part, std::path::Component::Normal(_)));
    if outside || !root.join(named).is_dir() {
        return Err(SourceError::Image(format!("the image has no directory /{named} with the catalog's files")));
    }
    Ok(root.join(named))
}

/// Reads and validates a catalog.
pub(crate) fn catalog(text: &str, digests: bool, registry: &RegistryArgs) -> Result<(Opened, Catalog), BundleError> {
    let opened = objects(text, digests, registry)?;
    let refused = |faults| BundleError::Refused { what: text.to_owned(), faults };
    let catalog = Catalog::build(&opened.objects).map_err(refused)?;
    Ok((opened, catalog))
}

/// Reads the files of a bundle.
pub(crate) fn files(text: &str, registry: &RegistryArgs) -> Result<(Source, Files), BundleError> {
    let wrong = |source| BundleError::Source { what: text.to_owned(), source };
    let found = Source::parse(text).map_err(wrong)?;
    let files = match &found {
        Source::Image { reference } => fetch(reference, registry, None),
        other => source::read(other),
    };
    Ok((found, files.map_err(wrong)?))
}
