//! Runs the commands `ps` and `logs`.

use std::collections::BTreeMap;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::logs::{Form, Printer, follow};
use executor_cli_kit::session::Session;
use executor_client::v1::StreamLogsRequest;

use crate::args::{LogsArgs, PsArgs};
use crate::error::KubeError;
use crate::known::{self, KnownPod, container_name, role};
use crate::view;

pub(crate) async fn ps(session: &Session, args: &PsArgs) -> Result<u8, Failure> {
    let known = known::pods(&session.client, args.name.as_deref()).await?;
    let document: Vec<view::Pod> = known.values().map(view::Pod::from_pod).collect();
    session.print(&document, || view::table(&document, session.style)).await;
    Ok(0)
}

pub(crate) async fn logs(session: &Session, args: LogsArgs) -> Result<u8, Failure> {
    let known = known::pods(&session.client, None).await?;
    let pod = find(&known, &args.pod)?;
    let names = || pod.members.iter().map(container_name).collect::<Vec<_>>().join(", ");
    let member = match &args.container {
        Some(name) => pod.members.iter().find(|member| container_name(member) == name).ok_or_else(|| {
            KubeError::NoPod(format!("the pod {} has no container {name}; it has {}", pod.name(), names()))
        })?,
        None => pod
            .members
            .iter()
            .find(|member| role(member) == "main")
            .or(pod.members.last())
            .ok_or_else(|| KubeError::NoPod(format!("the pod {} has no container yet", pod.name())))?,
    };
    let form = if session.json { Form::Json } else { Form::AsItWas };
    let mut printer = Printer::new(session.output.clone(), form);
    if args.timestamps {
        printer = printer.with_times();
    }
    let request = StreamLogsRequest {
        id: member.id.clone(),
        follow: args.follow,
        tail: args.tail.0,
        ..StreamLogsRequest::default()
    };
    follow(&session.client, request, &mut printer).await?;
    Ok(0)
}

/// Finds a pod by its id, by its name, or by NAMESPACE/NAME.
fn find<'a>(known: &'a BTreeMap<String, KnownPod>, text: &str) -> Result<&'a KnownPod, KubeError> {
    if let Some(pod) = known.get(text) {
        return Ok(pod);
    }
    let (namespace, name) = text.split_once('/').map_or((None, text), |(namespace, name)| (Some(namespace), name));
    let fits = |pod: &&KnownPod| pod.name() == name && namespace.is_none_or(|namespace| pod.namespace() == namespace);
    let found: Vec<&KnownPod> = known.values().filter(fits).collect();
    match found[..] {
        [pod] => Ok(pod),
        [] => Err(KubeError::NoPod(format!("no play has a pod {text}"))),
        _ => {
            let all: Vec<String> = found.iter().map(|pod| format!("{}/{}", pod.namespace(), pod.name())).collect();
            Err(KubeError::NoPod(format!("several pods have the name {text}: {}", all.join(", "))))
        }
    }
}
