//! What needs no container: `validate`, `explain`, and what is on disk. Where an action is unfinished, executord is asked
//! what became of it, if it is there to be asked.

use std::io::Write as _;

use executor_cnab::action::{Action, BUILT_IN};
use executor_cnab::outputs::LOGS;
use executor_cnab::store::{Record, Store, StoreError};
use serde::Serialize;

use super::super::Session;
use super::settle;
use crate::cli::{BundleArg, CnabCommand, ExplainArgs, Global, OfClaimArgs, OutputsArgs};
use crate::cnab::plan::{State, state};
use crate::cnab::{CnabError, input, view};
use crate::connect::{Client, DEFAULT_SOCKET};
use crate::failure::Failure;
use crate::output::Output;
use crate::view::json;
use crate::view::style::Style;

pub(super) fn validate(global: &Global, args: &BundleArg) -> Result<u8, Failure> {
    let (violations, warnings, bundle) = match input::bundle(&args.bundle) {
        Ok(loaded) => (None, loaded.bundle.warnings.clone(), Some(loaded.bundle)),
        Err(CnabError::Wrong { violations, .. }) => (Some(violations), Vec::new(), None),
        Err(error) => return Err(error.into()),
    };
    let document = view::Validated::new(bundle.as_ref(), violations.as_ref(), &warnings);
    let status = if document.valid { 0 } else { crate::exit::INVALID };
    print(global, &document, || document.text(&args.bundle.display().to_string()))?;
    Ok(status)
}

pub(super) fn explain(global: &Global, args: &ExplainArgs) -> Result<u8, Failure> {
    let bundle = input::bundle(&args.bundle.bundle)?.bundle;
    let actions: Vec<&str> = match &args.action {
        Some(action) => {
            Action::of(&bundle, action).map_err(input::wrong("there is no such action"))?;
            vec![action]
        }
        None => BUILT_IN.into_iter().chain(bundle.actions.keys().map(String::as_str)).collect(),
    };
    let document = view::Explained::new(&bundle, &actions);
    print(global, &document, || document.text(Style::detect()))?;
    Ok(0)
}

/// `list`, `show`, `claims`, `logs`, `outputs`.
pub(super) fn known(global: &Global, store: &Store, command: &CnabCommand) -> Result<u8, Failure> {
    let name = match command {
        CnabCommand::Show(args) | CnabCommand::Claims(args) => Some(args.name.as_str()),
        CnabCommand::Logs(args) => Some(args.name.as_str()),
        CnabCommand::Outputs(args) => Some(args.of.name.as_str()),
        _ => None,
    };
    let names = match name {
        Some(name) => vec![name.to_owned()],
        None => store.installations().map_err(CnabError::from)?,
    };
    let asked = refresh(global, store, &names)?;
    let style = Style::detect();
    match command {
        CnabCommand::List(args) => {
            let mut installations = Vec::new();
            for name in names {
                let history = store.history(&name).map_err(CnabError::from)?;
                if !history.is_empty()
                    && (args.all || state(&history) != State::Absent || history.iter().any(settle::is_unfinished))
                {
                    installations.push(view::Installation::new(&history, false, asked));
                }
            }
            print(global, &installations, || view::list(&installations, style))?;
        }
        CnabCommand::Show(args) => {
            let history = store.read(&args.name).map_err(CnabError::from)?;
            let document = view::Installation::new(&history, true, asked);
            print(global, &document, || document.text(style))?;
        }
        CnabCommand::Claims(args) => {
            let history = store.read(&args.name).map_err(CnabError::from)?;
            let document = view::claims(&history);
            print(global, &document, || view::claims_text(&document, style))?;
        }
        CnabCommand::Logs(args) => {
            let record = record(store, args)?;
            let log = match record.results.iter().rev().find(|result| result.outputs.contains_key(LOGS)) {
                Some(result) => store.output(&result.id, LOGS).map_err(CnabError::from)?.unwrap_or_default(),
                None => Vec::new(),
            };
            if global.json {
                print(global, &view::Log::new(&record, &log), String::new)?;
            } else {
                write(&log)?;
            }
        }
        CnabCommand::Outputs(args) => return outputs(global, store, args, style),
        _ => {}
    }
    Ok(0)
}

fn outputs(global: &Global, store: &Store, args: &OutputsArgs, style: Style) -> Result<u8, Failure> {
    let history = store.read(&args.of.name).map_err(CnabError::from)?;
    let found = view::outputs(store, &history, args.of.claim.as_deref()).map_err(CnabError::from)?;
    let Some(name) = &args.output else {
        let shown: Vec<_> = found.into_iter().map(|output| output.shown(args.reveal)).collect();
        print(global, &shown, || view::outputs_text(&shown, style))?;
        return Ok(0);
    };
    let output = found
        .into_iter()
        .find(|output| output.name == *name)
        .ok_or_else(|| Failure::Usage(format!("{} has no output {name}", args.of.name)))?;
    if output.write_only && !args.reveal {
        return Err(Failure::Usage(format!("{name} is writeOnly: --reveal prints it all the same")));
    }
    if global.json {
        print(global, &output.shown(true), String::new)?;
    } else {
        write(&output.content)?;
    }
    Ok(0)
}

/// The claim that is meant.
fn record(store: &Store, args: &OfClaimArgs) -> Result<Record, CnabError> {
    let mut history = store.read(&args.name)?;
    match &args.claim {
        None => history.pop().ok_or_else(|| StoreError::NoInstallation(args.name.clone()).into()),
        Some(id) => history
            .into_iter()
            .find(|record| record.claim.id == *id)
            .ok_or_else(|| CnabError::NoClaim { installation: args.name.clone(), id: id.clone() }),
    }
}

/// Asks executord about what is unfinished. False where it could not be asked.
fn refresh(global: &Global, store: &Store, names: &[String]) -> Result<bool, Failure> {
    let mut unfinished = Vec::new();
    for name in names {
        if store.history(name).map_err(CnabError::from)?.iter().any(settle::is_unfinished) {
            unfinished.push(name);
        }
    }
    if unfinished.is_empty() {
        return Ok(true);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
    runtime.block_on(async {
        let Ok(client) = Client::connect(&global.socket(DEFAULT_SOCKET)).await else { return Ok(false) };
        let output = Output::start().map_err(Failure::System)?;
        let session = Session { client, output, style: Style::detect(), json: global.json };
        for name in unfinished {
            // Whoever has the lock is at work on it, and knows better.
            let Some(_lock) = store.lock(name).map_err(CnabError::from)? else { continue };
            settle::settle(&session, store, name, None).await?;
        }
        session.output.finish().await?;
        Ok(true)
    })
}

fn print(global: &Global, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
    let text = if global.json { json::document(document) } else { text() };
    write(text.as_bytes())
}

fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(Failure::ClosedPipe),
        other => other.map_err(|source| Failure::Output { stream: "standard output", source }),
    }
}
