//! Encodes syslog messages in RFC 5424 format.
//!
//! ```text
//! <14>1 2026-11-24T10:00:00.123456Z node executor web-1 stdout [container@32473 id="web-1" sequence="7"] text
//! ```
//! The text is UTF-8. Invalid bytes are replaced with U+FFFD. Each byte of a control character other than tab, and of a
//! bidirectional mark, becomes `#` and three octal digits: section 6.4 advises against control characters, and
//! receivers may show the text in a terminal. Non-ASCII text starts with a byte order mark, as the RFC requires.

use std::fmt::Write as _;

use executor_core::logline::Stream;
use executor_core::text::is_harmful;

use super::MessageOrigin;
use super::message::Message;
use crate::config::SyslogSettings;

/// Maximum length of a host name, in bytes (RFC 5424, section 6).
const HOST_MAX: usize = 255;
/// Maximum length of a parameter name, in bytes (RFC 5424, section 6).
const NAME_MAX: usize = 32;
/// Maximum size of the fields that vary between messages, in bytes.
const FIELDS: usize = 400;
const BOM: &str = "\u{feff}";

/// Header fields that all messages of a container share.
#[derive(Debug)]
pub(super) struct Header {
    facility: u8,
    /// Fields from the host to the container's id.
    names: String,
    /// Structured data without its closing bracket.
    data: String,
}

impl Header {
    /// Creates the header. Image name, labels and tags that do not fit into `max` bytes are omitted.
    pub(super) fn new(settings: &SyslogSettings, host: &str, origin: &MessageOrigin, max: usize) -> Self {
        let mut host: String = host.chars().filter(char::is_ascii_graphic).take(HOST_MAX).collect();
        if host.is_empty() {
            host.push('-');
        }
        let names = format!("{host} {} {}", settings.app_name, origin.id);
        let mut data = format!("[{} id=\"{}\"", settings.structured_data_id, origin.id);
        let labels = origin.labels.iter().map(|(name, value)| (name.clone(), value));
        let tags = origin.tags.iter().map(|(name, value)| (format!("tag.{name}"), value));
        let image = origin.image.iter().map(|image| ("image".to_owned(), image));
        for (name, value) in image.chain(labels).chain(tags) {
            let name: String = name.chars().map(|c| if is_name(c) { c } else { '_' }).take(NAME_MAX).collect();
            let parameter = format!(" {name}=\"{}\"", escaped(value));
            if data.len() + parameter.len() <= max {
                data.push_str(&parameter);
            }
        }
        Self { facility: settings.facility, names, data }
    }

    /// Returns the maximum size of a message without its text, in bytes.
    pub(super) fn length(&self) -> usize {
        self.names.len() + self.data.len() + FIELDS
    }

    /// Appends a message in RFC 5424 format to `out`.
    pub(super) fn write(&self, message: &Message, out: &mut Vec<u8>) {
        let priority = u32::from(self.facility) * 8 + super::severity(message);
        let (names, data) = (&self.names, &self.data);
        let stream = super::stream_name(message.stream);
        let mut head = format!("<{priority}>1 {} {names} {stream} {data}", time(&message.time.rfc3339()));
        // Writing to a String cannot fail.
        let _ = write!(head, " sequence=\"{}\"", message.sequence);
        if !message.source.is_empty() && message.stream != Stream::Executor {
            let _ = write!(head, " source=\"{}\"", escaped(&message.source));
        }
        if let Some(part) = message.part {
            let _ = write!(head, " partial_id=\"{}\" partial_ordinal=\"{}\"", part.line, part.ordinal);
            let _ = write!(head, " partial_last=\"{}\"", part.last);
        }
        if let Some(missing) = message.missing {
            let _ = write!(head, " dropped_lines=\"{}\" dropped_bytes=\"{}\"", missing.lines, missing.bytes);
        }
        head.push_str("] ");
        if !message.content.is_ascii() {
            head.push_str(BOM);
        }
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(&message.content);
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_graphic() && !matches!(c, '=' | ']' | '"')
}

/// Truncates the fraction of a second to the six digits that the RFC allows.
fn time(text: &str) -> String {
    match text.strip_suffix('Z').and_then(|text| text.split_once('.')) {
        Some((seconds, fraction)) => format!("{seconds}.{}Z", &fraction[..fraction.len().min(6)]),
        None => text.to_owned(),
    }
}

/// Escapes a parameter value (RFC 5424, section 6.3.3), and replaces control characters.
fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '"' | '\\' | ']' => out.extend(['\\', c]),
            c if is_harmful(c) => out.push('_'),
            c => out.push(c),
        }
    }
    out
}

/// Converts bytes to text without control characters other than tab; `None` if the bytes already are such text. The
/// text has at most four times as many bytes.
pub(super) fn text(bytes: &[u8]) -> Option<Vec<u8>> {
    let is_escaped = |c: char| is_harmful(c) && c != '\t';
    if std::str::from_utf8(bytes).is_ok_and(|text| !text.contains(is_escaped)) {
        return None;
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for c in String::from_utf8_lossy(bytes).chars() {
        if is_escaped(c) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(out, "#{byte:03o}");
            }
        } else {
            out.push(c);
        }
    }
    Some(out.into_bytes())
}

#[cfg(test)]
mod tests {
    use executor_core::logline::LogPosition;
    use executor_core::time::Timestamp;

    use super::super::message::{Dropped, MessagePart};
    use super::*;
    use crate::config::SyslogAddress;

    fn message(content: &[u8]) -> Message {
        Message {
            time: Timestamp(1_764_000_000_123_456_789),
            stream: Stream::Stderr,
            source: String::new(),
            sequence: 7,
            part: None,
            content: text(content).unwrap_or_else(|| content.to_owned()),
            missing: None,
            resume: LogPosition::default(),
        }
    }

    #[test]
    fn messages_have_the_form_of_the_rfc() {
        let settings = SyslogSettings {
            address: SyslogAddress::Unix("/dev/log".into()),
            facility: 16,
            app_name: "app".into(),
            structured_data_id: "c@1".into(),
        };
        let origin = MessageOrigin {
            id: "web-1".parse().unwrap(),
            image: None,
            labels: vec![("a b".into(), "x\"]\\\ny\u{9b}\u{202e}".into())],
            tags: vec![("t".into(), "v".repeat(1000))],
        };
        let header = Header::new(&settings, "no de", &origin, 200);
        let reported = |message: &Message| {
            let mut out = Vec::new();
            header.write(message, &mut out);
            assert!(out.len() <= header.length() + message.content.len());
            String::from_utf8(out).unwrap()
        };
        let fixed = "2025-11-24T16:00:00.123456Z node app web-1 stderr [c@1 id=\"web-1\" a_b=\"x\\\"\\]\\\\_y__\"";
        assert_eq!(reported(&message(b"plain\ttext")), format!("<131>1 {fixed} sequence=\"7\"] plain\ttext"));
        let odd = reported(&message(b"a\x1b[1m\x00\xff\xc3\xa4\r"));
        assert_eq!(odd, format!("<131>1 {fixed} sequence=\"7\"] \u{feff}a#033[1m#000\u{fffd}ä#015"));
        let escaped = reported(&message("a\u{9b}b\u{202e}c\u{2028}ä".as_bytes()));
        assert_eq!(escaped, format!("<131>1 {fixed} sequence=\"7\"] \u{feff}a#302#233b#342#200#256c#342#200#250ä"));
        let part = Message {
            source: "S]".into(),
            part: Some(MessagePart { line: 7, ordinal: 2, last: true }),
            ..message(b"")
        };
        let data = "sequence=\"7\" source=\"S\\]\" partial_id=\"7\" partial_ordinal=\"2\" partial_last=\"true\"] ";
        assert_eq!(reported(&part), format!("<131>1 {fixed} {data}"));
        let dropped = Some(Dropped { lines: 3, bytes: 30 });
        let gap = Message { stream: Stream::Executor, missing: dropped, ..message(b"gone") };
        assert!(
            reported(&gap).starts_with("<132>1 ")
                && reported(&gap).contains("dropped_lines=\"3\" dropped_bytes=\"30\"]")
        );
    }
}
