//! `cargo xtask docs`: checks the links of the documentation and builds it as a book.
//!
//! The pages of `docs/`, the pages in the repository's root and the READMEs that they link to are staged in
//! `target/book-src/`, in the layout of the repository. Therefore, links between pages are also valid in the book. If a
//! page links to a source file, the file is copied into the book; a link to a directory becomes text. A link to a file
//! or heading that does not exist is an error.

mod links;
mod stage;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::tools::Tool;
use crate::workspace::{self, Workspace, step};

const MDBOOK: Tool = Tool { name: "mdbook", version: "0.5.4" };

/// Options of the documentation build.
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

/// Returns every Markdown file of the repository, by path.
#[cfg(test)]
pub(crate) fn pages(root: &std::path::Path) -> anyhow::Result<std::collections::BTreeMap<PathBuf, String>> {
    stage::documents(root)
}
