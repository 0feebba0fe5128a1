//! Raw mode of this command's terminal while a process in a container uses it, so that every key reaches the process.
//!
//! Commands receive terminating signals as events and then drop `Raw`. A panic hook restores the terminal after a
//! panic. After SIGKILL the terminal stays raw; `reset` restores it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Mutex;

use executor_client::v1::WindowSize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Bytes per read of standard input.
const CHUNK: usize = 16 << 10;
/// Maximum number of queued pieces.
const WAITING_MAX: usize = 4;

/// The terminal's original settings, while it is raw.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Guard that keeps the terminal raw.
pub struct Raw(());

impl Raw {
    /// Sets the terminal to raw mode until the value is dropped.
    pub fn enter() -> Result<Self, Failure> {
        let failed = |error: rustix::io::Errno| Failure::System(error.into());
        let stdin = io::stdin();
        let before = tcgetattr(&stdin).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        *SAVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(before);
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            usual(panic);
        }));
        tcsetattr(&stdin, OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self(()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let before = SAVED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before); // the terminal may be closed
    }
}

/// Returns an error for `-t` without a terminal.
pub fn require(input: bool) -> Result<(), Failure> {
    match missing(input) {
        None => Ok(()),
        Some(missing) => Err(Failure::Usage(format!(
            "--tty needs a terminal, but {missing} is not a terminal; omit --tty in scripts"
        ))),
    }
}

/// Returns the standard stream that is not a terminal, if there is one. Checks standard input only if `input` is true.
pub fn missing(input: bool) -> Option<&'static str> {
    match (input && !isatty(io::stdin()), isatty(io::stdout())) {
        (true, _) => Some("standard input"),
        (false, false) => Some("standard output"),
        (false, true) => None,
    }
}

/// Returns the width of the terminal on standard output, in columns, for tables; `None` if the width is unknown.
pub fn columns() -> Option<usize> {
    window().and_then(|size| usize::try_from(size.columns).ok())
}

/// Returns the size of the terminal's window; `None` if the terminal does not report its size.
pub fn window() -> Option<WindowSize> {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0)?;
    Some(WindowSize { rows: size.ws_row.into(), columns: size.ws_col.into() })
}

/// Input that was read from standard input.
#[derive(Debug)]
pub enum Typed {
    Bytes(Zeroizing<Vec<u8>>),
    End,
    /// The detach keys were pressed.
    Detach,
}

/// Standard input, read by a separate thread because a blocking read cannot be cancelled.
pub struct Keyboard(mpsc::Receiver<Typed>);

impl Keyboard {
    /// Starts reading. The thread runs until this program exits.
    pub fn start(keys: Option<DetachKeys>) -> Result<Self, Failure> {
        let stdin = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(Failure::System)?);
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let read = move || read_all(stdin, keys, &sender);
        std::thread::Builder::new().name("input".into()).spawn(read).map_err(Failure::System)?;
        Ok(Self(receiver))
    }

    pub async fn next(&mut self) -> Typed {
        match self.0.recv().await {
            Some(typed) => typed,
            None => std::future::pending().await, // the end was returned already
        }
    }
}

fn read_all(mut stdin: File, mut keys: Option<DetachKeys>, sender: &mpsc::Sender<Typed>) {
    let mut buffer = Zeroizing::new(vec![0; CHUNK]);
    loop {
        let read = match stdin.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        if read == 0 {
            let _ = sender.blocking_send(Typed::End); // fails if the receiver was dropped
            return;
        }
        let (bytes, detach) = match &mut keys {
            Some(keys) => keys.feed(&buffer[..read]),
            None => (buffer[..read].to_vec(), false),
        };
        if !bytes.is_empty() && sender.blocking_send(Typed::Bytes(Zeroizing::new(bytes))).is_err() {
            return;
        }
        if detach && sender.blocking_send(Typed::Detach).is_err() {
            return;
        }
    }
}

/// Key sequence that detaches from a process.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DetachKeys {
    keys: Vec<u8>,
    /// Number of keys of the sequence matched so far.
    pressed: usize,
}

impl DetachKeys {
    /// Parses a list of keys, such as `ctrl-p,ctrl-q`: letters and `@[\]^_` with `ctrl-`, any other ASCII character by
    /// itself.
    ///
    /// # Errors
    /// Returns an error if the text is not such a list.
    pub fn parse(text: &str) -> Result<Self, String> {
        let key = |word: &str| match word.as_bytes() {
            &[one] if one.is_ascii() => Some(one),
            [b'c', b't', b'r', b'l', b'-', one @ (b'a'..=b'z' | b'@' | b'[' | b'\\' | b']' | b'^' | b'_')] => {
                Some(one.to_ascii_uppercase() & 0x1f)
            }
            _ => None,
        };
        let keys: Option<Vec<u8>> = text.split(',').map(|word| key(&word.to_ascii_lowercase())).collect();
        let keys = keys.filter(|keys| keys.len() <= 16);
        keys.map(|keys| Self { keys, pressed: 0 }).ok_or_else(|| {
            "is not a list of keys such as ctrl-p,ctrl-q: use at most 16 characters or ctrl-LETTER".to_owned()
        })
    }

    /// Returns the bytes to pass on, and whether the sequence is complete. Bytes that may begin the sequence are held
    /// back until the next key.
    pub fn feed(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut through = Vec::with_capacity(bytes.len());
        for byte in bytes {
            loop {
                if *byte == self.keys[self.pressed] {
                    self.pressed += 1;
                    break;
                }
                if self.pressed == 0 {
                    through.push(*byte);
                    break;
                }
                // Hold back the longest suffix that is a prefix of the sequence; pass on the bytes before it.
                let pressed = &self.keys[..self.pressed];
                let kept = (0..self.pressed).rev().find(|kept| pressed.ends_with(&self.keys[..*kept])).unwrap_or(0);
                through.extend_from_slice(&pressed[..self.pressed - kept]);
                self.pressed = kept;
            }
            if self.pressed == self.keys.len() {
                self.pressed = 0;
                return (through, true);
            }
        }
        (through, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detach_keys_are_parsed() {
        let keys = |text: &str| DetachKeys::parse(text).map(|keys| keys.keys);
        assert_eq!(keys("ctrl-p,ctrl-q"), Ok(vec![16, 17]));
        assert_eq!(keys("Ctrl-A,d"), Ok(vec![1, b'd']));
        assert_eq!(keys("ctrl-]"), Ok(vec![29]));
        for bad in ["", "ctrl-", "ctrl-1", "meta-x", "a,,b", "ab"] {
            assert!(keys(bad).is_err(), "{bad}");
        }
    }

    /// However the input is split, all bytes except the sequence pass through, in order.
    #[test]
    fn input_except_detach_keys_passes() {
        for (keys, input, through, detached) in [
            ("ctrl-p,ctrl-q", &b"a\x10b\x10\x10\x11c"[..], &b"a\x10b\x10"[..], true),
            ("ctrl-p,ctrl-q", b"\x11\x10", b"\x11", false),
            ("a,b,a,c", b"abababac", b"abab", true),
            ("a,b,a,c", b"aabab", b"aab", false),
            ("x", b"abx", b"ab", true),
        ] {
            for cut in 0..=input.len() {
                let mut state = DetachKeys::parse(keys).unwrap();
                let (mut got, mut done) = state.feed(&input[..cut]);
                if !done {
                    let (more, now) = state.feed(&input[cut..]);
                    got.extend(more);
                    done = now;
                }
                assert_eq!((&*got, done), (through, detached), "{keys} {input:?} cut at {cut}");
            }
        }
    }
}
