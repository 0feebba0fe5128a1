//! Messages about what goes to and from a process while it runs: processes that are executed in a container, and clients
//! that are attached to its own.
//!
//! What a process is executed with is in a memory file, and what it reads and writes goes over its own descriptors to the
//! daemon: no message here has any of it. An attached client's packets are bytes behind one of the marks below.

use prost::{Message, Oneof};

use super::Refused;

/// Descriptors of an [`Exec`], in order.
pub const EXEC_FDS: [&str; 2] = ["session", "process payload"];
/// Descriptor of an [`Attach`]: the shim's end of the client's connection.
pub const ATTACH_FDS: [&str; 1] = ["client"];
/// Maximum number of processes that are executed in one container at the same time.
pub const EXECS_MAX: usize = 64;
/// And in all of them.
pub const EXECS_MAX_IN_ALL: usize = 1024;

/// Executes a process in a container that runs; descriptors accompany it. What becomes of it is told on the session.
#[derive(Clone, PartialEq, Message)]
pub struct Exec {
    /// Id of the container.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// `user[:group]`; the container's own when empty.
    #[prost(string, tag = "2")]
    pub user: String,
    /// True when the process gets a terminal.
    #[prost(bool, tag = "3")]
    pub terminal: bool,
    /// Lines of the terminal.
    #[prost(uint32, tag = "4")]
    pub rows: u32,
    /// Characters of a line.
    #[prost(uint32, tag = "5")]
    pub columns: u32,
    /// True when standard input is a pipe; otherwise it is empty.
    #[prost(bool, tag = "6")]
    pub stdin: bool,
    /// Time of the container's admission, as in its launch, because the id may belong to another container by now.
    #[prost(uint64, tag = "7")]
    pub created_at: u64,
    /// True when the process gets the environment of the container's own process, too.
    #[prost(bool, tag = "130")]
    pub container_environment: bool,
}

/// An argument of an [`Archive`]'s payload: a link at the end of its path is followed.
pub const ARCHIVE_FOLLOW: &str = "follow";
/// Another one: what the path is, and nothing more.
pub const ARCHIVE_STAT: &str = "stat";

/// Another one, of a [`ArchiveWork::Put`]: directories that the path lacks are made, and the archive must have no device nodes.
pub const ARCHIVE_DOWNLOAD: &str = "download";

/// Copies files out of a container that runs, or into it, as a tar archive over standard output or input: in place of the
/// program of an [`Exec`], whose payload has the path in the container and the flags above as arguments.
#[derive(Clone, PartialEq, Message)]
pub struct Archive {
    /// User and container, as for a program.
    #[prost(message, optional, tag = "1")]
    pub exec: Option<Exec>,
    /// Direction.
    #[prost(enumeration = "ArchiveWork", tag = "2")]
    pub work: i32,
}

/// Direction in which files are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ArchiveWork {
    /// Invalid.
    Nothing = 0,
    /// Out of the container: an [`ArchiveStat`] with its length before it (32 bits, little endian), then the archive.
    Get = 1,
    /// Into it. When all is unpacked, an [`ArchiveDone`].
    Put = 2,
}

/// Status of a path.
#[derive(Clone, PartialEq, Message)]
pub struct ArchiveStat {
    /// Size in bytes.
    #[prost(uint64, tag = "1")]
    pub size: u64,
    /// Kind and permissions, as in `st_mode`.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Target of a symbolic link.
    #[prost(bytes = "vec", tag = "3")]
    pub link: Vec<u8>,
    /// Time of the last change of the content, in seconds since the epoch.
    #[prost(int64, tag = "4")]
    pub mtime: i64,
}

/// Summary of an unpacked archive.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ArchiveDone {
    /// Entries.
    #[prost(uint64, tag = "1")]
    pub entries: u64,
    /// Bytes of all files.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

/// Order of the daemon on a session. The end of the session ends the process.
#[derive(Clone, PartialEq, Message)]
pub struct ExecOrder {
    /// Signal for the process.
    #[prost(int32, tag = "1")]
    pub signal: i32,
}

/// Report on a session.
#[derive(Clone, PartialEq, Message)]
pub struct ExecReport {
    /// Content.
    #[prost(oneof = "ExecNews", tags = "1, 2, 3, 4, 5")]
    pub news: Option<ExecNews>,
}

/// Result of an [`Exec`].
#[derive(Clone, PartialEq, Oneof)]
pub enum ExecNews {
    /// The process was not started.
    #[prost(message, tag = "1")]
    Refused(Refused),
    /// The program could not be executed.
    #[prost(message, tag = "2")]
    NotExecuted(NotExecuted),
    /// The process runs. The executor's ends of its input and output accompany this: its terminal, or its standard
    /// output, standard error and, if it has one, standard input.
    #[prost(message, tag = "3")]
    Started(Started),
    /// The process exited.
    #[prost(int32, tag = "4")]
    Code(i32),
    /// A signal ended it.
    #[prost(int32, tag = "5")]
    Signal(i32),
}

/// Error of a program that could not be executed.
#[derive(Clone, PartialEq, Message)]
pub struct NotExecuted {
    /// The system's number.
    #[prost(int32, tag = "1")]
    pub errno: i32,
    /// Message on one line.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A process that runs.
#[derive(Clone, PartialEq, Message)]
pub struct Started {
    /// Process id on the host.
    #[prost(int32, tag = "1")]
    pub pid: i32,
}

/// Connects a client to the container's own process; a descriptor accompanies it.
#[derive(Clone, PartialEq, Message)]
pub struct Attach {
    /// True when the client sends input; only one client may at a time.
    #[prost(bool, tag = "1")]
    pub input: bool,
    /// Another client that does is let go.
    #[prost(bool, tag = "2")]
    pub take_over: bool,
    /// True when the client wants no output.
    #[prost(bool, tag = "3")]
    pub no_output: bool,
    /// The process waits while it does not read. Implied where it sends input and wants output.
    #[prost(bool, tag = "4")]
    pub lossless: bool,
    /// True when the client is expected to return if its connection ends without [`ToShim::Leave`].
    #[prost(bool, tag = "5")]
    pub resumable: bool,
    /// The place in the output that it wants to go on at.
    #[prost(uint64, optional, tag = "6")]
    pub resume_at: Option<u64>,
}

/// Largest packet of an attached client, either way, its mark included.
pub const ATTACHED_PACKET_MAX: usize = 16 << 10;

/// First byte of a packet from the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FromShim {
    /// Standard output, or a terminal's: bytes follow.
    Stdout = b'o',
    /// Standard error: bytes follow.
    Stderr = b'e',
    /// The container's process has ended and all its output was sent.
    Ended = b'.',
    /// Another one took over.
    TakenOver = b't',
    /// The place in the output of what follows, and what is missing before it ([`position_packet`]).
    Position = b'p',
}

impl FromShim {
    /// Returns the meaning of a mark.
    pub fn from_mark(mark: u8) -> Option<Self> {
        [Self::Stdout, Self::Stderr, Self::Ended, Self::TakenOver, Self::Position]
            .into_iter()
            .find(|it| *it as u8 == mark)
    }
}

/// A packet that says at which place in the output a client is, in bytes, and how many bytes before it the client missed.
pub fn position_packet(place: u64, missed: u64) -> Vec<u8> {
    [&[FromShim::Position as u8][..], &place.to_le_bytes(), &missed.to_le_bytes()].concat()
}

/// Reads what stands behind the mark of such a packet: place and missed bytes.
pub fn position_of(bytes: &[u8]) -> Option<(u64, u64)> {
    let (place, missed) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*place), u64::from_le_bytes(missed.try_into().ok()?)))
}

/// First byte of a packet to the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ToShim {
    /// Input: bytes follow.
    Input = b'i',
    /// End of the input.
    EndOfInput = b'.',
    /// Lines and characters of a line follow, each two bytes, the lower first.
    Window = b'w',
    /// The client goes, and does not come back: it has what it wants.
    Leave = b'q',
}

impl ToShim {
    /// Returns the meaning of a mark.
    pub fn from_mark(mark: u8) -> Option<Self> {
        [Self::Input, Self::EndOfInput, Self::Window, Self::Leave].into_iter().find(|it| *it as u8 == mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_apart() {
        for mark in 0..=u8::MAX {
            assert!(FromShim::from_mark(mark).is_none_or(|kind| kind as u8 == mark));
            assert!(ToShim::from_mark(mark).is_none_or(|kind| kind as u8 == mark));
        }
        assert_eq!(FromShim::from_mark(b't'), Some(FromShim::TakenOver));
        assert_eq!(ToShim::from_mark(b't'), None);
    }

    #[test]
    fn positions_come_back() {
        let packet = position_packet(1 << 40, 7);
        assert_eq!(FromShim::from_mark(packet[0]), Some(FromShim::Position));
        assert_eq!(position_of(&packet[1..]), Some((1 << 40, 7)));
        assert_eq!((position_of(&packet), position_of(&packet[2..])), (None, None));
    }
}
