//! Lists the forms in which a program may print a value.
//!
//! - The value itself, without surrounding white space. (If the white space were masked too, a line would lose its
//!   newline.)
//! - Each of its lines of at least [`LINE_MIN`] bytes, without surrounding white space.
//! - Value and lines as a JSON string and percent-encoded, in every style whose result differs.
//! - The value in base64, in both alphabets and at each of the three offsets of its first byte in a group of three. One
//!   form has the characters that the value determines. A second form also has the characters that follow if the value
//!   ends the data: a partial character, padding, a final newline. Lines of base64 wrapped at 64 or 76 columns are
//!   forms too.
//!
//! A form of more than 240 bytes is cut evenly into pieces, and each piece is masked separately. This keeps comparisons
//! short and the number of held bytes small. If only a part of a long value is printed, less than one piece at each end
//! of the part remains unmasked.

use super::encode::{BASE64, JSON, Json, PERCENT, Percent, base64};
use super::pieces::{BufferFull, CUT, Forms};

/// Minimum length in bytes of a line that is masked separately.
const LINE_MIN: usize = 8;
/// Columns at which programs wrap base64: PEM uses 64, MIME and base64(1) use 76.
const COLUMNS: [usize; 2] = [64, 76];

impl Forms {
    /// Adds lines and encodings of a value that begins at offset `at` of the buffer. `followed` is the white space
    /// after the value. If a form does not fit, this form and all later forms are skipped.
    pub(super) fn encodings(&mut self, owner: u32, value: &[u8], followed: &[u8], at: usize) -> Result<(), BufferFull> {
        (self.owner, self.rank) = (owner, 1);
        let lines = lines(value);
        self.all_or_none(|forms| {
            let several = lines.iter().filter(|_| lines.len() > 1);
            several.copied().try_for_each(|(from, to)| forms.line(at + from, at + to, to - from))
        })?;
        // Most values look the same in most styles, so duplicates are skipped.
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
            return Ok(()); // the same as the value itself, which was already written
        }
        let (checkpoint, start) = (self.checkpoint(), self.bytes.len());
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
            self.roll_back(checkpoint);
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

    /// Adds a line, unless its `length` in bytes before encoding is less than `LINE_MIN`.
    fn line(&mut self, from: usize, to: usize, length: usize) -> Result<(), BufferFull> {
        if length < LINE_MIN { Ok(()) } else { self.charged_cut(from, to) }
    }
}

/// Start and end offsets of a range in a buffer.
type Span = (usize, usize);

/// Returns the non-empty lines of a value, without surrounding white space.
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

/// An encoding that maps each character separately.
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

/// Base64 of data in which other bytes may precede the value.
struct Base64<'a> {
    alphabet: &'static [u8; 64],
    /// Number of other bytes before the value in the group of three bytes that contains the value's first byte.
    preceding: usize,
    value: &'a [u8],
    followed: &'a [u8],
}

impl Base64<'_> {
    fn add(&self, forms: &mut Forms, written: &mut Vec<Span>) -> Result<(), BufferFull> {
        let (checkpoint, start) = (forms.checkpoint(), forms.bytes.len());
        if self.value.len() > forms.room {
            return Err(BufferFull);
        }
        base64(self.alphabet, self.bytes(0), forms)?;
        if forms.is_known(start, written) {
            forms.roll_back(checkpoint);
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

    /// Adds variants of the last piece, from `character` on, that include the white space after the value.
    fn followed(&self, forms: &mut Forms, character: usize) -> Result<(), BufferFull> {
        // More than two bytes of white space are not a line end, and would make the piece too long.
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

    /// Returns the data from byte `from` on: zeros for the preceding bytes, then the value.
    fn bytes(&self, from: usize) -> impl Iterator<Item = u8> {
        (from..self.preceding + self.value.len())
            .map(|at| at.checked_sub(self.preceding).map_or(0, |at| self.value[at]))
    }
}

/// Offsets at which the base64 of a value may end.
struct Ends {
    /// Offset after the last character that does not depend on following data.
    determined: usize,
    /// Offset after the last character if no data follows.
    partial: usize,
    /// Offset after the base64 padding.
    padded: usize,
}

impl Ends {
    /// Adds one form for each end, each of which starts at `from`. The forms share all pieces except the last. Returns
    /// the start of the last piece.
    fn cut(&self, forms: &mut Forms, from: usize) -> Result<usize, BufferFull> {
        forms.charge((self.determined - from).div_ceil(CUT) + 2)?;
        let last = forms.cut(from, self.determined);
        for end in [self.partial, self.padded].into_iter().filter(|end| *end > self.determined) {
            forms.piece(last, end);
        }
        Ok(last)
    }

    /// Wraps the base64 from `start` on at each of the usual columns, and adds the lines.
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
