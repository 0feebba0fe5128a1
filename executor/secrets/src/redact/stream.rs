//! Masks a stream of bytes that arrives in parts.

use zeroize::Zeroizing;

use super::pieces::FORM_MAX;
use super::{Marker, Redactor};

/// State of one output stream (standard output or standard error) that passes through a [`Redactor`].
///
/// The stream holds bytes back only while they may be the beginning of a form, so fewer bytes are held back than the
/// longest form has. The redactor may change between calls: bytes that are held back are then searched again with the
/// new redactor.
#[derive(Default)]
pub struct Stream {
    held: Zeroizing<Vec<u8>>,
    /// Number of following bytes that are dropped because a marker for them has already been written.
    covered: usize,
    /// Id of the last marker, if no output was written after it.
    marked: Option<u64>,
}

impl Stream {
    /// Processes input bytes. Appends to `out` the output that later input cannot change.
    pub fn push(&mut self, redactor: &Redactor, bytes: &[u8], out: &mut Vec<u8>) {
        if !self.held.is_empty() {
            // Add enough new bytes to decide about every held byte. If there are too few, all bytes stay held.
            let (held, more) = (self.held.len(), bytes.len().min(FORM_MAX));
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(&bytes[..more]);
            let stop = self.scan(redactor, &joined, held, false, out);
            if stop < held {
                self.hold(joined, stop);
                return;
            }
        }
        let stop = self.scan(redactor, bytes, bytes.len(), false, out);
        if stop < bytes.len() {
            self.held.extend_from_slice(&bytes[stop..]);
        }
    }

    /// Writes the held bytes, masked. Call this if no more input is expected soon, or at the end of the stream.
    pub fn flush(&mut self, redactor: &Redactor, out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        self.scan(redactor, &held, held.len(), true, out);
        self.marked = None;
    }

    /// Returns true if another flush would have no effect, because there was no input since the last flush.
    pub fn is_fresh(&self) -> bool {
        self.held.is_empty() && self.covered == 0 && self.marked.is_none()
    }

    /// Returns the number of bytes held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn hold(&mut self, mut joined: Zeroizing<Vec<u8>>, from: usize) {
        let length = joined.len() - from;
        joined.copy_within(from.., 0);
        joined[length..].fill(0);
        joined.truncate(length);
        self.held = joined;
    }

    /// Decides about the positions before `until`, and returns the first undecided position. If `last` is true, no text
    /// follows, so all positions are decided.
    fn scan(&mut self, redactor: &Redactor, text: &[u8], until: usize, last: bool, out: &mut Vec<u8>) -> usize {
        let matcher = &redactor.matcher;
        let mut output = Output { out, text, done: self.covered, marked: self.marked };
        let mut place = 0;
        let stop = loop {
            match matcher.candidate(text, place, until) {
                Ok(candidate) => {
                    let found = matcher.search(&redactor.bytes, &text[candidate..]);
                    if found.open && !last {
                        break candidate;
                    }
                    if let Some((length, owner)) = found.form {
                        output.mask(candidate, length, &redactor.markers[owner as usize]);
                    }
                    place = candidate + 1;
                }
                // The remaining text is shorter than any form.
                Err(_) if last => break until,
                Err(place) => break (place..until).find(|place| matcher.opens(&text[*place..])).unwrap_or(until),
            }
        };
        output.pass(stop);
        (self.covered, self.marked) = (output.done - stop, output.marked);
        stop
    }
}

/// Writes the output of one [`Stream::push`] or [`Stream::flush`].
struct Output<'a> {
    out: &'a mut Vec<u8>,
    text: &'a [u8],
    /// Position up to which the text has been written or masked.
    done: usize,
    marked: Option<u64>,
}

impl Output<'_> {
    /// Masks a form. A form that overlaps the masked text gets no further marker. An adjacent form gets no further
    /// marker only if both belong to the same value, such as the next piece of a long value.
    fn mask(&mut self, from: usize, length: usize, marker: &Marker) {
        self.pass(from);
        if from == self.done && self.marked != Some(marker.id) {
            self.out.extend_from_slice(marker.text.as_bytes());
            self.marked = Some(marker.id);
        }
        self.done = self.done.max(from + length);
    }

    /// Writes the unmasked text before a position.
    fn pass(&mut self, to: usize) {
        if self.done < to {
            self.out.extend_from_slice(&self.text[self.done..to]);
            (self.done, self.marked) = (to, None);
        }
    }
}
