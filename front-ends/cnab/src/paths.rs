//! Defines the container paths of CNAB 103, and checks paths in bundles.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

/// Path of the run tool, which is run instead of the image's entrypoint (rule 1).
pub const RUN: &str = "/cnab/app/run";
/// Path of the mounted bundle.json (rule 3).
pub const BUNDLE_PATH: &str = "/cnab/bundle.json";
/// Path of the mounted claim (rule 43).
pub const CLAIM_PATH: &str = "/cnab/claim.json";
/// Path of the mounted relocation map (rule 23).
pub const RELOCATION_PATH: &str = "/cnab/app/relocation-mapping.json";
/// Directory of outputs (rule 38).
pub const OUTPUTS: &str = "/cnab/app/outputs";

/// Paths at which no parameter or credential may be mounted (rule 28).
pub(crate) const RESERVED: [&str; 4] = [BUNDLE_PATH, CLAIM_PATH, RELOCATION_PATH, RUN];

/// Returns an absolute path. A relative path is relative to the root (rule 20).
pub(crate) fn rooted(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

/// Returns true if a path is absolute and canonical: without empty, `.` or `..` components and without a slash at the
/// end.
pub(crate) fn is_plain(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains(['\0', '\n']))
    })
}

pub(crate) fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}
