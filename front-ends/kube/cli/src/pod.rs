//! Starts the containers of a pod in order, and stops them (rules P22, P26, P31, P32 and P44 of
//! `docs/guides/kube-rules.md`).

use std::collections::BTreeSet;
use std::time::Duration;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::images;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::style::Style;
use executor_client::v1::{Container, PullImageRequest, PullPolicy, State};
use executor_client::{Code, Run};
use executor_kube::plan::{Hook, Member, PodPlan, Role};
use tokio::time::{Instant, sleep, timeout};

use crate::error::KubeError;
use crate::hooks;
use crate::known::{Context, container_name, ended, failed, label, members, role};

/// Poll interval for the state of a pod.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum grace period after a preStop hook (rule P31).
const GRACE_PERIOD_MIN: Duration = Duration::from_secs(2);
/// Grace period of a container if its own grace period is unknown.
const GRACE_PERIOD_DEFAULT: Duration = Duration::from_secs(30);

/// Creates a pod and starts the containers that do not exist yet. Returns after the main containers were started.
/// `unsure` has the containers whose postStart hook may not have run; the hook runs again, because Kubernetes
/// guarantees at least one run.
pub(crate) async fn start(
    context: &Context,
    plan: &PodPlan,
    unsure: &BTreeSet<String>,
) -> Result<Vec<Container>, Failure> {
    let shown = shown(plan);
    fetch(context, plan).await?;
    let doing = format!("create the pod {shown}");
    let (pod, created) = context.client.pods().create(&plan.create).await.doing(&doing)?;
    if created {
        context.progress(format!("{shown}: created"));
        for warning in pod.spec.iter().flat_map(|spec| &spec.warnings) {
            context.progress(format!("{shown}: warning: {}", plain(warning)));
        }
    }
    let mut started = Vec::new();
    for member in &plan.members {
        let doing = format!("start {} of {shown}", member.name);
        let run = Run::from(executor_client::v1::RunRequest::clone(&member.request));
        let answer = context.client.run(&run).await.doing(&doing)?;
        drop(run);
        if answer.created {
            context.progress(format!("{shown}: {} started", member.name));
            for warning in answer.container.spec.iter().flat_map(|spec| &spec.warnings) {
                context.progress(format!("{shown}: {}: warning: {}", member.name, plain(warning)));
            }
        }
        let hook = member.post_start.as_ref().filter(|_| answer.created || unsure.contains(&member.request.id));
        let container = follow(context, plan, member, answer.container, hook).await?;
        started.push(container);
    }
    Ok(started)
}

/// Waits after a container's start until the next container may start.
async fn follow(
    context: &Context,
    plan: &PodPlan,
    member: &Member,
    container: Container,
    hook: Option<&Hook>,
) -> Result<Container, Failure> {
    let id = &member.request.id;
    let wrong = |message: String| KubeError::Container { pod: shown(plan), container: member.name.clone(), message };
    if let Some(hook) = hook
        && let Some(message) = hooks::run(&context.client, id, hook).await?
    {
        // A container whose postStart hook fails is stopped.
        let _ = context.client.stop(id, Some(Duration::ZERO)).await;
        return Err(wrong(format!("PostStartHookError: {message}")).into());
    }
    match member.role {
        Role::Init => {
            let container = context.client.wait(id).await.doing(&format!("wait for {id}"))?;
            if failed(&container) {
                return Err(wrong(ended(&container)).into());
            }
            context.progress(format!("{}: {} completed", shown(plan), member.name));
            Ok(container)
        }
        Role::Sidecar if member.request.checks.as_ref().is_some_and(|checks| !checks.startup.is_empty()) => loop {
            let container = context.client.get(id).await.doing(&format!("inspect {id}"))?;
            match container.state() {
                State::Completed => return Err(wrong(ended(&container)).into()),
                _ if container.startup_passed => return Ok(container),
                _ => sleep(POLL_INTERVAL).await,
            }
        },
        _ => Ok(container),
    }
}

/// Waits until a pod is ready. A pod is ready if each sidecar and main container is ready or has exited successfully.
pub(crate) async fn ready(context: &Context, plan: &PodPlan, most: Duration) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let members = members(&context.client, &plan.id).await?;
        let mut waiting = Vec::new();
        for member in members.iter().filter(|member| role(member) != "init") {
            if failed(member) {
                let (pod, container) = (shown(plan), container_name(member).to_owned());
                return Err(KubeError::Container { pod, container, message: ended(member) }.into());
            }
            if member.state() != State::Completed && !member.ready {
                waiting.push(not_ready_reason(member));
            }
        }
        if waiting.is_empty() {
            context.progress(format!("{}: ready", shown(plan)));
            return Ok(());
        }
        if begun.elapsed() >= most {
            return Err(KubeError::NotReady { pod: shown(plan), waited: most, message: waiting.join("; ") }.into());
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns the reason why a container is not ready.
fn not_ready_reason(container: &Container) -> String {
    let name = container_name(container);
    if let Some(restart) = container.restart.as_ref().filter(|restart| restart.next_start_at.is_some()) {
        return format!("{name}: CrashLoopBackOff: {}", plain(&restart.last_reason));
    }
    let failing = container.check_statuses.iter().find(|status| !status.passing && !status.last_failure.is_empty());
    match failing {
        Some(status) => format!("{name}: {}", plain(&status.last_failure)),
        None => format!("{name} is not ready"),
    }
}

/// Waits until the main containers of a pod have exited, then stops the sidecars (rule P26). Returns the reason if the
/// pod failed.
pub(crate) async fn finish(context: &Context, plan: &PodPlan) -> Result<Option<String>, Failure> {
    let mut failure = None;
    for member in plan.members.iter().filter(|member| member.role == Role::Main) {
        let id = &member.request.id;
        let container = context.client.wait(id).await.doing(&format!("wait for {id}"))?;
        if failed(&container) {
            failure.get_or_insert(format!("{}: {}", member.name, ended(&container)));
        }
    }
    let all = members(&context.client, &plan.id).await?;
    stop_members(context, &all, Some("sidecar"), Instant::now() + GRACE_PERIOD_DEFAULT, None).await?;
    Ok(failure)
}

/// Stops the containers of a pod in order, and removes the pod with its containers and volumes.
pub(crate) async fn remove(context: &Context, id: &str, grace: Option<Duration>) -> Result<(), Failure> {
    let all = members(&context.client, id).await?;
    let own = all
        .iter()
        .filter_map(|member| member.spec.as_ref()?.grace_period)
        .filter_map(|grace| Duration::try_from(grace).ok())
        .max();
    let deadline = Instant::now() + grace.or(own).unwrap_or(GRACE_PERIOD_DEFAULT);
    stop_members(context, &all, None, deadline, grace).await?;
    match context.client.pods().delete(id, true).await {
        Err(error) if error.code() == Some(Code::NotFound) => Ok(()),
        result => result.doing(&format!("remove the pod {id}")),
    }
}

/// Stops the containers of a pod in order. The pod and the results of its containers remain.
pub(crate) async fn stop_containers(context: &Context, id: &str) -> Result<(), Failure> {
    let all = members(&context.client, id).await?;
    stop_members(context, &all, None, Instant::now() + GRACE_PERIOD_DEFAULT, None).await
}

/// Stops init and main containers in parallel, then sidecars in reverse order. If `only` is set, stops only the
/// sidecars.
async fn stop_members(
    context: &Context,
    all: &[Container],
    only: Option<&str>,
    deadline: Instant,
    grace: Option<Duration>,
) -> Result<(), Failure> {
    let running = |member: &&Container| member.state() != State::Completed;
    if only.is_none() {
        let mut tasks = Vec::new();
        for member in all.iter().filter(running).filter(|member| role(member) != "sidecar") {
            let (context, member) = (context.clone(), member.clone());
            tasks.push(tokio::spawn(async move { stop(&context, &member, deadline, grace).await }));
        }
        for task in tasks {
            task.await.map_err(|error| Failure::System(std::io::Error::other(error)))??;
        }
    }
    for member in all.iter().rev().filter(running).filter(|member| role(member) == "sidecar") {
        stop(context, member, deadline, grace).await?;
    }
    Ok(())
}

async fn stop(
    context: &Context,
    container: &Container,
    deadline: Instant,
    grace: Option<Duration>,
) -> Result<(), Failure> {
    let id = &container.id;
    let left = || deadline.saturating_duration_since(Instant::now());
    let hook = Hook::from_labels(|name| label(container, name)).filter(|_| container.state() == State::Running);
    if let Some(hook) = hook
        && let Some(message) = hooks::run_within(&context.client, id, &hook, left()).await
    {
        context.progress(format!("{id}: preStop hook failed: {}", plain(&message)));
    }
    let least = grace.map_or(GRACE_PERIOD_MIN, |grace| grace.min(GRACE_PERIOD_MIN));
    let gone = |code: Option<Code>| matches!(code, Some(Code::NotFound));
    match context.client.stop(id, Some(left().max(least))).await {
        Err(error) if gone(error.code()) => return Ok(()),
        result => drop(result.doing(&format!("stop {id}"))?),
    }
    match context.client.wait(id).await {
        Err(error) if gone(error.code()) => Ok(()),
        result => result.doing(&format!("wait for {id}")).map(drop),
    }
}

/// Pulls the images before anything is created, so that progress can be shown. Also checks the image user of containers
/// that must not run as root.
async fn fetch(context: &Context, plan: &PodPlan) -> Result<(), Failure> {
    let session = Session {
        client: context.client.clone(),
        output: context.output.clone(),
        style: Style::detect(),
        json: context.json,
    };
    let mut done: Vec<&str> = Vec::new();
    for member in &plan.members {
        let request = &member.request;
        let policy = request.pull_policy();
        let reference = request.rootfs.as_str();
        if reference.starts_with("docker://") && policy != PullPolicy::Never && !done.contains(&reference) {
            let pull = PullImageRequest {
                reference: reference.to_owned(),
                credentials: request.registry_credentials.clone(),
                platform: request.platform.clone(),
            };
            images::fetch_first(&session, pull, policy == PullPolicy::Always).await?;
            done.push(reference);
        }
        if member.non_root {
            check_image_user(context, plan, member).await?;
        }
    }
    Ok(())
}

/// Checks that the user of an image is a number other than 0 (rule P44).
async fn check_image_user(context: &Context, plan: &PodPlan, member: &Member) -> Result<(), Failure> {
    let wrong = |message: String| {
        let message = format!("CreateContainerConfigError: runAsNonRoot is set, and {message}");
        KubeError::Container { pod: shown(plan), container: member.name.clone(), message }
    };
    let reference = &member.request.rootfs;
    if !reference.starts_with("docker://") {
        return Err(wrong("the root file system names no user: set runAsUser".into()).into());
    }
    let images = context.client.images();
    if images.inspect(reference).await.is_err() {
        let (reference, credentials) = (reference.clone(), member.request.registry_credentials.clone());
        let request =
            executor_client::Wiped::new(PullImageRequest { reference, credentials, ..PullImageRequest::default() });
        let mut pull = images.pull(&request).await.doing("pull the image")?;
        while !matches!(pull.next().await.doing("pull the image")?, executor_client::Pulled::Image(_)) {}
    }
    let inspected = images.inspect(reference).await.doing("inspect the image")?;
    let user = inspected.config.map(|config| config.user).unwrap_or_default();
    match user.split(':').next().unwrap_or_default().parse::<u32>() {
        Ok(0) => Err(wrong("the image runs as root".into()).into()),
        Ok(_) => Ok(()),
        Err(_) if user.is_empty() => Err(wrong("the image runs as root".into()).into()),
        Err(_) => Err(wrong("the image's user is not a number: set runAsUser".into()).into()),
    }
}

/// Runs `work`, and stops the pod if the work exceeds the pod's deadline.
pub(crate) async fn within<T>(
    context: &Context,
    plan: &PodPlan,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(deadline) = plan.deadline else { return work.await };
    match timeout(deadline, work).await {
        Ok(result) => result,
        Err(_) => {
            stop_containers(context, &plan.id).await?;
            let message = format!("DeadlineExceeded: the pod took longer than {} s", deadline.as_secs());
            Err(KubeError::Pod { pod: shown(plan), message }.into())
        }
    }
}

/// Returns the name of a pod for messages. The namespace is included if it is not `default`.
pub(crate) fn shown(plan: &PodPlan) -> String {
    match &*plan.namespace {
        "default" => plan.name.clone(),
        namespace => format!("{namespace}/{}", plan.name),
    }
}
