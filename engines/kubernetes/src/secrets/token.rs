//! Tokens of pods, with which executord logs in to providers: rules C53 and G19.
//!
//! The kubelet sends the tokens of a pod's service account with each NodePublishVolume, and new tokens before the old
//! tokens expire. executor-cri keeps tokens only in memory. The request of each container that mounts the volume has
//! the token. When a new token arrives, executor-cri sends an update of each such container.

use std::collections::BTreeMap;
use std::sync::Arc;

use executor_client::v1::ProviderToken;
use executor_core::reference::{check_provider_role, check_provider_token};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::failure::{Violations, quoted};

/// Key of the tokens in the secrets or the context of a volume.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Token of a pod for the provider of a volume.
#[derive(Clone)]
pub(crate) struct PodToken {
    pub(crate) provider: String,
    /// Role of the login; the default of the provider if empty.
    pub(crate) role: String,
    token: Arc<Zeroizing<String>>,
}

/// Token in the kubelet's JSON, whose keys are audiences.
#[derive(Deserialize)]
struct Issued {
    token: String,
}

impl std::fmt::Debug for PodToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodToken").field("provider", &self.provider).field("role", &self.role).finish_non_exhaustive()
    }
}

impl PodToken {
    /// Reads the token for the provider of a volume; `None` if the provider is not in `audiences`. `secrets` and
    /// `context` are from the request: the CSIDriver decides which of them contains the tokens.
    pub(crate) fn read(
        (provider, role): (&str, &str),
        audiences: &BTreeMap<String, String>,
        secrets: &mut BTreeMap<String, String>,
        context: &mut BTreeMap<String, String>,
        violations: &mut Violations,
    ) -> Option<Self> {
        let json = [secrets.remove(TOKENS), context.remove(TOKENS)].into_iter().flatten().map(Zeroizing::new).next();
        if let Err(fault) = check_provider_role(role) {
            violations.add("volumeAttributes.role", fault.to_string());
        }
        let Some(audience) = audiences.get(provider) else {
            if !role.is_empty() {
                let why = format!(
                    "needs provider {} in cri.csi.tokens: a role applies only to logins with pod tokens",
                    quoted(provider)
                );
                violations.add("volumeAttributes.role", why);
            }
            return None;
        };
        let issued = json.and_then(|json| serde_json::from_str::<BTreeMap<String, Issued>>(&json).ok());
        let Some(Issued { token }) = issued.and_then(|mut issued| issued.remove(audience)) else {
            let why = format!(
                "the request has no token of the pod for the audience {}, which provider {} needs: set tokenRequests, \
                 requiresRepublish and serviceAccountTokenInSecrets in the CSIDriver",
                quoted(audience),
                quoted(provider)
            );
            violations.add("secrets", why);
            return None;
        };
        let token = Zeroizing::new(token);
        if let Err(fault) = check_provider_token(&token) {
            violations.add("secrets", format!("the token for the audience {} {fault}", quoted(audience)));
        }
        Some(Self { provider: provider.to_owned(), role: role.to_owned(), token: Arc::new(token) })
    }

    /// Returns the token for a request to executord.
    pub(crate) fn lowered(&self) -> ProviderToken {
        ProviderToken { provider: self.provider.clone(), token: self.token.to_string(), role: self.role.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"bao":{"token":"hunter2","expirationTimestamp":"2030-01-01T00:00:00Z"},"":{"token":"a b"}}"#;

    fn read(provider: &str, role: &str, secrets: &[(&str, &str)]) -> Result<Option<PodToken>, String> {
        let audiences = [("vault", "bao"), ("cluster", ""), ("other", "x")];
        let audiences = audiences.map(|(provider, audience)| (provider.to_owned(), audience.to_owned())).into();
        let mut secrets = secrets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let mut violations = Violations::default();
        let token = PodToken::read((provider, role), &audiences, &mut secrets, &mut BTreeMap::new(), &mut violations);
        violations.check().map(|()| token).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn tokens_have_their_audience() {
        let token = read("vault", "app", &[(TOKENS, JSON)]).unwrap().unwrap();
        assert_eq!((&*token.lowered().token, &*token.lowered().role), ("hunter2", "app"));
        assert!(!format!("{token:?}").contains("hunter2"), "{token:?}");
        assert!(read("files", "", &[(TOKENS, JSON)]).unwrap().is_none(), "a provider without tokens");
    }

    #[test]
    fn missing_and_bad_tokens_are_refused() {
        for (provider, role, secrets, expected) in [
            ("vault", "", &[][..], "set tokenRequests, requiresRepublish and serviceAccountTokenInSecrets"),
            ("vault", "", &[(TOKENS, "hunter2")], "no token of the pod for the audience \"bao\""),
            ("other", "", &[(TOKENS, JSON)], "no token of the pod for the audience \"x\""),
            ("cluster", "", &[(TOKENS, JSON)], "the token for the audience \"\" may only contain visible ASCII"),
            ("vault", "a\nb", &[(TOKENS, JSON)], "volumeAttributes.role: contains a control character"),
            ("files", "app", &[(TOKENS, JSON)], "needs provider \"files\" in cri.csi.tokens"),
        ] {
            let error = read(provider, role, secrets).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{expected}: {error}");
        }
    }
}
