//! Pods: resources that their members share and do not share, the common exit, and leftovers after each kind of kill.
//! Each claim is compared with a control in another pod, or in a container without a pod.

mod connect;
mod ends;
mod files;
mod host;
mod namespaces;
mod peers;
mod refused;
mod shared;
mod target;

use std::fs;
use std::path::PathBuf;

use executor_client::{Error, Pods};
use executor_proto::v1::{Container, CreatePodRequest, Pod, RunRequest};
use integration::api::pid;
use integration::daemon::Daemon;

/// Builds a request for a pod that sets only the id.
fn asked(id: &str) -> CreatePodRequest {
    CreatePodRequest { id: id.into(), ..CreatePodRequest::default() }
}

/// Changes a request so that it creates a member of a pod.
fn in_pod(pod: &str, request: RunRequest) -> RunRequest {
    RunRequest { pod: pod.into(), ..request }
}

fn pods(daemon: &Daemon) -> Pods {
    daemon.api.client().pods()
}

fn create(daemon: &Daemon, request: &CreatePodRequest) -> Pod {
    daemon.api.block_on(pods(daemon).create(request)).unwrap().0
}

fn get(daemon: &Daemon, id: &str) -> Pod {
    daemon.api.block_on(pods(daemon).get(id)).unwrap()
}

fn stop(daemon: &Daemon, id: &str) -> Pod {
    daemon.api.block_on(pods(daemon).stop(id, None)).unwrap()
}

fn delete(daemon: &Daemon, id: &str, force: bool) -> Result<(), Error> {
    daemon.api.block_on(pods(daemon).delete(id, force))
}

fn namespace(container: &Container, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{}/ns/{kind}", pid(container))).unwrap()
}

/// Runs a script to its exit and returns its output.
fn script_output(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.run_to_end(request);
    let output = daemon.api.output(&container.id);
    daemon.api.delete(&container.id, true).unwrap();
    format!("{}{}", output.text(), String::from_utf8_lossy(&output.stderr))
}
