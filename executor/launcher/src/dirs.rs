//! Manages the directories of a container and their files.
//!
//! ```text
//! RUN_DIR/containers/ID/     0750 root:daemon    while the container runs
//!    container.json          0640                plan and state (replaced by rename)
//!    shim.sock               0660                socket of the container's shim
//!    bundle/ oci/            0700                directories for libcontainer
//! RUN_DIR/root/              0711                mount point of the container's root, in each shim's mount namespace
//! STATE_DIR/containers/ID/   0750 root:daemon    until the container is deleted
//!    container.json          0640                the request: the only record left after a reboot
//!    log, log.1              0640                output
//!    exit.json               0640                exit record (preallocated for the case of a full disk; not synced)
//!    outputs/                0750 root:daemon    captured outputs (core's `outputs`), files 0640
//!    upper/ work/            0700                writable layer, until the container exits; below disk/ if limited
//! ```
//! The directories of a warm container are created before it has a container id ([`crate::warm`]).

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use executor_core::ident::ContainerId;
use executor_core::logline;
use executor_core::outputs::{self, OutputsList};
use executor_core::record::{ContainerRecord, ExitRecord, RECORD_MAX};
use executor_sys::replace::Replacement;
use executor_sys::seqpacket::SeqpacketListener;
use serde::Serialize;

use crate::errors::{at, is_full};
use crate::files::{ignore_not_found, make_dir, read_json, remove_tree};
use crate::host::Host;

/// Bytes reserved for an exit record in addition to the size of the container record.
const EXIT_ROOM: u64 = 8 << 10;
/// Bytes reserved for an exit record while the container is not known yet. The space is enough for most containers.
pub(crate) const EXIT_ROOM_AHEAD: u64 = 12 << 10;
/// Name of a container's record in both of its directories.
const CONTAINER: &str = "container.json";
const EXIT: &str = "exit.json";
/// Name of the file that reserves space for the exit record.
const EXIT_AHEAD: &str = ".exit.json";
/// Mode of a directory that the daemon may read.
const SHARED: u32 = 0o750;
/// Prefix of the name of a state directory that is being removed. No container id begins with a dot.
const REMOVED: &str = ".removed-";

/// The directories of one container.
#[derive(Clone, Debug)]
pub(crate) struct Dirs {
    /// The container's directory below RUN_DIR.
    pub run: PathBuf,
    /// The container's directory below STATE_DIR.
    pub state: PathBuf,
    /// Mount point of the container's root in the shim's mount namespace.
    pub stage: PathBuf,
    /// Directory of the writable layer.
    pub layer: PathBuf,
    gid: u32,
}

impl Dirs {
    /// Returns the paths of a container's directories, without creating the directories.
    pub(crate) fn new(host: &Host, id: &ContainerId) -> Self {
        let state = host.containers_state().join(id.as_str());
        Self {
            run: host.containers_run().join(id.as_str()),
            layer: state.clone(),
            state,
            stage: host.stage(),
            gid: host.daemon_gid,
        }
    }

    /// Returns the directories of a warm container, which have their own names.
    pub(crate) fn from_warm(host: &Host, run: PathBuf, state: PathBuf) -> Self {
        Self { run, layer: state.clone(), state, stage: host.stage(), gid: host.daemon_gid }
    }

    /// Returns paths that do not exist, for a container without directories: removing them does nothing.
    pub(crate) fn nowhere() -> Self {
        let nowhere = PathBuf::from("/nonexistent/executor");
        Self { run: nowhere.clone(), state: nowhere.clone(), stage: nowhere.clone(), layer: nowhere, gid: 0 }
    }

    /// Returns directories below a test's directory.
    #[cfg(test)]
    pub(crate) fn in_home(home: &Path) -> Self {
        let (run, state) = (home.join("run"), home.join("state"));
        Self { run, layer: state.clone(), state, stage: home.join("root"), gid: 0 }
    }

    /// Creates the run directory and the state directory.
    ///
    /// # Errors
    /// Returns `AlreadyExists` if a directory exists, and changes nothing. Returns an error with the path if the
    /// disk is full.
    pub(crate) fn create(&self) -> io::Result<()> {
        self.make_shared_dir(&self.run)?;
        self.make_shared_dir(&self.state).inspect_err(|_| {
            let _ = fs::remove_dir(&self.run);
        })
    }

    /// Creates a directory that the daemon may read.
    ///
    /// # Errors
    /// Returns an error if the directory exists or the disk is full.
    pub(crate) fn make_shared_dir(&self, path: &Path) -> io::Result<()> {
        make_dir(path, SHARED, Some(self.gid))
    }

    /// Lets the daemon read an existing directory.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist.
    pub(crate) fn share_dir(&self, path: &Path) -> io::Result<()> {
        self.share_path(path, SHARED)
    }

    /// Returns the path of the record in the run directory.
    pub(crate) fn record(&self) -> PathBuf {
        self.run.join(CONTAINER)
    }

    /// Returns the path of the record in the state directory.
    pub(crate) fn record_ahead(&self) -> PathBuf {
        self.state.join(CONTAINER)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.state.join("log")
    }

    /// Returns the directory for mounts that only the shim sees.
    pub(crate) fn staging(&self) -> PathBuf {
        self.run.join("bundle")
    }

    /// Returns the upper and work directories of the writable layer.
    pub(crate) fn layers(&self) -> (PathBuf, PathBuf) {
        (self.layer.join("upper"), self.layer.join("work"))
    }

    /// Listens on the shim's socket. Daemons connect to it.
    ///
    /// # Errors
    /// Returns an error if the socket exists.
    pub(crate) fn listen(&self) -> io::Result<SeqpacketListener> {
        let path = self.run.join("shim.sock");
        let listener = SeqpacketListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        self.share_path(&path, 0o660)?;
        Ok(listener)
    }

    /// Reserves space for the exit record.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub(crate) fn reserve_exit_space(&self, record: &ContainerRecord) -> io::Result<()> {
        let room = Self::exit_room(record, serde_json::to_vec(record)?.len());
        self.allocate(&self.open_new(&self.state.join(EXIT_AHEAD))?, room)
    }

    /// Reserves space for the exit record of a container that is not known yet.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub(crate) fn reserve_default_exit_space(&self) -> io::Result<()> {
        self.allocate(&self.open_new(&self.state.join(EXIT_AHEAD))?, EXIT_ROOM_AHEAD)
    }

    /// Reserves more space for the exit record after the container's record has grown.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub(crate) fn grow_exit_space(&self, record: &ContainerRecord) -> io::Result<()> {
        let path = self.state.join(EXIT_AHEAD);
        let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let room = Self::exit_room(record, serde_json::to_vec(record)?.len());
        self.allocate(&file.map_err(|error| at(&path, &error))?, room)
    }

    /// Returns the bytes to reserve for the exit record of a container whose container record has `bytes` bytes.
    pub(crate) fn exit_room(record: &ContainerRecord, bytes: usize) -> u64 {
        // A character of a message takes up to six bytes in JSON.
        let message = record.plan.termination_message.as_ref().map_or(0, |message| u64::from(message.bytes_max) * 6);
        EXIT_ROOM + message + bytes as u64
    }

    fn allocate(&self, file: &File, room: u64) -> io::Result<()> {
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, room)
            .or_else(|error| if error == rustix::io::Errno::OPNOTSUPP { Ok(()) } else { Err(error) })
            .map_err(|error| at(&self.state.join(EXIT_AHEAD), &error.into()))
    }

    /// Writes the container's first record, to the state directory and the run directory.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub(crate) fn write_first_record(&self, record: &ContainerRecord) -> io::Result<()> {
        self.replace(&self.record_ahead(), record)?;
        self.write_record(record)
    }

    /// Replaces the record in the run directory.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub(crate) fn write_record(&self, record: &ContainerRecord) -> io::Result<()> {
        self.replace(&self.record(), record)
    }

    /// Returns the newest record, if there is one: from the run directory, else from the state directory.
    pub(crate) fn read_record(&self) -> Option<ContainerRecord> {
        let read = |dir: &Path| read_json(&dir.join(CONTAINER), RECORD_MAX);
        read(&self.run).or_else(|_| read(&self.state)).ok()
    }

    /// Returns the exit record, if there is one.
    ///
    /// # Errors
    /// Returns `InvalidData` or `UnexpectedEof` if the record is incomplete, for example after a power failure, and an
    /// error if the record cannot be read.
    pub(crate) fn read_exit(&self) -> io::Result<Option<ExitRecord>> {
        let path = self.state.join(EXIT);
        match read_json(&path, RECORD_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            record => record.map(Some).map_err(|error| at(&path, &error)),
        }
    }

    /// Returns true if there is a readable exit record.
    pub(crate) fn has_exit(&self) -> bool {
        self.read_exit().is_ok_and(|record| record.is_some())
    }

    /// Writes the exit record into the reserved space and renames the file, so that readers never see a partial record.
    /// The file is not synced: the daemon syncs the result in its ledger, once for many containers.
    ///
    /// # Errors
    /// Returns an error if the record cannot be written.
    pub(crate) fn write_exit(&self, record: &ExitRecord) -> io::Result<()> {
        let (ahead, path) = (self.state.join(EXIT_AHEAD), self.state.join(EXIT));
        let bytes = serde_json::to_vec(record)?;
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&ahead)
            .or_else(|_| self.open_new(&ahead))?;
        self.share(&file)?; // a killed shim may have created the file without sharing it
        file.write_all_at(&bytes, 0).map_err(|error| at(&path, &error))?;
        if file.metadata()?.len() > bytes.len() as u64 {
            file.set_len(bytes.len() as u64)?; // a killed shim may have written part of a longer record
        }
        fs::rename(&ahead, &path).map_err(|error| at(&path, &error))
    }

    /// Frees the reserved space after the end of the exit record. This is a separate step because it takes some time.
    ///
    /// # Errors
    /// Returns an error if the record cannot be truncated.
    pub(crate) fn release_exit_space(&self) -> io::Result<()> {
        let path = self.state.join(EXIT);
        let file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let given = file.and_then(|file| file.set_len(file.metadata()?.len()));
        given.map_err(|error| at(&path, &error))
    }

    /// Creates the directory of captured outputs, which the daemon may read.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub(crate) fn make_outputs(&self) -> io::Result<PathBuf> {
        let path = self.outputs();
        make_dir(&path, 0o750, Some(self.gid)).map(|()| path)
    }

    fn outputs(&self) -> PathBuf {
        self.state.join(outputs::DIRECTORY)
    }

    /// Returns the list of captured outputs if all outputs were captured.
    pub(crate) fn read_outputs(&self) -> Option<OutputsList> {
        read_json(&self.outputs().join(outputs::LIST), outputs::LIST_BYTES_MAX).ok()
    }

    /// Removes the captured outputs.
    ///
    /// # Errors
    /// Returns an error if a file or directory cannot be removed.
    pub(crate) fn remove_outputs(&self) -> io::Result<()> {
        remove_tree(&self.outputs())
    }

    /// Creates a directory that only root can enter.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub(crate) fn private(&self, path: &Path) -> io::Result<()> {
        make_dir(path, 0o700, None)
    }

    /// Opens a new file that the daemon may read.
    ///
    /// # Errors
    /// Returns an error if the file exists or the disk is full.
    pub(crate) fn open_new(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.create_new(true).append(false).write(true).mode(0o640).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path).map_err(|error| at(path, &error))?;
        self.share(&file).map(|()| file)
    }

    /// Lets the daemon read a file.
    fn share(&self, file: &File) -> io::Result<()> {
        std::os::unix::fs::fchown(file, None, Some(self.gid))?;
        file.set_permissions(fs::Permissions::from_mode(0o640))
    }

    /// Appends a message of the executor to the log, unless the message is already the last entry. If the last line is
    /// incomplete, the message starts a new line.
    ///
    /// # Errors
    /// Returns an error if there is no log or the disk is full.
    pub(crate) fn append_to_log(&self, words: &str) -> io::Result<()> {
        let path = self.log();
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).custom_flags(libc::O_NOFOLLOW).open(&path)?;
        let ending = format!(" {words}\n");
        let length = file.metadata()?.len();
        let mut last = vec![0; ending.len().min(usize::try_from(length).unwrap_or(usize::MAX))];
        let at = length - last.len() as u64;
        file.read_exact_at(&mut last, at)?;
        if last == ending.as_bytes() {
            return Ok(());
        }
        let mut line = if last.is_empty() || last.ends_with(b"\n") { Vec::new() } else { vec![b'\n'] };
        let (stream, content) = (logline::Stream::Executor, words.as_bytes());
        let time = std::time::SystemTime::now().into();
        logline::write(&logline::Entry { time, stream, complete: true, source: "", content }, &mut line);
        file.write_all(&line)
    }

    /// Changes a path's group to the daemon's group, and sets its mode.
    fn share_path(&self, path: &Path, mode: u32) -> io::Result<()> {
        std::os::unix::fs::lchown(path, None, Some(self.gid))?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }

    fn replace(&self, path: &Path, record: &impl Serialize) -> io::Result<()> {
        let written = self.replacement(path).write(&serde_json::to_vec(record)?);
        written.map(drop).map_err(|error| at(path, &error))
    }

    /// Returns the settings for replacing a file that the daemon may read.
    pub(crate) fn replacement<'a>(&self, path: &'a Path) -> Replacement<'a> {
        Replacement::from_path(path).shared(0o640, self.gid)
    }

    /// Removes the run directory, which is needed only while the container runs.
    ///
    /// # Errors
    /// Returns an error if a file or directory cannot be removed.
    pub(crate) fn remove_run(&self) -> io::Result<()> {
        remove_tree(&self.run)
    }

    /// Removes the writable layer.
    ///
    /// # Errors
    /// Returns an error if a file or directory cannot be removed.
    pub(crate) fn remove_layers(&self) -> io::Result<()> {
        for name in ["upper", "work"] {
            remove_tree(&self.state.join(name))?;
        }
        crate::disk::remove(&self.state)?;
        ignore_not_found(fs::remove_file(self.state.join(EXIT_AHEAD)))
    }

    /// Removes the state directory.
    ///
    /// # Errors
    /// Returns an error if a file or directory cannot be removed.
    pub(crate) fn remove_state(&self) -> io::Result<()> {
        let (Some(parent), Some(id)) = (self.state.parent(), self.state.file_name()) else { return Ok(()) };
        let mut name = OsString::from(REMOVED);
        name.push(id);
        let removed = parent.join(name);
        // Rename first, so that the removal is atomic: a partial directory would look like a container without an exit
        // record.
        remove_tree(&removed)?;
        let rename = || ignore_not_found(fs::rename(&self.state, &removed));
        match rename() {
            Err(error) if is_full(&error) => {
                // A longer name can need disk space. The records show that the container has completed, so the records
                // are removed last.
                self.remove_all_but_records()?;
                match rename() {
                    Err(error) if is_full(&error) => {
                        ignore_not_found(fs::remove_file(self.state.join(CONTAINER)))?;
                        remove_tree(&self.state)
                    }
                    renamed => renamed.and_then(|()| remove_tree(&removed)),
                }
            }
            renamed => renamed.and_then(|()| remove_tree(&removed)),
        }
    }

    fn remove_all_but_records(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.state)? {
            let name = entry?.file_name();
            if name != CONTAINER && name != EXIT {
                remove_tree(&self.state.join(name))?;
            }
        }
        Ok(())
    }
}

/// Completes the removal of state directories that an earlier launcher has started to remove.
///
/// # Errors
/// Returns an error if a file or directory cannot be removed.
pub(crate) fn finish_removals(host: &Host) -> io::Result<()> {
    let entries = match fs::read_dir(host.containers_state()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(REMOVED.as_bytes()) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}
