//! A proxy that pauses a registry's responses after a number of bytes.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::Endpoint;
use crate::wait;

/// Proxy between a client and a registry. The proxy pauses a response after a number of bytes until the response is
/// released.
pub struct Holding {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: u16,
    /// Number of bytes of a response that are sent before the pause.
    after: usize,
    holds: AtomicBool,
    held: AtomicUsize,
    asked: Mutex<Vec<u8>>,
}

impl Holding {
    pub fn start(registry: &dyn Endpoint, after: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared {
            upstream: registry.port(),
            after,
            holds: AtomicBool::new(true),
            held: AtomicUsize::new(0),
            asked: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                thread::spawn(move || drop(shared.pass(client)));
            }
        });
        Self { port, shared }
    }

    /// Waits until a response is paused.
    pub fn until_held(&self) {
        wait::until("a response is held", || (self.shared.held.load(Ordering::SeqCst) > 0).then_some(()));
    }

    /// Releases the paused response, and pauses no further responses.
    pub fn release(&self) {
        self.shared.holds.store(false, Ordering::SeqCst);
    }

    /// Returns true if the clients' requests contain `text` in any letter case. `text` must be lower-case.
    pub fn saw(&self, text: &str) -> bool {
        let asked = self.shared.asked.lock().expect("not poisoned");
        String::from_utf8_lossy(&asked).to_ascii_lowercase().contains(text)
    }
}

impl Endpoint for Holding {
    fn port(&self) -> u16 {
        self.port
    }
}

impl Shared {
    fn pass(self: Arc<Self>, mut client: TcpStream) -> std::io::Result<()> {
        let mut server = TcpStream::connect(("127.0.0.1", self.upstream))?;
        let (mut requests, mut to_server, this) = (client.try_clone()?, server.try_clone()?, Arc::clone(&self));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = requests.read(&mut buffer) {
                this.asked.lock().expect("not poisoned").extend_from_slice(&buffer[..n]);
                if to_server.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            let _ = to_server.shutdown(Shutdown::Write);
        });
        let (mut buffer, mut passed) = ([0; 4096], 0);
        loop {
            let n = server.read(&mut buffer)?;
            if n == 0 {
                return client.shutdown(Shutdown::Both);
            }
            passed += n;
            if passed > self.after && self.holds.load(Ordering::SeqCst) {
                self.held.fetch_add(1, Ordering::SeqCst);
                while self.holds.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            client.write_all(&buffer[..n])?;
        }
    }
}
