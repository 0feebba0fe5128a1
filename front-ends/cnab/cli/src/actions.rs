//! Runs actions on installations of bundles.
//!
//! Sequence of an action:
//! ```text
//! plan (everything read, locked, lowered; nothing written) -> settle actions that an earlier agent-cli left unfinished
//! -> claim, result `pending` -> container -> result `running` -> exit -> outputs -> final result -> container deleted
//! ```
//! The name of the container is derived from the claim's id. If agent-cli is killed during the sequence, `show` and the
//! next action query executord for the outcome of this container.

use std::path::PathBuf;

use executor_cli_kit::failure::Failure;
use executor_cli_kit::global::Global;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::session::Session;
use executor_cnab::action::{INSTALL, UNINSTALL, UPGRADE};
use executor_cnab::store::Store;

use crate::args::{ActionArgs, ClaimsArgs, CnabCommand};
use crate::error::CnabError;
use crate::plan::{Plan, claims_dir};
use crate::{perform, read};

/// Result of the first phase of a command, which does not use executord.
pub(crate) enum StartOutcome {
    /// The command is complete. Holds the exit status of the program.
    Done(u8),
    /// The command needs executord.
    Planned(Box<Planned>),
}

/// Actions whose inputs have been read, and the cleanup after them.
pub(crate) struct Planned {
    plan: Result<Plan, Failure>,
    /// Claims directory and installation whose records are removed after the action, regardless of the outcome.
    remove: Option<(PathBuf, String)>,
}

/// Reads the inputs and runs commands that need no executord.
pub(crate) fn start(global: &Global, claims: ClaimsArgs, command: &CnabCommand) -> Result<StartOutcome, Failure> {
    let work = |action: &str, args: &ActionArgs, directory: PathBuf, force: bool| {
        let mut stdin = std::io::stdin().lock();
        let plan = Plan::build(args, action, &directory, &mut stdin, &|name| std::env::var_os(name));
        // With --force, a failure is handled after the uninstall. But if another process works on the installation,
        // nothing was uninstalled, so return the error.
        let plan = match plan {
            Err(failure) if !force || matches!(failure.wrapped(), Some(CnabError::Busy(_))) => return Err(failure),
            plan => plan,
        };
        Ok(StartOutcome::Planned(Box::new(Planned { plan, remove: force.then(|| (directory, args.name.clone())) })))
    };
    let directory = || claims_dir(claims.claims_dir);
    match command {
        CnabCommand::Install(action) => work(INSTALL, action, directory()?, false),
        CnabCommand::Upgrade(action) => work(UPGRADE, action, directory()?, false),
        CnabCommand::Uninstall(args) => work(UNINSTALL, &args.action, directory()?, args.force),
        CnabCommand::Invoke(args) => work(&args.invoked, &args.action, directory()?, false),
        CnabCommand::Validate(bundle) => read::validate(global, bundle).map(StartOutcome::Done),
        CnabCommand::Explain(explain) => read::explain(global, explain).map(StartOutcome::Done),
        other => read::known(global, &Store::new(directory()?), other).map(StartOutcome::Done),
    }
}

/// Runs the steps in order until one fails. With `--force`, then removes the records of the installation.
pub(crate) async fn perform(session: &Session, work: Planned, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    let Planned { plan, remove } = work;
    let result = match plan {
        Ok(plan) => steps(session, plan, interrupts).await,
        Err(failure) => Err(failure),
    };
    let Some((directory, name)) = remove else { return result };
    if let Err(failure @ Failure::Abandoned { .. }) = result {
        return Err(failure);
    }
    if let Err(failure) = &result {
        session.output.note(failure.describe());
    }
    let store = Store::new(directory);
    let locked = store.lock(&name).map_err(CnabError::from)?.ok_or_else(|| CnabError::Busy(name.clone()))?;
    store.remove(&locked).map_err(CnabError::from)?;
    session.output.note(format!("{}: all records removed", executor_cli_kit::text::plain(&name)));
    Ok(0)
}

async fn steps(session: &Session, plan: Plan, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    let Plan { store, steps, options } = plan;
    for step in steps {
        perform::run_invocation(session, &store, step, &options, interrupts).await?;
    }
    Ok(0)
}
