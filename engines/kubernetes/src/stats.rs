//! Resource usage of containers and sandboxes: rule C41.

use std::collections::BTreeMap;

use executor_client::v1::{self, StatsRequest, Usage};
use executor_cri_api::v1::{
    ContainerAttributes, ContainerState, ContainerStats, ContainerStatsFilter, CpuUsage, FilesystemUsage, IoUsage,
    LinuxPodSandboxStats, MemoryUsage, NetworkInterfaceUsage, NetworkUsage, PodSandboxAttributes, PodSandboxStats,
    PodSandboxStatsFilter, ProcessUsage, PsiData, PsiStats, SwapUsage, UInt64Value,
};
use tonic::Status;

use crate::failure;
use crate::node::{Node, now};
use crate::pod_cgroup;
use crate::status::{has_labels, nanoseconds, state};
use crate::store::{Container, Sandbox};

/// Maximum number of containers in a request to executord.
const BATCH: usize = 1000;
/// Name of the network interface of a pod (rule C22).
pub(crate) const INTERFACE: &str = "eth0";

/// Returns the resource usage of the containers that a filter selects; without a filter, of all running containers.
///
/// # Errors
/// Returns an error if a call to executord fails. Errors of calls for a single container are ignored.
pub(crate) async fn list(node: &Node, filter: Option<ContainerStatsFilter>) -> Result<Vec<ContainerStats>, Status> {
    let only_running = filter.is_none();
    let filter = filter.unwrap_or_default();
    let is_selected = |container: &Container| {
        container.record.id.starts_with(&filter.id)
            && container.record.sandbox.starts_with(&filter.pod_sandbox_id)
            && has_labels(&container.record.config.labels, &filter.label_selector)
            && (!only_running || state(container) == ContainerState::ContainerRunning)
    };
    of_containers(node, node.store.containers.all().into_iter().filter(is_selected).collect()).await
}

/// Returns the resource usage of containers.
///
/// # Errors
/// Returns an error if a call to executord fails. Errors of calls for a single container are ignored.
pub(crate) async fn of_containers(node: &Node, containers: Vec<Container>) -> Result<Vec<ContainerStats>, Status> {
    let usages = usages(node, &containers).await?;
    let usage = |container: &Container| usages.get(&container.record.id).cloned().unwrap_or_default();
    Ok(containers.iter().map(|container| container_stats(container, &usage(container))).collect())
}

/// Returns the counters of containers by their ids.
///
/// # Errors
/// Returns an error if a call to executord fails. Errors of calls for a single container are ignored.
pub(crate) async fn usages(node: &Node, containers: &[Container]) -> Result<BTreeMap<String, Usage>, Status> {
    let ids: Vec<String> = containers
        .iter()
        .filter(|container| container.state.is_some())
        .map(|container| container.record.id.clone())
        .collect();
    let mut usages = BTreeMap::new();
    for ids in ids.chunks(BATCH) {
        let request = StatsRequest { ids: ids.to_vec(), ..StatsRequest::default() };
        match node.client.stats(request).await {
            Ok(stats) => {
                usages.extend(stats.into_iter().filter_map(|stats| Some((stats.id, stats.usage?))));
            }
            // A container was removed: request the others one by one.
            Err(error) if error.code() == Some(executor_client::Code::NotFound) => {
                for id in ids {
                    let request = StatsRequest { ids: vec![id.clone()], ..StatsRequest::default() };
                    let stats = node.client.stats(request).await.unwrap_or_default();
                    usages.extend(stats.into_iter().filter_map(|stats| Some((stats.id, stats.usage?))));
                }
            }
            Err(error) => return Err(failure::status(error)),
        }
    }
    Ok(usages)
}

fn value(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

/// Returns the time of a reading in nanoseconds, or the current time if the reading has no time.
fn timestamp(usage: &Usage) -> i64 {
    match nanoseconds(usage.time.as_ref()) {
        0 => now(),
        time => time,
    }
}

fn container_stats(container: &Container, usage: &Usage) -> ContainerStats {
    let config = &container.record.config;
    let limit = u64::try_from(container.record.resources.memory_limit_in_bytes).unwrap_or(0);
    let swap = usage.memory.as_ref().and_then(|memory| memory.swap_bytes);
    ContainerStats {
        attributes: Some(ContainerAttributes {
            id: container.record.id.clone(),
            metadata: config.metadata.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
        }),
        cpu: Some(cpu(usage)),
        memory: Some(memory(usage, limit)),
        writable_layer: Some(writable_layer(usage)),
        swap: swap.map(|bytes| SwapUsage {
            timestamp: timestamp(usage),
            swap_usage_bytes: value(bytes),
            ..SwapUsage::default()
        }),
        io: pressure(usage.io_pressure.as_ref()).map(|psi| IoUsage { timestamp: timestamp(usage), psi: Some(psi) }),
    }
}

/// Returns the disk usage of a container's writable layer, which is 0 until executord has measured the layer.
fn writable_layer(usage: &Usage) -> FilesystemUsage {
    let layer = usage.writable_layer.unwrap_or_default();
    FilesystemUsage {
        timestamp: match nanoseconds(layer.time.as_ref()) {
            0 => now(),
            time => time,
        },
        used_bytes: value(layer.used_bytes),
        inodes_used: value(layer.used_inodes),
        ..FilesystemUsage::default()
    }
}

fn cpu(usage: &Usage) -> CpuUsage {
    CpuUsage {
        timestamp: timestamp(usage),
        usage_core_nano_seconds: value(usage.cpu.as_ref().map_or(0, |cpu| cpu.total_ns)),
        psi: pressure(usage.cpu_pressure.as_ref()),
        ..CpuUsage::default()
    }
}

fn memory(usage: &Usage, limit: u64) -> MemoryUsage {
    let memory = usage.memory.unwrap_or_default();
    MemoryUsage {
        timestamp: timestamp(usage),
        working_set_bytes: value(memory.working_set_bytes),
        available_bytes: if limit > 0 { value(limit.saturating_sub(memory.working_set_bytes)) } else { None },
        usage_bytes: value(memory.usage_bytes),
        rss_bytes: value(memory.rss_bytes),
        page_faults: memory.page_faults.and_then(value),
        major_page_faults: memory.major_page_faults.and_then(value),
        psi: pressure(usage.memory_pressure.as_ref()),
    }
}

/// Converts the pressure of executord, which is in microseconds and hundredths of a percent.
fn pressure(pressure: Option<&v1::Pressure>) -> Option<PsiStats> {
    let data = |stall: &v1::PressureStall| PsiData {
        total: stall.total_us.saturating_mul(1000),
        avg10: f64::from(stall.avg10) / 100.0,
        avg60: f64::from(stall.avg60) / 100.0,
        avg300: f64::from(stall.avg300) / 100.0,
    };
    pressure.map(|pressure| PsiStats { full: pressure.full.as_ref().map(data), some: pressure.some.as_ref().map(data) })
}

/// Returns the resource usage of the ready sandboxes that a filter selects.
///
/// # Errors
/// Returns an error if a call to executord fails. Errors of calls for a single container are ignored.
pub(crate) async fn list_sandboxes(
    node: &Node,
    filter: Option<PodSandboxStatsFilter>,
) -> Result<Vec<PodSandboxStats>, Status> {
    let filter = filter.unwrap_or_default();
    let is_selected = |sandbox: &Sandbox| {
        sandbox.is_ready()
            && sandbox.record.id.starts_with(&filter.id)
            && has_labels(&sandbox.record.config.labels, &filter.label_selector)
    };
    of_sandboxes(node, node.store.sandboxes.all().into_iter().filter(is_selected).collect()).await
}

/// Returns the counters of a sandbox: the counters of its parent cgroup or, without a readable parent cgroup, sums over
/// `usages`. CPU time is summed over all members, including exited and removed members. Memory and pids are summed over
/// running members. The network counters are the newest reading of any member.
pub(crate) fn of_sandbox(sandbox: &Sandbox, members: &[&Container], usages: &BTreeMap<String, Usage>) -> Usage {
    let read = |only_running: bool| -> Vec<&Usage> {
        let members =
            members.iter().filter(|member| !only_running || state(member) == ContainerState::ContainerRunning);
        members.filter_map(|member| usages.get(&member.record.id)).collect()
    };
    let all = read(false);
    let mut usage = pod_cgroup::usage(&sandbox.record.config).unwrap_or_else(|| {
        let total = all.iter().filter_map(|usage| usage.cpu.as_ref()).map(|cpu| cpu.total_ns);
        let is_counted = |id: &str| usages.get(id).is_some_and(|usage| usage.cpu.is_some());
        let total_ns = total.fold(sandbox.record.removed_cpu_ns(is_counted), u64::saturating_add);
        Usage { cpu: Some(v1::CpuUsage { total_ns, ..v1::CpuUsage::default() }), ..sum(&read(true)) }
    });
    // All members of a pod share one network: use the counters of the newest reading.
    let newest = all.into_iter().filter(|usage| usage.network.is_some());
    usage.network = newest.max_by_key(|usage| nanoseconds(usage.time.as_ref())).and_then(|usage| usage.network);
    usage
}

/// Returns the resource usage of sandboxes.
///
/// # Errors
/// Returns an error if a call to executord fails. Errors of calls for a single container are ignored.
pub(crate) async fn of_sandboxes(node: &Node, sandboxes: Vec<Sandbox>) -> Result<Vec<PodSandboxStats>, Status> {
    let ids: std::collections::BTreeSet<_> = sandboxes.iter().map(|sandbox| sandbox.record.id.clone()).collect();
    let mut containers = node.store.containers.all();
    containers.retain(|container| ids.contains(&container.record.sandbox));
    let usages = usages(node, &containers).await?;
    let stats = |sandbox: &Sandbox| {
        // Read the record again: it contains containers that were removed after the list was read.
        let sandbox = &node.store.sandboxes.get(&sandbox.record.id).unwrap_or_else(|| sandbox.clone());
        let members: Vec<&Container> =
            containers.iter().filter(|container| container.record.sandbox == sandbox.record.id).collect();
        let usage = of_sandbox(sandbox, &members, &usages);
        let config = &sandbox.record.config;
        PodSandboxStats {
            attributes: Some(PodSandboxAttributes {
                id: sandbox.record.id.clone(),
                metadata: config.metadata.clone(),
                labels: config.labels.clone(),
                annotations: config.annotations.clone(),
            }),
            linux: Some(LinuxPodSandboxStats {
                cpu: Some(cpu(&usage)),
                memory: Some(memory(&usage, 0)),
                network: usage.network.as_ref().map(|network| network_usage(network, timestamp(&usage))),
                process: Some(ProcessUsage {
                    timestamp: timestamp(&usage),
                    process_count: value(usage.pids.map_or(0, |pids| pids.current)),
                }),
                containers: members
                    .iter()
                    .filter(|container| state(container) == ContainerState::ContainerRunning)
                    .map(|container| {
                        let usage = usages.get(&container.record.id).cloned().unwrap_or_default();
                        container_stats(container, &usage)
                    })
                    .collect(),
                io: pressure(usage.io_pressure.as_ref())
                    .map(|psi| IoUsage { timestamp: timestamp(&usage), psi: Some(psi) }),
            }),
            windows: None,
        }
    };
    Ok(sandboxes.iter().map(stats).collect())
}

fn network_usage(network: &v1::NetworkUsage, timestamp: i64) -> NetworkUsage {
    let interface = NetworkInterfaceUsage {
        name: INTERFACE.into(),
        rx_bytes: value(network.received_bytes),
        rx_errors: value(network.received_errors),
        tx_bytes: value(network.sent_bytes),
        tx_errors: value(network.sent_errors),
    };
    NetworkUsage { timestamp, default_interface: Some(interface), interfaces: Vec::new() }
}

/// Adds up the counters of running containers.
fn sum(usages: &[&Usage]) -> Usage {
    let mut sum = Usage::default();
    for usage in usages {
        if nanoseconds(usage.time.as_ref()) > nanoseconds(sum.time.as_ref()) {
            sum.time = usage.time;
        }
        if let Some(cpu) = &usage.cpu {
            let total = sum.cpu.get_or_insert_default();
            total.total_ns += cpu.total_ns;
        }
        if let Some(memory) = &usage.memory {
            let total = sum.memory.get_or_insert_default();
            total.usage_bytes += memory.usage_bytes;
            total.rss_bytes += memory.rss_bytes;
            total.working_set_bytes += memory.working_set_bytes;
            let add = |sum: Option<u64>, part: Option<u64>| Some(sum.unwrap_or(0) + part?).or(sum);
            total.page_faults = add(total.page_faults, memory.page_faults);
            total.major_page_faults = add(total.major_page_faults, memory.major_page_faults);
        }
        if let Some(pids) = &usage.pids {
            sum.pids.get_or_insert_default().current += pids.current;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_client::v1 as executor;
    use std::sync::Arc;

    use crate::store::{ContainerRecord, SandboxRecord};

    fn usage(total_ns: u64, usage_bytes: u64) -> Usage {
        Usage {
            cpu: Some(executor::CpuUsage { total_ns, ..Default::default() }),
            memory: Some(executor::MemoryUsage { usage_bytes, page_faults: Some(1), ..Default::default() }),
            ..Usage::default()
        }
    }

    #[test]
    fn counters_are_added_up() {
        let sum = sum(&[&usage(1, 10), &usage(2, 20)]);
        assert_eq!(sum.cpu.unwrap().total_ns, 3);
        let memory = memory(&sum, 100);
        assert_eq!((memory.usage_bytes, memory.page_faults), (value(30), value(2)));
        assert!(memory.timestamp > 0);
    }

    /// Rule C41: a sandbox without its own cgroup has the processor time of all its containers, including removed
    /// containers, the memory of running containers, and the newest counters of its network.
    #[test]
    fn ended_containers_count() {
        let record = SandboxRecord { removed_cpu_ns: 100, ..SandboxRecord::default() };
        let sandbox = Sandbox { record: Arc::new(record), state: None };
        let member = |id: &str, state: executor::State| {
            let run =
                executor::Container { state: state.into(), started_at: Some(Default::default()), ..Default::default() };
            let record = ContainerRecord { id: id.into(), ..ContainerRecord::default() };
            Container { record: Arc::new(record), state: Some(Arc::new(run)) }
        };
        let (runs, ended) = (member("r", executor::State::Running), member("e", executor::State::Completed));
        let at = |seconds, received_bytes, counters: Usage| Usage {
            time: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            network: Some(executor::NetworkUsage { received_bytes, ..Default::default() }),
            ..counters
        };
        let usages = [("r".into(), at(2, 8, usage(1, 10))), ("e".into(), at(1, 7, usage(20, 200)))].into();
        let found = of_sandbox(&sandbox, &[&runs, &ended], &usages);
        assert_eq!((found.cpu.unwrap().total_ns, found.memory.unwrap().usage_bytes), (121, 10));
        assert_eq!(found.network.unwrap().received_bytes, 8);
        let found = of_sandbox(&sandbox, &[&ended], &usages);
        assert_eq!((found.cpu.unwrap().total_ns, found.memory), (120, None));
        // If executor-cri is killed while it removes "e", the CPU time of "e" is neither lost nor counted twice.
        let mut record = SandboxRecord::clone(&sandbox.record);
        record.record_removal("e", 20);
        let removing = Sandbox { record: Arc::new(record), state: None };
        let only_running = [("r".into(), usages["r"])].into();
        for (members, usages) in
            [(&[&runs, &ended][..], &usages), (&[&runs, &ended], &only_running), (&[&runs], &only_running)]
        {
            assert_eq!(of_sandbox(&removing, members, usages).cpu.unwrap().total_ns, 121);
        }
        assert_eq!(found.network.unwrap().received_bytes, 7);
    }

    #[test]
    fn pressure_is_converted() {
        let stall = executor::PressureStall { total_us: 3, avg10: 150, ..Default::default() };
        let found = pressure(Some(&executor::Pressure { some: Some(stall), full: None })).unwrap();
        let some = found.some.unwrap();
        assert_eq!((some.total, some.avg10), (3000, 1.5));
        assert!(found.full.is_none() && pressure(None).is_none());
    }
}
