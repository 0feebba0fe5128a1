//! Activates a warm container: the shim sends a command to init, and init executes it.
//!
//! Init is root of its own user namespace and has every capability over its namespaces. Its root file system is a
//! skeleton. Init receives the container's root file system as a detached mount and replaces the skeleton with it. Init
//! mounts the views of secret files that the command carries ([`super::warm_files`]). In a container that is not warm,
//! a helper mounts these views. Init then sets the host name, the limits, the standard descriptors, and finally the
//! container's user and capabilities. After this, init has the same state as an init that libcontainer created for the
//! plan. Init waits for the start message, and reads neither secrets nor files of the root file system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use executor_core::limits::CORE_FILE_MAX;
use executor_core::placement::MountPoint;
use executor_core::plan::HostOptions;
use executor_core::protocol::Refused;
use executor_core::spec::CapabilitySets;
use executor_core::users::ResolvedUser;
use executor_sys::capabilities::CapsHashSet;
use executor_sys::privileges::{Credentials, drop_to_credentials};
use executor_sys::seqpacket::{FDS_MAX, Seqpacket};
use executor_sys::{capabilities, heap, process, pty, root};
use nix::sys::resource::{Resource, setrlimit};
use serde::{Deserialize, Serialize};

use super::init_spec::{InitRole, InitSpec};
use super::warm_files::{VIEWS_MAX, WarmViews};
use crate::errors::{failed, failed_by};
use crate::program::{FAILURE_MAX, START_TIMEOUT, StartFailure};
use crate::shim::files::helper::HelperFailure;
use crate::shim::files::inject;
use crate::warm::{KEPT, STAGE};

/// Message that init sends after its activation.
const ACCEPTED: &[u8] = b"taken";
/// Message that init sends before the error message if the activation failed and the command carried the payload.
pub(crate) const NOT_ACCEPTED: &[u8] = b"not taken";
/// Maximum size of a command, in bytes.
const COMMAND_MAX: usize = 64 << 10;
/// Maximum number of groups in a command to a warm container. Each group needs at most 11 bytes of the command.
pub(crate) const GROUPS_MAX: usize = 4096;

/// Command that activates a container.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ActivationCommand {
    pub(crate) part: InitSpec,
    pub(crate) host_name: String,
    pub(crate) nofile: u64,
    /// Names of capabilities, as the kernel spells them.
    pub(crate) capabilities: Vec<String>,
    /// True if the capabilities are inheritable and ambient, too.
    pub(crate) ambient: bool,
    /// Mount points of the secret files whose views the command carries.
    pub(crate) mounts: Vec<MountPoint>,
    /// True if a view of the generations precedes the other views.
    pub(crate) generations: bool,
}

impl ActivationCommand {
    /// Creates the command for a container whose process holds these capabilities.
    pub(crate) fn new(
        part: InitSpec,
        host_name: String,
        nofile: u64,
        sets: &CapabilitySets,
        mounts: Vec<MountPoint>,
    ) -> Self {
        let capabilities = sets.names.iter().map(|name| (*name).to_owned()).collect();
        Self { part, host_name, nofile, capabilities, ambient: sets.ambient, mounts, generations: false }
    }

    /// Serializes the command for init. The command carries the container's root file system, standard descriptors and
    /// views of secret files.
    ///
    /// # Errors
    /// Returns an error if serialization fails, which does not happen in practice.
    pub(crate) fn into_message(
        mut self,
        root: OwnedFd,
        stdio: [OwnedFd; 3],
        views: Option<WarmViews>,
    ) -> Result<ActivationMessage, Refused> {
        let (mounts, generations) = views.map(|views| (views.mounts, views.generations)).unzip();
        self.generations = generations.as_ref().is_some_and(Option::is_some);
        let fds = std::iter::once(root).chain(stdio).chain(generations.flatten()).chain(mounts.unwrap_or_default());
        let words = serde_json::to_vec(&self)
            .map_err(|fault| failed("cannot encode the activation command for the warm container", &fault.into()))?;
        Ok(ActivationMessage { words, fds: fds.collect() })
    }
}

/// Serialized command with its descriptors.
pub(crate) struct ActivationMessage {
    words: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl ActivationMessage {
    /// Sends the command to init and waits until init has executed it.
    ///
    /// # Errors
    /// Returns a refusal if a step fails in init or if init has exited. The message names the failed step.
    pub(crate) fn execute(self, init: &Seqpacket) -> Result<(), Refused> {
        let error = |error: io::Error| failed("cannot activate the warm container", &error);
        self.send(init, None).map_err(error)?;
        let mut reported = vec![0; FAILURE_MAX];
        match init.recv_by(&mut reported, Instant::now() + START_TIMEOUT).map_err(error)? {
            Some((length, _)) if &reported[..length] == ACCEPTED => Ok(()),
            Some((length, _)) => {
                Err(failed_by(format!("warm container: {}", StartFailure::decode(&reported[..length]).1)))
            }
            None => Err(error(io::Error::other("the init process has exited"))),
        }
    }

    /// Sends the command to init, together with the payload if there is one, and does not wait. If a step fails and the
    /// command carries a payload, init sends [`NOT_ACCEPTED`] before the error message.
    ///
    /// # Errors
    /// Returns an error if init has exited.
    pub(crate) fn send(self, init: &Seqpacket, payload: Option<BorrowedFd<'_>>) -> io::Result<()> {
        const { assert!(1 + 3 + VIEWS_MAX < FDS_MAX) };
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).chain(payload).collect();
        init.send(&self.words, &fds)
    }
}

/// Runs in init: waits for the command and executes it. Also returns the payload, if the command carried one.
///
/// # Errors
/// Returns the failed step and its error if a step fails. The caller must then exit, because it may still have
/// privileges.
pub(crate) fn execute(socket: &Seqpacket) -> Result<(InitSpec, Option<OwnedFd>), StartFailure> {
    let step = |what: &'static str| move |error: io::Error| StartFailure::new(what, error);
    prepare_for_command(socket);
    let mut buffer = vec![0; COMMAND_MAX];
    let received = socket.recv(&mut buffer).and_then(|received| received.ok_or(io::ErrorKind::UnexpectedEof.into()));
    let (length, mut fds) = received.map_err(step("cannot wait for a container"))?;
    let read = serde_json::from_slice::<ActivationCommand>(&buffer[..length]).map_err(io::Error::from);
    let command = read.map_err(step("cannot read the activation command"))?;
    drop(buffer);
    let views = command.mounts.len() + usize::from(command.generations);
    let payload = (fds.len() > 1 + 3 + views).then(|| fds.pop()).flatten();
    let accepted = command.apply(fds).and_then(|part| {
        if payload.is_none() {
            socket.send(ACCEPTED, &[]).map_err(step("cannot report the activation"))?;
        }
        Ok(part)
    });
    match accepted {
        Ok(part) => Ok((part, payload)),
        Err(failure) => {
            if payload.is_some() {
                let _ = socket.send(NOT_ACCEPTED, &[]); // fails only if the shim has exited
            }
            Err(failure)
        }
    }
}

/// Prepares init for a command: closes the launcher's descriptors, returns memory that libcontainer has used, and
/// parses a sample command, so that the memory for parsing is already allocated.
fn prepare_for_command(socket: &Seqpacket) {
    let _ = process::close_all_but(&[socket.as_fd()]); // repeated before execve
    heap::trim();
    let _ = process::trim_stack();
    let user = ResolvedUser { uid: 0, gid: 0, groups: Vec::new(), home: "/".into() };
    let part = InitSpec {
        user,
        terminal: None,
        role: InitRole::Program,
        options: HostOptions::default(),
        device_environment: Vec::new(),
        own_domain: false,
    };
    let held = CapabilitySets::default();
    let sample = ActivationCommand::new(part, String::new(), 0, &held, Vec::new());
    let read = serde_json::to_vec(&sample).and_then(|words| serde_json::from_slice::<ActivationCommand>(&words));
    drop(std::hint::black_box(read));
}

impl ActivationCommand {
    /// Turns this process into the container's init. `fds` are the root file system, the standard descriptors and the
    /// views.
    fn apply(self, fds: Vec<OwnedFd>) -> Result<InitSpec, StartFailure> {
        let step = |what: &'static str| move |error: io::Error| StartFailure::new(what, error);
        let Self { part, host_name, nofile, capabilities, ambient, mounts, generations } = self;
        let mut fds = fds.into_iter();
        let (Some(root), Some(stdin), Some(stdout), Some(stderr)) = (fds.next(), fds.next(), fds.next(), fds.next())
        else {
            return Err(step("cannot read the activation command")(io::ErrorKind::InvalidData.into()));
        };
        let generations = if generations { fds.next() } else { None };
        let views: Vec<OwnedFd> = fds.collect();
        pty::stdio(stdin.as_fd(), stdout.as_fd(), stderr.as_fd()).map_err(step("cannot set the standard streams"))?;
        root::exchange(root.as_fd(), &Path::new("/").join(STAGE), &KEPT).map_err(step("cannot replace the root"))?;
        let owner = (part.user.uid, part.user.gid);
        inject::show(&mounts, &views, generations.as_ref(), |_| Some(owner))
            .map_err(|HelperFailure(what, error)| StartFailure::new(what, error))?;
        root::set_host_name(&host_name).map_err(step("cannot set the host name"))?;
        let nofile = setrlimit(Resource::RLIMIT_NOFILE, nofile, nofile);
        nofile.map_err(|error| step("cannot limit open files")(error.into()))?;
        let core = setrlimit(Resource::RLIMIT_CORE, CORE_FILE_MAX, CORE_FILE_MAX);
        core.map_err(|error| step("cannot limit core files")(error.into()))?;
        let user = &part.user;
        let credentials = capabilities::named(capabilities.iter().map(String::as_str)).map(|capabilities| {
            Credentials {
                uid: user.uid,
                gid: user.gid,
                groups: user.groups.clone(),
                bounding: capabilities.clone(),
                ambient: if ambient { capabilities.clone() } else { CapsHashSet::new() },
                capabilities,
                new_privileges: false, // a container with new privileges uses no warm container
            }
        });
        credentials
            .and_then(|credentials| drop_to_credentials(&credentials))
            .map_err(step("cannot become the container's user"))?;
        Ok(part)
    }
}
