//! Runs the commands of docs/guides/kube.md.

use integration::daemon::Daemon;
use integration::guide::{Guide, GuideShell};
use integration::rootfs::Rootfs;

#[test]
fn the_guide_works_as_it_says() {
    let daemon = Daemon::start();
    let (dir, rootfs) = (tempfile::tempdir().expect("a directory"), Rootfs::busybox());
    let guide = Guide::read("docs/guides/kube.md");
    assert!(guide.commands() > 5, "there is something to be tried");
    let env = vec![
        ("EXECUTOR_SOCKET", daemon.socket().into()),
        ("XDG_RUNTIME_DIR", dir.path().join("runtime").into()),
        ("ROOTFS", rootfs.path().into()),
    ];
    guide.run(&GuideShell { dir: dir.path().into(), env });
}
