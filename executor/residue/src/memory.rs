//! Searches all readable memory mappings of a process. Skips unmodified pages of the process's program, because their
//! content is the content of the program's file. These pages are tens of megabytes for each process.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

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
        let program = Program::from_pid(process.pid);
        for mapping in String::from_utf8_lossy(&maps).lines().filter_map(Mapping::parse) {
            match program.as_ref().filter(|program| program.is_mapped_privately(&mapping)) {
                Some(program) => {
                    for modified in program.modified(&mapping) {
                        let part = Mapping { start: modified.start, end: modified.end, ..mapping };
                        self.mapping(process, &memory, &part);
                    }
                }
                None => self.mapping(process, &memory, &mapping),
            }
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

/// The program that a process executes.
struct Program {
    inode: u64,
    /// Path of the program as in /proc/PID/maps.
    name: String,
    pagemap: File,
}

impl Program {
    /// Returns `None` if the process has exited, or if its program's file cannot be examined. Without a program, the
    /// whole memory is searched.
    fn from_pid(pid: u32) -> Option<Self> {
        let exe = format!("/proc/{pid}/exe");
        let name = fs::read_link(&exe).ok()?.to_str()?.to_owned();
        let inode = fs::metadata(&exe).ok()?.ino();
        Some(Self { inode, name, pagemap: File::open(format!("/proc/{pid}/pagemap")).ok()? })
    }

    fn is_mapped_privately(&self, mapping: &Mapping<'_>) -> bool {
        mapping.is_private && mapping.inode == self.inode && mapping.name == self.name
    }

    /// Returns the pages of a private mapping of the program that may differ from the program's file.
    fn modified(&self, mapping: &Mapping<'_>) -> Vec<Range<u64>> {
        let page = rustix::param::page_size() as u64;
        let mut entries = vec![0; ((mapping.end - mapping.start) / page * 8) as usize];
        let mut modified: Vec<Range<u64>> = Vec::new();
        if self.pagemap.read_exact_at(&mut entries, mapping.start / page * 8).is_err() {
            modified.push(mapping.start..mapping.end);
            return modified;
        }
        for (entry, start) in entries.as_chunks().0.iter().zip((mapping.start..).step_by(page as usize)) {
            let entry = u64::from_ne_bytes(*entry);
            let (is_present, is_swapped, is_file) = (entry >> 63 & 1 == 1, entry >> 62 & 1 == 1, entry >> 61 & 1 == 1);
            match modified.last_mut() {
                _ if !is_swapped && (is_file || !is_present) => {}
                Some(last) if last.end == start => last.end += page,
                _ => modified.push(start..start + page),
            }
        }
        modified
    }
}

/// A line of /proc/PID/maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_private: bool,
    pub(crate) inode: u64,
    pub(crate) name: &'a str,
}

impl<'a> Mapping<'a> {
    /// Parses a line. Returns `None` if it is not a readable mapping of process memory.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let inode = words.nth(2)?.parse().ok()?;
        let name = words.next().unwrap_or_default().trim_start();
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let of_the_kernel = ["[vvar]", "[vvar_vclock]", "[vsyscall]"].contains(&name);
        (permissions.starts_with('r') && !of_the_kernel).then_some(Self {
            start: number(start)?,
            end: number(end)?,
            is_private: permissions.ends_with('p'),
            inode,
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;

    #[test]
    fn maps_are_parsed() {
        let mapping = |is_private, inode, name| Some(Mapping { start: 0x1000, end: 0x3000, is_private, inode, name });
        assert_eq!(Mapping::parse("1000-3000 r--p 00000000 00:00 0"), mapping(true, 0, ""));
        assert_eq!(
            Mapping::parse("1000-3000 rw-p 00000000 00:00 0                  [heap]"),
            mapping(true, 0, "[heap]")
        );
        assert_eq!(
            Mapping::parse("1000-3000 r-xs 00000000 08:01 77         /a b (deleted)"),
            mapping(false, 77, "/a b (deleted)")
        );
        assert_eq!(Mapping::parse("1000-3000 ---p 00000000 00:00 0"), None);
        assert_eq!(Mapping::parse("1000-3000 r--p 00000000 00:00 0       [vvar]"), None);
    }

    /// Variables of the program, on pages of their own in a writable private mapping of the program's file.
    #[repr(align(4096))]
    struct Pages([AtomicU8; 8192]);

    static PAGES: Pages = Pages([const { AtomicU8::new(1) }; 8192]);

    /// A page of the program is searched only after the process has modified it. As controls, the pages of an
    /// unmodified variable and of a function are skipped.
    #[test]
    fn modified_pages_of_program_are_searched() {
        let is_searched = |address: u64| {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            let mut mappings = maps.lines().filter_map(Mapping::parse);
            let mapping = mappings.find(|mapping| (mapping.start..mapping.end).contains(&address)).unwrap();
            let program = Program::from_pid(std::process::id()).unwrap();
            assert!(program.is_mapped_privately(&mapping), "{mapping:?}");
            program.modified(&mapping).iter().any(|part| part.contains(&address))
        };
        let address = |variable: &AtomicU8| std::ptr::from_ref(variable) as u64;
        let (first, second) = (&PAGES.0[0], &PAGES.0[4096]);
        assert_eq!(first.load(Ordering::Relaxed), 1);
        assert!(!is_searched(address(first)), "control failed: an unmodified page is searched");
        first.store(2, Ordering::Relaxed);
        assert!(is_searched(address(first)) && !is_searched(address(second)));
        assert!(!is_searched(Mapping::parse as fn(_) -> _ as usize as u64));
    }
}
