//! `play` and `diff`.

use std::collections::{BTreeMap, BTreeSet};

use agent_cli::failure::Failure;
use agent_cli::session::Session;
use agent_cli::status::Doing as _;
use agent_cli::text::plain;
use executor_client::v1::{Container, State, UpdateFilesRequest};
use executor_client::{Code, Run, Wiped};
use executor_kube::plan::{Member, Plan, PodPlan};
use executor_kube::report::Violation;
use executor_kube::workload::{Kind, Update};

use crate::args::PlayArgs;
use crate::change::{Change, decide, has_secret_variables};
use crate::error::KubeError;
use crate::input::Input;
use crate::known::{self, Context, KnownPod, created_at};
use crate::memory::Memory;
use crate::{hooks, jobs, pod, view};

pub(crate) async fn play(session: &Session, args: &PlayArgs, input: &Input) -> Result<u8, Failure> {
    let (mut plan, warnings) = read(session, input).await?;
    warn(session, &warnings);
    if let Some(name) = &args.cron_job {
        plan = of_cron_job(plan, name)?;
    } else {
        for cron in &plan.crons {
            let name = plain(&cron.name);
            session.output.note(format!("CronJob {name} is not run by a play: `generate unit` makes a timer of it, --cron-job {name} runs it now"));
        }
        if plan.pods.is_empty() && plan.crons.is_empty() {
            return Err(KubeError::Nothing(input.named()).into());
        }
    }
    let context = Context { client: session.client.clone(), output: session.output.clone(), json: session.json };
    let mut playing =
        Playing { memory: Memory::open(&input.play)?, context, args, known: known::pods(&session.client, None).await? };
    if args.cron_job.is_none() {
        playing.prune(&input.play, &plan).await?;
    } else {
        // A run of a CronJob takes the place of the last one.
        for pod in &plan.pods {
            playing.remove(&pod.id).await?;
        }
    }
    let changes = decide(&plan, &input.play, &playing.known, &playing.memory, args.replace)?;
    playing.recreate(&plan, &changes).await?;
    let mut done = Vec::new();
    let mut started = Vec::new();
    for (plan, change) in plan.pods.iter().zip(&changes).filter(|(plan, _)| plan.job.is_none()) {
        let waits = plan.in_order || (matches!(change, Change::Replace(_)) && plan.update == Update::Rolling);
        let change = playing.apply(plan, change).await?;
        if change.is_something() && !matches!(change, Change::Rotate(_)) {
            if waits && !args.no_wait {
                pod::ready(&playing.context, plan, args.wait).await?;
            } else {
                started.push(plan);
            }
        }
        done.push(view::Played::new(plan, &change));
    }
    if !args.no_wait {
        for plan in started {
            pod::ready(&playing.context, plan, args.wait).await?;
        }
    }
    let mut failures = Vec::new();
    for run in jobs::group(&plan, &changes) {
        let (played, failure) = jobs::carry_out(&mut playing, &run).await?;
        done.extend(played);
        failures.extend(failure);
    }
    if session.json {
        let document = view::Play::new(&input.play, done, &warnings);
        session.output.text(agent_cli::view::json::document(&document)).await;
    } else if changes.iter().all(|change| !change.is_something()) {
        session.output.note(format!("{}: nothing has changed", input.play));
    }
    match failures.into_iter().next() {
        Some(failure) => Err(failure.into()),
        None => Ok(0),
    }
}

/// Tells what `play` would do.
pub(crate) async fn diff(session: &Session, input: &Input) -> Result<u8, Failure> {
    let (plan, warnings) = read(session, input).await?;
    warn(session, &warnings);
    let known = known::pods(&session.client, None).await?;
    let memory = Memory::open(&input.play)?;
    let changes = decide(&plan, &input.play, &known, &memory, false)?;
    let mut done: Vec<view::Played> =
        plan.pods.iter().zip(&changes).map(|(plan, change)| view::Played::new(plan, change)).collect();
    done.extend(superfluous(&input.play, &plan, &known).map(view::Played::removed));
    let differs = changes.iter().any(Change::is_something) || done.len() > changes.len();
    let document = view::Play::new(&input.play, done, &warnings);
    session.print(&document, || document.text(session.style)).await;
    Ok(u8::from(differs))
}

async fn read(session: &Session, input: &Input) -> Result<(Plan, Vec<Violation>), Failure> {
    let info = session.client.info().await.doing("info")?;
    Ok(input.decorated_plan(&info).await?)
}

fn warn(session: &Session, warnings: &[Violation]) {
    if !session.json {
        for warning in warnings {
            session.output.note(format!("warning: {}", plain(&warning.to_string())));
        }
    }
}

fn of_cron_job(plan: Plan, name: &str) -> Result<Plan, KubeError> {
    let found =
        plan.crons.into_iter().find(|cron| cron.name == name || format!("{}/{}", cron.namespace, cron.name) == name);
    let cron = found.ok_or_else(|| KubeError::NoPod(format!("there is no CronJob {name} in the files")))?;
    if cron.cron.suspended {
        return Err(KubeError::NoPod(format!("the CronJob {name} is suspended")));
    }
    Ok(Plan { pods: cron.pods, crons: Vec::new() })
}

/// Pods of the play that are in no file. Those of CronJobs have runs of their own.
fn superfluous<'a>(
    play: &'a str,
    plan: &'a Plan,
    known: &'a BTreeMap<String, KnownPod>,
) -> impl Iterator<Item = &'a KnownPod> {
    let crons = plan.crons.iter().flat_map(|cron| &cron.pods);
    let wanted: BTreeSet<&str> = plan.pods.iter().chain(crons).map(|pod| pod.id.as_str()).collect();
    known.values().filter(move |pod| pod.play() == play && !wanted.contains(pod.pod.id.as_str()))
}

/// A play under way.
pub(crate) struct Playing<'a> {
    pub(crate) context: Context,
    pub(crate) memory: Memory,
    pub(crate) args: &'a PlayArgs,
    pub(crate) known: BTreeMap<String, KnownPod>,
}

impl Playing<'_> {
    /// Removes what is in no file any more.
    async fn prune(&mut self, play: &str, plan: &Plan) -> Result<(), Failure> {
        let ids: Vec<String> = superfluous(play, plan, &self.known).map(|pod| pod.pod.id.clone()).collect();
        for id in ids {
            self.context.progress(format!("{id}: removed, because it is in no file"));
            self.remove(&id).await?;
        }
        Ok(())
    }

    /// Stops all pods first that are replaced together.
    async fn recreate(&mut self, plan: &Plan, changes: &[Change]) -> Result<(), Failure> {
        let together = |(plan, change): &(&PodPlan, &Change)| {
            plan.update == Update::Recreate && matches!(change, Change::Replace(_))
        };
        let ids: Vec<String> =
            plan.pods.iter().zip(changes).filter(together).map(|(plan, _)| plan.id.clone()).collect();
        for id in ids {
            self.remove(&id).await?;
        }
        Ok(())
    }

    /// Removes a pod, if it is there.
    pub(crate) async fn remove(&mut self, id: &str) -> Result<(), Failure> {
        if let Some(known) = self.known.remove(id) {
            pod::remove(&self.context, id, None).await?;
            let ids: Vec<String> = known.members.into_iter().map(|member| member.id).collect();
            self.memory.forget(&ids)?;
        }
        Ok(())
    }

    /// Does what was decided; returns what was done in the end.
    pub(crate) async fn apply(&mut self, plan: &PodPlan, change: &Change) -> Result<Change, Failure> {
        match change {
            Change::Nothing => return Ok(Change::Nothing),
            Change::Left => {
                self.context.progress(format!("{}: {}", pod::shown(plan), change.reason()));
                return Ok(Change::Left);
            }
            Change::Remove => return Ok(Change::Remove),
            Change::Create | Change::Complete => {}
            Change::Replace(reason) => {
                self.context.progress(format!("{}: replaced: {reason}", pod::shown(plan)));
                self.remove(&plan.id).await?;
            }
            Change::Rotate(_) | Change::Ask => {
                let Some(known) = self.known.get(&plan.id).cloned() else { return Ok(Change::Nothing) };
                match self.rotate(plan, &known).await? {
                    Rotated::Names(names) if names.is_empty() => return Ok(Change::Nothing),
                    Rotated::Names(names) => return Ok(Change::Rotate(names)),
                    Rotated::Not(reason) => {
                        self.context.progress(format!("{}: replaced: {reason}", pod::shown(plan)));
                        self.remove(&plan.id).await?;
                        self.start(plan).await?;
                        return Ok(Change::Replace(reason));
                    }
                }
            }
        }
        self.start(plan).await?;
        Ok(change.clone())
    }

    /// Starts a pod and remembers its secrets' digests.
    pub(crate) async fn start(&mut self, plan: &PodPlan) -> Result<(), Failure> {
        let context = self.context.clone();
        let unsure = self.unsure(plan);
        let mut started = pod::within(&context, plan, pod::start(&context, plan, &unsure)).await;
        let is_other = |started: &Result<_, Failure>| {
            started.as_ref().is_err_and(|failure| failure.code() == Some(Code::AlreadyExists))
        };
        if is_other(&started) && self.known.contains_key(&plan.id) {
            // A play that was cut off has begun it with other secrets.
            self.remove(&plan.id).await?;
            started = pod::within(&context, plan, pod::start(&context, plan, &unsure)).await;
        }
        if is_other(&started) {
            return Err(KubeError::Foreign(plan.id.clone()).into());
        }
        let started = started?;
        for (member, container) in plan.members.iter().zip(&started) {
            self.memory.remember(&created_at(container), member)?;
        }
        Ok(())
    }

    /// Containers that are there and that this program does not remember: a play was cut off.
    fn unsure(&self, plan: &PodPlan) -> BTreeSet<String> {
        let Some(known) = self.known.get(&plan.id) else { return BTreeSet::new() };
        let is_unsure = |member: &&Member| {
            let container = known.member(&member.request.id);
            container.is_some_and(|container| self.memory.compare(&created_at(container), member).is_none())
        };
        plan.members.iter().filter(is_unsure).map(|member| member.request.id.clone()).collect()
    }

    /// Replaces changed files in place.
    async fn rotate(&mut self, plan: &PodPlan, known: &KnownPod) -> Result<Rotated, Failure> {
        let mut names = Vec::new();
        for member in &plan.members {
            let Some(container) = known.member(&member.request.id) else { continue };
            let created = created_at(container);
            let changed = self.memory.compare(&created, member);
            match changed {
                Some(changed) if !changed.files => continue,
                Some(_) => {}
                None => {
                    if self.is_same(member).await? {
                        if let (Some(hook), State::Running) = (&member.post_start, container.state())
                            && let Some(message) = hooks::run(&self.context.client, &container.id, hook).await?
                        {
                            let (pod, container) = (pod::shown(plan), member.name.clone());
                            let message = format!("PostStartHookError: {message}");
                            return Err(KubeError::Container { pod, container, message }.into());
                        }
                        self.memory.remember(&created, member)?;
                        continue;
                    }
                    if has_secret_variables(member) {
                        return Ok(Rotated::Not(format!(
                            "secrets of {} may have changed, and nothing tells which",
                            member.name
                        )));
                    }
                }
            }
            if container.state() == State::Completed {
                continue;
            }
            if let Some(reason) = self.update(container, member).await? {
                return Ok(Rotated::Not(reason));
            }
            self.memory.remember(&created, member)?;
            self.context.progress(format!("{}: files of {} replaced", pod::shown(plan), member.name));
            names.push(member.name.clone());
        }
        Ok(Rotated::Names(names))
    }

    /// Asks executord whether a container was started by this very request.
    async fn is_same(&self, member: &Member) -> Result<bool, Failure> {
        let run = Run::from(executor_client::v1::RunRequest::clone(&member.request));
        match self.context.client.run(&run).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(Code::AlreadyExists) => Ok(false),
            Err(error) => Err(error).doing(&format!("compare {}", member.request.id)),
        }
    }

    /// Replaces the files of a container, all at once. Returns why it cannot be done, if it cannot.
    async fn update(&self, container: &Container, member: &Member) -> Result<Option<String>, Failure> {
        let files: Vec<_> = member.rotating_files().into_iter().cloned().collect();
        let inside = |path: &str| {
            member.rotating.iter().any(|dir| path.strip_prefix(dir.as_str()).is_some_and(|rest| rest.starts_with('/')))
        };
        let removed = container.files.iter().map(|file| file.path.clone());
        let removed_paths =
            removed.filter(|path| inside(path) && !files.iter().any(|file| file.path == *path)).collect();
        let request = UpdateFilesRequest {
            id: container.id.clone(),
            files,
            removed_paths,
            expected_generation: Some(container.files_generation),
            signal: 0,
        };
        match self.context.client.update_files(Wiped::new(request)).await {
            Ok(_) => Ok(None),
            // The image has such a directory: its files are mounted one by one.
            Err(error) if error.code() == Some(Code::FailedPrecondition) => {
                Ok(Some(format!("its files cannot be replaced in place: {error}")))
            }
            Err(error) => Err(error).doing(&format!("replace the files of {}", container.id)),
        }
    }
}

enum Rotated {
    Names(Vec<String>),
    Not(String),
}

/// Kinds that are waited for to their end.
pub(crate) fn is_job(plan: &PodPlan) -> bool {
    matches!(plan.kind, Kind::Job | Kind::CronJob)
}
