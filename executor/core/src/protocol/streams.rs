//! Defines the messages about the input and output of processes that are executed in a container, and of clients that
//! are attached to the container's own process.
//!
//! The arguments of an executed process are in a memory file, and its input and output pass over separate descriptors
//! to the daemon, so no message contains these data. A packet of an attached client begins with one of the marks below,
//! followed by bytes.

use prost::{Message, Oneof};

use super::Refused;

/// Descriptors of an [`Exec`], in order.
pub const EXEC_FDS: [&str; 2] = ["session", "process payload"];
/// Descriptor of an [`Attach`]: the shim's side of the client's connection.
pub const ATTACH_FDS: [&str; 1] = ["client"];
/// Maximum number of concurrently executed processes per container.
pub const EXECS_MAX: usize = 64;
/// Maximum number of concurrently executed processes in all containers together.
pub const EXECS_MAX_IN_ALL: usize = 1024;

/// Executes a process in a running container; descriptors accompany the request. The result is sent on the session.
#[derive(Clone, PartialEq, Message)]
pub struct Exec {
    /// Id of the container.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// User as `user[:group]`; the container's own user if empty.
    #[prost(string, tag = "2")]
    pub user: String,
    /// True if the process gets a terminal.
    #[prost(bool, tag = "3")]
    pub terminal: bool,
    /// Rows of the terminal.
    #[prost(uint32, tag = "4")]
    pub rows: u32,
    /// Columns of the terminal.
    #[prost(uint32, tag = "5")]
    pub columns: u32,
    /// True if standard input is a pipe; otherwise standard input is empty.
    #[prost(bool, tag = "6")]
    pub stdin: bool,
    /// Time of the container's acceptance, as in its launch, because another container may have the id by now.
    #[prost(uint64, tag = "7")]
    pub created_at: u64,
    /// True if the process also gets the environment of the container's own process.
    #[prost(bool, tag = "130")]
    pub container_environment: bool,
    /// Milliseconds after which the process and its descendants are killed; 0 for no limit.
    #[prost(uint64, tag = "460")]
    pub timeout_ms: u64,
    /// True if descendants keep running after the process exits by itself.
    #[prost(bool, tag = "461")]
    pub leave_processes: bool,
}

/// Argument in an [`Archive`]'s payload: follow a link at the end of the path.
pub const ARCHIVE_FOLLOW: &str = "follow";
/// Argument in an [`Archive`]'s payload: return only the status of the path.
pub const ARCHIVE_STAT: &str = "stat";

/// Argument in the payload of an [`ArchiveWork::Put`]: create missing directories of the path, and reject an archive
/// with device nodes.
pub const ARCHIVE_DOWNLOAD: &str = "download";

/// Copies files out of a running container, or into it, as a tar archive over standard output or input. The copy
/// replaces the program of an [`Exec`]. The payload contains the path in the container, and the flags above as
/// arguments.
#[derive(Clone, PartialEq, Message)]
pub struct Archive {
    /// User and container, as for an executed program.
    #[prost(message, optional, tag = "1")]
    pub exec: Option<Exec>,
    /// Direction, as the number of an [`ArchiveWork`].
    #[prost(enumeration = "ArchiveWork", tag = "2")]
    pub work: i32,
}

/// Direction in which files are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ArchiveWork {
    /// No direction, which is invalid.
    Nothing = 0,
    /// Copies files out of the container. The output consists of the length of an [`ArchiveStat`] (32 bits, little
    /// endian), the [`ArchiveStat`], and the archive.
    Get = 1,
    /// Copies files into the container. An [`ArchiveDone`] follows after everything is unpacked.
    Put = 2,
}

/// Type, size and time of the file at a path.
#[derive(Clone, PartialEq, Message)]
pub struct ArchiveStat {
    /// Size of the file in bytes.
    #[prost(uint64, tag = "1")]
    pub size: u64,
    /// File type and permission bits, as in `st_mode`.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// Target of the link, if the file is a symbolic link.
    #[prost(bytes = "vec", tag = "3")]
    pub link: Vec<u8>,
    /// Time of the last modification of the content, in seconds since the epoch.
    #[prost(int64, tag = "4")]
    pub mtime: i64,
}

/// Summary of an unpacked archive.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ArchiveDone {
    /// Number of files, directories and links.
    #[prost(uint64, tag = "1")]
    pub entries: u64,
    /// Total size of all unpacked files, in bytes.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

/// Request from the daemon on a session. Closing the session kills the process.
#[derive(Clone, PartialEq, Message)]
pub struct ExecOrder {
    /// Number of the signal to send to the process.
    #[prost(int32, tag = "1")]
    pub signal: i32,
}

/// Report of a supervisor to the daemon on a session.
#[derive(Clone, PartialEq, Message)]
pub struct ExecReport {
    /// Content; `None` if a newer peer sent content that is unknown here.
    #[prost(oneof = "ExecNews", tags = "1, 2, 3, 4, 5, 6")]
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
    /// The process runs. The executor's ends of the input and output accompany this message: the terminal, or standard
    /// output, standard error and, if there is one, standard input.
    #[prost(message, tag = "3")]
    Started(Started),
    /// Exit code, if the process exited.
    #[prost(int32, tag = "4")]
    Code(i32),
    /// Number of the signal that terminated the process.
    #[prost(int32, tag = "5")]
    Signal(i32),
    /// The process and its descendants were killed because the time limit had passed.
    #[prost(bool, tag = "6")]
    TimedOut(bool),
}

/// Error of a program that could not be executed.
#[derive(Clone, PartialEq, Message)]
pub struct NotExecuted {
    /// Error number of the system call.
    #[prost(int32, tag = "1")]
    pub errno: i32,
    /// Error message on one line.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A started process.
#[derive(Clone, PartialEq, Message)]
pub struct Started {
    /// Process id on the host.
    #[prost(int32, tag = "1")]
    pub pid: i32,
}

/// Connects a client to the container's own process. A descriptor accompanies the request.
#[derive(Clone, PartialEq, Message)]
pub struct Attach {
    /// True if the client sends input; only one client at a time can send input.
    #[prost(bool, tag = "1")]
    pub input: bool,
    /// True if another client that sends input is disconnected.
    #[prost(bool, tag = "2")]
    pub take_over: bool,
    /// True if the client wants no output.
    #[prost(bool, tag = "3")]
    pub no_output: bool,
    /// True if the process blocks while the client does not read. Implied if the client sends input and wants output.
    #[prost(bool, tag = "4")]
    pub lossless: bool,
    /// True if the client is expected to reconnect when its connection closes without [`ToShim::Leave`].
    #[prost(bool, tag = "5")]
    pub resumable: bool,
    /// Byte offset in the output at which the client wants to continue.
    #[prost(uint64, optional, tag = "6")]
    pub resume_at: Option<u64>,
}

/// Maximum size of a packet of an attached client in either direction, in bytes, including its mark.
pub const ATTACHED_PACKET_MAX: usize = 16 << 10;

/// First byte of a packet from the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FromShim {
    /// Standard output, or terminal output; bytes follow.
    Stdout = b'o',
    /// Standard error; bytes follow.
    Stderr = b'e',
    /// The container's process has exited and all of its output was sent.
    Ended = b'.',
    /// Another client took over the input.
    TakenOver = b't',
    /// Position in the output of the following bytes, and the number of missing bytes before it ([`position_packet`]).
    Position = b'p',
}

impl FromShim {
    /// Parses a mark from the shim; `None` if the mark is unknown.
    pub fn from_mark(mark: u8) -> Option<Self> {
        [Self::Stdout, Self::Stderr, Self::Ended, Self::TakenOver, Self::Position]
            .into_iter()
            .find(|it| *it as u8 == mark)
    }
}

/// Encodes the client's position in the output, in bytes, and the number of bytes that the client missed before this
/// position.
pub fn position_packet(place: u64, missed: u64) -> Vec<u8> {
    [&[FromShim::Position as u8][..], &place.to_le_bytes(), &missed.to_le_bytes()].concat()
}

/// Decodes a position packet without its mark: the position and the number of missed bytes.
pub fn position_of(bytes: &[u8]) -> Option<(u64, u64)> {
    let (place, missed) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*place), u64::from_le_bytes(missed.try_into().ok()?)))
}

/// First byte of a packet to the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ToShim {
    /// Input; bytes follow.
    Input = b'i',
    /// End of input; no bytes follow.
    EndOfInput = b'.',
    /// Window size: rows and columns follow, two bytes each, little endian.
    Window = b'w',
    /// The client disconnects and will not reconnect.
    Leave = b'q',
}

impl ToShim {
    /// Parses a mark to the shim; `None` if the mark is unknown.
    pub fn from_mark(mark: u8) -> Option<Self> {
        [Self::Input, Self::EndOfInput, Self::Window, Self::Leave].into_iter().find(|it| *it as u8 == mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_distinguished() {
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
