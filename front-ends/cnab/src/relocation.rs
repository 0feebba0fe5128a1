//! Parses relocation maps, which contain the new references of a bundle's copied images (CNAB 103.01, rule 23 of
//! `docs/guides/cnab-rules.md`).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::bundle::{BUNDLE_MAX, Bundle};
use crate::violation::{Violations, pointer};

/// Map from image references in the bundle to new references.
#[derive(Clone, Debug)]
pub struct Relocation {
    map: BTreeMap<String, String>,
    original: Vec<u8>,
}

impl Relocation {
    /// Parses a map for a bundle.
    ///
    /// # Errors
    /// Returns an error if the map is invalid, lacks a reference, or maps references of the same image to different
    /// references.
    pub fn parse(bytes: &[u8], bundle: &Bundle) -> Result<Self, Violations> {
        if bytes.len() > BUNDLE_MAX {
            let message = format!("the relocation map is {} bytes; the maximum is {BUNDLE_MAX}", bytes.len());
            return Err(Violations::one("", 23, message));
        }
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| Violations::one("", 23, format!("the relocation map is not valid JSON: {error}")))?;
        let Value::Object(object) = value else {
            return Err(Violations::one("", 23, "the relocation map is not a JSON object"));
        };
        let mut wrong = Violations::default();
        let mut map = BTreeMap::new();
        for (from, to) in object {
            match to {
                Value::String(to) if !to.is_empty() => drop(map.insert(from, to)),
                _ => wrong.add(pointer("", &from), 23, "is not an image reference"),
            }
        }
        for reference in bundle.image_references() {
            if !map.contains_key(reference) {
                wrong.add(
                    pointer("", reference),
                    23,
                    "is missing: a relocation map must have every image of its bundle",
                );
            }
        }
        let mut first: BTreeMap<String, (&str, &str)> = BTreeMap::new();
        for (from, to) in &map {
            match first.get(&whole(from)) {
                Some((other, there)) if whole(there) != whole(to) => {
                    wrong.add(
                        pointer("", from),
                        23,
                        format!("is the same image as {other:?}, but is mapped to a different image"),
                    );
                }
                Some(_) => {}
                None => drop(first.insert(whole(from), (from, to))),
            }
        }
        wrong.or(Self { map, original: bytes.to_vec() })
    }

    /// Returns the new reference of an image; `reference` itself if the map does not contain it.
    pub fn relocated<'a>(&'a self, reference: &'a str) -> &'a str {
        self.map.get(reference).map_or(reference, String::as_str)
    }

    /// Returns the original bytes, which are mounted.
    pub fn original(&self) -> &[u8] {
        &self.original
    }
}

/// Adds Docker's default registry and path to a reference: `ubuntu` becomes `docker.io/library/ubuntu`. Tags and
/// digests are unchanged: references with different tags or digests are different.
fn whole(reference: &str) -> String {
    match reference.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => {
            let host = if host == "index.docker.io" { "docker.io" } else { host };
            match rest {
                rest if host == "docker.io" && !rest.contains('/') => format!("docker.io/library/{rest}"),
                rest => format!("{host}/{rest}"),
            }
        }
        Some(_) => format!("docker.io/{reference}"),
        None => format!("docker.io/library/{reference}"),
    }
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn equivalent_references_become_equal() {
        let same = ["ubuntu:1", "library/ubuntu:1", "docker.io/ubuntu:1", "index.docker.io/library/ubuntu:1"];
        assert!(same.iter().all(|reference| whole(reference) == "docker.io/library/ubuntu:1"));
        assert_eq!(whole("localhost:5000/a"), "localhost:5000/a");
        assert_ne!(whole("ubuntu"), whole("ubuntu:latest"));
    }
}
