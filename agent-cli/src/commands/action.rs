//! `action check`: validates files with trees of actions, without executord.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::output::print;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_document;
use executor_client::v1::RunRequest;

use crate::actions::{self, Visit};

#[derive(Debug, Subcommand)]
pub(crate) enum ActionCommand {
    /// Check a file for `run --action`, and print its tree
    ///
    /// Prints every error with its path. With --json, prints the document that executord would receive.
    Check(ActionFile),
}

#[derive(Debug, Args)]
pub(crate) struct ActionFile {
    /// YAML or JSON: an action (`run`, `serial`, `parallel`, `codependent`, `try`, `timeout`, `emit_progress`), or a
    /// document with `action` and any of `setup`, `sidecars`, `monitor`, `restart_policy`, `environment`, `log_source`
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

pub(super) fn local(command: ActionCommand, as_json: bool) -> Result<u8, Failure> {
    let ActionCommand::Check(ActionFile { file }) = command;
    let request = actions::read(&file)?;
    let text = if as_json { to_document(&actions::to_json(&request)) } else { tree(&request) };
    print(&text)?;
    Ok(0)
}

/// Formats the tree of actions, one action per line.
fn tree(request: &RunRequest) -> String {
    let mut text = String::new();
    for Visit { path, depth, kinds, action } in actions::visit(request) {
        let name = path.rsplit_once('.').map_or(&*path, |(_, name)| name);
        let what = match &action.run {
            Some(run) => plain(&std::iter::once(&run.path).chain(&run.args).cloned().collect::<Vec<_>>().join(" ")),
            None => String::new(),
        };
        let name = if depth == 0 { path.as_str() } else { name };
        text.push_str(format!("{}{name}  {}  {what}", "  ".repeat(depth), kinds.join(" ")).trim_end());
        text.push('\n');
    }
    text
}
