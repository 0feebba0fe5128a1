//! Reads the identities of processes, which consist of pid, start time and boot id.

use std::io;
use std::sync::OnceLock;

use executor_core::ident::ProcessIdentity;

use crate::kernel_file;

/// Returns the id of this boot.
///
/// # Errors
/// Returns an error if /proc cannot be read.
pub fn boot_id() -> io::Result<String> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(id) = BOOT.get() {
        return Ok(id.clone());
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    Ok(BOOT.get_or_init(|| id).clone())
}

/// Returns the identity of the process that currently has this pid.
///
/// # Errors
/// Returns an error if there is no such process or /proc cannot be read.
pub fn read(pid: i32) -> io::Result<ProcessIdentity> {
    let stat = kernel_file::read(format!("/proc/{pid}/stat"))?;
    let start_time = start_time(&stat).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(ProcessIdentity { pid, start_time, boot_id: boot_id()? })
}

/// Returns true if the process still exists and is not a zombie.
pub fn alive(identity: &ProcessIdentity) -> bool {
    let same = read(identity.pid).is_ok_and(|now| now == *identity);
    same && kernel_file::read(format!("/proc/{}/stat", identity.pid))
        .is_ok_and(|stat| after_name(&stat).first() != Some(&b'Z'))
}

/// Returns field 22 of /proc/PID/stat, the start time. The name in field 2 may contain blanks and parentheses, so
/// fields are counted from the last closing parenthesis.
fn start_time(stat: &[u8]) -> Option<u64> {
    let field = after_name(stat).split(|b| *b == b' ').nth(19)?;
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}

/// Returns the part of /proc/PID/stat after the name: field 3 and the later fields.
fn after_name(stat: &[u8]) -> &[u8] {
    stat.iter().rposition(|b| *b == b')').and_then(|end| stat.get(end + 2..)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_and_no_other() {
        let me = read(std::process::id() as i32).unwrap();
        assert!(alive(&me));
        assert!(!alive(&ProcessIdentity { start_time: me.start_time + 1, ..me.clone() }));
        assert!(!alive(&ProcessIdentity { boot_id: "another".into(), ..me }));
    }

    #[test]
    fn hostile_process_name_does_not_shift_fields() {
        let mut stat = b"7 (a) S 1 2) R".to_vec();
        for field in 4..=22 {
            stat.extend_from_slice(format!(" {field}").as_bytes());
        }
        assert_eq!(start_time(&stat), Some(22));
    }
}
