//! Configuration file: the users of pods (rule C56), the plugin for volumes of secrets (rule C52), and the secrets that
//! annotations and volumes may refer to (rule C55).
//!
//! The rules are read again for each request that needs them, so a change needs no restart. Without a rule no reference
//! is allowed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use executor_core::reference::{PROVIDER_TOKENS_MAX, check_provider_name, check_reference_path, covers};
use executor_core::validate::is_host_label;
use serde::Deserialize;

/// Default path of the configuration file, which may be missing.
const DEFAULT: &str = "/etc/executor/executor-cri.toml";
/// Default prefix of annotations with references to secrets.
const ANNOTATION: &str = "secrets.executor.v1";
/// Maximum length of an annotation's prefix in bytes: Kubernetes' limit.
const ANNOTATION_MAX: usize = 253;
/// Default name of the CSI plugin and of the CSIDriver.
const DRIVER: &str = "secrets.executor.v1";
/// Maximum length of a CSI plugin's name, in bytes.
const DRIVER_MAX: usize = 63;
/// Maximum length of an audience, in bytes.
const AUDIENCE_MAX: usize = 1024;
/// Default directory of a kubelet.
const KUBELET: &str = "/var/lib/kubelet";
/// Maximum size of the file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Maximum number of rules, and of entries per list of a rule.
const LIST_MAX: usize = 1000;
/// Entry of a rule that matches all namespaces or all service accounts.
const ALL: &str = "*";

/// Selects the pods that have their own user namespace (rule C56).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UserNamespaces {
    /// Pods with `hostUsers: false`.
    #[default]
    Requested,
    /// All pods, except privileged pods, pods in a namespace of the host, and pods with the RuntimeClass handler
    /// `executor-host`.
    All,
}

/// The table `[cri]`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Pods that have their own user namespace.
    pub(crate) user_namespaces: UserNamespaces,
    /// Prefix of the annotations with references to secrets, before the `/` and the container's name.
    pub(crate) secrets_annotation: String,
    /// Rules for references to secrets.
    pub(crate) secrets: Vec<Rule>,
    /// Plugin for volumes of secrets; off if unset.
    pub(crate) csi: Option<Csi>,
}

/// The table `[cri.csi]`: a plugin of a kubelet for inline volumes (rule C52).
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Csi {
    /// Name of the plugin, as in the volumes of pods and in the CSIDriver.
    pub(crate) driver: String,
    pub(crate) kubelet_directory: PathBuf,
    /// Providers to which executord logs in with the pod's token, each with the token's audience: an entry of
    /// `tokenRequests` in the CSIDriver.
    pub(crate) tokens: BTreeMap<String, String>,
}

impl Default for Csi {
    fn default() -> Self {
        Self { driver: DRIVER.into(), kubelet_directory: KUBELET.into(), tokens: BTreeMap::new() }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            user_namespaces: UserNamespaces::default(),
            secrets_annotation: ANNOTATION.into(),
            secrets: Vec::new(),
            csi: None,
        }
    }
}

/// Allows pods of some namespaces to refer to some secrets of a provider.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Rule {
    /// True if the rule is for annotations. Otherwise the rule is for the volumes of `service_accounts`.
    annotations: bool,
    /// Service accounts of the pods whose volumes may refer to the paths; [`ALL`] for all.
    service_accounts: Vec<String>,
    /// Namespaces of the pods; [`ALL`] for all.
    namespaces: Vec<String>,
    provider: String,
    /// Paths at the provider. A path includes all paths below; `/` includes every path.
    paths: Vec<String>,
}

/// Origin of a reference to a secret. Only rules for this origin can allow the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceOrigin<'a> {
    /// An annotation, which any user who creates pods can write.
    Annotation,
    /// An inline volume of a pod with this service account.
    ServiceAccount(&'a str),
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Document {
    cri: Config,
}

#[derive(Clone, Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    /// True if the command line names the file. Such a file must exist.
    is_required: bool,
}

impl ConfigFile {
    pub(crate) fn new(path: Option<&Path>) -> Self {
        Self { path: path.unwrap_or(Path::new(DEFAULT)).to_owned(), is_required: path.is_some() }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not TOML, or has an unknown key or an invalid value. The error
    /// names every invalid value.
    pub(crate) fn read(&self) -> Result<Config, String> {
        let shown = self.path.display();
        let mut text = String::new();
        match fs::File::open(&self.path).and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text)) {
            Ok(bytes) if bytes as u64 > FILE_MAX => {
                return Err(format!("{shown} is larger than the maximum of {FILE_MAX} bytes"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound && !self.is_required => {}
            Err(error) => return Err(format!("cannot read {shown}: {error}")),
        }
        parse(&text).map_err(|why| format!("{shown}: {why}"))
    }
}

fn parse(text: &str) -> Result<Config, String> {
    let Document { cri } = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count()) + 1;
        format!("line {line}: {}", error.message())
    })?;
    let faults = cri.faults();
    if faults.is_empty() { Ok(cri) } else { Err(faults.join("; ")) }
}

impl Config {
    /// Returns true if a rule allows pods in `namespace` to refer to `path` at `provider` from `origin`.
    pub(crate) fn allows(&self, origin: ReferenceOrigin<'_>, namespace: &str, provider: &str, path: &str) -> bool {
        self.secrets.iter().any(|rule| {
            rule.is_for(origin)
                && rule.provider == provider
                && rule.namespaces.iter().any(|one| one == ALL || one == namespace)
                && rule.paths.iter().any(|one| covers(one, path))
        })
    }

    /// Returns the names of the providers that rules or `tokens` name.
    pub(crate) fn providers(&self) -> impl Iterator<Item = &str> {
        let of_tokens = self.csi.iter().flat_map(|csi| csi.tokens.keys());
        self.secrets.iter().map(|rule| &rule.provider).chain(of_tokens).map(|provider| &**provider)
    }

    /// Returns every invalid value with its key and the reason.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !is_subdomain(&self.secrets_annotation) {
            faults.push(format!(
                "cri.secrets_annotation = {:?}: must be a DNS name in lower case, of at most {ANNOTATION_MAX} bytes",
                self.secrets_annotation
            ));
        }
        if let Some(Csi { driver, kubelet_directory, tokens }) = &self.csi {
            if !is_subdomain(driver) || driver.len() > DRIVER_MAX {
                let why = format!("must be a DNS name in lower case, of at most {DRIVER_MAX} bytes");
                faults.push(format!("cri.csi.driver = {driver:?}: {why}"));
            }
            if !is_plain(kubelet_directory) {
                let why = "must be an absolute path without \".\" and \"..\"";
                faults.push(format!("cri.csi.kubelet_directory = {kubelet_directory:?}: {why}"));
            }
            if tokens.len() > PROVIDER_TOKENS_MAX {
                let count = tokens.len();
                faults.push(format!("cri.csi.tokens: has {count} entries; at most {PROVIDER_TOKENS_MAX} are allowed"));
            }
            for (provider, audience) in tokens {
                if let Err(fault) = check_provider_name(provider) {
                    faults.push(format!("cri.csi.tokens.{provider:?}: {fault}"));
                }
                if audience.len() > AUDIENCE_MAX || audience.chars().any(char::is_control) {
                    let why =
                        format!("must be an audience of at most {AUDIENCE_MAX} bytes, without control characters");
                    faults.push(format!("cri.csi.tokens.{provider} = {audience:?}: {why}"));
                }
            }
        }
        if self.secrets.len() > LIST_MAX {
            faults.push(format!("cri.secrets: has {} rules; at most {LIST_MAX} are allowed", self.secrets.len()));
        }
        for (index, rule) in self.secrets.iter().enumerate() {
            faults.extend(rule.faults().into_iter().map(|fault| format!("cri.secrets[{index}].{fault}")));
            if rule.annotations && self.csi.as_ref().is_some_and(|csi| csi.tokens.contains_key(&rule.provider)) {
                let why = "is in cri.csi.tokens, and annotations carry no token; use service_accounts";
                faults.push(format!("cri.secrets[{index}].provider = {:?}: {why}", rule.provider));
            }
        }
        faults
    }
}

impl Rule {
    fn is_for(&self, origin: ReferenceOrigin<'_>) -> bool {
        match origin {
            ReferenceOrigin::Annotation => self.annotations,
            ReferenceOrigin::ServiceAccount(account) => {
                self.service_accounts.iter().any(|one| one == ALL || one == account)
            }
        }
    }

    fn faults(&self) -> Vec<String> {
        let Self { annotations, service_accounts, namespaces, provider, paths } = self;
        let mut faults = Vec::new();
        if *annotations != service_accounts.is_empty() {
            let why = match *annotations {
                true => "must be false if service_accounts is set",
                false => "must be true if service_accounts is empty",
            };
            faults.push(format!("annotations: {why}"));
        }
        if service_accounts.len() > LIST_MAX {
            faults.push(format!(
                "service_accounts: has {} entries; at most {LIST_MAX} are allowed",
                service_accounts.len()
            ));
        }
        for (index, account) in
            service_accounts.iter().enumerate().filter(|(_, name)| *name != ALL && !is_subdomain(name))
        {
            let why = format!("must be the name of a service account, or {ALL:?}");
            faults.push(format!("service_accounts[{index}] = {account:?}: {why}"));
        }
        if let Err(fault) = check_provider_name(provider) {
            faults.push(format!("provider = {provider:?}: {fault}"));
        }
        for (key, list) in [("namespaces", namespaces), ("paths", paths)] {
            if list.is_empty() || list.len() > LIST_MAX {
                faults.push(format!("{key}: has {} entries; 1 to {LIST_MAX} are allowed", list.len()));
            }
        }
        for (index, namespace) in namespaces.iter().enumerate().filter(|(_, name)| *name != ALL && !is_label(name)) {
            faults.push(format!("namespaces[{index}] = {namespace:?}: must be the name of a namespace, or {ALL:?}"));
        }
        for (index, path) in paths.iter().enumerate().filter(|(_, path)| *path != "/") {
            if let Err(fault) = check_reference_path(path.strip_suffix('/').unwrap_or(path)) {
                faults.push(format!("paths[{index}] = {path:?}: {fault}"));
            }
        }
        faults
    }
}

/// Returns true if a name is valid for a namespace or a container: an RFC 1123 label in lower case.
pub(crate) fn is_label(name: &str) -> bool {
    is_host_label(name) && !name.contains(|c: char| c.is_ascii_uppercase())
}

/// Returns true if a path is absolute and has no empty, `.` or `..` component.
pub(crate) fn is_plain(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    let names = text.strip_prefix('/').map(|rest| rest.split('/'));
    names.is_some_and(|mut names| names.all(|name| !matches!(name, "" | "." | "..")))
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= ANNOTATION_MAX && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::ReferenceOrigin::{Annotation, ServiceAccount};
    use super::*;

    const RULE: &str =
        "[[cri.secrets]]\nannotations = true\nnamespaces = [\"shop\"]\nprovider = \"vault\"\npaths = [\"kv/shop/\"]\n";

    /// Rule C55: without a rule nothing is allowed, and each rule has its own namespaces, provider and paths.
    #[test]
    fn rules_allow_their_own_paths() {
        let config = parse(RULE).unwrap();
        for (namespace, provider, path, expected) in [
            ("shop", "vault", "kv/shop/db", true),
            ("shop", "vault", "kv/shopping", false),
            ("shop", "vault", "kv/other", false),
            ("shop", "other", "kv/shop/db", false),
            ("shops", "vault", "kv/shop/db", false),
            ("", "vault", "kv/shop/db", false),
        ] {
            let allowed = config.allows(Annotation, namespace, provider, path);
            assert_eq!(allowed, expected, "{namespace} {provider} {path}");
        }
        assert!(!parse("").unwrap().allows(Annotation, "shop", "vault", "kv/shop/db"));
        let all = parse(&RULE.replace("\"shop\"", "\"*\"").replace("kv/shop/", "/")).unwrap();
        assert!(all.allows(Annotation, "any", "vault", "x") && !all.allows(Annotation, "any", "other", "x"));
        assert_eq!(parse("").unwrap().secrets_annotation, ANNOTATION);
    }

    /// Rule C55: a rule is for annotations or for service accounts, never for both.
    #[test]
    fn service_accounts_have_their_own_rules() {
        let annotations = parse(RULE).unwrap();
        let accounts = |list: &str| parse(&RULE.replace("annotations = true", &format!("service_accounts = [{list}]")));
        let allows = |config: &Config, origin| config.allows(origin, "shop", "vault", "kv/shop/db");
        assert!(allows(&annotations, Annotation) && !allows(&annotations, ServiceAccount("app")));
        let one = accounts("\"app\"").unwrap();
        assert!(!allows(&one, Annotation) && allows(&one, ServiceAccount("app")));
        assert!(!allows(&one, ServiceAccount("apps")) && !allows(&one, ServiceAccount("")));
        assert!(allows(&accounts("\"*\"").unwrap(), ServiceAccount("any")));
        assert!(accounts("").unwrap_err().contains("annotations: must be true"));
        assert!(accounts("\"A\"").unwrap_err().contains("service_accounts[0] = \"A\""));
        let both = RULE.replace("annotations = true", "annotations = true\nservice_accounts = [\"app\"]");
        assert!(parse(&both).unwrap_err().contains("annotations: must be false"));
    }

    /// Rule C52: the plugin is off without its table.
    #[test]
    fn plugin_has_a_table() {
        assert_eq!(parse(RULE).unwrap().csi, None);
        assert_eq!(parse("[cri.csi]").unwrap().csi, Some(Csi::default()));
        let tokens = "[cri.csi.tokens]\nvault = \"bao\"\n";
        assert_eq!(parse(tokens).unwrap().providers().collect::<Vec<_>>(), ["vault"]);
        let both = parse(&format!("{RULE}{tokens}")).unwrap_err();
        assert!(both.contains("annotations carry no token"), "{both}");
        let bad = parse("[cri.csi.tokens]\nVault = \"a\\nb\"").unwrap_err();
        assert!(bad.contains("cri.csi.tokens.\"Vault\"") && bad.contains("must be an audience"), "{bad}");
        let error = parse("[cri.csi]\ndriver = \"a/b\"\nkubelet_directory = \"/var/../lib\"").unwrap_err();
        assert!(error.contains("cri.csi.driver") && error.contains("cri.csi.kubelet_directory"), "{error}");
    }

    #[test]
    fn every_invalid_value_is_named() {
        let bad = "[cri]\nsecrets_annotation = \"A/b\"\n[[cri.secrets]]\nnamespaces = [\"Shop\"]\nprovider = \"V\"\n\
                   paths = [\"/a\", \"a/../b\"]\n[[cri.secrets]]\nannotations = true\nprovider = \"p\"\n";
        let error = parse(bad).unwrap_err();
        for key in [
            "cri.secrets_annotation",
            "cri.secrets[0].annotations",
            "cri.secrets[0].provider",
            "cri.secrets[0].namespaces[0]",
            "cri.secrets[0].paths[0]",
            "cri.secrets[0].paths[1]",
            "cri.secrets[1].namespaces",
            "cri.secrets[1].paths",
        ] {
            assert!(error.contains(key), "{key}: {error}");
        }
        for text in [
            "x = 1",
            "[cri]\nx = 1",
            "[[cri.secrets]]\nservice_accounts = []",
            "[cri]\nuser_namespaces = \"some\"",
            "[",
            "[[secrets]]",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_named_files_must_exist() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cri.toml");
        assert!(ConfigFile::new(Some(&path)).read().unwrap_err().contains("cri.toml"));
        assert_eq!(ConfigFile { path: path.clone(), is_required: false }.read().unwrap(), Config::default());
        fs::write(&path, RULE).unwrap();
        assert_eq!(ConfigFile::new(Some(&path)).read().unwrap().secrets.len(), 1);
        fs::write(&path, " ".repeat(FILE_MAX as usize + 1)).unwrap();
        assert!(ConfigFile::new(Some(&path)).read().unwrap_err().contains("is larger than"));
    }
}
