//! Runs the commands of docs/guides/catalogs.md and docs/guides/bundles.md.

use integration::daemon::Daemon;
use integration::guide::{Guide, GuideShell};
use integration::rootfs::Rootfs;

#[test]
fn guides_work_as_they_say() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    for name in ["docs/guides/catalogs.md", "docs/guides/bundles.md"] {
        let dir = tempfile::tempdir().expect("a directory");
        let guide = Guide::read(name);
        assert!(guide.commands() > 5, "the guide has too few commands");
        let env = vec![
            ("EXECUTOR_SOCKET", daemon.socket().into()),
            ("HOME", dir.path().into()),
            ("XDG_RUNTIME_DIR", dir.path().join("runtime").into()),
            ("ROOTFS", rootfs.path().into()),
        ];
        guide.run(&GuideShell { dir: dir.path().into(), env });
    }
}
