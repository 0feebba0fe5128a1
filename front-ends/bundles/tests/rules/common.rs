//! Provides a valid catalog that tests modify to break one rule at a time.

use std::path::Path;

use executor_bundles::catalog::{Catalog, LoadError, Objects, load};
use executor_bundles::fault::Faults;

/// A package with the bundles v1, v2 and v3, each of which replaces the previous bundle.
pub(crate) const GOOD: &str = r#"---
schema: olm.package
name: demo
defaultChannel: stable
---
schema: olm.channel
package: demo
name: stable
entries:
  - name: demo.v1
  - name: demo.v2
    replaces: demo.v1
  - name: demo.v3
    replaces: demo.v2
---
schema: olm.bundle
package: demo
name: demo.v1
image: quay.io/demo/bundle:v1
properties:
  - type: olm.package
    value: {packageName: demo, version: 1.0.0}
---
schema: olm.bundle
package: demo
name: demo.v2
image: quay.io/demo/bundle:v2
properties:
  - type: olm.package
    value: {packageName: demo, version: 2.0.0}
---
schema: olm.bundle
package: demo
name: demo.v3
image: quay.io/demo/bundle:v3
properties:
  - type: olm.package
    value: {packageName: demo, version: 3.0.0}
"#;

pub(crate) fn objects(text: &str) -> Result<Objects, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("catalog.yaml"), text).unwrap();
    load(dir.path(), true)
}

/// Reads and validates a catalog of one file.
pub(crate) fn evaluate(text: &str) -> Result<Catalog, Faults> {
    match objects(text) {
        Ok(objects) => Catalog::build(&objects),
        Err(LoadError::Faults(faults)) => Err(faults),
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn good(text: &str) -> Catalog {
    evaluate(text).unwrap_or_else(|faults| panic!("{faults}\n{text}"))
}

/// Asserts that a catalog is refused for this rule only.
#[track_caller]
pub(crate) fn breaks(rule: &str, text: &str) -> Faults {
    let faults = evaluate(text).expect_err("the catalog was accepted");
    assert!(faults.found.iter().all(|fault| fault.rule == rule), "{faults}");
    faults
}

/// Returns [`GOOD`] with `from` replaced with `to`; `from` must occur.
#[track_caller]
pub(crate) fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    GOOD.replacen(from, to, 1)
}

/// Returns [`GOOD`] with an additional document.
pub(crate) fn and(document: &str) -> String {
    format!("{GOOD}---\n{document}\n")
}

pub(crate) fn write(dir: &Path, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}
