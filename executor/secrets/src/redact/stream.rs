//! Masks a stream of bytes that comes in parts.

use zeroize::Zeroizing;

use super::pieces::FORM_MAX;
use super::{Marker, Redactor};

/// One stream of output on its way through a [`Redactor`]: standard output or standard error.
///
/// It holds bytes back only while they may be the beginning of something watched: from the first place at which
/// the text so far is how a form begins, so at most the longest form's bytes less one. A redactor may be exchanged
/// for another between any two calls: what is held is judged anew.
#[derive(Default)]
pub struct Stream {
    held: Zeroizing<Vec<u8>>,
    /// Number of following bytes that are masked already, after their marker was written.
    covered: usize,
    /// The value whose marker was the last thing that went out.
    marked: Option<u64>,
}

impl Stream {
    /// Takes bytes, and appends what is decided to `out`.
    pub fn push(&mut self, redactor: &Redactor, bytes: &[u8], out: &mut Vec<u8>) {
        if !self.held.is_empty() {
            // Enough of the new bytes to decide every held one; if fewer came, all of them stay together.
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

    /// Writes the bytes that are held back, masked, because no more bytes come for a while, or ever.
    pub fn flush(&mut self, redactor: &Redactor, out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        self.scan(redactor, &held, held.len(), true, out);
        self.marked = None;
    }

    /// Returns whether nothing came since the last flush, so that another one would change nothing.
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

    /// Decides the places before `until`; answers the first that is not decided. With `last`, nothing comes behind
    /// the text and all are.
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
                // Behind it there is less text than any form has.
                Err(_) if last => break until,
                Err(place) => break (place..until).find(|place| matcher.opens(&text[*place..])).unwrap_or(until),
            }
        };
        output.pass(stop);
        (self.covered, self.marked) = (output.done - stop, output.marked);
        stop
    }
}

/// Output of one text.
struct Output<'a> {
    out: &'a mut Vec<u8>,
    text: &'a [u8],
    /// Position up to which the text is written or masked.
    done: usize,
    marked: Option<u64>,
}

impl Output<'_> {
    /// Masks a form. What overlaps a mask makes it longer; what touches it does, too, if it is of the same value,
    /// as the next piece of a long one is.
    fn mask(&mut self, from: usize, length: usize, marker: &Marker) {
        self.pass(from);
        if from == self.done && self.marked != Some(marker.id) {
            self.out.extend_from_slice(marker.text.as_bytes());
            self.marked = Some(marker.id);
        }
        self.done = self.done.max(from + length);
    }

    /// Lets what is before a place out as it is, if it is not masked.
    fn pass(&mut self, to: usize) {
        if self.done < to {
            self.out.extend_from_slice(&self.text[self.done..to]);
            (self.done, self.marked) = (to, None);
        }
    }
}
