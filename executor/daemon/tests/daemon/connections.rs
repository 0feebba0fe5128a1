//! Connections: who may call, what a connection may carry, and when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Node, secret_request};
use executor_proto::v1;
use executor_proto::v1::executor_client::ExecutorClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint, Uri};

/// A client, and how many connections it has made.
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

/// A client keeps its connection, whatever it carried: also calls that are made at once when a secret was taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_serves_many_secrets_and_long_streams() {
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

/// DESIGN 1, no residue: while a container runs, the daemon's memory has no byte sequence of its secrets, although the
/// client keeps its connection and a stream on it. The control: what is no secret is found by the same search.
#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_keeps_no_secret_in_memory() {
    if !rustix::process::geteuid().is_root() {
        return; // its memory is closed to others, as it should be
    }
    let node = Node::start().await;
    let (client, _) = counting(&node).await;
    let _events = client.clone().watch_events(v1::WatchEventsRequest::default()).await.unwrap().into_inner();
    for (index, size) in [64, 4096, 65_536, 900_000].into_iter().enumerate() {
        let id = format!("container-of-{size}");
        let canary = format!("canary-{index}-{}", uuid::Uuid::new_v4());
        let mut request = secret_request(&id, &canary);
        let content = canary.repeat(size / canary.len() + 1).into_bytes();
        request.volume_mounted_files.push(v1::File { path: "big".into(), content, public: false });
        let call = tokio::spawn({
            let mut client = client.clone();
            async move { client.run(request).await }
        });
        let shim = node.launcher.launched().await;
        shim.runs();
        call.await.unwrap().unwrap();
        // A call later the connection has been polled since, and the buffer with it.
        client.clone().info(v1::InfoRequest {}).await.unwrap();
        let memory = Memory::of(node.pid());
        assert!(memory.count(id.as_bytes()) > 0, "the search finds nothing at all");
        assert_eq!(memory.count(canary.as_bytes()), 0, "{size} bytes");
        // One that is refused before it comes to anything.
        let canary = format!("canary-refused-{index}-{}", uuid::Uuid::new_v4());
        let mut refused = secret_request("refused", &canary);
        refused.rootfs = "nowhere".into();
        refused.volume_mounted_files[0].content = canary.repeat(size / canary.len() + 1).into_bytes();
        client.clone().run(refused).await.unwrap_err();
        client.clone().info(v1::InfoRequest {}).await.unwrap();
        assert_eq!(Memory::of(node.pid()).count(canary.as_bytes()), 0, "{size} bytes, refused");
        shim.exits(0);
    }
}

/// What a process can write to.
struct Memory(Vec<Vec<u8>>);

impl Memory {
    fn of(pid: u32) -> Self {
        use std::os::unix::fs::FileExt as _;
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let writable = maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw")));
        let read = writable.filter_map(|line| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let start = u64::from_str_radix(start, 16).ok()?;
            let mut bytes = vec![0; (u64::from_str_radix(end, 16).ok()? - start) as usize];
            memory.read_exact_at(&mut bytes, start).ok().map(|()| bytes)
        });
        Self(read.collect())
    }

    fn count(&self, what: &[u8]) -> usize {
        self.0.iter().map(|bytes| bytes.windows(what.len()).filter(|window| *window == what).count()).sum()
    }
}

/// Who is neither root, nor the daemon's user, nor a member of the group is told so, by number.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_denied() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    const SOCKET: &str = "EXECUTORD_TEST_SOCKET";
    if let Ok(socket) = std::env::var(SOCKET) {
        // The test program again, as somebody else.
        let channel = Endpoint::from_shared(format!("unix://{socket}")).unwrap().connect().await.unwrap();
        let answer = ExecutorClient::new(channel).info(v1::InfoRequest {}).await;
        println!("answer: {:?}", answer.map(|_| ()).map_err(|status| (status.code(), status.message().to_owned())));
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return; // becoming somebody else takes root
    }
    let node = Node::start_with(&["--allow-group", "4243"]).await;
    // As it is made, the socket itself keeps strangers out. What the daemon does without that:
    assert_eq!(std::fs::metadata(node.socket()).unwrap().permissions().mode() & 0o777, 0o660);
    std::fs::set_permissions(node.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let ask = |uid, gid| {
        let mut again = std::process::Command::new("/proc/self/exe");
        again.args(["--exact", "connections::strangers_are_denied", "--nocapture"]).env(SOCKET, node.socket());
        let output = again.current_dir("/").uid(uid).gid(gid).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let denied = ask(4242, 4242);
    assert!(denied.contains("PermissionDenied") && denied.contains("uid 4242 may not call"), "{denied}");
    assert!(ask(4242, 4243).contains("answer: Ok(())"));
    assert!(ask(65_534, 65_534).contains("answer: Ok(())"), "the daemon's own user");
}
