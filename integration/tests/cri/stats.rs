//! Tests statistics of sandboxes: rule C41.

use executor_cri_api::v1::{LinuxPodSandboxStats, ListPodSandboxMetricsRequest, PodSandboxStatsRequest};
use integration::cri::{KubernetesNode, POLICY, log_dir};
use integration::daemon::Setup;

/// Script that uses 1 s of processor time.
const BURN: &str = "while set -- $(cat /proc/$$/stat) && [ $((${14} + ${15} + ${16} + ${17})) -lt 100 ]; do :; done";
const SECOND: u64 = 1_000_000_000;

fn stats(node: &KubernetesNode, sandbox: &str) -> LinuxPodSandboxStats {
    let mut runtime = node.runtime();
    let answer = node.block_on(runtime.pod_sandbox_stats(PodSandboxStatsRequest { pod_sandbox_id: sandbox.into() }));
    answer.unwrap().into_inner().stats.unwrap().linux.unwrap()
}

fn cpu(stats: &LinuxPodSandboxStats) -> u64 {
    stats.cpu.as_ref().unwrap().usage_core_nano_seconds.unwrap().value
}

/// Rule C41: the processor time of a sandbox never decreases, even without its own cgroup.
#[test]
fn removed_containers_stay_counted() {
    let setup = Setup::default();
    let parent = format!("/cri-stats-{}", std::process::id());
    let config = format!("[policy]\n{POLICY}cgroup_parents = [{parent:?}]\nlog_dirs = [{:?}]\n", log_dir(&setup));
    let node = KubernetesNode::with(setup.config(&config));
    let before = node.daemon.footprint();
    for name in ["with", "without"] {
        let mut config = node.sandbox(name);
        if name == "with" {
            config.linux.as_mut().unwrap().cgroup_parent = format!("{parent}/pod1");
        }
        let sandbox = node.run_sandbox(&config).unwrap();
        let keeper = node.started(&sandbox, &node.script("keeper", "exec sleep 100000"));
        let worker = node.started(&sandbox, &node.script("worker", BURN));
        node.until_ended(&worker);
        let ended = stats(&node, &sandbox);
        assert!(cpu(&ended) >= SECOND, "{name}: {ended:?}");
        node.remove_container(&worker).unwrap();
        let removed = stats(&node, &sandbox);
        assert!(cpu(&removed) >= cpu(&ended), "{name}: {} < {}", cpu(&removed), cpu(&ended));
        // As a control, the existing containers together have used less than one second.
        let of_containers: u64 = removed
            .containers
            .iter()
            .map(|container| container.cpu.unwrap())
            .map(|cpu| cpu.usage_core_nano_seconds.unwrap().value)
            .sum();
        assert!(of_containers < SECOND, "{name}: {removed:?}");
        assert_eq!(removed.containers.len(), 1);
        assert!(removed.process.unwrap().process_count.unwrap().value >= 1);
        assert!(removed.memory.unwrap().usage_bytes.unwrap().value > 0);
        let mut runtime = node.runtime();
        let metrics = node.block_on(runtime.list_pod_sandbox_metrics(ListPodSandboxMetricsRequest {}));
        let pods = metrics.unwrap().into_inner().pod_metrics;
        let pod = pods.iter().find(|pod| pod.pod_sandbox_id == sandbox).unwrap();
        let used = pod.metrics.iter().find(|metric| metric.name == "container_cpu_usage_seconds_total");
        let used = used.map(|metric| metric.value.unwrap().value);
        assert_eq!(used.is_some_and(|seconds| seconds >= 1), name == "with", "{used:?}");
        let container = &pod.container_metrics[0];
        assert_eq!((pod.container_metrics.len(), &container.container_id), (1, &keeper));
        let limit = container.metrics.iter().find(|metric| metric.name == "container_ulimits_soft").unwrap();
        assert_eq!(limit.label_values.last().unwrap(), "max_open_files");
        let done = node.exec(&keeper, &["sh", "-c", "awk '/open files/{print $4}' /proc/1/limits"], 10).unwrap();
        assert_eq!(String::from_utf8(done.stdout).unwrap().trim(), limit.value.unwrap().value.to_string());
        node.remove_sandbox(&sandbox).unwrap();
    }
    node.daemon.wait_until_back_at(&before);
}
