//! On a machine without cargo-deny, `cargo xtask deny` prints a message and builds a pinned version once. With
//! `--if-installed`, the command skips the check instead.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// A cargo without the command `deny`. It records the arguments of `install`, and installs a program that records its
/// own arguments. All other commands are passed to the real cargo.
const CARGO: &str = r#"#!/bin/sh
case $1 in
deny) exit 101 ;;
install)
    echo "$*" >>"$NOTES"
    while [ "$1" != --root ]; do shift; done
    mkdir -p "$2/bin"
    printf '#!/bin/sh\n[ "$1" != --version ] || { echo cargo-deny 0.20.2; exit; }\necho "deny $*" >>"$NOTES"\n' >"$2/bin/cargo-deny"
    chmod 755 "$2/bin/cargo-deny" ;;
*) exec "$REAL_CARGO" "$@" ;;
esac
"#;

fn deny(dir: &Path, arguments: &[&str]) -> (Output, String) {
    let (cargo, notes) = (dir.join("cargo"), dir.join("notes"));
    if !cargo.exists() {
        fs::write(&cargo, CARGO).expect("write");
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("deny").args(arguments).env("CARGO", &cargo).env("REAL_CARGO", env!("CARGO")).env("NOTES", &notes);
    let output = command.env("CARGO_TARGET_DIR", dir.join("target")).output().expect("xtask");
    (output, fs::read_to_string(&notes).unwrap_or_default())
}

#[test]
fn missing_cargo_deny_is_built_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let (left_out, notes) = deny(dir.path(), &["--offline", "--if-installed"]);
    assert!(left_out.status.success() && said(&left_out).contains("skipped"), "{left_out:?}");
    assert_eq!(notes, "");

    let (built, notes) = deny(dir.path(), &["--offline"]);
    assert!(built.status.success() && said(&built).contains("Building cargo-deny 0.20.2"), "{built:?}");
    assert!(notes.starts_with("install --locked --force cargo-deny --version =0.20.2 --root "), "{notes}");
    assert!(notes.ends_with("deny --workspace check licenses bans sources\n"), "{notes}");

    let (again, notes) = deny(dir.path(), &["--if-installed"]);
    assert!(again.status.success() && !said(&again).contains("Building"), "{again:?}");
    assert!(notes.ends_with("deny --workspace check licenses bans sources advisories\n"), "{notes}");
    assert_eq!(notes.matches("install").count(), 1, "{notes}");
}
