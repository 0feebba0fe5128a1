//! Tests SIGKILL of executor-cri, executord and the launcher: rules C43 and C44.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use executor_cri_api::v1::{
    ContainerState, ContainerStatusRequest, ExecSyncRequest, ListContainersRequest, ListPodSandboxRequest,
    PodSandboxStatusRequest,
};
use integration::cri::KubernetesNode;
use integration::daemon::{has_ended, kill};
use integration::wait;
use tonic::Code;

#[test]
fn containers_outlive_all_three_processes() {
    let mut node = KubernetesNode::start();
    let before = node.daemon.footprint();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "exec sleep 100000");
    config.annotations.insert("a".into(), "b".into());
    let running = node.started(&sandbox, &config);
    let ended = node.started(&sandbox, &node.script("d", "exit 4"));
    let known = (node.status(&running).unwrap(), node.until_ended(&ended));
    node.restart_cri();
    assert_eq!((node.status(&running).unwrap(), node.status(&ended).unwrap()), known);
    assert_eq!(node.create(&sandbox, &config).unwrap(), running, "a retry returns the same container");
    let launcher = node.daemon.launcher().unwrap();
    node.daemon.kill();
    kill(launcher, 9);
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    node.daemon.start_again();
    node.restart_cri();
    assert_eq!((node.status(&running).unwrap(), node.status(&ended).unwrap()), known);
    assert_eq!(node.run_sandbox(&node.sandbox("a")).unwrap(), sandbox);
    node.stop_container(&running, 0).unwrap();
    node.remove_sandbox(&sandbox).unwrap();
    node.daemon.wait_until_back_at(&before);
}

/// executor-cri follows executord's events again after executord was killed.
#[test]
fn ends_are_seen_after_a_restart() {
    let mut node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 6"));
    node.daemon.kill();
    node.daemon.start_again();
    wait::until("executor-cri is connected again", || node.exec(&id, &["touch", "/tmp/go"], 10).ok());
    let status = node.until_ended(&id);
    assert_eq!((status.exit_code, &*status.reason), (6, "Error"));
    node.remove_sandbox(&sandbox).unwrap();
}

/// While executord and the launcher restart, no status changes, and calls fail only with UNAVAILABLE. The launcher is
/// frozen before it is killed, and thawed after executord has logged that executord waits. A frozen launcher still
/// exists, and its socket accepts connections.
#[test]
fn statuses_stay_while_executord_restarts() {
    let mut node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    let known = (node.status(&id).unwrap(), node.sandbox_status(&sandbox).unwrap());
    let freezer = Freezer::new();
    let (is_over, polls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let poller = std::thread::spawn({
        let (is_over, polls, mut runtime) = (Arc::clone(&is_over), Arc::clone(&polls), node.runtime());
        let (container_id, pod_sandbox_id) = (id.clone(), sandbox.clone());
        move || {
            let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let request = ContainerStatusRequest { container_id: container_id.clone(), verbose: false };
                let container = executor.block_on(runtime.container_status(request)).unwrap().into_inner();
                let request = PodSandboxStatusRequest { pod_sandbox_id: pod_sandbox_id.clone(), verbose: false };
                let pod = executor.block_on(runtime.pod_sandbox_status(request)).unwrap().into_inner();
                assert_eq!((container.status.unwrap(), pod.status.unwrap()), known);
                let request =
                    ExecSyncRequest { container_id: container_id.clone(), cmd: vec!["true".into()], timeout: 10 };
                if let Err(status) = executor.block_on(runtime.exec_sync(request)) {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                }
                polls.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for _ in 0..3 {
        let polled = polls.load(Ordering::Relaxed);
        let launcher = node.daemon.launcher().unwrap();
        freezer.freeze(launcher);
        node.daemon.kill();
        kill(launcher, 9);
        let log = node.daemon.setup().home().join("daemon.log");
        let waits =
            || fs::read_to_string(&log).unwrap().matches("waiting for the launcher to respond or to exit").count();
        let before = waits();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if freezer.is_available() {
                    wait::until("executord waits for the frozen launcher", || (waits() > before).then_some(()));
                    freezer.thaw();
                }
            });
            node.daemon.start_again();
        });
        wait::until("executor-cri is connected again", || node.exec(&id, &["true"], 10).ok());
        wait::until("the statuses are polled", || (polls.load(Ordering::Relaxed) > polled + 1).then_some(()));
    }
    is_over.store(true, Ordering::Relaxed);
    poller.join().unwrap();
    node.remove_sandbox(&sandbox).unwrap();
}

/// executord connects to a running launcher without waiting for the launcher to exit. Up to five restarts are tried,
/// because on a busy machine the launcher may respond late.
#[test]
fn living_launcher_is_not_waited_for() {
    let mut node = KubernetesNode::start();
    let log = node.daemon.setup().home().join("daemon.log");
    let count = |text: &str| fs::read_to_string(&log).unwrap().matches(text).count();
    let mut restart_without_wait = || {
        let before = count("waiting for the launcher to respond or to exit");
        node.daemon.kill();
        node.daemon.start_again();
        count("waiting for the launcher to respond or to exit") == before
    };
    assert!((0..5).any(|_| restart_without_wait()));
    assert_eq!(count("launcher started"), 1, "control: the launcher was not restarted");
}

/// A cgroup whose processes survive SIGKILL until they are thawed. Only cgroup version 1 has such cgroups. Under
/// version 2, SIGKILL terminates frozen processes, so the launcher is killed without freezing.
struct Freezer(Option<PathBuf>);

impl Freezer {
    fn new() -> Self {
        let hierarchy = Path::new("/sys/fs/cgroup/freezer");
        let path = hierarchy.join(format!("executor-test-{}", std::process::id()));
        Self(hierarchy.exists().then(|| {
            fs::create_dir(&path).unwrap();
            path
        }))
    }

    fn is_available(&self) -> bool {
        self.0.is_some()
    }

    fn freeze(&self, pid: i32) {
        if let Some(path) = &self.0 {
            fs::write(path.join("cgroup.procs"), pid.to_string()).unwrap();
            fs::write(path.join("freezer.state"), "FROZEN").unwrap();
        }
    }

    fn thaw(&self) {
        if let Some(path) = &self.0 {
            fs::write(path.join("freezer.state"), "THAWED").unwrap();
        }
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::write(path.join("freezer.state"), "THAWED");
            let _ = fs::remove_dir(path);
        }
    }
}

/// When executor-cri starts, it deletes containers without a record. Containers that executord does not have get an
/// unknown exit status.
#[test]
fn records_are_reconciled_at_start() {
    let mut node = KubernetesNode::start();
    let before = node.daemon.footprint();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let unrecorded = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    let lost = node.started(&sandbox, &node.script("d", "exec sleep 100000"));
    fs::remove_file(node.records().join("containers").join(format!("{unrecorded}.json"))).unwrap();
    node.daemon.api.delete(&lost, true).unwrap();
    node.restart_cri();
    wait::until("the container without a record is deleted", || {
        node.daemon.api.get(&unrecorded).is_err().then_some(())
    });
    let status = node.status(&lost).unwrap();
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 137));
    assert_eq!(status.reason, "ContainerStatusUnknown");
    node.remove_sandbox(&sandbox).unwrap();
    let mut runtime = node.runtime();
    let containers = node.block_on(runtime.list_containers(ListContainersRequest::default())).unwrap().into_inner();
    let sandboxes = node.block_on(runtime.list_pod_sandbox(ListPodSandboxRequest::default())).unwrap().into_inner();
    assert!(containers.containers.is_empty() && sandboxes.items.is_empty());
    node.daemon.wait_until_back_at(&before);
}

/// A container that another client deletes has an unknown exit status, even without a restart.
#[test]
fn deleted_containers_have_unknown_ends() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    let ended = node.started(&sandbox, &node.script("d", "exit 4"));
    node.until_ended(&ended);
    for id in [&id, &ended] {
        node.daemon.api.delete(id, true).unwrap();
    }
    let status = wait::until("the exit of the container is reported", || {
        Some(node.status(&id).unwrap()).filter(|status| status.state() == ContainerState::ContainerExited)
    });
    // executor-cri may have read the result between the exit and the deletion.
    assert_eq!(status.exit_code, 137, "{status:?}");
    assert_eq!(node.status(&ended).unwrap().exit_code, 4, "a known end stays");
    node.remove_sandbox(&sandbox).unwrap();
}
