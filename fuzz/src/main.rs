//! Entry point of a target for LLVM's libFuzzer, which has `main` and calls this with bytes.
//!
//! `cargo xtask fuzz` builds this with the instrumentation that the engine needs, and names the target in
//! `EXECUTOR_FUZZ_TARGET`, because the arguments are libFuzzer's.

#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fn chosen() -> fn(&[u8]) {
    let name = std::env::var("EXECUTOR_FUZZ_TARGET").unwrap_or_default();
    executor_fuzz::target(&name).unwrap_or_else(|| {
        let known: Vec<&str> = executor_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
        eprintln!("EXECUTOR_FUZZ_TARGET is {name:?}; there are {}", known.join(", "));
        std::process::exit(2)
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET.get_or_init(chosen)(data));
