//! Secrets that no process of the container sees: those of the steps of a tree of actions, each of which waits in the volume until
//! its step begins and is wiped when that ends, and an environment that is kept for processes that are executed later.
//!
//! ```text
//! /steps/3/payload      arguments and environment of process 3, until it runs (0600, root)
//! /steps/3/0/db/user    its files, mount point 0: read-only views of these are in the process's own mount namespace
//! /steps/3/1            mount point 1, a single file
//! /steps/environment    environment of the container's process, until the container ends (0600, root)
//! /steps/5/payload      URL of a transfer, which is numbered behind the processes, until it has ended (0600, root)
//! /steps/cover          an empty directory, mounted over the view of /steps in the container
//! ```
//! They are here and not in memory files of their own, because whoever finishes a container wipes the volume: the shim, the
//! launcher, or a later launcher that finds the container alone.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::payload;
use executor_core::placement::{Content, StepMount};
use executor_core::plan::FILE_MODE;

use super::inputs::Stored;
use super::wipe::Receipt;
use super::{
    Access, DIRECTORY, Owner, PASSAGE, Pass, READ_ONLY, ROOT, Volume, absent_is_fine, make_dir, make_generation,
    make_link, write_file,
};

/// Directory of all steps.
const STEPS: &str = "steps";
const COVER: &str = "cover";
const PAYLOAD: &str = "payload";
const ENVIRONMENT: &str = "environment";

/// Secrets of a step.
pub struct StepSecrets<'a> {
    /// Index of its process.
    pub process: usize,
    /// Payload of its process.
    pub payload: &'a [u8],
    /// Mount points of its files.
    pub mounts: &'a [StepMount],
    /// Contents of its files.
    pub contents: &'a [&'a [u8]],
    /// Permissions of its files.
    pub access: &'a [Access],
    /// Owner of its files.
    pub owner: Owner,
}

impl Volume {
    /// Makes the directory of all steps.
    ///
    /// # Errors
    /// No room.
    pub fn make_steps(&self) -> io::Result<OwnedFd> {
        let steps = make_dir(self.handle(), STEPS.as_ref(), ROOT, Access { mode: DIRECTORY, gid: ROOT })?;
        make_dir(steps.as_fd(), COVER.as_ref(), ROOT, Access { mode: PASSAGE, gid: ROOT })?;
        Ok(steps)
    }

    /// Writes the secrets of a step into the directory of all steps. The pages are charged to the cgroup of the calling
    /// process.
    ///
    /// # Errors
    /// No room: in the volume, or in the cgroup's memory limit.
    ///
    /// # Panics
    /// Where `contents` or `access` is shorter than the indices in the mounts say: the caller counts them first.
    pub fn fill_step(&self, steps: BorrowedFd<'_>, step: &StepSecrets<'_>, pass: &mut Pass<'_>) -> io::Result<()> {
        let StepSecrets { process, payload, mounts, contents, access, owner } = *step;
        let name = process.to_string();
        let dir = make_dir(steps, name.as_ref(), ROOT, Access { mode: DIRECTORY, gid: ROOT })?;
        write_file(dir.as_fd(), PAYLOAD.as_ref(), payload, ROOT, Access { mode: FILE_MODE, gid: ROOT })?;
        for (number, StepMount { point, links }) in mounts.iter().enumerate() {
            let name = number.to_string();
            match &point.content {
                Content::File(index) => {
                    let file = write_file(dir.as_fd(), name.as_ref(), contents[*index], owner.uid, access[*index])?;
                    pass(file.as_fd())?;
                }
                Content::Directory(files) => {
                    let shown = make_generation(dir.as_fd(), &name, &point.content, access, owner)?;
                    for (index, path) in files {
                        let file = write_file(shown.as_fd(), path, contents[*index], owner.uid, access[*index])?;
                        pass(file.as_fd())?;
                    }
                    for (path, text) in links {
                        make_parents(shown.as_fd(), path, owner)?;
                        make_link(text, shown.as_fd(), path, owner)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Keeps an environment in the directory of all steps, as a payload of its strings. The pages are charged to the cgroup of the
    /// calling process.
    ///
    /// # Errors
    /// No room: in the volume, or in the cgroup's memory limit.
    pub fn keep_environment(&self, steps: BorrowedFd<'_>, strings: &[&[u8]]) -> io::Result<()> {
        let mut file = write_file(steps, ENVIRONMENT.as_ref(), &[], ROOT, Access { mode: FILE_MODE, gid: ROOT })?;
        // Piece by piece, so that they are nowhere else on their way.
        file.write_all(&payload::head(strings.len()))?;
        for string in strings {
            file.write_all(&payload::prefix(string.len()))?;
            file.write_all(string)?;
        }
        Ok(())
    }

    /// Returns the environment that is kept.
    ///
    /// # Errors
    /// There is none.
    pub fn environment(&self) -> io::Result<Stored> {
        self.open(&Path::new(STEPS).join(ENVIRONMENT))
    }

    /// Writes the URL of a transfer into the directory of all steps, under a number behind those of the processes.
    ///
    /// # Errors
    /// As [`Volume::fill_step`].
    pub fn fill_transfer(&self, steps: BorrowedFd<'_>, number: usize, url: &[u8]) -> io::Result<()> {
        let dir = make_dir(steps, number.to_string().as_ref(), ROOT, Access { mode: DIRECTORY, gid: ROOT })?;
        write_file(dir.as_fd(), PAYLOAD.as_ref(), url, ROOT, Access { mode: FILE_MODE, gid: ROOT }).map(drop)
    }

    /// Returns the payload of a process, until it is wiped.
    ///
    /// # Errors
    /// There is none.
    pub fn step_payload(&self, process: usize) -> io::Result<Stored> {
        self.open(&place(process).join(PAYLOAD))
    }

    /// Returns detached read-only views of a step's files, one for each mount point.
    ///
    /// # Errors
    /// As [`Volume::views`].
    pub fn step_views(&self, process: usize, mounts: usize) -> io::Result<Vec<OwnedFd>> {
        (0..mounts).map(|number| self.view_with(&place(process).join(number.to_string()), READ_ONLY)).collect()
    }

    /// Returns views of the directory of all steps and of what is mounted over it, for a container: a launcher that finds it
    /// without its shim and without a handle takes the handle from there. No process of the container reaches it.
    ///
    /// # Errors
    /// As [`Volume::views`].
    pub fn steps_views(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.view(STEPS.as_ref())?, self.view(&Path::new(STEPS).join(COVER))?])
    }

    /// Wipes the payload of a process that has it by now. It does not count in a receipt, as it does not elsewhere.
    ///
    /// # Errors
    /// As [`Volume::wipe`].
    pub fn wipe_step_payload(&self, process: usize) -> io::Result<()> {
        absent_is_fine(self.wipe_below(&place(process).join(PAYLOAD), &mut Receipt::default()))
    }

    /// Wipes all that is left of a step.
    ///
    /// # Errors
    /// As [`Volume::wipe`].
    pub fn wipe_step(&self, process: usize, receipt: &mut Receipt) -> io::Result<()> {
        let wiped = absent_is_fine(self.wipe_below(&place(process), receipt));
        self.release();
        wiped
    }
}

/// Path of the directory of a process.
fn place(process: usize) -> PathBuf {
    Path::new(STEPS).join(process.to_string())
}

/// Makes the directories that a link lies in, where a file did not need them.
fn make_parents(shown: BorrowedFd<'_>, path: &Path, owner: Owner) -> io::Result<()> {
    let mut parents: Vec<&Path> = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()).collect();
    parents.reverse();
    for parent in parents {
        match make_dir(shown, parent.as_os_str(), owner.uid, Access { mode: DIRECTORY, gid: owner.gid }) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => drop(made?),
        }
    }
    Ok(())
}
