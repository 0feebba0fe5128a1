//! Files and variables by reference: checks the rules, and sets the fields of executord's request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use executor_client::v1::{self, EnvironmentVariable, File, ProviderToken, RunAction};
use executor_client::{Error, Violation};
use executor_core::reference::SecretReference;
use executor_core::text::printable;
use executor_cri_api::v1::{ContainerConfig, PodSandboxConfig};
use serde::{Deserialize, Serialize};
use tonic::Status;

use super::token::PodToken;
use crate::config::{ConfigFile, ReferenceOrigin};
use crate::failure::{self, SHOWN_MAX, Violations, quoted};

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ContainerSecrets {
    pub(super) annotation: String,
    pub(super) inputs: Vec<SecretInput>,
}

/// A file or a variable whose value executord fetches from a provider.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct SecretInput {
    pub(super) target: Target,
    pub(super) reference: SecretReference,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Target {
    File { path: String, mode: Option<u32>, group: Option<String> },
    Env(String),
}

impl Target {
    /// Returns the name and the value of the field for this target.
    pub(super) fn name(&self) -> (&'static str, &str) {
        match self {
            Self::File { path, .. } => ("file", path),
            Self::Env(name) => ("env", name),
        }
    }
}

/// Returns the field name of an annotation in messages.
pub(super) fn field(annotation: &str) -> String {
    format!("config.annotations[{}]", printable(annotation, SHOWN_MAX))
}

/// Checks that the rules allow the references of annotations. The rules are not read if there is no reference.
///
/// # Errors
/// Returns PERMISSION_DENIED with each reference that no rule allows, or FAILED_PRECONDITION if the configuration file
/// is invalid or cannot be read.
pub(crate) fn check_rules<'a>(
    file: &ConfigFile,
    sandbox: &PodSandboxConfig,
    secrets: impl IntoIterator<Item = &'a ContainerSecrets>,
) -> Result<(), Status> {
    let namespace = sandbox.metadata.as_ref().map(|metadata| &*metadata.namespace).unwrap_or_default();
    let references = secrets.into_iter().flat_map(|ContainerSecrets { annotation, inputs }| {
        let field = field(annotation);
        inputs.iter().enumerate().map(move |(index, input)| (format!("{field}[{index}]"), &input.reference))
    });
    check_references(file, ReferenceOrigin::Annotation, namespace, references)
}

/// Checks that the rules allow references. Each reference is paired with the name of its field.
pub(super) fn check_references<'a>(
    file: &ConfigFile,
    origin: ReferenceOrigin<'_>,
    namespace: &str,
    references: impl Iterator<Item = (String, &'a SecretReference)>,
) -> Result<(), Status> {
    let mut references = references.peekable();
    if references.peek().is_none() {
        return Ok(());
    }
    let config = file.read().map_err(|why| Status::failed_precondition(failure::shortened(why)))?;
    let (pods, rule) = match origin {
        ReferenceOrigin::Annotation => ("pods".to_owned(), "no rule of cri.secrets covers the path"),
        ReferenceOrigin::ServiceAccount(account) => (
            format!("pods with service account {}", quoted(account)),
            "no rule of cri.secrets with service_accounts covers the path; ask the node's operator for one",
        ),
    };
    let mut violations = Violations::default();
    for (field, SecretReference { provider, path, .. }) in references {
        if !config.allows(origin, namespace, provider, path) {
            let namespace = quoted(namespace);
            let why = format!("{pods} of namespace {namespace} may not use {path:?} of provider {provider:?}: {rule}");
            violations.add(&field, why);
        }
    }
    violations.check().map_err(|status| Status::permission_denied(status.message()))
}

/// Secrets of a request to executord, each with its field in the kubelet's request, and tokens for their providers.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestSecrets {
    all: Vec<RequestSecret>,
    /// Volumes whose secrets are in the request, by id, each with the token of its provider if there is one.
    volumes: BTreeMap<String, Option<PodToken>>,
}

#[derive(Clone, Debug)]
struct RequestSecret {
    field: String,
    /// Index of the mount in the kubelet's request; `None` for an annotation.
    mount: Option<usize>,
    input: SecretInput,
}

impl From<&ContainerSecrets> for RequestSecrets {
    fn from(ContainerSecrets { annotation, inputs }: &ContainerSecrets) -> Self {
        let name = field(annotation);
        let inputs = inputs.iter().cloned().enumerate();
        let all = inputs.map(|(index, input)| RequestSecret { field: format!("{name}[{index}]"), mount: None, input });
        Self { all: all.collect(), ..Self::default() }
    }
}

impl RequestSecrets {
    /// Adds a secret file of a volume. The files of a volume replace the mount.
    pub(super) fn add_file(&mut self, mount: usize, field: String, input: SecretInput) {
        self.all.push(RequestSecret { field, mount: Some(mount), input });
    }

    /// Adds a volume, with the token for its provider if there is one.
    pub(crate) fn add_volume(&mut self, volume: &str, token: Option<PodToken>) {
        self.volumes.insert(volume.to_owned(), token);
    }

    /// Returns the ids of the volumes whose secrets are in the request.
    pub(crate) fn volumes(&self) -> Vec<String> {
        self.volumes.keys().cloned().collect()
    }

    /// Returns the tokens for the request, one per provider.
    pub(crate) fn lower_tokens(&self, violations: &mut Violations) -> Vec<ProviderToken> {
        let mut by_provider: BTreeMap<&str, &PodToken> = BTreeMap::new();
        for token in self.volumes.values().flatten() {
            let earlier = by_provider.insert(&token.provider, token);
            if let Some(earlier) = earlier.filter(|earlier| earlier.role != token.role) {
                let [provider, one, other] = [&token.provider, &earlier.role, &token.role].map(|text| quoted(text));
                let why =
                    format!("mounts volumes of provider {provider} with the roles {one} and {other}; use one role");
                violations.add("config.mounts", why);
            }
        }
        by_provider.into_values().map(PodToken::lowered).collect()
    }

    /// Returns the mount points of volumes that contain only secret files. executord mounts each as a whole, so that the
    /// files change in one step. A volume of which `subPath` selects one file has no directory.
    pub(crate) fn lower_directories(&self, config: &ContainerConfig) -> Vec<String> {
        let mounts = mount_points(config);
        let is_below = |path: &str, directory: &str| path != directory && Path::new(path).starts_with(directory);
        let with_files: BTreeSet<&String> = self
            .all
            .iter()
            .filter_map(|secret| Some((mounts.get(secret.mount?)?, secret.input.target.name().1)))
            .filter(|(directory, path)| is_below(path, directory))
            .map(|(directory, _)| directory)
            .collect();
        let contains_mount = |directory: &str| mounts.iter().any(|mount| is_below(mount, directory));
        with_files.into_iter().filter(|directory| !contains_mount(directory)).cloned().collect()
    }

    /// Returns true if secret files replace a mount.
    pub(crate) fn replaces(&self, mount: usize) -> bool {
        self.all.iter().any(|secret| secret.mount == Some(mount))
    }

    /// Adds the files and variables to an action of a container.
    pub(crate) fn lower(&self, config: &ContainerConfig, action: &mut RunAction, violations: &mut Violations) {
        self.check_conflicts(config, violations);
        for RequestSecret { input: SecretInput { target, reference }, .. } in &self.all {
            let SecretReference { provider, path, key, version } = reference.clone();
            let from = Some(v1::SecretReference { provider, path, key, version });
            match target.clone() {
                Target::File { path, mode, group } => {
                    action.volume_mounted_files.push(File { path, mode, group, from, ..File::default() });
                }
                Target::Env(name) => {
                    action.secret_environment.push(EnvironmentVariable {
                        name,
                        from,
                        ..EnvironmentVariable::default()
                    });
                }
            }
        }
    }

    /// Checks that no file overlaps a mount other than its own, and that no variable is set twice.
    fn check_conflicts(&self, config: &ContainerConfig, violations: &mut Violations) {
        let mounts = mount_points(config);
        for RequestSecret { field, mount: own, input } in &self.all {
            let (kind, target) = input.target.name();
            let field = format!("{field}.{kind}");
            if kind == "env" {
                if let Some(variable) = config.envs.iter().position(|variable| variable.key == *target) {
                    violations.add(&field, format!("{target:?} is also the name of config.envs[{variable}]"));
                }
                continue;
            }
            let path = Path::new(target);
            let is_conflict = |(at, mount): (usize, &String)| {
                *own != Some(at) && (path.starts_with(mount) || Path::new(mount).starts_with(path))
            };
            if let Some(at) = mounts.iter().enumerate().position(is_conflict) {
                let mount = &mounts[at];
                violations.add(
                    &field,
                    format!(
                        "{target:?} conflicts with config.mounts[{at}] at {mount:?}; use a path outside of volumes"
                    ),
                );
            }
        }
    }

    /// Replaces the field names of executord's request in an error with the field names of the kubelet's request.
    pub(crate) fn named(&self, error: Error) -> Error {
        match error {
            Error::Refused(mut refusal) => {
                refusal.violations.iter_mut().for_each(|violation| self.name(violation));
                Error::Refused(refusal)
            }
            other => other,
        }
    }

    fn name(&self, violation: &mut Violation) {
        if violation.field.starts_with("provider_tokens[") {
            violation.field = "cri.csi.tokens".into();
        }
        for (list, kind, own) in
            [("action.run.volume_mounted_files[", "file", ".path"), ("action.run.secret_environment[", "env", ".name")]
        {
            let rest = violation.field.strip_prefix(list).and_then(|rest| rest.split_once(']'));
            let Some((number, rest)) = rest else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            let mut of_kind = self.all.iter().filter(|secret| secret.input.target.name().0 == kind);
            let Some(RequestSecret { field, .. }) = of_kind.nth(number) else { continue };
            let rest = match rest {
                rest if rest == own => format!(".{kind}"),
                rest => rest.strip_prefix(".from").unwrap_or(rest).to_owned(),
            };
            violation.field = format!("{field}{rest}");
            return;
        }
    }
}

/// Returns the container path of each mount, as an absolute path.
fn mount_points(config: &ContainerConfig) -> Vec<String> {
    config.mounts.iter().map(|mount| format!("/{}", mount.container_path.trim_matches('/'))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::annotation::read;
    use super::*;
    use executor_cri_api::v1::{KeyValue, Mount, PodSandboxMetadata};

    const PREFIX: &str = "secrets.executor.v1";

    fn annotations(text: &str) -> BTreeMap<String, String> {
        [(format!("{PREFIX}/app"), text.to_owned()), ("other/app".to_owned(), "[".to_owned())].into()
    }

    fn parsed(text: &str) -> Result<ContainerSecrets, String> {
        let all = read(PREFIX, &annotations(text)).map_err(|status| status.message().to_owned())?;
        Ok(all["app"].clone())
    }

    fn lowered(text: &str, config: &ContainerConfig) -> Result<RunAction, String> {
        let (mut action, mut violations) = (RunAction::default(), Violations::default());
        RequestSecrets::from(&parsed(text)?).lower(config, &mut action, &mut violations);
        violations.check().map(|()| action).map_err(|status| status.message().to_owned())
    }

    /// Rule C51: entries become secret files and variables with all of their fields.
    #[test]
    fn entries_become_files_and_variables() {
        let text = "- {file: /run/db/password, provider: vault, path: kv/db, key: password, version: 3, mode: 0640, group: 1000}\n\
                    - file: /run/db/user\n  provider: shelf\n  path: db/user\n  group: staff\n\
                    - {env: TOKEN, provider: shelf, path: token}\n";
        let action = lowered(text, &ContainerConfig::default()).unwrap();
        let [password, user] = &action.volume_mounted_files[..] else { panic!("{action:?}") };
        assert_eq!(
            (&*password.path, password.mode, password.group.as_deref()),
            ("/run/db/password", Some(0o640), Some("1000"))
        );
        let from = password.from.clone().unwrap();
        assert_eq!([&*from.provider, &from.path, &from.key, &from.version], ["vault", "kv/db", "password", "3"]);
        assert_eq!((user.mode, user.group.as_deref()), (None, Some("staff")));
        assert_eq!(action.secret_environment[0].name, "TOKEN");
        assert!(action.secret_environment[0].from.is_some() && action.env.is_empty());
        let json = r#"[{"file": "/a", "provider": "p", "path": "b"}]"#;
        assert_eq!(lowered(json, &ContainerConfig::default()).unwrap().volume_mounted_files.len(), 1);
    }

    #[test]
    fn example_of_the_guide_is_read() {
        let guide = include_str!("../../../../docs/guides/kubernetes-secrets.md");
        let (_, rest) = guide.split_once("secrets.executor.v1/app: |\n").unwrap();
        let text: String =
            rest.lines().take_while(|line| line.starts_with("      - ")).map(|line| format!("{line}\n")).collect();
        let action = lowered(&text, &ContainerConfig::default()).unwrap();
        assert_eq!((action.volume_mounted_files.len(), action.secret_environment.len()), (2, 1));
    }

    /// Rule C51: a file that overlaps a mount is refused, and the message has both paths.
    #[test]
    fn conflicts_name_both_sides() {
        let mount = |path: &str| Mount { container_path: path.into(), ..Mount::default() };
        let config = ContainerConfig {
            mounts: vec![mount("/data/"), mount("/etc/hosts"), mount("/a/b/c")],
            envs: vec![KeyValue { key: "A".into(), value: b"hunter2".to_vec() }],
            ..ContainerConfig::default()
        };
        let text = "- {file: /data/x, provider: p, path: a}\n- {file: /etc/hosts, provider: p, path: a}\n\
                    - {file: /a/b, provider: p, path: a}\n- {file: /database, provider: p, path: a}\n\
                    - {env: A, provider: p, path: a}\n- {env: B, provider: p, path: a}\n";
        let error = lowered(text, &config).unwrap_err();
        for part in [
            "[0].file: \"/data/x\" conflicts with config.mounts[0] at \"/data\"",
            "[1].file: \"/etc/hosts\" conflicts with config.mounts[1]",
            "[2].file: \"/a/b\" conflicts with config.mounts[2] at \"/a/b/c\"",
            "[4].env: \"A\" is also the name of config.envs[0]",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(error.matches("config.annotations").count(), 4, "{error}");
        assert!(!error.contains("hunter2"));
    }

    /// Rule C55: references without a rule are denied, and the error names the configuration key.
    #[test]
    fn references_without_rules_are_denied() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cri.toml");
        let file = ConfigFile::new(Some(&path));
        let metadata = PodSandboxMetadata { namespace: "shop".into(), ..PodSandboxMetadata::default() };
        let sandbox = PodSandboxConfig { metadata: Some(metadata), ..PodSandboxConfig::default() };
        let secrets = parsed("- {file: /a, provider: p, path: a/b}\n- {file: /b, provider: p, path: c}").unwrap();
        let code = |secrets: &ContainerSecrets| check_rules(&file, &sandbox, [secrets]).map_err(|status| status.code());
        assert_eq!(code(&ContainerSecrets::default()), Ok(()), "the file is not needed");
        assert_eq!(code(&secrets), Err(tonic::Code::FailedPrecondition));
        std::fs::write(&path, "").unwrap();
        let denied = check_rules(&file, &sandbox, [&secrets]).unwrap_err();
        assert_eq!(denied.code(), tonic::Code::PermissionDenied);
        for part in ["[0]: pods of namespace \"shop\" may not use \"a/b\" of provider \"p\"", "[1]: ", "cri.secrets"] {
            assert!(denied.message().contains(part), "{part}: {denied}");
        }
        let rule = |paths: &str| {
            let rule = format!(
                "[[cri.secrets]]\nannotations = true\nnamespaces = [\"shop\"]\nprovider = \"p\"\npaths = [{paths}]\n"
            );
            std::fs::write(&path, rule).unwrap();
        };
        rule("\"a/\"");
        let denied = check_rules(&file, &sandbox, [&secrets]).unwrap_err();
        assert!(denied.message().contains("[1]: ") && !denied.message().contains("[0]: "), "{denied}");
        rule("\"a/\", \"c\"");
        assert_eq!(code(&secrets), Ok(()));
    }

    /// Rule C6: an error of executord names the field of the annotation.
    #[test]
    fn errors_name_the_annotation() {
        let secrets = parsed("- {env: A, provider: p, path: a}\n- {file: /a, provider: p, path: a}").unwrap();
        for (field, expected) in [
            ("action.run.volume_mounted_files[0].from", "config.annotations[secrets.executor.v1/app][1]"),
            ("action.run.volume_mounted_files[0].from.path", "config.annotations[secrets.executor.v1/app][1].path"),
            ("action.run.volume_mounted_files[0].path", "config.annotations[secrets.executor.v1/app][1].file"),
            ("action.run.secret_environment[0].name", "config.annotations[secrets.executor.v1/app][0].env"),
            ("action.run.volume_mounted_files[7].from", "action.run.volume_mounted_files[7].from"),
            ("volumes[0].path", "volumes[0].path"),
        ] {
            let error = RequestSecrets::from(&secrets).named(failure::refused(
                executor_client::Code::NotFound,
                field,
                "NOT_FOUND",
            ));
            assert_eq!(error.violations()[0].field, expected);
        }
    }
}
