//! Tests that calls return when executord does not respond: rules C14 and C16.

use std::time::Duration;

use executor_cri_api::v1::{
    ContainerStatusRequest, ExecSyncRequest, ListContainersRequest, ListPodSandboxRequest, ReopenContainerLogRequest,
    StatusRequest,
};
use integration::cri::KubernetesNode;
use integration::daemon::kill;
use integration::wait;
use nix::sys::signal::Signal;
use tonic::{Code, Request};

/// Deadline of a call that needs no response from executord.
const DEADLINE: Duration = Duration::from_secs(30);
/// Time limit of a call without a deadline.
const NO_DEADLINE_MAX: Duration = Duration::from_secs(240);

fn with_deadline<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

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

/// Lists are answered from memory, and every other call returns: at its deadline, or because the connection is closed.
#[test]
fn stopped_executord_holds_no_call() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    let is_ready = || {
        let mut runtime = node.runtime();
        let request = with_deadline(StatusRequest::default(), DEADLINE);
        let status = node.block_on(runtime.status(request)).unwrap().into_inner().status.unwrap();
        let condition = status.conditions.into_iter().find(|one| one.r#type == "RuntimeReady").unwrap();
        (condition.status, condition.message)
    };
    assert!(is_ready().0, "control failed");
    let stopped = Stopped::new(node.daemon.pid());
    // executord cannot respond, so these responses are from memory.
    let mut runtime = node.runtime();
    let request = with_deadline(ListContainersRequest::default(), DEADLINE);
    assert_eq!(node.block_on(runtime.list_containers(request)).unwrap().into_inner().containers.len(), 1);
    let request = with_deadline(ListPodSandboxRequest::default(), DEADLINE);
    assert_eq!(node.block_on(runtime.list_pod_sandbox(request)).unwrap().into_inner().items.len(), 1);
    let request = ContainerStatusRequest { container_id: id.clone(), verbose: false };
    let status = node.block_on(runtime.container_status(with_deadline(request, DEADLINE))).unwrap().into_inner();
    assert_eq!(status.status.unwrap().id, id);
    let (ready, message) = is_ready();
    assert!(!ready && message.contains("has not responded within 5 s"), "{message}");
    // The caller's deadline ends this call.
    let request = with_deadline(ReopenContainerLogRequest { container_id: id.clone() }, Duration::from_secs(1));
    let late = node.block_on(runtime.reopen_container_log(request)).unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
    // This call has no deadline.
    let request = ExecSyncRequest { container_id: id.clone(), cmd: vec!["true".into()], timeout: 0 };
    let ended = node.block_on(async { tokio::time::timeout(NO_DEADLINE_MAX, runtime.exec_sync(request)).await });
    let broken = ended.expect("the call ends").unwrap_err();
    assert_eq!(broken.code(), Code::Unavailable, "{broken:?}");
    drop(stopped);
    wait::until("executord responds again", || is_ready().0.then_some(()));
    assert_eq!(node.exec(&id, &["true"], 10).unwrap().exit_code, 0);
    node.remove_sandbox(&sandbox).unwrap();
}
