//! Tests that a client can read logs from a given entry number.

use executor_proto::v1::StreamLogsRequest;
use integration::cli;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh};
use tonic::Code;

fn from(daemon: &Daemon, number: u64) -> Result<Vec<(u64, String)>, tonic::Status> {
    let request = StreamLogsRequest { id: "c".into(), from_sequence: Some(number), ..StreamLogsRequest::default() };
    let mut stream = daemon.api.logs(request)?;
    let mut entries = Vec::new();
    while let Some(entry) = stream.message()? {
        entries.push((entry.sequence, String::from_utf8(entry.data).unwrap()));
    }
    Ok(entries)
}

#[test]
fn log_starts_at_requested_entry_number() {
    let daemon = Daemon::start();
    daemon.api.run_to_end(sh("for i in 1 2 3 4 5; do echo line $i; done").id("c"));
    let all = from(&daemon, 1).unwrap();
    assert_eq!(all.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for number in 1..=5 {
        assert_eq!(from(&daemon, number).unwrap(), all[number as usize - 1..], "from {number}");
    }
    assert_eq!(from(&daemon, 6).unwrap(), [], "a reader that has everything");
    assert_eq!(from(&daemon, 7).unwrap_err().code(), Code::OutOfRange);
    let text = cli::run(&daemon.socket(), &["logs", "--from", "4", "c"]);
    assert_eq!(text.stdout, "line 4\nline 5\n");
    for bad in [
        StreamLogsRequest { from_sequence: Some(0), ..StreamLogsRequest::default() },
        StreamLogsRequest { from_sequence: Some(1), offset: Some(1), ..StreamLogsRequest::default() },
        StreamLogsRequest { from_sequence: Some(1), tail: Some(1), ..StreamLogsRequest::default() },
    ] {
        let reported = daemon.api.logs(StreamLogsRequest { id: "c".into(), ..bad }).err().unwrap();
        assert!(reported.code() == Code::InvalidArgument && reported.message().contains("from_sequence"), "{reported}");
    }
}
