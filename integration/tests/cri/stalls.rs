//! An executord that does not answer: rules C14 and C16.

use std::time::{Duration, Instant};

use executor_cri_api::v1::{ListContainersRequest, ListPodSandboxRequest, StatusRequest};
use integration::cri::KubernetesNode;
use integration::daemon::kill;
use integration::wait;
use nix::sys::signal::Signal;
use tonic::{Code, Request};

/// A process that is stopped until this value is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        kill(pid, Signal::SIGSTOP as i32);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGCONT as i32);
    }
}

/// Lists are answered from memory, and every other call ends: by its deadline, or because the connection is given up.
#[test]
fn stopped_executord_holds_no_call() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    let is_ready = || {
        let mut runtime = node.runtime();
        let status = node.block_on(runtime.status(StatusRequest::default())).unwrap().into_inner().status.unwrap();
        let condition = status.conditions.into_iter().find(|one| one.r#type == "RuntimeReady").unwrap();
        (condition.status, condition.message)
    };
    assert!(is_ready().0, "the control");
    let stopped = Stopped::new(node.daemon.pid());
    let begun = Instant::now();
    let mut runtime = node.runtime();
    let listed = node.block_on(runtime.list_containers(ListContainersRequest::default())).unwrap().into_inner();
    assert_eq!(listed.containers.len(), 1);
    let listed = node.block_on(runtime.list_pod_sandbox(ListPodSandboxRequest::default())).unwrap().into_inner();
    assert_eq!(listed.items.len(), 1);
    assert_eq!(node.status(&id).unwrap().id, id);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let (ready, message) = is_ready();
    assert!(!ready && message.contains("has not answered within 5 s"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // The deadline of the caller.
    let mut request = Request::new(executor_cri_api::v1::ReopenContainerLogRequest { container_id: id.clone() });
    request.set_timeout(Duration::from_secs(1));
    let late = node.block_on(runtime.reopen_container_log(request)).unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
    // No deadline.
    let broken = node.exec(&id, &["true"], 0).unwrap_err();
    assert_eq!(broken.code(), Code::Unavailable, "{broken:?}");
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
    drop(stopped);
    wait::until("executord answers again", || is_ready().0.then_some(()));
    assert_eq!(node.exec(&id, &["true"], 10).unwrap().exit_code, 0);
    node.remove_sandbox(&sandbox).unwrap();
}
