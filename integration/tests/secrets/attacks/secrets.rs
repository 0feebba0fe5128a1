//! Attacks on secret files: making them writable, hiding them, replacing them, or showing them to others.

use executor_proto::v1::Limits;
use integration::request::ATTACKERS;
use serde_json::json;

use crate::attacks::attackers::{Attacks, Unguarded, daemon, evaluate};

/// Mount points of secret files, each with the path of a file below it. One mount point is the directory that programs
/// use. This directory contains links. The links lead to the other mount point, the directory of file generations.
const POINTS: &[(&str, &str)] = &[
    ("/etc/cf-service-bindings", "/etc/cf-service-bindings/password"),
    ("/dev/executor-files", "/dev/executor-files/0/..data/password"),
];

const ATTACKS: &[&str] = &[
    "directory: a link",
    "directory: a new directory",
    "directory: a new file",
    "directory: a pipe",
    "directory: mode",
    "file: a name outside",
    "file: another name",
    "file: append",
    "file: attribute",
    "file: back",
    "file: map for writing",
    "file: mode",
    "file: open for writing",
    "file: owner",
    "file: remove",
    "file: replace",
    "file: times",
    "file: truncate",
    "mount: clone the tree",
    "mount: hide below another",
    "mount: open by handle",
    "mount: remount writable",
    "mount: set attributes",
    "mount: show elsewhere",
    "mount: unmount",
];

/// Errors of failed attacks. An attack that needs a removed or renamed file fails with EEXIST or ENOENT, because the
/// file was not removed or renamed. ENOTSUP: ramfs has no file handles.
const REASONS: [&str; 6] = ["EACCES", "EEXIST", "ENOENT", "ENOTSUP", "EPERM", "EROFS"];

#[test]
fn no_attack_on_secret_files_succeeds() {
    let daemon = daemon();
    for (point, secret) in POINTS {
        // On the host, create a mount like a container's mount, at the same path.
        let prepare = format!(
            "point={point} secret={secret}; mount -t tmpfs over ${{point%/*}}; mkdir -p $point; mount -t tmpfs x $point; \
             mkdir -p ${{secret%/*}}; (umask 077; printf s3cr3t >$secret); mount -o remount,ro,bind $point;"
        );
        let limits = Limits { memory_bytes: 128 << 20, ..Limits::default() };
        let mut attacks =
            Attacks::new(include_str!("probes/secrets.py"), json!({"point": point, "secret": secret}), limits);
        attacks.secrets = vec![("password".to_owned(), b"s3cr3t")];
        evaluate(&daemon, &attacks, &prepare, &[(Unguarded::Host, ATTACKS)], &REASONS);
        for attacker in ATTACKERS {
            daemon.api.delete(attacker.name, false).unwrap();
        }
    }
}
