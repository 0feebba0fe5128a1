//! `cargo xtask sanitize`: runs the tests of unsafe code and of decoders with LLVM's AddressSanitizer, on a stable
//! toolchain.
//!
//! `-Zsanitizer` of a nightly compiler does two things: it sets on each function the attribute that requests the
//! instrumentation, and it links the runtime. Here, LLVM's own passes `forceattrs` and `asan` set the attribute and
//! instrument; any rustc can run them. The runtime is gcc's, which has the same interface version. The standard library
//! is not instrumented, but it uses the runtime's allocator, and the runtime checks its memory copies.
//!
//! First, a program with deliberate memory errors is built in the same way. If its errors were not reported, other
//! errors would not be reported either.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail, ensure};

use crate::needs;
use crate::workspace::{self, Workspace, step};

/// Packages with unsafe code, and packages that decode untrusted bytes: `executor-fuzz` replays every stored input.
const PACKAGES: [&str; 6] =
    ["executor-sys", "executor-secrets", "executor-core", "executor-tar", "executor-layers", "executor-fuzz"];
/// Tests that deliberately do something that the runtime reports as an error, or that need something that the runtime
/// does not support.
const NOT_RUN: [(&str, &str); 3] = [
    ("freed_memory_is_zeroed", "reads freed memory, to check that it was overwritten"),
    (
        "scrub_stack_overwrites_earlier_frames",
        "inspects the stack below its frame, where the runtime does not put frames",
    ),
    ("memory_is_locked_on_fault_if_permitted", "locks all memory, and the runtime's shadow is terabytes"),
];
/// Compiler flags for the instrumentation.
const FLAGS: [&str; 5] = [
    "-Cpasses=forceattrs",
    "-Cllvm-args=-force-attribute=sanitize_address",
    "-Cpasses=asan",
    // The passes of link-time optimization would not support the added instrumentation.
    "-Clto=off",
    "-Cforce-frame-pointers=yes",
];
/// Runtime options. Leaks are not reported. Stack frames of returned functions are kept, so that pointers into them are
/// reported.
const RUNTIME: &str = "detect_leaks=0:detect_stack_use_after_return=1:abort_on_error=0";
/// AddressSanitizer's name for each deliberate error, indexed by the program's argument.
const FAULTS: [&str; 4] =
    ["heap-buffer-overflow", "heap-use-after-free", "stack-buffer-overflow", "global-buffer-overflow"];
const FAULTY: &str = r#"
static TABLE: [u8; 64] = [1; 64];

fn main() {
    let fault: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    let beyond = std::hint::black_box(70_usize);
    let heap = vec![1_u8; 64];
    let stack = std::hint::black_box([1_u8; 64]);
    let value = match fault {
        0 => unsafe { heap.as_ptr().add(beyond).read() },
        1 => {
            let at = heap.as_ptr();
            drop(heap);
            unsafe { at.read() }
        }
        2 => unsafe { stack.as_ptr().add(beyond).read() },
        3 => unsafe { TABLE.as_ptr().add(beyond).read() },
        _ => 1,
    };
    println!("{}", std::hint::black_box(value));
}
"#;

/// The tests to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only tests whose name contains this text
    #[arg(value_name = "TEXT")]
    filter: Option<String>,
}

/// Builds and runs the tests. Fails if a test fails or the runtime reports an error.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    needs::require(&needs::BUILD)?;
    needs::require(&needs::SANITIZE)?;
    let flags = flags()?;
    control(workspace, &flags)?;
    step("Running the tests with AddressSanitizer");
    let mut cargo = workspace.cargo(["test", "--locked", "--no-fail-fast"]);
    cargo.args(PACKAGES.iter().flat_map(|package| ["-p", package]));
    // With an explicit target, the flags do not apply to build scripts and macros.
    cargo.arg(format!("--target={}", workspace.host)).arg("--target-dir").arg(target_dir(workspace));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env("ASAN_OPTIONS", RUNTIME);
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only"); // reports contain line numbers
    cargo.args(&options.filter).arg("--");
    for (test, why) in NOT_RUN {
        eprintln!("  not run: {test}: {why}");
        cargo.args(["--skip", test]);
    }
    let passed = cargo.status()?.success();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn target_dir(workspace: &Workspace) -> PathBuf {
    workspace.target.join("sanitize-build")
}

/// Returns the flags, including the path of the runtime, which gcc reports.
fn flags() -> anyhow::Result<Vec<String>> {
    let path = workspace::output(Command::new("cc").arg("-print-file-name=libasan.a"))?;
    let path = path.trim();
    ensure!(path.starts_with('/'), "gcc has no libasan.a: install the Debian package libgcc-*-dev");
    let link = ["-Wl,--whole-archive", path, "-Wl,--no-whole-archive", "-lstdc++", "-lm"];
    let link = link.iter().map(|argument| format!("-Clink-arg={argument}"));
    Ok(FLAGS.iter().map(|flag| (*flag).to_owned()).chain(link).collect())
}

/// Checks the control: each deliberate error is reported by its name, and the same program without an error succeeds.
fn control(workspace: &Workspace, flags: &[String]) -> anyhow::Result<()> {
    step("Checking that faults are reported");
    let dir = target_dir(workspace);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let (source, program) = (dir.join("faulty.rs"), dir.join("faulty"));
    fs::write(&source, FAULTY).with_context(|| format!("cannot write {}", source.display()))?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut build = Command::new(rustc);
    build.args(["--edition=2024", "--target", &workspace.host]).args(flags).arg(&source).arg("-o").arg(&program);
    workspace::run(&mut build)?;
    let reported = |fault: &str| -> anyhow::Result<(bool, String)> {
        let mut command = Command::new(&program);
        let output = command.arg(fault).env("ASAN_OPTIONS", RUNTIME).stdin(Stdio::null()).output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    for (number, name) in FAULTS.iter().enumerate() {
        let (passed, errors) = reported(&number.to_string())?;
        if passed || !errors.contains(name) {
            bail!("control failed: the sanitizer does not report a deliberate {name}: {errors}");
        }
    }
    let (passed, errors) = reported("none")?;
    ensure!(passed, "control failed: the program without a fault failed: {errors}");
    Ok(())
}
