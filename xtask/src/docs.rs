//! `cargo xtask docs`: the documentation as a book, with its links checked.
//!
//! The pages of `docs/`, those of the repository's root and the READMEs they link to are staged in `target/book-src/` in the
//! repository's layout, so that each link between pages leads to a page of the book. A link to a source file gets a copy of the
//! file; a link to a directory becomes text. A link to a file or a heading that does not exist is an error.

mod links;
mod stage;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::tools::Tool;
use crate::workspace::{self, Workspace, step};

const MDBOOK: Tool = Tool { name: "mdbook", version: "0.5.4" };

/// What to do with the book.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Open the book in a browser
    #[arg(long)]
    open: bool,
    /// Check the links only, without mdbook
    #[arg(long, conflicts_with = "open")]
    check: bool,
}

/// Checks the links, and builds the book unless only the check was requested.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if options.check {
        println!("{} links are valid", stage::check(&workspace.root)?);
        return Ok(ExitCode::SUCCESS);
    }
    let index = build(workspace)?.join("docs/index.html");
    println!("{}", index.display());
    if options.open {
        workspace::run(Command::new("xdg-open").arg(&index))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the book and returns its directory.
pub(crate) fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let (source, book) = (workspace.target.join("book-src"), workspace.target.join("book"));
    let links = stage::write(&workspace.root, &source)?;
    let mut mdbook = MDBOOK.require(workspace)?;
    step(&format!("Building the book; {links} links are valid"));
    workspace::run(mdbook.arg("build").arg(&source).arg("--dest-dir").arg(&book))?;
    Ok(book)
}

/// Every Markdown file of the repository, by its path.
#[cfg(test)]
pub(crate) fn pages(root: &std::path::Path) -> anyhow::Result<std::collections::BTreeMap<PathBuf, String>> {
    stage::documents(root)
}
