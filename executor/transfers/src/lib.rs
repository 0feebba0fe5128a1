//! Performs downloads and uploads, each in a short-lived process of executord's program.
//!
//! ```text
//!  executord ── job, descriptors ──> worker ── fetch ──> server, into a file
//!            <──── report ──────────┘        ── look ──> verify the file's checksum, and whether it may be unpacked
//!                                            ── unpack ─> the file as tar, into the pipe of a container's process
//!                                            ── send ──> output of such a pipe, to a server
//! ```
//! A worker does one job and exits. Therefore, URLs, TLS buffers and the effects of an archive bomb exist only during
//! one job. The worker's memory is limited, it has only the descriptors of its job, and it exits when executord exits.
//! The worker creates no files from an archive; the process in the container creates them.

#![forbid(unsafe_code)]

mod fetch;
pub mod job;
mod look;
mod pass;
mod paths;
mod remote;
mod send;
mod unpack;
mod zip;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;

use executor_sys::memfile::MemFile;
use executor_sys::process;
use executor_sys::seqpacket::Seqpacket;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sha2::{Digest as _, Sha256};

use job::{Failure, Job, PACKET_MAX, Report};

/// Maximum address space of a worker in bytes, for its program, threads' stacks and buffers.
const ADDRESS_SPACE_MAX: u64 = 1 << 30;
/// Nice value of a worker. The node's own processes have a higher priority.
const NICE: i32 = 10;
/// Stack size of the thread that waits for executord to disconnect, in bytes.
const STACK: usize = 128 << 10;

/// Receives a job from the socket on standard input, executes it, and sends the report to the same socket.
pub fn work() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is visible only if an operator starts the worker manually.
            eprintln!("{}: {error}", job::WORKER_ARGUMENT);
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    process::survive_hangup()?; // like executord, which has the same process group
    // Set the OOM score before forbid_dumps, which makes root the owner of the files in /proc/self.
    process::be_expendable()?;
    process::forbid_dumps()?;
    bound(Resource::As, ADDRESS_SPACE_MAX)?;
    bound(Resource::Core, executor_core::limits::CORE_FILE_MAX)?;
    process::raise_nice(NICE)?;
    let socket = standard_input()?;
    process::close_all_but(&[socket.as_fd()])?;
    let mut packet = vec![0; PACKET_MAX];
    let (length, fds) = socket.recv(&mut packet)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let job: Job = serde_json::from_slice(&packet[..length])?;
    // If the address space is exhausted, a library may retry forever; then this limit kills the process.
    bound(Resource::Cpu, job.processor_seconds_max())?;
    let waiting = standard_input()?;
    // No further packet is expected: any event means that executord has exited or cancelled the job.
    let watch = move || {
        let _ = waiting.recv(&mut [0; 8]);
        std::process::exit(1);
    };
    std::thread::Builder::new().name("executord-gone".into()).stack_size(STACK).spawn(watch)?;
    let report = execute(job, fds).unwrap_or_else(Report::Failed);
    socket.send(&serde_json::to_vec(&bounded(report))?, &[])
}

/// Returns the socket to executord, in blocking mode.
fn standard_input() -> io::Result<Seqpacket> {
    let socket = Seqpacket::from_peer(rustix::stdio::stdin().try_clone_to_owned()?)?;
    socket.set_nonblocking(false);
    Ok(socket)
}

/// Lowers a resource limit. A limit that is already lower does not change.
fn bound(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

fn execute(job: Job, fds: Vec<OwnedFd>) -> Result<Report, Failure> {
    let missing = || Failure::last("a job arrived without its descriptors");
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(missing);
    match job {
        Job::Locate => Ok(Report::Located { place: remote::Url::read(&memory(next()?)?)?.place() }),
        Job::Fetch(fetch) => {
            let url = remote::Url::read(&memory(next()?)?)?;
            fetch::fetch(&fetch, &url, File::from(next()?))
        }
        Job::Look(look) => look::inspect(&look, &File::from(next()?)),
        Job::Unpack(unpack) => {
            let file = File::from(next()?);
            unpack::unpack(&unpack, &file, blocking(next()?)?)
        }
        Job::Send(send) => {
            let url = remote::Url::read(&memory(next()?)?)?;
            send::send(&send, &url, blocking(next()?)?)
        }
    }
}

fn memory(fd: OwnedFd) -> Result<MemFile, Failure> {
    let most = executor_core::limits::URL_MAX as u64;
    MemFile::from_fd_to_wipe(fd, most)
        .map_err(|error| Failure::last(format!("cannot use the memory file with the URL: {error}")))
}

/// Sets a pipe to blocking mode, because executord used it in non-blocking mode.
fn blocking(fd: OwnedFd) -> Result<File, Failure> {
    rustix::io::ioctl_fionbio(&fd, false)
        .map_err(|error| Failure::last(format!("cannot make the pipe blocking: {error}")))?;
    Ok(fd.into())
}

/// Limits a report to the size of a packet: shortens the reason to one line, and removes validators that are too long.
fn bounded(report: Report) -> Report {
    const VALIDATOR_MAX: usize = 1024;
    match report {
        Report::Failed(Failure { why, kind }) => Report::Failed(Failure { why: one_line(&why), kind }),
        Report::Fetched { mut validators } => {
            for validator in [&mut validators.etag, &mut validators.last_modified] {
                validator.take_if(|text| text.len() > VALIDATOR_MAX);
            }
            Report::Fetched { validators }
        }
        report => report,
    }
}

/// Returns the digest of a key in hexadecimal, for use as a file name.
pub fn key_digest(key: &str) -> String {
    hex::encode(Sha256::digest(key))
}

/// Converts a reason to one line: replaces control characters, and truncates it to the limit.
pub fn one_line(why: &str) -> String {
    let line = executor_core::text::replaced(why, ' ');
    line[..line.floor_char_boundary(executor_core::limits::TRANSFER_REASON_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_bounded_line() {
        assert_eq!(one_line("a\nb\u{7}c\u{202e}d"), "a b c d");
        assert_eq!(one_line(&"\u{e4}".repeat(1000)).len(), 1024);
    }
}
