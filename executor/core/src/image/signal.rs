//! Parses signals as named in image configurations and on command lines. The `nix` crate defines the names.

use nix::sys::signal::Signal;

/// Other names of signals, without `SIG`.
const ALIASES: [(&str, Signal); 3] = [("IOT", Signal::SIGABRT), ("CLD", Signal::SIGCHLD), ("POLL", Signal::SIGIO)];
/// First real-time signal of the C library, and last real-time signal of the kernel.
const REALTIME: (i32, i32) = (34, 64);

/// Parses a signal: a number, a name with or without `SIG`, or `RTMIN+n` and `RTMAX-n` (image-spec, config.md,
/// `StopSignal`).
pub fn parse_signal(text: &str) -> Option<i32> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().filter(|number| (1..=REALTIME.1).contains(number));
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let offset = |rest: &str, sign: char| match rest {
        "" => Some(0),
        rest => {
            let digits = rest.strip_prefix(sign).filter(|n| n.len() <= 2 && n.bytes().all(|b| b.is_ascii_digit()))?;
            digits.parse().ok()
        }
    };
    let number = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(rest), _) => REALTIME.0 + offset(rest, '+')?,
        (_, Some(rest)) => REALTIME.1 - offset(rest, '-')?,
        _ => {
            let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, signal)| *signal);
            return alias.or_else(|| format!("SIG{name}").parse().ok()).map(|signal| signal as i32);
        }
    };
    (REALTIME.0..=REALTIME.1).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_by_number_and_name() {
        let table = [
            ("15", Some(15)),
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("SIGQUIT", Some(3)),
            ("iot", Some(6)),
            ("CLD", Some(17)),
            ("POLL", Some(29)),
            ("SIGSYS", Some(31)),
            ("SIGSIGTERM", None),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMAX-1", Some(63)),
            ("RTMIN", Some(34)),
            ("SIGRTMIN+31", None),
            ("SIGRTMIN+999", None),
            ("SIGRTMIN-1", None),
            ("SIGRTMIN++1", None),
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
