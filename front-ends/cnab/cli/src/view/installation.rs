//! Formats the output of `list`, `show`, `claims`, `outputs`, and of an action.

use std::collections::BTreeSet;

use executor_cli_kit::text::plain;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_cnab::claim::{Claim, ClaimResult};
use executor_cnab::outputs::LOGS;
use executor_cnab::store::{Record, Store, StoreError};
use executor_cnab::write_only;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::ended::Conclusion;
use crate::plan::{State, Step, state};

/// Placeholder for a hidden value.
const HIDDEN: &str = "(writeOnly)";

/// An installation according to its claims.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Installation {
    name: String,
    /// `present`, `absent`, `undefined` (after a failure) or `unknown` (if a record cannot be read).
    state: &'static str,
    bundle: String,
    version: String,
    revision: String,
    action: String,
    status: &'static str,
    message: String,
    claim: String,
    container: Option<String>,
    created: String,
    /// Time of the last result.
    modified: Option<String>,
    /// True if no action is unfinished, or if executord was queried for the unfinished action.
    asked: bool,
    /// Parameter values; `writeOnly` values are null.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Map<String, Value>>,
    #[serde(skip)]
    hidden: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<Vec<String>>,
}

impl Installation {
    /// Builds the description of an installation from its readable records.
    pub(crate) fn new(name: &str, history: &[Record], broken: bool, whole: bool, asked: bool) -> Self {
        let mut it = Self {
            name: name.to_owned(),
            state: match state(history) {
                _ if broken => "unknown",
                State::Absent => "absent",
                State::Present => "present",
                State::Undefined => "undefined",
            },
            bundle: String::new(),
            version: String::new(),
            revision: String::new(),
            action: String::new(),
            status: if broken { "unknown" } else { "pending" },
            message: String::new(),
            claim: String::new(),
            container: None,
            created: history.first().map(|record| record.claim.created.clone()).unwrap_or_default(),
            modified: None,
            asked: true,
            parameters: None,
            hidden: BTreeSet::new(),
            outputs: None,
        };
        let Some(record) = history.last() else { return it };
        let text = |name: &str| record.claim.bundle.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let finished = record.last().is_some_and(|result| result.status.is_final());
        it.bundle = text("name");
        it.version = text("version");
        it.revision.clone_from(&record.claim.revision);
        it.action.clone_from(&record.claim.action);
        it.claim.clone_from(&record.claim.id);
        it.container = (!finished).then(|| record.claim.container());
        it.asked = finished || asked;
        if let Some(result) = record.last() {
            if !broken {
                it.status = result.status.name();
            }
            it.message.clone_from(&result.message);
            it.modified = Some(result.created.clone());
        }
        if whole {
            let Claim { bundle, parameters, .. } = &record.claim;
            it.hidden = write_only::parameters(bundle, parameters).into_iter().map(str::to_owned).collect();
            let value =
                |name: &String, value: &Value| if it.hidden.contains(name) { Value::Null } else { value.clone() };
            it.parameters = Some(parameters.iter().map(|(name, it)| (name.clone(), value(name, it))).collect());
            it.outputs = Some(names(history));
        }
        it
    }

    pub(crate) fn text(&self, style: Style) -> String {
        let mut table = Table::bare(0);
        table.pair("installation", &*self.name);
        table.pair("bundle", format!("{} {}", self.bundle, self.version));
        table.pair("state", self.state);
        table.row([("last action".into(), Role::Faint), (self.action.clone(), Role::Plain)]);
        let mut status = self.status.to_owned();
        if !self.asked {
            status.push_str(" at the last report; executord cannot be reached");
        }
        table.row([("status".into(), Role::Faint), (status, role(self.status))]);
        if !self.message.is_empty() {
            table.pair("message", self.message.replace('\n', "; "));
        }
        if let Some(container) = &self.container {
            table.pair("container", &**container);
        }
        table.pair("revision", &*self.revision);
        table.pair("claim", &*self.claim);
        table.pair("created", &*self.created);
        if let Some(modified) = &self.modified {
            table.pair("modified", &**modified);
        }
        for (name, value) in self.parameters.iter().flatten() {
            let value =
                if self.hidden.contains(name) { HIDDEN.to_owned() } else { executor_cnab::definition::text(value) };
            table.pair(&format!("parameter {name}"), value);
        }
        for name in self.outputs.iter().flatten() {
            table.pair("output", &**name);
        }
        table.render(style)
    }
}

fn role(status: &str) -> Role {
    match status {
        "succeeded" => Role::Good,
        "pending" | "running" => Role::Attention,
        _ => Role::Bad,
    }
}

/// Formats installations as a table.
pub(crate) fn list(installations: &[Installation], style: Style) -> String {
    let mut table =
        Table::with_heading(0, &["NAME", "BUNDLE", "VERSION", "STATE", "LAST ACTION", "STATUS", "MODIFIED"]);
    for it in installations {
        let cell = |text: &str| (text.to_owned(), Role::Plain);
        table.row([
            cell(&it.name),
            cell(&it.bundle),
            cell(&it.version),
            cell(it.state),
            cell(&it.action),
            (it.status.to_owned(), role(it.status)),
            cell(it.modified.as_deref().unwrap_or("-")),
        ]);
    }
    table.render(style)
}

/// A claim in a list.
#[derive(Serialize)]
pub(crate) struct Claimed {
    id: String,
    action: String,
    revision: String,
    created: String,
    status: &'static str,
    message: String,
}

/// Returns the claims of an installation for a list, oldest first.
pub(crate) fn claims(history: &[Record]) -> Vec<Claimed> {
    let claimed = |record: &Record| Claimed {
        id: record.claim.id.clone(),
        action: record.claim.action.clone(),
        revision: record.claim.revision.clone(),
        created: record.claim.created.clone(),
        status: record.last().map_or("pending", |result| result.status.name()),
        message: record.last().map(|result| result.message.clone()).unwrap_or_default(),
    };
    history.iter().map(claimed).collect()
}

/// Formats claims as a table.
pub(crate) fn claims_text(claims: &[Claimed], style: Style) -> String {
    let mut table = Table::with_heading(0, &["CLAIM", "ACTION", "REVISION", "CREATED", "STATUS", "MESSAGE"]);
    for it in claims {
        let cell = |text: &str| (text.to_owned(), Role::Plain);
        table.row([
            cell(&it.id),
            cell(&it.action),
            cell(&it.revision),
            cell(&it.created),
            (it.status.to_owned(), role(it.status)),
            cell(&it.message),
        ]);
    }
    table.render(style)
}

/// An output and its content.
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) content: Vec<u8>,
    pub(crate) write_only: bool,
    claim: String,
}

/// An output as printed by `outputs`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shown {
    name: String,
    /// Content; null if the output is `writeOnly` or not UTF-8.
    value: Option<String>,
    size: usize,
    write_only: bool,
    claim: String,
}

impl Output {
    pub(crate) fn shown(self, reveal: bool) -> Shown {
        let hidden = self.write_only && !reveal;
        Shown {
            name: self.name,
            size: self.content.len(),
            value: if hidden { None } else { String::from_utf8(self.content).ok() },
            write_only: self.write_only,
            claim: self.claim,
        }
    }
}

fn names(history: &[Record]) -> Vec<String> {
    let results = history.iter().flat_map(|record| &record.results);
    let names: BTreeSet<&String> = results.flat_map(|result| result.outputs.keys()).collect();
    names.into_iter().filter(|name| *name != LOGS).cloned().collect()
}

/// Returns the latest content of each output, or of the outputs of one claim, and the errors of unreadable outputs.
pub(crate) fn outputs(store: &Store, history: &[Record], claim: Option<&str>) -> (Vec<Output>, Vec<StoreError>) {
    let mut unreadable = Vec::new();
    let mut outputs: std::collections::BTreeMap<String, Output> = std::collections::BTreeMap::new();
    for record in history.iter().filter(|record| claim.is_none_or(|claim| record.claim.id == claim)) {
        for result in &record.results {
            for name in result.outputs.keys().filter(|name| *name != LOGS) {
                let content = match store.output(&result.id, name) {
                    Ok(Some(content)) => content,
                    Ok(None) => continue,
                    Err(error) => {
                        unreadable.push(error);
                        continue;
                    }
                };
                let write_only = write_only::output(&record.claim.bundle, name);
                let output = Output { name: name.clone(), content, write_only, claim: record.claim.id.clone() };
                outputs.insert(name.clone(), output);
            }
        }
    }
    (outputs.into_values().collect(), unreadable)
}

/// Formats outputs as a table.
pub(crate) fn outputs_text(outputs: &[Shown], style: Style) -> String {
    let mut table = Table::with_heading(0, &["NAME", "SIZE", "VALUE"]);
    for it in outputs {
        let value = match &it.value {
            _ if it.write_only && it.value.is_none() => HIDDEN.to_owned(),
            None => "(not UTF-8)".to_owned(),
            Some(value) => value.trim_end().chars().take(120).collect(),
        };
        table.row([(it.name.clone(), Role::Plain), (it.size.to_string(), Role::Plain), (value, Role::Plain)]);
    }
    table.render(style)
}

#[derive(Serialize)]
pub(crate) struct Log<'a> {
    claim: &'a str,
    action: &'a str,
    log: String,
}

impl<'a> Log<'a> {
    pub(crate) fn new(record: &'a Record, log: &[u8]) -> Self {
        Self { claim: &record.claim.id, action: &record.claim.action, log: String::from_utf8_lossy(log).into_owned() }
    }
}

/// JSON output of an action.
#[derive(Serialize)]
pub(crate) struct Done<'a> {
    installation: &'a str,
    action: &'a str,
    claim: &'a str,
    revision: &'a str,
    status: &'static str,
    message: &'a str,
    result: Option<&'a str>,
    outputs: Map<String, Value>,
    warnings: &'a [String],
}

impl<'a> Done<'a> {
    pub(crate) fn new(step: &'a Step, result: Option<&'a ClaimResult>, ended: &'a Conclusion) -> Self {
        let shown = |name: &String, bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) if !step.bundle.is_output_write_only(name) => Value::from(text),
            _ => Value::Null,
        };
        Self {
            installation: &step.claim.installation,
            action: step.action.name(),
            claim: &step.claim.id,
            revision: &step.claim.revision,
            status: ended.status.name(),
            message: &ended.message,
            result: result.map(|result| &*result.id),
            outputs: ended.outputs.iter().map(|(name, it)| (plain(name), shown(name, &it.bytes))).collect(),
            warnings: &step.warnings,
        }
    }
}
