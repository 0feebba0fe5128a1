//! Runs the commands of docs/guides/identity.md.

use std::fs;

use integration::daemon::Setup;
use integration::guide::{Guide, GuideShell};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::identity::Ca;

/// Runs the guide in a separate mount namespace with a tmpfs on /srv, because the guide's CA is in /srv/ca.
#[test]
fn guide_works_as_it_says() {
    let (ca, dir) = (Ca::new("cell CA"), tempfile::tempdir().unwrap());
    let guide = Guide::read("docs/guides/identity.md");
    assert!(guide.commands() > 4, "the guide has too few commands");
    let run = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some("guide"), "/srv", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
        fs::create_dir_all("/srv/ca").unwrap();
        for name in ["ca.crt", "ca.key"] {
            fs::copy(ca.path(name), format!("/srv/ca/{name}")).unwrap();
        }
        let text = include_str!("../../../../docs/guides/identity.md");
        let (_, config) = text.split_once("```toml\n").unwrap();
        let (config, _) = config.split_once("```").unwrap();
        let daemon = Setup::default().config(config).start();
        guide.run(&GuideShell { dir: dir.path().into(), env: vec![("EXECUTOR_SOCKET", daemon.socket().into())] });
    };
    let ran = std::thread::scope(|scope| scope.spawn(run).join());
    ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
