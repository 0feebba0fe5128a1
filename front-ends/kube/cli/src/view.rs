//! Formats the output as JSON and tables. Values of Secrets are never printed.
//!
//! Rules are numbered as in `docs/guides/kube-rules.md`.

use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_client::v1::State;
use executor_kube::plan::PodPlan;
use executor_kube::report::Violation;
use serde::Serialize;

use crate::change::Change;
use crate::known::{KnownPod, container_name, end_message, end_reason, role};

/// A pod in the output of `play` and `diff`.
#[derive(Debug, Serialize)]
pub(crate) struct Played {
    id: String,
    namespace: String,
    name: String,
    workload: String,
    change: &'static str,
    reason: Option<String>,
    containers: Vec<String>,
}

impl Played {
    pub(crate) fn new(plan: &PodPlan, change: &Change) -> Self {
        Self {
            id: plan.id.clone(),
            namespace: plan.namespace.clone(),
            name: plan.name.clone(),
            workload: format!("{}/{}", plan.kind.name(), plan.workload),
            change: change.name(),
            reason: Some(change.reason()).filter(|reason| !reason.is_empty()),
            containers: plan.members.iter().map(|member| member.name.clone()).collect(),
        }
    }

    pub(crate) fn removed(pod: &KnownPod) -> Self {
        Self {
            id: pod.pod.id.clone(),
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            workload: pod.workload().to_owned(),
            change: Change::Remove.name(),
            reason: Some(Change::Remove.reason()),
            containers: pod.members.iter().map(|member| container_name(member).to_owned()).collect(),
        }
    }
}

/// JSON output of `play` and `diff`.
#[derive(Debug, Serialize)]
pub(crate) struct Play {
    play: String,
    pods: Vec<Played>,
    warnings: Vec<String>,
}

impl Play {
    pub(crate) fn new(play: &str, pods: Vec<Played>, warnings: &[Violation]) -> Self {
        Self { play: play.to_owned(), pods, warnings: warnings.iter().map(ToString::to_string).collect() }
    }

    pub(crate) fn text(&self, style: Style) -> String {
        let mut table = Table::with_heading(0, &["NAMESPACE", "POD", "WORKLOAD", "CHANGE", "REASON"]);
        for pod in &self.pods {
            let role = match pod.change {
                "unchanged" => Role::Faint,
                "create" => Role::Good,
                "remove" => Role::Bad,
                _ => Role::Attention,
            };
            table.row([
                (pod.namespace.clone(), Role::Plain),
                (pod.name.clone(), Role::Plain),
                (pod.workload.clone(), Role::Plain),
                (pod.change.to_owned(), role),
                (pod.reason.clone().unwrap_or_default(), Role::Plain),
            ]);
        }
        table.render(style)
    }
}

/// A pod that was removed.
#[derive(Debug, Serialize)]
pub(crate) struct Removed {
    pub(crate) id: String,
    pub(crate) play: String,
}

/// A pod in the output of `ps`.
#[derive(Debug, Serialize)]
pub(crate) struct Pod {
    id: String,
    play: String,
    namespace: String,
    name: String,
    workload: String,
    phase: &'static str,
    ready: bool,
    containers: Vec<Container>,
}

#[derive(Debug, Serialize)]
struct Container {
    id: String,
    name: String,
    role: String,
    state: String,
    message: String,
    ready: bool,
    restarts: u64,
}

impl Pod {
    pub(crate) fn from_pod(pod: &KnownPod) -> Self {
        let containers: Vec<Container> = pod
            .members
            .iter()
            .map(|member| Container {
                id: member.id.clone(),
                name: container_name(member).to_owned(),
                role: role(member).to_owned(),
                state: match member.state() {
                    State::Completed => end_reason(member),
                    _ if member.restart.as_ref().is_some_and(|restart| restart.next_start_at.is_some()) => {
                        "CrashLoopBackOff".to_owned()
                    }
                    state => state.as_str_name().trim_start_matches("STATE_").to_ascii_lowercase(),
                },
                message: end_message(member),
                // A completed init container is shown as ready (rule P30).
                ready: member.ready
                    || (role(member) == "init" && member.state() == State::Completed && !crate::known::failed(member)),
                restarts: member.restart.as_ref().map_or(0, |restart| restart.count),
            })
            .collect();
        Self {
            id: pod.pod.id.clone(),
            play: pod.play().to_owned(),
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            workload: pod.workload().to_owned(),
            phase: pod.phase(),
            ready: !containers.is_empty() && containers.iter().all(|container| container.ready),
            containers,
        }
    }
}

/// Formats pods as a table with one line for each container.
pub(crate) fn table(pods: &[Pod], style: Style) -> String {
    let mut table = Table::with_heading(
        0,
        &["PLAY", "NAMESPACE", "POD", "PHASE", "CONTAINER", "ROLE", "STATE", "READY", "RESTARTS"],
    );
    for pod in pods {
        let phase = match pod.phase {
            "Running" => Role::Good,
            "Failed" => Role::Bad,
            "Succeeded" => Role::Faint,
            _ => Role::Attention,
        };
        let head = || {
            let plain = |text: &str| (text.to_owned(), Role::Plain);
            [plain(&pod.play), plain(&pod.namespace), plain(&pod.name), (pod.phase.to_owned(), phase)]
        };
        if pod.containers.is_empty() {
            table.row(head());
        }
        for container in &pod.containers {
            let ready = if container.ready { ("yes", Role::Good) } else { ("no", Role::Attention) };
            table.row(head().into_iter().chain([
                (container.name.clone(), Role::Plain),
                (container.role.clone(), Role::Plain),
                (container.state.clone(), Role::Plain),
                (ready.0.to_owned(), ready.1),
                (container.restarts.to_string(), Role::Plain),
            ]));
        }
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap fails the test

    use executor_cli_kit::view::style::Style;
    use executor_client::v1::{self, Container, ContainerSpec, ExitStatus, RestartStatus, State, exit_status, pod};
    use executor_kube::plan::ROLE;

    use super::Pod;
    use crate::known::KnownPod;

    fn container(role: &str, state: State, code: Option<i32>) -> Container {
        let labels = [(ROLE.to_owned(), role.to_owned())].into();
        let exit = ExitStatus { status: code.map(exit_status::Status::Code) };
        Container {
            spec: Some(ContainerSpec { labels, ..ContainerSpec::default() }),
            state: state.into(),
            result: (state == State::Completed).then(|| v1::Result { exit: Some(exit), ..v1::Result::default() }),
            ready: state == State::Running,
            ..Container::default()
        }
    }

    fn shown(members: &[Container]) -> Pod {
        let pod = v1::Pod { state: pod::State::Ready.into(), ..v1::Pod::default() };
        Pod::from_pod(&KnownPod { pod, members: members.to_vec() })
    }

    const RUNS: (State, Option<i32>) = (State::Running, None);
    const DONE: (State, Option<i32>) = (State::Completed, Some(0));
    const BROKEN: (State, Option<i32>) = (State::Completed, Some(1));

    #[test]
    fn p28_p26_container_states_determine_phase() {
        for (members, phase) in [
            (&[("init", RUNS)][..], "Pending"),
            (&[("init", DONE)], "Pending"),
            (&[("init", BROKEN)], "Failed"),
            (&[("init", DONE), ("main", RUNS)], "Running"),
            (&[("main", DONE), ("main", RUNS)], "Running"),
            (&[("main", BROKEN), ("main", RUNS)], "Running"),
            (&[("main", DONE), ("main", DONE)], "Succeeded"),
            (&[("main", DONE), ("main", BROKEN)], "Failed"),
            // Sidecars have no effect on the phase of a completed pod.
            (&[("sidecar", RUNS), ("main", DONE)], "Succeeded"),
            (&[("sidecar", BROKEN), ("main", DONE)], "Succeeded"),
            (&[("sidecar", RUNS)], "Pending"),
        ] {
            let containers: Vec<_> =
                members.iter().map(|(role, (state, code))| container(role, *state, *code)).collect();
            assert_eq!(shown(&containers).phase, phase, "{members:?}");
        }
    }

    #[test]
    fn p29_state_has_reason() {
        let state = |container: Container| shown(&[container]).containers[0].state.clone();
        let ended = |code| container("main", State::Completed, code);
        assert_eq!(state(ended(Some(0))), "Completed");
        assert_eq!(state(ended(Some(3))), "Error (exit status 3)");
        assert_eq!(state(ended(None)), "ContainerStatusUnknown");
        for (kind, expected) in [
            (v1::failure::Kind::Exec, "StartError"),
            (v1::failure::Kind::Prepare, "StartError"),
            (v1::failure::Kind::SupervisorLost, "ContainerStatusUnknown"),
        ] {
            let mut failed = ended(None);
            let failure = v1::Failure { kind: kind.into(), ..v1::Failure::default() };
            failed.result = Some(v1::Result { failure: Some(failure), ..v1::Result::default() });
            assert_eq!(state(failed), expected);
        }
        let mut killed = ended(None);
        let result = killed.result.as_mut().unwrap();
        result.exit.as_mut().unwrap().status = Some(exit_status::Status::Signal(9));
        assert_eq!(state(killed.clone()), "Error (exit status 137)");
        killed.result.as_mut().unwrap().oom_killed = true;
        assert_eq!(state(killed), "OOMKilled");
        // The OOM killer killed another process.
        for (code, expected) in [(0, "Completed"), (3, "Error (exit status 3)"), (137, "OOMKilled")] {
            let mut survived = ended(Some(code));
            survived.result.as_mut().unwrap().oom_killed = true;
            assert_eq!(state(survived), expected);
        }
        let restart = RestartStatus { next_start_at: Some(Default::default()), ..RestartStatus::default() };
        let waiting = Container { restart: Some(restart), ready: false, ..container("main", State::Running, None) };
        assert_eq!(state(waiting), "CrashLoopBackOff");
    }

    #[test]
    fn termination_message_stays_out_of_state() {
        let mut ended = container("main", State::Completed, Some(3));
        ended.result.as_mut().unwrap().termination_message = "x".repeat(4096);
        let pod = shown(&[ended]);
        assert_eq!((&*pod.containers[0].state, pod.containers[0].message.len()), ("Error (exit status 3)", 4096));
        assert!(super::table(&[pod], Style::detect()).lines().all(|line| line.len() < 120));
    }

    #[test]
    fn p30_pod_needs_all_containers_ready() {
        let ready = |members: &[(&str, (State, Option<i32>))]| {
            let containers: Vec<_> =
                members.iter().map(|(role, (state, code))| container(role, *state, *code)).collect();
            shown(&containers).ready
        };
        assert!(ready(&[("init", DONE), ("sidecar", RUNS), ("main", RUNS)]));
        assert!(!ready(&[("init", BROKEN), ("main", RUNS)]) && !ready(&[("main", DONE)]) && !ready(&[]));
        let starting = Container { ready: false, ..container("main", State::Running, None) };
        assert!(!shown(&[container("sidecar", State::Running, None), starting]).ready);
    }
}
