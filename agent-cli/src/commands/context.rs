//! `context list|use|show|add|remove`: manages the named executords of this user.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use executor_cli_kit::contexts::{self, CONTEXTS, Context, Contexts};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::global::Global;
use executor_cli_kit::report::print_result;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List the contexts; `*` marks the current context
    #[command(visible_alias = "ls")]
    List,
    /// Set the current context
    ///
    /// Commands use this context unless they name another executord.
    Use(Name),
    /// Show a context, by default the current context
    Show(ShowArgs),
    /// Add or replace a context, with --socket, or with --address and TLS flags
    ///
    /// agent-cli context add prod --address node-1:7443 --tls-cert me.crt --tls-key me.key --tls-ca ca.crt
    Add(AddArgs),
    /// Remove a context
    Remove(Name),
}

#[derive(Debug, Args)]
pub(crate) struct Name {
    /// Name of the context
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Name of the context
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// Name of the context: letters, digits, `.`, `_` and `-`
    #[arg(value_name = "NAME")]
    name: String,
    /// Make the new context the current context
    #[arg(long = "use")]
    in_use: bool,
}

/// A context, as shown by `--json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ShownContext {
    name: String,
    in_use: bool,
    socket: Option<PathBuf>,
    address: Option<String>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    tls_server_name: Option<String>,
}

impl ShownContext {
    fn new(name: &str, context: &Context, contexts: &Contexts) -> Self {
        let Context { socket, address, tls_cert, tls_key, tls_ca, tls_server_name } = context.clone();
        let in_use = contexts.current.as_deref() == Some(name);
        Self { name: name.to_owned(), in_use, socket, address, tls_cert, tls_key, tls_ca, tls_server_name }
    }

    fn place(&self) -> String {
        let socket = self.socket.as_ref().map(|path| path.display().to_string());
        self.address.clone().or(socket).unwrap_or_default()
    }
}

pub(super) fn local(command: ContextCommand, global: &Global) -> Result<u8, Failure> {
    let path = contexts::path().ok_or_else(|| Failure::Usage(format!("neither HOME nor {CONTEXTS} is set")))?;
    let mut known = Contexts::read(&path)?;
    if !matches!(command, ContextCommand::Add(_)) && global.has_server_flag() {
        return Err(Failure::Usage(
            "context: --socket, --address and --tls-... are only for `context add`; name a context as an argument instead of --context".into(),
        ));
    }
    match command {
        ContextCommand::List => {
            let shown: Vec<_> = known.contexts.iter().map(|(name, one)| ShownContext::new(name, one, &known)).collect();
            print_result(global, &shown, || list(&shown))?;
        }
        ContextCommand::Show(ShowArgs { name }) => {
            let name = name.or_else(|| known.current.clone()).ok_or_else(|| {
                Failure::Usage(
                    "there is no current context: name a context, or run `agent-cli context use NAME`".to_owned(),
                )
            })?;
            let shown = ShownContext::new(&name, known.get(&name, &path)?, &known);
            print_result(global, &shown, || table(&shown))?;
        }
        ContextCommand::Use(Name { name }) => {
            known.get(&name, &path)?;
            known.current = Some(name);
            known.write(&path)?;
        }
        ContextCommand::Add(AddArgs { name, in_use }) => {
            contexts::check_name(&name).map_err(Failure::Usage)?;
            if global.local || global.context.is_some() {
                return Err(Failure::Usage("`context add` needs --socket, or --address and TLS flags".to_owned()));
            }
            known.contexts.insert(name.clone(), Context::from_server(&global.explicit_server()?).absolute());
            if in_use {
                known.current = Some(name);
            }
            known.write(&path)?;
        }
        ContextCommand::Remove(Name { name }) => {
            known.get(&name, &path)?;
            known.contexts.remove(&name);
            known.current = known.current.filter(|current| *current != name);
            known.write(&path)?;
        }
    }
    Ok(0)
}

fn list(shown: &[ShownContext]) -> String {
    let mut table = Table::with_heading(0, &["NAME", "USED", "EXECUTORD"]);
    for context in shown {
        let used = if context.in_use { "*" } else { "" };
        table.row([
            (context.name.clone(), Role::Plain),
            (used.to_owned(), Role::Plain),
            (context.place(), Role::Plain),
        ]);
    }
    table.render(Style::detect())
}

fn table(shown: &ShownContext) -> String {
    let mut table = Table::bare(0);
    table.pair("name", &*shown.name);
    table.pair("in use", if shown.in_use { "yes" } else { "no" });
    let paths =
        [("socket", &shown.socket), ("certificate", &shown.tls_cert), ("key", &shown.tls_key), ("ca", &shown.tls_ca)];
    for (name, text) in [("address", &shown.address), ("server name", &shown.tls_server_name)] {
        if let Some(text) = text {
            table.pair(name, &**text);
        }
    }
    for (name, path) in paths {
        if let Some(path) = path {
            table.pair(name, path.display().to_string());
        }
    }
    table.render(Style::detect())
}
