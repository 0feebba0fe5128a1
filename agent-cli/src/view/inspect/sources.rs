//! Formats inputs that were given by reference.

use std::time::SystemTime;

use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity::age;
use executor_cli_kit::view::style::Role;
use executor_cli_kit::view::table::Table;
use executor_client::v1::SecretSource;
use executor_client::v1::secret_source::Target;

/// Formats the name of a reference: `vault:kv/db#password@3`.
pub(crate) fn name(source: &SecretSource) -> String {
    let reference = source.reference.clone().unwrap_or_default();
    let part = |mark: char, text: &str| if text.is_empty() { String::new() } else { format!("{mark}{text}") };
    let (key, version) = (part('#', &reference.key), part('@', &reference.version));
    format!("{}:{}{key}{version}", reference.provider, reference.path)
}

/// Formats the input: a path, a variable or an argument.
pub(crate) fn input(source: &SecretSource) -> String {
    let input = match &source.target {
        Some(Target::File(path)) => path.clone(),
        Some(Target::Variable(name)) => format!("variable {name}"),
        Some(Target::Argument(index)) => format!("argument {index}"),
        None => "-".to_owned(),
    };
    if source.action.is_empty() { input } else { format!("{input} of {}", source.action) }
}

pub(super) fn table(sources: &[SecretSource], now: SystemTime) -> Table {
    let mut table = Table::with_heading(2, &["INPUT", "REFERENCE", "VERSION", "FETCHED", "STATE"]);
    for source in sources {
        let version = if source.version.is_empty() { "-" } else { &source.version };
        let state = match (source.stale, source.followed) {
            (true, _) => {
                let since = age(source.stale_since.as_ref(), now);
                (format!("STALE for {since}: {}", plain(&source.problem)), Role::Attention)
            }
            (false, true) => ("followed".to_owned(), Role::Good),
            (false, false) => ("fetched once".to_owned(), Role::Plain),
        };
        table.row([
            (plain(&input(source)), Role::Plain),
            (plain(&name(source)), Role::Plain),
            (plain(version), Role::Plain),
            (format!("{} ago", age(Some(&source.fetched_at.unwrap_or_default()), now)), Role::Plain),
            state,
        ]);
    }
    table
}
