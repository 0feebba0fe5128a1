//! Tests responses about images: rules C38 and C40.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use executor_cri_api::v1::{ImageFilter, ImageSpec, ImageStatusRequest, ListImagesRequest, PullImageRequest};
use integration::cri::{KubernetesNode, POLICY, log_dir};
use integration::daemon::Setup;
use integration::images::{HandmadeLayer, HandmadeLayout};
use integration::wait;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Adds an annotation to the manifest of a layout's only image, whose configuration stays the same.
fn annotate(layout: &HandmadeLayout) {
    let read = |path: &Path| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
    let mut descriptor = read(&layout.path().join("index.json"))["manifests"][0].clone();
    let blobs = layout.path().join("blobs/sha256");
    let digest = descriptor["digest"].as_str().unwrap();
    let mut manifest = read(&blobs.join(digest.strip_prefix("sha256:").unwrap()));
    manifest["annotations"] = json!({"a": "b"});
    let bytes = manifest.to_string();
    let digest = hex::encode(Sha256::digest(&bytes));
    fs::write(blobs.join(&digest), &bytes).unwrap();
    descriptor["digest"] = json!(format!("sha256:{digest}"));
    descriptor["size"] = json!(bytes.len());
    layout.set_index(&[descriptor]);
}

/// Returns the number of calls to a method of executord.
fn calls(socket: &Path, method: &str) -> u64 {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(wait::DEFAULT_TIMEOUT)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let of_method = format!("executor_calls_total{{method=\"executor.v1.Images/{method}\"");
    let values = text.lines().filter(|line| line.starts_with(&of_method)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().unwrap() as u64).sum()
}

/// Two manifests with the same configuration are one image in every response, and each response needs one call to
/// executord.
#[test]
fn image_status_is_one_call() {
    let setup = Setup::default();
    let socket = setup.run_dir().join("metrics.sock");
    let config = format!(
        "[policy]\n{POLICY}log_dirs = [{:?}]\n[metrics]\nlisten = \"unix:{}\"\n",
        log_dir(&setup),
        socket.display()
    );
    let node = KubernetesNode::with(setup.config(&config));
    let other = HandmadeLayout::from_image(&json!({}), &[HandmadeLayer::busybox()]);
    annotate(&other);
    let mut images = node.images();
    let spec = |image: &str| Some(ImageSpec { image: image.into(), ..ImageSpec::default() });
    let request = PullImageRequest { image: spec(&other.reference()), ..PullImageRequest::default() };
    assert_eq!(node.block_on(images.pull_image(request)).unwrap().into_inner().image_ref, node.image);

    let listed = node.block_on(images.list_images(ListImagesRequest::default())).unwrap().into_inner().images;
    assert_eq!((listed.len(), listed[0].repo_tags.len()), (1, 2), "{listed:?}");
    for name in [&node.image, &other.reference(), &node.image["sha256:".len()..][..12].to_owned()] {
        let request = ImageStatusRequest { image: spec(name), verbose: false };
        let status = node.block_on(images.image_status(request)).unwrap().into_inner().image.unwrap();
        assert_eq!(status, listed[0], "{name}");
    }
    let filter = Some(ImageFilter { image: spec(&other.reference()) });
    let filtered = node.block_on(images.list_images(ListImagesRequest { filter })).unwrap().into_inner().images;
    assert_eq!(filtered, listed);
    let made = |method: &str| calls(&socket, method);
    // executor-cri calls Inspect once for the list without a filter, to get the user of the image, and once for each of
    // the four other responses.
    wait::until("the calls are counted", || (made("Inspect") >= 5).then_some(()));
    assert_eq!((made("Inspect"), made("List")), (5, 1));
}
