//! Runs the commands of docs/guides/references.md.

use std::fs;

use integration::daemon::Setup;
use integration::guide::{Guide, GuideShell};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::references::Shelf;

/// Runs the guide in a separate mount namespace with a tmpfs on /srv, because the guide uses /srv/secrets.
#[test]
fn guide_works_as_it_says() {
    let (shelf, dir) = (Shelf::new(), tempfile::tempdir().unwrap());
    let guide = Guide::read("docs/guides/references.md");
    assert!(guide.commands() > 8, "the guide has too few commands");
    let run = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("guide"), "/srv", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
        fs::create_dir_all("/srv/secrets/app").unwrap();
        fs::write("/srv/secrets/app/password", "first").unwrap();
        let config = shelf.provider().replace("\"shelf\"", "\"credentials\"").replace("[\"/\"]", "[\"app/\"]");
        let config = config.replace(&shelf.path().display().to_string(), "/srv/secrets");
        let daemon = Setup::default().config(&config).start();
        guide.run(&GuideShell { dir: dir.path().into(), env: vec![("EXECUTOR_SOCKET", daemon.socket().into())] });
    };
    let ran = std::thread::scope(|scope| scope.spawn(run).join());
    ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
