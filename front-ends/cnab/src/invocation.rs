//! Lowers an action: converts it to the input of a container run, independent of any runtime.
//!
//! Credentials, `writeOnly` parameters, and a mounted claim with such parameters are secret. All other values are
//! public.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use std::collections::BTreeMap;

use crate::action::Action;
use crate::bundle::{Bundle, Image, applies};
use crate::claim::{CLAIMS_VERSION, Claim};
use crate::definition::text;
use crate::parameters::Resolved;
use crate::paths::{BUNDLE_PATH, CLAIM_PATH, RELOCATION_PATH, RUN};
use crate::relocation::Relocation;
use crate::secret::Secret;
use crate::violation::{Violations, pointer};

/// Architecture and operating system of a machine, as in images (`amd64`, `linux`).
#[derive(Clone, Copy, Debug)]
pub struct Platform {
    pub architecture: &'static str,
    pub os: &'static str,
}

impl Platform {
    /// Returns the platform of this machine.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { architecture, os: std::env::consts::OS }
    }

    fn fits(self, image: &Image) -> bool {
        let is = |label: &str, own: &str| image.labels.get(label).is_none_or(|value| value == own);
        matches!(image.kind(), "oci" | "docker") && is("architecture", self.architecture) && is("os", self.os)
    }
}

/// Returns the image to run, which is the first image for the platform (rule 25).
///
/// # Errors
/// Returns a violation that lists the bundle's images if no image is for the platform.
pub fn choose(bundle: &Bundle, platform: Platform) -> Result<&Image, Violations> {
    bundle.invocation_images.iter().find(|image| platform.fits(image)).ok_or_else(|| {
        let has = |image: &Image| match image.labels.get("architecture") {
            Some(architecture) => format!("{} ({architecture})", image.kind()),
            None => image.kind().to_owned(),
        };
        let kinds: Vec<String> = bundle.invocation_images.iter().map(has).collect();
        let message = format!(
            "no invocation image can run on {}/{}: found {}; oci and docker are supported",
            platform.os,
            platform.architecture,
            kinds.join(", ")
        );
        Violations::one("/invocationImages", 25, message)
    })
}

/// Arguments of `lower`.
#[derive(Debug)]
pub struct Lowering<'a> {
    pub bundle: &'a Bundle,
    pub action: &'a Action,
    pub claim: &'a Claim,
    pub values: &'a Resolved,
    /// Supplied credentials by name.
    pub credentials: &'a BTreeMap<String, Secret>,
    /// Relocation map, if the bundle's images were copied to another registry.
    pub relocation: Option<&'a Relocation>,
    /// True if no file is created for a parameter without a value. If false, an empty file is created.
    pub omit_unset_files: bool,
    /// Platform to run on.
    pub platform: Platform,
}

/// Input of a container run.
#[derive(Debug)]
pub struct Invocation {
    /// Reference of the image, after relocation.
    pub image: String,
    /// Digest that the manifest must have (rule 27).
    pub content_digest: Option<String>,
    /// Path of the program to run.
    pub program: &'static str,
    /// Variables that are not secret.
    pub env: BTreeMap<String, String>,
    pub secret_env: BTreeMap<String, Secret>,
    /// Files that are not secret, by absolute path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Secret files, by absolute path.
    pub secret_files: BTreeMap<String, Secret>,
    /// Names of the expected outputs by path.
    pub outputs: BTreeMap<String, String>,
}

/// Lowers an action.
///
/// # Errors
/// Returns an error if no image is for the platform or a value cannot be passed in a variable.
pub fn lower(what: &Lowering<'_>) -> Result<Invocation, Violations> {
    let mut invocation = base(what, choose(what.bundle, what.platform)?);
    let mut wrong = Violations::default();
    deliver_credentials(what, &mut invocation, &mut wrong);
    deliver_parameters(what, &mut invocation, &mut wrong);
    wrong.or(invocation)
}

/// Returns an invocation that has only the runtime's own variables and files.
fn base(what: &Lowering<'_>, image: &Image) -> Invocation {
    let Lowering { bundle, action, claim, values, relocation, .. } = what;
    let mut invocation = Invocation {
        image: relocation.map_or(&*image.image, |relocation| relocation.relocated(&image.image)).to_owned(),
        content_digest: image.content_digest.clone(),
        program: RUN,
        env: environment(claim, bundle),
        secret_env: BTreeMap::new(),
        files: BTreeMap::from([(BUNDLE_PATH.to_owned(), bundle.original().to_vec())]),
        secret_files: BTreeMap::new(),
        outputs: outputs(bundle, action),
    };
    if let Some(relocation) = relocation {
        invocation.files.insert(RELOCATION_PATH.into(), relocation.original().to_vec());
    }
    let mounted = claim.mounted(values);
    if !values.secret.is_empty() {
        invocation.secret_files.insert(CLAIM_PATH.into(), mounted);
    } else {
        invocation.files.insert(CLAIM_PATH.into(), mounted.bytes().to_vec());
    }
    invocation
}

/// Adds the supplied credentials that apply to the action, as secrets.
fn deliver_credentials(what: &Lowering<'_>, invocation: &mut Invocation, wrong: &mut Violations) {
    for (name, credential) in &what.bundle.credentials {
        if !applies(&credential.apply_to, what.action.name()) {
            continue;
        }
        let Some(value) = what.credentials.get(name) else { continue };
        if let Some(env) = &credential.destination.env
            && variable(&pointer("/credentials", name), value.text(), wrong)
        {
            invocation.secret_env.insert(env.clone(), value.clone());
        }
        if let Some(path) = credential.destination.absolute_path() {
            invocation.secret_files.insert(path, value.clone());
        }
    }
}

/// Adds the parameters that apply to the action. A parameter of any type without a value is an empty string (rule 16).
fn deliver_parameters(what: &Lowering<'_>, invocation: &mut Invocation, wrong: &mut Violations) {
    for (name, parameter) in &what.bundle.parameters {
        if !applies(&parameter.apply_to, what.action.name()) {
            continue;
        }
        let value = what.values.values.get(name);
        let unset = value.is_none();
        let value = value.map(text).unwrap_or_default();
        let secret = what.values.secret.contains(name);
        if let Some(env) = &parameter.destination.env
            && variable(&pointer("/parameters", name), Some(&value), wrong)
        {
            if secret {
                invocation.secret_env.insert(env.clone(), value.clone().into());
            } else {
                invocation.env.insert(env.clone(), value.clone());
            }
        }
        if let Some(path) = parameter.destination.absolute_path().filter(|_| !(unset && what.omit_unset_files)) {
            if secret {
                invocation.secret_files.insert(path, value.into());
            } else {
                invocation.files.insert(path, value.into_bytes());
            }
        }
    }
}

/// Returns the runtime's own variables (rules 4, 7 and 43).
fn environment(claim: &Claim, bundle: &Bundle) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from(
        [
            ("CNAB_INSTALLATION_NAME", claim.installation.as_str()),
            ("CNAB_BUNDLE_NAME", &bundle.name),
            ("CNAB_ACTION", &claim.action),
            ("CNAB_CLAIMS_VERSION", CLAIMS_VERSION),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    if !claim.revision.is_empty() {
        env.insert("CNAB_REVISION".into(), claim.revision.clone());
    }
    env
}

/// Returns the names of the action's outputs by path.
pub fn outputs(bundle: &Bundle, action: &Action) -> BTreeMap<String, String> {
    let applicable = bundle.outputs.iter().filter(|(_, output)| applies(&output.apply_to, action.name()));
    applicable.map(|(name, output)| (output.path.clone(), name.clone())).collect()
}

fn variable(at: &str, value: Option<&str>, wrong: &mut Violations) -> bool {
    let fault = match value {
        None => "is not UTF-8",
        Some(text) if text.contains('\0') => "has a NUL",
        Some(_) => return true,
    };
    wrong.add(at, 17, format!("the value {fault} and cannot be passed in a variable; use a file"));
    false
}
