//! Linux signals: names to numbers and back. The names of real-time signals are glibc's.

use nix::sys::signal::Signal;

/// First and last real-time signal as libc numbers them.
const RTMIN: u32 = 34;
const RTMAX: u32 = 64;

pub const USR1: u32 = 10;
pub const PIPE: u32 = 13;

/// The number of `TERM`, `SIGTERM`, `sigterm`, `15`, `RTMIN+2` or `RTMAX-1`.
pub fn parse(text: &str) -> Result<u32, String> {
    let unknown =
        || "is not a signal: use a number from 1 to 64 or a name such as TERM, KILL, USR1, RTMIN+1".to_owned();
    if let Ok(number) = text.parse::<u32>() {
        return if (1..=RTMAX).contains(&number) { Ok(number) } else { Err(unknown()) };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = match name {
        "RTMIN" => Some(RTMIN),
        "RTMAX" => Some(RTMAX),
        _ => format!("SIG{}", canonical(name)).parse::<Signal>().ok().map(|signal| signal as u32),
    };
    let offset = |prefix: &str| name.strip_prefix(prefix).and_then(|rest| rest.parse::<u32>().ok());
    found
        .or_else(|| offset("RTMIN+").and_then(|n| RTMIN.checked_add(n)))
        .or_else(|| offset("RTMAX-").and_then(|n| RTMAX.checked_sub(n)))
        .filter(|number| Signal::try_from(*number as i32).is_ok() || (RTMIN..=RTMAX).contains(number))
        .ok_or_else(unknown)
}

/// The name of a signal that has others, too.
fn canonical(name: &str) -> &str {
    match name {
        "IOT" => "ABRT",
        "CLD" => "CHLD",
        "POLL" => "IO",
        name => name,
    }
}

/// `SIGTERM` for 15, `SIGRTMIN+1` for 35, `signal 33` where there is no name.
pub fn name(number: i32) -> String {
    if let Ok(signal) = Signal::try_from(number) {
        return signal.as_str().to_owned();
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
