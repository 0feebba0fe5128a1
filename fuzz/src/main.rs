//! Entry point of a target. LLVM's libFuzzer has the `main` function and calls this entry point with input bytes.
//!
//! `cargo xtask fuzz` builds this program with the instrumentation that libFuzzer needs. The variable
//! `EXECUTOR_FUZZ_TARGET` names the target, because libFuzzer parses the command line.

#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fn chosen() -> fn(&[u8]) {
    let name = std::env::var("EXECUTOR_FUZZ_TARGET").unwrap_or_default();
    executor_fuzz::target(&name).unwrap_or_else(|| {
        let known: Vec<&str> = executor_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("EXECUTOR_FUZZ_TARGET is {name:?}; use one of {}", known.join(", "));
        std::process::exit(2)
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET.get_or_init(chosen)(data));
