//! Tests long time limits: rules C11 and C36.

use integration::cri::KubernetesNode;
use integration::wait;
use tonic::Code;

const DAY: i64 = 24 * 3600;

/// Time limits of a day are accepted. As a control, a limit above the maximum of executord is refused, not shortened.
#[test]
fn limits_of_days_are_accepted() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id =
        node.started(&sandbox, &node.script("c", "trap 'exit 7' TERM; touch /tmp/up; while :; do sleep 0.1; done"));
    wait::until("the trap is set", || (node.exec(&id, &["ls", "/tmp/up"], DAY).ok()?.exit_code == 0).then_some(()));
    let refused = node.exec(&id, &["true"], 7 * DAY + 1).unwrap_err();
    assert!(
        refused.code() == Code::InvalidArgument && refused.message().contains("the maximum is 604800 s"),
        "{refused:?}"
    );
    node.stop_container(&id, DAY).unwrap();
    assert_eq!(node.status(&id).unwrap().exit_code, 7);
    node.remove_sandbox(&sandbox).unwrap();
}
