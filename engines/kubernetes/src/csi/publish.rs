//! Publishes the volume of a pod: validates the kubelet's request, which precedes RunPodSandbox (rules C52 and C53).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use executor_core::text::printable;
use executor_cri_api::csi::volume_capability::AccessType;
use executor_cri_api::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use tonic::Status;

use crate::config::{Csi, is_plain};
use crate::containers;
use crate::failure::{SHOWN_MAX, Violations};
use crate::node::Node;
use crate::secrets::{PodToken, VolumeSecrets};
use crate::volumes::VolumeRecord;

/// Prefix of the attributes that the kubelet adds.
const KUBELET: &str = "csi.storage.k8s.io/";
/// Maximum length of a volume's id, in bytes.
const ID_MAX: usize = 253;

/// Publishes a volume. A repeated equal request has no effect.
///
/// # Errors
/// Returns INVALID_ARGUMENT with every violation if the request is invalid, PERMISSION_DENIED if no rule allows a
/// secret, ALREADY_EXISTS if another volume has the id or the path, or INTERNAL if the volume cannot be mounted.
pub(super) async fn publish(node: &Arc<Node>, settings: &Csi, request: NodePublishVolumeRequest) -> Result<(), Status> {
    let (record, token) = read_request(settings, request)?;
    let (id, new) = (record.id.clone(), token.clone());
    exclusively(node, &id.clone(), move |node| {
        let id = record.id.clone();
        // The rules apply to new volumes only: the kubelet publishes a volume repeatedly.
        if node.volumes.published(&record)?.is_none() {
            record.secrets.check_rules(&node.config_file, &record.namespace, &record.service_account)?;
            node.volumes.publish(record)?;
        }
        node.volumes.set_token(&id, new);
        Ok(())
    })
    .await?;
    // After a restart of executord, its containers have no token, so even an unchanged token is sent again.
    if let Some(token) = token {
        containers::renew_token(node, &id, &token).await;
    }
    Ok(())
}

/// Unpublishes a volume. Succeeds if the volume does not exist.
///
/// # Errors
/// Returns INVALID_ARGUMENT if the request is invalid, or INTERNAL if the volume cannot be unmounted.
pub(super) async fn unpublish(
    node: &Arc<Node>,
    settings: &Csi,
    request: NodeUnpublishVolumeRequest,
) -> Result<(), Status> {
    let NodeUnpublishVolumeRequest { volume_id, target_path } = request;
    let mut violations = Violations::default();
    check_id(&volume_id, &mut violations);
    let target = target(settings, &target_path, &mut violations);
    violations.check()?;
    exclusively(node, &volume_id.clone(), move |node| node.volumes.unpublish(&volume_id, &target)).await
}

/// Runs one task of a volume at a time. The task may block, and holds the volume's lock until the task ends, even if
/// the caller is dropped.
async fn exclusively(
    node: &Arc<Node>,
    id: &str,
    task: impl FnOnce(&Node) -> Result<(), Status> + Send + 'static,
) -> Result<(), Status> {
    // No sandbox or container has such a name.
    let lock = node.lock_name(&format!("volume\0{id}")).await;
    let node = Arc::clone(node);
    let done = tokio::task::spawn_blocking(move || {
        let _lock = lock;
        task(&node)
    });
    done.await.unwrap_or_else(|_| Err(Status::internal("the task of the call panicked or was cancelled")))
}

/// Reads and validates a request.
fn read_request(settings: &Csi, request: NodePublishVolumeRequest) -> Result<(VolumeRecord, Option<PodToken>), Status> {
    let NodePublishVolumeRequest { volume_id, target_path, volume_capability, readonly, .. } = request;
    let NodePublishVolumeRequest { volume_context, secrets, .. } = request;
    let mut violations = Violations::default();
    check_id(&volume_id, &mut violations);
    let target = target(settings, &target_path, &mut violations);
    match volume_capability.map(|capability| capability.access_type) {
        None => violations.add("volume_capability", "required"),
        Some(Some(AccessType::Block(_))) => {
            violations.add("volume_capability.block", "block access is not supported; use a mount volume");
        }
        Some(Some(AccessType::Mount(_)) | None) => {}
    }
    if !readonly {
        violations.add("readonly", "required: set readOnly: true in the csi volume of the pod");
    }
    let mut record = VolumeRecord { id: volume_id, target, ..VolumeRecord::default() };
    let token = read_context(settings, (volume_context, secrets), &mut record, &mut violations);
    violations.check()?;
    Ok((record, token))
}

/// Reads the attributes from the pod's manifest, and the attributes and tokens that the kubelet adds.
fn read_context(
    settings: &Csi,
    (mut context, mut secrets): (BTreeMap<String, String>, BTreeMap<String, String>),
    record: &mut VolumeRecord,
    violations: &mut Violations,
) -> Option<PodToken> {
    let mut take = |key: &str| context.remove(key).unwrap_or_default();
    let [uid, namespace, service_account, ephemeral] =
        ["pod.uid", "pod.namespace", "serviceAccount.name", "ephemeral"].map(|name| take(&format!("{KUBELET}{name}")));
    let [provider, items, role] = ["provider", "items", "role"].map(&mut take);
    if [&uid, &namespace, &service_account].into_iter().any(String::is_empty) {
        let driver = &settings.driver;
        violations
            .add("volume_context", format!("does not name a pod: set podInfoOnMount: true in the CSIDriver {driver}"));
    } else if ephemeral != "true" {
        violations.add("volume_context", "describes a persistent volume; only inline volumes of pods are supported");
    }
    if provider.is_empty() {
        violations.add("volumeAttributes.provider", "required: the name of a provider of executord");
    }
    // The message shows the keys of unknown attributes, but not the values.
    for key in context.keys().filter(|key| !key.starts_with(KUBELET)) {
        let key = printable(key, SHOWN_MAX);
        violations.add(&format!("volumeAttributes[{key}]"), "is unknown; only provider, items and role are allowed");
    }
    record.secrets = VolumeSecrets::read(&provider, &items, violations);
    let login = (&*provider, &*role);
    let token = PodToken::read(login, &settings.tokens, &mut secrets, &mut context, violations);
    (record.pod_uid, record.namespace, record.service_account, record.role) = (uid, namespace, service_account, role);
    token
}

fn check_id(id: &str, violations: &mut Violations) {
    match id.len() {
        0 => violations.add("volume_id", "required"),
        1..=ID_MAX => {}
        bytes => violations.add("volume_id", format!("is {bytes} bytes; the maximum is {ID_MAX}")),
    }
}

/// Returns the path of a volume, and adds a violation if the path is not in the kubelet's directory.
fn target(Csi { kubelet_directory, .. }: &Csi, path: &str, violations: &mut Violations) -> PathBuf {
    let target = Path::new(path);
    if path.is_empty() {
        violations.add("target_path", "required");
    } else if !is_plain(target) || target == kubelet_directory || !target.starts_with(kubelet_directory) {
        let directory = kubelet_directory.display();
        violations.add("target_path", format!("is not below {directory}, the value of cri.csi.kubelet_directory"));
    }
    target.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cri_api::csi::VolumeCapability;
    use executor_cri_api::csi::volume_capability::{BlockVolume, MountVolume};

    fn request() -> NodePublishVolumeRequest {
        let context = [
            ("csi.storage.k8s.io/pod.name", "web"),
            ("csi.storage.k8s.io/pod.namespace", "shop"),
            ("csi.storage.k8s.io/pod.uid", "u"),
            ("csi.storage.k8s.io/serviceAccount.name", "app"),
            ("csi.storage.k8s.io/serviceAccount.tokens", "hunter2"),
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("provider", "vault"),
            ("items", "[{file: a, path: kv/a}]"),
        ];
        let access_type = Some(AccessType::Mount(MountVolume::default()));
        NodePublishVolumeRequest {
            volume_id: "csi-1".into(),
            target_path: "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/s/mount".into(),
            volume_capability: Some(VolumeCapability { access_type, ..VolumeCapability::default() }),
            readonly: true,
            volume_context: context.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..NodePublishVolumeRequest::default()
        }
    }

    #[test]
    fn records_have_names_only() {
        let (record, token) = read_request(&Csi::default(), request()).unwrap();
        assert!(token.is_none(), "the provider needs no token");
        assert_eq!([&*record.pod_uid, &record.namespace, &record.service_account], ["u", "shop", "app"]);
        let json = serde_json::to_string(&record).unwrap();
        assert!(json.contains("kv/a") && !json.contains("hunter2"), "{json}");
        assert_eq!(serde_json::from_str::<VolumeRecord>(&json).unwrap(), record);
    }

    /// Rule C53: the record does not contain the token, regardless of the part of the request that has the token.
    #[test]
    fn tokens_are_read() {
        let tokens = [("vault".to_owned(), "bao".to_owned())].into();
        let settings = Csi { tokens, ..Csi::default() };
        let key = "csi.storage.k8s.io/serviceAccount.tokens".to_owned();
        let json = r#"{"bao":{"token":"hunter2"}}"#.to_owned();
        let mut in_context = request();
        in_context.volume_context.insert("role".into(), "app".into());
        let mut in_secrets = in_context.clone();
        in_context.volume_context.insert(key.clone(), json.clone());
        in_secrets.volume_context.remove(&key);
        in_secrets.secrets.insert(key, json);
        for request in [in_context, in_secrets] {
            let (record, token) = read_request(&settings, request).unwrap();
            assert_eq!(token.unwrap().lowered().token, "hunter2");
            assert_eq!(record.role, "app");
            assert!(!serde_json::to_string(&record).unwrap().contains("hunter2"));
        }
        assert!(read_request(&settings, request()).unwrap_err().message().contains("no token of the pod"));
    }

    #[test]
    fn every_violation_of_requests_is_named() {
        let error = read_request(&Csi::default(), NodePublishVolumeRequest::default()).unwrap_err();
        for part in [
            "volume_id: required",
            "target_path: required",
            "volume_capability: required",
            "readonly: required",
            "podInfoOnMount: true",
            "volumeAttributes.provider: required",
            "volumeAttributes.items: is empty",
        ] {
            assert!(error.message().contains(part), "{part}: {error}");
        }
        let refused = |change: fn(&mut NodePublishVolumeRequest)| {
            let mut request = request();
            change(&mut request);
            read_request(&Csi::default(), request).unwrap_err().message().to_owned()
        };
        assert!(refused(|request| request.target_path = "/etc/shadow".into()).contains("target_path: is not below"));
        assert!(refused(|request| request.target_path = "/var/lib/kubelet/../x".into()).contains("target_path"));
        assert!(refused(|request| request.target_path = "/var/lib/kubelet".into()).contains("target_path"));
        assert!(refused(|request| request.volume_id = "a".repeat(300)).contains("volume_id: is 300 bytes"));
        let persistent = refused(|request| drop(request.volume_context.remove("csi.storage.k8s.io/ephemeral")));
        assert!(persistent.contains("persistent volume"), "{persistent}");
        let unknown = refused(|request| drop(request.volume_context.insert("objects".into(), "hunter2".into())));
        assert!(unknown.contains("volumeAttributes[objects]: is unknown") && !unknown.contains("hunter2"), "{unknown}");
        let block = refused(|request| {
            let access_type = Some(AccessType::Block(BlockVolume::default()));
            request.volume_capability = Some(VolumeCapability { access_type, ..VolumeCapability::default() });
        });
        assert!(block.contains("volume_capability.block"), "{block}");
    }
}
