//! Validates a plan with executord's `Validate` call before anything is changed (rule P1 of
//! `docs/guides/kube-rules.md`).

use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_client::v1::{InfoResponse, RunRequest, ValidateRequest};
use executor_client::{Error, Wiped};
use executor_kube::plan::{Member, Plan, PodPlan};
use executor_kube::report::Report;

use crate::error::KubeError;

/// Name of executord's feature for `Validate`.
const FEATURE: &str = "validate";

/// Validates all pods of a plan, including the pods of CronJobs, except the pods in `unchanged`.
///
/// # Errors
/// Returns all violations, with their locations in the files, if a pod is invalid.
pub(crate) async fn validate(
    session: &Session,
    info: &InfoResponse,
    plan: &Plan,
    unchanged: impl Fn(&PodPlan) -> bool,
) -> Result<(), Failure> {
    if !info.features.iter().any(|feature| feature == FEATURE) {
        let version = &info.version;
        session.output.note(format!(
            "executord {version} cannot check requests in advance: it refuses invalid requests when a pod is started"
        ));
        return Ok(());
    }
    let mut report = Report::default();
    let crons = plan.crons.iter().flat_map(|cron| &cron.pods);
    for pod in plan.pods.iter().filter(|pod| !unchanged(pod)).chain(crons) {
        let request = Wiped::new(ValidateRequest { pod: Some(pod.create.clone()), run: None });
        report_refusals(pod, None, session.client.validate(&request).await, &mut report)?;
        for member in &pod.members {
            let run = Some(RunRequest::clone(&member.request));
            let request = Wiped::new(ValidateRequest { pod: Some(pod.create.clone()), run });
            report_refusals(pod, Some(member), session.client.validate(&request).await, &mut report)?;
        }
    }
    Ok(report.finish(()).map(drop).map_err(KubeError::Wrong)?)
}

/// Adds the violations in a response to a report. Returns the error if a failed call reports no violations.
fn report_refusals(
    pod: &PodPlan,
    member: Option<&Member>,
    answer: Result<(), Error>,
    report: &mut Report,
) -> Result<(), Failure> {
    match answer {
        Err(error) if !error.violations().is_empty() => {
            for violation in error.violations() {
                pod.refuse(member, &violation.field, &violation.description, report);
            }
            Ok(())
        }
        answer => answer.doing("validate"),
    }
}
