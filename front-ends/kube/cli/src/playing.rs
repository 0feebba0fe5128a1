//! Applies the changes of a play to its pods.

use std::collections::{BTreeMap, BTreeSet};

use executor_cli_kit::failure::Failure;
use executor_cli_kit::status::ErrorContext as _;
use executor_client::v1::{Container, State, UpdateFilesRequest};
use executor_client::{Code, Run, Wiped};
use executor_kube::plan::{Member, Plan, PodPlan};
use executor_kube::workload::{Kind, Update};

use crate::args::PlayArgs;
use crate::change::{Change, has_secret_variables};
use crate::error::KubeError;
use crate::known::{Context, KnownPod, created_at};
use crate::memory::Memory;
use crate::{hooks, pod};

/// A play whose changes are being applied.
pub(crate) struct Playing<'a> {
    pub(crate) context: Context,
    pub(crate) memory: Memory,
    pub(crate) args: &'a PlayArgs,
    pub(crate) known: BTreeMap<String, KnownPod>,
}

impl Playing<'_> {
    /// Removes the pods that no file contains.
    pub(crate) async fn prune(&mut self, play: &str, plan: &Plan) -> Result<(), Failure> {
        let ids: Vec<String> = superfluous(play, plan, &self.known).map(|pod| pod.pod.id.clone()).collect();
        for id in ids {
            self.context.progress(format!("{id}: removed, because no file contains the pod"));
            self.remove(&id).await?;
        }
        Ok(())
    }

    /// Removes all pods whose strategy is Recreate and that are to be replaced, before any new pod is started.
    pub(crate) async fn recreate(&mut self, plan: &Plan, changes: &[Change]) -> Result<(), Failure> {
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

    /// Removes a pod, if it exists.
    pub(crate) async fn remove(&mut self, id: &str) -> Result<(), Failure> {
        if let Some(known) = self.known.remove(id) {
            pod::remove(&self.context, id, None).await?;
            let ids: Vec<String> = known.members.into_iter().map(|member| member.id).collect();
            self.memory.remove(&ids)?;
        }
        Ok(())
    }

    /// Applies the decided change, and returns the change that was actually made.
    pub(crate) async fn apply(&mut self, plan: &PodPlan, change: &Change) -> Result<Change, Failure> {
        match change {
            Change::Unchanged => return Ok(Change::Unchanged),
            Change::Deferred => {
                self.context.progress(format!("{}: {}", pod::shown(plan), change.reason()));
                return Ok(Change::Deferred);
            }
            Change::Remove => return Ok(Change::Remove),
            Change::Create | Change::Complete => {}
            Change::Replace(reason) => {
                self.context.progress(format!("{}: replaced: {reason}", pod::shown(plan)));
                self.remove(&plan.id).await?;
            }
            Change::Rotate(_) | Change::Compare => {
                let Some(known) = self.known.get(&plan.id).cloned() else { return Ok(Change::Unchanged) };
                match self.rotate(plan, &known).await? {
                    Rotated::Names(names) if names.is_empty() => return Ok(Change::Unchanged),
                    Rotated::Names(names) => return Ok(Change::Rotate(names)),
                    Rotated::Impossible(reason) => {
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

    /// Starts a pod and stores the digests of its secrets.
    pub(crate) async fn start(&mut self, plan: &PodPlan) -> Result<(), Failure> {
        let context = self.context.clone();
        let unsure = self.unsure(plan);
        let mut started = pod::within(&context, plan, pod::start(&context, plan, &unsure)).await;
        let is_other = |started: &Result<_, Failure>| {
            started.as_ref().is_err_and(|failure| failure.code() == Some(Code::AlreadyExists))
        };
        if is_other(&started) && self.known.contains_key(&plan.id) {
            // An interrupted play has created the pod with different secrets.
            self.remove(&plan.id).await?;
            started = pod::within(&context, plan, pod::start(&context, plan, &unsure)).await;
        }
        if is_other(&started) {
            return Err(KubeError::Foreign(plan.id.clone()).into());
        }
        let started = started?;
        for (member, container) in plan.members.iter().zip(&started) {
            self.memory.record_secrets(&created_at(container), member)?;
        }
        Ok(())
    }

    /// Returns the existing containers whose digests are not stored, because a play was interrupted.
    fn unsure(&self, plan: &PodPlan) -> BTreeSet<String> {
        let Some(known) = self.known.get(&plan.id) else { return BTreeSet::new() };
        let is_unsure = |member: &&Member| {
            let container = known.member(&member.request.id);
            container.is_some_and(|container| self.memory.compare(&created_at(container), member).is_none())
        };
        plan.members.iter().filter(is_unsure).map(|member| member.request.id.clone()).collect()
    }

    /// Replaces the changed secret files of a pod's containers in place.
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
                        self.memory.record_secrets(&created, member)?;
                        continue;
                    }
                    if has_secret_variables(member) {
                        return Ok(Rotated::Impossible(format!(
                            "secrets of {} may have changed, and it is unknown which",
                            member.name
                        )));
                    }
                }
            }
            if container.state() == State::Completed {
                continue;
            }
            if let Some(reason) = self.update(container, member).await? {
                return Ok(Rotated::Impossible(reason));
            }
            self.memory.record_secrets(&created, member)?;
            self.context.progress(format!("{}: files of {} replaced", pod::shown(plan), member.name));
            names.push(member.name.clone());
        }
        Ok(Rotated::Names(names))
    }

    /// Returns true if executord confirms that the container was started with the same request.
    async fn is_same(&self, member: &Member) -> Result<bool, Failure> {
        let run = Run::from(executor_client::v1::RunRequest::clone(&member.request));
        match self.context.client.run(&run).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(Code::AlreadyExists) => Ok(false),
            Err(error) => Err(error).doing(&format!("compare {}", member.request.id)),
        }
    }

    /// Replaces the files of a container atomically. Returns the reason if the files cannot be replaced.
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
            ..UpdateFilesRequest::default()
        };
        match self.context.client.update_files(Wiped::new(request)).await {
            Ok(_) => Ok(None),
            // If the directory exists in the image, its files are mounted one by one and cannot be replaced.
            Err(error) if error.code() == Some(Code::FailedPrecondition) => {
                Ok(Some(format!("files cannot be replaced in place: {error}")))
            }
            Err(error) => Err(error).doing(&format!("replace the files of {}", container.id)),
        }
    }
}

enum Rotated {
    Names(Vec<String>),
    Impossible(String),
}

/// Returns true for pods of Jobs and CronJobs, which run to completion.
pub(crate) fn is_job(plan: &PodPlan) -> bool {
    matches!(plan.kind, Kind::Job | Kind::CronJob)
}

/// Returns the pods of the play that no file contains. Pods of the files' CronJobs are excluded.
pub(crate) fn superfluous<'a>(
    play: &'a str,
    plan: &'a Plan,
    known: &'a BTreeMap<String, KnownPod>,
) -> impl Iterator<Item = &'a KnownPod> {
    let crons = plan.crons.iter().flat_map(|cron| &cron.pods);
    let wanted: BTreeSet<&str> = plan.pods.iter().chain(crons).map(|pod| pod.id.as_str()).collect();
    known.values().filter(move |pod| pod.play() == play && !wanted.contains(pod.pod.id.as_str()))
}
