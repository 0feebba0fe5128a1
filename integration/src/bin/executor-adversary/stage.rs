//! Each part in a process of its own, and what such a process leaves behind when it fails.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::host;
use serde_json::{Value, json};

use crate::attack::{Attack, Outcome, Scale};

/// How long a part may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a part told, or why it told nothing.
pub(crate) struct Told {
    /// An attack that went through; a control always did.
    pub(crate) through: bool,
    /// What was seen.
    pub(crate) text: String,
    /// It was not played to its end.
    pub(crate) failed: bool,
    pub(crate) took: Duration,
}

/// Plays a part in this process, and prints what became of it.
pub(crate) fn act(attack: &Attack, part: &str, scale: Scale) -> anyhow::Result<()> {
    let (through, text) = match part {
        "control" => (true, (attack.control)(scale)?),
        "attack" => match (attack.attack)(scale)? {
            Outcome::Held(text) => (false, text),
            Outcome::Through(text) => (true, text),
        },
        other => bail!("no part is called {other:?}"),
    };
    println!("{}", json!({ "through": through, "text": text }));
    Ok(())
}

/// Plays a part in a process of its own.
pub(crate) fn play(attack: &Attack, part: &str, scale: Scale) -> anyhow::Result<Told> {
    let begun = Instant::now();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--play", attack.name, part]).stdin(Stdio::null());
    if scale == Scale::Long {
        command.arg("--long");
    }
    let limit = PATIENCE.as_secs().to_string();
    let mut bounded = Command::new("timeout");
    bounded.args(["--kill-after=5", &limit]).arg(command.get_program()).args(command.get_args());
    let output = bounded.stdin(Stdio::null()).stderr(Stdio::piped()).output().context("timeout, of coreutils")?;
    sweep();
    let last = String::from_utf8_lossy(&output.stdout).lines().last().map(str::to_owned).unwrap_or_default();
    let told: Option<Value> = serde_json::from_str(&last).ok().filter(|_| output.status.success());
    let took = begun.elapsed();
    Ok(match told {
        Some(told) => Told {
            through: told["through"] == true,
            text: told["text"].as_str().unwrap_or_default().to_owned(),
            failed: false,
            took,
        },
        None => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = errors.lines().collect();
            let end = lines[lines.len().saturating_sub(12)..].join("\n    ");
            Told {
                through: false,
                text: format!("not played to its end ({}): {end}", output.status),
                failed: true,
                took,
            }
        }
    })
}

/// Ends what a part that failed has left: this process is the reaper of all that its children started.
fn sweep() {
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
        // Their ends are announced to whoever waits for each; there is nothing to do meanwhile.
        std::thread::sleep(Duration::from_millis(5));
    }
}
