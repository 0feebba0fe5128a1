//! Limits of a container's log: output above the limits is dropped, is reported once, and is counted; attached clients
//! receive all output.

use executor_proto::v1::{AttachStart, LogLimits, LogStream, RunRequest, StreamLogsResponse};
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder, program, sh};
use integration::streams::Attached;

/// Script that prints 200 lines of 100 bytes after it has read a line.
const FLOOD: &str = "read go; line=$(printf %099d 7); i=0; while [ $i -lt 200 ]; do echo $line; i=$((i+1)); done";
const FLOOD_BYTES: u64 = 200 * 100;

fn limited(request: RunRequest, bytes: Option<i64>, lines: Option<i64>) -> RunRequest {
    RunRequest { log_limits: Some(LogLimits { bytes_per_second: bytes, lines_per_second: lines }), ..request }
}

/// Kept and missing output of a log.
#[derive(Debug, Default)]
struct Kept {
    bytes: u64,
    dropped: u64,
    notices: Vec<String>,
}

/// Sums up a log. Checks that entries and gaps together are the whole output.
fn kept(entries: &[StreamLogsResponse]) -> Kept {
    let mut kept = Kept::default();
    let (mut offset, mut sequence) = (0, 0);
    for entry in entries {
        assert_eq!(entry.offset, offset, "{entry:?}");
        match entry.gap {
            Some(gap) => {
                assert!(gap.above_limits, "{entry:?}");
                (offset, sequence) = (offset + gap.dropped_bytes, sequence + gap.dropped_entries);
                kept.dropped += gap.dropped_bytes;
            }
            None => {
                assert_eq!(entry.sequence, sequence + 1, "{entry:?}");
                sequence = entry.sequence;
                if entry.stream() == LogStream::Executor {
                    kept.notices.push(String::from_utf8_lossy(&entry.data).trim_end().to_owned());
                } else {
                    offset += entry.data.len() as u64;
                    kept.bytes += entry.data.len() as u64;
                }
            }
        }
    }
    kept
}

#[test]
fn log_limits_drop_output_except_for_clients() {
    let daemon = Daemon::start();
    let table = [
        ("none", None, None, ""),
        ("unlimited", Some(-1), Some(-1), ""),
        ("bytes", Some(1000), None, "app instance exceeded log rate limit (1000 bytes/sec)"),
        ("lines", None, Some(10), "app instance exceeded log rate limit (10 log-lines/sec)"),
        ("nothing", Some(0), None, ""),
    ];
    for (id, bytes, lines, notice) in table {
        daemon.api.started(RunRequest { stdin: true, ..limited(sh(FLOOD).id(id), bytes, lines) });
        let start = AttachStart { id: id.into(), input: true, ..AttachStart::default() };
        let client = Attached::start(&daemon.api, start).unwrap();
        client.send_input(b"\n");
        let client = client.end().unwrap();
        assert_eq!(client.stdout.len() as u64, FLOOD_BYTES, "{id}: attached clients are not limited");
        daemon.api.wait(id).unwrap();
        let kept = kept(&daemon.api.follow(id).rest());
        assert_eq!(kept.bytes + kept.dropped, FLOOD_BYTES, "{id}: {kept:?}");
        if id == "nothing" {
            assert_eq!(
                (kept.bytes, kept.notices.len()),
                (0, 0),
                "with a limit of 0, no output is kept and no overage is reported"
            );
            continue;
        }
        if notice.is_empty() {
            assert_eq!((kept.bytes, kept.notices.len()), (FLOOD_BYTES, 0), "{id}, the control");
            continue;
        }
        assert_eq!(kept.notices, [notice], "{id}");
        let least = if id == "lines" { 1 } else { 1000 };
        assert!(kept.bytes >= least, "{id}: {kept:?}");
        // On a slow machine the output takes some seconds, so a part of it is kept.
        assert!(kept.bytes < FLOOD_BYTES / 2, "{id}: {kept:?}");
    }
}

/// Output that exceeds the limit again after a pause is reported again. The log can be read with its gaps from any
/// position.
#[test]
fn each_overage_is_reported_once() {
    let daemon = Daemon::start();
    let burst = "i=0; while [ $i -lt 50 ]; do echo $i; i=$((i+1)); done";
    // The limit is a rate: after the pause, the output is below it again.
    daemon.api.run_to_end(limited(sh(&format!("{burst}; sleep 4; {burst}; echo end >&2")).id("c"), None, Some(5)));
    let entries = daemon.api.follow("c").rest();
    let reported = kept(&entries);
    assert_eq!(reported.notices.len(), 2, "{entries:?}");
    let total: u64 = reported.bytes + reported.dropped;
    assert_eq!(total, 2 * (10 * 2 + 40 * 3) + 4, "{reported:?}");
}

/// The operator configures a default and a maximum for the limits.
#[test]
fn operator_limits_logs() {
    let policy = "[policy]\ndefault_log_lines_per_second = 7\nlog_lines_per_second_max = 10\nlog_bytes_per_second_max = \"4K\"\n";
    let daemon = Setup::default().config(policy).start();
    let spec = daemon.api.run_to_end(sh("true").id("default")).spec.unwrap();
    let limits = spec.log_limits.unwrap();
    assert_eq!((limits.bytes_per_second, limits.lines_per_second), (Some(4096), Some(7)), "the maximum, the default");
    let refused = daemon.api.run(limited(sh("true").id("more"), Some(-1), Some(11))).unwrap_err();
    let details = tonic_types::StatusExt::get_details_bad_request(&refused).unwrap();
    let fields: Vec<_> = details.field_violations.iter().map(|one| (one.field.as_str(), one.reason.as_str())).collect();
    let expected = [("log_limits.bytes_per_second", "NOT_ALLOWED"), ("log_limits.lines_per_second", "NOT_ALLOWED")];
    assert_eq!(fields, expected, "{refused:?}");
    daemon.api.run_to_end(limited(sh("true").id("less"), Some(0), Some(10)));
}

/// A multi-byte character is never split across two log entries, even if the process writes it in pieces. The output is
/// delivered unchanged.
#[test]
fn entries_end_on_whole_characters() {
    let daemon = Daemon::start();
    // Writes characters of three bytes from an odd offset, which fill several entries. Then writes one character in
    // three pieces, each after the previous piece was read, and an incomplete character.
    let script = r"import os, fcntl, array, termios
os.write(1, b'x' + 300_000 * b'\xe2\x82\xac')
def written(piece):
    left = array.array('i', [1])
    while left[0]:
        fcntl.ioctl(1, termios.FIONREAD, left)
    os.write(1, piece)
for piece in b'\xe2', b'\x82', b'\xac':
    written(piece)
os.write(2, b'\xe2\x82')";
    daemon.api.run_to_end(program("/usr/bin/python3", &["-c", script]).id("c"));
    let entries = daemon.api.follow("c").rest();
    let out: Vec<&StreamLogsResponse> = entries.iter().filter(|entry| entry.stream() == LogStream::Stdout).collect();
    assert!(out.len() > 10 && out.iter().all(|entry| entry.data.len() <= 61_440));
    for entry in &out {
        assert!(std::str::from_utf8(&entry.data).is_ok(), "{:x?}", &entry.data[entry.data.len().saturating_sub(4)..]);
    }
    let output = daemon.api.output("c");
    assert!(output.stdout == format!("x{}", "€".repeat(300_001)).into_bytes(), "{} bytes", output.stdout.len());
    assert_eq!(output.stderr, b"\xe2\x82", "invalid text is delivered unchanged");
}

#[test]
fn tags_come_with_the_first_message() {
    let daemon = Daemon::start();
    let run = ["run", "--detach", "--id", "c", "--log-rate", "1M", "--log-lines", "none", "--log-tag", "instance_id=7"];
    let started = cli::run(&daemon.socket(), &[&run[..], &["--", "/bin/sh", "-c", "echo a; echo b"]].concat());
    assert_eq!(started.status, 0, "{started:?}");
    daemon.api.wait("c").unwrap();
    let entries = daemon.api.follow("c").rest();
    let tags: Vec<usize> = entries.iter().map(|entry| entry.log_tags.len()).collect();
    assert_eq!((tags, entries[0].log_tags["instance_id"].as_str()), (vec![1, 0], "7"));
    let json = cli::run(&daemon.socket(), &["inspect", "c", "--json"]).json();
    assert_eq!(json["spec"]["log_tags"]["instance_id"], "7");
    assert_eq!(json["spec"]["log_limits"]["bytes_per_second"], 1 << 20);
    let shown = cli::run(&daemon.socket(), &["inspect", "c"]).stdout;
    assert!(shown.contains("instance_id=7") && shown.contains("per second"), "{shown}");
    let bad = cli::run(&daemon.socket(), &["run", "--log-tag", "a b=c", "--", "/bin/true"]);
    assert!(bad.stderr.contains("--log-tag"), "{bad:?}");
}
