//! Tests of logs and events as streams.

use executor_proto::v1;
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::harness::{Node, WAIT_TIMEOUT, request, wait};

fn logs(id: &str, follow: bool) -> v1::StreamLogsRequest {
    v1::StreamLogsRequest { id: id.into(), follow, ..v1::StreamLogsRequest::default() }
}

async fn text(
    mut stream: tonic::Streaming<v1::StreamLogsResponse>,
    lines: usize,
) -> (Vec<String>, tonic::Streaming<v1::StreamLogsResponse>) {
    let mut texts = Vec::new();
    while texts.len() < lines {
        let next = tokio::time::timeout(WAIT_TIMEOUT, stream.next()).await.expect("no log line arrived");
        match next {
            Some(response) => texts.push(String::from_utf8(response.unwrap().data).unwrap()),
            None => break,
        }
    }
    (texts, stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn log_is_followed_across_rotations() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let (shim, _) = node.run(request("a")).await;
    // The file does not exist yet.
    let stream = client.stream_logs(logs("a", true)).await.unwrap().into_inner();
    shim.prints(&["1", "2"]);
    let (texts, stream) = text(stream, 2).await;
    assert_eq!(texts, ["1\n", "2\n"]);
    shim.prints(&["3"]);
    shim.rotates_log();
    shim.prints(&["4"]);
    let (texts, stream) = text(stream, 2).await;
    assert_eq!(texts, ["3\n", "4\n"]);
    // Without `follow`, the stream has only the current entries.
    let now = client.stream_logs(logs("a", false)).await.unwrap().into_inner();
    assert_eq!(text(now, 99).await.0, ["1\n", "2\n", "3\n", "4\n"]);
    shim.prints(&["5"]);
    shim.exits(0);
    assert_eq!(text(stream, 99).await.0, ["5\n"], "to the last line, then the end");
    wait(&mut client, "a").await;
    let late = client.stream_logs(logs("a", true)).await.unwrap().into_inner();
    let (texts, _) = text(late, 99).await;
    assert_eq!(texts.len(), 5);

    let mut first = client.stream_logs(logs("a", false)).await.unwrap().into_inner();
    let first = first.next().await.unwrap().unwrap();
    assert_eq!((first.stream(), &*first.log_source), (v1::LogStream::Stdout, "APP"));
    let mut since = first.time.unwrap();
    since.seconds += 3600;
    let request = v1::StreamLogsRequest { since: Some(since), ..logs("a", false) };
    let none = client.stream_logs(request).await.unwrap().into_inner();
    assert!(text(none, 99).await.0.is_empty());
    assert_eq!(client.stream_logs(logs("b", true)).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_follow_one_log() {
    let node = Node::start().await;
    let (shim, _) = node.run(request("a")).await;
    let mut following = Vec::new();
    for _ in 0..150 {
        let mut client = node.client().await;
        let stream = client.stream_logs(logs("a", true)).await.unwrap().into_inner();
        following.push(tokio::spawn(text(stream, 99)));
    }
    shim.prints(&["x"]);
    shim.exits(0);
    for follower in following {
        assert_eq!(follower.await.unwrap().0, ["x\n"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_support_only_new_and_container_filter() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let (a, _) = node.run(request("a")).await;
    let only_new = v1::WatchEventsRequest { only_new: true, container_id: "b".into(), ..Default::default() };
    let mut stream = client.watch_events(only_new).await.unwrap().into_inner();
    a.exits(0);
    let (b, _) = node.run(request("b")).await;
    let first = stream.next().await.unwrap().unwrap();
    let event = first.event.unwrap();
    assert!(event.container_id == "b" && event.kind() == v1::event::Kind::Reserved && !first.gap);
    b.exits(0);
    let beyond = v1::WatchEventsRequest { after_cursor: 1_000_000, ..Default::default() };
    assert_eq!(client.watch_events(beyond).await.unwrap_err().code(), Code::OutOfRange);
}
