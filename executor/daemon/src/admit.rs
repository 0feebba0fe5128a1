//! From a request to a container: what Run does.
//!
//! In goes the decoded message, by value, because it holds the only copies of the secrets; out comes the container
//! once its process was started. Everything that can fail without a trace (validation, descriptors, memory) is
//! done before anything is taken; the id and the capacity are taken together; from there on a task of its own goes
//! on, whether the caller waits or not.

use std::sync::Arc;

use executor_core::image::ImageReference;
use executor_core::lifecycle::State;
use executor_core::payload::{self, ProcessPayload};
use executor_core::plan::{Plan, PlannedImage};
use executor_core::validate::{Draft, Policy, Violation, validate};
use executor_proto::v1;
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;
use zeroize::{Zeroize as _, Zeroizing};

use crate::api::draft;
use crate::container::Handle;
use crate::container::actor::{self, Cargo};
use crate::container::facts::Facts;
use crate::container::link::ShimLink;
use crate::images;
use crate::node::Node;
use crate::problem::{Kind, Problem};
use crate::registry::Admission;
use crate::tag;

/// Runs a request: the container, and whether this call made it.
///
/// # Errors
/// Those that the interface lists for Run. After them nothing is left and the id is free.
pub async fn run(node: &Arc<Node>, request: v1::RunRequest) -> Result<(Arc<Facts>, bool), Problem> {
    let mut request = Wiped(request);
    // An id may be that of a container that an earlier daemon launched in its last moment.
    node.until_found().await;
    let outcome = admit(node, &mut request.0).await;
    drop(request);
    executor_secrets::scrub_stack(); // the hash of the request held a block of it at a time
    let (handle, created) = outcome?;
    let facts = tokio::select! {
        facts = handle.started() => facts?,
        () = node.until_stopping() => return Err(Problem::stopping()),
    };
    Ok((facts, created))
}

/// A request that is overwritten when it goes, also where its caller went away while its image was fetched.
struct Wiped(v1::RunRequest);

impl Drop for Wiped {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Everything up to the task that goes on alone.
async fn admit(node: &Arc<Node>, request: &mut v1::RunRequest) -> Result<(Arc<Handle>, bool), Problem> {
    if request.id.is_empty() {
        request.id = uuid::Uuid::new_v4().to_string();
    }
    let image = images::reference(request)?;
    // With an image: everything but what it will say, before anything is fetched for nothing.
    let mut plan = match &image {
        None => planned(request, &node.policy)?,
        Some(reference) => {
            planned_early(request, &node.policy).map_err(|problem| told_alone(problem, reference, node))?
        }
    };
    let used = node.registry.get(&plan.id);
    let Some(key) = node.launcher.tag_key() else {
        return Err(node.launcher.session().err().unwrap_or_else(|| {
            Problem::new(Kind::Unavailable, "the launcher gave no usable key to compare requests with")
        }));
    };
    let tag = tag::of(&key, request);
    if let Some(handle) = used {
        return same_or_not(handle, &tag);
    }
    node.launcher.session()?;
    node.takes_containers()?;
    let mut resolved = None;
    if let Some(reference) = image {
        let policy = images::policy(request)?;
        let credentials = images::credentials(request.registry_credentials.take(), "registry_credentials")?;
        let ready = images::resolve(node, &reference, policy, credentials).await?;
        let image = images::apply(request, &ready)?;
        plan = planned_with(request, &node.policy, Some(image))?;
        resolved = Some(ready);
        // It took its time.
        node.takes_containers()?;
    }
    let session = node.launcher.session()?;
    let cargo = load(&plan, request).map_err(|error| {
        Problem::new(Kind::Exhausted, format!("no memory or descriptors for container {}: {error}", plan.id))
    })?;
    let facts = Facts::admitted(plan, tag.clone(), crate::now(), node.boot_id.clone());
    let admitted = node.registry.admit(facts.clone());
    // From here on the container itself keeps its image.
    drop(resolved);
    match admitted {
        Ok(Admission::New(handle)) => {
            handle.set_shim(Some(Arc::clone(&cargo.ours)));
            tokio::spawn(actor::launch(Arc::clone(node), Arc::clone(&handle), facts, session, cargo));
            Ok((handle, true))
        }
        Ok(Admission::Used(handle)) => {
            cargo.wipe();
            same_or_not(handle, &tag)
        }
        Err(exhausted) => {
            cargo.wipe();
            Err(Problem::new(Kind::Exhausted, exhausted.to_string()))
        }
    }
}

/// What a request comes to under a policy: its plan, or every violation at once. It decides and does nothing.
///
/// # Errors
/// Not one action that is carried out; fields that are not as they must be.
pub fn planned(request: &v1::RunRequest, policy: &Policy) -> Result<Plan, Problem> {
    planned_with(request, policy, None)
}

/// The same as far as it can be told before the image is known: the program and all that the image may say is left out.
fn planned_early(request: &v1::RunRequest, policy: &Policy) -> Result<Plan, Problem> {
    let (mut draft, violations) = draft::of(request)?;
    draft.image = Some(images::placeholder(request));
    if draft.path.is_empty() {
        draft.path = "/";
    }
    judged(&draft, violations, policy)
}

/// An image that the operator's policy refuses is no fault of the request's form, where nothing else is wrong with it.
fn told_alone(problem: Problem, reference: &ImageReference, node: &Node) -> Problem {
    let alone = matches!(&problem.violations[..], [one] if one.field == "rootfs");
    let kind = if alone && node.policy.images.permits(reference).is_err() { Kind::Denied } else { problem.kind };
    Problem { kind, ..problem }
}

/// The same with the image that was resolved.
fn planned_with(request: &v1::RunRequest, policy: &Policy, image: Option<PlannedImage>) -> Result<Plan, Problem> {
    let (mut draft, violations) = draft::of(request)?;
    draft.image = image;
    judged(&draft, violations, policy)
}

fn judged(draft: &Draft<'_>, mut violations: Vec<Violation>, policy: &Policy) -> Result<Plan, Problem> {
    match validate(draft, policy) {
        Ok(plan) if violations.is_empty() => Ok(plan),
        Ok(_) => Err(Problem::invalid(violations)),
        Err(found) => {
            violations.extend(found);
            Err(Problem::invalid(violations))
        }
    }
}

/// What a request under a used id gets.
fn same_or_not(handle: Arc<Handle>, tag: &str) -> Result<(Arc<Handle>, bool), Problem> {
    if handle.request_tag() == tag {
        return Ok((handle, false));
    }
    let state = handle.state().map_or("deleted", State::name);
    Err(Problem::new(
        Kind::Exists,
        format!("container {} ({state}) was made by another request under the same id", handle.id()),
    ))
}

/// Puts plan and secrets into memory files, and makes the connection.
fn load(plan: &Plan, request: &v1::RunRequest) -> std::io::Result<Cargo> {
    let (ours, theirs) = Seqpacket::pair()?;
    let json = serde_json::to_vec(plan).map_err(std::io::Error::from)?;
    let mut plan = MemFile::create("executor-plan", json.len())?;
    plan.fill(|bytes| bytes.copy_from_slice(&json))?;
    let process = process_payload(request)?;
    let files = draft::files(request).map(|(_, file)| file.content.as_slice());
    let files = written("executor-files", &files.collect::<Vec<_>>())?;
    Ok(Cargo { ours: ShimLink::new(ours)?, theirs, plan, process, files })
}

fn process_payload(request: &v1::RunRequest) -> std::io::Result<MemFile> {
    // Validated: there is a run action.
    let default = v1::RunAction::default();
    let run = request.action.as_ref().and_then(|action| action.run.as_ref()).unwrap_or(&default);
    let dir = if run.dir.is_empty() { "/" } else { &run.dir };
    let count = run.args.len().to_string();
    let mut args: Vec<&[u8]> = run.args.iter().map(String::as_bytes).collect();
    for v1::SecretArgument { index, value } in &run.secret_arguments {
        if let Some(empty) = args.get_mut(*index as usize) {
            *empty = value.as_bytes();
        }
    }
    let all = run.env.iter().chain(&run.secret_environment);
    let joined: Vec<Zeroizing<String>> =
        all.clone().map(|variable| Zeroizing::new(format!("{}={}", variable.name, variable.value))).collect();
    let mut env: Vec<&[u8]> = joined.iter().map(|variable| variable.as_bytes()).collect();
    let has = |name: &str| all.clone().any(|variable| variable.name == name);
    env.extend(payload::default_environment(has, request.terminal));
    let strings = ProcessPayload::strings(run.path.as_bytes(), dir.as_bytes(), count.as_bytes(), &args, &env);
    written("executor-process", &strings)
}

fn written(name: &str, strings: &[&[u8]]) -> std::io::Result<MemFile> {
    let mut file = MemFile::create(name, payload::encoded_len(strings.iter().copied()))?;
    file.fill(|bytes| payload::encode(strings.iter().copied(), bytes))?;
    Ok(file)
}

/// Overwrites what is secret in a request.
fn wipe(request: &mut v1::RunRequest) {
    if let Some(run) = request.action.as_mut().and_then(|action| action.run.as_mut()) {
        run.args.zeroize();
        let v1::RunAction { env, secret_environment, secret_arguments, .. } = run;
        env.iter_mut().chain(secret_environment).for_each(|variable| variable.value.zeroize());
        secret_arguments.iter_mut().for_each(|argument| argument.value.zeroize());
        run.volume_mounted_files.iter_mut().for_each(|file| file.content.zeroize());
    }
    request.volume_mounted_files.iter_mut().for_each(|file| file.content.zeroize());
    if let Some(credentials) = request.registry_credentials.as_mut() {
        credentials.password.zeroize();
        credentials.identity_token.zeroize();
    }
}

/// Ends all containers and waits until they have ended: what an ephemeral daemon does at its end.
pub(crate) async fn end_all(node: &Arc<Node>) {
    loop {
        // Again, for one that was admitted just before the daemon began to stop.
        let living: Vec<_> = node.registry.all().into_iter().filter(|handle| !handle.is_over()).collect();
        if living.is_empty() {
            return;
        }
        end(living).await;
    }
}

async fn end(handles: Vec<Arc<Handle>>) {
    for handle in &handles {
        if let Some(link) = handle.shim() {
            tokio::spawn(async move {
                let kill = executor_core::protocol::Stop { grace_ms: 0 };
                let _ = link.call(executor_core::protocol::ShimCall::Stop(kill)).await;
            });
        }
    }
    for handle in handles {
        let _ = handle.completed().await;
    }
}
