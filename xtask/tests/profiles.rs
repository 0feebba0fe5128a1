//! Checks the profiles in Cargo.toml. The tests read text only.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns the lines of a profile in Cargo.toml.
fn profile<'a>(manifest: &'a str, name: &str) -> Vec<&'a str> {
    let heading = format!("[profile.{name}]");
    let lines = manifest.lines().skip_while(|line| *line != heading).skip(1);
    lines.take_while(|line| !line.starts_with('[')).collect()
}

/// The daemon and the launcher abort on a panic. In a container's cloned init, unwinding would continue in the code of
/// the shim, as the container's first process.
#[test]
fn a_panic_ends_daemon_and_launcher() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    assert!(profile(&manifest, "release").contains(&"panic = \"abort\""));
    assert!(profile(&manifest, "quick").contains(&"inherits = \"release\""));
    let settings = manifest.lines().filter(|line| line.starts_with("panic ="));
    assert_eq!(settings.count(), 1, "no other profile changes it");
    assert!(profile(&manifest, "nothing").is_empty(), "control failed: a missing profile has lines");
    // In debug builds, panics can unwind, so that programs and tests share their dependencies. There, the panic hook
    // aborts.
    for program in ["executor/launcher/src/main.rs", "executor/daemon/src/program.rs"] {
        let main = fs::read_to_string(root().join(program)).expect("a source");
        let statements = main.split("fn main() -> ExitCode {").nth(1).expect("fn main").lines();
        let first = statements.map(str::trim).find(|line| !line.is_empty() && !line.starts_with("//"));
        assert!(first.is_some_and(|line| line.ends_with("startup::abort_on_panic();")), "{program}: {first:?}");
    }
}

/// The crates that overwrite secrets are optimized for the tests, because an optimizer might remove a wipe.
#[test]
fn wiping_crates_are_optimized_for_tests() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    for name in ["executor-secrets", "executor-sys"] {
        assert!(profile(&manifest, &format!("dev.package.{name}")).contains(&"opt-level = 2"), "{name}");
    }
}
