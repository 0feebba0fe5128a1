//! The demo's secret. It is random, so the digest that the container prints proves that this secret arrived.

use std::fmt;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// Size of the secret, in bytes.
pub(super) const LENGTH: u64 = 64;

/// 64 random hexadecimal digits. Only the first four are displayed.
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn random() -> anyhow::Result<Self> {
        let mut bytes = [0; LENGTH as usize / 2];
        File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .context("cannot read /dev/urandom")?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(super) fn reveal(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns true if the bytes contain the secret.
    pub(super) fn is_in(&self, bytes: &[u8]) -> bool {
        bytes.windows(self.0.len()).any(|window| window == self.0.as_bytes())
    }

    /// Returns the digest printed by coreutils' sha256sum, which the container also uses.
    pub(super) fn sha256(&self) -> anyhow::Result<String> {
        let mut child = Command::new("sha256sum")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start sha256sum")?;
        child.stdin.take().context("the child has no standard input")?.write_all(self.reveal())?;
        let done = child.wait_with_output()?;
        ensure!(done.status.success(), "sha256sum failed: {}", done.status);
        Ok(String::from_utf8(done.stdout)?.split(' ').next().unwrap_or_default().to_owned())
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}\u{2026} ({LENGTH} random digits)", &self.0[..4])
    }
}
