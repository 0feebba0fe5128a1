//! Images: rules C38 to C40. An image's id is the digest of its configuration.

use std::collections::BTreeMap;

use executor_client::v1::{Image as Stored, InspectImageResponse, PullImageRequest, RegistryCredentials};
use executor_client::{Code, Wiped};
use executor_cri_api::v1::{
    AuthConfig, FilesystemIdentifier, FilesystemUsage, Image, ImageFsInfoResponse, ImageSpec, Int64Value, UInt64Value,
};
use tonic::Status;
use zeroize::Zeroizing;

use crate::failure;
use crate::image_names::{Names, is_server_of, rootfs};
use crate::node::{Node, now};

/// An image from which a container can be created.
#[derive(Debug)]
pub(crate) struct Found {
    /// Id of the image: the digest of its configuration.
    pub(crate) id: String,
    /// Reference by which executord finds the image's manifest.
    pub(crate) rootfs: String,
    names: Names,
}

impl Found {
    /// Returns the name with the digest of the manifest, or the id if the image has no such name.
    pub(crate) fn digest_name(&self) -> String {
        self.names.digests.last().unwrap_or(&self.id).clone()
    }
}

/// Finds an image by id, tag, digest or short name; `None` if the image does not exist or the name is invalid.
///
/// # Errors
/// Returns INVALID_ARGUMENT if the name is empty, FAILED_PRECONDITION if the image has no reference, or an error if
/// the call to executord fails otherwise.
pub(crate) async fn find(node: &Node, name: &str) -> Result<Option<Found>, Status> {
    let Some(stored) = inspect(node, name).await?.and_then(|answer| answer.image) else { return Ok(None) };
    let names = Names::new(&stored.references, &stored.digest, &stored.index_digest);
    let rootfs = rootfs(&stored.references, &stored.digest)
        .ok_or_else(|| Status::failed_precondition(format!("the image {} has no name", stored.config_digest)))?;
    Ok(Some(Found { id: stored.config_digest, rootfs, names }))
}

async fn inspect(node: &Node, name: &str) -> Result<Option<InspectImageResponse>, Status> {
    if name.is_empty() {
        return Err(Status::invalid_argument("image.image: required"));
    }
    match node.client.images().inspect(name).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.code(), Some(Code::NotFound | Code::InvalidArgument)) => Ok(None),
        Err(error) => Err(failure::status(error)),
    }
}

/// Pulls an image, and returns its id. A tag is resolved at the registry on each call.
///
/// # Errors
/// Returns INVALID_ARGUMENT if the name is empty, UNKNOWN with `RegistryUnavailable` if the registry does not respond,
/// UNKNOWN with `SignatureValidationFailed` if the image lacks a required signature, or another error if a call to
/// executord fails.
pub(crate) async fn pull(node: &Node, image: Option<ImageSpec>, auth: Option<AuthConfig>) -> Result<String, Status> {
    let reference = image.unwrap_or_default().image;
    if reference.is_empty() {
        return Err(Status::invalid_argument("image.image: required"));
    }
    let credentials = match auth {
        Some(auth) if is_server_of(&auth.server_address, &reference) => credentials(auth)?,
        _ => None,
    };
    let request = PullImageRequest { reference, credentials, ..PullImageRequest::default() };
    // The buffers of this connection hold the credentials, so the connection ends with the call.
    let client = node.own_client().await?;
    let pulled = async { client.images().pull(&Wiped::new(request)).await?.image().await };
    match pulled.await {
        Ok(image) => Ok(image.config_digest),
        Err(error) => Err(failure::pull(error)),
    }
}

/// Converts credentials: `auth` is user and password, joined by a colon, in base64.
fn credentials(auth: AuthConfig) -> Result<Option<RegistryCredentials>, Status> {
    let AuthConfig { mut username, mut password, auth, identity_token, registry_token, .. } = auth;
    let auth = Zeroizing::new(auth);
    if username.is_empty() && !auth.is_empty() {
        let invalid = || Status::invalid_argument("auth.auth: must be USER:PASSWORD in base64");
        let (user, mut secret) = executor_registry_auth::decode(auth.trim()).ok_or_else(invalid)?;
        (username, password) = (user, std::mem::take(&mut *secret));
    }
    let credentials = RegistryCredentials { username, password, identity_token, registry_token };
    Ok((credentials != RegistryCredentials::default()).then_some(credentials))
}

/// Lists the images, one entry for each id.
///
/// # Errors
/// Returns an error if a call to executord fails.
pub(crate) async fn list(node: &Node, filter: Option<ImageSpec>) -> Result<Vec<Image>, Status> {
    let filter = filter.unwrap_or_default();
    if !filter.image.is_empty() {
        return Ok(status(node, Some(filter)).await?.into_iter().collect());
    }
    let stored = node.client.images().list().await.map_err(failure::status)?;
    let mut by_id: BTreeMap<String, Vec<Stored>> = BTreeMap::new();
    for image in stored {
        by_id.entry(image.config_digest.clone()).or_default().push(image);
    }
    node.retain_image_users(|id| by_id.contains_key(id));
    let mut images = Vec::new();
    for (id, stored) in by_id {
        let Some(first) = stored.first() else { continue };
        match node.image_user(&id, &first.digest).await {
            Ok(user) => images.push(describe(node, id, &stored, &user)),
            Err(error) if error.code() == Some(Code::NotFound) => {} // removed after the list was read
            Err(error) => return Err(failure::status(error)),
        }
    }
    Ok(images)
}

/// Returns the description of an image. `stored` has the image's manifests at executord.
fn describe(node: &Node, id: String, stored: &[Stored], user: &str) -> Image {
    let mut names = Names::default();
    for image in stored {
        let Names { tags, digests } = Names::new(&image.references, &image.digest, &image.index_digest);
        names.tags.extend(tags);
        names.digests.extend(digests);
    }
    let pinned = node.pinned_images.iter().any(|pinned| names.tags.contains(pinned) || names.digests.contains(pinned));
    for list in [&mut names.tags, &mut names.digests] {
        list.sort();
        list.dedup();
    }
    let (uid, username) = owner(user);
    Image {
        repo_tags: names.tags,
        repo_digests: names.digests,
        size: stored.iter().map(|image| image.size).max().unwrap_or(0).max(1),
        uid: uid.map(|value| Int64Value { value }),
        username,
        spec: Some(ImageSpec { image: id.clone(), ..ImageSpec::default() }),
        pinned,
        id,
    }
}

/// Returns the user id or the user name of an image's `USER`, without the group (rule C40).
fn owner(user: &str) -> (Option<i64>, String) {
    let user = user.split(':').next().unwrap_or(user);
    match user.parse::<u32>() {
        Ok(uid) => (Some(uid.into()), String::new()),
        Err(_) => (None, user.to_owned()),
    }
}

/// Returns an image by id, tag, digest or short name; `None` if it is missing.
///
/// # Errors
/// Returns an error if a call to executord fails.
pub(crate) async fn status(node: &Node, image: Option<ImageSpec>) -> Result<Option<Image>, Status> {
    let Some(answer) = inspect(node, &image.unwrap_or_default().image).await? else { return Ok(None) };
    let user = answer.config.unwrap_or_default().user;
    let stored: Vec<Stored> = answer.image.into_iter().chain(answer.same_configuration).collect();
    let id = stored.first().map(|first| first.config_digest.clone());
    Ok(id.map(|id| describe(node, id, &stored, &user)))
}

/// Removes an image with all its names. Succeeds if the image does not exist (rule C5).
///
/// # Errors
/// Returns FAILED_PRECONDITION if a container uses the image, or an error if a call to executord fails.
pub(crate) async fn remove(node: &Node, image: Option<ImageSpec>) -> Result<(), Status> {
    let name = image.unwrap_or_default().image;
    let Some(stored) = inspect(node, &name).await?.and_then(|answer| answer.image) else { return Ok(()) };
    // Several manifests can have this configuration.
    loop {
        match node.client.images().remove(&stored.config_digest).await {
            Ok(_) => {}
            Err(error) if error.code() == Some(Code::NotFound) => return Ok(()),
            Err(error) => return Err(failure::status(error)),
        }
    }
}

/// Returns the usage of the file system that holds images and containers.
///
/// # Errors
/// Returns an error if a call to executord fails.
pub(crate) async fn filesystem(node: &Node) -> Result<ImageFsInfoResponse, Status> {
    let used = node.client.images().store_usage().await.map_err(failure::status)?;
    let usage = |bytes: u64, inodes: u64| FilesystemUsage {
        timestamp: now(),
        fs_id: Some(FilesystemIdentifier { mountpoint: used.directory.clone() }),
        used_bytes: Some(UInt64Value { value: bytes }),
        inodes_used: Some(UInt64Value { value: inodes }),
    };
    // Writable layers are on the same file system; the statistics of a container contain the usage of its layer.
    Ok(ImageFsInfoResponse {
        image_filesystems: vec![usage(used.used_bytes, used.used_inodes)],
        container_filesystems: vec![usage(0, 0)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule C39: `auth` contains a user name and a password.
    #[test]
    fn credentials_are_decoded() {
        let auth = AuthConfig { auth: "dXNlcjpwYTpzcw==".into(), ..AuthConfig::default() };
        let found = credentials(auth).unwrap().unwrap();
        assert_eq!((&*found.username, &*found.password), ("user", "pa:ss"));
        assert!(credentials(AuthConfig::default()).unwrap().is_none());
        for bad in ["!", "dXNlcg==", "/w=="] {
            let status = credentials(AuthConfig { auth: bad.into(), ..AuthConfig::default() }).unwrap_err();
            assert!(status.message().starts_with("auth.auth: must be"), "{status}");
        }
    }

    /// Rule C40: `USER` is reported as an id or a name, without the group.
    #[test]
    fn users_are_ids_or_names() {
        assert_eq!(owner("1002:users"), (Some(1002), String::new()));
        assert_eq!(owner("www-data:7"), (None, "www-data".into()));
        assert_eq!(owner(""), (None, String::new()));
    }
}
