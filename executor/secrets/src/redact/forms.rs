//! The forms in which a value may be printed.
//!
//! - The value itself, without white space around it. (With it, a masked line would swallow its own end.)
//! - Each of its lines of [`LINE_MIN`] bytes or more, without white space around it.
//! - Value and lines as a JSON string and percent-encoded, in each style that differs.
//! - The value in base64, in both alphabets and at each of the three places that its first byte can have in a
//!   group of three: the characters that the value determines, with and without what follows them when the
//!   value is the last of the data (a partial character, padding, a final newline). And what is wrapped
//!   at 64 or 76 columns, line by line.
//!
//! A form of more than 240 bytes is cut evenly into pieces that are each watched. So little has to be held
//! back, a long value printed in part is masked but for less than a piece at each end, and a comparison is short.

use super::encode::{BASE64, JSON, Json, PERCENT, Percent, base64};
use super::pieces::{BufferFull, CUT, Forms};

/// Shorter lines of a value are not watched by themselves.
const LINE_MIN: usize = 8;
/// Columns at which base64 is wrapped: PEM's, and those of MIME and base64(1).
const COLUMNS: [usize; 2] = [64, 76];

impl Forms {
    /// Watches lines and encodings of a value that is `followed` by some bytes of white space and begins at `at`.
    /// Where there is no room for one, that one and the rest are left out.
    pub(super) fn encodings(&mut self, owner: u32, value: &[u8], followed: &[u8], at: usize) -> Result<(), BufferFull> {
        (self.owner, self.rank) = (owner, 1);
        let lines = lines(value);
        self.all_or_none(|forms| {
            let several = lines.iter().filter(|_| lines.len() > 1);
            several.copied().try_for_each(|(from, to)| forms.line(at + from, at + to, to - from))
        })?;
        // What was written before is not written again: most values look the same in most styles.
        let mut written = vec![(at, at + value.len())];
        for alphabet in BASE64 {
            for preceding in 0..3 {
                let base64 = Base64 { alphabet, preceding, value, followed };
                self.all_or_none(|forms| base64.add(forms, &mut written))?;
            }
        }
        for style in JSON.iter().map(Style::Json).chain(PERCENT.iter().map(Style::Percent)) {
            self.all_or_none(|forms| forms.encoding(&style, value, &lines, &mut written))?;
        }
        Ok(())
    }

    fn encoding(
        &mut self,
        style: &Style,
        value: &[u8],
        lines: &[Span],
        written: &mut Vec<Span>,
    ) -> Result<(), BufferFull> {
        if style.keeps(value) {
            return Ok(()); // written before, as the value itself
        }
        let (mark, start) = (self.mark(), self.bytes.len());
        let mut encoded_lines = Vec::new();
        let mut done = 0;
        for (from, to) in lines {
            style.write(&value[done..*from], self)?;
            let line = self.bytes.len();
            style.write(&value[*from..*to], self)?;
            encoded_lines.push((line, self.bytes.len(), to - from));
            done = *to;
        }
        style.write(&value[done..], self)?;
        if self.is_known(start, written) {
            self.take_back(mark);
            return Ok(());
        }
        written.push((start, self.bytes.len()));
        self.charged_cut(start, self.bytes.len())?;
        if lines.len() > 1 {
            for (from, to, length) in encoded_lines {
                self.line(from, to, length)?;
            }
        }
        Ok(())
    }

    fn is_known(&self, start: usize, written: &[Span]) -> bool {
        written.iter().any(|(from, to)| self.bytes[*from..*to] == self.bytes[start..])
    }

    /// A line, of `length` bytes before it was encoded.
    fn line(&mut self, from: usize, to: usize, length: usize) -> Result<(), BufferFull> {
        if length < LINE_MIN { Ok(()) } else { self.charged_cut(from, to) }
    }
}

/// Start and end.
type Span = (usize, usize);

/// The lines of a value, without white space around them; no empty ones.
fn lines(value: &[u8]) -> Vec<Span> {
    let mut at = 0;
    let spans = value.split(|byte| *byte == b'\n').map(|line| {
        let start = at + (line.len() - line.trim_ascii_start().len());
        let end = at + line.trim_ascii_end().len();
        at += line.len() + 1;
        (start, end.max(start))
    });
    spans.filter(|(start, end)| start < end).collect()
}

/// An encoding that works character by character.
enum Style {
    Json(&'static Json),
    Percent(&'static Percent),
}

impl Style {
    fn keeps(&self, text: &[u8]) -> bool {
        match self {
            Self::Json(json) => json.keeps(text),
            Self::Percent(percent) => percent.keeps(text),
        }
    }

    fn write(&self, text: &[u8], out: &mut Forms) -> Result<(), BufferFull> {
        match self {
            Self::Json(json) => json.write(text, out),
            Self::Percent(percent) => percent.write(text, out),
        }
    }
}

/// A value as it shows in base64 behind some bytes.
struct Base64<'a> {
    alphabet: &'static [u8; 64],
    /// Number of bytes of the first group that are not the value's.
    preceding: usize,
    value: &'a [u8],
    followed: &'a [u8],
}

impl Base64<'_> {
    fn add(&self, forms: &mut Forms, written: &mut Vec<Span>) -> Result<(), BufferFull> {
        let (mark, start) = (forms.mark(), forms.bytes.len());
        if self.value.len() > forms.room {
            return Err(BufferFull);
        }
        base64(self.alphabet, self.bytes(0), forms)?;
        if forms.is_known(start, written) {
            forms.take_back(mark);
            return Ok(());
        }
        let end = forms.bytes.len();
        written.push((start, end));
        let bits = 8 * (self.preceding + self.value.len());
        let ends = Ends { determined: start + bits / 6, partial: start + bits.div_ceil(6), padded: end };
        let last = ends.cut(forms, start + (8 * self.preceding).div_ceil(6))?;
        if self.preceding == 0 {
            ends.wrapped(forms, start)?;
        }
        self.followed(forms, last - start)
    }

    /// The last piece, from a character on, once more for when white space follows the value.
    fn followed(&self, forms: &mut Forms, character: usize) -> Result<(), BufferFull> {
        // More than two bytes are no end of a line, and would make the piece too long.
        if !(1..=2).contains(&self.followed.len()) {
            return Ok(());
        }
        let group = character / 4;
        let start = forms.bytes.len();
        base64(self.alphabet, self.bytes(3 * group).chain(self.followed.iter().copied()), forms)?;
        let (from, to) = (start + character - 4 * group, forms.bytes.len());
        let padding = forms.bytes[from..].iter().rev().take_while(|byte| **byte == b'=').count();
        forms.charge(2)?;
        forms.piece(from, to - padding);
        forms.piece(from, to);
        Ok(())
    }

    /// The preceding bytes, as zeros, and the value.
    fn bytes(&self, from: usize) -> impl Iterator<Item = u8> {
        (from..self.preceding + self.value.len())
            .map(|at| at.checked_sub(self.preceding).map_or(0, |at| self.value[at]))
    }
}

/// Ends of a value in base64.
struct Ends {
    /// Behind the last character that does not depend on what follows.
    determined: usize,
    /// Behind the last character, when nothing follows.
    partial: usize,
    /// Behind the padding.
    padded: usize,
}

impl Ends {
    /// Watches from a place to each of the ends; all but the last piece are shared. Answers where that begins.
    fn cut(&self, forms: &mut Forms, from: usize) -> Result<usize, BufferFull> {
        forms.charge((self.determined - from).div_ceil(CUT) + 2)?;
        let last = forms.cut(from, self.determined);
        for end in [self.partial, self.padded].into_iter().filter(|end| *end > self.determined) {
            forms.piece(last, end);
        }
        Ok(last)
    }

    /// Watches what was written from `start` on line by line, at each of the usual numbers of columns.
    fn wrapped(&self, forms: &mut Forms, start: usize) -> Result<(), BufferFull> {
        for columns in COLUMNS.into_iter().filter(|columns| *columns < self.padded - start) {
            for line in (start..self.padded).step_by(columns) {
                if line + columns < self.padded {
                    forms.charged_cut(line, (line + columns).min(self.determined))?;
                } else if line + LINE_MIN <= self.determined {
                    self.cut(forms, line)?;
                }
            }
        }
        Ok(())
    }
}
