//! Formats the result of an audit, for people and for scripts.

use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity::bytes;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_residue::Hit;
use serde::Serialize;

use super::findings::{Findings, Row, Seen};
use super::inputs::Kind;

/// Maximum number of hits that the text for people lists individually.
const REPORTED: usize = 20;

fn heading(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "FILE",
        Kind::OldFile => "OLD",
        Kind::NewFile => "NEW",
        Kind::SecretVariable => "S-ENV",
        Kind::SecretArgument => "S-ARG",
        Kind::Variable => "ENV",
        Kind::Argument => "ARG",
        Kind::Token => "TOKEN",
    }
}

/// Returns the kind's name for people.
fn words(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "a secret file",
        Kind::OldFile => "a secret file before its rotation",
        Kind::NewFile => "a secret file after its rotation",
        Kind::SecretVariable => "a secret variable",
        Kind::SecretArgument => "a secret argument",
        Kind::Variable => "a plain variable",
        Kind::Argument => "a plain argument",
        Kind::Token => "the runtime token",
    }
}

fn place(row: Row) -> &'static str {
    match row {
        Row::Container => "the container",
        Row::Executord => "executord",
        Row::Launcher => "launcher",
        Row::Shim => "shims",
        Row::RunDir => "run directory",
        Row::StateDir => "state directory",
        Row::Logs => "logs",
        Row::Environ => "environ",
        Row::CommandLine => "cmdline",
        Row::MountTable => "mountinfo",
        Row::Journal => "journal",
        Row::Kernel => "kernel memory",
    }
}

fn mark(seen: Option<Seen>) -> (String, Role) {
    let (text, role) = match seen {
        None => ("?", Role::Faint),
        Some(Seen { after: true, .. }) => ("LEFT", Role::Bad),
        Some(Seen { astray: true, .. }) => ("RAN", Role::Bad),
        Some(Seen { while_running: true, .. }) => ("ran", Role::Plain),
        Some(_) => ("-", Role::Faint),
    };
    (text.to_owned(), role)
}

/// Formats the table, an explanation of the result, and the size of the search.
pub(crate) fn human(findings: &Findings, about: &About, style: Style) -> String {
    let mut text = format!(
        "{} bytes of random text in every kind of input of the container {}, run by executord {} at {}\n\n",
        about.size,
        about.id,
        plain(&about.version),
        about.socket
    );
    let headings: Vec<&str> = std::iter::once("PLACE").chain(Kind::ALL.map(heading)).collect();
    let mut table = Table::with_heading(2, &headings);
    for row in Row::ALL {
        let cells = Kind::ALL.map(|kind| mark(findings.seen(kind, row)));
        table.row(std::iter::once((place(row).to_owned(), Role::Plain)).chain(cells));
    }
    text += &table.render(style);
    text += "\n  ran    found during the run, where expected    -   not found\n  \
             RAN    found during the run, where forbidden   ?   not searched, or no input\n  \
             LEFT   found one second after the exit\n\n";
    let mut list = |title: &str, hits: &[Hit]| {
        if !hits.is_empty() {
            text += &format!("{}\n", style.paint(Role::Bad, title));
            hits.iter().take(REPORTED).for_each(|hit| text += &format!("  {}\n", plain(&hit.to_string())));
            if hits.len() > REPORTED {
                text += &format!("  and {} more; --json lists all\n", hits.len() - REPORTED);
            }
        }
    };
    list("Left after the exit:", &findings.left);
    list("Found during the run, where forbidden:", &findings.astray);
    for kind in Kind::ALL.into_iter().filter(|kind| !findings.kinds.contains(kind)) {
        text += &format!("Not offered by this daemon: {}\n", words(kind));
    }
    for kind in &findings.unproven {
        text += &format!("Not found in the container itself, so the search proves nothing for: {}\n", words(*kind));
    }
    text += &statement(findings);
    let (verdict, role) = match findings.is_clean() {
        true => ("Nothing is left.", Role::Good),
        false if !findings.left.is_empty() => ("A canary is left.", Role::Bad),
        false if !findings.astray.is_empty() => {
            ("Nothing is left, but a canary was found where it must not be.", Role::Bad)
        }
        false => ("Nothing is left, but the search was incomplete, or is not proven to work.", Role::Bad),
    };
    text + &style.paint(role, verdict) + "\n"
}

fn statement(findings: &Findings) -> String {
    let searched = findings.searched;
    let mut text = format!(
        "Searched one second after the exit: {} processes, {} files, {}",
        searched.processes,
        searched.files,
        bytes(searched.bytes)
    );
    if searched.kernel_bytes > 0 {
        text += &format!(", and {} of the machine's memory", bytes(searched.kernel_bytes));
    }
    text += "; any 31 bytes of a canary are a match, as text, base64 or hexadecimal.\n";
    for one in &findings.unsearched {
        text += &format!("Not searched: {} ({})\n", plain(&one.what), plain(&one.why));
    }
    if findings.seen(Kind::File, Row::Journal).is_none()
        && findings.unsearched.iter().all(|one| one.what != "the journal")
    {
        text += "Not searched: the journal (--journal)\n";
    }
    if searched.kernel_bytes == 0 && findings.unsearched.iter().all(|one| one.what != "kernel memory") {
        text += "Not searched: memory that no process owns any more (--kernel-memory)\n";
    }
    text
}

/// Subject of an audit: container, executord and size of the canaries.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct About {
    pub(crate) id: String,
    pub(crate) version: String,
    pub(crate) socket: String,
    #[serde(rename = "size_bytes")]
    pub(crate) size: u64,
}

/// The document of `--json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Json {
    clean: bool,
    #[serde(flatten)]
    about: About,
    kinds: Vec<JsonKind>,
    left: Vec<JsonHit>,
    astray: Vec<JsonHit>,
    searched: JsonSearched,
    not_searched: Vec<JsonUnsearched>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonKind {
    kind: &'static str,
    offered: bool,
    /// True if the input was found in the container itself.
    proven: bool,
    places: Vec<JsonPlace>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonPlace {
    place: &'static str,
    while_running: bool,
    astray: bool,
    after: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonHit {
    kind: String,
    place: String,
    bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonSearched {
    processes: u64,
    files: u64,
    size_bytes: u64,
    kernel_memory_bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct JsonUnsearched {
    what: String,
    why: String,
}

impl Json {
    pub(crate) fn new(findings: &Findings, about: About) -> Self {
        let hits = |hits: &[Hit]| {
            let hit = |hit: &Hit| JsonHit {
                kind: hit.label.clone(),
                place: hit.place.to_string(),
                bytes: hit.windows * executor_residue::WINDOW as u64,
            };
            hits.iter().map(hit).collect()
        };
        let kind = |kind: Kind| JsonKind {
            kind: kind.name(),
            offered: findings.kinds.contains(&kind),
            proven: findings.kinds.contains(&kind) && !findings.unproven.contains(&kind),
            places: Row::ALL
                .into_iter()
                .filter_map(|row| {
                    let Seen { while_running, astray, after } = findings.seen(kind, row)?;
                    Some(JsonPlace { place: row.name(), while_running, astray, after })
                })
                .collect(),
        };
        Self {
            clean: findings.is_clean(),
            about,
            kinds: Kind::ALL.map(kind).into(),
            left: hits(&findings.left),
            astray: hits(&findings.astray),
            searched: JsonSearched {
                processes: findings.searched.processes,
                files: findings.searched.files,
                size_bytes: findings.searched.bytes,
                kernel_memory_bytes: findings.searched.kernel_bytes,
            },
            not_searched: findings
                .unsearched
                .iter()
                .map(|one| JsonUnsearched { what: one.what.clone(), why: one.why.clone() })
                .collect(),
        }
    }
}
