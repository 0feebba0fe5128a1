//! Decorates templates with conventions (registered servers) before the templates are lowered.

use executor_conventions::secrets::SecretValues;
use executor_conventions::violation::Violation;
use executor_conventions::{Conventions, Intent};
use executor_kube::object::Objects;
use executor_kube::report::Report;
use executor_kube::workload::Workload;

use crate::args::FilesArgs;
use crate::error::KubeError;

/// Rule name in reports for violations of conventions; the rules are in docs/guides/conventions.md.
const RULE: &str = "conventions";

/// Decorates the templates of all workloads. Violations are added to the report. Conventions do not receive values of
/// Secrets.
pub(crate) async fn decorate(args: &FilesArgs, objects: &mut Objects, report: &mut Report) -> Result<(), KubeError> {
    let loaded = Conventions::load(args.conventions.as_deref(), args.registry_auth_file.clone(), None);
    let conventions = loaded.map_err(KubeError::Conventions)?;
    if conventions.configuration.registrations.is_empty() {
        return Ok(());
    }
    let conventions = conventions.replacing(args.images.iter().map(|(image, _)| image.clone()));
    let mut secrets = SecretValues::default();
    for value in objects.secrets.values().flat_map(|secret| secret.data.values()) {
        secrets.add(value.bytes());
    }
    for workload in &mut objects.workloads {
        let intent = Intent { template: &workload.template, labels: &workload.labels, secrets: &secrets };
        match conventions.decorate(&intent).await {
            Ok(decorated) => {
                for step in &decorated.steps {
                    for field in &step.ignored {
                        let message =
                            format!("convention {} sets this field, which is unknown and was dropped", step.convention);
                        report.warn(&workload.origin, workload.path(field), RULE, message);
                    }
                }
                workload.template = decorated.template;
            }
            Err(violations) => {
                for violation in violations.iter() {
                    let (path, message) = reported(workload, violation);
                    report.refuse(&workload.origin, path, RULE, message);
                }
            }
        }
    }
    Ok(())
}

/// Returns the path in the object and the message of a violation. If the field is not in the template, the field is
/// part of the message instead.
fn reported(workload: &Workload, violation: &Violation) -> (String, String) {
    if violation.field.starts_with("spec.") || violation.field.starts_with("metadata.") {
        let path = workload.path(&violation.field);
        (path, Violation { field: String::new(), ..violation.clone() }.to_string())
    } else {
        (String::new(), violation.to_string())
    }
}
