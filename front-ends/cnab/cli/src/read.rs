//! Runs the commands that need no container: `validate`, `explain`, and the commands that show records on disk. If an
//! action is unfinished and executord is reachable, its state is queried.

use executor_cli_kit::connect::{DEFAULT_SOCKET, connect};
use executor_cli_kit::execute::block_on;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::global::Global;
use executor_cli_kit::output::{Output, print};
use executor_cli_kit::report::{PROGRAM, note, print_result};
use executor_cli_kit::session::Session;
use executor_cli_kit::view::style::Style;
use executor_cnab::action::{Action, BUILT_IN};
use executor_cnab::outputs::LOGS;
use executor_cnab::store::{Record, Store, StoreError};

use crate::args::{BundleArg, ClaimChoiceArgs, CnabCommand, ExplainArgs, OutputsArgs};
use crate::error::CnabError;
use crate::input;
use crate::plan::{State, state};
use crate::settle;
use crate::view;

/// Exit status of `validate` for an invalid bundle.
const INVALID: u8 = 1;

pub(crate) fn validate(global: &Global, args: &BundleArg) -> Result<u8, Failure> {
    let (violations, warnings, bundle) = match input::bundle(&args.bundle) {
        Ok(loaded) => (None, loaded.bundle.warnings.clone(), Some(loaded.bundle)),
        Err(CnabError::Wrong { violations, .. }) => (Some(violations), Vec::new(), None),
        Err(error) => return Err(error.into()),
    };
    let document = view::Validated::new(bundle.as_ref(), violations.as_ref(), &warnings);
    let status = if document.valid { 0 } else { INVALID };
    print_result(global, &document, || document.text(&args.bundle.display().to_string()))?;
    Ok(status)
}

pub(crate) fn explain(global: &Global, args: &ExplainArgs) -> Result<u8, Failure> {
    let bundle = input::bundle(&args.bundle.bundle)?.bundle;
    let actions: Vec<&str> = match &args.action {
        Some(action) => {
            Action::new(&bundle.actions, action).map_err(input::wrong("there is no such action"))?;
            vec![action]
        }
        None => BUILT_IN.into_iter().chain(bundle.actions.keys().map(String::as_str)).collect(),
    };
    let document = view::Explained::new(&bundle, &actions);
    print_result(global, &document, || document.text(Style::detect()))?;
    Ok(0)
}

/// Runs `list`, `show`, `claims`, `logs` and `outputs`.
pub(crate) fn known(global: &Global, store: &Store, command: &CnabCommand) -> Result<u8, Failure> {
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
    let (known, mut unreadable) = survey(store, names, name.is_none())?;
    let style = Style::detect();
    if let CnabCommand::List(args) = command {
        let matters = |known: &&InstallationRecords| {
            args.all
                || known.broken
                || state(&known.records) != State::Absent
                || known.records.iter().any(Record::is_unfinished)
        };
        let shown = |it: &InstallationRecords| view::Installation::new(&it.name, &it.records, it.broken, false, asked);
        let installations: Vec<_> = known.iter().filter(matters).map(shown).collect();
        print_result(global, &installations, || view::list(&installations, style))?;
    } else if let Some(InstallationRecords { name, records, broken }) = known.first() {
        unreadable += one(global, store, command, (name, records), *broken, asked, style)?;
    }
    if unreadable == 0 { Ok(0) } else { Err(CnabError::Unreadable(unreadable).into()) }
}

/// The readable records of an installation.
struct InstallationRecords {
    name: String,
    records: Vec<Record>,
    /// True if some records could not be read.
    broken: bool,
}

/// Reads the records of installations. Unreadable records are reported and counted; the other records are still
/// returned. If `all` is false, the installations must exist.
fn survey(store: &Store, names: Vec<String>, all: bool) -> Result<(Vec<InstallationRecords>, usize), Failure> {
    let mut known = Vec::new();
    let mut unreadable = 0;
    for name in names {
        let (records, errors) = match store.survey(&name) {
            Ok(survey) => (survey.records, survey.unreadable),
            // A name without claims belongs to an installation that is being removed.
            Err(StoreError::NoInstallation(_)) if all => continue,
            Err(error) if all => (Vec::new(), vec![error]),
            Err(error) => return Err(CnabError::from(error).into()),
        };
        unreadable += errors.len();
        known.push(InstallationRecords { name, records, broken: !errors.is_empty() });
        errors.into_iter().for_each(|error| print_failure(CnabError::from(error)));
    }
    Ok((known, unreadable))
}

/// Reports an error that does not stop the command.
fn print_failure(failure: impl Into<Failure>) {
    note(&failure.into().describe());
}

/// Prints the result of `show`, `claims`, `logs` or `outputs` for an installation. Returns the number of unreadable
/// outputs.
fn one(
    global: &Global,
    store: &Store,
    command: &CnabCommand,
    (name, records): (&str, &[Record]),
    broken: bool,
    asked: bool,
    style: Style,
) -> Result<usize, Failure> {
    match command {
        CnabCommand::Show(_) => {
            let document = view::Installation::new(name, records, broken, true, asked);
            print_result(global, &document, || document.text(style))?;
        }
        CnabCommand::Claims(_) => {
            let document = view::claims(records);
            print_result(global, &document, || view::claims_text(&document, style))?;
        }
        CnabCommand::Logs(args) => {
            let Some(record) = record(records, args)? else { return Ok(0) };
            let log = match record.results.iter().rev().find(|result| result.outputs.contains_key(LOGS)) {
                Some(result) => store.output(&result.id, LOGS).map_err(CnabError::from)?.unwrap_or_default(),
                None => Vec::new(),
            };
            if global.json {
                print_result(global, &view::Log::new(record, &log), String::new)?;
            } else {
                print(&log)?;
            }
        }
        CnabCommand::Outputs(args) => return outputs(global, store, records, args, style),
        _ => {}
    }
    Ok(0)
}

fn outputs(
    global: &Global,
    store: &Store,
    records: &[Record],
    args: &OutputsArgs,
    style: Style,
) -> Result<usize, Failure> {
    let (found, errors) = view::outputs(store, records, args.of.claim.as_deref());
    let unreadable = errors.len();
    errors.into_iter().for_each(|error| print_failure(CnabError::from(error)));
    let Some(name) = &args.output else {
        let shown: Vec<_> = found.into_iter().map(|output| output.shown(args.reveal)).collect();
        print_result(global, &shown, || view::outputs_text(&shown, style))?;
        return Ok(unreadable);
    };
    let output = found
        .into_iter()
        .find(|output| output.name == *name)
        .ok_or_else(|| Failure::Usage(format!("{} has no output {name}", args.of.name)))?;
    if output.write_only && !args.reveal {
        return Err(Failure::Usage(format!("{name} is writeOnly: use --reveal to print it")));
    }
    if global.json {
        print_result(global, &output.shown(true), String::new)?;
    } else {
        print(&output.content)?;
    }
    Ok(unreadable)
}

/// Returns the selected claim, by default the last claim; `None` if no claim can be read.
fn record<'a>(records: &'a [Record], args: &ClaimChoiceArgs) -> Result<Option<&'a Record>, CnabError> {
    let Some(id) = &args.claim else { return Ok(records.last()) };
    let found = records.iter().find(|record| record.claim.id == *id);
    found.map(Some).ok_or_else(|| CnabError::NoClaim { installation: args.name.clone(), id: id.clone() })
}

/// Queries executord for the state of unfinished actions. Returns false if a query failed.
fn refresh(global: &Global, store: &Store, names: &[String]) -> Result<bool, Failure> {
    let mut unfinished = Vec::new();
    for name in names {
        // Skip installations with unreadable records; they are reported later.
        if store.history(name).is_ok_and(|history| history.iter().any(Record::is_unfinished)) {
            unfinished.push(name);
        }
    }
    if unfinished.is_empty() {
        return Ok(true);
    }
    block_on(async {
        let server = global.server(DEFAULT_SOCKET)?;
        let Ok(client) = connect(&server).await else { return Ok(false) };
        let output = Output::start(PROGRAM).map_err(Failure::System)?;
        let session = Session { client, output, style: Style::detect(), json: global.json };
        let mut asked = true;
        for name in unfinished {
            // If another process holds the lock, it is working on the installation and will record the result.
            let settled = match store.lock(name) {
                Ok(None) => continue,
                Ok(Some(_lock)) => settle::settle(&session, store, name, None).await,
                Err(error) => Err(CnabError::from(error).into()),
            };
            if let Err(failure) = settled {
                print_failure(failure);
                asked = false;
            }
        }
        session.output.finish().await?;
        Ok(asked)
    })
}
