//! Tests List: pages, and filters by state and label.

use executor_proto::v1::{ListRequest, State};
use integration::api::Api;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder, program, sleeper};
use tonic::Code;

fn ids(api: &Api, request: ListRequest) -> Vec<String> {
    api.list(request).unwrap().containers.into_iter().map(|container| container.id).collect()
}

fn labelled(labels: &[(&str, &str)]) -> ListRequest {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ListRequest { labels, ..ListRequest::default() }
}

fn in_states(states: &[State]) -> ListRequest {
    ListRequest { states: states.iter().map(|state| (*state).into()).collect(), ..ListRequest::default() }
}

#[test]
fn pages_list_every_container_once_by_id() {
    let daemon = Daemon::start();
    assert_eq!(ids(&daemon.api, ListRequest::default()), [""; 0]);
    for id in ["d", "b", "e", "a", "c"] {
        daemon.api.run_to_end(program("/bin/true", &[]).id(id));
    }
    let (mut token, mut pages) = (String::new(), Vec::new());
    loop {
        let page = daemon.api.list(ListRequest { page_size: 2, page_token: token, ..ListRequest::default() }).unwrap();
        pages.push(page.containers.into_iter().map(|container| container.id).collect::<Vec<_>>());
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
        // A deletion between two pages is harmless: the token encodes a position and does not refer to a container.
        if pages.len() == 1 {
            daemon.api.delete("b", false).unwrap();
        }
    }
    assert_eq!(pages, [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
    let bad = ListRequest { page_token: "no token/of ours".into(), ..ListRequest::default() };
    let status = daemon.api.list(bad).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("page_token"), "{status:?}");
}

#[test]
fn filters_match_any_state_and_all_labels() {
    let daemon = Daemon::start();
    daemon.api.run_to_end(program("/bin/true", &[]).id("done").label("app", "web").label("tier", "1"));
    daemon.api.started(sleeper("web").label("app", "web"));
    daemon.api.started(sleeper("db").label("app", "db").label("tier", "1"));
    let table = [
        (in_states(&[State::Running]), vec!["db", "web"]),
        (in_states(&[State::Completed]), vec!["done"]),
        (in_states(&[State::Completed, State::Running]), vec!["db", "done", "web"]),
        (in_states(&[State::Wiping]), vec![]),
        (labelled(&[("app", "web")]), vec!["done", "web"]),
        (labelled(&[("app", "web"), ("tier", "1")]), vec!["done"]),
        (labelled(&[("app", "")]), vec![]),
        (ListRequest { states: in_states(&[State::Running]).states, ..labelled(&[("tier", "1")]) }, vec!["db"]),
        // A page contains the requested number of matching containers, although other containers are skipped.
        (ListRequest { page_size: 1, ..in_states(&[State::Running]) }, vec!["db"]),
    ];
    for (request, expected) in table {
        assert_eq!(ids(&daemon.api, request.clone()), expected, "{request:?}");
    }
    for number in [0, 99, -1] {
        let status = daemon.api.list(ListRequest { states: vec![number], ..ListRequest::default() }).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{number}");
        assert!(status.message().contains("states[0]"), "{status:?}");
    }
}
