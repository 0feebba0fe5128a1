//! Unpacks a layer in a process with few rights, because a layer is untrusted input.
//!
//! The only open files are the blob, the process's own directory and the parent layers. The process has its own mount
//! namespace, no network, and no access to the memory of other processes. The process keeps only the capabilities for
//! creating files with any owner, mode and attribute. These include `CAP_SYS_ADMIN`, which the kernel requires for
//! setting overlay attributes. A filter blocks all other actions that `CAP_SYS_ADMIN` would permit.

use executor_core::limits::processor_seconds;
use executor_core::protocol::Refused;
use executor_layers::{Request, Store, UnpackError};
use executor_sys::capabilities::Capability;
use executor_sys::privileges::keep_root_with;
use executor_sys::process;
use executor_sys::seqpacket::Seqpacket;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use prost::Message;

use super::sizes::SizeReport;
use super::{LayerWork, limits, refused};
use crate::seccomp::Filter;

/// Limit on the address space in bytes: enough for two zstd windows of maximum size, and the program.
const MEMORY_MAX: u64 = 1 << 30;
/// Limit on open descriptors: enough for the parent layers and a few more.
const FILES_MAX: u64 = 256;

const KEPT: [Capability; 6] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_FOWNER,
    Capability::CAP_FSETID,
    Capability::CAP_SETFCAP,
    Capability::CAP_SYS_ADMIN,
];

/// Allowed system calls: files by descriptor, memory, and exit.
const CALLS: [i64; 67] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lgetxattr,
    libc::SYS_linkat,
    libc::SYS_llistxattr,
    libc::SYS_lseek,
    libc::SYS_lsetxattr,
    libc::SYS_madvise,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_tgkill,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_fchmodat2,
];

/// Executes the work, and sends a refusal or the measured sizes to the launcher. A failed measurement is only logged.
/// Returns the exit status.
pub(super) fn run(store: &Store, work: LayerWork, parent: u32, devices: bool, reported: &Seqpacket) -> i32 {
    let is_measurement = matches!(work, LayerWork::Measure(_));
    match act(store, work, parent, devices) {
        Ok(None) => 0,
        Ok(Some(report)) => i32::from(reported.send(&report.encode_to_vec(), &[]).is_err()),
        Err(error) if is_measurement => {
            crate::log::line(crate::log::Level::Warning, "", format_args!("cannot measure layers: {error}"));
            1
        }
        Err(error) => {
            let refused: Refused = refused(&error);
            i32::from(reported.send(&refused.encode_to_vec(), &[]).is_err())
        }
    }
}

fn act(store: &Store, work: LayerWork, parent: u32, devices: bool) -> Result<Option<SizeReport>, UnpackError> {
    let host = |about: &'static str| move |error| UnpackError::Host { about: about.into(), error };
    let start = || -> std::io::Result<()> {
        process::die_with(parent)?;
        process::be_expendable()?;
        rustix::thread::set_name(c"executor-layer")?;
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC)?;
        // If the address space is exhausted, a library may retry forever. The limit on CPU time then kills the process.
        if let LayerWork::Unpack { bytes_max, .. } = &work {
            let seconds = processor_seconds(*bytes_max);
            setrlimit(Resource::RLIMIT_CPU, seconds, seconds)?;
        }
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        setrlimit(Resource::RLIMIT_NOFILE, FILES_MAX, FILES_MAX)?;
        Ok(setrlimit(Resource::RLIMIT_AS, MEMORY_MAX, MEMORY_MAX)?)
    };
    start().map_err(host("cannot set up the layer worker"))?;
    match work {
        LayerWork::Unpack { diff_id, compression, parents, bytes_max, blob } => {
            let request = Request { diff_id, compression, blob, parents: &parents, limits: limits(bytes_max), devices };
            let prepared = request.prepare(store)?;
            confine(devices).map_err(host("cannot confine the layer worker"))?;
            prepared.run().map(|_| None)
        }
        LayerWork::Clear(names) => {
            confine(false).map_err(host("cannot confine the layer worker"))?;
            store.clear(&names).map(|()| None).map_err(host("cannot clear the layer store"))
        }
        LayerWork::Measure(trees) => {
            confine(false).map_err(host("cannot confine the layer worker"))?;
            store.measure(&trees).map(|sizes| Some(sizes.into())).map_err(host("cannot read the layer store"))
        }
    }
}

/// Permanently drops all privileges that are no longer needed.
fn confine(devices: bool) -> std::io::Result<()> {
    let kept = KEPT.into_iter().chain(devices.then_some(Capability::CAP_MKNOD)).collect();
    keep_root_with(&kept)?;
    let filter = Filter::from_calls(&CALLS).map_err(std::io::Error::other)?;
    filter.install().map_err(std::io::Error::other)
}
