//! Runs the commands `play` and `diff`.

use std::collections::BTreeMap;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_client::v1::InfoResponse;
use executor_kube::config::Config;
use executor_kube::plan::{Plan, PodPlan};
use executor_kube::report::Violation;
use executor_kube::workload::Update;

use crate::args::PlayArgs;
use crate::change::{Change, decide};
use crate::error::KubeError;
use crate::input::Input;
use crate::known::{self, Context, KnownPod};
use crate::memory::Memory;
use crate::playing::{Playing, superfluous};
use crate::{admission, jobs, pod, view};

pub(crate) async fn play(session: &Session, args: &PlayArgs, input: &Input) -> Result<u8, Failure> {
    let Planned { mut plan, warnings, configs, info } = read(session, input).await?;
    warn(session, &warnings);
    if let Some(name) = &args.cron_job {
        plan = of_cron_job(plan, name)?;
    } else {
        for cron in &plan.crons {
            let name = plain(&cron.name);
            session.output.note(format!("CronJob {name} is not run by a play: `generate unit` writes a timer for it, --cron-job {name} runs it now"));
        }
    }
    let context = Context { client: session.client.clone(), output: session.output.clone(), json: session.json };
    let mut memory = Memory::open(&input.play, || context.note_waiting(&input.play)).await?;
    if !args.replace {
        memory.check(&configs)?;
    }
    let known = known::pods(&session.client, None).await?;
    admission::validate(session, &info, &plan, |pod| !args.replace && is_unchanged(pod, &known)).await?;
    memory.store(&configs)?;
    let removed: Vec<view::Played> = match args.cron_job {
        None => superfluous(&input.play, &plan, &known).map(view::Played::removed).collect(),
        Some(_) => Vec::new(),
    };
    let mut playing = Playing { memory, context, args, known };
    if args.cron_job.is_none() {
        playing.prune(&input.play, &plan).await?;
    } else {
        // A run of a CronJob replaces the previous run.
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
        if change.alters_pod() && !matches!(change, Change::Rotate(_)) {
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
        let (played, failure) = jobs::perform(&mut playing, &run).await?;
        done.extend(played);
        failures.extend(failure);
    }
    if session.json {
        done.extend(removed);
        let document = view::Play::new(&input.play, done, &warnings);
        session.output.text(executor_cli_kit::view::json::to_document(&document)).await;
    } else if removed.is_empty() && changes.iter().all(|change| !change.alters_pod()) {
        session.output.note(format!("{}: nothing has changed", input.play));
    }
    match failures.into_iter().next() {
        Some(failure) => Err(failure.into()),
        None => Ok(0),
    }
}

/// Prints what `play` would change.
pub(crate) async fn diff(session: &Session, input: &Input) -> Result<u8, Failure> {
    let Planned { plan, warnings, configs, info } = read(session, input).await?;
    warn(session, &warnings);
    let known = known::pods(&session.client, None).await?;
    admission::validate(session, &info, &plan, |pod| is_unchanged(pod, &known)).await?;
    let memory = Memory::peek(&input.play)?;
    memory.check(&configs)?;
    let changes = decide(&plan, &input.play, &known, &memory, false)?;
    let mut done: Vec<view::Played> =
        plan.pods.iter().zip(&changes).map(|(plan, change)| view::Played::new(plan, change)).collect();
    done.extend(superfluous(&input.play, &plan, &known).map(view::Played::removed));
    let differs = changes.iter().any(Change::alters_pod) || done.len() > changes.len();
    let document = view::Play::new(&input.play, done, &warnings);
    session.print(&document, || document.text(session.style)).await;
    Ok(u8::from(differs))
}

/// The plan and other results of reading the files.
struct Planned {
    plan: Plan,
    warnings: Vec<Violation>,
    configs: Vec<Config>,
    info: InfoResponse,
}

async fn read(session: &Session, input: &Input) -> Result<Planned, Failure> {
    let info = session.client.info().await.doing("info")?;
    let (plan, warnings, configs) = input.decorated_plan(&info).await?;
    Ok(Planned { plan, warnings, configs, info })
}

/// Returns true if the pod exists with the same digest, so that executord has already accepted its requests.
fn is_unchanged(pod: &PodPlan, known: &BTreeMap<String, KnownPod>) -> bool {
    known.get(&pod.id).is_some_and(|known| known.digest() == pod.digest)
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
