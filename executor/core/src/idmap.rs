//! Maps the user and group ids of containers to host ids. Each user namespace has its own range from the operator's
//! pool.
//!
//! The input is the policy, the ranges in use and the contents of the host's account files; the output is a free range,
//! and conflicts with the pool. Several launchers on one host may have the same pool, or overlapping pools: each
//! launcher uses only ranges in blocks that it has claimed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Number of ids in a user namespace: 0 to 65,535, the ids that image files use.
pub const RANGE_IDS: u32 = 65_536;
/// Maximum number of conflicting lines of host files in a message.
const REPORTED_MAX: usize = 5;

/// Mapping of container ids to host ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMap(Option<u32>);

impl IdMap {
    /// Identity mapping: the container uses host ids.
    pub const HOST: Self = Self(None);

    /// Returns the mapping to the range that begins at `start`, or the identity mapping if `None`.
    pub fn from_start(start: Option<u32>) -> Self {
        Self(start)
    }

    /// Returns the host id. An id that the container does not have is mapped to the last id of the range.
    pub fn to_host(self, id: u32) -> u32 {
        self.0.map_or(id, |start| start + id.min(RANGE_IDS - 1))
    }

    /// Returns true if the container has a user namespace.
    pub fn is_mapped(self) -> bool {
        self.0.is_some()
    }

    /// Returns the highest id that the container has.
    pub fn highest(self) -> u32 {
        if self.is_mapped() { RANGE_IDS - 1 } else { crate::limits::ID_MAX }
    }
}

/// Maximum number of ranges in a block.
const BLOCK_RANGES_MAX: u32 = 16;
/// Target number of blocks of a pool. A pool with fewer ranges has one block per range. A large pool has more blocks,
/// and each block has [`BLOCK_RANGES_MAX`] ranges.
const BLOCKS: u32 = 16;

/// Block of host ids that one launcher can claim: the first id, and the end (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Block(pub u32, pub u32);

impl Block {
    /// Returns the block that consists of the range from `start`.
    pub fn from_range(start: u32) -> Self {
        Self(start, start.saturating_add(RANGE_IDS))
    }

    /// Returns true if both blocks have an id in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0 < other.1 && other.0 < self.1
    }

    /// Returns true if this block contains all ids of the other block.
    pub fn contains(&self, other: &Self) -> bool {
        self.0 <= other.0 && other.1 <= self.1
    }
}

/// Host ids that requests may name, in the form `FIRST-LAST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GivenRange {
    first: u32,
    last: u32,
}

/// An invalid range of host ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{range:?} is not a range of ids: write FIRST-LAST, two ids from 65536 to 4294967293")]
pub struct BadGivenRange {
    range: String,
}

impl GivenRange {
    /// Returns true if the range contains all ids of the block.
    pub fn contains(&self, block: &Block) -> bool {
        self.first <= block.0 && block.1 - 1 <= self.last
    }
}

impl TryFrom<String> for GivenRange {
    type Error = BadGivenRange;

    fn try_from(text: String) -> Result<Self, BadGivenRange> {
        let ids = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match ids {
            Some((first, last)) if RANGE_IDS <= first && first <= last && last < crate::limits::ID_MAX => {
                Ok(Self { first, last })
            }
            _ => Err(BadGivenRange { range: text }),
        }
    }
}

impl From<GivenRange> for String {
    fn from(range: GivenRange) -> Self {
        range.to_string()
    }
}

impl std::fmt::Display for GivenRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Host ids that are reserved for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    start: u32,
    ranges: u32,
    next: u32,
}

impl Pool {
    /// Creates the pool of `ranges` ranges from the id `start` (`userns_pool_start` and `userns_pool_ranges` of the
    /// policy).
    ///
    /// # Errors
    /// Returns an error that names both keys and their values, if the pool begins below id 65,536 or ends above the
    /// highest id.
    pub fn new(start: u32, ranges: u32) -> Result<Self, String> {
        let reported = format!("userns_pool_start {start} with userns_pool_ranges {ranges}");
        if start < RANGE_IDS {
            return Err(format!("{reported}: the pool must start at id {RANGE_IDS} or above"));
        }
        let end = u64::from(start) + u64::from(ranges) * u64::from(RANGE_IDS);
        if end > u64::from(crate::limits::ID_MAX) {
            return Err(format!(
                "{reported}: the pool must end before id {}, but ends at {end}",
                crate::limits::ID_MAX
            ));
        }
        Ok(Self { start, ranges, next: 0 })
    }

    /// Returns the number of ranges.
    pub fn ranges(&self) -> u32 {
        self.ranges
    }

    /// Returns true if a block has an id of the pool.
    pub fn overlaps(&self, block: &Block) -> bool {
        let end = u64::from(self.start) + u64::from(self.ranges) * u64::from(RANGE_IDS);
        self.start < block.1 && u64::from(block.0) < end
    }

    /// Returns the index of the range that contains this host id.
    pub fn range_of(&self, id: u32) -> Option<u32> {
        id.checked_sub(self.start).map(|offset| offset / RANGE_IDS).filter(|range| *range < self.ranges)
    }

    /// Returns the blocks of the pool. Only one launcher at a time can claim a block.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let (start, ranges) = (self.start, self.ranges);
        let size = (ranges / BLOCKS).clamp(1, BLOCK_RANGES_MAX);
        (0..ranges.div_ceil(size)).map(move |index| {
            let (first, beyond) = (index * size, ((index + 1) * size).min(ranges));
            Block(start + first * RANGE_IDS, start + beyond * RANGE_IDS)
        })
    }

    /// Returns the start of a range in `blocks` that overlaps no range in use. `in_use` holds the starts of the ranges
    /// in use. A released range is reused as late as possible.
    pub fn find_free_range(&mut self, in_use: &BTreeSet<u32>, blocks: &[Block]) -> Option<u32> {
        let candidates = (0..self.ranges).map(|offset| (self.next + offset) % self.ranges);
        let overlaps = |start: u32| {
            in_use.range(start.saturating_sub(RANGE_IDS - 1)..=start.saturating_add(RANGE_IDS - 1)).next().is_some()
        };
        let claimed = |start: u32| blocks.iter().any(|block| block.contains(&Block::from_range(start)));
        let is_free = |start: u32| claimed(start) && !overlaps(start);
        let range = candidates.into_iter().find(|range| is_free(self.start + range * RANGE_IDS))?;
        self.next = (range + 1) % self.ranges;
        Some(self.start + range * RANGE_IDS)
    }

    /// Describes the lines of the host's account files whose ids are in the pool: users, groups, and subordinate
    /// ranges. `files` holds the names and contents of /etc/passwd, /etc/group, /etc/subuid and /etc/subgid.
    pub fn conflicts(&self, files: &[(&str, &[u8])]) -> Vec<String> {
        let end = u64::from(self.start) + u64::from(self.ranges) * u64::from(RANGE_IDS);
        let mut conflicts = Vec::new();
        for (name, content) in files {
            let subordinate = name.ends_with("/subuid") || name.ends_with("/subgid");
            for line in content.split(|byte| *byte == b'\n') {
                let mut fields = line.split(|byte| *byte == b':').map(|field| String::from_utf8_lossy(field));
                let who = fields.next().unwrap_or_default().into_owned();
                let ids = if subordinate {
                    fields.next().zip(fields.next()).map(|(first, count)| (first, Some(count)))
                } else {
                    fields.nth(1).map(|id| (id, None))
                };
                let Some((first, count)) = ids else { continue };
                let number = |text: &str| text.trim().parse::<u64>().ok();
                let (Some(first), Some(count)) = (number(&first), count.map_or(Some(1), |count| number(&count))) else {
                    continue;
                };
                if count > 0 && first < end && first.saturating_add(count) > u64::from(self.start) {
                    let last = first.saturating_add(count - 1);
                    conflicts.push(format!("{name}: `{who}` has the ids {first} to {last}"));
                }
            }
        }
        if conflicts.len() > REPORTED_MAX {
            let more = conflicts.len() - REPORTED_MAX;
            conflicts.truncate(REPORTED_MAX);
            conflicts.push(format!("and {more} more"));
        }
        conflicts
    }
}

impl std::fmt::Display for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = u64::from(self.start) + u64::from(self.ranges) * u64::from(RANGE_IDS);
        write!(f, "{} to {}", self.start, end.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(start: u32, ranges: u32) -> Result<Pool, String> {
        Pool::new(start, ranges)
    }

    #[test]
    fn id_pool_bounds_are_reported_with_numbers() {
        assert!(pool(0x7000_0000, 1024).is_ok() && pool(RANGE_IDS, 0).is_ok() && pool(RANGE_IDS, 65_534).is_ok());
        let low = pool(1000, 1).unwrap_err();
        assert!(low.contains("userns_pool_start 1000") && low.contains("65536"), "{low}");
        let high = pool(0x7000_0000, 65_000).unwrap_err();
        assert!(high.contains("userns_pool_ranges 65000") && high.contains("4294967294"), "{high}");
    }

    #[test]
    fn id_ranges_are_reused_last() {
        let mut pool = pool(100_000, 3).unwrap();
        let all: Vec<Block> = pool.blocks().collect();
        let mut in_use = BTreeSet::new();
        for expected in [Some(100_000), Some(165_536), Some(231_072), None] {
            let range = pool.find_free_range(&in_use, &all);
            assert_eq!(range, expected);
            in_use.extend(range);
        }
        in_use.remove(&100_000);
        in_use.remove(&165_536);
        assert_eq!(
            (pool.find_free_range(&in_use, &all), pool.find_free_range(&in_use, &all)),
            (Some(100_000), Some(165_536))
        );
        // A range that overlaps a range in use is not free, even if that range belongs to a pool with another start.
        assert_eq!(pool.find_free_range(&BTreeSet::from([231_073]), &all), Some(100_000));
        assert_eq!(pool.find_free_range(&BTreeSet::from([165_535]), &all), Some(231_072));
        // No range comes from blocks of another launcher.
        assert_eq!(
            (pool.find_free_range(&BTreeSet::new(), &all[1..2]), pool.find_free_range(&BTreeSet::new(), &[])),
            (Some(165_536), None)
        );
    }

    #[test]
    fn no_range_overlaps_another() {
        let mut pool = pool(1 << 20, 50).unwrap();
        let mut in_use = BTreeSet::new();
        let all: Vec<Block> = pool.blocks().collect();
        while let Some(range) = pool.find_free_range(&in_use, &all) {
            assert!(in_use.iter().all(|other: &u32| range.abs_diff(*other) >= RANGE_IDS));
            in_use.insert(range);
        }
        assert_eq!(in_use.len(), 50);
    }

    #[test]
    fn blocks_cover_pool_without_overlap() {
        for (ranges, number) in [(0, 0), (1, 1), (3, 3), (50, 17), (100, 17), (1024, 64), (1025, 65)] {
            let blocks: Vec<Block> = pool(1 << 20, ranges).unwrap().blocks().collect();
            assert_eq!(blocks.len(), number, "{ranges}");
            assert!(blocks.windows(2).all(|pair| pair[0].1 == pair[1].0 && !pair[0].overlaps(&pair[1])), "{ranges}");
            let ids: u32 = blocks.iter().map(|block| block.1 - block.0).sum();
            assert_eq!(ids, ranges * RANGE_IDS);
        }
        assert!(Block(10, 20).overlaps(&Block(19, 30)) && !Block(10, 20).overlaps(&Block(20, 30)));
    }

    #[test]
    fn host_ids_inside_pool_are_found() {
        let pool = pool(100_000, 2).unwrap();
        let passwd = b"root:x:0:0::/:/bin/sh\nlow:x:99999:1::/:\nin:x:100000:1::/:\nlast:x:231071:1::/:\nout:x:231072:1::/:\nbroken\n";
        let subuid = b"a:34464:65536\nb:34464:65537\nc:231071:1\nd:231072:65536\nzero:150000:0\nbad:x:y\n";
        let found = pool.conflicts(&[("/etc/passwd", passwd), ("/etc/subuid", subuid)]);
        let expected = [
            "/etc/passwd: `in` has the ids 100000 to 100000",
            "/etc/passwd: `last` has the ids 231071 to 231071",
            "/etc/subuid: `b` has the ids 34464 to 100000",
            "/etc/subuid: `c` has the ids 231071 to 231071",
        ];
        assert_eq!(found, expected);
        assert_eq!(pool.to_string(), "100000 to 231071");
        let many: String = (0..20).map(|number| format!("u{number}:x:{}:0::/:\n", 100_000 + number)).collect();
        assert_eq!(pool.conflicts(&[("/etc/passwd", many.as_bytes())]).len(), REPORTED_MAX + 1);
    }

    #[test]
    fn unmapped_ids_map_to_overflow_id() {
        let map = IdMap::from_start(Some(200_000));
        assert_eq!([0, 1000, 65_535, 70_000].map(|id| map.to_host(id)), [200_000, 201_000, 265_535, 265_535]);
        assert_eq!(IdMap::HOST.to_host(70_000), 70_000);
    }
}
