//! If a receiver does not read, no container is blocked, and the reported number of dropped messages is correct.

use executor_core::logline::{self, Line};
use integration::api::exit;
use integration::daemon::Setup;
use integration::request::{RequestBuilder as _, sh};
use integration::wait;

use super::{Receiver, configuration, directory, metric};

/// Number of lines that the flood prints, of 100 bytes each.
const LINES: u64 = 1_000_000;

/// A container prints 100 MB while the receiver does not read: the container exits, all lines of another container
/// arrive, and every line of the flood is either received or reported as dropped. The numbers in the stream and in the
/// metrics agree with the byte count of the log itself.
#[test]
fn blocked_receiver_causes_only_reported_drops() {
    let setup = Setup::default();
    let socket = directory(&setup).join("log.sock");
    let receiver = Receiver::listen(&socket);
    let config = configuration(&setup, &format!("unix://{}", socket.display()), "[launcher]\nlog_bytes_max = '1M'");
    let daemon = setup.config(&config).start();
    let mut connection = receiver.accept();

    let line = "0123456789".repeat(9) + "abcdefghi";
    let ended = daemon.api.run_to_end(sh(&format!("yes {line} | head -n {LINES}; echo end")).id("flood"));
    assert_eq!(exit(&ended), Ok(0));
    daemon.api.run_to_end(sh("for i in 1 2 3; do echo calm $i; done").id("calm"));
    // The receiver has read nothing so far. Output is dropped only if necessary, and the metric reports the waiting
    // container.
    assert!(metric(&daemon, "executor_log_waiting_containers", "syslog") >= 1);

    let (mut flood, mut calm, mut dropped) = (0, Vec::new(), (0, 0));
    let (mut ended, mut reported) = (false, 0);
    while !ended || calm.len() < 3 {
        let message = connection.next().unwrap();
        if message.head.contains(" calm ") {
            calm.push(message.text);
        } else if let Some(lines) = message.parameter("dropped_lines") {
            reported += 1;
            dropped.0 += lines;
            dropped.1 += message.parameter("dropped_bytes").unwrap();
            assert!(message.text.starts_with(&format!("{lines} lines of output")) && message.head.starts_with("<12>"));
        } else if message.text == "end" {
            ended = true;
        } else {
            // Next to a gap, a line may be incomplete. It is then marked as partial.
            assert!(line.contains(&message.text), "{message:?}");
            flood += message.text.len() as u64 + u64::from(!message.head.contains("partial_last=\"false\""));
        }
    }
    assert_eq!(calm, ["calm 1", "calm 2", "calm 3"]);
    assert!(reported >= 1, "the log keeps only 2 of 100 MB, so lines must be reported as dropped");
    let whole = LINES * 100 + 4;
    assert_eq!(flood + 4 + dropped.1, whole, "{flood} bytes received, {dropped:?} reported as dropped");
    let counted = || {
        let value = |name: &str| metric(&daemon, name, "syslog");
        (value("executor_log_unsent_lines_total"), value("executor_log_unsent_bytes_total"))
    };
    // The scraped metrics may be one second old.
    wait::until("the metrics report the dropped lines", || (counted() == dropped).then_some(()));
    wait::until("the daemon's log reports the dropped bytes", || {
        let log = daemon.setup().logged();
        log.contains(&format!("bytes={}", dropped.1)).then_some(())
    });
    // As a control, both numbers are compared with the end position of the log itself.
    let kept = std::fs::read(daemon.setup().state_dir().join("containers/flood/log")).unwrap();
    let mut place = logline::LogPosition::default();
    for text in kept.split(|byte| *byte == b'\n') {
        match logline::parse(text) {
            Some(Line::Entry(entry)) => place.advance(&entry),
            Some(Line::Place(_, at, _)) => place = at,
            None => {}
        }
    }
    assert_eq!(place.bytes, whole);
}

/// If a container is deleted, its waiting output is still sent, up to the limit. Output beyond the limit is reported as
/// dropped.
#[test]
fn deleted_container_log_is_sent_within_limit() {
    let setup = Setup::default();
    let socket = directory(&setup).join("log.sock");
    let config = configuration(&setup, &format!("unix://{}", socket.display()), "");
    let daemon = setup.config(&config.replace("[logs.syslog]", "waiting_bytes_max = '64K'\n[logs.syslog]")).start();
    // No receiver is listening yet.
    for id in ["kept", "beyond"] {
        daemon.api.run_to_end(sh("echo one; echo two").id(id));
        daemon.api.delete(id, false).unwrap();
        // The waiting output of the first container uses all of the space for deleted containers.
        let waits = || metric(&daemon, "executor_log_waiting_deleted_bytes", "syslog") == 64 << 10;
        wait::until("output is waiting", || waits().then_some(()));
    }
    wait::until("the output of the second container is dropped", || {
        (metric(&daemon, "executor_log_unsent_lines_total", "syslog") == 2).then_some(())
    });
    // A later container with the same id is unaffected.
    daemon.api.run_to_end(sh("echo later").id("kept"));
    let mut connection = Receiver::listen(&socket).accept();
    let mut texts: Vec<String> = (0..3).map(|_| connection.next().unwrap().text).collect();
    texts.sort();
    assert_eq!(texts, ["later", "one", "two"]);
    wait::until("no output is waiting", || {
        (metric(&daemon, "executor_log_waiting_deleted_bytes", "syslog") == 0).then_some(())
    });
}
