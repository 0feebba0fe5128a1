//! Encodes and decodes payloads: the memory files that carry arguments, environment and file contents from the daemon
//! to a container's init.
//!
//! A payload is written once into a memory file. The file is passed by descriptor; the receiving process reads the
//! payload in place and overwrites it. No other process has a copy. The format is a list of length-prefixed strings,
//! which a newly cloned process can parse without allocation:
//!
//! ```text
//! payload := magic (8 bytes) count (u32, little endian) { length (u32) bytes }*
//! ```
//!
//! A process payload is `path, dir, argument count (decimal), arguments..., environment strings...`, with the secret
//! variables after the others, in the plan's order. A files payload is one string per planned file whose content comes
//! with the request, in the plan's order.

use std::ops::Range;

use crate::plan::PlannedProcess;

/// Magic number of a payload, with its version.
pub const MAGIC: [u8; 8] = *b"EXECPL01";
/// Length of a payload's header, in bytes: the magic number and the count.
pub const HEAD: usize = MAGIC.len() + 4;
/// Maximum number of strings in a payload.
pub const COUNT_MAX: u32 = 65_536;
/// Environment string that a process gets if the request does not set PATH.
pub const PATH_DEFAULT: &[u8] = b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Default TERM of a process with a terminal.
const TERM_DEFAULT: &[u8] = b"TERM=xterm";
/// Maximum size of a payload, in bytes.
pub const BYTES_MAX: usize = 1 << 30;

/// Returns the environment strings that are added to the request's environment: PATH, and TERM for a process with a
/// terminal. A string is added only if the request does not set the variable.
pub fn default_environment<'a>(has: impl Fn(&str) -> bool, terminal: bool) -> impl Iterator<Item = &'a [u8]> {
    let path = (!has("PATH")).then_some(PATH_DEFAULT);
    let term = (terminal && !has("TERM")).then_some(TERM_DEFAULT);
    path.into_iter().chain(term)
}

/// Error from decoding a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The bytes are too short or have no payload magic.
    #[error("the payload does not begin with its header")]
    Magic,
    /// The number of strings exceeds [`COUNT_MAX`]; holds the number.
    #[error("the payload announces {0} strings; at most {COUNT_MAX} are allowed")]
    Count(u32),
    /// The string with this index extends past the end.
    #[error("string {0} extends past the end of the payload")]
    Truncated(u32),
    /// Bytes follow the last string; holds their number.
    #[error("{0} bytes follow the last string of the payload")]
    Trailing(usize),
    /// The structure of the payload is invalid; holds the reason.
    #[error("the payload is malformed: {0}")]
    Shape(&'static str),
}

/// Returns the length of the payload of these strings.
pub fn encoded_len<'a>(strings: impl Iterator<Item = &'a [u8]>) -> usize {
    strings.map(|s| 4 + s.len()).sum::<usize>() + HEAD
}

/// Returns the header of a payload with this number of strings.
///
/// # Panics
/// Panics if `count` is 2^32 or more.
pub fn head(count: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..].copy_from_slice(&u32::try_from(count).expect("bounded by validation").to_le_bytes());
    head
}

/// Returns the prefix of a string of this length.
///
/// # Panics
/// Panics if `length` is 4 GiB or more.
pub fn prefix(length: usize) -> [u8; 4] {
    u32::try_from(length).expect("bounded by validation").to_le_bytes()
}

/// Writes a payload into `out`, which has exactly [`encoded_len`] bytes.
///
/// # Panics
/// Panics if `out` has another length, or a string has 4 GiB or more.
pub fn encode<'a>(strings: impl ExactSizeIterator<Item = &'a [u8]>, out: &mut [u8]) {
    let mut writer = Writer::new(out, strings.len());
    for string in strings {
        writer.string(string.len()).copy_from_slice(string);
    }
    writer.finish();
}

/// Writes a payload string by string into its final memory. Strings that are read from a file are therefore not copied.
/// The methods panic if `out` is too small, and `finish` panics if `out` is too large.
pub struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Starts a payload of `count` strings in `out`, which has exactly [`encoded_len`] bytes.
    pub fn new(out: &'a mut [u8], count: usize) -> Self {
        let (place, rest) = out.split_at_mut(HEAD);
        place.copy_from_slice(&head(count));
        Self { rest }
    }

    /// Returns the space for the next string.
    pub fn string(&mut self, length: usize) -> &'a mut [u8] {
        self.encoded(4).copy_from_slice(&prefix(length));
        self.encoded(length)
    }

    /// Returns the space for strings that are already encoded: the rest of another payload after its [`HEAD`].
    pub fn encoded(&mut self, length: usize) -> &'a mut [u8] {
        let (place, rest) = std::mem::take(&mut self.rest).split_at_mut(length);
        self.rest = rest;
        place
    }

    /// Checks that the payload is complete.
    pub fn finish(self) {
        assert!(self.rest.is_empty(), "encoded_len and the writer must be given the same strings");
    }
}

/// Decodes the strings of a payload without copying them. The whole payload is checked first.
///
/// # Errors
/// Returns a [`PayloadError`] if the bytes are not a payload.
pub fn decode(bytes: &[u8]) -> Result<Vec<&[u8]>, PayloadError> {
    Ok(ranges(bytes)?.into_iter().map(|range| &bytes[range]).collect())
}

/// Returns the ranges of the strings in a payload. The whole payload is checked first.
///
/// # Errors
/// Returns a [`PayloadError`] if the bytes are not a payload.
pub fn ranges(bytes: &[u8]) -> Result<Vec<Range<usize>>, PayloadError> {
    let head = bytes.get(..HEAD).filter(|head| head[..8] == MAGIC).ok_or(PayloadError::Magic)?;
    let count = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if count > COUNT_MAX {
        return Err(PayloadError::Count(count));
    }
    let mut at = HEAD;
    let mut ranges = Vec::with_capacity(count as usize);
    for index in 0..count {
        let (length, tail) = bytes[at..].split_first_chunk::<4>().ok_or(PayloadError::Truncated(index))?;
        let length = u32::from_le_bytes(*length) as usize;
        if tail.len() < length {
            return Err(PayloadError::Truncated(index));
        }
        let start = bytes.len() - tail.len();
        at = start + length;
        ranges.push(start..at);
    }
    if at == bytes.len() { Ok(ranges) } else { Err(PayloadError::Trailing(bytes.len() - at)) }
}

/// Inputs that init needs to execute the process.
#[derive(PartialEq, Eq)]
pub struct ProcessPayload<'a> {
    /// Path or name of the program.
    pub path: &'a [u8],
    /// Working directory of the process.
    pub dir: &'a [u8],
    /// Arguments, without the program's name.
    pub args: Vec<&'a [u8]>,
    /// Environment strings, `NAME=VALUE`.
    pub env: Vec<&'a [u8]>,
}

impl<'a> ProcessPayload<'a> {
    /// Returns the strings of a process payload. `count` is the number of arguments as a decimal string.
    pub fn strings(
        path: &'a [u8],
        dir: &'a [u8],
        count: &'a [u8],
        args: &[&'a [u8]],
        env: &[&'a [u8]],
    ) -> Vec<&'a [u8]> {
        [path, dir, count].into_iter().chain(args.iter().copied()).chain(env.iter().copied()).collect()
    }

    /// Decodes a process payload. A string with a NUL is an error.
    ///
    /// # Errors
    /// Returns a [`PayloadError`] if the bytes are not a process payload.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, PayloadError> {
        let strings = decode(bytes)?;
        if strings.iter().any(|string| string.contains(&0)) {
            return Err(PayloadError::Shape("a string contains NUL"));
        }
        let [path, dir, count, rest @ ..] = &strings[..] else {
            return Err(PayloadError::Shape("the path, directory or argument count is missing"));
        };
        let count: usize = std::str::from_utf8(count)
            .ok()
            .and_then(|count| count.parse().ok())
            .ok_or(PayloadError::Shape("the argument count is invalid"))?;
        if count > rest.len() {
            return Err(PayloadError::Shape("the argument count is invalid"));
        }
        let (args, env) = rest.split_at(count);
        Ok(Self { path, dir, args: args.to_vec(), env: env.to_vec() })
    }

    /// Returns the values that the plan marks as secret, in the order of a
    /// [`Manifest`](crate::disclosure::Manifest): variables, then arguments.
    ///
    /// # Errors
    /// Returns an error if the plan does not match the payload.
    pub fn secrets(&self, plan: &PlannedProcess) -> Result<Vec<&'a [u8]>, PayloadError> {
        let public = plan.environment_names.len();
        let names = &plan.secret_environment_names;
        let value = |(name, pair): (&String, &&'a [u8])| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
        let missing = PayloadError::Shape("a variable is missing");
        let of_env = self.env.get(public..public + names.len()).ok_or(missing)?;
        let of_env = names.iter().zip(of_env).map(|pair| value(pair).ok_or(missing));
        let of_args = plan
            .secret_arguments
            .iter()
            .map(|index| self.args.get(*index as usize).copied().ok_or(PayloadError::Shape("an argument is missing")));
        of_env.chain(of_args).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(strings: &[&[u8]]) -> Vec<u8> {
        let mut out = vec![0; encoded_len(strings.iter().copied())];
        encode(strings.iter().copied(), &mut out);
        out
    }

    #[test]
    fn process_payload_round_trips() {
        let strings = ProcessPayload::strings(b"/bin/sh", b"/", b"2", &[b"-c", b""], &[b"A=1", b"B=\xff"]);
        let bytes = encoded(&strings);
        let back = ProcessPayload::decode(&bytes).unwrap();
        assert!(back.path == b"/bin/sh" && back.dir == b"/");
        assert!(back.args == [&b"-c"[..], b""] && back.env == [&b"A=1"[..], b"B=\xff"]);
    }

    #[test]
    fn truncated_or_extended_payload_is_refused() {
        let bytes = encoded(&[b"/x", b"/", b"0", b"K=V"]);
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(decode(&longer), Err(PayloadError::Trailing(1)));
        let mut many = bytes;
        many[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&many), Err(PayloadError::Count(u32::MAX)));
    }

    #[test]
    fn excessive_argument_count_is_refused() {
        for count in [&b"3"[..], b"-1", b"", b"99999999999999999999"] {
            assert!(ProcessPayload::decode(&encoded(&[b"/x", b"/", count, b"a", b"b"])).is_err());
        }
        assert!(ProcessPayload::decode(&encoded(&[b"/x\0y", b"/", b"0"])).is_err());
    }

    #[test]
    fn payload_secrets_require_matching_plan() {
        let strings =
            ProcessPayload::strings(b"/x", b"/", b"2", &[b"-p", b"pw"], &[b"A=1", b"B=2=3", b"C=", b"PATH=/"]);
        let bytes = encoded(&strings);
        let payload = ProcessPayload::decode(&bytes).unwrap();
        let words = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut plan = PlannedProcess {
            id: "main".into(),
            path: "/x".into(),
            argument_count: 2,
            dir: "/".into(),
            environment_names: words(&["A"]),
            secret_environment_names: words(&["B", "C"]),
            secret_arguments: vec![1],
            log_source: String::new(),
            suppress_log_output: false,
            ..PlannedProcess::default()
        };
        assert_eq!(payload.secrets(&plan).unwrap(), [&b"2=3"[..], b"", b"pw"]);
        plan.secret_arguments = vec![2];
        assert!(payload.secrets(&plan).is_err());
        plan.secret_arguments = Vec::new();
        plan.secret_environment_names = words(&["B", "X"]);
        assert!(payload.secrets(&plan).is_err());
        plan.secret_environment_names = words(&["B", "C", "PATH", "D"]);
        assert!(payload.secrets(&plan).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(tail: Vec<u8>) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(tail);
            let _ = ProcessPayload::decode(&bytes).is_ok();
        }

        #[test]
        fn any_strings_come_back(strings: Vec<Vec<u8>>) {
            let strings: Vec<&[u8]> = strings.iter().map(Vec::as_slice).collect();
            let bytes = encoded(&strings);
            proptest::prop_assert_eq!(decode(&bytes).unwrap(), strings);
        }
    }
}
