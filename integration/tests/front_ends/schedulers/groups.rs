//! Supplementary groups that are added by a request.

use executor_proto::v1::{Action, ExecStart, RunAction, RunRequest, SerialAction};
use integration::api::exit;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{executed, script};
use tonic::Code;

fn with_groups(request: RunRequest, groups: &[&str]) -> RunRequest {
    RunRequest { extra_groups: groups.iter().map(|group| (*group).into()).collect(), ..request }
}

fn sorted(text: &str) -> Vec<u32> {
    let mut groups: Vec<u32> = text.split_whitespace().map(|gid| gid.parse().unwrap()).collect();
    groups.sort_unstable();
    groups
}

/// Groups given by number or by name apply to the container's process and to executed processes, for every user. As a
/// control, a container without requested groups has none of them.
#[test]
fn groups_apply_to_every_process() {
    let daemon = Daemon::start();
    for (id, groups, expected) in [("with", &["4242", "vcap"][..], vec![1, 1000, 4242]), ("without", &[], vec![1])] {
        let request = with_groups(sh("id -G; sleep 100000").id(id).user("1:1"), groups);
        daemon.api.started(request);
        let mut log = daemon.api.follow(id);
        let line = log.message().unwrap().unwrap();
        assert_eq!(sorted(&String::from_utf8(line.data).unwrap()), expected, "{id}");
        let spec = daemon.api.get(id).unwrap().spec.unwrap();
        assert_eq!((spec.extra_groups.len(), spec.group_ids.len()), (groups.len(), groups.len()));
        let own = executed(&daemon.api, script(id, "id -G")).unwrap().text();
        assert_eq!(sorted(&own), expected, "{id}");
        let other = ExecStart { user: "7:8".into(), ..script(id, "id -G") };
        let has = sorted(&executed(&daemon.api, other).unwrap().text()).contains(&4242);
        assert_eq!(has, !groups.is_empty(), "{id}");
    }
}

#[test]
fn groups_apply_to_steps_of_tree() {
    let daemon = Daemon::start();
    let run = |user: &str| Action {
        run: Some(RunAction {
            path: "/bin/sh".into(),
            args: vec!["-c".into(), "id -G | tr ' ' '\\n' | grep -x 4242".into()],
            user: user.into(),
            ..RunAction::default()
        }),
        ..Action::default()
    };
    let serial = SerialAction { actions: vec![run("root"), run("vcap")], ..SerialAction::default() };
    let action = Some(Action { serial: Some(serial), ..Action::default() });
    let tree = |groups| with_groups(RunRequest { action: action.clone(), ..RunRequest::default() }, groups);
    assert_eq!(exit(&daemon.api.run_to_end(tree(&["4242"]).id("with").memory(64 << 20))), Ok(0));
    assert_eq!(exit(&daemon.api.run_to_end(tree(&[]).id("without").memory(64 << 20))), Ok(1), "control failed");
}

/// With `strict_groups`, neither the container's process nor executed processes have groups of /etc/group. As a
/// control, the same container without the option has these groups. See CRI rules G11 and C28 of
/// docs/guides/cri-rules.md.
#[test]
fn strict_groups_are_the_only_ones() {
    let rootfs = Rootfs::busybox();
    let daemon = Daemon::start();
    for (id, strict_groups, expected) in [("merged", false, vec![80, 1234, 4242]), ("strict", true, vec![1234, 4242])] {
        let request = sh("id -G; sleep 100000").id(id).user("app").rootfs(&rootfs.reference());
        let request = RunRequest { strict_groups, ..with_groups(request, &["4242"]) };
        daemon.api.started(request);
        let line = daemon.api.follow(id).message().unwrap().unwrap();
        assert_eq!(sorted(&String::from_utf8(line.data).unwrap()), expected, "{id}");
        for user in ["", "app"] {
            let start = ExecStart { user: user.into(), ..script(id, "id -G") };
            assert_eq!(sorted(&executed(&daemon.api, start).unwrap().text()), expected, "{id} {user}");
        }
    }
}

/// With `merge_groups`, a user that is requested with a group also has the groups of /etc/group, both in the
/// container's process and in executed processes. As a control, the same container without the option does not have
/// these groups. See CRI rule C28.
#[test]
fn merged_groups_include_memberships() {
    let rootfs = Rootfs::busybox();
    let daemon = Daemon::start();
    for (id, merge_groups, expected) in [("replaced", false, vec![7, 4242]), ("merged", true, vec![7, 80, 4242])] {
        let request = sh("id -G; sleep 100000").id(id).user("app:7").rootfs(&rootfs.reference());
        let request = RunRequest { merge_groups, ..with_groups(request, &["4242"]) };
        daemon.api.started(request);
        let line = daemon.api.follow(id).message().unwrap().unwrap();
        assert_eq!(sorted(&String::from_utf8(line.data).unwrap()), expected, "{id}");
        for user in ["", "app:7"] {
            let start = ExecStart { user: user.into(), ..script(id, "id -G") };
            assert_eq!(sorted(&executed(&daemon.api, start).unwrap().text()), expected, "{id} {user}");
        }
    }
    let both = RunRequest { strict_groups: true, merge_groups: true, ..sleeper("both") };
    let reported = daemon.api.run(both).unwrap_err();
    assert!(reported.message().contains("merge_groups: cannot be combined with `strict_groups`"), "{reported}");
}

#[test]
fn invalid_groups_are_refused_by_entry() {
    let daemon = Daemon::start();
    let refused = |groups: &[&str]| daemon.api.run(with_groups(sleeper("c"), groups)).unwrap_err();
    let reported = refused(&["a/b", "1", "1", "65536"]);
    assert_eq!(reported.code(), Code::InvalidArgument);
    for entry in ["extra_groups[0]", "extra_groups[2]", "extra_groups[3]"] {
        assert!(reported.message().contains(entry), "{reported}");
    }
    let many: Vec<String> = (0..33).map(|gid| gid.to_string()).collect();
    let reported = refused(&many.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(reported.message().contains("has 33 entries; at most 32"), "{reported}");
    let reported = refused(&["1", "nosuchgroup"]);
    assert_eq!(reported.code(), Code::FailedPrecondition);
    assert!(reported.message().contains("extra_groups[1]") && reported.message().contains("nosuchgroup"), "{reported}");
    assert!(daemon.api.ids().is_empty());
}
