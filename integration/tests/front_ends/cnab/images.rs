//! Images of bundles: images in thick bundles, image layouts, and their digests (rules 1, 19, 25, 27 and 42 of
//! docs/guides/cnab-rules.md).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use integration::images::Image;
use serde_json::{Value, json};

use crate::cnab::world::{World, lamp};

/// Image layout with two images. The image `lamp` has a run tool and a user other than root.
struct Layout {
    directory: PathBuf,
    images: [(&'static str, Image); 2],
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect(program);
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

impl Layout {
    fn new(world: &World) -> Self {
        let directory = PathBuf::from(world.path("artifacts")).join("layout");
        fs::create_dir_all(directory.parent().expect("a parent")).expect("mkdir");
        let images = [("other", "0"), ("lamp", "app")].map(|(name, user)| {
            let image = Image::in_layout(&directory, name);
            for part in ["bin", "etc", "cnab"] {
                image.copy_to(&world.rootfs.path().join(part), part);
            }
            for name in ["dev", "proc", "sys", "tmp"] {
                fs::create_dir(image.root().join(name)).expect("mkdir");
            }
            image.commit();
            image.config(&["--config.user", user, "--config.entrypoint", "/bin/false"]);
            image.readable(true);
            (name, image)
        });
        Self { directory, images }
    }

    /// Returns the digest of an image's manifest.
    fn digest(&self, name: &str) -> String {
        self.images.iter().find(|(known, _)| *known == name).expect("the image").1.digest()
    }
}

const TOOL: &str = "id -u; stat -L -c '%a %u' /etc/lamp/key; [ \"$(cat /etc/lamp/key)\" = \"$KEY\" ] && echo read
echo x > /cnab/app/outputs/seen";
const EXPECTED: &str = "1234\n600 1234\nread\n";

fn bundle(digest: Option<&str>) -> Value {
    let mut bundle = lamp();
    bundle["invocationImages"] = json!([
        { "image": "example/machine", "imageType": "qcow" },
        { "image": "example/lamp:0.1.0", "imageType": "docker" },
    ]);
    if let Some(digest) = digest {
        bundle["invocationImages"][1]["contentDigest"] = digest.into();
    }
    bundle
}

/// A thick bundle contains its image; its non-root user reads its credentials with mode 0600.
#[test]
fn thick_bundle_brings_its_image() {
    let world = World::new(TOOL);
    let layout = Layout::new(&world);
    let pack = |bundle: &Value| {
        world.bundle(bundle);
        let (thick, inputs) = (world.path("thick.tgz"), world.path(""));
        run("tar", &["-czf", &thick, "-C", &inputs, "artifacts", "bundle.json"]);
        thick
    };
    let creds = world.path("creds.json");
    let install = |name: &str, thick: &str| world.cnab(&["install", name, "-b", thick, "-c", &creds]);
    // Bundle with an additional image that the tool refers to and that is not run.
    let mut whole = bundle(Some(&layout.digest("lamp")));
    let other = json!({ "image": "example/other:1", "imageType": "docker", "contentDigest": layout.digest("other") });
    whole["images"] = json!({ "other": other });
    let ran = install("app", &pack(&whole));
    assert_eq!((ran.status, &*ran.stdout), (0, EXPECTED), "{ran:?}");
    let images = integration::cli::run(&world.daemon.socket(), &["image", "ls", "--json"]);
    assert!(images.stdout.contains("example/other:1") && images.stdout.contains(&layout.digest("other")), "{images:?}");
    world.is_clean("after a thick bundle");
    whole["images"]["other"]["contentDigest"] = format!("sha256:{}", "0".repeat(64)).into();
    let ran = install("lacking", &pack(&whole));
    assert!(ran.status == 125 && ran.stderr.contains("has no image \"example/other:1\""), "{ran:?}");
    assert!(!world.claims().join("claims/lacking").exists(), "nothing ran");
    // The image is now stored and is found by its digest, without the bundle's file.
    let ran = world.cnab(&["upgrade", "app", "-c", &creds]);
    assert_eq!((ran.status, &*ran.stdout), (0, EXPECTED), "{ran:?}");

    let ran = install("wrong", &pack(&bundle(Some(&format!("sha256:{}", "0".repeat(64))))));
    assert!(ran.status == 125 && ran.stderr.contains("has no image \"example/lamp:0.1.0\""), "{ran:?}");
    assert!(!world.claims().join("claims/wrong").exists(), "nothing ran");
    let ran = install("none", &pack(&bundle(None)));
    assert!(ran.status == 125 && ran.stderr.contains("has no image \"example/lamp:0.1.0\""), "{ran:?}");
}

/// An image from a layout is compared with the bundle's digest before it runs.
#[test]
fn layout_is_verified() {
    let world = World::new(TOOL);
    let layout = Layout::new(&world);
    let creds = world.path("creds.json");
    let image = format!("oci:{}:lamp", layout.directory.display());
    let good = world.bundle(&bundle(Some(&layout.digest("lamp"))));
    let install = |name: &str, bundle: &str, more: &[&str]| {
        let arguments = ["install", name, "-b", bundle, "-c", &creds, "--image-override", &image];
        world.cnab(&[&arguments, more].concat())
    };
    let ran = install("app", &good, &[]);
    assert_eq!((ran.status, &*ran.stdout), (0, EXPECTED), "{ran:?}");
    let other = world.bundle(&bundle(Some(&layout.digest("other"))));
    let ran = install("wrong", &other, &[]);
    assert!(ran.status == 125 && ran.stderr.contains("the bundle's contentDigest is"), "{ran:?}");
    assert!(!world.claims().join("claims/wrong").exists(), "nothing ran");
    let ran = install("wrong", &other, &["--insecure-ignore-digest"]);
    assert_eq!((ran.status, &*ran.stdout), (0, EXPECTED), "{ran:?}");
}
