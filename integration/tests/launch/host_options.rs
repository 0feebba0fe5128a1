//! CPUs, devices, swap, confinement and process attributes of a request in real containers.

mod apparmor;
mod cdi;
mod cgroups;
mod command_line;
mod cpuset;
mod devices;
mod memory;
mod pause;
mod processes;
mod update;

use executor_proto::v1::{Action, RunAction, RunRequest, SerialAction};
use integration::api::exit;
use integration::daemon::Daemon;
use integration::request::RequestBuilder as _;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Returns the output of a container, which must exit with 0.
fn printed(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.run_to_end(request);
    let output = daemon.api.output(&container.id).text();
    assert_eq!(exit(&container), Ok(0), "{output}\n{container:#?}");
    output
}

/// Returns the code and the violations (field and description) of a request that is refused.
fn refused(daemon: &Daemon, request: RunRequest) -> (Code, Vec<(String, String)>) {
    let status: Status = daemon.api.run(request).expect_err("it is refused");
    let details = status.get_details_bad_request().unwrap_or_else(|| panic!("no BadRequest: {status:?}"));
    let violations = details.field_violations.into_iter().map(|one| (one.field, one.description)).collect();
    (status.code(), violations)
}

/// Builds a request for a tree of one step that runs a script.
fn step(id: &str, script: &str) -> RunRequest {
    let run = RunAction { path: "/bin/sh".into(), args: vec!["-c".into(), script.into()], ..RunAction::default() };
    let actions = vec![Action { run: Some(run), ..Action::default() }];
    let serial = SerialAction { actions, ..SerialAction::default() };
    let action = Action { serial: Some(serial), ..Action::default() };
    RunRequest { action: Some(action), ..RunRequest::default() }.id(id).memory(64 << 20)
}

/// Returns true if the launcher can lower scores and raise hard limits. The launcher inherits this capability from the
/// test.
fn has_sys_resource() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(held, 16).unwrap() & (1 << CAP_SYS_RESOURCE) != 0
}
