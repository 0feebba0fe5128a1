//! What Cargo.toml must say of the builds that run: text alone, nothing is built.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// A profile of Cargo.toml: its lines.
fn profile<'a>(manifest: &'a str, name: &str) -> Vec<&'a str> {
    let heading = format!("[profile.{name}]");
    let lines = manifest.lines().skip_while(|line| *line != heading).skip(1);
    lines.take_while(|line| !line.starts_with('[')).collect()
}

/// A panic in a container's created init that unwinds goes on in the shim's code, as the container's first process.
#[test]
fn a_panic_ends_the_process_in_every_build_that_runs() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    for name in ["dev", "release"] {
        assert!(profile(&manifest, name).contains(&"panic = \"abort\""), "{name}");
    }
    for line in manifest.lines().filter(|line| line.starts_with("inherits")) {
        assert!(["inherits = \"release\"", "inherits = \"dev\""].contains(&line), "{line}");
    }
    assert_eq!(manifest.matches("panic = ").count(), 2, "and no other profile says otherwise");
    assert!(profile(&manifest, "nothing").is_empty(), "the control: a profile that is not there says nothing");
    // And whoever builds it with flags of their own is stopped by the compiler.
    let launcher = fs::read_to_string(root().join("executor/launcher/src/main.rs")).expect("main.rs");
    assert!(launcher.contains("#[cfg(not(any(test, doc, panic = \"abort\")))]\ncompile_error!("));
}
