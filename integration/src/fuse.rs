//! A file system that can stop responding. A process that waits for this file system is in uninterruptible sleep, and
//! even SIGKILL does not terminate the process.
//!
//! The file system implements FUSE (Linux `Documentation/filesystems/fuse`, `include/uapi/linux/fuse.h`) over /dev/fuse
//! and has one file, `file`. Held requests get a response later. When the file system is dropped, held requests fail,
//! so that no process waits any longer.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub const CONTENT: &[u8] = b"from the file system\n";

const ROOT: u64 = 1;
const FILE: u64 = 2;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
/// Buffer size for a request in bytes; the kernel requires at least 8 KiB.
const REQUEST: usize = 1 << 17;
/// Polling interval for the release of held requests.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Kind of requests whose responses are held back until the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Held {
    Nothing = 0,
    Reads = 1,
    All = 2,
}

/// A mounted file system.
pub struct Fuse {
    at: PathBuf,
    held: Arc<AtomicU8>,
    waiting: Arc<Mutex<usize>>,
    ends: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Fuse {
    /// Mounts the file system on a directory, with access for every user.
    ///
    /// # Panics
    /// Panics if the kernel has no FUSE, or the mount is refused.
    pub fn mount(at: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("test"), at, Some("fuse.test"), flags, Some(&*options)).expect("mount");
        let held = Arc::new(AtomicU8::new(Held::Nothing as u8));
        let (waiting, ends) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
        let server = std::thread::spawn({
            let mut server =
                Server { device, held: Arc::clone(&held), waiting: Arc::clone(&waiting), kept: Vec::new() };
            let ends = Arc::clone(&ends);
            move || server.serve(&ends)
        });
        Self { at: at.to_owned(), held, waiting, ends, server: Some(server) }
    }

    /// Holds requests of kind `held` until the next call. Responds to all other requests, including requests that were
    /// held before.
    pub fn hold(&self, held: Held) {
        self.held.store(held as u8, Ordering::SeqCst);
    }

    /// Returns the number of requests that wait for a response.
    pub fn waiting(&self) -> usize {
        *self.waiting.lock().expect("a lock")
    }

    /// Lets waiting and later requests fail. The file system stays mounted.
    pub fn abort(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        // When the thread ends, the device is closed.
        self.server.take().map(JoinHandle::join);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.abort();
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

struct Server {
    device: File,
    held: Arc<AtomicU8>,
    waiting: Arc<Mutex<usize>>,
    kept: Vec<Request>,
}

#[derive(Clone, Copy)]
struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    /// True if the request is a lookup of `file`.
    is_file: bool,
    /// Offset of a read in bytes.
    offset: u64,
}

impl Server {
    fn serve(&mut self, ends: &AtomicBool) {
        let mut buffer = vec![0; REQUEST];
        while !ends.load(Ordering::SeqCst) {
            let ready = poll(&mut [PollFd::new(&self.device.as_fd(), PollFlags::IN)], Some(&POLL_INTERVAL));
            if ready.is_ok_and(|count| count > 0) {
                let Ok(length) = self.device.read(&mut buffer) else { return };
                let request = parse(&buffer[..length]);
                self.kept.extend(request);
            }
            let held = self.held.load(Ordering::SeqCst);
            let all = std::mem::take(&mut self.kept);
            let is_held = |request: &Request| match request.opcode {
                26 => false,
                15 => held >= Held::Reads as u8,
                _ => held >= Held::All as u8,
            };
            let (kept, due): (Vec<_>, Vec<_>) = all.into_iter().partition(is_held);
            self.kept = kept;
            *self.waiting.lock().expect("a lock") = self.kept.len();
            due.into_iter().for_each(|request| self.answer(request));
        }
    }

    fn answer(&mut self, request: Request) {
        let answer: Result<Vec<u8>, i32> = match request.opcode {
            // INIT: disable asynchronous reads, so that the reader itself waits.
            26 => {
                Ok([&7u32.to_ne_bytes()[..], &31u32.to_ne_bytes(), &[0; 12], &4096u32.to_ne_bytes(), &[0; 40]].concat())
            }
            1 if request.is_file => Ok([&FILE.to_ne_bytes()[..], &[0; 32], &attributes(FILE)].concat()),
            1 => Err(ENOENT),
            3 => Ok([&[0; 16][..], &attributes(request.node)].concat()),
            // OPEN and OPENDIR: reads bypass the cache.
            14 | 27 => Ok([&[0; 8][..], &1u32.to_ne_bytes(), &[0; 4]].concat()),
            15 => Ok(CONTENT.get(request.offset as usize..).unwrap_or_default().to_vec()),
            17 => Ok(vec![0; 80]),
            18 | 29 | 25 => Ok(Vec::new()),
            _ => Err(ENOSYS),
        };
        let (error, body) = answer.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
        let length = 16 + body.len() as u32;
        let header = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &request.unique.to_ne_bytes()].concat();
        // The requesting process may have exited.
        let _ = self.device.write_all(&[header, body].concat());
    }
}

/// Parses a request. Returns `None` if it requires no response (FORGET, INTERRUPT, BATCH_FORGET).
fn parse(bytes: &[u8]) -> Option<Request> {
    let number =
        |at: usize| bytes.get(at..at + 8).map(|number| u64::from_ne_bytes(number.try_into().expect("8 bytes")));
    let opcode = (number(0)? >> 32) as u32;
    let (unique, node) = (number(8)?, number(16)?);
    let is_file = opcode == 1 && bytes.get(40..) == Some(b"file\0");
    let offset = if opcode == 15 { number(48)? } else { 0 };
    (![2, 36, 42].contains(&opcode)).then_some(Request { opcode, unique, node, is_file, offset })
}

/// Encodes the attributes of a node as `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, links, size) =
        if node == ROOT { (0o040_755u32, 2u32, 0u64) } else { (0o100_644, 1, CONTENT.len() as u64) };
    let longs = [node, size, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let shorts = [0, 0, 0, mode, links, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat();
    [longs, shorts].concat()
}

/// Returns true if a process is in uninterruptible sleep.
pub fn is_uninterruptible(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("\nState:\tD"))
}
