//! Runs the commands of docs/guides/kube.md.

use integration::daemon::Daemon;
use integration::guide::{Guide, GuideShell};
use integration::rootfs::Rootfs;

#[test]
fn guide_works_as_it_says() {
    let daemon = Daemon::start();
    let (dir, rootfs) = (tempfile::tempdir().expect("a directory"), Rootfs::busybox());
    let guide = Guide::read("docs/guides/kube.md");
    assert!(guide.commands() > 5, "the guide has too few commands");
    let env = vec![
        ("EXECUTOR_SOCKET", daemon.socket().into()),
        ("XDG_RUNTIME_DIR", dir.path().join("runtime").into()),
        ("ROOTFS", rootfs.path().into()),
    ];
    guide.run(&GuideShell { dir: dir.path().into(), env });
}
