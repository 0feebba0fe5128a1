//! Plans requests: converts a request under a policy, with its pod and its image, to a plan, or returns all violations.
//!
//! A request is planned up to three times: before its image is known, with the image, and with fetched values. The
//! functions of this module have no side effects.

use executor_core::image::ImageReference;
use executor_core::plan::{Plan, PlannedImage, Rootfs, VolumeImage, VolumeSource};
use executor_core::validate::{Draft, Policy, Violation, check_member, recheck, validate};
use executor_proto::v1;

use crate::api_error::{ApiError, Kind};
use crate::images;
use crate::node::Node;
use crate::requests::draft;

/// Plans a request under a policy: returns the plan, or all violations. Has no side effects.
///
/// # Errors
/// Returns an error if the action is missing or not supported, or fields are invalid.
pub fn plan_request(request: &v1::RunRequest, policy: &Policy) -> Result<Plan, ApiError> {
    plan_with_image(request, None, policy, None)
}

/// Plans a request before its image is known, without the program and the other fields that the image may fill in.
pub(super) fn plan_without_image(
    request: &v1::RunRequest,
    pod: Option<&Plan>,
    policy: &Policy,
) -> Result<Plan, ApiError> {
    let (mut draft, violations) = drafted(request, pod);
    draft.image = Some(images::placeholder(request));
    // The image may provide the program of a single run action.
    if request.single_run().is_some() {
        let paths = std::iter::once(&mut draft.path).chain(draft.steps.iter_mut().map(|step| &mut step.path));
        paths.filter(|path| path.is_empty()).for_each(|path| *path = "/");
    }
    fits(validated(request.monitor.as_ref(), &draft, violations, policy)?, pod)
}

/// Plans a request with its resolved image, if it has one.
pub(super) fn plan_with_image(
    request: &v1::RunRequest,
    pod: Option<&Plan>,
    policy: &Policy,
    image: Option<PlannedImage>,
) -> Result<Plan, ApiError> {
    let (mut draft, violations) = drafted(request, pod);
    draft.image = image;
    fits(validated(request.monitor.as_ref(), &draft, violations, policy)?, pod)
}

/// Plans a request again, with its resolved image and volume images.
pub(super) fn with_volumes_of(
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

/// Replaces the image placeholders in a plan's volumes with `images`, in order, and checks the plan again.
pub(super) fn with_volume_images(mut plan: Plan, images: Vec<VolumeImage>, policy: &Policy) -> Result<Plan, ApiError> {
    let places = plan.volumes.iter_mut().filter_map(|volume| match &mut volume.source {
        VolumeSource::Image(place) => Some(place),
        VolumeSource::Empty(_) | VolumeSource::Host(_) | VolumeSource::HostPath(_) | VolumeSource::Pod(_) => None,
    });
    places.zip(images).for_each(|(place, image)| *place = image);
    recheck(&plan, policy).map_err(ApiError::invalid)?;
    Ok(plan)
}

/// Merges the errors of a part of a request (its references or its identity) into the errors of the plan.
pub(super) fn plan_with(plan: Result<Plan, ApiError>, part: Option<ApiError>) -> Result<Plan, ApiError> {
    match (plan, part) {
        (Ok(plan), None) => Ok(plan),
        (Ok(_), Some(problem)) => Err(problem),
        (Err(problem), Some(more)) if matches!(problem.kind, Kind::Invalid | Kind::Denied) => {
            Err(ApiError::invalid([problem.violations, more.violations].concat()))
        }
        (Err(problem), _) => Err(problem),
    }
}

/// Removes the violations of a malformed image reference, because they are reported separately and in full.
pub(super) fn without_rootfs(mut problem: ApiError) -> ApiError {
    problem.violations.retain(|violation| violation.field != "rootfs");
    problem
}

/// Converts the error into a denial if the only violation is an image that the operator's policy refuses.
pub(super) fn denied_image(problem: ApiError, reference: &ImageReference, node: &Node) -> ApiError {
    let alone = matches!(&problem.violations[..], [one] if one.field == "rootfs");
    let kind = if alone && node.config.policy.images.permits(reference).is_err() { Kind::Denied } else { problem.kind };
    ApiError { kind, ..problem }
}

/// Creates the draft of a request; a member's draft includes its pod's settings.
pub(super) fn drafted<'a>(request: &'a v1::RunRequest, pod: Option<&Plan>) -> (Draft<'a>, Vec<Violation>) {
    let (mut draft, mut violations) = draft::from_request(request);
    if let Some(pod) = pod {
        draft::join(&mut draft, request, pod, &mut violations);
    }
    (draft, violations)
}

/// Checks that the pod has the volumes that the member names, and that both have the same shared settings.
pub(super) fn fits(plan: Plan, pod: Option<&Plan>) -> Result<Plan, ApiError> {
    pod.map_or(Ok(()), |pod| check_member(&plan, pod)).map_err(ApiError::invalid)?;
    Ok(plan)
}

pub(super) fn validated(
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
