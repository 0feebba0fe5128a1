//! Signals as image configurations name them.

/// Names of the signals 1 to 31 on Linux (x86-64, aarch64), without `SIG`.
const NAMES: [(&str, i32); 34] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];
/// The C library's first and the kernel's last real-time signal.
const REALTIME: (i32, i32) = (34, 64);

/// A signal by number, by name with or without `SIG`, or as `RTMIN+n` and `RTMAX-n` (image-spec, config.md, `StopSignal`).
pub fn parse_signal(text: &str) -> Option<i32> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().filter(|number| (1..=REALTIME.1).contains(number));
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let offset = |rest: &str, sign: char| match rest {
        "" => Some(0),
        rest => rest.strip_prefix(sign).filter(|n| n.len() <= 2)?.parse::<u8>().ok().map(i32::from),
    };
    let number = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(rest), _) => REALTIME.0 + offset(rest, '+')?,
        (_, Some(rest)) => REALTIME.1 - offset(rest, '-')?,
        _ => return NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number),
    };
    (REALTIME.0..=REALTIME.1).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_number_and_by_name() {
        let table = [
            ("15", Some(15)),
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("SIGQUIT", Some(3)),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMAX-1", Some(63)),
            ("RTMIN", Some(34)),
            ("SIGRTMIN+31", None),
            ("SIGRTMIN+999", None),
            ("SIGRTMIN-1", None),
            ("64", Some(64)),
            ("65", None),
            ("0", None),
            ("-9", None),
            ("", None),
            ("SIG", None),
            ("SIGNOPE", None),
            ("99999999999", None),
        ];
        for (text, number) in table {
            assert_eq!(parse_signal(text), number, "{text:?}");
        }
    }
}
