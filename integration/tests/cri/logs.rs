//! Tests logs of containers: rules C31 and C32.

use executor_cri_api::v1::{ContainerState, ReopenContainerLogRequest};
use integration::cri::KubernetesNode;
use integration::wait;
use tonic::Code;

#[test]
fn logs_are_reopened_after_a_rename() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "echo first; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo second >&2");
    config.log_path = "c/0.log".into();
    let id = node.started(&sandbox, &config);
    let path = node.status(&id).unwrap().log_path;
    assert!(path.ends_with("/pods/a/c/0.log"), "{path}");
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    wait::until("the log has the first line", || text(&path).contains("first").then_some(()));
    let rotated = format!("{path}.1");
    std::fs::rename(&path, &rotated).unwrap();
    let mut runtime = node.runtime();
    let mut reopen =
        || node.block_on(runtime.reopen_container_log(ReopenContainerLogRequest { container_id: id.clone() }));
    reopen().unwrap();
    node.exec(&id, &["touch", "/tmp/go"], 10).unwrap();
    node.until_ended(&id);
    let (old, new) = (text(&rotated), text(&path));
    assert!(old.ends_with(" stdout F first\n") && new.ends_with(" stderr F second\n"), "{old}{new}");
    assert_eq!(reopen().unwrap_err().code(), Code::FailedPrecondition);
    node.remove_container(&id).unwrap();
    assert_eq!(text(&path), new, "the file stays");
    node.remove_sandbox(&sandbox).unwrap();
}

#[test]
fn log_paths_stay_below_their_directory() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "true");
    config.log_path = "../../x.log".into();
    let refused = node.create(&sandbox, &config).unwrap_err();
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("config.log_path"), "{refused:?}");
    let mut elsewhere = node.sandbox("b");
    elsewhere.log_directory = "/srv/elsewhere".into();
    let other = node.run_sandbox(&elsewhere).unwrap();
    config.log_path = "0.log".into();
    let refused = node.create(&other, &config).unwrap_err();
    assert!(refused.code() == Code::PermissionDenied && refused.message().contains("log_dirs"), "{refused:?}");
    let mut with_parents = node.sandbox("c");
    with_parents.log_directory += "/../../../../srv/elsewhere";
    let third = node.run_sandbox(&with_parents).unwrap();
    let refused = node.create(&third, &config).unwrap_err();
    assert!(matches!(refused.code(), Code::InvalidArgument | Code::PermissionDenied), "{refused:?}");
    for sandbox in [&third, &other, &sandbox] {
        node.remove_sandbox(sandbox).unwrap();
    }
}

/// CRI complaint X8, rule C32: a kubelet rotates a log 300 times under load. In some rotations, executor-cri or
/// executord is killed between the rename and ReopenContainerLog. No line is lost, doubled or in the wrong file.
#[test]
fn rotations_keep_every_line() {
    let mut node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "i=0; while :; do echo $i; i=$((i+1)); done");
    config.log_path = "c/0.log".into();
    let id = node.started(&sandbox, &config);
    let path = node.status(&id).unwrap().log_path;
    let renamed = |index: usize| format!("{path}.{index:03}");
    let mut sizes = Vec::new();
    for index in 0..300 {
        std::fs::rename(&path, renamed(index)).unwrap();
        match index {
            100 | 200 => node.restart_cri(),
            150 => {
                node.daemon.kill();
                node.daemon.start_again();
            }
            _ => {}
        }
        let reopen = || {
            let mut runtime = node.runtime();
            node.block_on(runtime.reopen_container_log(ReopenContainerLogRequest { container_id: id.clone() }))
        };
        wait::until_ok("the log is reopened", reopen);
        sizes.push(std::fs::metadata(renamed(index)).unwrap().len());
    }
    node.stop_container(&id, 0).unwrap();
    assert_eq!(node.status(&id).unwrap().state(), ContainerState::ContainerExited);
    let last = std::fs::read_to_string(&path).unwrap();
    let mut next = 0_u64;
    let mut check = |text: &str| {
        for line in text.lines() {
            let (_, content) = line.split_once(" stdout F ").unwrap_or_else(|| panic!("{line}"));
            assert_eq!(content, next.to_string());
            next += 1;
        }
    };
    for (index, size) in sizes.iter().enumerate() {
        let text = std::fs::read_to_string(renamed(index)).unwrap();
        assert_eq!(text.len() as u64, *size, "nothing is written to a renamed file");
        check(&text);
    }
    check(&last);
    assert!(next > 10_000, "only {next} lines were printed, expected more than 10000");
    node.remove_sandbox(&sandbox).unwrap();
}
