//! Runs each part in its own process, and cleans up after a process that fails.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::host;
use serde_json::{Value, json};

use crate::attack::{Attack, Outcome, Scale};

const PART_TIMEOUT: Duration = Duration::from_secs(600);

/// Result of a part (an attack or its control), or the reason why there is no result.
pub(crate) struct PartResult {
    /// True if the attack succeeded; always true for a control.
    pub(crate) succeeded: bool,
    /// The observation, or the error.
    pub(crate) text: String,
    /// True if the part did not complete.
    pub(crate) failed: bool,
    pub(crate) took: Duration,
}

/// Runs a part, `attack` or `control`, in this process and prints its result.
pub(crate) fn run_here(attack: &Attack, part: &str, scale: Scale) -> anyhow::Result<()> {
    let (through, text) = match part {
        "control" => (true, (attack.control)(scale)?),
        "attack" => match (attack.attack)(scale)? {
            Outcome::Held(text) => (false, text),
            Outcome::Through(text) => (true, text),
        },
        other => bail!("unknown part {other:?}; use attack or control"),
    };
    println!("{}", json!({ "through": through, "text": text }));
    Ok(())
}

/// Runs a part, `attack` or `control`, in a new process.
pub(crate) fn run_part(attack: &Attack, part: &str, scale: Scale) -> anyhow::Result<PartResult> {
    let begun = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--play", attack.name, part]).stdin(Stdio::null());
    if scale == Scale::Long {
        command.arg("--long");
    }
    let limit = PART_TIMEOUT.as_secs().to_string();
    let mut bounded = Command::new("timeout");
    bounded.args(["--kill-after=5", &limit]).arg(command.get_program()).args(command.get_args());
    let output = bounded.stdin(Stdio::null()).stderr(Stdio::piped()).output().context("cannot run timeout")?;
    kill_leftovers();
    let last = String::from_utf8_lossy(&output.stdout).lines().last().map(str::to_owned).unwrap_or_default();
    let reported: Option<Value> = serde_json::from_str(&last).ok().filter(|_| output.status.success());
    let took = begun.elapsed();
    Ok(match reported {
        Some(reported) => PartResult {
            succeeded: reported["through"] == true,
            text: reported["text"].as_str().unwrap_or_default().to_owned(),
            failed: false,
            took,
        },
        None => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = errors.lines().collect();
            let end = lines[lines.len().saturating_sub(12)..].join("\n    ");
            PartResult {
                succeeded: false,
                text: format!("did not complete ({}): {end}", output.status),
                failed: true,
                took,
            }
        }
    })
}

/// Kills leftover processes of a failed part. This process is the subreaper of all its descendants.
fn kill_leftovers() {
    let me = std::process::id() as i32;
    loop {
        let left = host::descendants(me);
        if left.is_empty() {
            return;
        }
        for pid in left {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            let _ = nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::WNOHANG));
        }
        // The parent that must reap a process may be another leftover, so this polls.
        std::thread::sleep(Duration::from_millis(5));
    }
}
