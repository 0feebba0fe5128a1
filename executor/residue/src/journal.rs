//! Searches the journal by `journalctl`, because its files are compressed and cannot be searched directly.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Place, Search};

impl Search<'_> {
    /// Searches all fields of all journal entries since `since`.
    pub fn journal(&mut self, since: SystemTime) {
        let seconds = since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut command = Command::new("journalctl");
        command.args(["--output=export", "--all", "--quiet", "--no-pager"]).arg(format!("--since=@{seconds}"));
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => return self.report.unsearched("the journal", format!("journalctl cannot be run: {error}")),
        };
        let mut searched = Ok(0);
        if let Some(mut stdout) = child.stdout.take() {
            searched = self.stream(|buffer, _| stdout.read(buffer), 0, &|| Place::Journal);
        }
        match (searched, child.wait()) {
            (Ok(bytes), Ok(status)) if status.success() => self.report.bytes += bytes,
            (Ok(_), Ok(status)) => self.report.unsearched("the journal", format!("journalctl failed ({status})")),
            (Err(error), _) | (_, Err(error)) => self.report.unsearched("the journal", error.to_string()),
        }
    }
}
