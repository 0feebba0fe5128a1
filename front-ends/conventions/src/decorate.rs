//! Decorates a template: calls the matching conventions in order, in rounds, until a round changes nothing.
//!
//! Rules are numbered as in `docs/guides/conventions.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::Serialize;
use serde_json::Value;

use crate::applied::{self, Applied};
use crate::change::{Change, changes};
use crate::context::{self, ImageConfig};
use crate::images::{ImageSource, resolve};
use crate::privileges;
use crate::registration::{Registration, Registrations};
use crate::secrets::{self, SecretValues};
use crate::template::{self, TEMPLATE_MAX};
use crate::transport::Transport;
use crate::violation::Violations;

/// Maximum number of rounds. In each round all matching conventions are called.
pub const ROUNDS_MAX: usize = 8;
/// Maximum number of fields that an error names if conventions keep changing the template.
const NAMED_MAX: usize = 5;

/// A template to decorate, with its context.
#[derive(Clone, Debug)]
pub struct Intent<'a> {
    pub template: &'a PodTemplateSpec,
    /// Labels of the object that contains the template, for selectors with the target `PodIntent`.
    pub labels: &'a BTreeMap<String, String>,
    /// Values of secrets. If the template contains such a value, the value is hidden from conventions.
    pub secrets: &'a SecretValues,
}

/// A decorated template.
#[derive(Clone, Debug)]
pub struct Decorated {
    pub template: PodTemplateSpec,
    /// Calls of conventions in order, without values of secrets.
    pub steps: Vec<Step>,
    /// Changes of image references to references with digests.
    pub pinned: Vec<Change>,
}

impl Decorated {
    /// Returns the names of the conventions that were called, in the order of the first call.
    pub fn conventions(&self) -> Vec<&str> {
        let mut seen = BTreeSet::new();
        self.steps.iter().map(|step| &*step.convention).filter(|name| seen.insert(*name)).collect()
    }
}

/// One call of a convention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub convention: String,
    /// Number of the round, from 1.
    pub round: usize,
    /// Names that the convention reports as applied.
    pub applied: Vec<String>,
    /// Fields that the convention changed.
    pub changes: Vec<Change>,
    /// Unknown fields of the response, which were dropped.
    pub ignored: Vec<String>,
}

/// Decorates a template with the conventions whose selectors match.
///
/// # Errors
/// Returns the violations if there are any; then nothing is decorated.
pub async fn decorate(
    intent: &Intent<'_>,
    registrations: &Registrations,
    images: &impl ImageSource,
    transport: &impl Transport,
) -> Result<Decorated, Violations> {
    let mut template = template::document(intent.template);
    template::typed(&template).map_err(|why| Violations::one(None, "", 11, format!("the template {why}")))?;
    let size = template.to_string().len();
    if size > TEMPLATE_MAX {
        let message = format!("the template is {size} bytes; the maximum is {TEMPLATE_MAX}");
        return Err(Violations::one(None, "", 15, message));
    }
    intent.secrets.hide(&mut template)?;
    let mut work = Work {
        intent,
        images,
        transport,
        applied: Applied::from_template(&template),
        steps: Vec::new(),
        pinned: Vec::new(),
    };
    for round in 1..=ROUNDS_MAX {
        let labels = labels(&template, intent.secrets);
        let selected: Vec<&Registration> = registrations.select(&labels, intent.labels).collect();
        if selected.is_empty() {
            break; // nothing is changed, not even the names of images
        }
        let first = work.steps.len();
        work.resolve(&mut template).await?;
        let begun = applied::without(&template);
        for registration in selected {
            template = work.call(registration, template, round).await?;
        }
        // Also pin images that the last convention added (rule 8).
        work.resolve(&mut template).await?;
        let changed = changes(&begun, &applied::without(&template));
        if changed.is_empty() {
            break;
        }
        if round == ROUNDS_MAX {
            return Err(unsettled(&work.steps[first..], &changed));
        }
    }
    intent.secrets.reveal(&mut template);
    let template = template::typed(&template).map_err(|why| Violations::one(None, "", 11, why))?;
    Ok(Decorated { template, steps: work.steps, pinned: work.pinned })
}

struct Work<'a, I, T> {
    intent: &'a Intent<'a>,
    images: &'a I,
    transport: &'a T,
    applied: Applied,
    steps: Vec<Step>,
    pinned: Vec<Change>,
}

impl<I: ImageSource, T: Transport> Work<'_, I, T> {
    /// Calls one convention and returns the changed template.
    async fn call(
        &mut self,
        registration: &Registration,
        mut before: Value,
        round: usize,
    ) -> Result<Value, Violations> {
        let name = &*registration.name;
        let images = self.resolve(&mut before).await?;
        let images = self.without_secrets(images)?;
        let request = context::request(name, &before, &images);
        drop(images);
        let reply = self.transport.call(registration, request).await;
        let reply =
            reply.map_err(|why| Violations::one(Some(name), "", 11, format!("{}: {why}", registration.endpoint)))?;
        let context::Answer { template: mut after, applied, unknown } = context::answer(name, &reply)?;
        let (plain_before, plain_after) = (applied::without(&before), applied::without(&after));
        secrets::check_places(name, &plain_before, &plain_after).or(())?;
        privileges::evaluate(registration, &before, &after).or(())?;
        self.applied.add(name, &applied)?;
        self.applied.write(&mut after);
        self.steps.push(Step {
            convention: name.to_owned(),
            round,
            applied,
            changes: changes(&plain_before, &plain_after),
            ignored: unknown,
        });
        Ok(after)
    }

    /// Reads the metadata of a template's images, and pins the images in the template.
    async fn resolve(&mut self, template: &mut Value) -> Result<Vec<Arc<ImageConfig>>, Violations> {
        let before = template.clone();
        let images = resolve(template, self.images).await?;
        self.pinned.extend(changes(&before, template));
        Ok(images)
    }

    /// Hides secret values in the configurations of images.
    fn without_secrets(&self, images: Vec<Arc<ImageConfig>>) -> Result<Vec<ImageConfig>, Violations> {
        images
            .into_iter()
            .map(|image| {
                let mut image = ImageConfig::clone(&image);
                self.intent.secrets.hide(&mut image.config)?;
                Ok(image)
            })
            .collect()
    }
}

fn labels(template: &Value, secrets: &SecretValues) -> BTreeMap<String, String> {
    let mut labels = template["metadata"]["labels"].clone();
    secrets.reveal(&mut labels);
    let labels = labels.as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns the violations for conventions that keep changing the template.
fn unsettled(steps: &[Step], changed: &[Change]) -> Violations {
    let mut violations = Violations::default();
    for step in steps {
        let own = step.changes.iter().map(|change| &*change.field);
        let mut fields: Vec<&str> = own.filter(|field| changed.iter().any(|change| change.field == *field)).collect();
        if fields.is_empty() {
            continue;
        }
        let more = format!("{} more", fields.len().saturating_sub(NAMED_MAX));
        if fields.len() > NAMED_MAX {
            fields.truncate(NAMED_MAX);
            fields.push(&more);
        }
        let message =
            format!("still changes the template in round {ROUNDS_MAX} of {ROUNDS_MAX}: {}", fields.join(", "));
        violations.add(Some(&step.convention), "", 15, message);
    }
    if violations.is_empty() {
        let message = format!("the template still changes in round {ROUNDS_MAX} of {ROUNDS_MAX}");
        violations.add(None, &*changed[0].field, 15, message);
    }
    violations
}
