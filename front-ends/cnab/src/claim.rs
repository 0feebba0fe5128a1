//! Defines claims and results (CNAB 400): the records of an action and of its outcome.
//!
//! A [`Claim`] is stored and shown, so it never contains credentials or `writeOnly` parameters (rules 40 and 46 of
//! `docs/guides/cnab-rules.md`). The claim that is mounted into the container contains all parameters
//! ([`Claim::mounted`]).

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
/// Key of this product's data in `custom`.
const EXECUTOR: &str = "executor";

/// An immutable record of an action on an installation (rule 44).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    pub action: String,
    pub bundle: Value,
    /// Reference that the bundle was read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_reference: Option<String>,
    /// Time of creation (RFC 3339).
    pub created: String,
    /// Data that CNAB runtimes add to the claim.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub custom: Value,
    /// Id of the claim, a ULID.
    pub id: String,
    pub installation: String,
    /// Values of the parameters, without `writeOnly` parameters.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// Revision of the installation, a ULID that changes with each action that modifies the installation (rule 8).
    /// Empty if nothing was ever installed.
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
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }

    /// Returns the name of the status in JSON.
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

/// Result of a claim. A claim can have several results; the last one is effective.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimResult {
    pub claim_id: String,
    /// Time of creation (RFC 3339).
    pub created: String,
    /// Data that CNAB runtimes add to the result.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub custom: Value,
    /// Id of the result, a ULID.
    pub id: String,
    /// Message for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Metadata of the outputs by name, without their contents.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Value>,
    pub status: Status,
}

/// Arguments of `Claim::new`.
#[derive(Debug)]
pub struct New<'a> {
    pub installation: &'a str,
    pub action: &'a Action,
    pub bundle: &'a Bundle,
    pub values: &'a Resolved,
    /// Reference that the bundle was read from.
    pub bundle_reference: Option<String>,
    /// The previous claim of the installation.
    pub last: Option<&'a Claim>,
}

impl Claim {
    /// Creates a claim. The claim's id sorts after the ids of all earlier claims.
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

    /// Returns the claim that is mounted at `/cnab/claim.json` (rule 43), with the values of all parameters.
    pub fn mounted(&self, values: &Resolved) -> Secret {
        let mut claim = self.clone();
        claim.parameters = values.values.clone().into_iter().collect();
        Secret::new(serde_json::to_vec(&claim).unwrap_or_default())
    }

    /// Returns true if this product, not another tool, created the claim.
    pub fn is_from_executor(&self) -> bool {
        self.custom.get(EXECUTOR).is_some()
    }

    /// Returns the parameter values that the next action inherits.
    pub fn earlier(&self) -> Earlier {
        let supplied = self.custom.get(EXECUTOR).and_then(|own| own.get("supplied")).and_then(Value::as_array);
        let supplied = match supplied {
            Some(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            // Claims of other runtimes do not record which values were supplied: treat all values as supplied.
            None => self.parameters.keys().cloned().collect(),
        };
        Earlier { values: self.parameters.clone(), supplied, ..Earlier::default() }
    }

    /// Returns the digest of the original bundle.json, if recorded.
    pub fn bundle_digest(&self) -> Option<&str> {
        self.custom.get(EXECUTOR)?.get("bundleDigest")?.as_str()
    }

    /// Returns the name of the container that runs the action.
    pub fn container(&self) -> String {
        format!("cnab-{}", self.id.to_ascii_lowercase())
    }
}

impl ClaimResult {
    /// Creates a result of a claim. The result's id sorts after the id of the previous result.
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

    /// Sets the message of the result.
    #[must_use]
    pub fn saying(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }
}
