//! Reads plain+v0 bundles, which consist of Kubernetes objects in `manifests/`.

use super::{Bundle, Format, MANIFESTS, object};
use crate::fault::Faults;
use crate::source::Files;

pub(super) fn read(files: &Files) -> Result<Bundle, Faults> {
    let mut faults = Faults::default();
    if !files.has_directory(MANIFESTS) {
        let what =
            if files.files.contains_key(MANIFESTS) { "is a file; it must be a directory" } else { "does not exist" };
        faults.add(MANIFESTS, "P1", what);
        return Err(faults);
    }
    let mut objects = Vec::new();
    for (name, content) in files.below(MANIFESTS) {
        let path = format!("{MANIFESTS}/{name}");
        if name.contains('/') {
            faults.add(path, "P2", "is in a subdirectory of manifests/, which is not allowed");
            continue;
        }
        for object in object::read(&path, content, false, "P3", &mut faults) {
            object::flatten(object, &mut objects, &mut faults);
        }
    }
    for directory in files.empty_directories(MANIFESTS) {
        faults.add(directory, "P2", "is a subdirectory of manifests/, which is not allowed");
    }
    if objects.is_empty() && faults.is_empty() {
        faults.add(MANIFESTS, "P3", "has no object");
    }
    for object in &objects {
        if object.name.is_empty() {
            faults.add(object.place(), "P3", format!("{} has no metadata.name", object.kind));
        }
    }
    faults.or(Bundle {
        format: Format::PlainV0,
        name: None,
        version: None,
        package: None,
        channels: Vec::new(),
        default_channel: None,
        dependencies: Vec::new(),
        csv: None,
        objects,
        warnings: Vec::new(),
    })
}
