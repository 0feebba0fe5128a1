//! Parses responses of Vault: JSON documents whose secrets are wiped on drop.

use serde::Deserialize;
use serde_json::Value as Json;
use zeroize::{Zeroize as _, Zeroizing};

use crate::{ErrorKind, FetchError, Lease};

/// A response. The strings in `data` and the token are overwritten on drop.
#[derive(Default, Deserialize)]
pub(super) struct Document {
    #[serde(default)]
    lease_id: String,
    #[serde(default)]
    lease_duration: u64,
    #[serde(default)]
    renewable: bool,
    #[serde(default)]
    data: Json,
    #[serde(default)]
    auth: Option<Login>,
}

/// Result of a login or a token renewal.
#[derive(Deserialize)]
pub(super) struct Login {
    #[serde(default)]
    pub(super) client_token: String,
    /// Time to live in seconds; 0 = unlimited.
    #[serde(default)]
    pub(super) lease_duration: u64,
    #[serde(default)]
    pub(super) renewable: bool,
}

impl Drop for Login {
    fn drop(&mut self) {
        self.client_token.zeroize();
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        wipe(&mut self.data);
    }
}

fn wipe(json: &mut Json) {
    match json {
        Json::String(text) => text.zeroize(),
        Json::Array(all) => all.iter_mut().for_each(wipe),
        Json::Object(all) => all.values_mut().for_each(wipe),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Parses a response. The error contains no details, because they could be part of a value.
pub(super) fn document(body: &[u8]) -> Result<Document, FetchError> {
    if body.is_empty() {
        return Ok(Document::default());
    }
    serde_json::from_slice(body).map_err(|_| FetchError::unavailable("the response does not have Vault's format"))
}

impl Document {
    /// Removes the login from the response and returns it.
    pub(super) fn login(&mut self) -> Option<Login> {
        self.auth.take()
    }

    /// Returns the token's time to live in seconds, and true if the token can be renewed.
    pub(super) fn token(&self) -> Option<(u64, bool)> {
        let ttl = self.data.get("ttl")?.as_u64()?;
        Some((ttl, self.data.get("renewable").and_then(Json::as_bool).unwrap_or(false)))
    }

    /// Returns the lease in the response.
    pub(super) fn lease(&self) -> Option<Lease> {
        let has_one = !self.lease_id.is_empty() && self.lease_id.len() <= 1024 && self.lease_duration > 0;
        has_one.then(|| Lease::new(self.lease_id.clone(), self.lease_duration, self.renewable))
    }

    /// Describes why a response has no secret: the requested version of the KV secret was deleted or destroyed.
    pub(super) fn gone(&self) -> Option<String> {
        let version = self.data.pointer("/metadata/version")?.as_u64()?;
        let destroyed = self.data.pointer("/metadata/destroyed")?.as_bool()?;
        Some(format!("version {version} of the secret was {}", if destroyed { "destroyed" } else { "deleted" }))
    }

    /// Unwraps a response of KV version 2: keeps only the secret, and returns its version.
    pub(super) fn unwrap_version(&mut self) -> Result<String, FetchError> {
        let version = self.data.pointer("/metadata/version").and_then(Json::as_u64);
        let version = version.ok_or_else(|| {
            let why =
                "the response does not have the format of KV version 2; check the version of the mount in kv_mounts";
            FetchError::new(ErrorKind::Unsuitable, why)
        })?;
        let secret = self.data.get_mut("data").map(Json::take).unwrap_or_default();
        let mut whole = std::mem::replace(&mut self.data, secret);
        wipe(&mut whole);
        Ok(version.to_string())
    }

    /// Returns an entry of the secret: a string unchanged, any other value as JSON.
    pub(super) fn entry(&self, key: &str) -> Result<Zeroizing<Vec<u8>>, FetchError> {
        let found = self.data.get(key).filter(|found| !found.is_null());
        match found {
            None => Err(FetchError::new(ErrorKind::NotFound, format!("the secret has no entry {key:?}"))),
            Some(Json::String(text)) => Ok(Zeroizing::new(text.as_bytes().to_vec())),
            Some(other) => Ok(Zeroizing::new(other.to_string().into_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_both_versions_of_kv() {
        let two = br#"{"data":{"data":{"password":"x y","n":5,"o":{"a":[1]},"z":null},"metadata":{"version":7}}}"#;
        let mut document = document(two).unwrap();
        assert_eq!(document.unwrap_version().unwrap(), "7");
        assert_eq!(
            (&document.entry("password").unwrap()[..], &document.entry("n").unwrap()[..]),
            (&b"x y"[..], &b"5"[..])
        );
        assert_eq!(&document.entry("o").unwrap()[..], br#"{"a":[1]}"#);
        for missing in ["z", "none"] {
            assert_eq!(document.entry(missing).unwrap_err().kind, ErrorKind::NotFound);
        }
        let one = br#"{"lease_id":"db/1","lease_duration":60,"renewable":true,"data":{"password":"canary"}}"#;
        let mut document = super::document(one).unwrap();
        let lease = document.lease().unwrap();
        assert!(lease.renewable && lease.renew_at < lease.ends_at);
        assert_eq!(&document.entry("password").unwrap()[..], b"canary");
        assert_eq!(document.unwrap_version().unwrap_err().kind, ErrorKind::Unsuitable);
        assert_eq!(document.gone(), None);
        let gone =
            |destroyed| format!(r#"{{"data":{{"data":null,"metadata":{{"version":3,"destroyed":{destroyed}}}}}}}"#);
        for (destroyed, reported) in
            [(true, "version 3 of the secret was destroyed"), (false, "version 3 of the secret was deleted")]
        {
            assert_eq!(super::document(gone(destroyed).as_bytes()).unwrap().gone().unwrap(), reported);
        }
        assert_eq!(super::document(br#"{"errors":[]}"#).unwrap().gone(), None);
        let broken = super::document(b"{\"data\": canary").err().unwrap().to_string();
        assert!(!broken.contains("canary"), "{broken}");
    }
}
