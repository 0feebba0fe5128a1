//! Checks the profiles in Cargo.toml and in `xtask/tested.toml`. The tests read text only.

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
    assert!(profile(&manifest, "dist").contains(&"inherits = \"release\""));
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

/// Each crate of executord and the launcher is optimized for the tests, because an optimizer might remove a wipe.
#[test]
fn crates_of_daemons_are_optimized_for_tests() {
    let settings = fs::read_to_string(root().join("xtask/tested.toml")).expect("tested.toml");
    let manifests =
        fs::read_dir(root().join("executor")).expect("executor/").map(|entry| entry.expect("an entry").path());
    let mut names: Vec<String> = Vec::new();
    for manifest in manifests.chain([root().join("proto")]) {
        let manifest = fs::read_to_string(manifest.join("Cargo.toml")).expect("Cargo.toml");
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).expect("a name");
        names.push(name.trim_matches('"').to_owned());
    }
    assert!(names.len() > 10 && names.iter().any(|name| name == "executor-launcher"), "{names:?}");
    // Cargo.toml optimizes the search for residue.
    let is_missing = |name: &&String| {
        **name != "executor-residue" && !settings.contains(&format!("[profile.dev.package.{name}]\nopt-level = "))
    };
    let missing: Vec<&String> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "xtask/tested.toml does not optimize {missing:?}");
}
