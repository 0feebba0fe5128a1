//! Searches all readable memory mappings of a process.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use crate::process::{Process, gone};
use crate::{Place, Search};

/// Number of unreadable pages after which a mapping is skipped. Such a mapping belongs to a device, or is beyond the
/// end of its file.
const HOLES_MAX: u32 = 64;

impl Search<'_> {
    pub(crate) fn memory(&mut self, process: &Process) {
        let path = |file: &str| format!("/proc/{}/{file}", process.pid);
        let opened = fs::read(path("maps")).and_then(|maps| Ok((maps, File::open(path("mem"))?)));
        let (maps, memory) = match opened {
            Ok(opened) => opened,
            Err(error) if gone(&error) => return,
            Err(error) => return self.report.unsearched(format!("memory of {process}"), error.to_string()),
        };
        for mapping in String::from_utf8_lossy(&maps).lines().filter_map(Mapping::parse) {
            self.mapping(process, &memory, &mapping);
        }
    }

    fn mapping(&mut self, process: &Process, memory: &File, mapping: &Mapping<'_>) {
        let page = rustix::param::page_size() as u64;
        let (mut at, mut holes) = (mapping.start, 0);
        while at < mapping.end && holes < HOLES_MAX {
            let begin = at;
            let place =
                || Place::Memory { pid: process.pid, name: process.name.clone(), mapping: mapping.name.to_owned() };
            let mut failed = false;
            let read = |buffer: &mut [u8], read: u64| {
                let left = (mapping.end - begin - read).min(buffer.len() as u64) as usize;
                Ok(memory.read_at(&mut buffer[..left], begin + read).unwrap_or_else(|_| {
                    failed = true;
                    0
                }))
            };
            let searched = self.stream(read, begin, &place).unwrap_or(0);
            self.report.bytes += searched;
            at += searched;
            if at < mapping.end && !failed {
                return; // the process has exited
            }
            holes = if searched == 0 { holes + 1 } else { 0 };
            at += page;
        }
    }
}

/// A line of /proc/PID/maps.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) name: &'a str,
}

impl<'a> Mapping<'a> {
    /// Parses a line. Returns `None` if it is not a readable mapping of process memory.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let readable = words.next()?.starts_with('r');
        let name = words.nth(3).unwrap_or_default().trim_start();
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let of_the_kernel = ["[vvar]", "[vvar_vclock]", "[vsyscall]"].contains(&name);
        (readable && !of_the_kernel).then_some(Self { start: number(start)?, end: number(end)?, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_maps() {
        let mapping = |name| Some(Mapping { start: 0x1000, end: 0x3000, name });
        assert_eq!(Mapping::parse("1000-3000 r--p 00000000 00:00 0"), mapping(""));
        assert_eq!(Mapping::parse("1000-3000 rw-p 00000000 00:00 0                  [heap]"), mapping("[heap]"));
        assert_eq!(
            Mapping::parse("1000-3000 r-xp 00000000 08:01 77         /a b (deleted)"),
            mapping("/a b (deleted)")
        );
        assert_eq!(Mapping::parse("1000-3000 ---p 00000000 00:00 0"), None);
        assert_eq!(Mapping::parse("1000-3000 r--p 00000000 00:00 0       [vvar]"), None);
    }
}
