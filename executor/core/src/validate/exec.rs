//! Validates processes to be executed in a running container, with the rules for the container's own processes.

use super::ViolationReason::{InvalidCharacter, InvalidFormat, NotAllowed, OutOfRange, TooLong};
use super::{DraftStep, Policy, Report, Violation, parse_user, process, shorten};
use crate::limits::PATH_MAX;
use crate::plan::UserRef;

/// Maximum number of rows or columns of a terminal.
pub const WINDOW_MAX: u32 = 65_535;

/// A request to execute a process, borrowed.
#[derive(Default)]
pub struct ExecDraft<'a> {
    /// Path or name of the program.
    pub path: &'a str,
    /// Arguments, without the program's name.
    pub args: Vec<&'a str>,
    /// Environment variables as names and values.
    pub env: Vec<(&'a str, &'a [u8])>,
    /// Working directory; the container's own if empty.
    pub dir: &'a str,
    /// User as `user[:group]`; the container's own user if empty.
    pub user: &'a str,
    /// Rows and columns of the terminal.
    pub window: (u32, u32),
}

/// Validates a request to execute a process.
///
/// # Errors
/// Returns all violations if the request is invalid.
pub fn validate_exec(draft: &ExecDraft<'_>, policy: &Policy) -> Result<(), Vec<Violation>> {
    let ExecDraft { path, args, env, dir, user, window } = draft;
    let process = DraftStep {
        field: "start".to_owned(),
        path,
        args: args.clone(),
        env: env.clone(),
        dir,
        ..DraftStep::default()
    };
    let mut report = Report::default();
    process::check(&process, &[], &mut report);
    let mut violations = report.0;
    violations.extend(exec_user(user, policy).err());
    violations.extend(check_window("start.window", *window).err().unwrap_or_default());
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Returns the rows and columns of a terminal's window; 0 means the default.
///
/// # Errors
/// Returns a violation for each side above [`WINDOW_MAX`].
pub(super) fn check_window(field: &str, (rows, columns): (u32, u32)) -> Result<(u16, u16), Vec<Violation>> {
    let side = |name: &str, side: u32| {
        u16::try_from(side).map_err(|_| {
            Violation::new(
                format!("{field}.{name}"),
                OutOfRange.because(format!("is {side}; at most {WINDOW_MAX} is allowed")),
            )
        })
    };
    match (side("rows", rows), side("columns", columns)) {
        (Ok(rows), Ok(columns)) => Ok((rows, columns)),
        (rows, columns) => Err(rows.err().into_iter().chain(columns.err()).collect()),
    }
}

/// Validates a path that files are copied from or to. Copying is as powerful as executing a process, so one policy key
/// allows both.
///
/// # Errors
/// Returns all violations if the path is invalid or the policy forbids copies.
pub fn validate_archive(field: &str, path: &str, policy: &Policy) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    if !policy.allow_exec {
        let why =
            "copying out of and into running containers is not allowed by this daemon's configuration (allow_exec)";
        violations.push(Violation::new(field, NotAllowed.because(why)));
    }
    if path.len() >= PATH_MAX {
        let why = format!("is {} bytes; the maximum is {}", path.len(), PATH_MAX - 1);
        violations.push(Violation::new(field, TooLong.because(why)));
    }
    if !path.starts_with('/') {
        violations.push(Violation::new(field, InvalidFormat.because(format!("`{}` is not absolute", shorten(path)))));
    }
    if path.contains('\0') {
        violations.push(Violation::new(field, InvalidCharacter.because("contains NUL")));
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Parses the user of a process to be executed, and checks that the policy allows exec. The launcher checks this again,
/// independently of the daemon. Returns `None` for the container's own user.
///
/// # Errors
/// Returns a violation if the user is invalid or exec is not allowed.
pub fn exec_user(user: &str, policy: &Policy) -> Result<Option<UserRef>, Violation> {
    if !policy.allow_exec {
        let why = "exec is not allowed by this daemon's configuration (allow_exec)";
        return Err(Violation::new("start", NotAllowed.because(why)));
    }
    if user.is_empty() {
        return Ok(None);
    }
    parse_user(user).map(Some).map_err(|why| Violation::new("start.user", why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Draft, recheck, validate};

    #[test]
    fn run_window_requires_terminal_and_bounds() {
        let fields = |window, terminal| {
            let draft = Draft { id: "c1", path: "/bin/app", window, terminal, ..Draft::default() };
            let violations = validate(&draft, &Policy::default()).err().unwrap_or_default();
            violations.into_iter().map(|violation| violation.field).collect::<Vec<_>>()
        };
        assert!(fields((31, 117), true).is_empty() && fields((0, 0), false).is_empty());
        assert_eq!(fields((31, 117), false), ["window"]);
        assert_eq!(fields((65_536, 70_000), true), ["window.rows", "window.columns"]);
        let draft = Draft { id: "c1", path: "/a", window: (31, 0), terminal: true, ..Draft::default() };
        let plan = validate(&draft, &Policy::default()).unwrap();
        assert_eq!(plan.window, (31, 0));
        assert!(recheck(&plan, &Policy::default()).is_ok());
    }

    #[test]
    fn every_violation_under_its_own_name() {
        let bad = ExecDraft {
            path: "",
            args: vec!["a\0b"],
            env: vec![("A=", b"x"), ("B", b"1"), ("B", b"2")],
            dir: "relative",
            user: "a/b",
            window: (70_000, 80),
        };
        let reported = validate_exec(&bad, &Policy::default()).unwrap_err();
        let fields: Vec<&str> = reported.iter().map(|violation| &*violation.field).collect();
        let expected = [
            "start.path",
            "start.dir",
            "start.args[0]",
            "start.env[0].name",
            "start.env[2].name",
            "start.user",
            "start.window.rows",
        ];
        assert_eq!(fields, expected);
        let good =
            ExecDraft { path: "sh", args: vec!["-c", ""], user: "1:2", window: (24, 80), ..ExecDraft::default() };
        assert!(validate_exec(&good, &Policy::default()).is_ok());
    }

    #[test]
    fn exec_requires_allow_exec() {
        let policy = Policy { allow_exec: false, ..Policy::default() };
        assert!(exec_user("", &policy).is_err() && exec_user("0", &policy).is_err());
        assert_eq!(exec_user("", &Policy::default()), Ok(None));
    }
}
