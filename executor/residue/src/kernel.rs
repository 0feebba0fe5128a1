//! Searches all memory of the machine, including free memory, through /proc/kcore. Also searches the memory of a
//! virtual machine from outside.
//!
//! Only segments of kcore that represent physical memory are read; other segments (modules, vmalloc) map the same
//! pages. Pages of the searching process are skipped, because it has just read the secret, or generated it in an audit.
//! The location of a hit includes the owner of the page, as far as the kernel reports it. A free page still has its
//! last owner's data, unless the kernel runs with `init_on_free=1`.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::memory::Mapping;
use crate::report::Report;
use crate::{CHUNK, Place, Search, WINDOW};

pub const KCORE: &str = "/proc/kcore";
/// Maximum number of program headers that are read.
const HEADERS_MAX: usize = 4096;

/// A range of physical memory in a core file.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    offset: u64,
    size: u64,
    physical: u64,
}

impl Search<'_> {
    /// Searches all memory of the machine ([`KCORE`]). The search takes one to two seconds per gigabyte.
    pub fn kernel_memory(&mut self) {
        self.core(Path::new(KCORE));
    }

    fn core(&mut self, path: &Path) {
        let opened = File::open(path).and_then(|file| Ok((segments(&file)?, file)));
        let (segments, file) = match opened {
            Ok((segments, file)) if !segments.is_empty() => (segments, file),
            Ok(_) => return self.report.unsearched("kernel memory", format!("{} maps no memory", path.display())),
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::NotFound => format!("this kernel has no {} (CONFIG_PROC_KCORE)", path.display()),
                    io::ErrorKind::PermissionDenied => {
                        format!(
                            "{}: {error}; reading it requires root with CAP_SYS_RAWIO and a kernel that is not locked down",
                            path.display()
                        )
                    }
                    _ => format!("{}: {error}", path.display()),
                };
                return self.report.unsearched("kernel memory", why);
            }
        };
        for segment in &segments {
            self.segment(&file, segment, None);
        }
    }

    /// Searches all memory of another machine, in a file that contains it from physical address 0 on. `flags` is a copy
    /// of that machine's /proc/kpageflags from the same time.
    ///
    /// # Errors
    /// Returns an error if a file cannot be opened.
    pub fn memory_image(&mut self, image: &Path, flags: &Path) -> io::Result<()> {
        let (image, flags) = (File::open(image)?, File::open(flags)?);
        let all = Segment { offset: 0, size: image.metadata()?.len(), physical: 0 };
        self.segment(&image, &all, Some(&flags));
        Ok(())
    }

    /// Searches a segment. `flags` has the page flags if the memory belongs to another machine.
    fn segment(&mut self, file: &File, segment: &Segment, flags: Option<&File>) {
        let page = rustix::param::page_size() as u64;
        let mut at = 0;
        while at < segment.size {
            let wanted = (segment.size - at).min(CHUNK as u64) as usize;
            let count = file.read_at(&mut self.buffer[..wanted], segment.offset + at).unwrap_or(0);
            if count == 0 {
                at += page; // memory that cannot be read
                continue;
            }
            // A hit is reported with its page, so the pages are looked up after the search.
            let mut found = Vec::new();
            self.needles.find(&self.buffer[..count], |label, offset| found.push((label, offset as u64)));
            if !found.is_empty() {
                let from = segment.physical + at;
                match flags {
                    Some(flags) => report_found(&mut self.report, &found, from, page, Some(flags), &HashSet::new()),
                    None => {
                        let (flags, own) = (File::open("/proc/kpageflags").ok(), own_pages(page).unwrap_or_default());
                        report_found(&mut self.report, &found, from, page, flags.as_ref(), &own);
                    }
                }
            }
            self.report.bytes += count as u64;
            // Chunks overlap by less than a window, except at the end of the segment.
            let seam = if at + (count as u64) < segment.size { (WINDOW as u64 - 1).min(count as u64 - 1) } else { 0 };
            at += count as u64 - seam;
        }
    }
}

fn report_found(
    report: &mut Report,
    found: &[(&str, u64)],
    physical: u64,
    page: u64,
    flags: Option<&File>,
    own: &HashSet<u64>,
) {
    for (label, offset) in found {
        let number = (physical + offset) / page;
        if !own.contains(&number) {
            let word = flags.and_then(|flags| word(flags, number).ok());
            report.hit(label, physical + offset, Place::Kernel { page: owner(word) });
        }
    }
}

fn word(file: &File, index: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, index * 8)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Returns the owner of a page according to its flags (Documentation/admin-guide/mm/pagemap.rst).
fn owner(flags: Option<u64>) -> &'static str {
    let Some(flags) = flags else { return "unknown" };
    let is = |bit: u32| flags >> bit & 1 == 1;
    match () {
        () if is(10) => "free",
        () if is(7) => "slab",
        () if is(12) => "anonymous",
        () if is(5) || is(14) => "file",
        () if flags == 0 => "unowned",
        () => "other",
    }
}

/// Returns the page frame numbers of this process.
fn own_pages(page: u64) -> io::Result<HashSet<u64>> {
    let (maps, pagemap) = (fs::read_to_string("/proc/self/maps")?, File::open("/proc/self/pagemap")?);
    let mut own = HashSet::new();
    for mapping in maps.lines().filter_map(Mapping::parse) {
        for index in mapping.start / page..mapping.end / page {
            match word(&pagemap, index) {
                Ok(entry) if entry >> 63 == 1 => _ = own.insert(entry & ((1 << 55) - 1)),
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
    Ok(own)
}

/// Returns the segments of a 64-bit ELF core file that represent physical memory.
fn segments(file: &File) -> io::Result<Vec<Segment>> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "not a 64-bit core file");
    let read = |at: u64, length: usize| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, at).map(|()| bytes)
    };
    let header = read(0, 64)?;
    let number = |bytes: &[u8], at: usize, length: usize| {
        let mut word = [0; 8];
        word[..length].copy_from_slice(&bytes[at..at + length]);
        u64::from_le_bytes(word)
    };
    const LITTLE_ENDIAN_64: [u8; 6] = *b"\x7fELF\x02\x01";
    if header[..6] != LITTLE_ENDIAN_64 {
        return Err(malformed());
    }
    let (table, size, count) = (number(&header, 32, 8), number(&header, 54, 2), number(&header, 56, 2) as usize);
    if size != 56 || count > HEADERS_MAX {
        return Err(malformed());
    }
    let table = read(table, count * 56)?;
    const LOAD: u64 = 1;
    let loaded = table.chunks_exact(56).filter(|header| number(header, 0, 4) == LOAD);
    let pieces = loaded.map(|header| Segment {
        offset: number(header, 8, 8),
        physical: number(header, 24, 8),
        size: number(header, 32, 8),
    });
    // The kernel's own code is a separate segment with a physical address, although the direct map contains the code,
    // too. Searching the code twice is harmless.
    Ok(pieces.filter(|segment| segment.physical != u64::MAX && segment.size > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Canary, Needles};

    /// Returns a core file like the kernel's: a note, a segment without a physical address, and two segments of memory.
    fn core(memory: [&[u8]; 3]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&4_u16.to_le_bytes());
        let mut offset = 64 + 4 * 56;
        let pieces: [(u32, u64, &[u8]); 4] =
            [(4, 0, b""), (1, u64::MAX, memory[0]), (1, 1 << 50, memory[1]), (1, 1 << 51, memory[2])];
        for (kind, physical, bytes) in pieces {
            let words = [offset, 0, physical, bytes.len() as u64, bytes.len() as u64, 4096];
            file.extend(kind.to_le_bytes().iter().chain(&[0; 4]));
            file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            offset += bytes.len() as u64;
        }
        memory.iter().for_each(|bytes| file.extend_from_slice(bytes));
        file
    }

    #[test]
    fn only_system_memory_is_searched_across_seams() {
        let canaries = [0; 3].map(|_: u8| Canary::random(64).unwrap());
        let mut needles = Needles::new().unwrap();
        for (label, canary) in ["virtual", "seam", "end"].iter().zip(&canaries) {
            needles.add(label, canary.as_bytes());
        }
        let seam = [&vec![1; CHUNK - 20][..], canaries[1].as_bytes(), &[0; 5000]].concat();
        let end = [&[0; 8192][..], &canaries[2].as_bytes()[32..]].concat();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), core([canaries[0].as_bytes(), &seam, &end])).unwrap();
        let mut search = Search::new(&needles);
        search.core(file.path());
        let report = search.report();
        let found: Vec<_> = report.hits.iter().map(|hit| (hit.label.as_str(), hit.at, hit.windows)).collect();
        assert_eq!(found, [("seam", (1 << 50) + CHUNK as u64 - 20, 4), ("end", (1 << 51) + 8192, 2)], "{report}");
        assert!(report.unsearched.is_empty());
    }

    #[test]
    fn memory_image_hits_report_page_kind() {
        let canary = Canary::random(64).unwrap();
        let mut needles = Needles::new().unwrap();
        needles.add("it", canary.as_bytes());
        let dir = tempfile::tempdir().unwrap();
        let (image, flags) = (dir.path().join("image"), dir.path().join("flags"));
        let page = rustix::param::page_size();
        fs::write(&image, [&vec![0; 2 * page + 8], canary.as_bytes(), &vec![0; page]].concat()).unwrap();
        fs::write(&flags, [0, 0, 1_u64 << 10, 0].map(u64::to_ne_bytes).concat()).unwrap();
        let mut search = Search::new(&needles);
        search.memory_image(&image, &flags).unwrap();
        let hits = search.report().hits;
        assert_eq!(hits.len(), 1);
        assert_eq!((&hits[0].place, hits[0].at), (&Place::Kernel { page: "free" }, 2 * page as u64 + 8));
        assert_eq!(hits[0].windows, 4);
    }

    #[test]
    fn unreadable_core_file_is_reported() {
        let needles = Needles::new().unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (content, expected) in [(None, "CONFIG_PROC_KCORE"), (Some(vec![0; 100]), "not a 64-bit core file")] {
            let path = dir.path().join("core");
            if let Some(content) = content {
                fs::write(&path, content).unwrap();
            }
            let mut search = Search::new(&needles);
            search.core(&path);
            let report = search.report();
            assert!(report.unsearched[0].why.contains(expected), "{report:?}");
        }
    }

    #[test]
    fn page_flags_determine_owner() {
        let table = [(None, "unknown"), (Some(0), "unowned"), (Some(1 << 10), "free"), (Some(1 << 7), "slab")];
        for (flags, expected) in
            table.into_iter().chain([(Some(1 << 12 | 1 << 5), "anonymous"), (Some(1 << 5), "file")])
        {
            assert_eq!(owner(flags), expected);
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn a_process_finds_its_own_pages() {
        assert!(!own_pages(rustix::param::page_size() as u64).unwrap().is_empty());
    }
}
