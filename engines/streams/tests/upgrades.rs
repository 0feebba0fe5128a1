//! Tests refused and accepted upgrades with plain HTTP requests.

use executor_streams::{Limits, Outcome, Process, Streams, Wanted};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
const WEBSOCKET: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Sends a request and returns the beginning of the response.
async fn request(url: &str, headers: &str) -> String {
    let (host, path) = url.strip_prefix("http://").and_then(|url| url.split_once('/')).expect("a URL");
    let mut stream = TcpStream::connect(host).await.expect("the server");
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server");
    let mut response = Vec::new();
    while !response.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let read = stream.read_buf(&mut response).await.expect("a response");
        assert!(read > 0, "no response");
    }
    String::from_utf8_lossy(&response).into_owned()
}

/// CRI rule C33: unknown and used tokens return 404, and a refused upgrade does not invalidate the token.
#[tokio::test]
async fn upgrades_are_negotiated() {
    let (streams, server) = Streams::bind(0, Limits::default()).await.expect("a free port");
    tokio::spawn(server.run());
    let wanted = Wanted { stdout: true, ..Wanted::default() };
    let register = || streams.exec(wanted, |_: Process| async { Outcome::Exited(0) }).expect("a token");
    let url = register();
    let unknown = format!("{}{:032x}", &url[..url.len() - 32], 0);
    let cases = [
        (unknown, SPDY.to_owned(), "404"),
        (url.replace("/exec/", "/attach/"), SPDY.to_owned(), "404"),
        (url.clone(), String::new(), "400"),
        (url.clone(), format!("{SPDY}X-Stream-Protocol-Version: v9.channel.k8s.io\r\n"), "403"),
        (url.clone(), format!("{WEBSOCKET}Sec-WebSocket-Protocol: v9.channel.k8s.io\r\n"), "403"),
        (url.clone(), WEBSOCKET.replace("Version: 13", "Version: 12"), "400"),
        (url.clone(), format!("{SPDY}X: {}\r\n", "x".repeat(20_000)), "431"),
        (url.clone(), format!("{SPDY}X-Stream-Protocol-Version: v9.channel.k8s.io, v4.channel.k8s.io\r\n"), "101"),
        (url.clone(), SPDY.to_owned(), "404"),
    ];
    for (url, headers, status) in cases {
        let response = request(&url, &headers).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: not {status}: {response}");
    }
    let response = request(&register(), &format!("{WEBSOCKET}Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n")).await;
    assert!(response.to_lowercase().contains("sec-websocket-protocol: v5.channel.k8s.io\r\n"), "{response}");
    assert!(response.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "the key of RFC 6455: {response}");
}
