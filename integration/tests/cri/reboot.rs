//! Tests a restart of the host: rule C44, CRI complaint X10.

use executor_cri_api::v1::{ContainerState, ListContainersRequest, ListPodSandboxRequest, PodSandboxState};
use integration::cri::{KubernetesNode, POLICY};
use integration::network::Network;

/// CRI complaint X10: after a reboot, sandboxes are NOTREADY, containers are EXITED with a finish time, and addresses
/// are free. The old sandboxes stay listed until they are removed, and the next attempt of the pod gets an address. As
/// controls, all sandboxes are ready and all containers run before the reboot, and a container that exited before the
/// reboot keeps its exit code.
#[test]
fn reboot_ends_every_pod() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let mut node = KubernetesNode::with(network.setup(POLICY).simulate_boots());
    let before = node.daemon.footprint();
    let networked = node.networked_sandbox("a");
    let on_host = node.sandbox("b");
    let pods = [node.run_sandbox(&networked).unwrap(), node.run_sandbox(&on_host).unwrap()];
    let mut known = Vec::new();
    for sandbox in &pods {
        let running = node.started(sandbox, &node.script("c", "exec sleep 100000"));
        let ended = node.started(sandbox, &node.script("d", "exit 4"));
        let created = node.create(sandbox, &node.script("e", "true")).unwrap();
        let started = node.status(&running).unwrap().started_at;
        known.push((running, started, node.until_ended(&ended), created));
    }
    let address = node.sandbox_status(&pods[0]).unwrap().network.unwrap().ip;
    assert!(address.starts_with("10.123.0."), "{address}");
    let states = |node: &KubernetesNode| pods.each_ref().map(|pod| node.sandbox_status(pod).unwrap().state());
    assert_eq!(states(&node), [PodSandboxState::SandboxReady; 2]);

    // A kill would lose unwritten changes: executord writes the ledger every 100 ms and on exit.
    node.daemon.terminate();
    node.reboot();
    assert_eq!(states(&node), [PodSandboxState::SandboxNotready; 2]);
    for (running, started, ended, created) in &known {
        for id in [running, created] {
            let status = node.status(id).unwrap();
            assert_eq!(status.state(), ContainerState::ContainerExited);
            assert!(status.finished_at >= status.created_at, "{status:?}");
            assert_eq!(status.exit_code, 137, "{status:?}");
        }
        let status = node.status(running).unwrap();
        assert_eq!((&*status.reason, status.started_at), ("ContainerStatusUnknown", *started));
        assert_eq!(node.status(&ended.id).unwrap(), *ended);
    }
    assert_eq!(node.sandbox_status(&pods[0]).unwrap().network.map(|network| network.ip).unwrap_or_default(), "");
    // Rules and links of the simulated host outlive the simulated reboot.
    let left = |node: &KubernetesNode| {
        let mut left = network.leftovers(node.daemon.setup());
        left.retain(|one| one.starts_with('/'));
        left
    };
    assert_eq!(left(&node), Vec::<String>::new(), "addresses are free");

    let mut retried = networked;
    retried.metadata.as_mut().unwrap().attempt = 1;
    let next = node.run_sandbox(&retried).unwrap();
    let address = node.sandbox_status(&next).unwrap().network.unwrap().ip;
    assert!(address.starts_with("10.123.0."), "{address}");
    let id = node.started(&next, &node.script("c", "exec sleep 100000"));
    assert_eq!(node.exec(&id, &["echo", "x"], 10).unwrap().stdout, b"x\n");
    for pod in pods.iter().chain([&next]) {
        node.stop_sandbox(pod).unwrap();
        node.remove_sandbox(pod).unwrap();
    }
    let mut runtime = node.runtime();
    let sandboxes = node.block_on(runtime.list_pod_sandbox(ListPodSandboxRequest::default())).unwrap().into_inner();
    let containers = node.block_on(runtime.list_containers(ListContainersRequest::default())).unwrap().into_inner();
    assert!(sandboxes.items.is_empty() && containers.containers.is_empty());
    assert_eq!(left(&node), Vec::<String>::new());
    node.daemon.wait_until_back_at(&before);
}
