//! Tests the cgroup options of a container: the parent, absent limits, CPU limits in the kernel's units, `unified`
//! files, and counters (CRI rules C20, C29, C41 and G6 of docs/guides/cri-rules.md).

use std::fs;
use std::path::{Path, PathBuf};

use executor_proto::v1::{CreatePodRequest, Limits, RunRequest, UpdateLimitsRequest};
use integration::cli;
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::streams::{executed, script};
use integration::wait;
use tonic::Code;

use super::refused;

/// A cgroup of the test in every hierarchy, which exists before the daemon's containers.
struct OwnCgroup(String);

impl OwnCgroup {
    fn new(name: &str) -> Self {
        let own = Self(format!("/cgroup-test-{name}-{}", std::process::id()));
        own.dirs().iter().for_each(|dir| fs::create_dir(dir).unwrap());
        own
    }

    fn dirs(&self) -> Vec<PathBuf> {
        mounts().into_iter().map(|mount| mount.join(&self.0[1..])).collect()
    }

    /// Returns all cgroups below this one, in every hierarchy.
    fn below(&self) -> Vec<PathBuf> {
        fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    found.push(entry.path());
                    walk(&entry.path(), found);
                }
            }
        }
        let mut found = Vec::new();
        self.dirs().iter().for_each(|dir| walk(dir, &mut found));
        found
    }

    fn daemon(&self) -> Setup {
        Setup::default().config(&format!("[policy]\ncgroup_parents = ['{}']\n", self.0))
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        for dir in self.below().into_iter().rev().chain(self.dirs()) {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Returns the hierarchies in which containers have a cgroup.
fn mounts() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_owned()];
    }
    let names = ["cpu", "cpuacct", "cpuset", "devices", "memory", "pids"];
    names.iter().map(|name| fs::canonicalize(root.join(name)).unwrap()).collect()
}

fn at(parent: &str, request: RunRequest) -> RunRequest {
    RunRequest { cgroup_parent: parent.into(), ..request }
}

/// CRI rule C20: the cgroup is created below the parent in each hierarchy. An existing parent is kept; missing parents
/// are created, shared by several containers, and removed with the last container.
#[test]
fn container_runs_below_its_parent() {
    let own = OwnCgroup::new("below");
    let daemon = own.daemon().start();
    let before = daemon.footprint();
    let parent = format!("{}/burstable/pod1", own.0);
    let limits = Limits { cpuset_cpus: "0".into(), ..sleeper("a").limits.unwrap() };
    let container = daemon.api.started(at(&parent, RunRequest { limits: Some(limits), ..sleeper("a") }));
    assert_eq!(container.spec.as_ref().unwrap().cgroup_parent, parent);
    daemon.api.started(at(&parent, sleeper("b")));
    let cgroup = daemon.record("a").cgroup;
    assert!(cgroup.starts_with(&parent[1..]) && cgroup.to_str().unwrap().ends_with("-a"), "{cgroup:?}");
    let init = integration::api::pid(&container);
    let joined = fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap();
    for controller in ["memory", "pids", "cpu", "cpuset"].iter().filter(|_| mounts().len() > 1) {
        let line = joined.lines().find(|line| line.split(':').nth(1) == Some(controller)).unwrap();
        assert!(line.ends_with(&format!("/{}", cgroup.display())), "{line}");
    }
    daemon.api.delete("a", true).unwrap();
    let kept = own.below();
    assert!(kept.iter().any(|dir| dir.ends_with("pod1")) && !kept.iter().any(|dir| dir.ends_with(&cgroup)), "{kept:?}");
    assert_eq!(executed(&daemon.api, script("b", "echo x")).unwrap().text(), "x\n");
    daemon.api.delete("b", true).unwrap();
    assert_eq!(own.below(), Vec::<PathBuf>::new(), "created parents are removed");
    assert!(own.dirs().iter().all(|dir| dir.exists()), "the parent of the test stays");
    daemon.wait_until_back_at(&before);
}

/// CRI rule C20: the cgroups of a pod's members are below the pod's parent, which a member's specification also shows.
#[test]
fn members_run_below_the_pods_parent() {
    let own = OwnCgroup::new("pod");
    let daemon = own.daemon().start();
    let parent = format!("{}/pod2", own.0);
    let request = CreatePodRequest { id: "p".into(), cgroup_parent: parent.clone(), ..Default::default() };
    let pods = daemon.api.client().pods();
    let (pod, _) = daemon.api.block_on(pods.create(&request)).unwrap();
    assert_eq!(pod.spec.unwrap().cgroup_parent, parent);
    let member = daemon.api.started(RunRequest { pod: "p".into(), ..sleeper("m") });
    assert_eq!(member.spec.unwrap().cgroup_parent, parent);
    assert!(["p", "m"].iter().all(|id| daemon.record(id).cgroup.starts_with(&parent[1..])));
    let (code, violations) = refused(&daemon, at(&parent, RunRequest { pod: "p".into(), ..sleeper("n") }));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "cgroup_parent"));
    daemon.api.block_on(pods.delete("p", true)).unwrap();
    assert_eq!(own.below(), Vec::<PathBuf>::new());
}

/// CRI rule C20: a parent outside of the operator's list is refused by name, and nothing is created. As a control, the
/// listed parent is accepted.
#[test]
fn parent_outside_the_list_is_refused() {
    let own = OwnCgroup::new("list");
    let daemon = own.daemon().start();
    let other = format!("{}-other", own.0);
    for parent in [&*other, &format!("{}/../x", own.0), "/"] {
        let (code, violations) = refused(&daemon, at(parent, sleeper("a")));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "cgroup_parent"), "{parent}");
    }
    let (_, violations) = refused(&daemon, at(&other, sleeper("a")));
    let why = &violations[0].1;
    assert!(why.contains("policy.cgroup_parents") && why.contains(&format!("add \"{other}\"")), "{why}");
    assert!(mounts().iter().all(|mount| !mount.join(&other[1..]).exists()));
    daemon.api.started(at(&own.0, sleeper("a")));
    let closed = Daemon::start();
    let (_, violations) = refused(&closed, at(&own.0, sleeper("a")));
    assert!(violations[0].1.contains("which is empty"), "{violations:?}");
    daemon.api.delete("a", true).unwrap();
}

/// CRI rule C20: after a kill of any of the executor's processes, the container's cgroup and the created parents are
/// removed.
#[test]
fn killed_processes_leave_no_parent() {
    let own = OwnCgroup::new("kill");
    let mut daemon = own.daemon().start();
    let before = daemon.footprint();
    let parent = format!("{}/pod3", own.0);
    daemon.api.started(at(&parent, sleeper("orphan")));
    kill(daemon.record("orphan").shim.pid, 9);
    daemon.api.wait("orphan").unwrap();
    daemon.api.delete("orphan", false).unwrap();
    assert_eq!(own.below(), Vec::<PathBuf>::new(), "after the shim");
    daemon.wait_until_back_at(&before);
    // executord, launcher and shim at the same time: the next launcher completes the container.
    daemon.api.started(at(&parent, sleeper("all")));
    let (shim, launcher) = (daemon.record("all").shim.pid, daemon.launcher().unwrap());
    daemon.kill();
    [launcher, shim].into_iter().for_each(|pid| kill(pid, 9));
    wait::until("the launcher and the shim have exited", || [launcher, shim].into_iter().all(has_ended).then_some(()));
    assert!(!own.below().is_empty(), "control failed");
    daemon.start_again();
    wait::until("the exit of the container is known", || daemon.api.wait("all").ok());
    daemon.api.delete("all", true).unwrap();
    assert_eq!(own.below(), Vec::<PathBuf>::new(), "after all of them");
}

fn unlimited() -> Limits {
    Limits { unlimited_memory: true, unlimited_pids: true, ..Limits::default() }
}

/// Reads a file of a container's cgroup, by controller and name for cgroup v1, and by name for v2.
fn read(daemon: &Daemon, id: &str, (controller, v1): (&str, &str), v2: &str) -> String {
    let (root, cgroup) = (Path::new("/sys/fs/cgroup"), daemon.record(id).cgroup);
    let files = [root.join(controller).join(&cgroup).join(v1), root.join(&cgroup).join(v2)];
    let file = files.iter().find(|file| file.is_file()).unwrap_or_else(|| panic!("none of {files:?}"));
    fs::read_to_string(file).unwrap().trim().to_owned()
}

fn memory(daemon: &Daemon, id: &str) -> String {
    let limit = read(daemon, id, ("memory", "memory.limit_in_bytes"), "memory.max");
    // Version 1 shows the largest number of whole pages.
    if limit == "9223372036854771712" { "max".into() } else { limit }
}

/// CRI rule C29: without limits, the cgroup has none, and nothing is counted against the node's capacity. As a control,
/// the request is refused without the operator's permission, and an unset limit is the default.
#[test]
fn no_limits_are_written_or_counted() {
    let daemon = Setup::default().config("[policy]\nallow_no_limits = true\n").start();
    let capacity = daemon.api.info().remaining.unwrap();
    let container = daemon.api.started(RunRequest { limits: Some(unlimited()), ..sleeper("a") });
    let limits = container.spec.unwrap().limits.unwrap();
    assert!(limits.unlimited_memory && limits.unlimited_pids && limits.memory_bytes == 0, "{limits:?}");
    assert_eq!(
        (memory(&daemon, "a"), read(&daemon, "a", ("pids", "pids.max"), "pids.max")),
        ("max".into(), "max".into())
    );
    let now = daemon.api.info().remaining.unwrap();
    assert_eq!((now.memory_bytes, now.pids), (capacity.memory_bytes, capacity.pids));
    daemon.api.started(RunRequest { limits: None, ..sleeper("b") });
    assert_eq!(memory(&daemon, "b"), (256 << 20).to_string());

    let update = |limits: Limits| {
        let request = UpdateLimitsRequest { id: "a".into(), limits: Some(limits) };
        daemon.api.block_on(daemon.api.rpc().update_limits(request)).map(|_| ())
    };
    update(Limits { memory_bytes: 64 << 20, pids: 9, ..Limits::default() }).unwrap();
    assert_eq!(
        (memory(&daemon, "a"), read(&daemon, "a", ("pids", "pids.max"), "pids.max")),
        ((64 << 20).to_string(), "9".into())
    );
    update(unlimited()).unwrap();
    assert_eq!(
        (memory(&daemon, "a"), read(&daemon, "a", ("pids", "pids.max"), "pids.max")),
        ("max".into(), "max".into())
    );
    assert_eq!(daemon.api.info().remaining.unwrap().memory_bytes, capacity.memory_bytes - (256 << 20));

    let closed = Daemon::start();
    let (code, violations) = refused(&closed, RunRequest { limits: Some(unlimited()), ..sleeper("a") });
    let fields: Vec<&str> = violations.iter().map(|(field, _)| &**field).collect();
    assert_eq!((code, fields), (Code::InvalidArgument, vec!["limits.unlimited_memory", "limits.unlimited_pids"]));
    assert!(violations[0].1.contains("policy.allow_no_limits = true"), "{violations:?}");
}

/// CRI rule C29: quota, period and shares are set in the kernel's units, and change together.
#[test]
fn quota_and_shares_arrive_and_change() {
    let daemon = Daemon::start();
    let limits = Limits { cpu_quota_us: 20_000, cpu_period_us: 50_000, cpu_shares: 512, ..Limits::default() };
    daemon.api.started(RunRequest { limits: Some(limits), ..sleeper("a") });
    let is_v1 = mounts().len() > 1;
    let quota = || match is_v1 {
        true => ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(|file| read(&daemon, "a", ("cpu", file), "")).join(" "),
        false => read(&daemon, "a", ("", ""), "cpu.max"),
    };
    let weight = || read(&daemon, "a", ("cpu", "cpu.shares"), "cpu.weight");
    assert_eq!((quota(), weight()), ("20000 50000".into(), if is_v1 { "512" } else { "59" }.into()));
    let update = |limits: Limits| {
        let request = UpdateLimitsRequest { id: "a".into(), limits: Some(limits) };
        daemon.api.block_on(daemon.api.rpc().update_limits(request)).map(|_| ())
    };
    update(Limits { cpu_quota_us: 9000, cpu_period_us: 10_000, cpu_shares: 1024, ..Limits::default() }).unwrap();
    assert_eq!((quota(), weight()), ("9000 10000".into(), if is_v1 { "1024" } else { "100" }.into()));
    update(Limits { cpu_millis: 500, ..Limits::default() }).unwrap();
    assert_eq!(quota(), "50000 100000");
    update(Limits { cpu_quota_us: -1, ..Limits::default() }).unwrap();
    assert!(quota().starts_with(if is_v1 { "-1" } else { "max" }), "{}", quota());
    let both = Limits { cpu_quota_us: 9000, cpu_millis: 5, ..Limits::default() };
    assert_eq!(update(both).unwrap_err().code(), Code::InvalidArgument);
}

/// CRI rule C29: `unified` files that the policy does not allow are refused, each by name; on a cgroup v1 host, all
/// `unified` files are refused. A limit for a huge page size that the host does not support is refused.
#[test]
fn unified_files_are_refused_on_version_1() {
    let daemon = Setup::default().config("[policy]\ncgroup_keys = ['memory.high']\n").start();
    let with = |limits: Limits| RunRequest { limits: Some(limits), ..sleeper("a") };
    let high = |file: &str| Limits { unified: [(file.to_owned(), "67108864".to_owned())].into(), ..Limits::default() };
    let (code, violations) = refused(&daemon, with(high("memory.low")));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "limits.unified[memory.low]"));
    if mounts().len() > 1 {
        let (code, violations) = refused(&daemon, with(high("memory.high")));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "limits.unified[memory.high]"));
    } else {
        daemon.api.started(with(high("memory.high")));
        assert_eq!(read(&daemon, "a", ("", ""), "memory.high"), "67108864");
        daemon.api.delete("a", true).unwrap();
    }
    let absent = Limits { hugepage_bytes: [("64KB".to_owned(), 0)].into(), ..Limits::default() };
    if !Path::new("/sys/kernel/mm/hugepages/hugepages-64kB").exists() {
        let (code, violations) = refused(&daemon, with(absent));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "limits.hugepage_bytes[64KB]"));
    }
}

/// CRI rule C29, rule P49 of docs/guides/kube-rules.md: agent-cli has docker's flags for limits, and flags for no
/// limit.
#[test]
fn flags_set_cgroup_options() {
    let own = OwnCgroup::new("flags");
    let config = format!("[policy]\ncgroup_parents = ['{}']\nallow_no_limits = true\n", own.0);
    let daemon = Setup::default().config(&config).start();
    let line = format!(
        "run -d --id a -m -1 --pids-limit -1 --cpu-shares 2048 --cpu-period 50000 --cpu-quota 5000 --cgroup-parent {} \
         -- sleep 1000",
        own.0
    );
    let run = cli::run(&daemon.socket(), &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(run.status, 0, "{}", run.stderr);
    let spec = cli::run(&daemon.socket(), &["inspect", "--json", "a"]).json()["spec"].clone();
    let limits = &spec["limits"];
    assert_eq!((&limits["unlimited_memory"], &limits["unlimited_pids"]), (&true.into(), &true.into()));
    assert_eq!((&limits["cpu_quota_us"], &limits["cpu_shares"]), (&5000.into(), &2048.into()));
    assert_eq!(spec["cgroup_parent"], own.0);
    let shown = cli::run(&daemon.socket(), &["inspect", "a"]).stdout;
    assert!(shown.contains("5000 of 50000") && shown.contains(&own.0) && shown.contains("2048"), "{shown}");
    let wrong = cli::run(&daemon.socket(), &["run", "--cgroup-parent", "/x", "--", "true"]);
    assert!(wrong.status != 0 && wrong.stderr.contains("--cgroup-parent"), "{}", wrong.stderr);
    let update = cli::run(&daemon.socket(), &["update", "--memory", "64M", "--cpu-shares", "512", "a"]);
    assert_eq!((update.status, memory(&daemon, "a")), (0, (64 << 20).to_string()), "{}", update.stderr);
    daemon.api.delete("a", true).unwrap();
    assert!(sh("true").id("x").cgroup_parent.is_empty() && own.below().is_empty());
}

/// CRI rule C41: the counters have a timestamp and the number of page faults, and pressure if the kernel measures it
/// for each cgroup.
#[test]
fn usage_has_faults_and_pressure() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("a"));
    let stats = || cli::run(&daemon.socket(), &["stats", "--json", "--no-stream", "a"]).json()[0]["usage"].clone();
    let faults = |usage: &serde_json::Value| usage["memory"]["page_faults"].as_u64().unwrap();
    let before = stats();
    assert!(before["time"].is_string() && before["memory"]["major_page_faults"].is_u64(), "{before}");
    let touch = "x=$(head -c 4000000 /dev/zero | tr '\\0' a); echo ${#x}";
    assert_eq!(executed(&daemon.api, script("a", touch)).unwrap().text(), "4000000\n");
    wait::until("the faults of 4 MB are counted", || (faults(&stats()) > faults(&before) + 500).then_some(()));
    assert_eq!(stats()["memory_pressure"].is_object(), mounts().len() == 1 && Path::new("/proc/pressure").exists());
}
