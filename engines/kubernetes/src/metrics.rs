//! Metrics of pods and containers with the names of cAdvisor, which the kubelet republishes: rule C41.
//!
//! Metrics that a host does not support are omitted, such as pressure without PSI. Values are whole numbers, so times
//! are in whole seconds.

use executor_client::v1::{NetworkUsage, PressureStall, Usage};
use executor_cri_api::v1::{
    ContainerMetrics, ContainerState, Metric, MetricDescriptor, MetricType, PodSandboxMetrics, UInt64Value,
};
use tonic::Status;

use crate::cgroup::{CgroupCounters, HugePages};
use crate::failure;
use crate::node::{Node, now};
use crate::pod_cgroup;
use crate::stats;
use crate::status::{nanoseconds, state};
use crate::store::{Container, Sandbox};

/// Number of nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Default of `cpu.cfs_period_us`.
const PERIOD_US: i64 = 100_000;
/// Default of `cpu.shares`.
const SHARES: i64 = 1024;
/// Maximum number of threads that the kernel allows. Containers have no other limit.
const PIDS_MAX: u64 = 4_194_304;

/// Kind, name, help text, and labels in addition to [`LABELS`].
type Description = (MetricType, &'static str, &'static str, &'static [&'static str]);

/// Labels of every metric.
const LABELS: [&str; 6] = ["id", "name", "image", "pod", "namespace", "container"];
const COUNTER: MetricType = MetricType::Counter;
const GAUGE: MetricType = MetricType::Gauge;
const NETWORK: &[&str] = &["interface"];
const DEVICE: &[&str] = &["device"];

/// Descriptions of the metrics of containers.
const CONTAINER: [Description; 48] = [
    (COUNTER, "container_blkio_device_usage_total", "Bytes transferred from and to disks", &["device", "operation"]),
    (COUNTER, "container_cpu_cfs_periods_total", "Number of periods in which the container ran", &[]),
    (COUNTER, "container_cpu_cfs_throttled_periods_total", "Number of throttled periods", &[]),
    (COUNTER, "container_cpu_cfs_throttled_seconds_total", "Time for which the container was throttled", &[]),
    (COUNTER, "container_cpu_system_seconds_total", "Processor time in the kernel", &[]),
    (COUNTER, "container_cpu_usage_seconds_total", "Processor time", &["cpu"]),
    (COUNTER, "container_cpu_user_seconds_total", "Processor time in user mode", &[]),
    (GAUGE, "container_file_descriptors", "Number of open files of the container's processes", &[]),
    (GAUGE, "container_fs_inodes_free", "Number of free inodes of the file system", DEVICE),
    (GAUGE, "container_fs_inodes_total", "Number of inodes of the file system", DEVICE),
    (GAUGE, "container_fs_limit_bytes", "Size of the file system in bytes", DEVICE),
    (COUNTER, "container_fs_reads_bytes_total", "Bytes read from disks", DEVICE),
    (COUNTER, "container_fs_reads_total", "Number of reads from disks", DEVICE),
    (GAUGE, "container_fs_usage_bytes", "Bytes of the writable layer", DEVICE),
    (COUNTER, "container_fs_writes_bytes_total", "Bytes written to disks", DEVICE),
    (COUNTER, "container_fs_writes_total", "Number of writes to disks", DEVICE),
    (GAUGE, "container_hugetlb_max_usage_bytes", "Largest use of huge pages in bytes", &["pagesize"]),
    (GAUGE, "container_hugetlb_usage_bytes", "Bytes of huge pages", &["pagesize"]),
    (GAUGE, "container_last_seen", "Time of the reading", &[]),
    (GAUGE, "container_memory_cache", "Bytes of page cache", &[]),
    (COUNTER, "container_memory_failcnt", "Number of times that the memory limit was reached", &[]),
    (COUNTER, "container_memory_failures_total", "Number of page faults", &["failure_type", "scope"]),
    (GAUGE, "container_memory_kernel_usage", "Bytes of kernel memory", &[]),
    (GAUGE, "container_memory_mapped_file", "Bytes of mapped files", &[]),
    (GAUGE, "container_memory_max_usage_bytes", "Largest use of memory in bytes", &[]),
    (GAUGE, "container_memory_rss", "Bytes of anonymous memory", &[]),
    (GAUGE, "container_memory_swap", "Bytes of swap", &[]),
    (GAUGE, "container_memory_usage_bytes", "Bytes of memory, page cache included", &[]),
    (GAUGE, "container_memory_working_set_bytes", "Bytes of memory in active use", &[]),
    (COUNTER, "container_oom_events_total", "Number of processes that were killed at the memory limit", &[]),
    (
        COUNTER,
        "container_pressure_cpu_stalled_seconds_total",
        "Time for which all processes waited for processors",
        &[],
    ),
    (COUNTER, "container_pressure_cpu_waiting_seconds_total", "Time for which a process waited for processors", &[]),
    (COUNTER, "container_pressure_io_stalled_seconds_total", "Time for which all processes waited for disks", &[]),
    (COUNTER, "container_pressure_io_waiting_seconds_total", "Time for which a process waited for disks", &[]),
    (COUNTER, "container_pressure_memory_stalled_seconds_total", "Time for which all processes waited for memory", &[]),
    (COUNTER, "container_pressure_memory_waiting_seconds_total", "Time for which a process waited for memory", &[]),
    (GAUGE, "container_processes", "Number of processes", &[]),
    (GAUGE, "container_sockets", "Number of open sockets of the container's processes", &[]),
    (GAUGE, "container_spec_cpu_period", "Period of the processor quota in microseconds", &[]),
    (GAUGE, "container_spec_cpu_quota", "Processor time in each period, in microseconds", &[]),
    (GAUGE, "container_spec_cpu_shares", "Share of processor time", &[]),
    (GAUGE, "container_spec_memory_limit_bytes", "Limit on memory in bytes", &[]),
    (GAUGE, "container_spec_memory_reservation_limit_bytes", "Bytes of memory that are reserved", &[]),
    (GAUGE, "container_spec_memory_swap_limit_bytes", "Limit on memory and swap in bytes", &[]),
    (GAUGE, "container_start_time_seconds", "Start time in seconds since 1970", &[]),
    (GAUGE, "container_threads", "Number of threads", &[]),
    (GAUGE, "container_threads_max", "Maximum number of threads", &[]),
    (GAUGE, "container_ulimits_soft", "Soft limit of the container's first process", &["ulimit"]),
];

/// Descriptions of the network metrics of pods.
const POD: [Description; 8] = [
    (COUNTER, "container_network_receive_bytes_total", "Bytes received", NETWORK),
    (COUNTER, "container_network_receive_errors_total", "Errors while receiving", NETWORK),
    (COUNTER, "container_network_receive_packets_dropped_total", "Received packets that were dropped", NETWORK),
    (COUNTER, "container_network_receive_packets_total", "Packets received", NETWORK),
    (COUNTER, "container_network_transmit_bytes_total", "Bytes sent", NETWORK),
    (COUNTER, "container_network_transmit_errors_total", "Errors while sending", NETWORK),
    (COUNTER, "container_network_transmit_packets_dropped_total", "Packets to send that were dropped", NETWORK),
    (COUNTER, "container_network_transmit_packets_total", "Packets sent", NETWORK),
];

/// Returns the names of the metrics, each with its labels.
pub(crate) fn descriptors() -> Vec<MetricDescriptor> {
    let descriptor = |&(_, name, help, labels): &Description| MetricDescriptor {
        name: name.to_owned(),
        help: help.to_owned(),
        label_keys: LABELS.iter().chain(labels).map(|&label| label.to_owned()).collect(),
    };
    CONTAINER.iter().chain(&POD).map(descriptor).collect()
}

/// Returns the metrics of all sandboxes that are ready, and of their running containers.
///
/// # Errors
/// Returns an error if a call to executord fails.
pub(crate) async fn list(node: &Node) -> Result<Vec<PodSandboxMetrics>, Status> {
    let containers = node.store.containers.all();
    let usages = stats::usages(node, &containers).await?;
    let disk = Disk::read(&node.client.info().await.map_err(failure::status)?.state_dir);
    let sandboxes = node.store.sandboxes.all().into_iter().filter(Sandbox::is_ready);
    let mut all = Vec::new();
    for sandbox in sandboxes {
        let members = containers.iter().filter(|container| container.record.sandbox == sandbox.record.id);
        let members: Vec<&Container> = members.collect();
        let usage = stats::of_sandbox(&sandbox, &members, &usages);
        let labels_of_pod = labels(&sandbox, None);
        // Without a cgroup of the pod, only sums of some counters are available.
        let has_cgroup = pod_cgroup::has_parent(&sandbox.record.config);
        let values = if has_cgroup { of_cgroup(&usage) } else { Vec::new() };
        let mut metrics: Vec<Metric> = values
            .into_iter()
            .map(|(name, more, value)| metric(&CONTAINER, name, &labels_of_pod, &more, value))
            .collect();
        metrics.extend(usage.network.iter().flat_map(|network| of_network(&labels_of_pod, network)));
        let mut container_metrics = Vec::new();
        for container in members {
            let is_running = state(container) == ContainerState::ContainerRunning;
            let Some(usage) = usages.get(&container.record.id).filter(|_| is_running) else { continue };
            let labels = labels(&sandbox, Some(container));
            let counters = CgroupCounters::of_container(container);
            let values = of_container(container, usage, &counters, disk.as_ref());
            let metrics = values.into_iter().map(|(name, more, value)| metric(&CONTAINER, name, &labels, &more, value));
            container_metrics
                .push(ContainerMetrics { container_id: container.record.id.clone(), metrics: metrics.collect() });
        }
        all.push(PodSandboxMetrics { pod_sandbox_id: sandbox.record.id.clone(), metrics, container_metrics });
    }
    Ok(all)
}

/// The file system of images and writable layers.
struct Disk {
    path: String,
    inodes_free: u64,
    inodes: u64,
    bytes: u64,
}

impl Disk {
    fn read(path: &str) -> Option<Self> {
        let found = rustix::fs::statvfs(path).ok()?;
        let bytes = found.f_blocks.saturating_mul(found.f_frsize);
        Some(Self { path: path.to_owned(), inodes_free: found.f_ffree, inodes: found.f_files, bytes })
    }
}

/// Returns the values of [`LABELS`]. Without a container, the values of `image` and `container` are empty.
fn labels(sandbox: &Sandbox, container: Option<&Container>) -> Vec<String> {
    let metadata = sandbox.record.config.metadata.clone().unwrap_or_default();
    let record = container.map(|container| &container.record);
    let id = record.map_or(&sandbox.record.id, |record| &record.id);
    let image = record.map(|record| record.image_ref.clone()).unwrap_or_default();
    let name = record.and_then(|record| Some(record.config.metadata.as_ref()?.name.clone())).unwrap_or_default();
    vec![format!("/{id}"), id.clone(), image, metadata.name, metadata.namespace, name]
}

fn metric(table: &[Description], name: &str, labels: &[String], more: &[&str], value: u64) -> Metric {
    let kind = table.iter().find(|(_, known, ..)| *known == name).map_or(GAUGE, |(kind, ..)| *kind);
    Metric {
        name: name.to_owned(),
        timestamp: now(),
        metric_type: kind.into(),
        label_values: labels.iter().cloned().chain(more.iter().map(|&label| label.to_owned())).collect(),
        value: Some(UInt64Value { value }),
    }
}

fn of_network(labels: &[String], network: &NetworkUsage) -> Vec<Metric> {
    let values = [
        network.received_bytes,
        network.received_errors,
        network.received_dropped,
        network.received_packets,
        network.sent_bytes,
        network.sent_errors,
        network.sent_dropped,
        network.sent_packets,
    ];
    let names = POD.iter().map(|(_, name, ..)| name);
    names.zip(values).map(|(name, value)| metric(&POD, name, labels, &[stats::INTERFACE], value)).collect()
}

/// Name of a metric, its label values in addition to [`LABELS`], and its value.
type Value<'a> = (&'static str, Vec<&'a str>, u64);

/// Returns the cgroup counters of a pod or a container.
fn of_cgroup(usage: &Usage) -> Vec<Value<'static>> {
    let (cpu, memory) = (usage.cpu.unwrap_or_default(), usage.memory.unwrap_or_default());
    let mut values: Vec<Value<'_>> = vec![
        ("container_cpu_cfs_periods_total", vec![], cpu.periods),
        ("container_cpu_cfs_throttled_periods_total", vec![], cpu.throttled_periods),
        ("container_cpu_cfs_throttled_seconds_total", vec![], cpu.throttled_ns / SECOND),
        ("container_cpu_system_seconds_total", vec![], cpu.system_ns / SECOND),
        ("container_cpu_usage_seconds_total", vec!["total"], cpu.total_ns / SECOND),
        ("container_cpu_user_seconds_total", vec![], cpu.user_ns / SECOND),
        ("container_memory_cache", vec![], memory.cache_bytes),
        ("container_memory_kernel_usage", vec![], memory.kernel_bytes.unwrap_or_default()),
        ("container_memory_max_usage_bytes", vec![], memory.max_bytes.unwrap_or_default()),
        ("container_memory_rss", vec![], memory.rss_bytes),
        ("container_memory_swap", vec![], memory.swap_bytes.unwrap_or_default()),
        ("container_memory_usage_bytes", vec![], memory.usage_bytes),
        ("container_memory_working_set_bytes", vec![], memory.working_set_bytes),
        ("container_threads", vec![], usage.pids.map_or(0, |pids| pids.current)),
    ];
    for (kind, faults) in [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)] {
        values.push(("container_memory_failures_total", vec![kind, "container"], faults.unwrap_or_default()));
    }
    let seconds = |stall: &PressureStall| stall.total_us / 1_000_000;
    for (pressure, waiting, stalled) in [
        (
            &usage.cpu_pressure,
            "container_pressure_cpu_waiting_seconds_total",
            "container_pressure_cpu_stalled_seconds_total",
        ),
        (
            &usage.memory_pressure,
            "container_pressure_memory_waiting_seconds_total",
            "container_pressure_memory_stalled_seconds_total",
        ),
        (
            &usage.io_pressure,
            "container_pressure_io_waiting_seconds_total",
            "container_pressure_io_stalled_seconds_total",
        ),
    ] {
        let Some(pressure) = pressure else { continue };
        values.extend(pressure.some.as_ref().map(|some| (waiting, vec![], seconds(some))));
        values.extend(pressure.full.as_ref().map(|full| (stalled, vec![], seconds(full))));
    }
    values
}

fn of_container<'a>(
    container: &Container,
    usage: &Usage,
    counters: &'a CgroupCounters,
    disk: Option<&'a Disk>,
) -> Vec<Value<'a>> {
    let resources = &container.record.resources;
    let memory = usage.memory.unwrap_or_default();
    let number = |value: i64, default: i64| u64::try_from(if value == 0 { default } else { value }).unwrap_or(0);
    let started = container.state.as_ref().and_then(|run| run.started_at.as_ref());
    let since_1970 = |nanoseconds: i64| u64::try_from(nanoseconds).unwrap_or(0) / SECOND;
    let mut values: Vec<Value<'_>> = of_cgroup(usage);
    values.extend([
        ("container_last_seen", vec![], since_1970(now())),
        ("container_oom_events_total", vec![], memory.oom_kills),
        ("container_file_descriptors", vec![], counters.descriptors),
        ("container_memory_failcnt", vec![], counters.limit_reached),
        ("container_memory_mapped_file", vec![], counters.mapped_bytes),
        ("container_processes", vec![], counters.processes),
        ("container_sockets", vec![], counters.sockets),
        ("container_threads_max", vec![], PIDS_MAX),
        ("container_spec_cpu_period", vec![], number(resources.cpu_period, PERIOD_US)),
        ("container_spec_cpu_shares", vec![], number(resources.cpu_shares, SHARES)),
        ("container_spec_memory_limit_bytes", vec![], number(resources.memory_limit_in_bytes, 0)),
        ("container_spec_memory_reservation_limit_bytes", vec![], counters.reserved_bytes),
        ("container_spec_memory_swap_limit_bytes", vec![], number(resources.memory_swap_limit_in_bytes, 0)),
        ("container_start_time_seconds", vec![], since_1970(nanoseconds(started))),
    ]);
    for HugePages { size, used_bytes, max_bytes } in &counters.huge_pages {
        values.push(("container_hugetlb_usage_bytes", vec![size], *used_bytes));
        values.extend(max_bytes.map(|bytes| ("container_hugetlb_max_usage_bytes", vec![&**size], bytes)));
    }
    values.extend(counters.files_limit.map(|limit| ("container_ulimits_soft", vec!["max_open_files"], limit)));
    if resources.cpu_quota > 0 {
        values.push(("container_spec_cpu_quota", vec![], number(resources.cpu_quota, 0)));
    }
    if let Some(disk) = disk {
        let device = || vec![&*disk.path];
        values.extend([
            ("container_fs_inodes_free", device(), disk.inodes_free),
            ("container_fs_inodes_total", device(), disk.inodes),
            ("container_fs_limit_bytes", device(), disk.bytes),
            ("container_fs_usage_bytes", device(), usage.writable_layer.map_or(0, |layer| layer.used_bytes)),
        ]);
        if let Some(io) = &usage.io {
            values.extend([
                ("container_fs_reads_bytes_total", device(), io.read_bytes),
                ("container_fs_reads_total", device(), io.reads),
                ("container_fs_writes_bytes_total", device(), io.written_bytes),
                ("container_fs_writes_total", device(), io.writes),
                ("container_blkio_device_usage_total", vec![&*disk.path, "Read"], io.read_bytes),
                ("container_blkio_device_usage_total", vec![&*disk.path, "Write"], io.written_bytes),
            ]);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_client::v1::{CpuUsage, IoUsage, Pressure};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use crate::store::ContainerRecord;

    /// Rule C41: each metric has as many label values as its description has labels.
    #[test]
    fn labels_match_descriptions() {
        let usage = Usage {
            cpu: Some(CpuUsage { total_ns: 3 * SECOND, ..CpuUsage::default() }),
            io: Some(IoUsage::default()),
            cpu_pressure: Some(Pressure { some: Some(PressureStall::default()), full: Some(PressureStall::default()) }),
            ..Usage::default()
        };
        let container = Container { record: Arc::new(ContainerRecord::default()), state: None };
        let disk = Disk { path: "/".into(), inodes_free: 1, inodes: 2, bytes: 3 };
        let described: BTreeSet<(String, usize)> =
            descriptors().into_iter().map(|one| (one.name, one.label_keys.len())).collect();
        assert_eq!(described.len(), CONTAINER.len() + POD.len(), "names are unique");
        let pages = HugePages { size: "2MB".into(), used_bytes: 4, max_bytes: Some(5) };
        let counters = CgroupCounters { files_limit: Some(6), huge_pages: vec![pages], ..CgroupCounters::default() };
        let values = of_container(&container, &usage, &counters, Some(&disk));
        for (name, more, _) in &values {
            assert!(described.contains(&((*name).to_owned(), LABELS.len() + more.len())), "{name} {more:?}");
        }
        assert!(values.contains(&("container_cpu_usage_seconds_total", vec!["total"], 3)));
        assert!(values.contains(&("container_hugetlb_max_usage_bytes", vec!["2MB"], 5)));
        assert!(values.contains(&("container_ulimits_soft", vec!["max_open_files"], 6)));
        assert_eq!(described.len(), 56);
        assert_eq!(of_network(&[], &NetworkUsage::default()).len(), POD.len());
    }
}
