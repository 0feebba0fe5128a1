//! Checks that execute a program in the container, as Exec does. The exit status is the result; the last output lines
//! are kept for the container's log.

use std::sync::Arc;
use std::time::Duration;

use executor_core::checks::{CheckOutcome, words_of};
use executor_core::ident::ContainerId;
use executor_core::plan::ExecProbe;
use executor_core::protocol::CHECK_OUTPUT_MAX;
use executor_core::record::Exit;
use executor_proto::{Wiped, v1};
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::CheckRun;
use crate::api_error::Kind;
use crate::node::Node;
use crate::operations::exec::{self, ExecEnd, ExecOutcome, ExecSession, Stdio};

/// Time limit for the program to start. A slow start on a busy host does not indicate a problem of the container.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the supervisor to kill a program after the limit of the check. A process that the kernel cannot kill
/// immediately does not delay the result of the check further.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum output of a program, in bytes.
const WRITTEN_MAX: usize = 1 << 20;
/// Read buffer size, in bytes.
const PIECE: usize = 4096;

/// Executes the program, and waits for its exit.
pub(super) async fn check(node: &Arc<Node>, id: &ContainerId, probe: &ExecProbe, limit: Duration) -> CheckRun {
    let start = Wiped::new(v1::ExecStart {
        id: id.to_string(),
        path: probe.path.clone(),
        args: probe.args.clone(),
        dir: probe.dir.clone(),
        user: probe.user.clone(),
        container_environment: probe.container_environment,
        timeout: prost_types::Duration::try_from(limit).ok(),
        ..v1::ExecStart::default()
    });
    let failed = |why: String| CheckRun::from_outcome(CheckOutcome::Failed(format!("`{}` {why}", probe.path)));
    let (session, stdio) = match timeout(START_TIMEOUT, exec::start(node, start)).await {
        Ok(Ok(ExecOutcome::Running(session, stdio))) => (session, stdio),
        Ok(Ok(ExecOutcome::Failed(failure))) => return failed(format!("cannot be executed: {}", failure.message)),
        // The configured user does not exist in the root file system.
        Ok(Err(problem)) if problem.kind == Kind::Precondition => {
            return failed(format!("cannot be executed: {}", problem.message));
        }
        Ok(Err(_)) | Err(_) => return CheckRun::from_outcome(CheckOutcome::NotRun),
    };
    let mut output = Output::default();
    // The supervisor kills the program and its descendants at the limit.
    let ended = timeout(limit + KILL_TIMEOUT, follow(&session, &stdio, &mut output)).await;
    drop(session); // kills the program if it still runs
    let outcome = match ended {
        Ok(ProgramEnd::Exit(Exit::Code(0))) => CheckOutcome::Passed,
        Ok(ProgramEnd::Exit(Exit::Code(code))) => {
            CheckOutcome::Failed(format!("`{}` exited with status {code}", probe.path))
        }
        Ok(ProgramEnd::Exit(Exit::Signal(signal))) => {
            CheckOutcome::Failed(format!("`{}` was killed by signal {signal}", probe.path))
        }
        Ok(ProgramEnd::WroteTooMuch) => {
            CheckOutcome::Failed(format!("`{}` wrote more than {WRITTEN_MAX} bytes", probe.path))
        }
        Ok(ProgramEnd::Lost) => CheckOutcome::NotRun,
        Ok(ProgramEnd::TimedOut) | Err(_) => {
            CheckOutcome::Failed(format!("`{}` timed out after {}", probe.path, words_of(limit)))
        }
    };
    CheckRun { outcome, output: output.last_lines() }
}

enum ProgramEnd {
    Exit(Exit),
    TimedOut,
    WroteTooMuch,
    /// The program's supervisor has exited.
    Lost,
}

/// Reads the program's output until the program exits.
async fn follow(session: &ExecSession, stdio: &Stdio, output: &mut Output) -> ProgramEnd {
    let mut ended = std::pin::pin!(session.ended_in_time());
    let (mut out, mut err) = (Zeroizing::new([0; PIECE]), Zeroizing::new([0; PIECE]));
    let (mut out_open, mut err_open) = (true, stdio.stderr.is_some());
    let read_err = async |buffer: &mut [u8; PIECE]| match &stdio.stderr {
        Some(stderr) => stderr.read(buffer).await,
        None => Ok(0),
    };
    let end = loop {
        let (read, open, buffer) = tokio::select! {
            end = &mut ended => break end,
            read = stdio.stdout.read(&mut *out), if out_open => (read, &mut out_open, &out),
            read = read_err(&mut err), if err_open => (read, &mut err_open, &err),
        };
        match read {
            Ok(0) | Err(_) => *open = false,
            Ok(length) if !output.take(&buffer[..length]) => return ProgramEnd::WroteTooMuch,
            Ok(_) => {}
        }
    };
    // The last output may still be in the pipes.
    for end in std::iter::once(&stdio.stdout).chain(&stdio.stderr) {
        while let Ok(length @ 1..) = end.read_now(&mut *out) {
            if !output.take(&out[..length]) {
                return ProgramEnd::WroteTooMuch;
            }
        }
    }
    match end {
        Some(ExecEnd::Exit(exit)) => ProgramEnd::Exit(exit),
        Some(ExecEnd::TimedOut) => ProgramEnd::TimedOut,
        None => ProgramEnd::Lost,
    }
}

/// Last part of a program's output, and the number of bytes that the program has written.
#[derive(Default)]
struct Output {
    written: usize,
    last: Zeroizing<Vec<u8>>,
}

impl Output {
    /// Appends a chunk; returns false if the output exceeds the limit.
    fn take(&mut self, piece: &[u8]) -> bool {
        self.written = self.written.saturating_add(piece.len());
        self.last.extend_from_slice(piece);
        let surplus = self.last.len().saturating_sub(CHECK_OUTPUT_MAX + 1);
        self.last.drain(..surplus);
        self.written <= WRITTEN_MAX
    }

    /// Returns the last lines. Truncated output starts at a complete line, because a part of a secret would not be
    /// masked.
    fn last_lines(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::from_utf8_lossy(&self.last).into_owned());
        let is_whole = self.written <= CHECK_OUTPUT_MAX && text.len() <= CHECK_OUTPUT_MAX;
        if !is_whole {
            // Text before the first newline within the limit is dropped.
            let from = text.len().saturating_sub(CHECK_OUTPUT_MAX + 1);
            let newline = text.bytes().enumerate().position(|(at, byte)| at >= from && byte == b'\n');
            text = Zeroizing::new(newline.map_or("", |at| &text[at + 1..]).to_owned());
        }
        Zeroizing::new(text.trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_are_whole_and_bounded() {
        let of = |pieces: &[&[u8]]| {
            let mut output = Output::default();
            pieces.iter().for_each(|piece| assert!(output.take(piece)));
            output.last_lines().to_string()
        };
        assert_eq!(of(&[b"one\ntw", b"o\n\n"]), "one\ntwo");
        assert_eq!(of(&[]), "");
        let long = "x".repeat(CHECK_OUTPUT_MAX);
        assert_eq!(of(&[long.as_bytes(), b"secret\nlast\n"]), "last");
        assert_eq!(of(&[long.as_bytes(), b"no line is whole"]), "");
        assert_eq!(of(&[b"cut\n", &long.as_bytes()[1..]]), long[1..]);
        let not_utf8 = of(&[b"a\n", &[0xff; 1500], b"\nb"]);
        assert_eq!(not_utf8, "b");
        let mut output = Output::default();
        let piece = [b'x'; PIECE];
        assert_eq!((0..1000).take_while(|_| output.take(&piece)).count(), WRITTEN_MAX / PIECE);
        assert!(output.last.len() <= CHECK_OUTPUT_MAX + 1);
    }
}
