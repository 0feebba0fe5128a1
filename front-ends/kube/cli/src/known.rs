//! Lists the existing pods and containers of plays, which executord finds by their labels.
//!
//! Rules are numbered as in `docs/guides/kube-rules.md`.

use std::collections::{BTreeMap, HashMap};

use executor_cli_kit::exit::{Outcome, after_signal};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::output::Output;
use executor_cli_kit::status::ErrorContext as _;
use executor_client::v1::{Container, Pod, State, exit_status, failure, pod};
use executor_client::{Client, ListFilter, PodFilter};
use executor_kube::plan::{CONTAINER, INDEX, NAMESPACE, PLAY, POD, ROLE, SPEC, WORKLOAD};

/// Signal number of SIGKILL.
const SIGKILL: i32 = 9;

/// Connection to executord and output, shared by tasks.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) output: Output,
    /// True if progress messages are omitted because the output is JSON.
    pub(crate) json: bool,
}

impl Context {
    /// Prints a progress message, except with JSON output.
    pub(crate) fn progress(&self, text: impl Into<String>) {
        if !self.json {
            self.output.note(text);
        }
    }

    /// Prints that this command waits for another command of the play.
    pub(crate) fn note_waiting(&self, play: &str) {
        self.output.note(format!("waiting for another command of the play {play}"));
    }
}

/// An existing pod, and its containers in start order.
#[derive(Clone, Debug)]
pub(crate) struct KnownPod {
    pub(crate) pod: Pod,
    pub(crate) members: Vec<Container>,
}

impl KnownPod {
    pub(crate) fn label(&self, name: &str) -> &str {
        self.pod.spec.as_ref().and_then(|spec| spec.labels.get(name)).map_or("", String::as_str)
    }

    pub(crate) fn play(&self) -> &str {
        self.label(PLAY)
    }

    pub(crate) fn namespace(&self) -> &str {
        self.label(NAMESPACE)
    }

    pub(crate) fn name(&self) -> &str {
        self.label(POD)
    }

    pub(crate) fn workload(&self) -> &str {
        self.label(WORKLOAD)
    }

    pub(crate) fn digest(&self) -> &str {
        self.label(SPEC)
    }

    /// Returns true if containers of the pod can run or be started.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.pod.state(), pod::State::Ready | pod::State::Creating)
    }

    pub(crate) fn member(&self, id: &str) -> Option<&Container> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Returns the phase of the pod in Kubernetes terms, such as `Running` (rule P28).
    pub(crate) fn phase(&self) -> &'static str {
        let mains: Vec<&Container> = self.members.iter().filter(|member| role(member) == "main").collect();
        let init_failed = self.members.iter().any(|member| role(member) == "init" && failed(member));
        let done = |member: &&Container| member.state() == State::Completed;
        if init_failed || (!mains.is_empty() && mains.iter().all(done) && mains.iter().any(|main| failed(main))) {
            return "Failed";
        }
        if !mains.is_empty() && mains.iter().all(done) {
            return "Succeeded";
        }
        match self.pod.state() {
            pod::State::Ended | pod::State::Stopping => "Failed",
            _ if mains.is_empty() => "Pending",
            _ => "Running",
        }
    }
}

pub(crate) fn label<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    container.spec.as_ref().and_then(|spec| spec.labels.get(name)).map(String::as_str)
}

pub(crate) fn role(container: &Container) -> &str {
    label(container, ROLE).unwrap_or("main")
}

/// Returns the name of a container in its pod.
pub(crate) fn container_name(container: &Container) -> &str {
    label(container, CONTAINER).unwrap_or(&container.id)
}

/// Returns true if a container exited without success.
pub(crate) fn failed(container: &Container) -> bool {
    let code = container.result.as_ref().and_then(|result| result.exit).and_then(|exit| exit.status);
    container.state() == State::Completed && code != Some(exit_status::Status::Code(0))
}

/// Returns the creation time of a container as a string.
pub(crate) fn created_at(container: &Container) -> String {
    container.created_at.map(|at| format!("{}.{:09}", at.seconds, at.nanos)).unwrap_or_default()
}

/// Describes the exit of a container, with its termination message.
pub(crate) fn ended(container: &Container) -> String {
    let (reason, message) = (end_reason(container), end_message(container));
    if message.is_empty() { reason } else { format!("{reason}: {message}") }
}

/// Returns the reason why a container exited, in Kubernetes terms.
pub(crate) fn end_reason(container: &Container) -> String {
    let result = container.result.as_ref();
    let status = result.and_then(|result| result.exit).and_then(|exit| exit.status);
    // The OOM killer may have killed another process, so check whether SIGKILL killed the main process.
    let is_killed = Outcome::new(result).status() == after_signal(SIGKILL);
    match status {
        _ if is_killed && result.is_some_and(|result| result.oom_killed) => "OOMKilled".to_owned(),
        Some(exit_status::Status::Code(0)) => "Completed".to_owned(),
        Some(exit_status::Status::Code(code)) => format!("Error (exit status {code})"),
        Some(exit_status::Status::Signal(signal)) => format!("Error (exit status {})", 128 + signal),
        None => match Outcome::new(result) {
            // Kubernetes reports this reason if a program cannot be started.
            Outcome::NotExecuted(_) | Outcome::Failed(failure::Kind::Prepare) => "StartError".to_owned(),
            _ => "ContainerStatusUnknown".to_owned(),
        },
    }
}

/// Returns the failure message and the termination message of a container; empty if there is neither.
pub(crate) fn end_message(container: &Container) -> String {
    let result = container.result.as_ref();
    let message = result.map_or("", |result| result.termination_message.trim());
    let failed = result.and_then(|result| result.failure.as_ref());
    // For a single `run` action, the exit reason already contains the exit status.
    let failed = failed.filter(|failed| failed.kind() != failure::Kind::Action || !container.steps.is_empty());
    let failure = failed.map_or("", |failed| &failed.message);
    let more: Vec<&str> = [failure, message].into_iter().filter(|text| !text.is_empty()).collect();
    more.join(": ")
}

/// Returns the pods of one play, or of all plays, by id.
pub(crate) async fn pods(client: &Client, play: Option<&str>) -> Result<BTreeMap<String, KnownPod>, Failure> {
    let labels: HashMap<String, String> = play.map(|play| (PLAY.to_owned(), play.to_owned())).into_iter().collect();
    let filter = PodFilter { labels: labels.clone(), ..PodFilter::default() };
    let pods = client.pods().list(&filter).await.doing("list pods")?;
    let filter = ListFilter { labels, ..ListFilter::default() };
    let mut members: BTreeMap<String, Vec<Container>> = BTreeMap::new();
    for container in client.list(&filter).await.doing("list containers")? {
        let pod = container.spec.as_ref().map(|spec| spec.pod.clone()).unwrap_or_default();
        members.entry(pod).or_default().push(container);
    }
    let known = pods.into_iter().map(|pod| {
        let mut members = members.remove(&pod.id).unwrap_or_default();
        sort(&mut members);
        (pod.id.clone(), KnownPod { pod, members })
    });
    Ok(known.filter(|(_, pod)| !pod.play().is_empty()).collect())
}

/// Returns the containers of a pod in start order.
pub(crate) async fn members(client: &Client, pod: &str) -> Result<Vec<Container>, Failure> {
    let filter = ListFilter { pod: pod.to_owned(), ..ListFilter::default() };
    let mut members = client.list(&filter).await.doing(&format!("list the containers of {pod}"))?;
    sort(&mut members);
    Ok(members)
}

fn sort(members: &mut [Container]) {
    members.sort_by_key(|member| label(member, INDEX).and_then(|index| index.parse::<usize>().ok()));
}
