//! Determines how processes react to signals.

/// Returns true if the signal's default action terminates a process (signal(7)).
pub(crate) fn ends_without_handler(signal: i32) -> bool {
    const OTHERS: [i32; 8] = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    !OTHERS.contains(&signal)
}

/// Returns true if the process of a /proc/PID/status file does not catch, ignore or block a signal.
pub(crate) fn has_default_action(status: &str, signal: i32) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(u64::MAX)
    };
    (mask("SigCgt:") | mask("SigIgn:") | mask("SigBlk:")) & (1 << (signal - 1)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_ignored_by_init_are_found() {
        let status = "SigBlk:\t0000000000000001\nSigIgn:\t0000000000000002\nSigCgt:\t0000000000004000\n";
        for (signal, kept) in [(1, false), (2, false), (15, false), (3, true), (10, true), (64, true)] {
            assert_eq!(has_default_action(status, signal), kept, "{signal}");
        }
        assert!(!has_default_action("", 15), "an unreadable status does not count as the default action");
        assert!(ends_without_handler(libc::SIGQUIT) && !ends_without_handler(libc::SIGWINCH));
    }
}
