//! StreamLogs delivers output by stream, byte for byte, during the run or afterwards.

use executor_proto::v1::{AttachStart, LogStream, RunRequest, StreamLogsRequest, StreamLogsResponse};
use integration::api::{Api, exit};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder, program, sh};
use integration::rootfs::Rootfs;
use integration::streams::Attached;

/// Maximum size of an entry in bytes (docs/api.md).
const ENTRY_MAX: usize = 61_440;

fn pairs(entries: &[StreamLogsResponse]) -> Vec<(LogStream, &str)> {
    entries.iter().map(|entry| (entry.stream(), std::str::from_utf8(&entry.data).unwrap())).collect()
}

#[test]
fn log_streams_are_separate_with_unchanged_lines() {
    use LogStream::{Stderr, Stdout};
    let daemon = Daemon::start();
    let script = "echo out; echo err >&2; printf 'no newline'";
    daemon.api.run_to_end(sh(script).id("log").action(|run| run.log_source = "APP/1".into()));
    let entries = daemon.api.follow("log").rest();
    // The order is guaranteed within a stream, but not between the two pipes.
    let of = |stream| pairs(&entries).into_iter().filter(move |(of, _)| *of == stream).map(|(_, text)| text);
    assert_eq!(of(Stdout).collect::<Vec<_>>(), ["out\n", "no newline"]);
    assert_eq!(of(Stderr).collect::<Vec<_>>(), ["err\n"]);
    assert!(entries.iter().all(|entry| entry.log_source == "APP/1" && entry.time.is_some()), "{entries:?}");
    assert!(entries.is_sorted_by_key(|entry| entry.time.map(|time| (time.seconds, time.nanos))), "{entries:?}");
    let unfollowed = daemon.api.logs(StreamLogsRequest { id: "log".into(), ..StreamLogsRequest::default() });
    assert_eq!(unfollowed.unwrap().rest(), entries);
}

/// Output is byte-exact: every byte value, lines longer than an entry, no output at all, and a megabyte of random
/// bytes.
#[test]
fn output_is_byte_exact() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let noise: Vec<u8> = (0u32..1 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let every_byte: Vec<u8> = (0..=255).collect();
    let umlauts = "ä".repeat(ENTRY_MAX).into_bytes();
    let table: [(&str, &[u8]); 6] = [
        ("noise", &noise),
        ("every-byte", &every_byte),
        ("umlauts", &umlauts),
        ("one-long-line", &[b'x'; 200_000]),
        ("newlines", &[b'\n'; 3000]),
        ("nothing", &[]),
    ];
    for (id, bytes) in table {
        std::fs::write(rootfs.path().join("bytes"), bytes).unwrap();
        daemon.api.run_to_end(program("/bin/cat", &["/bytes"]).id(id).rootfs(&rootfs.reference()));
        let entries = daemon.api.follow(id).rest();
        assert!(entries.iter().all(|entry| entry.data.len() <= ENTRY_MAX && !entry.data.is_empty()), "{id}");
        let got: Vec<u8> = entries.iter().flat_map(|entry| entry.data.clone()).collect();
        let same = got.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        assert!(got == bytes, "{id}: {} bytes of {}, the first {same} the same", got.len(), bytes.len());
        if id == "umlauts" {
            let whole = entries.iter().all(|entry| std::str::from_utf8(&entry.data).is_ok());
            assert!(whole, "text is cut between characters");
        }
    }
}

/// Output arrives while the process runs. The stream ends when the container exits.
#[test]
fn follow_streams_until_exit() {
    let daemon = Daemon::start();
    let script = "trap 'echo again' USR1; trap 'exit 0' TERM; printf prompt; while :; do sleep 0.05; done";
    daemon.api.started(sh(script).id("along"));
    let mut log = daemon.api.follow("along");
    log.until(|entry| entry.data == b"prompt");
    for _ in 0..3 {
        daemon.api.signal("along", 10).unwrap();
        log.until(|entry| entry.data == b"again\n");
    }
    daemon.api.signal("along", 15).unwrap();
    assert_eq!(pairs(&log.rest()), []);
    assert_eq!(daemon.api.output("along").text(), "promptagain\nagain\nagain\n");
}

#[test]
fn log_without_follow_ends_with_current_entries() {
    let daemon = Daemon::start();
    daemon.api.up(sh("echo up; exec sleep 100000").id("now"));
    let request = StreamLogsRequest { id: "now".into(), ..StreamLogsRequest::default() };
    assert_eq!(pairs(&daemon.api.logs(request).unwrap().rest()), [(LogStream::Stdout, "up\n")]);
}

#[test]
fn since_leaves_out_what_came_before() {
    let daemon = Daemon::start();
    let script = "n=1; trap 'n=$((n+1)); echo $n' USR1; echo 1; while [ $n -lt 4 ]; do sleep 0.01; done";
    daemon.api.started(sh(script).id("since"));
    let mut log = daemon.api.follow("since");
    // Each line is printed after the previous line was read, so no two entries have the same timestamp.
    for number in 1..4 {
        log.until(|entry| entry.data == format!("{number}\n").into_bytes());
        daemon.api.signal("since", 10).unwrap();
    }
    let all = daemon.api.follow("since").rest();
    assert_eq!(all.len(), 4);
    for (index, entry) in all.iter().enumerate() {
        let request =
            StreamLogsRequest { id: "since".into(), follow: true, since: entry.time, ..StreamLogsRequest::default() };
        assert_eq!(daemon.api.logs(request).unwrap().rest(), all[index..], "at or after, the entry itself included");
    }
    let time = |seconds, nanos| Some(prost_types::Timestamp { seconds, nanos });
    for (since, expected) in [(time(-5, 0), 4), (time(1 << 40, 0), 0)] {
        let request = StreamLogsRequest { id: "since".into(), follow: true, since, ..StreamLogsRequest::default() };
        assert_eq!(daemon.api.logs(request).unwrap().rest().len(), expected);
    }
}

#[test]
fn suppressed_output_is_not_kept() {
    let daemon = Daemon::start();
    let loud = sh("echo canary-out && echo canary-err >&2 && ls / && exit 3");
    assert_eq!(exit(&daemon.api.run_to_end(loud.clone().id("control"))), Ok(3));
    assert_eq!(exit(&daemon.api.run_to_end(loud.id("quiet").action(|run| run.suppress_log_output = true))), Ok(3));
    assert!(daemon.api.output("control").text().starts_with("canary-out\n"));
    assert_eq!(daemon.api.follow("quiet").rest(), []);
    let kept = |id: &str| {
        let log = daemon.setup().state_dir().join("containers").join(id).join("log");
        std::fs::read_to_string(log).unwrap_or_default().contains("canary-out")
    };
    assert!(kept("control") && !kept("quiet"));
}

/// If its output is not kept, a program can still use its three standard streams as usual.
#[test]
fn suppressed_output_keeps_standard_streams_usable() {
    let daemon = Daemon::start();
    let script =
        "echo x && echo y >&2 && echo z >/dev/stdout && echo e >/dev/stderr && ! read line && ! test -t 1 && exit 7";
    for (id, suppress, terminal) in [("kept", false, false), ("quiet", true, false), ("console", true, true)] {
        let script = if terminal { "test -t 1 && echo x && echo y >&2 && exit 7" } else { script };
        let request = sh(script).id(id).action(|run| run.suppress_log_output = suppress);
        let ended = daemon.api.run_to_end(RunRequest { terminal, ..request });
        assert_eq!(exit(&ended), Ok(7), "{id}");
    }
    assert_eq!(daemon.api.output("kept").text(), "x\nz\n");
    assert_eq!(daemon.api.follow("quiet").rest(), []);
}

/// A follower continues across log rotations. The received output and the reported gaps together are the whole output.
#[test]
fn follower_survives_rotations_and_reports_gaps() {
    let setup = Setup::default().config("[launcher]\nlog_bytes_max = 65536\n");
    let daemon = setup.start();
    // Unread data of several streams fills the window of their connection, so each stream has its own connection.
    let connected = || Api::connect(&daemon.socket()).unwrap();
    let bytes = 100 << 20;
    let request = sh(&format!("read go; head -c {bytes} /dev/zero")).id("c");
    daemon.api.started(RunRequest { stdin: true, ..request });
    let mut followers: Vec<_> = (0..3).map(|_| connected().follow("c")).collect();
    let typist = AttachStart { id: "c".into(), input: true, no_output: true, ..AttachStart::default() };
    let typist = Attached::start(&daemon.api, typist).unwrap();
    typist.send_input(b"\n");
    daemon.api.wait("c").unwrap();
    // A late follower misses the beginning of the output.
    followers.push(connected().follow("c"));
    for (number, mut follower) in followers.into_iter().enumerate() {
        let (mut offset, mut dropped, mut sequence) = (0, 0, 0);
        for entry in follower.rest() {
            assert_eq!(entry.offset, offset, "{number}: {entry:?}");
            match entry.gap {
                Some(gap) => {
                    assert_eq!((gap.log_bytes_max, entry.data.len()), (65536, 0));
                    (offset, sequence) = (offset + gap.dropped_bytes, sequence + gap.dropped_entries);
                    dropped += gap.dropped_bytes;
                }
                None => {
                    assert!(entry.sequence == sequence + 1 && entry.data.iter().all(|byte| *byte == 0));
                    (offset, sequence) = (offset + entry.data.len() as u64, entry.sequence);
                }
            }
        }
        assert_eq!(offset, bytes, "{number}");
        assert!(dropped > 0, "{number}: no gap, although 100 MiB exceed the kept log");
    }
    let from = |offset| StreamLogsRequest { id: "c".into(), offset: Some(offset), ..StreamLogsRequest::default() };
    let rest = daemon.api.logs(from(bytes - 1000)).unwrap().rest();
    assert_eq!(rest.iter().map(|entry| entry.data.len()).sum::<usize>(), 1000, "within the kept output: {rest:?}");
    assert!(rest.iter().all(|entry| entry.gap.is_none()) && rest[0].offset == bytes - 1000);
    let rest = daemon.api.logs(from(5)).unwrap().rest();
    assert_eq!((rest[0].offset, rest[0].offset + rest[0].gap.unwrap().dropped_bytes), (5, rest[1].offset));
    assert!(daemon.api.logs(from(bytes)).unwrap().rest().is_empty());
    assert_eq!(daemon.api.logs(from(bytes + 1)).unwrap().message().unwrap_err().code(), tonic::Code::OutOfRange);
}
