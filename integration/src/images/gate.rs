//! A registry with token authentication, and its token service. Cloud registries have such authentication, but Debian's
//! registry does not.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::{Endpoint, Registry, basic};

/// Proxy in front of an open registry. The proxy forwards only requests that carry the token. The token service issues
/// the token to [`super::USER`].
pub struct Gate {
    port: u16,
}

impl Gate {
    /// Starts the proxy with a token that is stored in no file.
    pub fn start(registry: &Registry, token: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (upstream, token) = (registry.port(), token.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let token = token.clone();
                thread::spawn(move || drop(pass(client, (port, upstream), &token)));
            }
        });
        Self { port }
    }
}

impl Endpoint for Gate {
    fn port(&self) -> u16 {
        self.port
    }
}

fn pass(mut client: TcpStream, (port, upstream): (u16, u16), token: &str) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head);
    let shows = |value: &str| head.lines().any(|line| line.eq_ignore_ascii_case(&format!("authorization: {value}")));
    let answer = |status: &str, more: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{more}\r\n{body}", body.len())
    };
    let challenge = format!("www-authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"gate\"\r\n");
    if head.starts_with("GET /token?") && shows(&basic()) {
        return client.write_all(answer("200 OK", "", &format!("{{\"token\":\"{token}\"}}")).as_bytes());
    }
    if !shows(&format!("Bearer {token}")) {
        return client.write_all(answer("401 Unauthorized", &challenge, "").as_bytes());
    }
    let mut server = TcpStream::connect(("127.0.0.1", upstream))?;
    let open = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("authorization:"));
    let open: String = open.filter(|line| !line.is_empty()).map(|line| format!("{line}\r\n")).collect();
    server.write_all(format!("{open}connection: close\r\n\r\n").as_bytes())?;
    std::io::copy(&mut server, &mut client).map(drop)
}
