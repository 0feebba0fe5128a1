//! Runs the commands.

use std::collections::BTreeMap;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::global::Global;
use executor_cli_kit::report::{note, print_result};
use executor_cli_kit::view::style::Style;
use executor_conventions::secrets::SecretValues;
use executor_conventions::template::{self, Place};
use executor_conventions::violation::Violations;
use executor_conventions::{Conventions, Decorated, Intent, config, intent};
use serde_json::{Value, json};

use crate::args::{ConfigArgs, FilesArgs};
use crate::error::ConventionError;
use crate::objects::{self, Document, Location};
use crate::view;

pub(crate) fn list(global: &Global, config: &ConfigArgs) -> Result<(), Failure> {
    let configuration = config::load(config.config.as_deref()).map_err(ConventionError::Registrations)?;
    let document = view::Listed::new(&configuration);
    print_result(global, &document, || document.text(Style::detect()))
}

pub(crate) fn explain(global: &Global, config: &ConfigArgs, args: &FilesArgs) -> Result<(), Failure> {
    let (mut explained, mut failed) = (Vec::new(), Vec::new());
    run(config, args, |document, object, outcome| match outcome {
        Ok(decorated) => explained.push(view::Explained::new(document, object, &decorated)),
        Err(violations) => failed.push(reported(document, object, &violations)),
    })?;
    print_result(global, &explained, || view::explained(&explained, Style::detect()))?;
    if failed.is_empty() { Ok(()) } else { Err(ConventionError::Objects(failed).into()) }
}

pub(crate) fn apply(global: &Global, config: &ConfigArgs, args: &FilesArgs) -> Result<(), Failure> {
    let (mut failed, mut intents) = (Vec::new(), 0);
    let documents = run(config, args, |document, object, outcome| match outcome {
        Ok(decorated) => {
            for step in decorated.steps.iter().filter(|step| !step.ignored.is_empty()) {
                let (convention, fields) = (&step.convention, step.ignored.join(", "));
                note(&format!("warning: convention {convention}: unknown fields were dropped: {fields}"));
            }
            let done = Ok(template::document(&decorated.template));
            if !intent::settle(object, done)
                && let Some(place) = Place::from_object(object)
            {
                place.write(object, &decorated.template);
            }
        }
        Err(violations) => {
            intents += usize::from(intent::settle(object, Err(&violations)));
            failed.push(reported(document, object, &violations));
        }
    })?;
    // If a template cannot be decorated, print nothing. But if all such objects are PodIntents, print all objects,
    // because the status of a PodIntent reports the failure.
    if failed.len() == intents {
        let objects: Vec<&Value> = documents.iter().map(|document| &document.object).collect();
        let text = yaml(&objects)?;
        print_result(global, &json!({"apiVersion": "v1", "kind": "List", "items": objects}), || text)?;
    }
    if failed.is_empty() { Ok(()) } else { Err(ConventionError::Objects(failed).into()) }
}

/// Decorates every template in the files, and calls `each` with the object and the result.
fn run(
    config: &ConfigArgs,
    args: &FilesArgs,
    mut each: impl FnMut(&Location, &mut Value, Result<Decorated, Violations>),
) -> Result<Vec<Document>, Failure> {
    let FilesArgs { registry_auth_file, registry_ca_file, .. } = args;
    let conventions = Conventions::load(config.config.as_deref(), registry_auth_file.clone(), registry_ca_file.clone())
        .map_err(ConventionError::Registrations)?;
    let mut documents = objects::read(&args.files)?;
    let secrets = objects::secrets(&mut documents)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
    for document in &mut documents {
        let at = Location { file: document.file.display().to_string(), number: document.number };
        objects::visit(&mut document.object, &mut |object| {
            let Some(place) = Place::from_object(object) else { return };
            let outcome = runtime.block_on(one(object, place, &secrets, &conventions));
            each(&at, object, outcome);
        });
    }
    runtime.shutdown_background();
    Ok(documents)
}

async fn one(
    object: &Value,
    place: Place,
    secrets: &SecretValues,
    conventions: &Conventions,
) -> Result<Decorated, Violations> {
    let template = place.read(object).map_err(|why| Violations::one(None, "", 11, format!("the template {why}")))?;
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    let labels: BTreeMap<String, String> =
        labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let intent = Intent { template: &template, labels: &labels, secrets };
    conventions.decorate(&intent).await
}

fn reported(at: &Location, object: &Value, violations: &Violations) -> String {
    let what = format!("{}, document {}: {} {}", at.file, at.number, view::kind(object), objects::name(object));
    violations.to_string().lines().map(|line| format!("{what}: {line}")).collect::<Vec<_>>().join("\n  ")
}

fn yaml(objects: &[&Value]) -> Result<String, ConventionError> {
    let documents = objects.iter().map(serde_saphyr::to_string);
    let documents: Vec<String> =
        documents.collect::<Result<_, _>>().map_err(|error| ConventionError::Write(error.to_string()))?;
    Ok(documents.join("---\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If written YAML is read by the rules of YAML 1.1, the value is unchanged.
    #[test]
    fn written_yaml_reads_back_unchanged() {
        let texts = [
            "",
            " ",
            "a b",
            "yes",
            "No",
            "on",
            "y",
            "null",
            "~",
            "1",
            "0644",
            "0o17",
            "0x1f",
            "1e3",
            "1_000",
            ".5",
            "-",
            "- a",
            "a: b",
            "a #b",
            "#",
            "'",
            "\"",
            "\\",
            "\n",
            "a\nb",
            "a\nb\n",
            "a\n\n b\n\n\n",
            "\t",
            "\u{1b}",
            "é",
            "<<",
            "*a",
            "&a",
            "!x",
            "%",
            "@",
            "`",
            "[",
            "{",
            "|",
            ">",
            "?",
            ":",
            "2001-01-01",
            "1:30",
            "=",
            "\r\n",
            "\u{feff}x",
            "true",
            "---",
            "  lead\ntrail  \n",
            "long ".repeat(100).leak(),
        ];
        let mut object = json!({"apiVersion": "v1", "kind": "X", "numbers": [0, -1, 1.5, 9_007_199_254_740_993_i64, null, true], "e": {}, "l": []});
        for text in texts {
            object["texts"][format!("k{text}")] = json!(text);
        }
        object["list"] = json!(texts.to_vec());
        let written = yaml(&[&object, &object]).unwrap();
        let read: Vec<Value> = executor_yaml::parts(&written)
            .map(|part| {
                let parsed = executor_yaml::parse(part.text, part.line, &executor_yaml::Limits::OBJECT).unwrap();
                executor_yaml::decode::<Value>(&parsed.root).value.unwrap()
            })
            .collect();
        assert_eq!(read.len(), 2);
        for (key, value) in object.as_object().unwrap() {
            assert_eq!(&read[0][key], value, "{key}\n{written}");
        }
    }
}
