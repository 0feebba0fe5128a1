//! `down`: removes everything that a play created, even if the play was interrupted.

use std::collections::BTreeMap;
use std::path::Path;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::view::json;

use crate::args::{DownArgs, play_name};
use crate::error::KubeError;
use crate::input::name_of;
use crate::known::{self, Context, KnownPod};
use crate::memory::Memory;
use crate::{pod, view};

pub(crate) async fn down(session: &Session, args: &DownArgs) -> Result<u8, Failure> {
    let context = Context { client: session.client.clone(), output: session.output.clone(), json: session.json };
    let mut done = Vec::new();
    for what in &args.what {
        let play = named(what, &known::pods(&session.client, None).await?)?;
        let mut memory = Memory::open(&play, || context.note_waiting(&play)).await?;
        // The play that held the lock may have created more pods.
        let known = known::pods(&session.client, Some(&play)).await?;
        // The pods of a workload are stopped one by one in reverse order; different workloads in parallel.
        let mut workloads: BTreeMap<(&str, &str), Vec<&KnownPod>> = BTreeMap::new();
        for pod in known.values() {
            workloads.entry((pod.namespace(), pod.workload())).or_default().push(pod);
        }
        let mut tasks = Vec::new();
        for mut pods in workloads.into_values() {
            pods.sort_by_key(|pod| (pod.name().len(), pod.name().to_owned()));
            let in_order = pods.first().is_some_and(|pod| pod.workload().starts_with("StatefulSet/"));
            let ids: Vec<String> = pods.iter().rev().map(|pod| pod.pod.id.clone()).collect();
            let groups: Vec<Vec<String>> =
                if in_order { vec![ids] } else { ids.into_iter().map(|id| vec![id]).collect() };
            for ids in groups {
                let (context, grace) = (context.clone(), args.grace);
                tasks.push(tokio::spawn(async move {
                    for id in ids {
                        pod::remove(&context, &id, grace).await?;
                        context.progress(format!("{id}: removed"));
                    }
                    Ok::<_, Failure>(())
                }));
            }
        }
        let mut failure = None;
        for task in tasks {
            let result = task.await.map_err(|error| Failure::System(std::io::Error::other(error)))?;
            failure = failure.or(result.err());
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        for pod in known.values() {
            let ids: Vec<String> = pod.members.iter().map(|member| member.id.clone()).collect();
            memory.remove(&ids)?;
            done.push(view::Removed { id: pod.pod.id.clone(), play: play.clone() });
        }
        memory.store(&[])?;
    }
    if session.json {
        session.output.text(json::to_document(&done)).await;
    }
    Ok(0)
}

/// Returns the name of a play. The argument is the name itself, or a file from which the name is derived.
fn named(what: &Path, known: &BTreeMap<String, KnownPod>) -> Result<String, KubeError> {
    let text = what.display().to_string();
    if known.values().any(|pod| pod.play() == text) {
        return Ok(text);
    }
    if what == Path::new("-") || what.exists() {
        return name_of(what);
    }
    // A known play without pods has already been removed.
    match Memory::exists(&text) && play_name(&text).is_ok() {
        true => Ok(text),
        false => Err(KubeError::NoPlay(text)),
    }
}
