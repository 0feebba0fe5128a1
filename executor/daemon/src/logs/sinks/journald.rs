//! Encodes and sends entries in the native protocol of the systemd journal: as a datagram of fields, or as a sealed
//! memory file if the entry is too large.
//!
//! The field names are the same as in the log drivers of Docker and Podman, so that existing consumers work.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use executor_core::logline::Stream;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::MessageOrigin;
use super::message::Message;
use crate::config::journal_field;

/// Maximum size of the fields that vary between messages, in bytes.
const FIELDS: usize = 600;

/// Encoded fields that all messages of a container share.
#[derive(Debug)]
pub(super) struct Fields(Vec<u8>);

impl Fields {
    /// Encodes the shared fields. Image name, labels and tags that do not fit into `max` bytes are omitted.
    pub(super) fn new(origin: &MessageOrigin, max: usize) -> Self {
        let mut out = Vec::new();
        let id = origin.id.as_str().as_bytes();
        for name in ["CONTAINER_ID", "CONTAINER_ID_FULL", "CONTAINER_NAME", "CONTAINER_TAG", "SYSLOG_IDENTIFIER"] {
            field(name, id, &mut out);
        }
        let labels = origin.labels.iter().map(|(name, value)| (journal_field(name), value));
        let tags = origin.tags.iter().map(|(name, value)| (format!("EXECUTOR_TAG_{}", journal_field(name)), value));
        let image = origin.image.iter().map(|image| ("IMAGE_NAME".to_owned(), image));
        for (name, value) in image.chain(labels).chain(tags) {
            let before = out.len();
            // A journal field name has at most 64 characters.
            if name.len() <= 64 {
                field(&name, value.as_bytes(), &mut out);
            }
            if out.len() > max {
                out.truncate(before);
            }
        }
        Self(out)
    }

    /// Returns the maximum size of a message without its text, in bytes.
    pub(super) fn length(&self) -> usize {
        self.0.len() + FIELDS
    }

    /// Appends a message in the journal's format to `out`.
    pub(super) fn write(&self, message: &Message, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
        field("MESSAGE", &message.content, out);
        let mut number = |name: &str, value: u64| field(name, value.to_string().as_bytes(), out);
        number("PRIORITY", u64::from(super::severity(message)));
        number("CONTAINER_LOG_ORDINAL", message.sequence);
        if let Some(part) = message.part {
            number("CONTAINER_PARTIAL_ID", part.line);
            number("CONTAINER_PARTIAL_ORDINAL", u64::from(part.ordinal));
        }
        if let Some(missing) = message.missing {
            number("EXECUTOR_DROPPED_LINES", missing.lines);
            number("EXECUTOR_DROPPED_BYTES", missing.bytes);
        }
        if let Some(part) = message.part {
            field("CONTAINER_PARTIAL_MESSAGE", b"true", out);
            field("CONTAINER_PARTIAL_LAST", if part.last { b"true" } else { b"false" }, out);
        }
        field("EXECUTOR_STREAM", super::stream_name(message.stream).as_bytes(), out);
        if !message.source.is_empty() && message.stream != Stream::Executor {
            field("EXECUTOR_SOURCE", message.source.as_bytes(), out);
        }
        field("SYSLOG_TIMESTAMP", message.time.rfc3339().as_bytes(), out);
    }
}

/// Appends a field. Values with a newline are preceded by their length.
fn field(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// Sends an entry that is too large for a datagram as a memory file. The journal accepts only a sealed file.
///
/// # Errors
/// Returns an error if the file cannot be created or the socket fails.
pub(super) async fn send_file(socket: &UnixDatagram, entry: &[u8]) -> io::Result<()> {
    let mut file = File::from(memfd_create("log-entry", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(entry)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    let send = || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(socket, &[], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    };
    socket.async_io(Interest::WRITABLE, send).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_a_newline_have_a_length() {
        let mut out = Vec::new();
        field("A", b"x=y", &mut out);
        field("B", b"1\n2", &mut out);
        assert_eq!(out, b"A=x=y\nB\n\x03\0\0\0\0\0\0\x001\n2\n");
    }
}
