//! Resolves the images of requests, finds the containers that use an image, and applies the disk budget.
//!
//! ```text
//!  api::images ──> executor_images ──> LauncherLayers ──> launcher      pull, import, remove
//!  admit ──> resolve ──> apply                                          from a reference to a plan's image
//! ```
//! `executor_images` fetches and verifies the data; the launcher unpacks it and verifies the layers again. This module
//! does not read image contents.

mod apply;
mod problem;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use executor_core::image::{Digest, ImageReference};
use executor_core::plan::{Plan, PlannedImage, VolumeImage};
use executor_core::validate::{Violation, ViolationReason};
use executor_images::{Credentials, Policy, Resolved};
use executor_proto::v1;
use zeroize::Zeroizing;

use crate::api_error::ApiError;
use crate::node::Node;

/// Maximum time that an image removal waits until completed containers have released the image.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) use apply::apply;
pub(crate) use problem::{from_image_error, from_image_error_in, from_image_error_of_run};
pub(crate) use usage::store_usage;

/// Returns the image reference of a request's root file system, if it is an image, or all errors of the reference.
pub(crate) fn reference(request: &v1::RunRequest) -> (Option<ImageReference>, Vec<Violation>) {
    if !ImageReference::is_image(&request.rootfs) {
        return (None, Vec::new());
    }
    match request.rootfs.parse::<ImageReference>() {
        Ok(reference) => (Some(reference), Vec::new()),
        Err(bad) => (None, bad.0.iter().map(|fault| Violation::new("rootfs", fault.reported())).collect()),
    }
}

/// Returns a placeholder for an unresolved image, so that the rest of a request can be validated first.
pub(crate) fn placeholder(request: &v1::RunRequest) -> PlannedImage {
    let digest = format!("sha256:{}", "0".repeat(64));
    PlannedImage {
        reference: request.rootfs.clone(),
        layers: vec![digest.clone()],
        digest,
        volumes: Vec::new(),
        labels: std::collections::BTreeMap::new(),
    }
}

/// Returns a placeholder for an unresolved volume image.
pub(crate) fn volume_placeholder(reference: &str) -> VolumeImage {
    let digest = format!("sha256:{}", "0".repeat(64));
    VolumeImage { reference: reference.to_owned(), layers: vec![digest.clone()], digest }
}

/// Resolves the images of a plan's volumes, in order. The images are not removed while the results are in use.
///
/// # Errors
/// Returns the same errors as [`resolve`], with the volume's field.
pub(crate) async fn resolve_volumes(
    node: &Arc<Node>,
    plan: &Plan,
    policy: Policy,
) -> Result<Vec<(VolumeImage, Resolved)>, ApiError> {
    let mut ready = Vec::new();
    for (index, volume) in plan.volumes.iter().enumerate() {
        let Some(VolumeImage { reference, .. }) = volume.image() else { continue };
        let field = format!("volumes[{index}].image.reference");
        let parsed = reference.parse::<ImageReference>();
        let parsed = parsed.map_err(|bad| {
            ApiError::invalid(bad.0.iter().map(|fault| Violation::new(&*field, fault.reported())).collect())
        })?;
        let resolved = resolve(node, &parsed, policy, None, &field).await?;
        let record = &resolved.record;
        let image = VolumeImage {
            reference: reference.clone(),
            digest: record.digest.to_string(),
            layers: record.layers.iter().map(|layer| layer.diff_id.to_string()).collect(),
        };
        ready.push((image, resolved));
    }
    Ok(ready)
}

/// Converts the pull policy of a request.
///
/// # Errors
/// Returns an error if the number is unknown.
pub(crate) fn policy(request: &v1::RunRequest) -> Result<Policy, ApiError> {
    match v1::PullPolicy::try_from(request.pull_policy) {
        Ok(v1::PullPolicy::IfMissing) => Ok(Policy::IfMissing),
        Ok(v1::PullPolicy::Always) => Ok(Policy::Always),
        Ok(v1::PullPolicy::Never) => Ok(Policy::Never),
        Err(_) => {
            let why = format!("is {}; 0 (if missing), 1 (always) and 2 (never) are allowed", request.pull_policy);
            Err(ApiError::invalid_field("pull_policy", ViolationReason::UnknownValue.because(why)))
        }
    }
}

/// Moves the registry credentials out of a message.
///
/// # Errors
/// Returns an error if the credentials are malformed or of more than one kind.
pub(crate) fn credentials(
    credentials: Option<v1::RegistryCredentials>,
    field: &str,
) -> Result<Option<Credentials>, ApiError> {
    let Some(credentials) = credentials else { return Ok(None) };
    let v1::RegistryCredentials { username, password, identity_token, registry_token } = credentials;
    let [password, identity_token, registry_token] = [password, identity_token, registry_token].map(Zeroizing::new);
    let has_user = !username.is_empty() || !password.is_empty();
    if [has_user, !identity_token.is_empty(), !registry_token.is_empty()].into_iter().filter(|is_set| *is_set).count()
        > 1
    {
        let why = "has more than one of: user name with password, identity token, registry token; only one may be set";
        return Err(ApiError::invalid_field(field, ViolationReason::Conflict.because(why)));
    }
    if has_user {
        return Credentials::basic(username, password).map(Some).map_err(|why| {
            ApiError::invalid_field(format!("{field}.username"), ViolationReason::InvalidFormat.because(why))
        });
    }
    Ok(match (identity_token.is_empty(), registry_token.is_empty()) {
        (true, true) => None,
        (false, _) => Some(Credentials::IdentityToken(identity_token)),
        (true, false) => Some(Credentials::RegistryToken(registry_token)),
    })
}

/// Resolves a reference from the field `field` to an image that is ready for use. The image is not removed while the
/// result is in use.
///
/// # Errors
/// Returns the errors that the API documents for Run.
pub(crate) async fn resolve(
    node: &Arc<Node>,
    reference: &ImageReference,
    policy: Policy,
    credentials: Option<Credentials>,
    field: &str,
) -> Result<Resolved, ApiError> {
    // Without a launcher, no image can be unpacked and no container can run.
    node.launcher.session()?;
    tokio::select! {
        resolved = node.images.resolve(reference, policy, credentials) => {
            resolved.map_err(|error| from_image_error_of_run(&error, field))
        }
        () = node.until_stopping() => Err(ApiError::stopping()),
    }
}

/// Waits until completed containers have released their images, for at most [`RELEASE_TIMEOUT`].
pub(crate) async fn wait_for_release(node: &Node) {
    let leaving: Vec<_> = node.registry.all().into_iter().filter(|handle| handle.is_leaving()).collect();
    let all = async {
        for handle in &leaving {
            handle.until_removed().await;
        }
    };
    let _ = tokio::time::timeout(RELEASE_TIMEOUT, all).await; // images still in use are reported as such
}

/// Returns the id of a container that uses an image, if any. A completed container uses its image until its root file
/// system is removed.
pub(crate) fn user_of(node: &Node, digest: &Digest) -> Option<String> {
    let digest = digest.to_string();
    let mut user = None;
    node.registry.visit(None, |handle| {
        let has = |facts: &crate::model::status::ContainerStatus| facts.plan.images().any(|(one, _)| one == digest);
        if (!handle.is_over() || handle.is_leaving()) && handle.facts().is_some_and(|facts| has(&facts)) {
            user = Some(handle.id().to_string());
        }
        user.is_none()
    });
    user
}

/// Spawns a task that removes images beyond the operator's budget.
pub(crate) fn keep_to_budget(node: &Arc<Node>) {
    let node = Arc::clone(node);
    tokio::spawn(async move {
        match node.images.keep_to_budget(|digest| user_of(&node, digest)).await {
            Ok(pruned) if !pruned.images.is_empty() => {
                tracing::info!(
                    images = pruned.images.len(),
                    layers = pruned.layers,
                    "removed images to stay within images.bytes_budget"
                );
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    "cannot remove images to stay within images.bytes_budget: {}",
                    executor_core::errors::chain(&error)
                );
            }
        }
    });
}

/// Checks the length of an image name from a caller.
///
/// # Errors
/// Returns an error if the name is empty or too long.
pub(crate) fn image_name(text: &str) -> Result<&str, ApiError> {
    match text.len() {
        1..=4700 => Ok(text),
        length => {
            let reason = if length == 0 { ViolationReason::Required } else { ViolationReason::TooLong };
            let why = format!("is {length} bytes; 1 to 4700 are allowed");
            Err(ApiError::invalid_field("image", reason.because(why)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRI rule C39: a request has at most one kind of credentials, and unset credentials are not sent.
    #[test]
    fn only_one_kind_of_credentials() {
        let given = |[username, password, identity_token, registry_token]: [&str; 4]| {
            let message = v1::RegistryCredentials {
                username: username.into(),
                password: password.into(),
                identity_token: identity_token.into(),
                registry_token: registry_token.into(),
            };
            credentials(Some(message), "credentials")
        };
        assert_eq!(given([""; 4]).unwrap(), None);
        let basic = Credentials::basic("u", Zeroizing::new("p".to_owned())).unwrap();
        assert_eq!(given(["u", "p", "", ""]).unwrap(), Some(basic));
        let token = || Zeroizing::new("t".to_owned());
        assert_eq!(given(["", "", "t", ""]).unwrap(), Some(Credentials::IdentityToken(token())));
        assert_eq!(given(["", "", "", "t"]).unwrap(), Some(Credentials::RegistryToken(token())));
        for several in [["u", "p", "t", ""], ["u", "p", "", "t"], ["", "p", "", "t"], ["", "", "t", "t"]] {
            let refused = tonic::Status::from(given(several).unwrap_err());
            assert!(refused.message().contains("more than one"), "{refused:?}");
        }
    }
}
