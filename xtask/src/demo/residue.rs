//! The searches for the secret, each with what it covered in words; and a process that has the secret on purpose.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context as _;
use executor_residue::process::Process;
use executor_residue::{Report, Search};

use super::secret::Secret;

/// What a search covered, and where it found something.
pub(super) struct Traces(Report);

impl Traces {
    pub(super) fn found(&self) -> bool {
        self.0.found()
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { processes, files, bytes, hits, .. } = &self.0;
        let kilobytes = bytes.div_ceil(1000);
        match (processes, files) {
            (0, 1) => write!(out, "1 file searched, {kilobytes} kB")?,
            (0, files) => write!(out, "{files} files searched, {kilobytes} kB")?,
            (1, _) => write!(out, "1 process searched, {kilobytes} kB")?,
            (processes, _) => write!(out, "{processes} processes searched, {kilobytes} kB")?,
        }
        for hit in hits {
            write!(out, "; {hit}")?;
        }
        Ok(())
    }
}

/// Every regular file at or below these paths. Contents only: what is named after a secret is no secret.
pub(super) fn files(paths: &[PathBuf], secret: &Secret) -> anyhow::Result<Traces> {
    finished(secret, |search| paths.iter().for_each(|path| search.files(path)))
}

/// All of these processes: memory, what their descriptors lead to, environment, command line.
pub(super) fn processes(pids: &[u32], secret: &Secret) -> anyhow::Result<Traces> {
    finished(secret, |search| pids.iter().copied().filter_map(Process::of).for_each(|process| search.process(&process)))
}

fn finished(secret: &Secret, search: impl FnOnce(&mut Search<'_>)) -> anyhow::Result<Traces> {
    let needles = secret.needles()?;
    let mut under_way = Search::new(&needles);
    search(&mut under_way);
    let report = under_way.report();
    if let Some(one) = report.unsearched.first() {
        anyhow::bail!("{} could not be searched: {}", one.what, one.why);
    }
    Ok(Traces(report))
}

/// A shell that has read the secret and waits.
pub(super) struct Witness {
    child: Child,
    _stdin: ChildStdin,
}

impl Witness {
    pub(super) fn of(secret: &Secret) -> anyhow::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", "read -r secret; echo; read -r end"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("sh")?;
        let mut stdin = child.stdin.take().context("no pipe")?;
        stdin.write_all(secret.reveal())?;
        stdin.write_all(b"\n")?;
        child.stdout.as_mut().context("no pipe")?.read_exact(&mut [0])?;
        Ok(Self { child, _stdin: stdin })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_half_a_secret_in_a_file_and_a_whole_one_in_memory() {
        let (secret, other) = (Secret::random().unwrap(), Secret::random().unwrap());
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("below/file"), [b"x", &secret.reveal()[32..]].concat()).unwrap();
        let paths = [directory.path().to_owned()];
        assert!(files(&paths, &secret).unwrap().found());
        assert!(!files(&paths, &other).unwrap().found());
        let witness = Witness::of(&secret).unwrap();
        assert!(processes(&[witness.pid()], &secret).unwrap().found());
        assert!(!processes(&[witness.pid()], &other).unwrap().found());
    }
}
