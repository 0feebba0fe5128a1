//! Looks for canaries in the memory of living processes and in files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use memchr::memmem::Finder;

/// Read at once.
const CHUNK: usize = 1 << 20;
/// Bytes before a find that are told with it, so that one can see what it is.
const CONTEXT: usize = 48;
/// Bytes of an entry of /proc/PID/pagemap, and its bits that say that a page is in memory or in swap.
const ENTRY: usize = 8;
const PRESENT: u64 = 0b11 << 62;

/// Where the needle is in a process: the first place of each mapping. A process that is gone has no memory.
pub(crate) fn process(pid: i32, what: &str, needle: &Finder<'_>) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else { return Vec::new() };
    let pages = File::open(format!("/proc/{pid}/pagemap")).ok();
    let mut buffer = vec![0; CHUNK];
    let mut found = Vec::new();
    for (start, end, name) in maps.lines().filter_map(region) {
        let overlap = needle.needle().len() as u64;
        let mut at = start;
        while at < end {
            let wanted = CHUNK.min((end - at) as usize);
            if pages.as_ref().is_some_and(|pages| !present(pages, at, wanted)) {
                at += wanted as u64; // never touched: nothing can be there
                continue;
            }
            let Ok(count @ 1..) = memory.read_at(&mut buffer[..wanted], at) else { break };
            if let Some(offset) = needle.find(&buffer[..count]) {
                let before = &buffer[offset.saturating_sub(CONTEXT)..offset];
                let at = at + offset as u64;
                found.push(format!(
                    "memory of {what} ({pid}) at {at:x} {name}, behind {:?}",
                    before.escape_ascii().to_string()
                ));
                break;
            }
            let next = at + count as u64;
            // Once more over the seam, for a copy that lies across it.
            at = if next < end { next - overlap.min(count as u64 - 1) } else { next };
        }
    }
    buffer.fill(0);
    found
}

/// Where the needle is in files at or below a directory.
pub(crate) fn files(dir: &Path, needle: &Finder<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&path, needle)),
            Ok(kind) if kind.is_file() => {
                let content = std::fs::read(&path).unwrap_or_default();
                if needle.find(&content).is_some() {
                    found.push(format!("file {}", path.display()));
                }
            }
            _ => {}
        }
    }
    found
}

/// Start, end and name of a mapping that can be read and is memory of the process.
fn region(line: &str) -> Option<(u64, u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let readable = words.next()?.starts_with('r');
    let name = words.nth(3).unwrap_or("anonymous");
    let kernels = ["[vvar]", "[vvar_vclock]", "[vsyscall]"].contains(&name);
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    (readable && !kernels).then_some((number(start)?, number(end)?, name))
}

/// Whether one of the pages is in memory.
fn present(pages: &File, at: u64, bytes: usize) -> bool {
    const PAGE: u64 = 4096;
    let first = at / PAGE;
    let count = (at + bytes as u64).div_ceil(PAGE) - first;
    let mut entries = vec![0; count as usize * ENTRY];
    match pages.read_at(&mut entries, first * ENTRY as u64) {
        Ok(read) => {
            let (words, _) = entries[..read].as_chunks::<ENTRY>();
            words.iter().any(|word| u64::from_ne_bytes(*word) & PRESENT != 0)
        }
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found_and_what_is_not_is_not() {
        let canary: Vec<u8> = (0..64).map(|i| b'a' + i % 26 + u8::try_from(std::process::id() % 3).unwrap()).collect();
        let reversed: Vec<u8> = canary.iter().map(|byte| byte ^ 0x15).collect();
        let pid = std::process::id() as i32;
        assert!(!process(pid, "this", &Finder::new(&canary)).is_empty());
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("below")).unwrap();
        std::fs::write(dir.path().join("below/file"), [b"x".as_slice(), &canary].concat()).unwrap();
        assert_eq!(files(dir.path(), &Finder::new(&canary)).len(), 1);
        assert!(files(dir.path(), &Finder::new(&reversed)).is_empty());
    }

    #[test]
    fn mappings() {
        assert_eq!(region("1000-3000 r--p 00000000 00:00 0"), Some((0x1000, 0x3000, "anonymous")));
        assert_eq!(region("1000-3000 ---p 00000000 00:00 0"), None);
        assert_eq!(region("1000-3000 r--p 00000000 00:00 0 [vvar]"), None);
    }
}
