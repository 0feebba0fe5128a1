//! Explains a command without running it (`--dry-run`).

use executor_bundles::manifest;
use executor_bundles::resolve::{Candidate, Deprecation, Edge, Step, Verdict};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::report::{note, print_result};
use executor_cli_kit::text::plain;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use serde_json::json;

use super::{Work, wanted};
use crate::registry::RegistryArgs;

impl Work<'_> {
    /// Prints the steps of a command and their reasons, and changes nothing (`--dry-run`).
    pub(super) fn explain(
        &self,
        name: &str,
        steps: &[Step],
        sources: &[String],
        registry: &RegistryArgs,
        partial: bool,
    ) -> Result<u8, Failure> {
        let mut bundles = Vec::new();
        for source in sources {
            let wanted = wanted(source, registry)?;
            let played = manifest::play(&wanted.bundle, name, partial).err().map(|error| error.to_string());
            bundles.push((wanted, played));
        }
        let described: Vec<_> = bundles.iter().map(|(wanted, refused)| json!({
            "source": wanted.source, "pin": wanted.files.pinned(), "format": wanted.bundle.format, "name": wanted.bundle.name,
            "notProvided": wanted.bundle.not_provided(), "refused": refused,
        })).collect();
        print_result(self.global, &json!({"steps": steps, "bundles": described}), || {
            let style = Style::detect();
            let mut text = String::new();
            for step in steps {
                let from = step.from.as_ref().map_or_else(String::new, |from| format!("{from} -> "));
                text += &format!("{from}{} (channel {})\n", step.to.name, step.channel);
                let mut table = Table::with_heading(2, &["BUNDLE", "VERSION", "EDGE", "DECISION"]);
                for candidate in &step.candidates {
                    let (decision, role) = decision(candidate);
                    table.row([
                        (candidate.name.clone(), Role::Plain),
                        (candidate.version.clone(), Role::Plain),
                        (candidate.edge.map_or("", edge).to_owned(), Role::Plain),
                        (decision, role),
                    ]);
                }
                text += &table.render(style);
            }
            for (wanted, refused) in &bundles {
                text += &format!("would install {} ({})\n", wanted.source.text(), wanted.files.pinned());
                for it in wanted.bundle.not_provided() {
                    text += &format!("  not provided: {}: {}\n", plain(&it.what), it.why);
                }
                if let Some(refused) = refused {
                    text += &format!("  refused: {}\n", plain(refused.lines().next().unwrap_or_default()));
                }
            }
            text
        })?;
        Ok(0)
    }
}

fn edge(edge: Edge) -> &'static str {
    match edge {
        Edge::Replaces => "replaces",
        Edge::Skips => "skips",
        Edge::SkipRange => "skipRange",
        Edge::SameVersion => "same version",
        Edge::Forced => "forced",
    }
}

fn decision(candidate: &Candidate) -> (String, Role) {
    let deprecated =
        candidate.deprecated.as_ref().map_or_else(String::new, |message| format!(", deprecated: {message}"));
    let (text, role) = match &candidate.verdict {
        Verdict::Chosen => ("chosen".to_owned(), Role::Good),
        Verdict::Lower => ("another bundle is preferred".to_owned(), Role::Faint),
        Verdict::NotInRange => ("not in the requested range".to_owned(), Role::Faint),
        Verdict::NoEdge => ("no upgrade edge to this version".to_owned(), Role::Faint),
        Verdict::Installed => ("installed".to_owned(), Role::Plain),
        Verdict::Requires { requires } => {
            let needs: Vec<String> = requires.iter().map(ToString::to_string).collect();
            (format!("needs {}", needs.join(", ")), Role::Attention)
        }
    };
    (text + &deprecated, role)
}

/// Warns about deprecations of the last step.
pub(super) fn warn(steps: &[Step]) {
    for Deprecation { of, name, message } in steps.last().map_or(&[][..], |step| &step.deprecations) {
        note(&format!("{of} {name} is deprecated: {message}"));
    }
}
