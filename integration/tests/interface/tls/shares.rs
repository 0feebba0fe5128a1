//! Shared resources are divided by the identities of callers.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use executor_proto::v1;
use integration::http2::{END_STREAM, HEADERS, PING};
use integration::request::{RequestBuilder as _, program};
use integration::tls::{Issued, TlsDaemon, unnamed};
use prost::Message as _;
use rcgen::DnType;

/// Configuration entry that matches several identities. Each identity has its own share of streams and of memory for
/// responses.
const CALLERS: &str = "[[callers]]\nou = 'readers'\nmethods = ['read']\n";
/// Maximum number of streams on a connection.
const STREAMS: usize = 250;

fn reader(tls: &TlsDaemon, name: &str) -> Issued {
    let mut params = unnamed();
    params.distinguished_name.push(DnType::OrganizationalUnitName, "readers");
    params.distinguished_name.push(DnType::CommonName, name);
    tls.authority.issue(&params)
}

/// If a caller does not read its responses, it delays its own calls, but no calls of another identity.
#[test]
fn unread_responses_delay_no_other_identity() {
    let tls = TlsDaemon::start(CALLERS, "");
    let api = &tls.daemon.api;
    for index in 0..20 {
        let mut request = program("/bin/true", &[]).id(&format!("c{index}"));
        request.labels = (0..64).map(|label| (format!("l{label}"), "x".repeat(200))).collect();
        api.run_to_end(request);
    }
    let list = v1::ListRequest { page_size: 1000, ..Default::default() };
    let mut unread = Vec::new();
    for _ in 0..8 {
        let mut raw = tls.raw(&reader(&tls, "a"), 0);
        for _ in 0..18 {
            raw.try_call("/executor.v1.Executor/List", &list.encode_to_vec()).unwrap();
        }
        unread.push(raw);
    }
    // As a control, the server does send the response.
    unread[0].until(|kind, flags, _, _| kind == HEADERS && flags & END_STREAM == 0);
    // PING frames do not count as progress. Closed connections are skipped.
    let (over, is_over) = channel::<()>();
    let pinging = std::thread::spawn(move || {
        while is_over.recv_timeout(Duration::from_secs(2)) == Err(RecvTimeoutError::Timeout) {
            unread.retain_mut(|raw| raw.try_frame(PING, 0, 0, &[7; 8]).is_ok());
        }
    });
    let other = tls.connect(&tls.files("b", &reader(&tls, "b"))).unwrap();
    for _ in 0..3 {
        let listed = api.block_on(async { other.rpc().list(list.clone()).await }).unwrap();
        assert_eq!(listed.into_inner().containers.len(), 20);
    }
    drop(over);
    pinging.join().unwrap();
}

/// If a caller has used all streams of its share, another stream is refused on every connection. Another identity has
/// its own share.
#[test]
fn streams_of_an_identity_leave_others_theirs() {
    let tls = TlsDaemon::start(CALLERS, "");
    let (mut held, mut accepted) = (Vec::new(), 0);
    for _ in 0..5 {
        let mut raw = tls.raw(&reader(&tls, "a"), 0);
        accepted += raw.open_streams("/executor.v1.Executor/WatchEvents", STREAMS).unwrap();
        held.push(raw);
    }
    assert_eq!(accepted, 1024);
    let watch = |name: &str| {
        let client = tls.connect(&tls.files(name, &reader(&tls, name))).unwrap();
        tls.daemon.api.block_on(async { client.rpc().watch_events(v1::WatchEventsRequest::default()).await })
    };
    let refused = watch("a").unwrap_err();
    assert!(refused.message().contains("this caller has the maximum of 1024 open response streams"), "{refused}");
    watch("b").unwrap();
}
