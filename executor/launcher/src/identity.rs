//! Signs container certificates in a separate process. Only this process reads the CA's private key.
//!
//! The launcher forks the process when executord requests it (`server/signers.rs`). The process reads the CA's
//! certificate and key files, drops every privilege, and replies on its own connection until executord closes it. The
//! launcher never opens the key file, so no other process that it forks has the key. If the CA has changed, executord
//! requests another signer and closes the connection to the old signer when the new signer is ready.

use std::io;
use std::time::SystemTime;

use executor_core::identity::IdentitySettings;
use executor_core::protocol::{PACKET_MAX, Reason, Refused, SignRequest, SignerAnswer, SignerReply};
use executor_identity::{Authority, SignError};
use executor_sys::capabilities::{Capability, CapsHashSet, is_effective};
use executor_sys::privileges::{forbid_core_files, keep_out_of_swap, keep_root_with};
use executor_sys::process;
use executor_sys::seqpacket::Seqpacket;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use prost::Message as _;

use crate::errors::{failed, plain};
use crate::log::{self, Level};
use crate::seccomp::Filter;

/// Maximum address space of the signer in bytes, including the program and the memory inherited from the launcher.
const MEMORY_MAX: u64 = 512 << 20;
/// Maximum CPU time of the signer in seconds: enough for thousands of signatures. When the limit is reached, executord
/// requests another signer.
const PROCESSOR_SECONDS_MAX: u64 = 60;
/// Maximum number of open descriptors of the signer.
const FILES_MAX: u64 = 32;

/// Allowed system calls: the connection, memory, time, random numbers, and exit.
const CALLS: [i64; 26] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_ppoll,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_write, // panics write to standard error
];

/// Reads the CA, reports whether it can sign, and signs requests until the daemon disconnects.
pub(crate) fn run(settings: &IdentitySettings, connection: &Seqpacket, parent: u32) -> io::Result<()> {
    connection.set_nonblocking(false);
    let authority = match prepare(settings, parent) {
        Ok(authority) => authority,
        Err(refused) => {
            log::line(Level::Error, "", format_args!("identity: {}", refused.message));
            return send(connection, SignerAnswer::Refused(refused));
        }
    };
    send(connection, SignerAnswer::Ready(authority.ready()))?;
    let mut buffer = vec![0; PACKET_MAX];
    while let Some((length, fds)) = connection.recv(&mut buffer)? {
        drop(fds);
        let answer = match SignRequest::decode(&buffer[..length]) {
            Err(_) => Err(Refused::new(Reason::Invalid, "the message is not a signing request")),
            Ok(request) => authority.sign(request, SystemTime::now()).map_err(|error| refused(&error)),
        };
        send(connection, answer.map_or_else(SignerAnswer::Refused, SignerAnswer::Signed))?;
    }
    Ok(())
}

fn send(connection: &Seqpacket, answer: SignerAnswer) -> io::Result<()> {
    connection.send(&SignerReply { answer: Some(answer) }.encode_to_vec(), &[])
}

fn refused(error: &SignError) -> Refused {
    match error {
        SignError::Invalid(violations) => Refused::from_fields(Reason::Invalid, violations),
        SignError::PublicKey => Refused::new(Reason::Invalid, error.to_string()),
        SignError::Time(_) => Refused::new(Reason::Precondition, error.to_string()),
        SignError::Failed => Refused::new(Reason::Internal, error.to_string()),
    }
}

/// Protects this process from inspection by others, reads the CA, and drops all privileges.
fn prepare(settings: &IdentitySettings, parent: u32) -> Result<Authority, Refused> {
    let start = || -> io::Result<()> {
        process::die_with(parent)?;
        process::be_expendable()?; // executord requests another signer if this one is killed
        rustix::thread::set_name(c"executor-signer")?;
        forbid_core_files()?;
        if !keep_out_of_swap(true)? {
            log::line(Level::Warning, "", "identity: the CA's key cannot be kept out of swap (RLIMIT_MEMLOCK)");
        }
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC)?;
        setrlimit(Resource::RLIMIT_CPU, PROCESSOR_SECONDS_MAX, PROCESSOR_SECONDS_MAX)?;
        setrlimit(Resource::RLIMIT_NOFILE, FILES_MAX, FILES_MAX)?;
        Ok(setrlimit(Resource::RLIMIT_AS, MEMORY_MAX, MEMORY_MAX)?)
    };
    start().map_err(|error| failed("cannot set up the signer", &error))?;
    let authority = Authority::load(settings, SystemTime::now())
        .map_err(|error| Refused::new(Reason::Precondition, format!("the CA cannot sign: {error}")))?;
    executor_secrets::scrub_stack(); // the stack has copies of the key
    // Later memory locks need this capability, which grants nothing else.
    let has_lock = is_effective(Capability::CAP_IPC_LOCK).unwrap_or(false);
    let kept: CapsHashSet = has_lock.then_some(Capability::CAP_IPC_LOCK).into_iter().collect();
    let confine = || -> io::Result<()> {
        keep_root_with(&kept)?;
        Filter::from_calls(&CALLS).map_err(io::Error::other)?.install().map_err(io::Error::other)
    };
    confine()
        .map_err(|error| Refused::new(Reason::Internal, format!("cannot confine the signer: {}", plain(&error))))?;
    Ok(authority)
}
