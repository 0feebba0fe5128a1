//! Claims and their results (CNAB 400): what an action was asked to do, and what came of it.
//!
//! A [`Claim`] never holds a credential, and of parameters none that is `writeOnly` (rules 40 and 46): it is what is
//! stored and shown. The claim that the container gets has those, too ([`Claim::mounted`]).

mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::action::Action;
use crate::bundle::Bundle;
use crate::id::{self, NoRandomness};
use crate::parameters::{Earlier, Resolved};
use crate::secret::Secret;

/// Value of `CNAB_CLAIMS_VERSION` (rule 43).
pub const CLAIMS_VERSION: &str = "CNAB-Claims-1.0.0";
/// Key of the executor's data in `custom`.
const EXECUTOR: &str = "executor";

/// A record of an action on an installation. It does not change once it is made (rule 44).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// Name of the action.
    pub action: String,
    /// The bundle.
    pub bundle: Value,
    /// Reference that the bundle was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_reference: Option<String>,
    /// Time of creation (RFC 3339).
    pub created: String,
    /// Data of runtimes.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub custom: Value,
    /// A ULID.
    pub id: String,
    /// Name of the installation.
    pub installation: String,
    /// Values of parameters, without those that are `writeOnly`.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// A ULID that changes with each action that modifies (rule 8); empty where nothing was ever installed.
    pub revision: String,
}

/// Status of an action.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // the names are the specification's
pub enum Status {
    Canceled,
    Failed,
    Pending,
    Running,
    Succeeded,
    Unknown,
}

impl Status {
    /// Returns true if the status is final.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }

    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Canceled => "canceled",
            Self::Failed => "failed",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Unknown => "unknown",
        }
    }
}

/// Result of a claim. A claim can have several; the last one counts.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimResult {
    /// Id of the claim.
    pub claim_id: String,
    /// Time of creation (RFC 3339).
    pub created: String,
    /// Data of runtimes.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub custom: Value,
    /// A ULID.
    pub id: String,
    /// Message for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Metadata of outputs by name, without the contents.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Value>,
    /// Status of the action.
    pub status: Status,
}

/// Parts of a new claim.
#[derive(Debug)]
pub struct New<'a> {
    /// Name of the installation.
    pub installation: &'a str,
    /// Action to carry out.
    pub action: &'a Action,
    /// Bundle of the action.
    pub bundle: &'a Bundle,
    /// Values of the parameters.
    pub values: &'a Resolved,
    /// Reference that the bundle was read from.
    pub bundle_reference: Option<String>,
    /// Claim before this one.
    pub last: Option<&'a Claim>,
}

impl Claim {
    /// Makes a claim. Its id is later than any before it.
    ///
    /// # Errors
    /// The random number generator fails.
    pub fn new(new: &New<'_>, now: SystemTime) -> Result<Self, NoRandomness> {
        let New { installation, action, bundle, values, bundle_reference, last } = new;
        let id = id::after(last.map(|last| last.id.as_str().max(last.revision.as_str())), now)?;
        let revision = match last {
            _ if action.modifies() => id::after(Some(&id), now)?,
            Some(last) => last.revision.clone(),
            None => String::new(),
        };
        let visible = values.values.iter().filter(|(name, _)| !values.secret.contains(*name));
        let supplied: BTreeSet<&String> = values.supplied.difference(&values.secret).collect();
        Ok(Self {
            action: action.name().to_owned(),
            bundle: bundle.value().clone(),
            bundle_reference: bundle_reference.clone(),
            created: id::timestamp(now),
            custom: json!({ EXECUTOR: { "supplied": supplied, "bundleDigest": crate::digest::sha256(bundle.original()) } }),
            id,
            installation: (*installation).to_owned(),
            parameters: visible.map(|(name, value)| (name.clone(), value.clone())).collect(),
            revision,
        })
    }

    /// Returns the claim that is mounted at `/cnab/claim.json` (rule 43), with every value.
    pub fn mounted(&self, values: &Resolved) -> Secret {
        let mut claim = self.clone();
        claim.parameters = values.values.clone().into_iter().collect();
        Secret::new(serde_json::to_vec(&claim).unwrap_or_default())
    }

    /// Returns true if the executor made the claim, and not another tool.
    pub fn is_from_executor(&self) -> bool {
        self.custom.get(EXECUTOR).is_some()
    }

    /// Returns the values that the next action starts from.
    pub fn earlier(&self) -> Earlier {
        let supplied = self.custom.get(EXECUTOR).and_then(|own| own.get("supplied")).and_then(Value::as_array);
        let supplied = match supplied {
            Some(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            // Another runtime's claim does not tell: all of its values count as supplied.
            None => self.parameters.keys().cloned().collect(),
        };
        Earlier { values: self.parameters.clone(), supplied, ..Earlier::default() }
    }

    /// Returns the digest of the bundle.json as it was published, if recorded.
    pub fn bundle_digest(&self) -> Option<&str> {
        self.custom.get(EXECUTOR)?.get("bundleDigest")?.as_str()
    }

    /// Returns the name of the container that carries the action out.
    pub fn container(&self) -> String {
        format!("cnab-{}", self.id.to_ascii_lowercase())
    }
}

impl ClaimResult {
    /// A result of a claim, later than the one before it.
    ///
    /// # Errors
    /// The random number generator fails.
    pub fn new(claim: &Claim, last: Option<&Self>, status: Status, now: SystemTime) -> Result<Self, NoRandomness> {
        Ok(Self {
            claim_id: claim.id.clone(),
            created: id::timestamp(now),
            custom: Value::Null,
            id: id::after(Some(last.map_or(claim.id.as_str(), |last| last.id.as_str())), now)?,
            message: String::new(),
            outputs: BTreeMap::new(),
            status,
        })
    }

    /// Returns the result with a message.
    #[must_use]
    pub fn saying(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }
}
