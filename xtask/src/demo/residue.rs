//! Searches for the secret: in files, and in the memory of processes.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use memchr::memmem;

use super::secret::Secret;

/// Read at once from a process's memory.
const CHUNK: usize = 1 << 20;

/// What a search covered, and where it found something.
#[derive(Default)]
pub(super) struct Traces {
    bytes: u64,
    places: u64,
    what: &'static str,
    hits: Vec<String>,
}

impl Traces {
    pub(super) fn found(&self) -> bool {
        !self.hits.is_empty()
    }
}

impl fmt::Display for Traces {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kilobytes = self.bytes.div_ceil(1000);
        let plural = match (self.places, self.what) {
            (1, what) => what.to_owned(),
            (_, "process") => "processes".to_owned(),
            (_, what) => format!("{what}s"),
        };
        write!(out, "{} {plural} searched, {kilobytes} kB", self.places)?;
        if self.found() {
            write!(out, "; found in {}", self.hits.join(", "))?;
        }
        Ok(())
    }
}

/// Every regular file at or below these paths. Contents only: what is named after a secret is no secret.
pub(super) fn files(paths: &[PathBuf], secret: &Secret) -> anyhow::Result<Traces> {
    let mut traces = Traces { what: "file", ..Traces::default() };
    let mut queue = paths.to_vec();
    while let Some(path) = queue.pop() {
        let kind = match path.symlink_metadata() {
            Ok(metadata) => metadata.file_type(),
            // Directories of a running daemon change while we walk.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        if kind.is_dir() {
            for entry in path.read_dir().with_context(|| path.display().to_string())? {
                queue.push(entry?.path());
            }
        } else if kind.is_file() {
            let mut content = Vec::new();
            File::open(&path)?.read_to_end(&mut content).with_context(|| path.display().to_string())?;
            traces.places += 1;
            traces.bytes += content.len() as u64;
            if contains(&content, secret) {
                traces.hits.push(path.display().to_string());
            }
        }
    }
    Ok(traces)
}

/// All readable memory of these processes.
pub(super) fn memory(pids: &[u32], secret: &Secret) -> anyhow::Result<Traces> {
    let mut traces = Traces { what: "process", ..Traces::default() };
    let mut buffer = vec![0; CHUNK];
    for pid in pids {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).with_context(|| format!("process {pid}"))?;
        let memory = File::open(format!("/proc/{pid}/mem")).with_context(|| format!("memory of process {pid}"))?;
        traces.places += 1;
        for line in maps.lines() {
            let Some((start, end)) = readable_region(line) else { continue };
            let mut at = start;
            while at < end {
                let wanted = CHUNK.min(usize::try_from(end - at)?);
                // A hole (a mapped file that is shorter than its mapping) ends the region.
                let Ok(count @ 1..) = memory.read_at(&mut buffer[..wanted], at) else { break };
                traces.bytes += count as u64;
                if contains(&buffer[..count], secret) {
                    traces.hits.push(format!("process {pid} at {at:x}"));
                }
                // Once more over the seam, for a copy that lies across it.
                let seam = if at + (count as u64) < end { secret.reveal().len() as u64 } else { 0 };
                at += (count as u64).saturating_sub(seam).max(1);
            }
        }
    }
    // This search's own buffer is no trace to be found by the next one.
    buffer.fill(0);
    std::hint::black_box(&buffer);
    Ok(traces)
}

/// Start and end of a line of /proc/PID/maps, if it can be read and is memory of the process.
fn readable_region(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let readable = words.next()?.starts_with('r');
    let kernels = ["[vvar]", "[vvar_vclock]", "[vsyscall]"].contains(&words.nth(3).unwrap_or_default());
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    (readable && !kernels).then_some((number(start)?, number(end)?))
}

fn contains(haystack: &[u8], secret: &Secret) -> bool {
    secret.needles().iter().any(|needle| memmem::find(haystack, needle).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_half_a_secret_in_a_file_and_in_memory() {
        let secret = Secret::random().unwrap();
        let other = Secret::random().unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        std::fs::write(directory.path().join("below/file"), [b"x".as_slice(), secret.needles()[1]].concat()).unwrap();
        let paths = [directory.path().to_owned()];
        assert!(files(&paths, &secret).unwrap().found());
        assert!(!files(&paths, &other).unwrap().found());
        assert!(memory(&[std::process::id()], &secret).unwrap().found());
    }

    #[test]
    fn reads_maps() {
        assert_eq!(readable_region("1000-3000 r--p 00000000 00:00 0"), Some((0x1000, 0x3000)));
        assert_eq!(readable_region("1000-3000 ---p 00000000 00:00 0"), None);
        assert_eq!(readable_region("1000-3000 r--p 00000000 00:00 0 [vvar]"), None);
    }
}
