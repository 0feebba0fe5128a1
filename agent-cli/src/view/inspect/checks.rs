//! Formats the health checks of a container for `inspect`.

use std::time::SystemTime;

use executor_cli_kit::view::quantity::{age, wire_span};
use executor_cli_kit::view::style::Role;
use executor_cli_kit::view::table::Table;
use executor_client::v1::{Check, CheckPurpose, Container, check::Kind};

/// Formats one line per check. The table is empty if there are no checks.
pub(super) fn table(container: &Container, now: SystemTime) -> Table {
    let Some(checks) = container.spec.as_ref().and_then(|spec| spec.checks.as_ref()) else { return Table::bare(2) };
    let heading = ["PURPOSE", "CHECK", "EVERY", "STATE", "SUCCESSES", "FAILURES", "LAST FAILURE"];
    let mut table = Table::with_heading(2, &heading);
    let lists = [
        (CheckPurpose::Startup, "startup", &checks.startup),
        (CheckPurpose::Liveness, "liveness", &checks.liveness),
        (CheckPurpose::Readiness, "readiness", &checks.readiness),
    ];
    for (purpose, name, list) in lists {
        for (index, check) in (0..).zip(list) {
            let mut statuses = container.check_statuses.iter();
            let status = statuses.find(|status| status.purpose() == purpose && status.index == index);
            let status = status.cloned().unwrap_or_default();
            let state = match (status.checked_at, status.passing) {
                (None, _) => ("-", Role::Faint),
                (Some(_), true) => ("passing", Role::Good),
                (Some(_), false) => ("not passing", Role::Bad),
            };
            let failure = match &*status.last_failure {
                "" => "-".to_owned(),
                why => format!("{why} ({} ago)", age(status.last_failure_at.as_ref(), now)),
            };
            table.row([
                (name.to_owned(), Role::Plain),
                (what(check), Role::Plain),
                (check.interval.map_or_else(|| "30 s, 2 s".into(), wire_span), Role::Plain),
                (state.0.to_owned(), state.1),
                (status.successes.to_string(), Role::Plain),
                (status.failures.to_string(), Role::Plain),
                (failure, Role::Plain),
            ]);
        }
    }
    table
}

/// Formats a check with the syntax of `run`.
fn what(check: &Check) -> String {
    match &check.kind {
        None => "-".into(),
        Some(Kind::Http(http)) => format!("http:{}{}", http.port, http.path),
        Some(Kind::Tcp(tcp)) => format!("tcp:{}", tcp.port),
        Some(Kind::Exec(exec)) => match &exec.args[..] {
            [flag, command] if exec.path == "/bin/sh" && flag == "-c" => format!("exec:{command}"),
            args => format!("exec:{}", [std::slice::from_ref(&exec.path), args].concat().join(" ")),
        },
    }
}
