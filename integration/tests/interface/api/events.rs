//! WatchEvents: events are ordered, numbered, and replayed from any stored position.

use executor_proto::v1::event::Kind;
use executor_proto::v1::{Event, WatchEventsRequest, WatchEventsResponse};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder, program, sleeper};
use tonic::Code;

const WHOLE_LIFE: [Kind; 7] =
    [Kind::Reserved, Kind::Initializing, Kind::Created, Kind::Running, Kind::Wiping, Kind::Completed, Kind::Deleted];

fn deleted(id: &str) -> impl Fn(&WatchEventsResponse) -> bool {
    move |response| event(response).container_id == id && event(response).kind() == Kind::Deleted
}

fn event(response: &WatchEventsResponse) -> &Event {
    response.event.as_ref().unwrap()
}

fn kinds(responses: &[WatchEventsResponse]) -> Vec<Kind> {
    responses.iter().map(|response| event(response).kind()).collect()
}

fn cursors(responses: &[WatchEventsResponse]) -> Vec<u64> {
    responses.iter().map(|response| event(response).cursor).collect()
}

#[test]
fn events_are_ordered_and_replayed_from_cursor() {
    let daemon = Daemon::start();
    daemon.api.run_to_end(program("/bin/true", &[]).id("one"));
    daemon.api.delete("one", false).unwrap();
    let all = daemon.api.events_after(0).until(deleted("one"));
    assert_eq!(kinds(&all), WHOLE_LIFE);
    assert!(all.iter().all(|response| !response.gap));
    let first = event(&all[0]).cursor;
    assert_eq!(cursors(&all), (first..first + 7).collect::<Vec<_>>(), "one by one");
    assert_eq!(daemon.api.info().cursor, first + 6);
    for response in &all {
        let event = event(response);
        assert_eq!(event.result.is_some(), event.kind() == Kind::Completed);
        assert!(event.time.is_some());
    }
    for (seen, response) in all.iter().enumerate().take(6) {
        let rest = daemon.api.events_after(event(response).cursor).until(deleted("one"));
        assert_eq!(rest, all[seen + 1..]);
    }
}

#[test]
fn stop_is_reported_failed_start_never_runs() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("stopped"));
    daemon.api.stop("stopped", None).unwrap();
    daemon.api.wait("stopped").unwrap();
    daemon.api.run_to_end(program("/nope", &[]).id("never"));
    let completed = |id: &'static str| {
        move |response: &WatchEventsResponse| {
            event(response).container_id == id && event(response).kind() == Kind::Completed
        }
    };
    let of = |id: &'static str| {
        let request = WatchEventsRequest { container_id: id.into(), ..WatchEventsRequest::default() };
        let events = daemon.api.events(request).unwrap().until(completed(id));
        assert!(events.iter().all(|response| event(response).container_id == id && !response.gap));
        kinds(&events)
    };
    assert!(of("stopped").ends_with(&[Kind::Running, Kind::Stopping, Kind::Wiping, Kind::Completed]));
    assert!(!of("never").contains(&Kind::Running), "{:?}", of("never"));
}

#[test]
fn only_new_begins_with_what_is_new() {
    let daemon = Daemon::start();
    daemon.api.run_to_end(program("/bin/true", &[]).id("old"));
    let request = WatchEventsRequest { only_new: true, after_cursor: 1, ..WatchEventsRequest::default() };
    let mut new = daemon.api.events(request).unwrap();
    let mut other = daemon.api.events_after(daemon.api.info().cursor);
    daemon.api.run_to_end(program("/bin/true", &[]).id("new"));
    daemon.api.delete("new", false).unwrap();
    let reported = new.until(deleted("new"));
    assert_eq!(kinds(&reported), WHOLE_LIFE);
    assert_eq!(other.until(deleted("new")), reported, "every follower sees the same");
}

/// If a follower starts after old events were deleted, its first message reports a gap. A cursor from the future is
/// refused.
#[test]
fn expired_events_are_reported_as_gap() {
    let daemon = Setup::default().config("[retention]\nevents = 10\n").start();
    for id in ["a", "b", "c"] {
        daemon.api.run_to_end(program("/bin/true", &[]).id(id));
        daemon.api.delete(id, false).unwrap();
    }
    let newest = daemon.api.info().cursor;
    assert!(newest >= 21, "{newest}");
    let gaps = |after| -> Vec<bool> {
        let reported = daemon.api.events_after(after).until(|response| event(response).cursor == newest);
        reported.iter().map(|response| response.gap).collect()
    };
    let late = gaps(newest - 15);
    assert_eq!((late.len(), late[0], late.iter().filter(|gap| **gap).count()), (10, true, 1));
    assert_eq!(gaps(newest - 5), [false; 5], "control: kept events have no gap");
    assert_eq!(gaps(0), [false; 10], "all kept events without a gap, because no cursor was given");
    let beyond = WatchEventsRequest { after_cursor: newest + 1, ..WatchEventsRequest::default() };
    let status = daemon.api.events(beyond).err().unwrap();
    assert_eq!(status.code(), Code::OutOfRange);
    assert!(status.message().contains(&newest.to_string()), "{status:?}");
}
