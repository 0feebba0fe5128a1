//! Tests the prefixes by which the kubelet recognizes errors: rule C6.

use executor_cri_api::v1::{ImageSpec, Mount, PullImageRequest};
use integration::cri::{KubernetesNode, POLICY, RefusingPort, log_dir};
use integration::daemon::Setup;
use integration::images::{Endpoint as _, Image, Registry};
use tonic::{Code, Status};

fn pull(node: &KubernetesNode, image: String) -> Result<(), Status> {
    let image = Some(ImageSpec { image, ..ImageSpec::default() });
    let mut images = node.images();
    node.block_on(images.pull_image(PullImageRequest { image, ..PullImageRequest::default() })).map(drop)
}

/// Errors of signatures and unreachable registries begin with their prefixes. As a control, an image that needs no
/// signature is pulled from the same registry.
#[test]
fn pull_errors_name_their_kind() {
    let (image, registry) = (Image::new(), Registry::start(false));
    std::fs::write(image.root().join("file"), "x").unwrap();
    image.commit();
    image.push(&registry, "signed/app:1");
    image.push(&registry, "other/app:1");
    let setup = Setup::default();
    let keys = tempfile::tempdir().unwrap();
    std::fs::set_permissions(keys.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let key = keys.path().join("key.pub");
    let script = "openssl ecparam -genkey -name prime256v1 -noout | openssl ec -pubout -out $0";
    let made = std::process::Command::new("sh").args(["-ec", script]).arg(&key).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let config = format!(
        "[policy]\n{POLICY}log_dirs = [{:?}]\n[[images.signed]]\nimages = [{:?}]\nkeys = [{key:?}]\n",
        log_dir(&setup),
        registry.name("signed/**")
    );
    let node = KubernetesNode::with(setup.config(&config));
    let error = pull(&node, registry.name("signed/app:1")).unwrap_err();
    assert_eq!(error.code(), Code::Unknown, "{error:?}");
    assert!(error.message().starts_with("SignatureValidationFailed: "), "{error:?}");
    pull(&node, registry.name("other/app:1")).unwrap();
    let missing = pull(&node, registry.name("other/app:2")).unwrap_err();
    assert!(!missing.message().starts_with("RegistryUnavailable"), "{missing:?}");
    let refusing = RefusingPort::bind();
    let error = pull(&node, refusing.name("other/app:1")).unwrap_err();
    assert_eq!(error.code(), Code::Unknown, "{error:?}");
    assert!(error.message().starts_with("RegistryUnavailable: "), "{error:?}");
}

/// A path that does not exist in an image volume is reported as an error of the volume. As a control, the same
/// container starts without the path.
#[test]
fn failed_image_volumes_are_named() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "exec sleep 100000");
    let image = Some(ImageSpec { image: node.image.clone(), ..ImageSpec::default() });
    let mount = Mount { container_path: "/volume".into(), readonly: true, image, ..Mount::default() };
    config.mounts = vec![Mount { image_sub_path: "nope".into(), ..mount.clone() }];
    let error = node.create(&sandbox, &config).unwrap_err();
    assert!(error.message().starts_with("ImageVolumeMountFailed: "), "{error:?}");
    config.mounts = vec![mount];
    node.started(&sandbox, &config);
    node.remove_sandbox(&sandbox).unwrap();
}
