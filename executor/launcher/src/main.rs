//! `executor-launcher`: the only program of the executor with privileges.
//!
//! The launcher is single-threaded and statically linked, and runs from a sealed memory file in its own mount
//! namespace. The launcher forks a shim for each container (see [`shim`]) and completes containers whose shim has
//! exited (see [`finish`]). The launcher never maps secrets: it only passes on descriptors of secrets and overwrites
//! their memory.

#![forbid(unsafe_code)]

mod apparmor;
mod capabilities;
mod cdi;
mod cgroup;
mod cli;
mod cpuset;
mod devices;
mod dirs;
mod disk;
mod errors;
mod exec;
mod files;
mod finish;
mod host;
mod identity;
mod ids;
mod kernel_files;
mod layers;
mod log;
mod memfd_exec;
mod network;
mod orphans;
mod pods;
mod program;
mod rootfs;
mod runtime;
mod seccomp;
mod server;
mod shim;
mod shim_handle;
mod signals;
mod sweep;
mod sysctl;
mod ulimits;
mod warm;
mod workdir;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use executor_sys::{process, startup};
use nix::mount::{MsFlags, mount};

use crate::log::Level;

#[global_allocator]
static ALLOCATOR: executor_secrets::ZeroOnFree = executor_secrets::ZeroOnFree;

fn main() -> ExitCode {
    // A panic in a cloned init must abort: unwinding would continue in the shim's code, while init is the container's
    // first process.
    startup::abort_on_panic();
    match start(cli::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(ExitFailure { status, message }) => {
            log::line(Level::Error, "", message);
            ExitCode::from(status)
        }
    }
}

/// Message and status with which the launcher exits.
struct ExitFailure {
    status: u8,
    message: String,
}

impl ExitFailure {
    fn usage(message: impl Into<String>) -> Self {
        Self { status: 2, message: message.into() }
    }
}

impl From<io::Error> for ExitFailure {
    fn from(error: io::Error) -> Self {
        Self { status: 1, message: error.to_string() }
    }
}

fn start(mut args: cli::Args) -> Result<(), ExitFailure> {
    #[cfg(feature = "manual")]
    if let Some(dir) = &args.generate_man {
        return Ok(clap_mangen::generate_to(<cli::Args as clap::CommandFactory>::command(), dir)?);
    }
    // SIGHUP stays pending until it is handled as an event, even after re-executing, so that it does not kill this
    // process or its children.
    process::hold_hangup()?;
    // The file is read again later, when the working directory may be different.
    args.config = args.config.map(std::path::absolute).transpose()?;
    let config = cli::config(&args).map_err(|error| ExitFailure::usage(log::chain(&error)))?;
    if !rustix::process::geteuid().is_root() {
        return Err(ExitFailure::usage("start the launcher as root; it creates namespaces, mounts and cgroups"));
    }
    if !memfd_exec::is_sealed() {
        return Err(io::Error::other(format!("cannot run from a sealed memory file: {}", memfd_exec::reexec())).into());
    }
    rustix::thread::set_name(memfd_exec::STARTING).map_err(io::Error::from)?; // the value was the memory file's name
    memfd_exec::show_arguments()?;
    process::forbid_dumps()?;
    process::become_subreaper()?;
    nix::unistd::setgroups(&[]).map_err(io::Error::from)?; // otherwise inherited by containers' processes
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let mounts = process::mount_namespace(std::process::id() as i32)?;
    isolate()?;
    if executor_secrets::CONTROL {
        log::line(Level::Error, "", "this build does not wipe secrets: it is for tests only");
    }
    let host = host::Host::probe(&args, config, mounts)?;
    let pool = ids::pool(&host.policy)?;
    let filter = seccomp::Filter::compile(&executor_core::spec::CapabilitySets::default())
        .map_err(|error| io::Error::other(log::chain(&error)))?;
    server::serve(host, Arc::new(filter), pool, args)?;
    Ok(())
}

/// Moves the launcher into its own mount namespace. Later mounts of the host still propagate into this namespace, but
/// the launcher's mounts and unmounts do not propagate to the host.
fn isolate() -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    Ok(mount(None::<&Path>, "/", None::<&Path>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&Path>)?)
}
