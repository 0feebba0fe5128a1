//! Runs the commands of docs/guides/cnab.md.

use integration::daemon::Daemon;
use integration::guide::{Guide, GuideShell};

#[test]
fn guide_works_as_it_says() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().expect("a directory");
    let guide = Guide::read("docs/guides/cnab.md");
    assert!(guide.commands() > 10, "the guide has too few commands");
    let env = vec![("EXECUTOR_SOCKET", daemon.socket().into()), ("HOME", dir.path().into())];
    guide.run(&GuideShell { dir: dir.path().into(), env });
}
