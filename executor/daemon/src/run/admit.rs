//! Run: admits a container for a request.
//!
//! ```text
//! Received ── validate ──> Validated    all violations are reported together; nothing was fetched or reserved
//!                              │ resolve
//!                          Resolved     images are fetched and stay in use; the claimed reservation does not expire
//!                              │ fill
//!                          Filled       referenced secrets and the container's certificate are in the request
//!                              │ load
//!                          Loaded       plan and secrets are in sealed memory files; the request is overwritten
//!                              │ launch
//!                          Admitted     id and capacity are reserved; a task drives the container
//! ```
//! Each state consumes the previous state. If a state is dropped, after an error or when the caller disconnects, its
//! resources are released: the request and the payload are overwritten, and the claim on a reservation and the images
//! are released. An admitted container no longer depends on its caller.

use std::sync::Arc;

use executor_core::ident::ContainerId;
use executor_core::image::ImageReference;
use executor_core::plan::{Plan, PlannedImage, VolumeImage};
use executor_core::validate::ViolationReason;
use executor_images::{Credentials, Policy as PullPolicy, Resolved as ResolvedImage};
use executor_proto::{Wiped, v1};
use executor_providers::WorkloadLogins;
use executor_secrets::TagKey;

use super::launch::{RequestOrigin, fill_in_id, launch, same_container, tag_key};
use super::plan::without_rootfs;
use super::plan::{denied_image, plan_with, plan_with_image, plan_without_image, with_volume_images, with_volumes_of};
use crate::access::Client;
use crate::actor::LaunchPayload;
use crate::api_error::{ApiError, Kind};
use crate::images;
use crate::launcher::Session;
use crate::model::container::Handle;
use crate::model::identity::IdentityRecord;
use crate::model::sources::SourceRecord;
use crate::model::status::{ContainerStatus, Phase, TraceContext};
use crate::node::Node;
use crate::operations::certify;
use crate::operations::reserve::Claim;
use crate::requests::{digest, references};
use crate::telemetry::traces::TraceParent;

/// Runs a request. Returns the container, and true if this call created it.
///
/// # Errors
/// Returns the errors that the interface lists for Run. After an error the container leaves no resources, and the id is
/// free.
pub(crate) async fn run(
    node: &Arc<Node>,
    request: v1::RunRequest,
    client: Option<&Client>,
    parent: &TraceParent,
) -> Result<(Arc<ContainerStatus>, bool), ApiError> {
    let request = Wiped::new(request);
    let trace = node.traces.start_trace(parent, crate::now());
    // The id may belong to a container that an earlier daemon launched just before it exited.
    node.until_found().await;
    let received = std::time::Instant::now();
    let outcome = admit(Received { node, request, trace }, client).await;
    if let Ok((_, true)) = &outcome {
        node.metrics.phase(Phase::Admit, received.elapsed());
    }
    executor_secrets::scrub_stack(); // hashing leaves blocks of the request on the stack
    let explain = |problem| node.launcher.explain(problem);
    let (handle, created) = outcome.map_err(explain)?;
    let facts = tokio::select! {
        facts = handle.created() => facts.map_err(explain)?,
        () = node.until_stopping() => return Err(ApiError::stopping()),
    };
    Ok((facts, created))
}

/// Runs all steps of an admission. Returns the container, and true if this call created it.
async fn admit(received: Received<'_>, client: Option<&Client>) -> Result<(Arc<Handle>, bool), ApiError> {
    let node = received.node;
    let mut validated = received.validate(client)?;
    let used = node.registry.get(&validated.checked.plan.id);
    let key = tag_key(node).await?;
    let request_digest = validated.digest(&key);
    if let Some(handle) = used {
        return same_container(handle, &request_digest);
    }
    validated.resolve().await?.fill(&key).await?.load()?.launch(&request_digest).await
}

/// A decoded request that was not validated yet.
struct Received<'a> {
    node: &'a Arc<Node>,
    request: Wiped<v1::RunRequest>,
    trace: Option<TraceContext>,
}

impl<'a> Received<'a> {
    /// Assigns an id if the request has none, and runs all checks that fetch nothing.
    fn validate(mut self, client: Option<&Client>) -> Result<Validated<'a>, ApiError> {
        let request = &mut *self.request;
        fill_in_id(&mut request.id);
        let pod = pod_of(self.node, request)?;
        let checked = check_request(self.node, request, pod.as_deref(), client)?;
        Ok(Validated { received: self, pod, checked })
    }

    /// Plans the request again, after some of its fields were filled in.
    fn plan(&self, pod: Option<&Plan>, image: Option<PlannedImage>) -> Result<Plan, ApiError> {
        plan_with_image(&self.request, pod, &self.node.config.policy, image)
    }
}

/// A request without violations.
struct Validated<'a> {
    received: Received<'a>,
    /// Plan of the pod that the container joins.
    pod: Option<Arc<Plan>>,
    checked: CheckedRequest,
}

impl<'a> Validated<'a> {
    /// Returns the keyed digest of the request as it was received.
    fn digest(&mut self, key: &TagKey) -> String {
        let request = &mut *self.received.request;
        match &self.checked.identity {
            None => digest::request_digest(key, request),
            Some(identity) => identity.with_original(request, |request| digest::request_digest(key, request)),
        }
    }

    /// Fetches and unpacks the images of the root file system and of the volumes.
    async fn resolve(self) -> Result<Resolved<'a>, ApiError> {
        let Self { mut received, pod, checked } = self;
        let CheckedRequest { mut plan, image, pull_policy, credentials, referred, identity } = checked;
        let node = received.node;
        let claim = Claim::new(node, &plan.id, received.request.reserved)?;
        node.launcher.session()?;
        node.check_room()?;
        let mut images = Vec::new();
        if let Some(reference) = image {
            let ready = images::resolve(node, &reference, pull_policy, credentials, "rootfs").await?;
            let image = images::apply(&mut received.request, &ready)?;
            plan = received.plan(pod.as_deref(), Some(image))?;
            images.push(ready);
        }
        if plan.volumes.iter().any(|volume| volume.image().is_some()) {
            let of_volumes = images::resolve_volumes(node, &plan, pull_policy).await?;
            let (volumes, ready): (Vec<VolumeImage>, Vec<_>) = of_volumes.into_iter().unzip();
            plan = with_volume_images(plan, volumes, &node.config.policy)?;
            images.extend(ready);
        }
        if !images.is_empty() {
            // Check again, because fetching an image may take long.
            node.check_room()?;
        }
        Ok(Resolved { received, pod, plan, referred, identity, leases: Leases { _claim: claim, _images: images } })
    }
}

/// Leases on resources that must not expire or be pruned until the container is admitted.
struct Leases {
    _claim: Option<Claim>,
    /// After the admission, the container itself keeps its images in use.
    _images: Vec<ResolvedImage>,
}

/// A request whose images are on the node.
struct Resolved<'a> {
    received: Received<'a>,
    pod: Option<Arc<Plan>>,
    plan: Plan,
    referred: references::Collected,
    identity: Option<certify::RequestedIdentity>,
    leases: Leases,
}

impl<'a> Resolved<'a> {
    /// Fetches the referenced secrets, and then issues the container's certificate. In this order no certificate is
    /// signed for a container whose other inputs are missing.
    async fn fill(self, key: &TagKey) -> Result<Filled<'a>, ApiError> {
        let Self { mut received, pod, mut plan, referred, identity, leases } = self;
        let node = received.node;
        let has_references = !referred.asked.is_empty();
        let mut sources = Vec::new();
        if has_references {
            let fetched = references::fetch(node, &referred, key, &referred.logins).await?;
            references::fill(&mut received.request, &referred.asked, fetched.values)?;
            sources = fetched.records;
        }
        let identity = match identity {
            None => None,
            Some(identity) => Some(identity.fill(node, &mut received.request).await?),
        };
        if has_references || identity.is_some() {
            // Plan again: the sizes are known now, and fetched values must pass the same checks as values in the
            // request.
            plan = with_volumes_of(plan, |image| received.plan(pod.as_deref(), image))?;
            node.check_room()?;
        }
        plan.connectivity.name_server |= node.names.open_for(&plan).await;
        Ok(Filled { received, plan, sources, logins: referred.logins, identity, leases })
    }
}

/// A request with all of its values.
struct Filled<'a> {
    received: Received<'a>,
    plan: Plan,
    sources: Vec<SourceRecord>,
    logins: WorkloadLogins,
    identity: Option<IdentityRecord>,
    leases: Leases,
}

impl<'a> Filled<'a> {
    /// Puts plan and secrets into memory files, and overwrites the request.
    fn load(self) -> Result<LoadedContainer<'a>, ApiError> {
        let Self { received: Received { node, request, trace }, plan, sources, logins, identity, leases } = self;
        let session = node.launcher.session()?;
        let payload = LaunchPayload::new(&plan, &request).map_err(|error| {
            let why = format!("no memory or descriptors for the plan and secrets of container {}: {error}", plan.id);
            ApiError::new(Kind::Exhausted, why)
        })?;
        let origin = RequestOrigin { sources, logins, identity, trace, needs_reservation: request.reserved };
        Ok(LoadedContainer { node, plan, origin, session, payload, leases })
    }
}

/// A container that is ready to launch; its id and capacity are not reserved yet.
struct LoadedContainer<'a> {
    node: &'a Arc<Node>,
    plan: Plan,
    origin: RequestOrigin,
    session: Arc<Session>,
    payload: LaunchPayload,
    leases: Leases,
}

impl LoadedContainer<'_> {
    /// Reserves id and capacity, and starts the task that drives the container.
    async fn launch(self, request_digest: &str) -> Result<(Arc<Handle>, bool), ApiError> {
        let Self { node, plan, origin, session, payload, leases } = self;
        let admitted = launch(node, plan, origin, request_digest, session, payload).await;
        drop(leases);
        admitted
    }
}

/// A request that passed all checks without fetches or reservations.
pub(super) struct CheckedRequest {
    pub(super) plan: Plan,
    pub(super) image: Option<ImageReference>,
    pub(super) pull_policy: PullPolicy,
    pub(super) credentials: Option<Credentials>,
    pub(super) referred: references::Collected,
    pub(super) identity: Option<certify::RequestedIdentity>,
}

/// Runs all checks that fetch nothing and reserve nothing.
pub(super) fn check_request(
    node: &Node,
    request: &mut v1::RunRequest,
    pod: Option<&Plan>,
    client: Option<&Client>,
) -> Result<CheckedRequest, ApiError> {
    let (image, mut faults) = images::reference(request);
    let is_image = ImageReference::is_image(&request.rootfs);
    let mut record = |problem: ApiError| faults.extend(problem.violations);
    let pull_policy = images::policy(request).map_err(&mut record).unwrap_or(PullPolicy::IfMissing);
    // Without an image, the credentials stay in the request and are wiped with it.
    let credentials = if is_image { request.registry_credentials.take() } else { None };
    let credentials = images::credentials(credentials, "registry_credentials").map_err(record).unwrap_or_default();
    let identity = certify::for_request(&node.config.identity, request);
    // Validate everything that does not depend on the image before the image is pulled.
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

/// Returns the plan of the pod that the request names, if any.
pub(super) fn pod_of(node: &Node, request: &v1::RunRequest) -> Result<Option<Arc<Plan>>, ApiError> {
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
