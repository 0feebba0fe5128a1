//! Reads the items of an inline volume: rule C52.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tonic::Status;

use super::annotation::{Place, read_one};
use super::input::{RequestSecrets, SecretInput, Target, check_references};
use crate::config::{ConfigFile, ReferenceOrigin};
use crate::failure::{Violations, quoted};

/// Field name of the items in a pod's manifest.
const ITEMS: &str = "volumeAttributes.items";

/// Secrets of a volume, as files with paths relative to the volume.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct VolumeSecrets(Vec<SecretInput>);

impl VolumeSecrets {
    /// Reads the items, a YAML list, and adds their violations to `violations`.
    pub(crate) fn read(provider: &str, items: &str, violations: &mut Violations) -> Self {
        let inputs = read_one(ITEMS, items, Place::Volume(provider), violations);
        let files: BTreeSet<_> = inputs.iter().map(|input| input.target.name().1).collect();
        for (index, input) in inputs.iter().enumerate() {
            let path = input.target.name().1;
            if let Some(file) = parents(path).find(|parent| files.contains(parent)) {
                let why = format!("{} is below the file {}", quoted(path), quoted(file));
                violations.add(&format!("{ITEMS}[{index}].file"), why);
            }
        }
        Self(inputs)
    }

    /// Returns the provider to which all items of the volume refer; `None` without items.
    pub(crate) fn provider(&self) -> Option<&str> {
        self.0.first().map(|input| &*input.reference.provider)
    }

    /// Returns the paths of the files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|input| input.target.name().1)
    }

    /// Returns the paths of the files and of their directories. A directory precedes its entries.
    pub(crate) fn all_paths(&self) -> BTreeSet<&str> {
        self.paths().flat_map(|path| parents(path).chain([path])).collect()
    }

    /// Checks that the rules allow the references to pods of a service account.
    ///
    /// # Errors
    /// Returns PERMISSION_DENIED with each reference that no rule allows, or FAILED_PRECONDITION if the configuration
    /// file is invalid or cannot be read.
    pub(crate) fn check_rules(&self, file: &ConfigFile, namespace: &str, account: &str) -> Result<(), Status> {
        let references = self.0.iter().enumerate();
        let references = references.map(|(index, input)| (format!("{ITEMS}[{index}]"), &input.reference));
        check_references(file, ReferenceOrigin::ServiceAccount(account), namespace, references)
    }

    /// Adds the files of the volume to a request, for a mount of the volume: all files, or with `sub_path` only the
    /// file or the directory with this path in the volume.
    pub(crate) fn add_to(&self, request: &mut RequestSecrets, mount: usize, container_path: &str, sub_path: &str) {
        let container_path = container_path.trim_matches('/');
        for (index, input) in self.0.iter().enumerate() {
            let Target::File { path, mode, group } = &input.target else { continue };
            let Some(rest) = path.strip_prefix(sub_path) else { continue };
            let path = match rest.strip_prefix('/').unwrap_or(rest) {
                "" => format!("/{container_path}"),
                below if sub_path.is_empty() || rest.starts_with('/') => format!("/{container_path}/{below}"),
                _ => continue,
            };
            let target = Target::File { path, mode: *mode, group: group.clone() };
            let field = format!("config.mounts[{mount}].items[{index}]");
            request.add_file(mount, field, SecretInput { target, reference: input.reference.clone() });
        }
    }
}

/// Returns the parent directories of a relative path.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_client::v1::RunAction;
    use executor_cri_api::v1::{ContainerConfig, Mount};

    fn parsed(items: &str) -> Result<VolumeSecrets, String> {
        let mut violations = Violations::default();
        let secrets = VolumeSecrets::read("vault", items, &mut violations);
        violations.check().map(|()| secrets).map_err(|status| status.message().to_owned())
    }

    const ITEMS: &str = "- {file: db/user, path: kv/db, key: user}\n- {file: db/password, path: kv/db, key: password, mode: 0440}\n\
                         - {file: dbx, path: kv/x}\n";

    #[test]
    fn sub_paths_select_files() {
        let secrets = parsed(ITEMS).unwrap();
        assert_eq!(secrets.all_paths().into_iter().collect::<Vec<_>>(), ["db", "db/password", "db/user", "dbx"]);
        let mount = |path: &str| Mount { container_path: path.into(), ..Mount::default() };
        for (sub_path, expected) in [
            ("", vec!["/run/s/db/user", "/run/s/db/password", "/run/s/dbx"]),
            ("db", vec!["/run/s/user", "/run/s/password"]),
            ("db/user", vec!["/run/s"]),
            ("dbx", vec!["/run/s"]),
        ] {
            let mut request = RequestSecrets::default();
            secrets.add_to(&mut request, 0, "/run/s/", sub_path);
            let (mut action, mut violations) = (RunAction::default(), Violations::default());
            let config = ContainerConfig { mounts: vec![mount("/run/s"), mount("/other")], ..Default::default() };
            request.lower(&config, &mut action, &mut violations);
            violations.check().unwrap();
            let paths: Vec<_> = action.volume_mounted_files.iter().map(|file| &*file.path).collect();
            assert_eq!(paths, expected, "{sub_path}");
            let directories: &[&str] = if expected == ["/run/s"] { &[] } else { &["/run/s"] };
            assert_eq!(request.lower_directories(&config), directories, "{sub_path}");
            let config = ContainerConfig { mounts: vec![mount("/run/s"), mount("/run/s/x/")], ..config };
            assert!(request.lower_directories(&config).is_empty(), "another mount is in the directory");
            assert_eq!(action.volume_mounted_files[0].from.clone().unwrap().provider, "vault");
            assert!(request.replaces(0) && !request.replaces(1));
        }
    }

    #[test]
    fn items_of_the_guide_are_read() {
        let guide = include_str!("../../../../docs/guides/kubernetes-secrets.md");
        let (_, rest) = guide.split_once("          items: |\n").unwrap();
        let items: String =
            rest.lines().take_while(|line| line.starts_with("      ")).map(|line| format!("{line}\n")).collect();
        let secrets = parsed(&items).unwrap();
        assert_eq!(secrets.paths().collect::<Vec<_>>(), ["user", "password", "token"]);
    }

    #[test]
    fn bad_items_are_refused() {
        let long = format!("- {{file: {}, path: a}}", "a".repeat(256));
        for (items, expected) in [
            ("", "volumeAttributes.items: is empty"),
            ("- {file: /a, path: a}", "[0].file: \"/a\" is not relative"),
            ("- {file: a/../b, path: a}", "empty components"),
            ("- {file: ..data, path: a}", "begin with"),
            ("- {file: '', path: a}", "empty components"),
            ("- {file: \"a\\0b\", path: a}", "control character"),
            (&long, "is too long"),
            ("- {env: A, path: a}", "[0].env: a volume has only files"),
            ("- {file: a, path: a, provider: p}", "[0].provider: all items have"),
            ("- {file: a, path: /a}", "[0].path"),
            ("- {file: a, path: a}\n- {file: a, path: b}", "given twice"),
            ("- {file: a/b, path: a}\n- {file: a, path: b}", "[0].file: \"a/b\" is below the file \"a\""),
        ] {
            let error = parsed(items).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
