//! Linux signals: names to numbers and back.

/// The classic signals by number; `STKFLT` keeps the table dense.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
/// First and last real-time signal as libc numbers them.
const RTMIN: u32 = 34;
const RTMAX: u32 = 64;

pub const KILL: u32 = 9;
pub const USR1: u32 = 10;
pub const PIPE: u32 = 13;

/// The number of `TERM`, `SIGTERM`, `sigterm`, `15`, `RTMIN+2` or `RTMAX-1`.
pub fn parse(text: &str) -> Result<u32, String> {
    let unknown = || "is no signal: use a number from 1 to 64 or a name such as TERM, KILL, USR1, RTMIN+1".to_owned();
    if let Ok(number) = text.parse::<u32>() {
        return if (1..=RTMAX).contains(&number) { Ok(number) } else { Err(unknown()) };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = match name {
        "IOT" => Some(6),
        "CLD" => Some(17),
        "POLL" => Some(29),
        "RTMIN" => Some(RTMIN),
        "RTMAX" => Some(RTMAX),
        _ => NAMES.iter().position(|known| *known == name).and_then(|at| u32::try_from(at + 1).ok()),
    };
    let offset = |prefix: &str| name.strip_prefix(prefix).and_then(|rest| rest.parse::<u32>().ok());
    found
        .or_else(|| offset("RTMIN+").and_then(|n| RTMIN.checked_add(n)))
        .or_else(|| offset("RTMAX-").and_then(|n| RTMAX.checked_sub(n)))
        .filter(|number| *number <= NAMES.len() as u32 || (RTMIN..=RTMAX).contains(number))
        .ok_or_else(unknown)
}

/// `SIGTERM` for 15, `SIGRTMIN+1` for 35, `signal 33` where there is no name.
pub fn name(number: i32) -> String {
    let index = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
    if let Some(name) = index.and_then(|at| NAMES.get(at)) {
        return format!("SIG{name}");
    }
    match u32::try_from(number) {
        Ok(RTMIN) => "SIGRTMIN".into(),
        Ok(n) if (RTMIN..=RTMAX).contains(&n) => format!("SIGRTMIN+{}", n - RTMIN),
        _ => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let table = [
            ("TERM", 15),
            ("SIGTERM", 15),
            ("sigkill", 9),
            ("15", 15),
            ("64", 64),
            ("33", 33),
            ("SYS", 31),
            ("IOT", 6),
            ("RTMIN", 34),
            ("SIGRTMIN+2", 36),
            ("RTMAX-1", 63),
        ];
        for (text, number) in table {
            assert_eq!(parse(text), Ok(number), "{text}");
        }
        for text in ["0", "65", "-1", "", "SIG", "TERMINATE", "RTMIN+31", "RTMAX-31", "RTMIN+4294967295"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for number in 1..=31 {
            assert_eq!(parse(&name(number)), u32::try_from(number).map_err(|e| e.to_string()));
        }
        assert_eq!((name(35), name(33)), ("SIGRTMIN+1".to_owned(), "signal 33".to_owned()));
    }
}
