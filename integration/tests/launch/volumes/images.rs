//! Tests images that are mounted as volumes.

use std::fs;

use executor_proto::v1::volume_mount::Source;
use executor_proto::v1::{ImageVolume, RunRequest};
use integration::daemon::Daemon;
use integration::images::{Endpoint as _, Image, Registry, layers};
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use tonic::Code;

use super::{at, below, read_only, refused, said, with};

/// Returns an image of two layers: the upper layer removes a file of the lower layer and adds another.
fn image() -> Image {
    let image = Image::new();
    fs::create_dir(image.root().join("lib")).unwrap();
    fs::write(image.root().join("lib/old"), "old\n").unwrap();
    fs::write(image.root().join("top"), "top\n").unwrap();
    image.commit();
    fs::remove_file(image.root().join("lib/old")).unwrap();
    fs::write(image.root().join("lib/new"), "new\n").unwrap();
    image.commit();
    image
}

/// The volume has the files of all layers of an image and is not writable. The image is kept while a container uses it,
/// and can be removed afterwards.
#[test]
fn image_is_a_read_only_volume() {
    let (image, registry, rootfs) = (image(), Registry::start(false), Rootfs::busybox());
    let digest = image.push(&registry, "team/files:1");
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let reference = format!("docker://{}", registry.name("team/files:1"));
    let volume = |path: &str| read_only(at(path, Source::Image(ImageVolume { reference: reference.clone() })));
    let script = "cat /files/top /files/lib/new /lib/new; ls /files/lib; stat -c '%u' /files/top; \
        echo x 2>/dev/null >/files/x || echo no; echo x 2>/dev/null >/lib/x || echo no";
    let volumes = [volume("/files"), below("lib", volume("/lib"))];
    let text = said(&daemon, with(&volumes, sh(script).rootfs(&rootfs.reference())));
    assert_eq!(text, "top\nnew\nnew\nnew\n0\nno\nno\n");
    let sleeps = sh("exec sleep 100000").id("held").rootfs(&rootfs.reference());
    let held = daemon.api.started(with(&volumes[..1], sleeps));
    assert_eq!((&*held.volume_images[0].digest, &*held.volume_images[0].reference), (&*digest, &*reference));
    let agent = |arguments: &[&str]| integration::cli::run(&daemon.socket(), arguments);
    let in_use = agent(&["image", "rm", &registry.name("team/files:1")]);
    assert!(in_use.status == 125 && in_use.stderr.contains("container held"), "{in_use:?}");
    daemon.api.delete("held", true).unwrap();
    let removed = agent(&["image", "rm", &registry.name("team/files:1")]);
    assert_eq!((removed.status, layers(&daemon.setup().state_dir())), (0, 0), "{removed:?}");
    let left = daemon.footprint();
    assert_eq!(left.mounts, before.mounts);
}

/// An image of one layer needs no overlay. A link in the image does not lead a sub-path out of the volume.
#[test]
fn single_layer_volume_and_links_are_contained() {
    let (image, rootfs, daemon) = (Image::new(), Rootfs::busybox(), Daemon::start());
    fs::create_dir(image.root().join("dir")).unwrap();
    fs::write(image.root().join("dir/file"), "one\n").unwrap();
    std::os::unix::fs::symlink("/etc", image.root().join("out")).unwrap();
    image.commit();
    image.readable(true);
    let volume = || read_only(at("/files", Source::Image(ImageVolume { reference: image.layout() })));
    let run = |script: &str| -> RunRequest { sh(script).rootfs(&rootfs.reference()) };
    let text =
        said(&daemon, with(&[below("dir", volume())], run("cat /files/file; echo x 2>/dev/null >/files/x || echo no")));
    assert_eq!(text, "one\nno\n");
    let (code, violations) = refused(&daemon, with(&[below("out", volume())], run("true")));
    assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].sub_path"), "{violations:?}");
    let writable = executor_proto::v1::VolumeMount { read_only: false, ..volume() };
    let (code, violations) = refused(&daemon, with(&[writable], run("true")));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes[0].read_only"), "{violations:?}");
    let missing = read_only(at("/files", Source::Image(ImageVolume { reference: "oci:/nowhere".into() })));
    let (code, violations) = refused(&daemon, with(&[missing], run("true")));
    assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].image.reference"), "{violations:?}");
}
