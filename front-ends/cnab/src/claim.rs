//! Claims and their results (CNAB 400): the request of an action and its outcome.
//!
//! A [`Claim`] never holds a credential or a `writeOnly` parameter (rules 40 and 46): it is stored and shown. The claim
//! that the container gets has all values ([`Claim::mounted`]).

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

/// A record of an action on an installation. It is immutable (rule 44).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    pub action: String,
    /// The bundle as JSON.
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
    /// Values of parameters, except `writeOnly` ones.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// A ULID that changes with each action that modifies the installation (rule 8); empty if nothing was ever
    /// installed.
    pub revision: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Canceled,
    Failed,
    Pending,
    Running,
    Succeeded,
    Unknown,
}

impl Status {
    /// Returns true if the status cannot change any more.
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
    pub status: Status,
}

/// Parts of a new claim.
#[derive(Debug)]
pub struct New<'a> {
    /// Name of the installation.
    pub installation: &'a str,
    pub action: &'a Action,
    pub bundle: &'a Bundle,
    pub values: &'a Resolved,
    /// Reference that the bundle was read from.
    pub bundle_reference: Option<String>,
    /// The previous claim.
    pub last: Option<&'a Claim>,
}

impl Claim {
    /// Creates a claim. Its id sorts after all earlier ones.
    ///
    /// # Errors
    /// Returns an error if the random number generator fails.
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

    /// Returns true if this product created the claim, and not another tool.
    pub fn is_from_executor(&self) -> bool {
        self.custom.get(EXECUTOR).is_some()
    }

    /// Returns the values that the next action inherits.
    pub fn earlier(&self) -> Earlier {
        let supplied = self.custom.get(EXECUTOR).and_then(|own| own.get("supplied")).and_then(Value::as_array);
        let supplied = match supplied {
            Some(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            // Claims of other runtimes do not record this: all of their values count as supplied.
            None => self.parameters.keys().cloned().collect(),
        };
        Earlier { values: self.parameters.clone(), supplied, ..Earlier::default() }
    }

    /// Returns the digest of the bundle.json as it was published, if recorded.
    pub fn bundle_digest(&self) -> Option<&str> {
        self.custom.get(EXECUTOR)?.get("bundleDigest")?.as_str()
    }

    /// Returns the name of the container that runs the action.
    pub fn container(&self) -> String {
        format!("cnab-{}", self.id.to_ascii_lowercase())
    }
}

impl ClaimResult {
    /// Creates a result of a claim, which sorts after the previous one.
    ///
    /// # Errors
    /// Returns an error if the random number generator fails.
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
