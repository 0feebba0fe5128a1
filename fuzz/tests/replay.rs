//! Runs every stored input through its target, without the engine. Checks that findings stay fixed, and that the corpus
//! is small enough for the repository.

use std::fs;
use std::path::{Path, PathBuf};

use executor_fuzz::TARGETS;

/// Maximum number of files of a target's corpus, and maximum size of a file, in bytes.
const FILES_MAX: usize = 64;
const BYTES_MAX: usize = 4096;

fn inputs(kind: &str, target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target);
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_file()).map(|path| (path.clone(), fs::read(path).unwrap_or_default())).collect()
}

#[test]
fn every_stored_input_passes() {
    for (target, run) in TARGETS {
        let corpus = inputs("corpus", target);
        assert!(!corpus.is_empty() && corpus.len() <= FILES_MAX, "{target} has {} inputs", corpus.len());
        for (path, input) in corpus.iter().chain(&inputs("regressions", target)) {
            assert!(input.len() <= BYTES_MAX, "{} has {} bytes", path.display(), input.len());
            eprintln!("{}", path.display()); // shown if the test fails: a panic below does not name the file
            run(input);
            // Truncated inputs must pass, too.
            for end in [0, 1, input.len() / 2, input.len().saturating_sub(1)] {
                run(&input[..end]);
            }
        }
    }
}

/// The list of targets in `cargo xtask fuzz` contains every target. xtask is built before the product, so it has its
/// own list of names.
#[test]
fn every_target_is_run() {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/src/fuzz.rs");
    let xtask = fs::read_to_string(xtask).unwrap_or_default();
    let (_, list) = xtask.split_once("const TARGETS").unwrap_or_default();
    let (list, _) = list.split_once("];").unwrap_or_default();
    for (name, run) in TARGETS {
        assert!(executor_fuzz::target(name).is_some_and(|found| std::ptr::fn_addr_eq(found, run)));
        assert!(list.contains(&format!("\"{name}\"")), "{name} is not in {list}");
    }
    assert!(executor_fuzz::target("nothing").is_none());
}
