//! Linux signals: conversion between names and numbers.
//!
//! Names are spelled as in the nix crate, and names of real-time signals as in glibc. The StopSignal of an image is
//! parsed by the same rules.

use executor_core::image::parse_signal;
use nix::sys::signal::Signal;

/// First and last real-time signal, as numbered by libc.
const RTMIN: u32 = 34;
const RTMAX: u32 = 64;

pub const USR1: u32 = 10;
pub const PIPE: u32 = 13;

/// Parses a signal: `TERM`, `SIGTERM`, `sigterm`, `15`, `RTMIN+2` or `RTMAX-1`.
pub fn parse(text: &str) -> Result<u32, String> {
    parse_signal(text).and_then(|number| u32::try_from(number).ok()).ok_or_else(|| {
        "is not a signal: use a number from 1 to 64 or a name such as TERM, KILL, USR1, RTMIN+1".to_owned()
    })
}

/// Returns the name: `SIGTERM` for 15, `SIGRTMIN+1` for 35, `signal 33` for a number without a name.
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
    fn signal_names_and_numbers_are_parsed() {
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
            ("CLD", 17),
            ("POLL", 29),
        ];
        for (text, number) in table {
            assert_eq!(parse(text), Ok(number), "{text}");
        }
        for text in [
            "0",
            "65",
            "-1",
            "",
            "SIG",
            "TERMINATE",
            "RTMIN+31",
            "RTMAX-31",
            "RTMIN+4294967295",
            "+15",
            "SIGSIGTERM",
            "RTMIN++1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        for number in 1..=31 {
            assert_eq!(parse(&name(number)), u32::try_from(number).map_err(|e| e.to_string()));
        }
        assert_eq!((name(35), name(33)), ("SIGRTMIN+1".to_owned(), "signal 33".to_owned()));
    }
}
