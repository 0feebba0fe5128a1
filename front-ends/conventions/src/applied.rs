//! Maintains the annotation that lists the applied conventions (rule 10 of `docs/guides/conventions.md`).

use serde_json::{Map, Value};

use crate::violation::{Violations, shown};

/// Annotation of a template with one line per applied convention, `CONVENTION/APPLIED`.
pub const APPLIED_CONVENTIONS: &str = "conventions.carto.run/applied-conventions";
/// Maximum number of lines in one response.
const LINES_MAX: usize = 100;
/// Maximum length of a line, in bytes.
const LINE_MAX: usize = 256;

/// Lines of the annotation that lists the applied conventions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied(Vec<String>);

impl Applied {
    /// Reads the lines that a template contains before the first convention is called.
    pub(crate) fn from_template(template: &Value) -> Self {
        let text = template.pointer("/metadata/annotations").and_then(|all| all.get(APPLIED_CONVENTIONS)?.as_str());
        Self(text.unwrap_or_default().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// Adds the lines that a convention reports as applied. Existing lines are skipped, so that applying a convention
    /// twice has no effect.
    pub(crate) fn add(&mut self, convention: &str, applied: &[String]) -> Result<(), Violations> {
        let mut violations = Violations::default();
        let field = "status.appliedConventions";
        if applied.len() > LINES_MAX {
            let message = format!("has {} entries; at most {LINES_MAX} are allowed", applied.len());
            return Err(Violations::one(Some(convention), field, 10, message));
        }
        for name in applied {
            if name.is_empty() || name.len() > LINE_MAX || name.chars().any(executor_core::text::is_harmful) {
                let message = format!(
                    "{} is not a name of 1 to {LINE_MAX} bytes without control characters and bidirectional marks",
                    shown(name)
                );
                violations.add(Some(convention), field, 10, message);
            }
        }
        violations.or(())?;
        for name in applied {
            let line = format!("{convention}/{name}");
            if !self.0.contains(&line) {
                self.0.push(line);
            }
        }
        Ok(())
    }

    /// Writes the annotation. A value that the response contains is replaced.
    pub(crate) fn write(&self, template: &mut Value) {
        if self.0.is_empty() {
            remove(template);
            return;
        }
        let mut at = template;
        for key in ["metadata", "annotations"] {
            let Some(fields) = at.as_object_mut() else { return };
            let next = fields.entry(key).or_insert(Value::Null);
            if next.is_null() {
                *next = Value::Object(Map::new());
            }
            at = next;
        }
        if let Some(annotations) = at.as_object_mut() {
            annotations.insert(APPLIED_CONVENTIONS.to_owned(), self.0.join("\n").into());
        }
    }
}

fn remove(template: &mut Value) {
    if let Some(annotations) = template.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(APPLIED_CONVENTIONS);
    }
}

/// Returns a copy of a template without the annotation, for comparison.
pub(crate) fn without(template: &Value) -> Value {
    let mut template = template.clone();
    remove(&mut template);
    template
}
