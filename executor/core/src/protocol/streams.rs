//! Messages about what goes to and from a process while it runs: processes that are executed in a container, and clients
//! that are attached to its own.
//!
//! What a process is executed with is in a memory file, and what it reads and writes goes over its own descriptors to the
//! daemon: no message here has any of it. An attached client's packets are bytes behind one of the marks below.

use prost::{Message, Oneof};

use super::Refused;

/// What the descriptors of an [`Exec`] are, in order.
pub const EXEC_FDS: [&str; 2] = ["session", "process payload"];
/// What the one descriptor of an [`Attach`] is: the shim's end of the client's own connection.
pub const ATTACH_FDS: [&str; 1] = ["client"];
/// Most processes at a time that are executed in one container.
pub const EXECS_MAX: usize = 64;
/// And in all of them.
pub const EXECS_MAX_IN_ALL: usize = 1024;

/// Executes a process in a container that runs; descriptors accompany it. What becomes of it is told on the session.
#[derive(Clone, PartialEq, Message)]
pub struct Exec {
    /// In which.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// `user[:group]`; the container's own when empty.
    #[prost(string, tag = "2")]
    pub user: String,
    /// It gets a terminal.
    #[prost(bool, tag = "3")]
    pub terminal: bool,
    /// Lines of the terminal.
    #[prost(uint32, tag = "4")]
    pub rows: u32,
    /// Characters of a line.
    #[prost(uint32, tag = "5")]
    pub columns: u32,
    /// Its standard input is a pipe; else it is empty.
    #[prost(bool, tag = "6")]
    pub stdin: bool,
    /// When the container was admitted, as its launch said: the id may be another one's by now.
    #[prost(uint64, tag = "7")]
    pub created_at: u64,
}

/// An argument of an [`Archive`]'s payload: a link at the end of its path is followed.
pub const ARCHIVE_FOLLOW: &str = "follow";
/// Another one: what the path is, and nothing more.
pub const ARCHIVE_STAT: &str = "stat";

/// Copies files out of a container that runs, or into it, as a tar archive over standard output or input: in place of the
/// program of an [`Exec`], whose payload has the path in the container and the flags above as arguments.
#[derive(Clone, PartialEq, Message)]
pub struct Archive {
    /// As for a program.
    #[prost(message, optional, tag = "1")]
    pub exec: Option<Exec>,
    /// Which way.
    #[prost(enumeration = "ArchiveWork", tag = "2")]
    pub work: i32,
}

/// Which way files are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ArchiveWork {
    /// None: malformed.
    Nothing = 0,
    /// Out of the container: an [`ArchiveStat`] with its length before it (32 bits, little endian), then the archive.
    Get = 1,
    /// Into it. When all is unpacked, an [`ArchiveDone`].
    Put = 2,
}

/// What a path is.
#[derive(Clone, PartialEq, Message)]
pub struct ArchiveStat {
    /// Bytes.
    #[prost(uint64, tag = "1")]
    pub size: u64,
    /// Kind and permissions, as in `st_mode`.
    #[prost(uint32, tag = "2")]
    pub mode: u32,
    /// What a symbolic link leads to.
    #[prost(bytes = "vec", tag = "3")]
    pub link: Vec<u8>,
    /// When its content was changed, seconds since the epoch.
    #[prost(int64, tag = "4")]
    pub mtime: i64,
}

/// What was unpacked.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ArchiveDone {
    /// Entries.
    #[prost(uint64, tag = "1")]
    pub entries: u64,
    /// Bytes of files.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

/// What the daemon asks on a session. Its end ends the process.
#[derive(Clone, PartialEq, Message)]
pub struct ExecOrder {
    /// To be sent to the process.
    #[prost(int32, tag = "1")]
    pub signal: i32,
}

/// What is told on a session.
#[derive(Clone, PartialEq, Message)]
pub struct ExecReport {
    /// It.
    #[prost(oneof = "ExecNews", tags = "1, 2, 3, 4, 5")]
    pub news: Option<ExecNews>,
}

/// What becomes of an [`Exec`].
#[derive(Clone, PartialEq, Oneof)]
pub enum ExecNews {
    /// It was not tried.
    #[prost(message, tag = "1")]
    Refused(Refused),
    /// The program could not be executed.
    #[prost(message, tag = "2")]
    NotExecuted(NotExecuted),
    /// It runs. Our ends of its input and output accompany this: its terminal, or its standard output, standard error
    /// and, where it has one, standard input.
    #[prost(message, tag = "3")]
    Started(Started),
    /// It called exit.
    #[prost(int32, tag = "4")]
    Code(i32),
    /// A signal ended it.
    #[prost(int32, tag = "5")]
    Signal(i32),
}

/// Why a program could not be executed.
#[derive(Clone, PartialEq, Message)]
pub struct NotExecuted {
    /// The system's number.
    #[prost(int32, tag = "1")]
    pub errno: i32,
    /// All of it in one line.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A process that runs.
#[derive(Clone, PartialEq, Message)]
pub struct Started {
    /// On the host.
    #[prost(int32, tag = "1")]
    pub pid: i32,
}

/// Connects a client to the container's own process; a descriptor accompanies it.
#[derive(Clone, PartialEq, Message)]
pub struct Attach {
    /// It sends input, of which one client at a time is the source.
    #[prost(bool, tag = "1")]
    pub input: bool,
    /// Another client that does is let go.
    #[prost(bool, tag = "2")]
    pub take_over: bool,
    /// It wants no output.
    #[prost(bool, tag = "3")]
    pub no_output: bool,
    /// The process waits while it does not read. Implied where it sends input and wants output.
    #[prost(bool, tag = "4")]
    pub lossless: bool,
    /// It is expected back when its connection ends without [`ToShim::Leave`].
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
    /// What a mark means.
    pub fn of(mark: u8) -> Option<Self> {
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
    /// No more input comes.
    EndOfInput = b'.',
    /// Lines and characters of a line follow, each two bytes, the lower first.
    Window = b'w',
    /// The client goes, and does not come back: it has what it wants.
    Leave = b'q',
}

impl ToShim {
    /// What a mark means.
    pub fn of(mark: u8) -> Option<Self> {
        [Self::Input, Self::EndOfInput, Self::Window, Self::Leave].into_iter().find(|it| *it as u8 == mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_apart() {
        for mark in 0..=u8::MAX {
            assert!(FromShim::of(mark).is_none_or(|kind| kind as u8 == mark));
            assert!(ToShim::of(mark).is_none_or(|kind| kind as u8 == mark));
        }
        assert_eq!(FromShim::of(b't'), Some(FromShim::TakenOver));
        assert_eq!(ToShim::of(b't'), None);
    }

    #[test]
    fn positions_come_back() {
        let packet = position_packet(1 << 40, 7);
        assert_eq!(FromShim::of(packet[0]), Some(FromShim::Position));
        assert_eq!(position_of(&packet[1..]), Some((1 << 40, 7)));
        assert_eq!((position_of(&packet), position_of(&packet[2..])), (None, None));
    }
}
