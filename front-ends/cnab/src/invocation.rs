//! An action, lowered: what a container is run with, in words that are nobody's.
//!
//! Secret are credentials, parameters that are `writeOnly`, and a claim that has such values. All the rest is what anybody
//! may see who may see the bundle.

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

/// A machine, in the words of images: `amd64`, `linux`.
#[derive(Clone, Copy, Debug)]
pub struct Platform {
    /// `architecture`.
    pub architecture: &'static str,
    /// `os`.
    pub os: &'static str,
}

impl Platform {
    /// This one.
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { architecture, os: std::env::consts::OS }
    }

    fn fits(self, image: &Image) -> bool {
        let is = |label: &str, ours: &str| image.labels.get(label).is_none_or(|value| value == ours);
        matches!(image.kind(), "oci" | "docker") && is("architecture", self.architecture) && is("os", self.os)
    }
}

/// The image to run: the first that fits, and no other (rule 25).
///
/// # Errors
/// None fits; the violation tells what there is.
pub fn choose(bundle: &Bundle, platform: Platform) -> Result<&Image, Violations> {
    bundle.invocation_images.iter().find(|image| platform.fits(image)).ok_or_else(|| {
        let has = |image: &Image| match image.labels.get("architecture") {
            Some(architecture) => format!("{} ({architecture})", image.kind()),
            None => image.kind().to_owned(),
        };
        let kinds: Vec<String> = bundle.invocation_images.iter().map(has).collect();
        let message = format!(
            "none can be run here ({}, {}): {}; oci and docker can",
            platform.os,
            platform.architecture,
            kinds.join(", ")
        );
        Violations::one("/invocationImages", 25, message)
    })
}

/// What to lower.
#[derive(Debug)]
pub struct Lowering<'a> {
    /// The bundle.
    pub bundle: &'a Bundle,
    /// What is to be done.
    pub action: &'a Action,
    /// Its claim.
    pub claim: &'a Claim,
    /// Values of parameters.
    pub values: &'a Resolved,
    /// Credentials that apply and were supplied, by name.
    pub credentials: &'a BTreeMap<String, Secret>,
    /// Where images were copied to.
    pub relocation: Option<&'a Relocation>,
    /// No file for a parameter that has no value, instead of an empty one.
    pub omit_unset_files: bool,
    /// Where it is to run.
    pub platform: Platform,
}

/// What a container is run with.
#[derive(Debug)]
pub struct Invocation {
    /// Reference of the image, relocated.
    pub image: String,
    /// What its manifest must be (rule 27).
    pub content_digest: Option<String>,
    /// The program.
    pub program: &'static str,
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Variables that are secret.
    pub secret_env: BTreeMap<String, Secret>,
    /// Files by absolute path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Files that are secret.
    pub secret_files: BTreeMap<String, Secret>,
    /// Outputs that the action should leave: name by path.
    pub outputs: BTreeMap<String, String>,
}

/// Lowers an action.
///
/// # Errors
/// No image fits; a value cannot be a variable.
pub fn lower(what: &Lowering<'_>) -> Result<Invocation, Violations> {
    let Lowering { bundle, action, claim, values, credentials, relocation, .. } = what;
    let image = choose(bundle, what.platform)?;
    let mut wrong = Violations::default();
    let mut invocation = Invocation {
        image: relocation.map_or(&*image.image, |relocation| relocation.of(&image.image)).to_owned(),
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
    for (name, credential) in &bundle.credentials {
        if !applies(&credential.apply_to, action.name()) {
            continue;
        }
        let Some(value) = credentials.get(name) else { continue };
        if let Some(env) = &credential.destination.env
            && variable(&pointer("/credentials", name), value.text(), &mut wrong)
        {
            invocation.secret_env.insert(env.clone(), value.clone());
        }
        if let Some(path) = credential.destination.absolute_path() {
            invocation.secret_files.insert(path, value.clone());
        }
    }
    for (name, parameter) in &bundle.parameters {
        if !applies(&parameter.apply_to, action.name()) {
            continue;
        }
        let value = values.values.get(name);
        let unset = value.is_none();
        // Rule 16: nothing is the empty text, whatever the type.
        let value = value.map(text).unwrap_or_default();
        let secret = values.secret.contains(name);
        if let Some(env) = &parameter.destination.env
            && variable(&pointer("/parameters", name), Some(&value), &mut wrong)
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
    wrong.or(invocation)
}

/// The runtime's own variables (rules 4, 7 and 43).
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

/// Outputs that apply: name by path.
pub fn outputs(bundle: &Bundle, action: &Action) -> BTreeMap<String, String> {
    let applicable = bundle.outputs.iter().filter(|(_, output)| applies(&output.apply_to, action.name()));
    applicable.map(|(name, output)| (output.path.clone(), name.clone())).collect()
}

fn variable(at: &str, value: Option<&str>, wrong: &mut Violations) -> bool {
    let fault = match value {
        None => "is not UTF-8 and cannot be a variable",
        Some(text) if text.contains('\0') => "has a NUL and cannot be a variable",
        Some(_) => return true,
    };
    wrong.add(at, 17, format!("the value {fault}; a file can hold it"));
    false
}
