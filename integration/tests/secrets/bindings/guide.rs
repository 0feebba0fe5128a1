//! Runs the commands of docs/guides/service-bindings.md.

use integration::daemon::Daemon;
use integration::guide::{Guide, GuideShell};

#[test]
fn guide_works_as_it_says() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let guide = Guide::read("docs/guides/service-bindings.md");
    assert!(guide.commands() > 10, "the guide has too few commands");
    guide.run(&GuideShell { dir: dir.path().into(), env: vec![("EXECUTOR_SOCKET", daemon.socket().into())] });
}
