//! Tests that a file system that stops responding delays only its own containers: rule C45.

use std::time::Duration;

use executor_cri_api::v1::{
    ContainerState, CreateContainerRequest, ListContainerStatsRequest, ListContainersRequest, ListPodSandboxRequest,
    Mount, StatusRequest,
};
use integration::cri::{KubernetesNode, POLICY, log_dir};
use integration::daemon::{Setup, has_ended, kill};
use integration::fuse::{Fuse, Held};
use integration::wait;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tonic::{Code, Request};

/// Deadline of a kubelet's call.
const DEADLINE: Duration = Duration::from_secs(60);

/// A node whose pods may mount a FUSE file system of the test. `fuse` is dropped first, so that containers that wait
/// for the file system can exit.
struct Stage {
    fuse: Fuse,
    node: KubernetesNode,
    mount: Mount,
    _home: TempDir,
}

impl Stage {
    fn new() -> Self {
        let home = tempfile::tempdir_in("/run").unwrap();
        let at = home.path().join("mount");
        std::fs::create_dir(&at).unwrap();
        let fuse = Fuse::mount(&at);
        let setup = Setup::default();
        let config = format!(
            "[policy]\n{POLICY}log_dirs = [{:?}]\nhost_paths = [{at:?}]\n[quarantine]\ncreate_seconds = 20\n\
             stop_seconds = 10\n",
            log_dir(&setup)
        );
        let node = KubernetesNode::with(setup.config(&config));
        let mount = Mount { container_path: "/mnt".into(), host_path: at.display().to_string(), ..Mount::default() };
        Self { fuse, node, mount, _home: home }
    }

    /// Makes list calls and all calls for another pod.
    fn check_other_pods(&self) {
        let node = &self.node;
        let mut runtime = node.runtime();
        node.block_on(async {
            runtime.list_containers(ListContainersRequest::default()).await.unwrap();
            runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await.unwrap();
            runtime.list_container_stats(ListContainerStatsRequest::default()).await.unwrap();
            runtime.status(StatusRequest::default()).await.unwrap();
        });
        let sandbox = node.run_sandbox(&node.sandbox("other")).unwrap();
        let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
        assert_eq!(node.exec(&id, &["echo", "x"], 10).unwrap().stdout, b"x\n");
        node.stop_container(&id, 0).unwrap();
        node.remove_container(&id).unwrap();
        node.remove_sandbox(&sandbox).unwrap();
    }
}

/// Checks CRI complaint X9: CreateContainer and its retry return a clear status within their deadlines, and other calls
/// do not wait. When the file system responds again or fails, no process, mount or record is left. As a control, the
/// container runs while the file system responds.
fn check_creation(aborts: bool) {
    let stage = Stage::new();
    let node = &stage.node;
    let before = node.daemon.footprint();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "cat /mnt/file; exec sleep 100000");
    config.mounts.push(stage.mount.clone());
    let control = node.started(&sandbox, &config);
    node.remove_container(&control).unwrap();
    stage.fuse.hold(Held::All);
    let (pod_sandbox_id, config) = (sandbox.clone(), Some(config));
    let create = CreateContainerRequest { pod_sandbox_id, config, ..CreateContainerRequest::default() };
    let call = |create: &CreateContainerRequest| {
        let (mut runtime, mut request) = (node.runtime(), Request::new(create.clone()));
        request.set_timeout(DEADLINE);
        node.block_on(runtime.create_container(request)).map(|answer| answer.into_inner().container_id)
    };
    // `create_seconds` is 20 in this test. With the default of 300 s, the 2-minute deadline of a kubelet would end the
    // call first.
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| call(&create));
        wait::until("the creation waits for the file system", || (stage.fuse.waiting() > 0).then_some(()));
        stage.check_other_pods();
        assert!(!refused.is_finished(), "calls for another pod waited for the creation");
        let refused = refused.join().unwrap().unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        assert!(refused.message().contains("phase `create` exceeded its time limit"), "{refused:?}");
    });
    let again = || {
        let again = call(&create).unwrap_err();
        assert!(again.message().contains("in quarantine"), "{again:?}");
    };
    again();
    stage.check_other_pods();
    again();
    let Stage { mut fuse, node, .. } = stage;
    if aborts {
        fuse.abort();
    } else {
        fuse.hold(Held::Nothing);
        let id = wait::until_ok("the retry succeeds", || node.create(&sandbox, create.config.as_ref().unwrap()));
        node.start_container(&id).unwrap();
    }
    wait::until_ok("the sandbox is removed", || node.remove_sandbox(&sandbox));
    node.daemon.wait_until_back_at(&before);
}

/// If executord and the launcher are killed during a creation, the next executord cannot compare the repeated request
/// with the request of the container. The repeated call nevertheless creates its container, and no other container is
/// left.
#[test]
fn creation_survives_executord_and_launcher() {
    let mut stage = Stage::new();
    let before = stage.node.daemon.footprint();
    let sandbox = stage.node.run_sandbox(&stage.node.sandbox("a")).unwrap();
    let mut config = stage.node.script("c", "cat /mnt/file; exec sleep 100000");
    config.mounts.push(stage.mount.clone());
    stage.fuse.hold(Held::All);
    let (pod_sandbox_id, config) = (sandbox.clone(), Some(config));
    let create = CreateContainerRequest { pod_sandbox_id, config, ..CreateContainerRequest::default() };
    let mut runtime = stage.node.runtime();
    let created = stage.node.spawn(async move { runtime.create_container(create).await });
    wait::until("the creation waits for the file system", || (stage.fuse.waiting() > 0).then_some(()));
    let launcher = stage.node.daemon.launcher().unwrap();
    kill(launcher, Signal::SIGKILL as i32);
    stage.node.daemon.kill();
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    stage.node.daemon.start_again();
    stage.fuse.hold(Held::Nothing);
    let id = stage.node.block_on(created).unwrap().unwrap().into_inner().container_id;
    stage.node.start_container(&id).unwrap();
    let log = stage.node.daemon.setup().logged();
    let deleted = format!("deleted container={id}");
    assert!(log.contains(&deleted), "control: the first attempt has created the container: {log}");
    stage.node.remove_sandbox(&sandbox).unwrap();
    stage.node.daemon.wait_until_back_at(&before);
}

#[test]
fn dead_mount_ends_its_own_creation() {
    check_creation(false);
}

#[test]
fn aborted_mount_ends_its_own_creation() {
    check_creation(true);
}

/// Rule C45: while a process cannot be killed, because it waits for a file system, StopContainer waits, and other calls
/// do not. Once the file system responds, the container has exited.
#[test]
fn dead_mount_delays_its_own_stop() {
    let stage = Stage::new();
    let node = &stage.node;
    let before = node.daemon.footprint();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let mut config = node.script("c", "while [ ! -e /tmp/go ]; do sleep 0.05; done; cat /mnt/file");
    config.mounts.push(stage.mount.clone());
    let id = node.started(&sandbox, &config);
    stage.fuse.hold(Held::Reads);
    node.exec(&id, &["touch", "/tmp/go"], 10).unwrap();
    wait::until("the process waits for the file system", || (stage.fuse.waiting() > 0).then_some(()));
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| node.stop_container(&id, 0));
        wait::until("the container is in quarantine", || node.daemon.api.get(&id).unwrap().quarantine.map(drop));
        assert_eq!(node.status(&id).unwrap().state(), ContainerState::ContainerRunning);
        stage.check_other_pods();
        assert!(!stop.is_finished());
        stage.fuse.hold(Held::Nothing);
        stop.join().unwrap().unwrap();
    });
    assert_eq!(node.status(&id).unwrap().exit_code, 137);
    node.remove_sandbox(&sandbox).unwrap();
    node.daemon.wait_until_back_at(&before);
}
