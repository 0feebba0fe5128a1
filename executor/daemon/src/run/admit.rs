//! Run: from a request to a container.
//!
//! The decoded message goes in by value, because it holds the only copies of the secrets; the container comes out when
//! its process was started. All that can fail without a trace (validation, descriptors, memory) is done before anything
//! is taken; the id and the capacity are taken together; from there on a task of its own goes on, even if the caller
//! goes away.

mod dry_run;

use std::sync::Arc;

pub(crate) use dry_run::validate as dry_run;
use executor_core::ident::ContainerId;
use executor_core::image::ImageReference;
use executor_core::lifecycle::State;
use executor_core::payload::{self, ProcessPayload};
use executor_core::plan::{Plan, PlannedImage, Rootfs, VolumeImage, VolumeSource};
use executor_core::validate::{Draft, Policy, Violation, ViolationReason, check_member, recheck, validate};
use executor_images::{Credentials, Policy as PullPolicy};
use executor_proto::v1;
use executor_secrets::TagKey;
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;
use zeroize::{Zeroize as _, Zeroizing};

use crate::access::Client;
use crate::actor::forwarding;
use crate::actor::{self, LaunchPayload};
use crate::api_error::{ApiError, Kind};
use crate::images;
use crate::ipc::memfiles;
use crate::launcher::Session;
use crate::model::container::Handle;
use crate::model::container::link::ShimLink;
use crate::model::identity::IdentityRecord;
use crate::model::reservation::Reservation;
use crate::model::sources::SourceRecord;
use crate::model::status::{ContainerStatus, Phase, TraceContext};
use crate::node::Node;
use crate::operations::certify;
use crate::operations::reserve::{self, Claim};
use crate::requests::digest;
use crate::requests::draft;
use crate::requests::references;
use crate::store::registry::Admission;
use crate::telemetry::traces::TraceParent;

/// Runs a request. Returns the container, and true if this call made it.
///
/// # Errors
/// Those that the interface lists for Run. Nothing is left then, and the id is free.
pub(crate) async fn run(
    node: &Arc<Node>,
    request: v1::RunRequest,
    client: Option<&Client>,
    parent: &TraceParent,
) -> Result<(Arc<ContainerStatus>, bool), ApiError> {
    let mut request = Wiped(request);
    let trace = node.traces.start_trace(parent, crate::now());
    // The id may belong to a container that an earlier daemon launched in its last moment.
    node.until_found().await;
    let received = std::time::Instant::now();
    let outcome = admit(node, &mut request.0, client, trace).await;
    if let Ok((_, true)) = &outcome {
        node.metrics.phase(Phase::Admit, received.elapsed());
    }
    drop(request);
    executor_secrets::scrub_stack(); // the hash of the request held a block of it at a time
    let explain = |problem| node.launcher.explain(problem);
    let (handle, created) = outcome.map_err(explain)?;
    let facts = tokio::select! {
        facts = handle.started() => facts.map_err(explain)?,
        () = node.until_stopping() => return Err(ApiError::stopping()),
    };
    Ok((facts, created))
}

/// A request that is overwritten when it is dropped, as when its caller goes away while its image is fetched.
struct Wiped(v1::RunRequest);

impl Drop for Wiped {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Admits a request, and starts the task that drives the new container.
async fn admit(
    node: &Arc<Node>,
    request: &mut v1::RunRequest,
    client: Option<&Client>,
    trace: Option<TraceContext>,
) -> Result<(Arc<Handle>, bool), ApiError> {
    fill_in_id(&mut request.id);
    let pod = pod_of(node, request)?;
    let pod = pod.as_deref();
    let CheckedRequest { mut plan, image, pull_policy, credentials, referred, identity } =
        check_request(node, request, pod, client)?;
    let used = node.registry.get(&plan.id);
    let key = tag_key(node).await?;
    let tag = match &identity {
        None => digest::request_digest(&key, request),
        Some(identity) => identity.as_it_came(request, |request| digest::request_digest(&key, request)),
    };
    if let Some(handle) = used {
        return same_container(handle, &tag);
    }
    // It does not expire while an image is fetched.
    let _claim = Claim::new(node, &plan.id, request.reserved)?;
    node.launcher.session()?;
    node.check_room()?;
    let mut resolved = Vec::new();
    if let Some(reference) = image {
        let ready = images::resolve(node, &reference, pull_policy, credentials, "rootfs").await?;
        let image = images::apply(request, &ready)?;
        plan = plan_with_image(request, pod, &node.config.policy, Some(image))?;
        resolved.push(ready);
    }
    if plan.volumes.iter().any(|volume| volume.image().is_some()) {
        let of_volumes = images::resolve_volumes(node, &plan, pull_policy).await?;
        let (images, ready): (Vec<VolumeImage>, Vec<_>) = of_volumes.into_iter().unzip();
        plan = with_volume_images(plan, images, &node.config.policy)?;
        resolved.extend(ready);
    }
    if !resolved.is_empty() {
        // Checked again: to fetch an image takes time.
        node.check_room()?;
    }
    let mut sources = Vec::new();
    let is_filled = !referred.asked.is_empty() || identity.is_some();
    if !referred.asked.is_empty() {
        let fetched = references::fetch(node, &referred, &tag_key(node).await?).await?;
        references::fill(request, &referred.asked, fetched.values)?;
        sources = fetched.records;
    }
    // Last, so that it is signed for a container whose other inputs are there.
    let identity = match identity {
        None => None,
        Some(identity) => Some(identity.fill(node, request).await?),
    };
    if is_filled {
        // Sizes are known now, and the values are judged as if they had come with the request.
        plan = with_volumes_of(plan, |image| plan_with_image(request, pod, &node.config.policy, image))?;
        node.check_room()?;
    }
    let session = node.launcher.session()?;
    let payload = load(&plan, request).map_err(|error| {
        ApiError::new(Kind::Exhausted, format!("no memory or descriptors for container {}: {error}", plan.id))
    })?;
    let origin = Origin { sources, identity, trace, needs_reservation: request.reserved };
    let launched = launch(node, plan, origin, &tag, session, payload).await;
    // From here on the container itself keeps its images in use.
    drop(resolved);
    launched
}

/// Gives a request without an id a random one.
fn fill_in_id(id: &mut String) {
    if id.is_empty() {
        *id = uuid::Uuid::new_v4().to_string();
    }
}

/// A request that passed the checks that fetch nothing and reserve nothing.
struct CheckedRequest {
    plan: Plan,
    image: Option<ImageReference>,
    pull_policy: PullPolicy,
    credentials: Option<Credentials>,
    referred: references::Collected,
    identity: Option<certify::RequestedIdentity>,
}

/// Makes all checks of a request that fetch nothing and reserve nothing.
fn check_request(
    node: &Node,
    request: &mut v1::RunRequest,
    pod: Option<&Plan>,
    client: Option<&Client>,
) -> Result<CheckedRequest, ApiError> {
    let (image, mut faults) = images::reference(request);
    let is_image = ImageReference::is_image(&request.rootfs);
    let mut record = |problem: ApiError| faults.extend(problem.violations);
    let pull_policy = images::policy(request).map_err(&mut record).unwrap_or(PullPolicy::IfMissing);
    // Others stay in the request and are wiped with it.
    let credentials = if is_image { request.registry_credentials.take() } else { None };
    let credentials = images::credentials(credentials, "registry_credentials").map_err(record).unwrap_or_default();
    let identity = certify::for_request(&node.config.identity, request);
    // Before an image is fetched, everything but the part that depends on the image is validated.
    let plan = match &image {
        None if !is_image => plan_with_image(request, pod, &node.config.policy, None),
        None => plan_without_image(request, pod, &node.config.policy).map_err(without_rootfs),
        Some(reference) => plan_without_image(request, pod, &node.config.policy)
            .map_err(|problem| denied_image(problem, reference, node)),
    };
    let plan = plan_with(plan, (!faults.is_empty()).then(|| ApiError::invalid(faults)));
    let referred = references::for_request(node, request, client);
    let plan = plan_with(plan, referred.problem());
    let (identity, problem) = match identity {
        Ok(identity) => (identity, None),
        Err(found) => (None, Some(ApiError::invalid(found))),
    };
    let plan = plan_with(plan, problem)?;
    Node::check_id(&plan.id)?;
    Ok(CheckedRequest { plan, image, pull_policy, credentials, referred, identity })
}

/// Makes a pod, and starts the task that drives it.
pub(crate) async fn pod(node: &Arc<Node>, mut request: v1::CreatePodRequest) -> Result<(Arc<Handle>, bool), ApiError> {
    fill_in_id(&mut request.id);
    let plan = plan_of_pod(node, &request)?;
    Node::check_id(&plan.id)?;
    make_pod(node, plan, &request).await
}

/// Makes the pod of the self-test.
pub(crate) async fn self_test(
    node: &Arc<Node>,
    request: v1::CreatePodRequest,
) -> Result<(Arc<Handle>, bool), ApiError> {
    let plan = plan_of_pod(node, &request)?;
    make_pod(node, plan, &request).await
}

fn plan_of_pod(node: &Node, request: &v1::CreatePodRequest) -> Result<Plan, ApiError> {
    let (draft, violations) = draft::pod(request);
    validated(None, &draft, violations, &node.config.policy)
}

async fn make_pod(
    node: &Arc<Node>,
    plan: Plan,
    request: &v1::CreatePodRequest,
) -> Result<(Arc<Handle>, bool), ApiError> {
    let tag = digest::pod_digest(&tag_key(node).await?, request);
    if let Some(handle) = node.registry.get(&plan.id) {
        return same_container(handle, &tag);
    }
    let session = node.launcher.session()?;
    node.check_room()?;
    let payload = payload_of_pod(&plan).map_err(|error| {
        ApiError::new(Kind::Exhausted, format!("no memory or descriptors for pod {}: {error}", plan.id))
    })?;
    launch(node, plan, Origin::default(), &tag, session, payload).await
}

/// Adds what is wrong with a part of a request, its references or its identity, to what is wrong with the rest.
fn plan_with(plan: Result<Plan, ApiError>, part: Option<ApiError>) -> Result<Plan, ApiError> {
    match (plan, part) {
        (Ok(plan), None) => Ok(plan),
        (Ok(_), Some(problem)) => Err(problem),
        (Err(problem), Some(more)) if matches!(problem.kind, Kind::Invalid | Kind::Denied) => {
            Err(ApiError::invalid([problem.violations, more.violations].concat()))
        }
        (Err(problem), _) => Err(problem),
    }
}

/// Plans a request again, with the image and the images of volumes that were resolved for it before.
fn with_volumes_of(
    before: Plan,
    again: impl FnOnce(Option<PlannedImage>) -> Result<Plan, ApiError>,
) -> Result<Plan, ApiError> {
    let image = match before.rootfs {
        Rootfs::Image(image) => Some(image),
        Rootfs::Host | Rootfs::Dir(_) | Rootfs::Pod => None,
    };
    let plan = again(image)?;
    Ok(Plan { volumes: before.volumes, ..plan })
}

/// What a container has of its request beside its plan.
#[derive(Default)]
struct Origin {
    sources: Vec<SourceRecord>,
    identity: Option<IdentityRecord>,
    trace: Option<TraceContext>,
    needs_reservation: bool,
}

/// Takes id and capacity for a container, and starts the task that drives it.
async fn launch(
    node: &Arc<Node>,
    plan: Plan,
    origin: Origin,
    tag: &str,
    session: Arc<Session>,
    payload: LaunchPayload,
) -> Result<(Arc<Handle>, bool), ApiError> {
    let unlaunched = Unlaunched(Some(&payload));
    let pod = plan.member_of().map(ToString::to_string).unwrap_or_default();
    let Origin { sources, identity, trace, needs_reservation } = origin;
    let facts = ContainerStatus {
        sources,
        identity,
        trace,
        ..ContainerStatus::admitted(plan, tag.to_owned(), crate::now(), node.boot_id.clone())
    };
    let id = facts.plan.id.clone();
    let taken = |reservation: &Reservation| node.ledger.forget_reservation(&reservation.id);
    match node.registry.admit_when_removed(&facts, needs_reservation, taken).await {
        Ok(Admission::New(handle)) => {
            unlaunched.has_been_admitted();
            handle.set_shim(Some(Arc::clone(&payload.ours)));
            forwarding::start(node, &handle, &facts, false);
            tokio::spawn(actor::launch(Arc::clone(node), Arc::clone(&handle), facts, session, payload));
            Ok((handle, true))
        }
        Ok(Admission::Used(handle)) => same_container(handle, tag),
        Ok(Admission::PodEnds) => Err(ApiError::pod_unavailable(&pod)),
        Ok(Admission::Closed) => Err(node.check_open().err().unwrap_or_else(ApiError::stopping)),
        Ok(Admission::NotReserved) => Err(reserve::missing(node, &id)),
        Ok(Admission::BeyondReservation(short)) => {
            let why = format!("{id} needs more than its reservation holds: {short}");
            Err(ApiError::new(Kind::Precondition, why))
        }
        Err(exhausted) => Err(ApiError::new(Kind::Exhausted, exhausted.to_string())),
    }
}

/// Payload of a container that is not admitted yet: overwritten where it is not, and where the caller goes away meanwhile.
struct Unlaunched<'a>(Option<&'a LaunchPayload>);

impl Unlaunched<'_> {
    /// From here on the container's task looks after it.
    fn has_been_admitted(mut self) {
        self.0 = None;
    }
}

impl Drop for Unlaunched<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|payload| payload.wipe());
    }
}

/// Returns the key of request tags, which comes with the launcher's first greeting.
async fn tag_key(node: &Node) -> Result<TagKey, ApiError> {
    node.launcher.first_heard().await;
    node.launcher.tag_key().ok_or_else(|| {
        let none = || ApiError::new(Kind::Unavailable, "the launcher gave no usable key for request tags");
        node.launcher.session().err().unwrap_or_else(none)
    })
}

/// Returns the plan of the pod that a request names, if it names one.
fn pod_of(node: &Node, request: &v1::RunRequest) -> Result<Option<Arc<Plan>>, ApiError> {
    if request.pod.is_empty() {
        return Ok(None);
    }
    let id: ContainerId = request
        .pod
        .parse()
        .map_err(|bad| ApiError::invalid_field("pod", ViolationReason::InvalidFormat.because(format!("{bad}"))))?;
    let pod = node.registry.get(&id).filter(|handle| handle.is_pod()).and_then(|handle| handle.facts());
    pod.map(|facts| Some(Arc::clone(&facts.plan))).ok_or_else(|| ApiError::pod_unavailable(&request.pod))
}

/// Makes the draft of a request; that of a member has what belongs to its pod from there.
fn drafted<'a>(request: &'a v1::RunRequest, pod: Option<&Plan>) -> (Draft<'a>, Vec<Violation>) {
    let (mut draft, mut violations) = draft::from_request(request);
    if let Some(pod) = pod {
        draft::join(&mut draft, request, pod, &mut violations);
    }
    (draft, violations)
}

/// Plans a request under a policy: returns the plan, or every violation at once. Has no effects.
///
/// # Errors
/// The action is missing or not supported, or fields are invalid.
pub fn plan_request(request: &v1::RunRequest, policy: &Policy) -> Result<Plan, ApiError> {
    plan_with_image(request, None, policy, None)
}

/// Plans a request before its image is known, without the program and the other fields that the image may fill in.
fn plan_without_image(request: &v1::RunRequest, pod: Option<&Plan>, policy: &Policy) -> Result<Plan, ApiError> {
    let (mut draft, violations) = drafted(request, pod);
    draft.image = Some(images::placeholder(request));
    // The program of a single run action may be the image's.
    if request.single_run().is_some() {
        let paths = std::iter::once(&mut draft.path).chain(draft.steps.iter_mut().map(|step| &mut step.path));
        paths.filter(|path| path.is_empty()).for_each(|path| *path = "/");
    }
    fits(validated(request.monitor.as_ref(), &draft, violations, policy)?, pod)
}

/// Leaves out the faults of a malformed image reference, which are reported in full beside this problem.
fn without_rootfs(mut problem: ApiError) -> ApiError {
    problem.violations.retain(|violation| violation.field != "rootfs");
    problem
}

/// Turns the problem into a denial where the only violation is an image that the operator's policy refuses.
fn denied_image(problem: ApiError, reference: &ImageReference, node: &Node) -> ApiError {
    let alone = matches!(&problem.violations[..], [one] if one.field == "rootfs");
    let kind = if alone && node.config.policy.images.permits(reference).is_err() { Kind::Denied } else { problem.kind };
    ApiError { kind, ..problem }
}

/// Plans a request with its resolved image, if it has one.
fn plan_with_image(
    request: &v1::RunRequest,
    pod: Option<&Plan>,
    policy: &Policy,
    image: Option<PlannedImage>,
) -> Result<Plan, ApiError> {
    let (mut draft, violations) = drafted(request, pod);
    draft.image = image;
    fits(validated(request.monitor.as_ref(), &draft, violations, policy)?, pod)
}

/// Checks that a member names volumes that its pod has.
fn fits(plan: Plan, pod: Option<&Plan>) -> Result<Plan, ApiError> {
    pod.map_or(Ok(()), |pod| check_member(&plan, pod)).map_err(ApiError::invalid)?;
    Ok(plan)
}

/// Puts the resolved images of a plan's volumes, in their order, into the places of the placeholders.
fn with_volume_images(mut plan: Plan, images: Vec<VolumeImage>, policy: &Policy) -> Result<Plan, ApiError> {
    let places = plan.volumes.iter_mut().filter_map(|volume| match &mut volume.source {
        VolumeSource::Image(place) => Some(place),
        VolumeSource::Empty(_) | VolumeSource::Host(_) | VolumeSource::HostPath(_) | VolumeSource::Pod(_) => None,
    });
    places.zip(images).for_each(|(place, image)| *place = image);
    recheck(&plan, policy).map_err(ApiError::invalid)?;
    Ok(plan)
}

fn validated(
    monitor: Option<&v1::Action>,
    draft: &Draft<'_>,
    mut violations: Vec<Violation>,
    policy: &Policy,
) -> Result<Plan, ApiError> {
    match validate(draft, policy) {
        Ok(plan) if violations.is_empty() => Ok(plan),
        Ok(_) => Err(ApiError::invalid(violations)),
        Err(mut found) => {
            monitor.into_iter().for_each(|monitor| draft::rename_monitor(monitor, &mut found));
            violations.extend(found);
            Err(ApiError::invalid(violations))
        }
    }
}

/// Returns the container of a used id, if the same request made it.
fn same_container(handle: Arc<Handle>, tag: &str) -> Result<(Arc<Handle>, bool), ApiError> {
    if handle.request_tag() == tag {
        return Ok((handle, false));
    }
    let state = handle.state().map_or("deleted", State::name);
    Err(ApiError::new(
        Kind::Exists,
        format!("container {} ({state}) was made by a different request with the same id", handle.id()),
    ))
}

/// Puts plan and secrets into memory files, and makes the connection for the shim.
fn load(plan: &Plan, request: &v1::RunRequest) -> std::io::Result<LaunchPayload> {
    let (ours, theirs) = Seqpacket::pair()?;
    let process = process_payload(plan, request)?;
    // The files of a single run action are the container's, also where it is restarted.
    let of_steps = if request.single_run().is_some() { Vec::new() } else { request.runs() };
    let of_steps = of_steps.into_iter().flat_map(|run| &run.volume_mounted_files);
    let files = draft::files(request).map(|(_, file)| file).chain(of_steps).map(|file| file.content.as_slice());
    let plan = memfiles::json("executor-plan", plan)?;
    let files = memfiles::strings("executor-files", &files.collect::<Vec<_>>())?;
    Ok(LaunchPayload { ours: ShimLink::new(ours)?, theirs, plan, process, files })
}

/// Makes the payload of a pod, which runs nothing.
fn payload_of_pod(plan: &Plan) -> std::io::Result<LaunchPayload> {
    let (ours, theirs) = Seqpacket::pair()?;
    let plan = memfiles::json("executor-plan", plan)?;
    let (process, files) = (memfiles::strings("executor-process", &[])?, memfiles::strings("executor-files", &[])?);
    Ok(LaunchPayload { ours: ShimLink::new(ours)?, theirs, plan, process, files })
}

/// Puts what a single run action runs into a memory file; of a tree, the payloads of all processes, one after the other, and
/// then the URLs of all transfers.
fn process_payload(plan: &Plan, request: &v1::RunRequest) -> std::io::Result<MemFile> {
    if let Some(run) = request.single_run().filter(|_| plan.actions.is_none()) {
        return with_payload(run, request, |strings| memfiles::strings("executor-process", strings));
    }
    let mut payloads = Vec::new();
    for run in request.runs() {
        payloads.push(with_payload(run, request, |strings| {
            let mut bytes = Zeroizing::new(vec![0; payload::encoded_len(strings.iter().copied())]);
            payload::encode(strings.iter().copied(), &mut bytes);
            bytes
        }));
    }
    let urls = request.urls().into_iter().map(str::as_bytes);
    let strings: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).chain(urls).collect();
    memfiles::strings("executor-process", &strings)
}

/// Lets `use_them` have the strings of a process's payload.
fn with_payload<T>(run: &v1::RunAction, request: &v1::RunRequest, use_them: impl FnOnce(&[&[u8]]) -> T) -> T {
    let dir = if run.dir.is_empty() { "/" } else { &run.dir };
    let count = run.args.len().to_string();
    let mut args: Vec<&[u8]> = run.args.iter().map(String::as_bytes).collect();
    for v1::SecretArgument { index, value, .. } in &run.secret_arguments {
        if let Some(empty) = args.get_mut(*index as usize) {
            *empty = value.as_bytes();
        }
    }
    let own = run.env.iter().chain(&run.secret_environment);
    let inherited = request.environment.iter().filter(|shared| own.clone().all(|own| own.name != shared.name));
    let all = run.env.iter().chain(inherited).chain(&run.secret_environment);
    let joined: Vec<Zeroizing<String>> =
        all.clone().map(|variable| Zeroizing::new(format!("{}={}", variable.name, variable.value))).collect();
    let mut env: Vec<&[u8]> = joined.iter().map(|variable| variable.as_bytes()).collect();
    let has = |name: &str| all.clone().any(|variable| variable.name == name);
    env.extend(payload::default_environment(has, request.terminal));
    use_them(&ProcessPayload::strings(run.path.as_bytes(), dir.as_bytes(), count.as_bytes(), &args, &env))
}

/// Overwrites the secrets in a request.
fn wipe(request: &mut v1::RunRequest) {
    request.for_each_run(wipe_run);
    // Those of a monitor have no place for secrets, and are refused with any.
    request.monitor.iter_mut().for_each(|monitor| monitor.for_each_run(wipe_run));
    request.for_each_url(|url| url.zeroize());
    request.environment.iter_mut().for_each(|variable| variable.value.zeroize());
    request.volume_mounted_files.iter_mut().for_each(|file| file.content.zeroize());
    if let Some(credentials) = request.registry_credentials.as_mut() {
        credentials.password.zeroize();
        credentials.identity_token.zeroize();
    }
}

fn wipe_run(run: &mut v1::RunAction) {
    run.args.zeroize();
    let v1::RunAction { env, secret_environment, secret_arguments, .. } = run;
    env.iter_mut().chain(secret_environment).for_each(|variable| variable.value.zeroize());
    secret_arguments.iter_mut().for_each(|argument| argument.value.zeroize());
    run.volume_mounted_files.iter_mut().for_each(|file| file.content.zeroize());
}

/// Kills all containers of an ephemeral daemon that stops, and waits until they have ended.
pub(crate) async fn end_all(node: &Arc<Node>) {
    loop {
        // Looked for again: a container may have been admitted just before the daemon began to stop.
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
                let kill = executor_core::protocol::Stop { grace_ms: 0, signal: 0 };
                let _ = link.call(executor_core::protocol::ShimCall::Stop(kill)).await;
            });
        }
    }
    for handle in handles {
        let _ = handle.completed().await;
    }
}
