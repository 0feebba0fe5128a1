//! The demo's secret: random, so that finding it anywhere means that it came from here.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// Bytes of the secret.
pub(super) const LENGTH: u64 = 64;

/// 64 hexadecimal digits. Shown by its first four.
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn random() -> anyhow::Result<Self> {
        let mut bytes = [0; LENGTH as usize / 2];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(super) fn reveal(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// What to search for: each half, because what an allocator does with freed memory may have overwritten
    /// one end of a copy.
    pub(super) fn needles(&self) -> [&[u8]; 2] {
        let (first, second) = self.reveal().split_at(self.0.len() / 2);
        [first, second]
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
        write!(out, "{}\u{2026} ({} random hexadecimal digits)", &self.0[..4], self.0.len())
    }
}
