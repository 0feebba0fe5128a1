//! Formats registrations and changes as text and as JSON.

use executor_cli_kit::text::plain;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_conventions::change::Change;
use executor_conventions::config::Configuration;
use executor_conventions::grant::Grant;
use executor_conventions::registration::{Priority, SelectorTarget};
use executor_conventions::selector::Selector;
use executor_conventions::{Decorated, Step};
use serde::Serialize;
use serde_json::Value;

use crate::objects::{self, Location};

/// One entry of the JSON output of `list`.
#[derive(Serialize)]
pub(crate) struct Listed<'a> {
    file: Option<String>,
    conventions: Vec<Convention<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Convention<'a> {
    name: &'a str,
    url: String,
    /// Trusted certificates: `bundle` or `system`.
    trust: &'static str,
    priority: Priority,
    selector_target: SelectorTarget,
    selectors: &'a [Selector],
    grants: Vec<Grant>,
    timeout_seconds: u64,
}

impl<'a> Listed<'a> {
    pub(crate) fn new(configuration: &'a Configuration) -> Self {
        let conventions = configuration.registrations.iter().map(|registration| Convention {
            name: &registration.name,
            url: registration.endpoint.to_string(),
            trust: if registration.ca_bundle.is_some() { "bundle" } else { "system" },
            priority: registration.priority,
            selector_target: registration.selector_target,
            selectors: &registration.selectors,
            grants: registration.grants.iter().copied().collect(),
            timeout_seconds: registration.timeout.as_secs(),
        });
        let file = configuration.path.as_ref().map(|path| path.display().to_string());
        Self { file, conventions: conventions.collect() }
    }

    pub(crate) fn text(&self, style: Style) -> String {
        let mut table = Table::with_heading(0, &["NAME", "PRIORITY", "SELECTS", "GRANTS", "URL"]);
        for convention in &self.conventions {
            let target = match convention.selector_target {
                SelectorTarget::PodTemplateSpec => "",
                SelectorTarget::PodIntent => "intent: ",
            };
            let selectors: Vec<String> = convention.selectors.iter().map(ToString::to_string).collect();
            let selectors = match &selectors[..] {
                [] => "all".to_owned(),
                selectors => format!("{target}{}", selectors.join(" or ")),
            };
            let grants: Vec<&str> = convention.grants.iter().map(|grant| grant.name()).collect();
            let grants = if grants.is_empty() { "none".to_owned() } else { grants.join(",") };
            table.row([
                (convention.name.to_owned(), Role::Plain),
                (format!("{:?}", convention.priority), Role::Plain),
                (selectors, Role::Plain),
                (grants, if convention.grants.is_empty() { Role::Faint } else { Role::Attention }),
                (convention.url.clone(), Role::Plain),
            ]);
        }
        table.render(style)
    }
}

/// One object of the JSON output of `explain`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explained {
    file: String,
    document: usize,
    kind: String,
    name: String,
    /// Number of rounds that were run; the last round changes nothing.
    rounds: usize,
    pinned: Vec<Change>,
    steps: Vec<Step>,
}

impl Explained {
    pub(crate) fn new(at: &Location, object: &Value, decorated: &Decorated) -> Self {
        Self {
            file: at.file.clone(),
            document: at.number,
            kind: kind(object).to_owned(),
            name: objects::name(object).to_owned(),
            rounds: decorated.steps.last().map_or(0, |step| step.round),
            pinned: decorated.pinned.clone(),
            steps: decorated.steps.clone(),
        }
    }

    fn text(&self, style: Style) -> String {
        let mut text = style.paint(Role::Heading, &plain(&format!("{} {}", self.kind, self.name)));
        text.push('\n');
        if self.steps.is_empty() {
            text.push_str("  no convention matches\n");
            return text;
        }
        differences(&mut text, "images by digest", &self.pinned, style);
        for step in &self.steps {
            // Skip later rounds without changes.
            if step.round > 1 && step.changes.is_empty() {
                continue;
            }
            let mut heading = format!("convention {}", step.convention);
            if step.round > 1 {
                heading.push_str(&format!(", round {}", step.round));
            }
            match (step.applied.is_empty(), step.changes.is_empty()) {
                (true, true) => heading.push_str(" changes nothing"),
                (true, false) => {}
                (false, _) => heading.push_str(&format!(" applied {}", step.applied.join(", "))),
            }
            differences(&mut text, &heading, &step.changes, style);
            if step.changes.is_empty() {
                text.push_str(&format!("  {}\n", plain(&heading)));
            }
            for field in &step.ignored {
                text.push_str(&format!("    {} is unknown and was dropped\n", plain(field)));
            }
        }
        text
    }
}

fn differences(text: &mut String, heading: &str, changes: &[Change], style: Style) {
    if changes.is_empty() {
        return;
    }
    text.push_str(&format!("  {}\n", plain(heading)));
    for line in changes.iter().flat_map(|change| change.to_string().lines().map(str::to_owned).collect::<Vec<_>>()) {
        let role = if line.starts_with('+') { Role::Good } else { Role::Bad };
        text.push_str(&format!("    {}\n", style.paint(role, &plain(&line))));
    }
}

/// Formats the output of `explain`.
pub(crate) fn explained(all: &[Explained], style: Style) -> String {
    all.iter().map(|explained| explained.text(style)).collect::<Vec<_>>().join("\n")
}

pub(crate) fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}
