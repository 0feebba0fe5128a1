//! Records the whole machine with `perf` during a part, with call chains, and writes text reports of the recording.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::run::program;

/// Samples per second on each CPU. The number is not a divisor of the kernel's tick rate.
const FREQUENCY: &str = "997";
/// Timeout of perf's start and exit.
const PERF_TIMEOUT: Duration = Duration::from_secs(60);
/// Text reports of each recording, with their sort keys.
const TEXTS: [(&str, &str); 2] = [("by-process", "comm"), ("by-symbol", "comm,dso,symbol")];

/// Records parts into a directory. Does nothing if no directory is given.
pub(crate) struct Profiler(Option<(PathBuf, PathBuf)>);

/// A running recording. [`Recording::end`] stops it and writes text reports. Dropping it stops perf without text
/// reports.
pub(crate) struct Recording(Option<(Perf, PathBuf)>);

struct Perf {
    program: PathBuf,
    child: Child,
}

impl Profiler {
    /// Creates the directory if one is given and perf is installed.
    pub(crate) fn new(directory: Option<&Path>) -> anyhow::Result<Self> {
        let Some(directory) = directory else { return Ok(Self(None)) };
        let Some(perf) = program("perf") else {
            eprintln!("executor-bench: --profile: perf is not installed (Debian: linux-perf); nothing is recorded");
            return Ok(Self(None));
        };
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        Ok(Self(Some((perf, directory.to_owned()))))
    }

    /// Returns true if parts are recorded. Recording costs CPU time.
    pub(crate) fn records(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) async fn start(&self, part: &str) -> anyhow::Result<Recording> {
        let Some((program, directory)) = &self.0 else { return Ok(Recording(None)) };
        let data = directory.join(format!("{part}.data"));
        if data.exists() {
            std::fs::remove_file(&data).with_context(|| data.display().to_string())?;
        }
        let log = File::create(directory.join(format!("{part}.log")))?;
        let child = Command::new(program)
            .args(["record", "-a", "-g", "-F", FREQUENCY, "-o"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start perf")?;
        let mut perf = Perf { program: program.clone(), child };
        let start = Instant::now();
        while std::fs::metadata(&data).map_or(0, |found| found.len()) == 0 {
            if let Some(status) = perf.child.try_wait()? {
                bail!("perf record exited ({status}): see {}", directory.join(format!("{part}.log")).display());
            }
            ensure!(start.elapsed() < PERF_TIMEOUT, "perf wrote no data to {} within {PERF_TIMEOUT:?}", data.display());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Recording(Some((perf, data))))
    }
}

impl Recording {
    /// Stops the recording and writes its text reports next to it.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        let Some((mut perf, data)) = self.0.take() else { return Ok(()) };
        perf.stop()?;
        for (kind, keys) in TEXTS {
            let text = data.with_extension(format!("{kind}.txt"));
            let status = Command::new(&perf.program)
                .args(["report", "--stdio", "--no-children", "-g", "none", "--percent-limit", "0.05", "--sort", keys])
                .arg("-i")
                .arg(&data)
                .stdin(Stdio::null())
                .stdout(File::create(&text)?)
                .stderr(Stdio::null())
                .status()?;
            ensure!(status.success(), "perf report of {} failed: {status}", data.display());
        }
        println!("\nperf: {}, {}", data.display(), TEXTS.map(|(kind, _)| format!("{kind}.txt")).join(" and "));
        Ok(())
    }
}

impl Perf {
    /// Stops perf with SIGINT, after which perf completes its file.
    fn stop(&mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::INT)?;
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(start.elapsed() < PERF_TIMEOUT, "perf did not exit within {PERF_TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Best effort: this recording is not used.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
