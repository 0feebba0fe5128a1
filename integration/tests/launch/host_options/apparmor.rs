//! AppArmor profiles. If the host has AppArmor, the test loads a profile; otherwise requests with a profile must be
//! refused.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use executor_proto::v1::RunRequest;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::streams::{executed, script};
use tonic::Code;

use super::{printed, refused, step};

const CONFIG: &str = "[apparmor]\nprofiles = [\"executor-test\"]\n";
/// Allows access to every file except one.
const PROFILE: &str = "profile executor-test flags=(attach_disconnected,mediate_deleted) {\n  file,\n  capability,\n  \
                       network,\n  signal,\n  ptrace,\n  umount,\n  deny /etc/hostname r,\n}\n";
const ATTEMPT: &str = "cat /proc/self/attr/current; cat /etc/hostname 2>/dev/null || echo denied";

fn confined(profile: &str, request: RunRequest) -> RunRequest {
    RunRequest { apparmor_profile: profile.into(), ..request }
}

/// The loaded profile. It is unloaded on drop.
struct Loaded;

impl Loaded {
    fn parse(option: &str) {
        let mut parser = Command::new("apparmor_parser").arg(option).stdin(Stdio::piped()).spawn().unwrap();
        parser.stdin.take().unwrap().write_all(PROFILE.as_bytes()).unwrap();
        assert!(parser.wait().unwrap().success(), "apparmor_parser {option}");
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        Self::parse("--remove");
    }
}

fn host_has_apparmor() -> bool {
    let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
    enabled.trim() == "Y" && Path::new("/sys/kernel/security/apparmor/profiles").exists()
}

/// If a profile is requested, every process of the container has it. As a control, the file is readable without a
/// profile.
#[test]
fn processes_have_the_profile_or_are_refused() {
    let daemon = Setup::default().config(CONFIG).start();
    let before = daemon.footprint();
    let request = || confined("executor-test", sh(ATTEMPT).id("main"));
    let (code, violations) = refused(&daemon, request());
    assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "apparmor_profile"));
    daemon.wait_until_back_at(&before);
    if !host_has_apparmor() {
        assert!(violations[0].1.contains("AppArmor is not enabled on this host"), "{violations:?}");
        return;
    }
    assert!(violations[0].1.contains("is not loaded"), "{violations:?}");
    Loaded::parse("--replace");
    let _loaded = Loaded;
    let expected = "executor-test (enforce)\ndenied\n";
    assert_eq!(printed(&daemon, request()), expected);
    assert_eq!(printed(&daemon, confined("executor-test", step("step", ATTEMPT))), expected);
    let with_init = RunRequest { init: true, ..request() }.id("init");
    assert_eq!(printed(&daemon, with_init), expected);
    daemon.api.started(confined("executor-test", sleeper("exec")));
    assert_eq!(executed(&daemon.api, script("exec", ATTEMPT)).unwrap().text(), expected);
    assert!(!printed(&daemon, sh(ATTEMPT).id("free")).contains("denied"), "control failed");
}

/// A profile that the operator does not list is refused, including `unconfined`.
#[test]
fn only_profiles_of_the_list() {
    let (daemon, bare) = (Setup::default().config(CONFIG).start(), Daemon::start());
    assert_eq!(daemon.api.info().apparmor_profiles, ["executor-test"]);
    for profile in ["unconfined", "executor-test ", "executor-test//&unconfined", "docker-default"] {
        for (daemon, words) in [(&daemon, "executor-test"), (&bare, "apparmor.profiles")] {
            let (code, violations) = refused(daemon, confined(profile, sh("true").id("a")));
            assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "apparmor_profile"), "{profile}");
            assert!(violations[0].1.contains(words), "{violations:?}");
        }
    }
}
