//! Tests that pods whose processes were killed leave nothing after their removal: CRI complaint X3.

use integration::cri::{KubernetesNode, POLICY};
use integration::daemon::kill;
use integration::host;
use integration::network::Network;
use integration::wait;

/// Number of pods.
const PODS: u32 = 30;

/// CRI complaint X3: after 30 pods, some of which lost their first process or their supervisor at different times, no
/// process, cgroup, mount, network namespace, address, record or descriptor is left.
#[test]
fn churn_leaves_nothing() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let node = KubernetesNode::with(network.setup(POLICY));
    let before = node.daemon.footprint();
    let descriptors = host::descriptors(node.pid() as i32);
    for number in 0..PODS {
        let sandbox = node.run_sandbox(&node.networked_sandbox(&format!("pod-{number}"))).unwrap();
        let container = node.script("c", "trap 'exit 0' TERM; touch /tmp/up; while :; do sleep 0.05; done");
        let id = node.create(&sandbox, &container).unwrap();
        let shim = node.daemon.record(&id).shim.pid;
        let ways = number % 6;
        if ways == 0 {
            kill(shim, 9); // before the start
        } else {
            node.start_container(&id).unwrap();
            let init = node.daemon.record(&id).prepared.unwrap().init.pid;
            match ways {
                1 => kill(init, 9),
                2 => kill(shim, 9),
                3 => [init, shim].into_iter().for_each(|pid| kill(pid, 9)),
                4 => {
                    let is_up = || (node.exec(&id, &["ls", "/tmp/up"], 10).ok()?.exit_code == 0).then_some(());
                    wait::until("the trap is set", is_up);
                    node.stop_container(&id, 10).unwrap();
                }
                _ => {}
            }
            if (1..5).contains(&ways) {
                let status = node.until_ended(&id);
                let expected: &[(i32, &str)] = match ways {
                    1 => &[(137, "Error")],
                    2 => &[(137, "ContainerStatusUnknown")],
                    3 => &[(137, "Error"), (137, "ContainerStatusUnknown")],
                    _ => &[(0, "Completed")],
                };
                assert!(expected.contains(&(status.exit_code, &*status.reason)), "way {ways}: {status:?}");
            }
        }
        if number % 2 == 0 {
            node.remove_container(&id).unwrap();
        }
        node.stop_sandbox(&sandbox).unwrap();
        node.remove_sandbox(&sandbox).unwrap();
    }
    node.daemon.wait_until_back_at(&before);
    assert_eq!(network.leftovers(node.daemon.setup()), Vec::<String>::new());
    for kind in ["sandboxes", "containers"] {
        assert_eq!(std::fs::read_dir(node.records().join(kind)).unwrap().count(), 0, "{kind}");
    }
    wait::until_ok("executor-cri has no more descriptors than before", || {
        let now = host::descriptors(node.pid() as i32);
        if now <= descriptors { Ok(()) } else { Err(format!("{now} descriptors, {descriptors} before")) }
    });
}
