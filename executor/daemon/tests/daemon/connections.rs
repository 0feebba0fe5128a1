//! Tests of connections: authorization, content, and lifetime.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Node, secret_request};
use executor_proto::v1;
use executor_proto::v1::executor_client::ExecutorClient;
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Search};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint, Uri};

/// Connects a client. Also returns the counter of the client's connections.
async fn counting(node: &Node) -> (ExecutorClient<Channel>, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let (count, socket) = (Arc::clone(&made), node.socket());
    let connector = tower::service_fn(move |_: Uri| {
        count.fetch_add(1, Ordering::SeqCst);
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://executor").connect_with_connector(connector).await.unwrap();
    (ExecutorClient::new(channel), made)
}

/// A client uses one connection for a long stream, for requests with secrets, and for other calls directly after them.
#[tokio::test(flavor = "multi_thread")]
async fn connection_serves_secrets_and_long_streams() {
    let node = Node::start().await;
    let (client, made) = counting(&node).await;
    let mut events = client.clone().watch_events(v1::WatchEventsRequest::default()).await.unwrap().into_inner();
    for id in ["a", "b", "c", "d"] {
        let call = tokio::spawn({
            let mut client = client.clone();
            async move { client.run(secret_request(id, "x")).await }
        });
        let shim = node.launcher.launched().await;
        shim.runs();
        call.await.unwrap().unwrap();
        for _ in 0..20 {
            client.clone().info(v1::InfoRequest {}).await.unwrap();
        }
        shim.exits(0);
        while let Some(response) = events.next().await {
            let event = response.unwrap().event.unwrap();
            if event.container_id == id && event.kind() == v1::event::Kind::Completed {
                break;
            }
        }
    }
    assert_eq!(made.load(Ordering::SeqCst), 1);
}

/// While a container runs, the daemon's memory contains no part of the container's secrets, although the client keeps
/// its connection and a stream on it. Control: the same search finds the container's id.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root, to read the daemon's memory"]
async fn the_daemon_keeps_no_secret_in_memory() {
    let node = Node::start().await;
    let (client, _) = counting(&node).await;
    let _events = client.clone().watch_events(v1::WatchEventsRequest::default()).await.unwrap().into_inner();
    for size in [64, 4096, 65_536, 900_000] {
        let id = format!("container-of-{size}-{}", uuid::Uuid::new_v4());
        let (canary, content) = (Canary::random(64).unwrap(), Canary::random(size).unwrap());
        let mut request = secret_request(&id, canary.as_str());
        let file = v1::File { path: "big".into(), content: content.as_bytes().into(), ..v1::File::default() };
        request.volume_mounted_files.push(file);
        let call = tokio::spawn({
            let mut client = client.clone();
            async move { client.run(request).await }
        });
        let shim = node.launcher.launched().await;
        shim.runs();
        call.await.unwrap().unwrap();
        // Another call makes the connection process its buffers.
        client.clone().info(v1::InfoRequest {}).await.unwrap();
        assert!(!found(&node, &[("the id", id.as_bytes())]).is_empty(), "the search finds nothing at all");
        let secrets = [("a value", canary.as_bytes()), ("a content", content.as_bytes())];
        assert_eq!(found(&node, &secrets), [""; 0], "{size} bytes");
        // Send a request that is refused early.
        let (canary, content) = (Canary::random(64).unwrap(), Canary::random(size).unwrap());
        let mut refused = secret_request("refused", canary.as_str());
        refused.rootfs = "nowhere".into();
        refused.volume_mounted_files[0].content = content.as_bytes().into();
        client.clone().run(refused).await.unwrap_err();
        client.clone().info(v1::InfoRequest {}).await.unwrap();
        let secrets = [("a value", canary.as_bytes()), ("a content", content.as_bytes())];
        assert_eq!(found(&node, &secrets), [""; 0], "{size} bytes, refused");
        // Update one of the container's files.
        let content = Canary::random(size).unwrap();
        let file = v1::File { path: "big".into(), content: content.as_bytes().into(), ..v1::File::default() };
        let update = v1::UpdateFilesRequest { id, files: vec![file], ..Default::default() };
        client.clone().update_files(update).await.unwrap();
        client.clone().info(v1::InfoRequest {}).await.unwrap();
        assert_eq!(found(&node, &[("new content", content.as_bytes())]), [""; 0], "{size} bytes, updated");
        shim.exits(0);
    }
}

/// If a client opens more connections than the limit and sends nothing, these connections are closed for other clients.
/// Clients with long-lived connections keep their connections.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_block_clients() {
    let node = Node::start().await;
    let (client, made) = counting(&node).await;
    let mut events = client.clone().watch_events(v1::WatchEventsRequest::default()).await.unwrap().into_inner();
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(UnixStream::connect(node.socket()).await.unwrap());
    }
    let (other, _) = counting(&node).await;
    other.clone().info(v1::InfoRequest {}).await.unwrap();
    let call = tokio::spawn({
        let mut client = other.clone();
        async move { client.run(secret_request("a", "x")).await }
    });
    let shim = node.launcher.launched().await;
    shim.runs();
    call.await.unwrap().unwrap();
    assert!(events.next().await.unwrap().is_ok(), "an open stream continues");
    assert_eq!(made.load(Ordering::SeqCst), 1);
    // Every silent connection is closed after a while.
    let mut end = [0; 64];
    for mut stream in silent {
        use tokio::io::AsyncReadExt as _;
        let read = async { while !matches!(stream.read(&mut end).await, Ok(0) | Err(_)) {} };
        tokio::time::timeout(crate::harness::WAIT_TIMEOUT, read).await.unwrap();
    }
    shim.exits(0);
}

/// Returns the resident memory of the daemon, in bytes.
fn resident(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// If responses of a megabyte each are not read, they are created only when there is memory for them. Other clients are
/// served in the meantime, and the same client is served when it reads again.
#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_take_little_memory() {
    let node = Node::start().await;
    let mut request = secret_request("a", "x");
    let file = |number| v1::File { path: format!("{number:0>220}"), content: b"x".into(), ..v1::File::default() };
    request.volume_mounted_files = (0..4000).map(file).collect();
    let call = tokio::spawn({
        let mut client = counting(&node).await.0;
        async move { client.run(request).await }
    });
    let shim = node.launcher.launched().await;
    shim.runs();
    call.await.unwrap().unwrap();
    let before = resident(&node);
    // Clients with a flow control window of one byte: every response waits.
    let endpoint = Endpoint::from_shared(format!("unix://{}", node.socket().display())).unwrap();
    let mut calls = Vec::new();
    for _ in 0..4 {
        let endpoint = endpoint.clone().initial_connection_window_size(65_535).initial_stream_window_size(1);
        let client = ExecutorClient::new(endpoint.connect().await.unwrap()).max_decoding_message_size(64 << 20);
        for _ in 0..250 {
            let mut client = client.clone();
            calls.push(tokio::spawn(async move { client.list(v1::ListRequest::default()).await.map(drop) }));
        }
    }
    for _ in 0..20 {
        counting(&node).await.0.info(v1::InfoRequest {}).await.unwrap();
    }
    let (mut reader, _) = counting(&node).await;
    assert_eq!(reader.list(v1::ListRequest::default()).await.unwrap().into_inner().containers.len(), 1);
    let taken = resident(&node).saturating_sub(before);
    assert!(taken < 256 << 20, "1,000 answers take {} MiB", taken >> 20);
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    shim.exits(0);
}

/// Searches the daemon's memory. Returns the names of the secrets that are found.
fn found(node: &Node, secrets: &[(&str, &[u8])]) -> Vec<String> {
    let mut needles = Needles::new().unwrap();
    for (name, secret) in secrets {
        needles.add(name, secret);
    }
    let mut search = Search::new(&needles);
    search.process(&Process::from_pid(node.pid()).unwrap());
    let report = search.report();
    assert!(report.unsearched.is_empty(), "{report:?}");
    report.hits.iter().map(ToString::to_string).collect()
}

/// If a caller is neither root, nor the daemon's user, nor a member of the group, it is denied, and the error contains
/// its uid.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root, to act as another user"]
async fn caller_outside_group_is_denied() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    const SOCKET: &str = "EXECUTORD_TEST_SOCKET";
    if let Ok(socket) = std::env::var(SOCKET) {
        // The test program has executed itself again, as another user.
        let channel = Endpoint::from_shared(format!("unix://{socket}")).unwrap().connect().await.unwrap();
        let answer = ExecutorClient::new(channel).info(v1::InfoRequest {}).await;
        println!("answer: {:?}", answer.map(|_| ()).map_err(|status| (status.code(), status.message().to_owned())));
        return;
    }
    let node = Node::start_with(&["--allow-group", "4243"]).await;
    // The socket's mode already denies other users. The daemon denies them regardless of the mode.
    assert_eq!(std::fs::metadata(node.socket()).unwrap().permissions().mode() & 0o777, 0o660);
    std::fs::set_permissions(node.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let ask = |uid, gid| {
        let mut again = std::process::Command::new("/proc/self/exe");
        again
            .args(["--include-ignored", "--exact", "connections::caller_outside_group_is_denied", "--nocapture"])
            .env(SOCKET, node.socket());
        let output = again.current_dir("/").uid(uid).gid(gid).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let denied = ask(4242, 4242);
    assert!(denied.contains("PermissionDenied") && denied.contains("uid 4242 may not call"), "{denied}");
    assert!(ask(4242, 4243).contains("answer: Ok(())"));
    let own = node.client().await.info(v1::InfoRequest {}).await.unwrap().into_inner().uid;
    assert!(ask(own, own).contains("answer: Ok(())"), "the daemon's own user");
}
