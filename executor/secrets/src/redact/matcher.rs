//! Finds the longest of many forms that begins at a position, in bounded time for any forms and text.
//!
//! A Bloom filter over the first bytes skips text in which no form begins, about as fast as reading (both bits of a key
//! are in one word of the filter). Otherwise a binary search over the sorted forms finds the last form that does not
//! sort after the text. The longest match is this form or a prefix of it, and each form is linked to the longest other
//! form that is its prefix. Therefore, a position costs at most one binary search whose comparisons read at most
//! [`FORM_MAX`] bytes each. The search uses no hash, so a tenant cannot construct collisions that slow it down.

use super::pieces::{FORM_MAX, FormPiece};

/// Minimum and maximum number of words in the filter; between these bounds there is one word per form.
const FILTER_WORDS: std::ops::RangeInclusive<usize> = 64..=1 << 16;
/// Value of `FormEntry::prefix` if no other form is a prefix of this form.
const NONE: u32 = u32::MAX;

/// Sorted forms. The caller stores the bytes of the forms and passes them to every call.
pub(super) struct Matcher {
    /// Number of leading bytes that the filter and the keys use: 8, or 4 if a form is shorter than 8 bytes.
    width: usize,
    filter: Vec<u64>,
    shift: u32,
    /// First `width` bytes of each form, as a number with the same sort order.
    keys: Vec<u64>,
    forms: Vec<FormEntry>,
    longest: usize,
}

struct FormEntry {
    at: u32,
    /// Index of the longest other form that is a prefix of this form, or `NONE`.
    prefix: u32,
    owner: u32,
    length: u16,
}

/// Result of the search for a form at one position.
#[derive(Default)]
pub(super) struct FormMatch {
    /// Length of the longest form that begins at this position, and index of the value that the form belongs to.
    pub(super) form: Option<(usize, u32)>,
    /// True if the text ends before it is clear whether a longer form begins here.
    pub(super) open: bool,
}

impl Matcher {
    /// Builds a matcher from pieces of `bytes`. Among equal pieces, keeps the piece with the lowest rank and, among
    /// these, the piece with the lowest owner.
    pub(super) fn new(bytes: &[u8], pieces: Vec<FormPiece>) -> Self {
        let content = |piece: &FormPiece| &bytes[piece.at as usize..][..usize::from(piece.length)];
        // The first bytes are stored next to each piece, so most comparisons need no access to the rest.
        let mut keyed: Vec<(u64, FormPiece)> =
            pieces.into_iter().map(|piece| (first8(content(&piece)), piece)).collect();
        keyed.sort_unstable_by(|(a_key, a), (b_key, b)| {
            let by_content = a_key.cmp(b_key).then_with(|| content(a).cmp(content(b)));
            by_content.then(a.rank.cmp(&b.rank)).then(a.owner.cmp(&b.owner))
        });
        keyed.dedup_by(|(later_key, later), (first_key, first)| {
            later_key == first_key && content(later) == content(first)
        });
        let pieces: Vec<FormPiece> = keyed.into_iter().map(|(_, piece)| piece).collect();

        let shortest = pieces.iter().map(|piece| usize::from(piece.length)).min().unwrap_or(0);
        let longest = pieces.iter().map(|piece| usize::from(piece.length)).max().unwrap_or(0);
        let words = pieces.len().next_power_of_two().clamp(*FILTER_WORDS.start(), *FILTER_WORDS.end());
        let mut matcher = Self {
            width: if shortest >= 8 { 8 } else { 4 },
            filter: vec![0; words],
            shift: 64 - words.ilog2(),
            keys: Vec::with_capacity(pieces.len()),
            forms: Vec::with_capacity(pieces.len()),
            longest,
        };
        // In sorted order a form follows all its prefixes. `prefixes` is a stack in which each form is a prefix of the
        // next.
        let mut prefixes: Vec<u32> = Vec::new();
        for (index, piece) in (0..).zip(&pieces) {
            let content = content(piece);
            while prefixes.last().is_some_and(|prefix| !content.starts_with(matcher.form(bytes, *prefix as usize))) {
                prefixes.pop();
            }
            let prefix = prefixes.last().copied().unwrap_or(NONE);
            prefixes.push(index);
            matcher.forms.push(FormEntry { at: piece.at, prefix, owner: piece.owner, length: piece.length });
            let key = matcher.key(content);
            matcher.keys.push(key);
            let (word, bits) = matcher.filter_place(key);
            matcher.filter[word] |= bits;
        }
        matcher
    }

    pub(super) fn len(&self) -> usize {
        self.forms.len()
    }

    /// Returns the length of the longest form.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns the memory use in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.filter.capacity() * size_of::<u64>()
            + self.keys.capacity() * size_of::<u64>()
            + self.forms.capacity() * size_of::<FormEntry>()
    }

    /// Returns every form with the index of its value, in sorted order.
    pub(super) fn forms<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = (&'a [u8], u32)> {
        (0..self.forms.len()).map(|index| (self.form(bytes, index), self.forms[index].owner))
    }

    fn form<'a>(&self, bytes: &'a [u8], index: usize) -> &'a [u8] {
        let form = &self.forms[index];
        &bytes[form.at as usize..][..usize::from(form.length)]
    }

    /// Returns the first position in `from..until` at which a form may begin. Near the end of `text`, too few bytes
    /// remain for a lookup. If no form begins in the range, the error is the first position that was not examined.
    pub(super) fn candidate(&self, text: &[u8], from: usize, until: usize) -> Result<usize, usize> {
        let end = until.min((text.len() + 1).saturating_sub(self.width));
        let found = match self.width {
            8 => self.filtered(text, from, end, load8),
            _ => self.filtered(text, from, end, load4),
        };
        found.ok_or(from.max(end))
    }

    #[inline]
    fn filtered(&self, text: &[u8], from: usize, end: usize, load: impl Fn(&[u8]) -> u64) -> Option<usize> {
        const TOGETHER: usize = 8;
        let mut place = from;
        while place + TOGETHER <= end {
            let window = &text[place..place + TOGETHER + self.width - 1];
            let mut passed = 0u32;
            for offset in 0..TOGETHER {
                passed |= u32::from(self.may_begin(load(&window[offset..]))) << offset;
            }
            if passed != 0 {
                return Some(place + passed.trailing_zeros() as usize);
            }
            place += TOGETHER;
        }
        (place..end).find(|place| self.may_begin(load(&text[*place..])))
    }

    #[inline]
    fn may_begin(&self, key: u64) -> bool {
        let (word, bits) = self.filter_place(key);
        self.filter[word] & bits == bits
    }

    #[inline]
    fn filter_place(&self, key: u64) -> (usize, u64) {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = (hash >> self.shift) as usize;
        (word, 1 << (hash >> (self.shift - 6) & 63) | 1 << (hash >> (self.shift - 12) & 63))
    }

    #[inline]
    fn key(&self, text: &[u8]) -> u64 {
        if self.width == 8 { load8(text) } else { load4(text) }
    }

    /// Returns the longest form that `text` begins with. `text` must be at least as long as the keys (`width`).
    pub(super) fn search(&self, bytes: &[u8], text: &[u8]) -> FormMatch {
        let key = self.key(text);
        let (mut low, mut high) = (0, self.forms.len());
        while low < high {
            let middle = low.midpoint(high);
            cost::add(8);
            let behind = match self.keys[middle].cmp(&key) {
                std::cmp::Ordering::Equal => {
                    let form = self.form(bytes, middle);
                    cost::add(form.len());
                    form > text
                }
                order => order.is_gt(),
            };
            if behind {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let open = low < self.forms.len()
            && usize::from(self.forms[low].length) > text.len()
            && self.form(bytes, low).starts_with(text);
        FormMatch { form: low.checked_sub(1).and_then(|last| self.longest_prefix(bytes, last, text)), open }
    }

    /// Returns the form at `index` if `text` begins with it, else the longest of its prefixes that `text` begins with.
    fn longest_prefix(&self, bytes: &[u8], index: usize, text: &[u8]) -> Option<(usize, u32)> {
        if self.keys[index] != self.key(text) {
            return None;
        }
        let form = self.form(bytes, index);
        let common = common_prefix(form, text);
        cost::add(common);
        let mut index = index;
        loop {
            let form = &self.forms[index];
            let length = usize::from(form.length);
            if length <= common {
                return Some((length, form.owner));
            }
            if form.prefix == NONE {
                return None;
            }
            cost::add(1);
            index = form.prefix as usize;
        }
    }

    /// Returns true if a form begins with all of `text`, which must be shorter than the keys (`width`).
    pub(super) fn opens(&self, text: &[u8]) -> bool {
        debug_assert!(text.len() < self.width && self.longest <= FORM_MAX);
        let mut first = [0; 8];
        first[..text.len()].copy_from_slice(text);
        let low = self.key(&first);
        let at = self.keys.partition_point(|key| *key < low);
        cost::add(8 * (self.keys.len() + 1).ilog2() as usize);
        let beyond = 8 * (self.width - text.len());
        self.keys.get(at).is_some_and(|key| key >> beyond == low >> beyond)
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = 8 * a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count();
    words + a[words..].iter().zip(&b[words..]).take_while(|(a, b)| a == b).count()
}

/// Returns the first 8 bytes, zero-padded, as a number with the same sort order.
fn first8(text: &[u8]) -> u64 {
    let mut first = [0; 8];
    let length = text.len().min(8);
    first[..length].copy_from_slice(&text[..length]);
    u64::from_be_bytes(first)
}

#[inline]
fn load8(text: &[u8]) -> u64 {
    text.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[inline]
fn load4(text: &[u8]) -> u64 {
    text.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes).into())
}

/// Counts examined bytes, for tests only.
pub(super) mod cost {
    #[cfg(test)]
    thread_local! {
        static EXAMINED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[inline]
    pub(in crate::redact) fn add(bytes: usize) {
        #[cfg(test)]
        EXAMINED.set(EXAMINED.get() + bytes);
        #[cfg(not(test))]
        let _ = bytes;
    }

    /// Returns the bytes that this thread has examined since the last call.
    #[cfg(test)]
    pub(in crate::redact) fn take() -> usize {
        EXAMINED.take()
    }
}
