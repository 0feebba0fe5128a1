//! Masks secret values in a container's output.
//!
//! The input is the values with their names, and a stream of bytes. The output is the same bytes, but every occurrence
//! of a value in any of the forms in `redact/forms.rs` is replaced with `[REDACTED:name]`.
//!
//! - **Masked bytes**: every byte that belongs to an occurrence of any form, even if occurrences overlap. A run of
//!   overlapping occurrences gets one marker, with the name of the longest form at its start. Adjacent occurrences get
//!   one marker if they belong to the same value (a long value is searched for in adjacent pieces), else one marker
//!   each. The result does not depend on how the bytes were divided into calls, unless the stream is flushed between
//!   the calls.
//! - **Masked values**: see [`Redaction`]. If two names have the same content, the first name is used. White space
//!   around a value is not masked with the value, and a value of only white space is not masked at all.
//! - **Time** is linear in the length of the output, for any output and values of a tenant. A position usually
//!   costs one table lookup, and at most a binary search over the forms that compares 256 bytes in each step.
//! - **Memory**: the redactor stores up to 64 MiB of values, and 16 MiB of their lines and encodings; smaller values
//!   come first. A warning names values that do not fit.
//! - **Not found**: a value in other encodings (hexadecimal, compressed, reversed, encrypted), interrupted by other
//!   bytes (colours, line numbers), or flushed in parts. If other data surrounds a value in base64, the characters next
//!   to the marker reveal up to four bits of the value's first and last byte.

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

use matcher::Matcher;
use pieces::{ENCODED_MAX, Forms, VALUES_MAX};
pub use stream::Stream;

/// Maximum length of a name in markers and warnings, in bytes. A limit keeps short values from inflating the log.
const NAME_MAX: usize = 128;
/// Maximum number of names in one warning.
const NAMES_MAX: usize = 50;

/// A secret value to mask, with its name.
#[derive(Clone, Copy)]
pub struct Watched<'a> {
    /// Name in the marker that replaces the value; not secret.
    pub name: &'a str,
    pub value: &'a [u8],
}

impl std::fmt::Debug for Watched<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("name", &self.name).field("value", &"[REDACTED]").finish()
    }
}

/// Finds and masks a set of values. `Debug` does not print the values; the allocator overwrites their memory on drop.
pub struct Redactor {
    bytes: Vec<u8>,
    matcher: Matcher,
    markers: Vec<Marker>,
    warnings: Vec<String>,
}

struct Marker {
    text: String,
    /// Hash of the name: equal names have equal ids in all redactors.
    id: u64,
}

impl Redactor {
    /// Builds a redactor of these values. After a rotation, pass both the old and the new values.
    pub fn new<'a>(mode: Redaction, values: impl IntoIterator<Item = Watched<'a>>) -> Self {
        let (mut values, mut warnings) = evaluate(mode, values);
        // After a rotation most values occur twice.
        let mut seen = HashSet::new();
        values.retain(|value| seen.insert((value.content, value.followed)));
        // If not everything fits, the largest values are left out. The sort keeps the order of values of equal length.
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
        forms.start_encodings();
        let mut full = false;
        for ((owner, value), place) in (0..).zip(&values).zip(places) {
            // If a value did not fit, the larger values that follow are not tried. This also bounds the time.
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

    /// Returns warnings with the names of values that are not masked, or not in every form.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns true if there are no masked values, so that output may bypass the redactor.
    pub fn is_idle(&self) -> bool {
        self.matcher.len() == 0
    }

    /// Returns the approximate memory use in bytes.
    pub fn bytes(&self) -> usize {
        let markers = self.markers.iter().map(|marker| size_of::<Marker>() + marker.text.capacity());
        self.bytes.capacity() + self.matcher.bytes() + markers.sum::<usize>()
    }

    /// Returns the length of the longest form; a [`Stream`] always holds back fewer bytes.
    pub fn longest(&self) -> usize {
        self.matcher.longest()
    }

    /// Returns all forms that are searched for; long forms are cut into pieces. The result is secret. Benchmarks use it
    /// to compare this matcher with others.
    pub fn forms(&self) -> impl Iterator<Item = &[u8]> {
        self.matcher.forms(&self.bytes).map(|(form, _)| form)
    }

    /// Masks a complete string, such as an error message.
    pub fn text(&self, text: &str) -> String {
        // Masking a value that is not UTF-8 can split a character.
        String::from_utf8(self.masked(text.as_bytes()))
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// Masks a complete byte string.
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

/// Returns the warnings that concern single values, without building a redactor. Compared with
/// [`Redactor::warnings`], only the warnings about size limits are missing.
pub fn warnings<'a>(mode: Redaction, values: impl IntoIterator<Item = Watched<'a>>) -> Vec<String> {
    evaluate(mode, values).1.reported(shortest(mode))
}

/// Returns the values that are long enough to be masked, and warnings about the other values.
fn evaluate<'a>(mode: Redaction, values: impl IntoIterator<Item = Watched<'a>>) -> (Vec<Value<'a>>, Warnings<'a>) {
    let mut warnings = Warnings::default();
    let values = values.into_iter().filter(|_| mode != Redaction::None);
    let masked = values.filter_map(|watched| Value::evaluate(watched, shortest(mode), &mut warnings)).collect();
    (masked, warnings)
}

/// Returns the length in bytes of the shortest value that is masked.
fn shortest(mode: Redaction) -> usize {
    match mode {
        Redaction::Auto => 8,
        Redaction::All => 4,
        Redaction::None => usize::MAX,
    }
}

/// A value that is long enough to be masked.
struct Value<'a> {
    name: &'a str,
    content: &'a [u8],
    /// White space that follows the value in the original content.
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
            // An empty value needs no masking.
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

/// Names of values that are not masked, or not in every form.
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
            (self.short, format!("values shorter than {shortest} bytes are not masked in the output")),
            (
                self.bare,
                format!(
                    "values shorter than {shortest} bytes without surrounding white space are masked only with that white space"
                ),
            ),
            (self.blank, "values that consist of white space are not masked in the output".to_owned()),
            (self.partial, format!("not masked in full, because the values exceed {} MiB", VALUES_MAX / MIB)),
            (
                self.encoded,
                format!("not masked in every encoding, because the encoded values exceed {} MiB", ENCODED_MAX / MIB),
            ),
        ];
        kinds.into_iter().filter_map(|(names, what)| warning(names, &what)).collect()
    }
}

/// Combines several names into one warning.
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
