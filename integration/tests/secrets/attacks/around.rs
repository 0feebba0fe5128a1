//! Attacks within a container by a process of another user than the first process.

use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, program};

use crate::attacks::attackers::outcomes;

const SCRIPT: &str = include_str!("around.py");

/// A process of another user than the first process cannot access the secret files or the first process: not its
/// memory, environment, descriptors or root, and not by tracing. As a control, a process of the same user can access
/// all of them, and the root that it finds is the container's root, not the host's.
#[test]
fn other_container_user_cannot_access_secrets() {
    let daemon = Daemon::start();
    let request = program("/usr/bin/python3", &["-c", SCRIPT, "/etc/cf-service-bindings/db/password"]);
    let container = daemon.api.run_to_end(request.memory(128 << 20).file("db/password", b"s3cr3t"));
    let printed = daemon.api.output(&container.id).text();
    let outcomes = outcomes(&printed);
    assert_eq!(outcomes.len(), 14, "{printed}");
    for (way, outcome) in &outcomes {
        let same_user = way.starts_with("0 ");
        assert_eq!(outcome == "went through", same_user, "{way}: {outcome}");
        assert!(same_user || ["EPERM", "EACCES"].contains(&outcome.as_str()), "{way}: {outcome}");
    }
    assert!(printed.contains("root of init is the same") && !printed.contains("another\n"), "{printed}");
}
