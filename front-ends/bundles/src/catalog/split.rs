//! Splits a stream into documents, without parsing them: consecutive JSON objects, or YAML documents separated by lines
//! of `---`. Only one document is in memory at a time.

use std::io::{self, Read};

use memchr::memmem;

use super::form::{DOCUMENT_MAX, Form};

/// Minimum size of a read, in bytes.
const CHUNK: usize = 256 << 10;

/// A document with its location.
#[derive(Debug)]
pub struct Document {
    pub form: Form,
    pub bytes: Vec<u8>,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// First line of the document in the file, from 1.
    pub line: u64,
}

/// Error from reading documents.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    #[error("cannot be read")]
    Read(#[source] io::Error),
    #[error("line {line}: the document that begins here is larger than the maximum of {DOCUMENT_MAX} bytes")]
    TooLarge { line: u64 },
    #[error("line {line}: only a comment may follow `---`")]
    Separator { line: u64 },
    #[error("line {line}: the JSON object that begins here is not closed")]
    Unfinished { line: u64 },
}

/// Reader of the documents of a stream.
pub struct Documents<R> {
    from: R,
    buffer: Vec<u8>,
    /// Start of the unread bytes in the buffer.
    start: usize,
    ended: bool,
    offset: u64,
    line: u64,
}

impl<R: Read> Documents<R> {
    /// Returns a reader of the documents in the stream `from`.
    pub fn new(from: R) -> Self {
        Self { from, buffer: Vec::new(), start: 0, ended: false, offset: 0, line: 1 }
    }

    /// Reads more bytes into the buffer. Returns false at the end of the stream.
    fn fill(&mut self) -> Result<bool, SplitError> {
        if self.ended {
            return Ok(false);
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        let before = self.buffer.len();
        if before > DOCUMENT_MAX {
            return Err(SplitError::TooLarge { line: self.line });
        }
        // Large documents are read in larger chunks.
        let want = CHUNK.max(before / 2);
        let read = (&mut self.from).take(want as u64).read_to_end(&mut self.buffer).map_err(SplitError::Read)?;
        self.ended = read < want;
        Ok(read > 0)
    }

    /// Removes bytes from the front of the buffer and returns them.
    fn take(&mut self, length: usize) -> Vec<u8> {
        let taken = self.rest()[..length].to_vec();
        self.skip(length);
        taken
    }

    /// Skips bytes at the front of the buffer.
    fn skip(&mut self, length: usize) {
        self.offset += length as u64;
        self.line += memchr::memchr_iter(b'\n', &self.rest()[..length]).count() as u64;
        self.start += length;
    }

    fn rest(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    fn document(&mut self, form: Form, length: usize) -> Document {
        let (offset, line) = (self.offset, self.line);
        Document { form, bytes: self.take(length), offset, line }
    }

    /// Skips white space between documents. Returns the first byte after the white space.
    fn skip_space(&mut self) -> Result<Option<u8>, SplitError> {
        loop {
            let rest = self.rest();
            match rest.iter().position(|byte| !byte.is_ascii_whitespace()) {
                Some(at) => {
                    // Keep the start of the line, because indentation matters in YAML.
                    let line = memchr::memrchr(b'\n', &rest[..at]).map_or(0, |newline| newline + 1);
                    let first = rest[at];
                    self.skip(line);
                    return Ok(Some(first));
                }
                None => {
                    self.skip(self.rest().len());
                    if !self.fill()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Returns the next document; `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns an error if the stream cannot be read, or if a document is too large or incomplete.
    #[allow(clippy::should_implement_trait)] // an iterator of results would continue after an error
    pub fn next(&mut self) -> Result<Option<Document>, SplitError> {
        match self.skip_space()? {
            None => Ok(None),
            Some(b'{') => self.json().map(Some),
            Some(_) => self.yaml(),
        }
    }

    /// Reads a JSON object up to its closing brace.
    fn json(&mut self) -> Result<Document, SplitError> {
        let (mut at, mut depth, mut in_text) = (0usize, 0usize, false);
        loop {
            let mut end = None;
            let rest = self.rest();
            while at < rest.len() {
                if in_text {
                    // Find the end of the string or an escape.
                    match memchr::memchr2(b'"', b'\\', &rest[at..]) {
                        None => at = rest.len(),
                        Some(found) if rest[at + found] == b'\\' => at += found + 2,
                        Some(found) => {
                            at += found + 1;
                            in_text = false;
                        }
                    }
                    continue;
                }
                match rest[at] {
                    b'"' => in_text = true,
                    b'{' => depth += 1,
                    b'}' => {
                        depth = depth.saturating_sub(1);
                        if depth == 0 {
                            end = Some(at + 1);
                            break;
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
            if let Some(end) = end {
                return self.sized(Form::Json, end);
            }
            if !self.fill()? {
                return Err(SplitError::Unfinished { line: self.line });
            }
        }
    }

    /// Reads a YAML document up to the next line that begins with `---`.
    fn yaml(&mut self) -> Result<Option<Document>, SplitError> {
        let mut from = 0;
        // A leading line of `---` is part of the document.
        loop {
            let rest = self.rest();
            let found = memmem::find(&rest[from.min(rest.len())..], b"\n---").map(|at| from + at);
            match found {
                // Continue only when the whole line is in the buffer.
                Some(at) if memchr::memchr(b'\n', &rest[at + 1..]).is_some() || self.ended => {
                    let line_end = memchr::memchr(b'\n', &rest[at + 1..]).map_or(rest.len(), |end| at + 1 + end);
                    let behind = String::from_utf8_lossy(&rest[at + 4..line_end]).trim().to_owned();
                    if !behind.is_empty() && !behind.starts_with('#') {
                        let line = self.line + memchr::memchr_iter(b'\n', &rest[..=at]).count() as u64;
                        return Err(SplitError::Separator { line });
                    }
                    let document = self.sized(Form::Yaml, at + 1)?;
                    let separator = line_end - at - 1;
                    self.skip((separator + 1).min(self.rest().len()));
                    return Ok(Some(document));
                }
                _ => {
                    from = found.unwrap_or(rest.len().saturating_sub(3));
                    if !self.fill()? && found.is_none() {
                        let all = self.rest().len();
                        return self.sized(Form::Yaml, all).map(Some);
                    }
                }
            }
        }
    }

    fn sized(&mut self, form: Form, length: usize) -> Result<Document, SplitError> {
        if length > DOCUMENT_MAX {
            return Err(SplitError::TooLarge { line: self.line });
        }
        Ok(self.document(form, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<(Form, String, u64)> {
        // Returns one byte per read, to check that a short read does not end the stream.
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let count = 1.min(self.0.len()).min(buffer.len());
                buffer[..count].copy_from_slice(&self.0[..count]);
                self.0 = &self.0[count..];
                Ok(count)
            }
        }
        let mut documents = Documents::new(Slow(text.as_bytes()));
        let mut found = Vec::new();
        while let Some(document) = documents.next().unwrap() {
            assert!(text.as_bytes()[document.offset as usize..].starts_with(&document.bytes), "{document:?}");
            found.push((document.form, String::from_utf8(document.bytes).unwrap(), document.line));
        }
        found
    }

    #[test]
    fn consecutive_documents_of_both_forms_are_split() {
        let yaml = |text: &str, line| (Form::Yaml, text.to_owned(), line);
        let json = |text: &str, line| (Form::Json, text.to_owned(), line);
        assert_eq!(split(""), []);
        assert_eq!(split("\n \n"), []);
        assert_eq!(split("a: 1\n"), [yaml("a: 1\n", 1)]);
        assert_eq!(split("---\na: 1\n---\nb: 2\n---\n"), [yaml("---\na: 1\n", 1), yaml("b: 2\n", 4)]);
        assert_eq!(split("---\na: 1\n--- # next\nb: 2"), [yaml("---\na: 1\n", 1), yaml("b: 2", 4)]);
        assert_eq!(
            split("{\"a\": \"}\\\"{\"}{}\n {\"b\":{}}"),
            [json("{\"a\": \"}\\\"{\"}", 1), json("{}", 1), json(" {\"b\":{}}", 2)]
        );
        assert_eq!(split("{\"a\": 1}\n---\nb: 2\n"), [json("{\"a\": 1}", 1), yaml("---\nb: 2\n", 2)]);
        assert_eq!(split("a: |\n  ---\n  b\n"), [yaml("a: |\n  ---\n  b\n", 1)]);
    }

    #[test]
    fn unterminated_documents_are_reported_with_line() {
        let error = |text: &str| {
            let mut documents = Documents::new(text.as_bytes());
            loop {
                match documents.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("no error in {text:?}"),
                    Err(error) => return error.to_string(),
                }
            }
        };
        assert_eq!(error("\n{\"a\": 1"), "line 2: the JSON object that begins here is not closed");
        assert_eq!(error("a: 1\n---b\n"), "line 2: only a comment may follow `---`");
    }

    #[test]
    fn oversized_document_is_refused() {
        struct Endless;
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                buffer.fill(b'a');
                Ok(buffer.len())
            }
        }
        assert!(matches!(Documents::new(Endless).next(), Err(SplitError::TooLarge { line: 1 })));
    }
}
