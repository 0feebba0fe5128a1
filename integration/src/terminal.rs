//! Runs agent-cli on a pseudo-terminal. The test acts as the user at the terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::{dist, wait};

/// Byte that the test writes after the output of agent-cli: a record separator, which agent-cli does not write.
const END_OF_OUTPUT: u8 = 0x1e;

/// Pseudo-terminal with agent-cli as the only process of its session.
pub struct Terminal {
    keys: File,
    /// The program's end of the terminal, used to read the terminal's settings.
    other: OwnedFd,
    child: Child,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Terminal {
    /// Starts agent-cli on a terminal of this size.
    ///
    /// # Panics
    /// Panics if the machine has no pseudo-terminals.
    pub fn start(socket: &Path, arguments: &[&str], (rows, columns): (u16, u16)) -> Self {
        let (keys, other) = ends();
        let end = || Stdio::from(other.try_clone().expect("a descriptor"));
        set_size(&keys, rows, columns);
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(dist::binary("agent-cli"))
            .arg("--socket")
            .arg(socket)
            .args(arguments)
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid is installed");
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (keys.try_clone().expect("a descriptor"), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut some) {
                to.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&some[..length]);
            }
        });
        Self { keys, other, child, written }
    }

    /// Returns the output that was written to the terminal so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Sends keys.
    ///
    /// # Panics
    /// Panics if the terminal is closed.
    pub fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).expect("the terminal is open");
    }

    /// Changes the size; the kernel notifies agent-cli with SIGWINCH.
    pub fn resize(&self, rows: u16, columns: u16) {
        set_size(&self.keys, rows, columns);
    }

    /// Returns true if the terminal is in raw mode.
    ///
    /// # Panics
    /// Panics if the terminal is closed.
    pub fn is_raw(&self) -> bool {
        !tcgetattr(self.other.as_fd()).expect("settings").local_modes.contains(LocalModes::ICANON)
    }

    /// Returns the pid of agent-cli, which setsid executes in its own process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until agent-cli has exited and [`Self::text`] returns its whole output.
    pub fn wait(&mut self) -> ExitStatus {
        let status = wait::until("agent-cli exits", || self.child.try_wait().expect("wait"));
        // A byte written here arrives after all output of the program.
        rustix::io::write(&self.other, &[END_OF_OUTPUT]).expect("the terminal is open");
        wait::until("the output of agent-cli is read", || {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            (written.last() == Some(&END_OF_OUTPUT)).then(|| written.pop())
        });
        status
    }
}

/// Opens a pseudo-terminal and returns the user's end and the programs' end.
///
/// # Panics
/// Panics if the machine has no pseudo-terminals.
pub fn ends() -> (File, OwnedFd) {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&keys).expect("grantpt");
    unlockpt(&keys).expect("unlockpt");
    let name = ptsname(&keys, Vec::new()).expect("a name");
    let other = open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("open");
    (File::from(keys), other)
}

fn set_size(terminal: &File, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a size");
}

/// Removes escape sequences.
pub fn plain(line: &str) -> String {
    let (mut text, mut characters) = (String::new(), line.chars());
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => drop(characters.find(char::is_ascii_alphabetic)),
            other => text.push(other),
        }
    }
    text
}
