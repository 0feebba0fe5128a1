//! Runs the commands of docs/guides/service-bindings.md.

use integration::daemon::Daemon;
use integration::guide::{Guide, GuideShell};

#[test]
fn the_guide_works_as_it_says() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let guide = Guide::read("docs/guides/service-bindings.md");
    assert!(guide.commands() > 10, "there is something to be tried");
    guide.run(&GuideShell { dir: dir.path().into(), env: vec![("EXECUTOR_SOCKET", daemon.socket().into())] });
}
