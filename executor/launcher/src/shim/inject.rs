//! The secret files, written and mounted by a helper process.
//!
//! The helper is forked from the shim, joins the container's memory accounting (so that the files' pages count
//! against the container's own limit), writes the files into the detached volume straight from the memory file,
//! enters the container's namespaces and moves the read-only views into place. It is gone before the container
//! starts. It also brings loopback up, which needs the same namespaces.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use executor_core::payload;
use executor_core::placement::{Content, MountPoint};
use executor_core::plan::{Network, Plan};
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::Violation;
use executor_secrets::volume::{Owner, Volume};
use executor_sys::memfile::MemFile;
use executor_sys::mount::{self, Follow, open_dir, open_in_root};
use executor_sys::process::{self, Ended, Fork};
use executor_sys::seqpacket::Seqpacket;
use rustix::fs::{Mode, OFlags};

use crate::dirs::plain;
use crate::host::Host;
use crate::rootfs::{failed, make_target};

/// What is carried into a container.
pub(super) struct Injection<'a> {
    pub(super) host: &'a Host,
    pub(super) plan: &'a Plan,
    pub(super) cgroup: &'a Path,
    pub(super) init: i32,
    pub(super) owner: (u32, u32),
    pub(super) mounts: &'a [MountPoint],
    pub(super) volume: Option<&'a Volume>,
    pub(super) files: &'a MemFile,
    /// A directory in the shim's namespace where the volume can be attached on kernels that need that.
    pub(super) staging: &'a Path,
}

/// A step that failed, on what.
struct Failed(String, io::Error);

impl Injection<'_> {
    /// Does it, in a helper.
    pub(super) fn carry_out(&self) -> Result<(), Refused> {
        if self.volume.is_none() && self.plan.network == Network::Host {
            return Ok(());
        }
        let (ours, theirs) = Seqpacket::pair().map_err(|error| failed("socket", &error))?;
        let helper = match process::fork().map_err(|error| failed("fork", &error))? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                let code = match self.act() {
                    Ok(()) => 0,
                    Err(Failed(what, error)) => {
                        let kind = error.raw_os_error().unwrap_or(0).to_le_bytes();
                        let _ = theirs.send(&[&kind, format!("{what}: {}", plain(&error)).as_bytes()].concat(), &[]);
                        1
                    }
                };
                process::exit_now(code)
            }
        };
        drop(theirs);
        let mut told = vec![0; 8192];
        let told_length = ours.recv(&mut told);
        let ended = process::wait_for(helper).map_err(|error| failed("helper", &error))?;
        match (ended, told_length) {
            (Ended::Code(0), _) => Ok(()),
            (Ended::Signal(libc::SIGKILL), _) => Err(self.too_small()),
            (_, Ok(Some((length, _)))) => {
                let (errno, words) = told[..length].split_first_chunk::<4>().unwrap_or((&[0; 4], b"injection failed"));
                match i32::from_le_bytes(*errno) {
                    libc::ENOMEM => Err(self.too_small()),
                    libc::ENOSPC => Err(Refused::new(Reason::Exhausted, String::from_utf8_lossy(words))),
                    _ => Err(Refused::new(Reason::Internal, String::from_utf8_lossy(words))),
                }
            }
            (ended, _) => {
                Err(Refused::new(Reason::Internal, format!("the helper that mounts secret files ended with {ended:?}")))
            }
        }
    }

    /// The files are charged to the container, and it has no room for them.
    fn too_small(&self) -> Refused {
        let bytes: u64 = self.plan.files.iter().map(|file| file.size).sum();
        let why = format!("{} does not hold the {bytes} bytes of volume mounted files", self.plan.limits.memory_bytes);
        Refused::of_fields(Reason::Precondition, &[Violation::new("limits.memory_bytes", why)])
    }

    fn act(&self) -> Result<(), Failed> {
        let views = match self.volume {
            None => Vec::new(),
            Some(volume) => {
                self.host
                    .hierarchies
                    .join_memory(self.cgroup)
                    .map_err(|error| Failed("memory cgroup".into(), error))?;
                self.fill(volume)?;
                self.views(volume)?
            }
        };
        let init = process::pidfd(self.init).map_err(|error| Failed("init".into(), error))?;
        let network = self.plan.network == Network::None;
        process::enter_namespaces(init.as_fd(), !views.is_empty(), network)
            .map_err(|error| Failed("namespaces".into(), error))?;
        if network {
            executor_sys::netif::loopback_up().map_err(|error| Failed("loopback".into(), error))?;
        }
        for (mount, view) in self.mounts.iter().zip(&views) {
            self.place(mount, view).map_err(|error| Failed(format!("mount at {}", mount.target.display()), error))?;
        }
        Ok(())
    }

    fn fill(&self, volume: &Volume) -> Result<(), Failed> {
        let mismatch = || io::Error::new(io::ErrorKind::InvalidData, "contents and plan do not fit one another");
        let owner = Owner { uid: self.owner.0, gid: self.owner.1 };
        let filled = self.files.read(|bytes| {
            let contents = payload::decode(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let sizes = contents.iter().map(|content| content.len() as u64);
            if !sizes.eq(self.plan.files.iter().map(|file| file.size)) {
                return Err(mismatch());
            }
            volume.fill(self.mounts, &contents, owner)
        });
        filled.and_then(|filled| filled).map_err(|error| Failed("secret files".into(), error))
    }

    /// Views of the volume; attached in the shim's namespace first where the kernel cannot clone it detached.
    fn views(&self, volume: &Volume) -> Result<Vec<OwnedFd>, Failed> {
        let views = match volume.views(self.mounts) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => open_dir(self.staging)
                .and_then(|staging| volume.attach(staging.as_fd()))
                .and_then(|()| volume.views(self.mounts)),
            views => views,
        };
        views.map_err(|error| Failed("views of the secret files".into(), error))
    }

    /// Moves a view onto its place, with the container's root as `/`.
    fn place(&self, point: &MountPoint, view: &OwnedFd) -> io::Result<()> {
        let root = open_dir(Path::new("/"))?;
        if point.in_fresh_mount {
            make_target(root.as_fd(), point)?;
        }
        let kind = if matches!(point.content, Content::Directory(_)) { OFlags::DIRECTORY } else { OFlags::empty() };
        let target = open_in_root(root.as_fd(), &point.target, OFlags::PATH | kind, Mode::empty(), Follow::NoLinks)?;
        mount::attach(view.as_fd(), target.as_fd())
    }
}
