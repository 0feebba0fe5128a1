//! The demo's secret: random, so that finding it anywhere means that it came from here.

use std::fmt;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use executor_residue::{Canary, Needles};

/// Bytes of the secret.
pub(super) const LENGTH: u64 = 64;

/// 64 random letters and digits. Shown by its first four.
pub(super) struct Secret(Canary);

impl Secret {
    pub(super) fn random() -> anyhow::Result<Self> {
        Ok(Self(Canary::random(LENGTH as usize)?))
    }

    pub(super) fn reveal(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// What to search for.
    pub(super) fn needles(&self) -> anyhow::Result<Needles> {
        let mut needles = Needles::new()?;
        needles.add("the secret", self.reveal());
        Ok(needles)
    }

    /// As coreutils' sha256sum tells it, which the container uses too.
    pub(super) fn sha256(&self) -> anyhow::Result<String> {
        let mut child =
            Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("sha256sum")?;
        child.stdin.take().context("no pipe")?.write_all(self.reveal())?;
        let done = child.wait_with_output()?;
        ensure!(done.status.success(), "sha256sum: {}", done.status);
        Ok(String::from_utf8(done.stdout)?.split(' ').next().unwrap_or_default().to_owned())
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}\u{2026} ({LENGTH} random letters and digits)", &self.0.as_str()[..4])
    }
}
