//! Runs the launcher from a sealed memory file.
//!
//! /proc/PID/exe of a created container's init is this program. By writing to this file, a process in the container
//! could take over the host (CVE-2019-5736). A sealed memory file cannot be written, and is separate from the file on
//! disk.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use executor_sys::hugepages::{self, HUGE_PAGE};
use executor_sys::title;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;

/// Variables that the re-executed launcher keeps. In particular, `LISTEN_FDS` must not be kept: if it is set,
/// libcontainer passes descriptors on to the container.
const KEPT: [&str; 6] = ["PATH", "NOTIFY_SOCKET", "WATCHDOG_USEC", "JOURNAL_STREAM", "RUST_BACKTRACE", "INVOCATION_ID"];
/// Disables glibc's cache of up to seven freed blocks of each size. After a fork, cached blocks would keep pages in all
/// parts of the heap in memory.
const ALLOCATOR: &[u8] = b"GLIBC_TUNABLES=glibc.malloc.tcache_count=0";
const NAME: &str = "executor-launcher";
/// Bytes reserved in the command line of the copy, in which the launcher's children show their role and container id.
const TITLE_ROOM: usize = 512;
/// Time limit for sealing the copy. A single attempt takes the kernel about 0.1 s before it fails.
const SEAL_TIMEOUT: Duration = Duration::from_secs(20);
/// Thread name of a launcher until it owns the run directory.
pub(crate) const STARTING: &CStr = c"executor-start";
/// Thread name of a launcher that owns the run directory. The launcher's children inherit the name.
pub(crate) const SERVING: &CStr = c"executor-launch";
/// Target of /proc/PID/exe of this process and its children.
pub(crate) const LINK: &str = "/memfd:executor-launcher (deleted)";

/// Returns true if this process runs from a sealed memory file.
pub(crate) fn is_sealed() -> bool {
    let named = std::fs::read_link("/proc/self/exe").is_ok_and(|exe| exe.starts_with(Path::new(LINK)));
    let seals = || {
        let exe = File::open("/proc/self/exe")?;
        io::Result::Ok(fcntl_get_seals(exe.as_fd())?)
    };
    named && seals().is_ok_and(|seals| seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW))
}

/// Sets the command line that `ps` displays to the arguments of this process, without the reserved bytes after the
/// first argument. Must be called before the first fork.
///
/// # Errors
/// Returns an error if `/proc` cannot be read.
pub(crate) fn show_arguments() -> io::Result<()> {
    let args: Vec<_> = std::env::args_os().collect();
    let shown: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes().trim_ascii_end()).collect();
    title::locate()?;
    title::set_arguments(&shown);
    Ok(())
}

/// Re-executes this program from a sealed copy, with the same arguments, only the variables in `KEPT`, and only the
/// standard descriptors. Returns only on failure.
pub(crate) fn reexec() -> io::Error {
    match copy().and_then(|file| become_copy(&file)) {
        Err(error) => error,
        Ok(never) => match never {},
    }
}

fn copy() -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A memory file is executable by default; kernels from 6.3 on expect an explicit flag.
    let fd = memfd_create(NAME, flags | MemfdFlags::EXEC).or_else(|_| memfd_create(NAME, flags))?;
    let mut file = File::from(fd);
    let len = io::copy(&mut File::open("/proc/self/exe")?, &mut file)?.next_multiple_of(HUGE_PAGE as u64);
    file.set_len(len)?;
    // This is only for speed: each process of a container, and each warm container, loads the used pages of this
    // program.
    let _ = hugepages::collapse(&file, len as usize);
    file.rewind()?;
    let deadline = Instant::now() + SEAL_TIMEOUT;
    seal(&file, || Instant::now() < deadline)?;
    Ok(file)
}

/// Seals the file. The kernel returns EBUSY while a page of the file is pinned, for example because memory is moved or
/// reclaimed. Tries again as long as `may_retry` returns true.
fn seal(file: &File, mut may_retry: impl FnMut() -> bool) -> rustix::io::Result<()> {
    loop {
        match fcntl_add_seals(file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL) {
            Err(Errno::BUSY) if may_retry() => {}
            done => return done,
        }
    }
}

fn become_copy(file: &File) -> io::Result<std::convert::Infallible> {
    let string = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let room = std::iter::once(vec![b' '; TITLE_ROOM]).chain(std::iter::repeat(Vec::new()));
    let args = std::env::args_os().zip(room).map(|(arg, room)| string(&[arg.as_bytes(), &room].concat()));
    let args = args.collect::<io::Result<Vec<_>>>()?;
    let env = KEPT
        .iter()
        .filter_map(|name| std::env::var_os(name).map(|value| [name.as_bytes(), b"=", value.as_bytes()].concat()))
        .chain([ALLOCATOR.to_vec()])
        .map(|pair| string(&pair))
        .collect::<io::Result<Vec<_>>>()?;
    executor_sys::process::close_on_exec_from(3)?;
    Ok(nix::unistd::fexecve(file, &args, &env)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// If a page of the file is pinned for a short time, sealing succeeds afterwards. Control: sealing fails while the
    /// page is pinned.
    #[test]
    fn seal_waits_for_pinned_page() {
        let mut file = File::from(memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all(&[7; 4096]).unwrap();
        let (out, into) = rustix::pipe::pipe().unwrap();
        let held = rustix::pipe::splice(&file, Some(&mut 0), &into, None, 4096, rustix::pipe::SpliceFlags::empty());
        assert_eq!(held, Ok(4096));
        assert_eq!(seal(&file, || false), Err(Errno::BUSY));
        let mut out = File::from(out);
        seal(&file, || out.read_exact(&mut [0; 4096]).is_ok()).unwrap();
        assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::WRITE));
        assert_eq!(file.write_all(&[8]).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
