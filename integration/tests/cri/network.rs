//! Tests networks of pods: rules C9, C17, C19 and C22.

use executor_cri_api::v1::{PodSandboxStatusRequest, StatusRequest};
use integration::cri::{KubernetesNode, POLICY};
use integration::network::Network;
use integration::wait;

fn node(network: &Network) -> KubernetesNode {
    KubernetesNode::with(network.setup(POLICY))
}

#[test]
fn pods_have_addresses_until_they_stop() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let node = node(&network);
    let mut config = node.sandbox("a");
    config.linux.as_mut().unwrap().security_context = None;
    config.log_directory.clear();
    config.hostname = "web-0".into();
    let sandbox = node.run_sandbox(&config).unwrap();
    let mut runtime = node.runtime();
    let mut address = || {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
        let status = node.block_on(runtime.pod_sandbox_status(request)).unwrap().into_inner().status.unwrap();
        status.network.unwrap().ip
    };
    assert!(address().starts_with("10.123.0."), "{}", address());
    let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    let done = node.exec(&id, &["sh", "-c", "cat /etc/hostname /proc/sys/net/ipv4/ip_unprivileged_port_start"], 10);
    assert_eq!(String::from_utf8(done.unwrap().stdout).unwrap(), "web-0\n0\n");
    assert_ne!(network.leftovers(node.daemon.setup()), Vec::<String>::new());
    node.stop_sandbox(&sandbox).unwrap();
    assert_eq!(network.leftovers(node.daemon.setup()), Vec::<String>::new(), "the address is free");
    assert_eq!(address(), "");
    node.remove_sandbox(&sandbox).unwrap();
}

/// CRI complaint X2: a failing DEL delays neither the stop nor the removal, and is retried until it succeeds.
#[test]
fn failing_plugins_do_not_block_removals() {
    let network = Network::new();
    let broken = network.dir().join("broken");
    std::fs::write(&broken, "").unwrap();
    let script = format!(
        "[ $CNI_COMMAND = ADD ] && exec python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)[\"prevResult\"]))'; [ $CNI_COMMAND = DEL -a -e {} ] || exit 0; \
         echo '{{\"code\": 11, \"msg\": \"not now\"}}'; exit 1",
        broken.display()
    );
    network.plugin("stubborn", &script);
    network.configure("10-test.conflist", "test", &[serde_json::json!({"type": "stubborn"})]);
    let node = node(&network);
    let config = node.networked_sandbox("a");
    let sandbox = node.run_sandbox(&config).unwrap();
    node.stop_sandbox(&sandbox).unwrap();
    assert_eq!(network.calls(), ["ADD stubborn netns", "DEL stubborn netns"]);
    node.remove_sandbox(&sandbox).unwrap();
    let next = node.run_sandbox(&config).unwrap();
    node.stop_sandbox(&next).unwrap();
    node.remove_sandbox(&next).unwrap();
    let records = || std::fs::read_dir(node.daemon.setup().state_dir().join("networks")).unwrap().count();
    assert_eq!(records(), 2);
    let made = network.calls().len();
    wait::until("another attempt", || (network.calls().len() >= made + 2).then_some(()));
    assert_eq!(records(), 2, "the attempt failed");
    std::fs::remove_file(broken).unwrap();
    wait::until("the networks are removed", || network.leftovers(node.daemon.setup()).is_empty().then_some(()));
}

/// CRI complaint X2: a DEL that never returns delays a stop by the time limit of one plugin, is killed, and is retried.
/// As a control, the network exists until the retry succeeds.
#[test]
fn hanging_plugins_do_not_block_removals() {
    let network = Network::new();
    let hung = network.dir().join("hung");
    std::fs::write(&hung, "").unwrap();
    let script = format!(
        "[ $CNI_COMMAND = ADD ] && exec python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)[\"prevResult\"]))'; \
         [ $CNI_COMMAND = DEL -a -e {} ] && exec sleep 100000; exit 0",
        hung.display()
    );
    network.plugin("hanging", &script);
    network.configure("10-test.conflist", "test", &[serde_json::json!({"type": "hanging"})]);
    let node = KubernetesNode::with(network.with_plugin_timeout(1, POLICY));
    let sandbox = node.run_sandbox(&node.networked_sandbox("a")).unwrap();
    node.stop_sandbox(&sandbox).unwrap();
    assert_eq!(network.calls(), ["ADD hanging netns", "DEL hanging netns"]);
    assert_ne!(
        network.leftovers(node.daemon.setup()),
        Vec::<String>::new(),
        "control: the network exists until the retry succeeds"
    );
    node.remove_sandbox(&sandbox).unwrap();
    wait::until("another attempt", || (network.calls().len() > 2).then_some(()));
    std::fs::remove_file(hung).unwrap();
    wait::until("the network is removed", || network.leftovers(node.daemon.setup()).is_empty().then_some(()));
}

/// Rule C2: a new network configuration is used without a restart.
#[test]
fn networks_are_seen_without_a_restart() {
    let network = Network::new();
    let node = node(&network);
    let is_ready = || {
        let mut runtime = node.runtime();
        let status = node.block_on(runtime.status(StatusRequest::default())).unwrap().into_inner().status.unwrap();
        status.conditions.iter().find(|one| one.r#type == "NetworkReady").unwrap().status
    };
    assert!(!is_ready());
    network.configure("10-test.conflist", "test", &[]);
    assert!(is_ready());
}
