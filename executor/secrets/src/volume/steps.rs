//! Stores secrets that the container's processes cannot see. Each step of an action tree has its own secrets, which are
//! kept in the volume until the step starts and wiped when the step finishes. The environment for processes that are
//! executed later is stored in the same directory.
//!
//! ```text
//! /steps/3/payload      arguments and environment of process 3, until it runs (0600, root)
//! /steps/3/0/db/user    its files, mount point 0: read-only views of these are in the process's own mount namespace
//! /steps/3/1            mount point 1, a single file
//! /steps/environment    environment of the container's process, until the container exits (0600, root)
//! /steps/5/payload      URL of a transfer, numbered after the processes, until it completes (0600, root)
//! /steps/cover          an empty directory, mounted over the view of /steps in the container
//! ```
//! The secrets of steps are in the volume and not in separate memory files, because every process that may clean up a
//! container wipes the volume: the shim, the launcher, or a later launcher that finds only the container.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::payload;
use executor_core::placement::{Content, StepMount};
use executor_core::plan::FILE_MODE;

use super::inputs::Stored;
use super::wipe::Receipt;
use super::{
    Access, DIRECTORY, Owner, PASSAGE, Pass, READ_ONLY, ROOT, Volume, ignore_not_found, make_dir, make_generation,
    make_link, write_file,
};

/// Directory of the secrets of all steps.
const STEPS: &str = "steps";
const COVER: &str = "cover";
const PAYLOAD: &str = "payload";
const ENVIRONMENT: &str = "environment";

pub struct StepSecrets<'a> {
    /// Index of the step's process in the plan.
    pub process: usize,
    /// Arguments and environment of the process, in the payload format.
    pub payload: &'a [u8],
    /// Mount points of the step's files.
    pub mounts: &'a [StepMount],
    /// Contents of the step's files.
    pub contents: &'a [&'a [u8]],
    /// Permissions of the step's files.
    pub access: &'a [Access],
    /// Owner of the step's files.
    pub owner: Owner,
}

impl Volume {
    /// Creates the directory of all steps.
    ///
    /// # Errors
    /// Returns an error if the volume is full.
    pub fn make_steps(&self) -> io::Result<OwnedFd> {
        let steps = make_dir(self.handle(), STEPS.as_ref(), ROOT, Access { mode: DIRECTORY, gid: ROOT })?;
        make_dir(steps.as_fd(), COVER.as_ref(), ROOT, Access { mode: PASSAGE, gid: ROOT })?;
        Ok(steps)
    }

    /// Writes the secrets of a step into the directory of all steps. The pages are charged to the cgroup of the calling
    /// process.
    ///
    /// # Errors
    /// Returns an error if the volume is full or the cgroup's memory limit is reached.
    ///
    /// # Panics
    /// Panics if `contents` or `access` is shorter than the indices in the mounts require; the caller checks the
    /// lengths first.
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
                    pass(file.into())?;
                }
                Content::Directory(files) => {
                    let shown = make_generation(dir.as_fd(), &name, &point.content, access, owner)?;
                    for (index, path) in files {
                        let file = write_file(shown.as_fd(), path, contents[*index], owner.uid, access[*index])?;
                        pass(file.into())?;
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

    /// Stores an environment in the directory of all steps, in the payload format. The pages are charged to the
    /// cgroup of the calling process.
    ///
    /// # Errors
    /// Returns an error if the volume is full or the cgroup's memory limit is reached.
    pub fn keep_environment(&self, steps: BorrowedFd<'_>, strings: &[&[u8]]) -> io::Result<()> {
        let mut file = write_file(steps, ENVIRONMENT.as_ref(), &[], ROOT, Access { mode: FILE_MODE, gid: ROOT })?;
        // Each string is written separately, so that there is no intermediate copy.
        file.write_all(&payload::head(strings.len()))?;
        for string in strings {
            file.write_all(&payload::prefix(string.len()))?;
            file.write_all(string)?;
        }
        Ok(())
    }

    /// Opens the stored environment.
    ///
    /// # Errors
    /// Returns an error if no environment is stored.
    pub fn environment(&self) -> io::Result<Stored> {
        self.open(&Path::new(STEPS).join(ENVIRONMENT))
    }

    /// Writes the URL of a transfer into the directory of all steps. The numbers of transfers follow the numbers of the
    /// processes.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::fill_step`].
    pub fn fill_transfer(&self, steps: BorrowedFd<'_>, number: usize, url: &[u8]) -> io::Result<()> {
        let dir = make_dir(steps, number.to_string().as_ref(), ROOT, Access { mode: DIRECTORY, gid: ROOT })?;
        write_file(dir.as_fd(), PAYLOAD.as_ref(), url, ROOT, Access { mode: FILE_MODE, gid: ROOT }).map(drop)
    }

    /// Opens the payload of a process.
    ///
    /// # Errors
    /// Returns an error if the process has no payload or the payload has been wiped.
    pub fn step_payload(&self, process: usize) -> io::Result<Stored> {
        self.open(&place(process).join(PAYLOAD))
    }

    /// Returns detached read-only views of a step's files, one for each mount point.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::views`].
    pub fn step_views(&self, process: usize, mounts: usize) -> io::Result<Vec<OwnedFd>> {
        (0..mounts).map(|number| self.view_with(&place(process).join(number.to_string()), READ_ONLY)).collect()
    }

    /// Creates views of the directory of all steps and of its cover, for the container's mount namespace. A launcher
    /// that finds a container without a shim and has no handle of the volume gets a handle from these views. The
    /// container's processes cannot access the views.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::views`].
    pub fn steps_views(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.view(STEPS.as_ref())?, self.view(&Path::new(STEPS).join(COVER))?])
    }

    /// Wipes the payload of a process once the process has received it. Receipts do not count payloads.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::wipe`].
    pub fn wipe_step_payload(&self, process: usize) -> io::Result<()> {
        ignore_not_found(self.wipe_below(&place(process).join(PAYLOAD), &mut Receipt::default()))
    }

    /// Wipes the remaining secrets of a step.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::wipe`].
    pub fn wipe_step(&self, process: usize, receipt: &mut Receipt) -> io::Result<()> {
        let wiped = ignore_not_found(self.wipe_below(&place(process), receipt));
        self.release();
        wiped
    }
}

/// Returns the path of a process's directory in the volume.
fn place(process: usize) -> PathBuf {
    Path::new(STEPS).join(process.to_string())
}

/// Creates missing parent directories of a link.
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
