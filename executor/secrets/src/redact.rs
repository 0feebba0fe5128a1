//! Masks secret values in what a container prints.
//!
//! In go the values, by name, and bytes as they come; out come the bytes with every occurrence of a value, in any of
//! the forms that `redact/forms.rs` lists, replaced by `[REDACTED:name]`.
//!
//! - **What is masked** is each byte that belongs to an occurrence of any form, wherever it begins. So no form
//!   survives because another one that overlaps it was found first. A stretch of overlapping occurrences
//!   has one marker, with the name of the longest form at its beginning. Occurrences that touch have one
//!   marker if they are of one value (as the pieces of a long one are), else one each. The result does not
//!   depend on how the bytes were divided into calls, as long as nobody flushes between them.
//! - **Which values**: see [`Redaction`]. Same content under two names has the name that was given first. White
//!   space around a value is not masked with it, and a value of white space alone is not masked at all.
//! - **Time** is linear in the text, whatever tenant chose it and the values: at most one comparison of 256 bytes
//!   for each doubling of the number of forms at each place, and usually one look into a table.
//! - **Memory**: the values, their lines and encodings. 64 MiB of values are watched, and 16 MiB more of lines
//!   and encodings; smaller values first. What does not fit is named in a warning.
//! - **What is not found**: a value in other encodings (hexadecimal, compressed, reversed, encrypted), broken
//!   by other bytes (colours, line numbers), or flushed in parts. In base64, up to four bits of the first and
//!   the last byte show in the characters next to the marker when other data surrounds the value.

mod encode;
mod forms;
mod matcher;
mod pieces;
mod stream;
#[cfg(test)]
mod tests;

use executor_core::text::printable;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use executor_core::plan::Redaction;
use zeroize::Zeroizing;

use matcher::Matcher;
use pieces::{ENCODED_MAX, Forms, VALUES_MAX};
pub use stream::Stream;

/// Longer names are cut in markers and warnings: a short value must not blow up the log.
const NAME_MAX: usize = 128;
/// Maximum number of names in one warning.
const NAMES_MAX: usize = 50;

/// A value that must not be printed.
#[derive(Clone, Copy)]
pub struct Watched<'a> {
    /// Name for the marker, which is not secret.
    pub name: &'a str,
    /// The value.
    pub value: &'a [u8],
}

impl std::fmt::Debug for Watched<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("name", &self.name).field("value", &"[REDACTED]").finish()
    }
}

/// Knows the values. Its `Debug` does not tell them; its memory is overwritten when it is dropped.
pub struct Redactor {
    bytes: Zeroizing<Vec<u8>>,
    matcher: Matcher,
    markers: Vec<Marker>,
    warnings: Vec<String>,
}

struct Marker {
    text: String,
    /// Tells names apart across redactors.
    id: u64,
}

impl Redactor {
    /// Watches values. On a rotation, give the old and the new ones.
    pub fn new<'a>(mode: Redaction, values: impl IntoIterator<Item = Watched<'a>>) -> Self {
        let (mut values, mut warnings) = evaluate(mode, values);
        // On a rotation most are given twice.
        let mut seen = HashSet::new();
        values.retain(|value| seen.insert((value.content, value.followed)));
        // If not everything fits, what is left out should be of the largest. Equal ones stay in their order.
        values.sort_by_key(|value| value.content.len());

        let mut markers: Vec<Marker> = Vec::with_capacity(values.len());
        let mut forms = Forms::new(values.iter().map(|value| value.content.len()).sum());
        let mut places = Vec::with_capacity(values.len());
        for (owner, value) in (0..).zip(&mut values) {
            places.push(forms.bytes.len());
            let watched = forms.value(owner, value.content);
            if watched < value.content.len() {
                warnings.partial.push(value.name);
                (value.content, value.followed) = (&value.content[..watched], b"");
            }
            markers.push(Marker::new(value.name));
        }
        forms.begin_encodings();
        let mut full = false;
        for ((owner, value), place) in (0..).zip(&values).zip(places) {
            // Once a value did not fit, no larger one is tried: the time that takes must be bounded, too.
            full = full
                || value.content.is_empty()
                || forms.encodings(owner, value.content, value.followed, place).is_err();
            if full {
                warnings.encoded.push(value.name);
            }
        }
        let Forms { mut bytes, pieces, .. } = forms;
        let matcher = Matcher::new(&bytes, pieces);
        bytes.shrink_to_fit();
        Self { bytes, matcher, markers, warnings: warnings.reported(shortest(mode)) }
    }

    /// Warnings about values that are not masked, or not in every form, by name.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Tells whether no value is watched, so that output may bypass the redactor.
    pub fn is_idle(&self) -> bool {
        self.matcher.len() == 0
    }

    /// About how many bytes of memory it holds.
    pub fn bytes(&self) -> usize {
        let markers = self.markers.iter().map(|marker| size_of::<Marker>() + marker.text.capacity());
        self.bytes.capacity() + self.matcher.bytes() + markers.sum::<usize>()
    }

    /// Returns the length of the longest form; a [`Stream`] holds back fewer bytes.
    pub fn longest(&self) -> usize {
        self.matcher.longest()
    }

    /// Everything that is looked for, long forms in pieces: secret, and of use to measure or check this matcher
    /// beside another.
    pub fn forms(&self) -> impl Iterator<Item = &[u8]> {
        self.matcher.forms(&self.bytes).map(|(form, _)| form)
    }

    /// Masks one text that is complete, such as an error message.
    pub fn text(&self, text: &str) -> String {
        // A value that is no text may have been cut out of the middle of a character.
        String::from_utf8(self.masked(text.as_bytes()))
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Masks bytes that are complete.
    pub fn masked(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut stream = Stream::default();
        stream.push(self, bytes, &mut out);
        stream.flush(self, &mut out);
        out
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").field("values", &self.markers.len()).field("forms", &self.matcher.len()).finish()
    }
}

/// Returns the warnings about values that do not depend on how many there are, without making a search for them: those of
/// [`Redactor::warnings`] but for what finds no room.
pub fn warnings<'a>(mode: Redaction, values: impl IntoIterator<Item = Watched<'a>>) -> Vec<String> {
    evaluate(mode, values).1.reported(shortest(mode))
}

/// Returns the values that are long enough, and what is to be said of others.
fn evaluate<'a>(mode: Redaction, values: impl IntoIterator<Item = Watched<'a>>) -> (Vec<Value<'a>>, Warnings<'a>) {
    let mut warnings = Warnings::default();
    let values = values.into_iter().filter(|_| mode != Redaction::None);
    let judged = values.filter_map(|watched| Value::evaluate(watched, shortest(mode), &mut warnings)).collect();
    (judged, warnings)
}

/// Returns the length in bytes of the shortest value that is masked.
fn shortest(mode: Redaction) -> usize {
    match mode {
        Redaction::Auto => 8,
        Redaction::All => 4,
        Redaction::None => usize::MAX,
    }
}

/// A value that is long enough.
struct Value<'a> {
    name: &'a str,
    content: &'a [u8],
    /// White space behind it.
    followed: &'a [u8],
}

impl<'a> Value<'a> {
    fn evaluate(watched: Watched<'a>, shortest: usize, warnings: &mut Warnings<'a>) -> Option<Self> {
        let Watched { name, value } = watched;
        let content = value.trim_ascii();
        if content.len() >= shortest {
            let followed = &value[value.trim_ascii_end().len()..];
            return Some(Self { name, content, followed });
        }
        match (content.is_empty(), value.len()) {
            // Nothing to hide.
            (_, 0) => None,
            (true, _) => {
                warnings.blank.push(name);
                None
            }
            (false, length) if length < shortest => {
                warnings.short.push(name);
                None
            }
            (false, _) => {
                warnings.bare.push(name);
                Some(Self { name, content: value, followed: b"" })
            }
        }
    }
}

impl Marker {
    fn new(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self { text: format!("[REDACTED:{}]", printable(name, NAME_MAX - "...".len())), id: hasher.finish() }
    }
}

/// Names of what is not masked as one might think.
#[derive(Default)]
struct Warnings<'a> {
    short: Vec<&'a str>,
    bare: Vec<&'a str>,
    blank: Vec<&'a str>,
    partial: Vec<&'a str>,
    encoded: Vec<&'a str>,
}

impl Warnings<'_> {
    fn reported(self, shortest: usize) -> Vec<String> {
        const MIB: usize = 1 << 20;
        let kinds = [
            (self.short, format!("not masked in the output, because shorter than {shortest} bytes")),
            (self.bare, format!("masked only with the white space around it, because shorter than {shortest} bytes")),
            (self.blank, "not masked in the output, because it is white space".to_owned()),
            (self.partial, format!("not masked in full, because the values exceed {} MiB", VALUES_MAX / MIB)),
            (self.encoded, format!("not masked in every encoding, because they exceed {} MiB", ENCODED_MAX / MIB)),
        ];
        kinds.into_iter().filter_map(|(names, what)| warning(names, &what)).collect()
    }
}

/// Makes one warning about several names.
fn warning(mut names: Vec<&str>, what: &str) -> Option<String> {
    names.sort_unstable();
    names.dedup();
    let mut reported: Vec<_> =
        names.iter().take(NAMES_MAX).map(|name| printable(name, NAME_MAX - "...".len())).collect();
    if names.len() > NAMES_MAX {
        reported.push(format!("and {} more", names.len() - NAMES_MAX));
    }
    (!reported.is_empty()).then(|| format!("{what}: {}", reported.join(", ")))
}
