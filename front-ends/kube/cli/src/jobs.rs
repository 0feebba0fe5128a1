//! Runs the pods of jobs to completion, with limited parallelism, and retries failed pods (rule P62 of
//! `docs/guides/kube-rules.md`).

use std::time::Duration;

use executor_cli_kit::failure::Failure;
use executor_kube::plan::{Plan, PodPlan};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::change::Change;
use crate::error::KubeError;
use crate::known::Context;
use crate::playing::{Playing, is_job};
use crate::{pod, view};

/// Delay before a failed pod is created again for the first time. Each further failure doubles the delay.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(10);
/// Maximum delay before a failed pod is created again.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(600);

/// The pods of one job, with the change of each pod.
pub(crate) struct JobPods {
    pods: Vec<(PodPlan, Change)>,
}

pub(crate) fn group(plan: &Plan, changes: &[Change]) -> Vec<JobPods> {
    let mut jobs: Vec<JobPods> = Vec::new();
    for (pod, change) in plan.pods.iter().zip(changes).filter(|(pod, _)| is_job(pod)) {
        let entry = (pod.clone(), change.clone());
        let same = |job: &&mut JobPods| {
            job.pods
                .first()
                .is_some_and(|(first, _)| (&first.namespace, &first.workload) == (&pod.namespace, &pod.workload))
        };
        match jobs.iter_mut().find(same) {
            Some(job) => job.pods.push(entry),
            None => jobs.push(JobPods { pods: vec![entry] }),
        }
    }
    jobs
}

/// Runs a job to completion.
pub(crate) async fn perform(
    playing: &mut Playing<'_>,
    job: &JobPods,
) -> Result<(Vec<view::Played>, Option<KubeError>), Failure> {
    let Some((first, _)) = job.pods.first() else { return Ok((Vec::new(), None)) };
    let Some(rules) = first.job.clone() else { return Ok((Vec::new(), None)) };
    let mut done = Vec::new();
    let mut waiting: Vec<&PodPlan> = Vec::new();
    for (plan, change) in &job.pods {
        let is_over =
            !change.alters_pod() && playing.known.get(&plan.id).is_some_and(|known| known.phase() == "Succeeded");
        done.push(view::Played::new(plan, change));
        if !is_over {
            waiting.push(plan);
        }
        if let Change::Replace(_) = change {
            playing.remove(&plan.id).await?;
        }
    }
    waiting.reverse();
    if playing.args.no_wait {
        let count = usize::try_from(rules.parallelism).unwrap_or(1);
        for plan in waiting.iter().rev().take(count) {
            playing.start(plan).await?;
        }
        if waiting.len() > count {
            let more = waiting.len() - count;
            playing.context.progress(format!("{}: {more} more pods are run by the next play", first.workload));
        }
        return Ok((done, None));
    }
    let mut running: JoinSet<(PodPlan, Result<Option<String>, Failure>)> = JoinSet::new();
    let mut active: Vec<String> = Vec::new();
    let mut failed_pods: Vec<&PodPlan> = Vec::new();
    let mut resume_at = None;
    let mut failures = 0u32;
    let deadline = rules.deadline_seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let failed = |message: String| KubeError::Job { kind: first.kind.name(), name: first.workload.clone(), message };
    loop {
        if resume_at.is_none_or(|at| at <= Instant::now()) {
            resume_at = None;
            for plan in failed_pods.drain(..) {
                pod::remove(&playing.context, &plan.id, None).await?;
                waiting.push(plan);
            }
            while active.len() < usize::try_from(rules.parallelism).unwrap_or(1) {
                let Some(plan) = waiting.pop() else { break };
                playing.start(plan).await?;
                active.push(plan.id.clone());
                running.spawn(watch(playing.context.clone(), plan.clone()));
            }
        }
        if active.is_empty() && resume_at.is_none() {
            return Ok((done, None));
        }
        let ended = tokio::select! {
            biased; // the pods have the same deadline, and the job must be reported
            () = until(deadline) => {
                stop(&playing.context, running, &active).await?;
                let limit = rules.deadline_seconds.unwrap_or_default();
                return Ok((done, Some(failed(format!("DeadlineExceeded: the job took longer than {limit} s")))));
            }
            Some(ended) = running.join_next() => ended,
            () = until(resume_at) => continue,
        };
        let (plan, result) = ended.map_err(|error| Failure::System(std::io::Error::other(error)))?;
        active.retain(|id| *id != plan.id);
        let Some(message) = result? else {
            playing.context.progress(format!("{}: completed", pod::shown(&plan)));
            continue;
        };
        failures += 1;
        playing.context.progress(format!("{}: failed: {message}", pod::shown(&plan)));
        // With OnFailure, executord has already restarted the container as often as the limit allows.
        let restarted = plan
            .members
            .iter()
            .any(|member| member.request.restart_policy.is_some() && member.role == executor_kube::plan::Role::Main);
        if failures > rules.backoff_limit || restarted {
            stop(&playing.context, running, &active).await?;
            return Ok((done, Some(failed(format!("BackoffLimitExceeded: {message}")))));
        }
        let pause = RETRY_DELAY_MIN.saturating_mul(1 << (failures - 1).min(10)).min(RETRY_DELAY_MAX);
        playing.context.progress(format!("{}: retry in {} s", pod::shown(&plan), pause.as_secs()));
        resume_at = Some(Instant::now() + pause);
        failed_pods.extend(job.pods.iter().map(|(other, _)| other).find(|other| other.id == plan.id));
    }
}

/// Waits until a time; forever if there is none.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Stops the running pods of a job that has failed.
async fn stop<T: 'static>(context: &Context, mut watches: JoinSet<T>, active: &[String]) -> Result<(), Failure> {
    watches.shutdown().await;
    let mut stops: JoinSet<Result<(), Failure>> = JoinSet::new();
    for id in active {
        let (context, id) = (context.clone(), id.clone());
        stops.spawn(async move { pod::stop_containers(&context, &id).await });
    }
    stops.join_all().await.into_iter().collect()
}

async fn watch(context: Context, plan: PodPlan) -> (PodPlan, Result<Option<String>, Failure>) {
    let result = pod::within(&context, &plan, pod::finish(&context, &plan)).await;
    (plan, result)
}
