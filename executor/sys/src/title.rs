//! Changes the command line of this process, as shown in `/proc/PID/cmdline`.
//!
//! A forked process that does not call execve has the command line of its parent. This module overwrites the arguments
//! in place, because `PR_SET_MM` requires CAP_SYS_RESOURCE.

use std::io;
use std::sync::OnceLock;

/// Address and length of the arguments, as execve placed them.
static ARGUMENTS: OnceLock<(usize, usize)> = OnceLock::new();

/// Locates the arguments. Call this once, while `/proc` belongs to the host. Forked processes have the same addresses.
///
/// # Errors
/// Returns an error if `/proc` cannot be read.
pub fn locate() -> io::Result<()> {
    let stat = crate::kernel_file::read_to_string("/proc/self/stat")?;
    // The name in the second field may contain any character; the third field follows it. The addresses are in fields
    // 48 and 49.
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let mut addresses = fields.split_ascii_whitespace().skip(45).map(str::parse::<usize>);
    let (Some(Ok(start)), Some(Ok(end))) = (addresses.next(), addresses.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let _ = ARGUMENTS.set((start, end.saturating_sub(start))); // fails if they were located already
    Ok(())
}

/// Replaces the command line with one string, truncated to the length of the arguments. Does nothing if they were not
/// located.
pub fn set(title: &str) {
    if let Some((_, length)) = located() {
        // If the last byte is not NUL, the kernel shows only the first string.
        overwrite(&title.as_bytes()[..title.len().min(length - 2)], b' ');
    }
}

/// Replaces the arguments of the command line. Does nothing if the current arguments were not located or are shorter.
pub fn set_arguments(arguments: &[&[u8]]) {
    let line = arguments.join(&0);
    if located().is_some_and(|(_, length)| line.len() < length) {
        overwrite(&line, 0);
    }
}

fn located() -> Option<(usize, usize)> {
    ARGUMENTS.get().copied().filter(|(start, length)| *start > 0 && *length > 2)
}

/// Writes a line that is shorter than the arguments, followed by the byte `last`.
fn overwrite(line: &[u8], last: u8) {
    let Some((start, length)) = located().filter(|(_, length)| line.len() < *length) else { return };
    let arguments: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: At execve the kernel mapped these bytes writable, for the arguments only, and they stay mapped in this
    // process and its forks. No reference to them exists: the standard library copies arguments on request.
    unsafe {
        std::ptr::write_bytes(arguments, 0, length);
        std::ptr::copy_nonoverlapping(line.as_ptr(), arguments, line.len());
        arguments.add(length - 1).write(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_of_fork_is_replaced() {
        let program = std::env::current_exe().unwrap();
        let name = "title::tests::replaced_command_line_is_printed";
        let output = std::process::Command::new(program).args(["--exact", name, "--ignored", "--nocapture"]).output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(output.contains("line=[a title\0]"), "{output:?}");
        assert!(output.contains("arguments=[two\0words]"), "{output:?}");
    }

    /// Runs in a separate process, because other tests must not read its arguments.
    #[test]
    #[ignore = "run by command_line_of_fork_is_replaced"]
    fn replaced_command_line_is_printed() {
        set("before it was located");
        locate().unwrap();
        set("a title");
        let line = || std::fs::read_to_string("/proc/self/cmdline").unwrap();
        println!("line=[{}]", line());
        set_arguments(&[b"two", b"words"]);
        set_arguments(&[&[b'x'; 1 << 16]]); // longer than the present arguments
        println!("arguments=[{}]", line().trim_end_matches('\0'));
    }
}
