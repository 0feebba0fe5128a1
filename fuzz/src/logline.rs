//! Target: writes a process's output to a log file and reads it back, and reads a log file of another writer.

use executor_core::logline::{CHUNK_MAX, Entry, Line, Stream, parse, split, write, write_place};
use executor_core::time::Timestamp;

/// Maximum number of checked lines of a file.
const LINES_MAX: usize = 64;

/// Writes and reads back the input as output, and reads the input as a log file. The first byte selects how often the
/// text before the first newline is repeated, so that some lines are longer than one entry.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else { return };
    read(bytes);
    let (line, rest) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    // Long lines are rare, because they are slow.
    let times = match choice {
        0 | 1 if !line.is_empty() => CHUNK_MAX.div_ceil(line.len()) + usize::from(*choice),
        _ => 1,
    };
    check_round_trip(&[&line.repeat(times), rest].concat());
}

/// Checks that each line is either rejected, or unchanged after it is written and parsed again.
fn read(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n').take(LINES_MAX) {
        let Some(parsed) = parse(line) else { continue };
        let mut again = Vec::new();
        match &parsed {
            Line::Entry(entry) => write(entry, &mut again),
            Line::Place(time, place, missing) => write_place(*time, *place, *missing, &mut again),
        }
        assert_eq!(again.pop(), Some(b'\n'));
        assert_eq!(parse(&again), Some(parsed), "the parsed line changes if written and parsed again");
    }
}

/// Checks that the output is read back byte for byte.
fn check_round_trip(printed: &[u8]) {
    let (mut file, time) = (Vec::new(), Timestamp(1));
    for (content, complete) in split(printed) {
        assert!(content.len() <= CHUNK_MAX && !content.contains(&b'\n'));
        write(&Entry { time, stream: Stream::Stderr, complete, source: "APP", content }, &mut file);
    }
    let mut back = Vec::new();
    for line in file.split_inclusive(|byte| *byte == b'\n') {
        let Some(Line::Entry(entry)) = parse(&line[..line.len() - 1]) else { panic!("not an entry: {line:?}") };
        assert_eq!((entry.time, entry.stream, entry.source), (time, Stream::Stderr, "APP"));
        back.extend_from_slice(entry.content);
        if entry.complete {
            back.push(b'\n');
        }
    }
    assert!(back == printed, "{} bytes were printed, {} were read back", printed.len(), back.len());
}
