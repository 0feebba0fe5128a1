//! The configuration changes while the launcher keeps running. The launcher reloads its own file, or executord reports
//! the difference.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use integration::daemon::Setup;
use integration::request::{sh, sleeper};
use tonic::Code;

use crate::volumes::{Lent, named, refused, said, with};

/// The launcher reads the changed configuration when only executord is restarted.
#[test]
fn launcher_reads_configuration_of_restarted_executord() {
    let lent = Lent::new();
    let mut daemon = Setup::default().config("").start();
    daemon.api.run(sleeper("keeper")).unwrap();
    let launcher = daemon.launcher();
    daemon.setup().replace_config(&lent.tables());
    daemon.kill();
    daemon.start_again();
    assert_eq!(daemon.launcher(), launcher);
    said(&daemon, with(&[named("shared", "/a")], sh("touch /a/there")));
    assert!(lent.path("shared/there").exists());
    assert!(daemon.api.info().health.unwrap().healthy);
}

/// If a changed key requires a restart of the launcher, or other users can write the file, the launcher keeps its
/// configuration and the difference is reported.
#[test]
fn configurations_that_differ_are_reported() {
    let lent = Lent::new();
    let mut daemon = Setup::default().config("").start();
    daemon.api.run(sleeper("keeper")).unwrap();
    let mut restart = |config: &str, mode: u32| {
        daemon.setup().replace_config(config);
        fs::set_permissions(daemon.setup().config_file(), fs::Permissions::from_mode(mode)).unwrap();
        daemon.kill();
        daemon.start_again();
        let (code, violations) = refused(&daemon, with(&[named("shared", "/a")], sh("true")));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes[0].host.name"));
        let health = daemon.api.info().health.unwrap();
        assert!(!health.healthy && violations[0].1.contains(&health.reasons[0]), "{violations:?} {health:?}");
        assert!(daemon.setup().logged().contains(&health.reasons[0]));
        health.reasons[0].clone()
    };
    let fixed = format!("[policy]\nuserns_pool_ranges = 900\n{}", lent.tables());
    let reason = restart(&fixed, 0o644);
    assert!(reason.contains("policy, volumes"), "{reason}");
    assert!(reason.contains("policy.userns_pool_ranges changed; restart executor-launcher"), "{reason}");
    let reason = restart(&lent.tables(), 0o666);
    assert!(reason.contains("must be a regular file that is owned by root and writable only by root"), "{reason}");
}
