//! Actions on installations of bundles, and what is known of them.
//!
//! An action goes so:
//! ```text
//! plan (everything read, locked, lowered; nothing written) -> what an earlier agent-cli left is settled
//!   -> claim, result `pending` -> container -> result `running` -> its end -> outputs -> final result -> container deleted
//! ```
//! Whoever is killed in between leaves a claim whose container is known by name: `show`, and the next action, find out from
//! executord what became of it.

use std::path::PathBuf;

use agent_cli::failure::Failure;
use agent_cli::global::Global;
use agent_cli::interrupt::Interrupts;
use agent_cli::session::Session;
use executor_cnab::action::{INSTALL, UNINSTALL, UPGRADE};
use executor_cnab::store::Store;

use crate::args::{ActionArgs, ClaimsArgs, CnabCommand};
use crate::error::CnabError;
use crate::plan::{Plan, claims_dir};
use crate::{perform, read};

/// State of a command after it was begun.
pub(crate) enum Begun {
    /// The command is done without executord; the program ends with this status.
    Done(u8),
    /// The command needs executord.
    Planned(Box<Planned>),
}

/// Actions that are ready to be carried out.
pub(crate) struct Planned {
    plan: Result<Plan, Failure>,
    /// Forget the installation at the end, whatever happened.
    forget: Option<(PathBuf, String)>,
}

/// Reads what there is to be read, and does what can be done with that alone.
pub(crate) fn start(global: &Global, claims: ClaimsArgs, command: &CnabCommand) -> Result<Begun, Failure> {
    let work = |action: &str, args: &ActionArgs, directory: PathBuf, force: bool| {
        let mut stdin = std::io::stdin().lock();
        let plan = Plan::build(args, action, &directory, &mut stdin, &|name| std::env::var_os(name));
        // Somebody else is at work on it: that is no failure of the uninstall, which was not tried.
        let plan = match plan {
            Err(failure) if !force || matches!(failure.wrapped(), Some(CnabError::Busy(_))) => return Err(failure),
            plan => plan,
        };
        Ok(Begun::Planned(Box::new(Planned { plan, forget: force.then(|| (directory, args.name.clone())) })))
    };
    let directory = || claims_dir(claims.claims_dir);
    match command {
        CnabCommand::Install(action) => work(INSTALL, action, directory()?, false),
        CnabCommand::Upgrade(action) => work(UPGRADE, action, directory()?, false),
        CnabCommand::Uninstall(args) => work(UNINSTALL, &args.action, directory()?, args.force),
        CnabCommand::Invoke(args) => work(&args.invoked, &args.action, directory()?, false),
        CnabCommand::Validate(bundle) => read::validate(global, bundle).map(Begun::Done),
        CnabCommand::Explain(explain) => read::explain(global, explain).map(Begun::Done),
        other => read::known(global, &Store::new(directory()?), other).map(Begun::Done),
    }
}

/// Carries the steps out, one after the other. The first that fails is the last.
pub(crate) async fn perform(session: &Session, work: Planned, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    let Planned { plan, forget } = work;
    let result = match plan {
        Ok(plan) => steps(session, plan, interrupts).await,
        Err(failure) => Err(failure),
    };
    let Some((directory, name)) = forget else { return result };
    if let Err(failure @ Failure::Abandoned { .. }) = result {
        return Err(failure);
    }
    if let Err(failure) = &result {
        session.output.note(failure.describe());
    }
    let store = Store::new(directory);
    let locked = store.lock(&name).map_err(CnabError::from)?.ok_or_else(|| CnabError::Busy(name.clone()))?;
    store.forget(&locked).map_err(CnabError::from)?;
    session.output.note(format!("{}: forgotten", agent_cli::text::plain(&name)));
    Ok(0)
}

async fn steps(session: &Session, plan: Plan, interrupts: &mut Interrupts) -> Result<u8, Failure> {
    let Plan { store, steps, options } = plan;
    for step in steps {
        perform::run_invocation(session, &store, step, &options, interrupts).await?;
    }
    Ok(0)
}
