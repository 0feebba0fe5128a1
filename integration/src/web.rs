//! A web server for one test. The server records each request and responds with the result of a function.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// Returns a free loopback port.
///
/// # Panics
/// Panics if no port is free.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// A received request.
#[derive(Clone, Debug, Default)]
pub struct WebRequest {
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Headers with lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl WebRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub enum WebAnswer {
    /// Status line, headers and body.
    Full(&'static str, Vec<(&'static str, String)>, Vec<u8>),
    /// Sends the beginning of a response, and nothing more until the server stops.
    Never,
}

impl WebAnswer {
    /// Builds a 200 response with `body`.
    pub fn ok(body: &[u8]) -> Self {
        Self::Full("200 OK", Vec::new(), body.to_vec())
    }
}

#[derive(Default)]
struct Shared {
    requests: Mutex<Vec<WebRequest>>,
    ended: Mutex<bool>,
    end: Condvar,
}

/// A web server. All connections close when this value is dropped.
pub struct WebServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Drop for WebServer {
    fn drop(&mut self) {
        *self.shared.ended.lock().expect("a lock") = true;
        self.shared.end.notify_all();
        let _ = TcpStream::connect(self.address); // wakes the listener up
    }
}

impl WebServer {
    /// Starts a server that responds to each request with the result of `answer`. The first argument of `answer` is the
    /// request number, from 0.
    pub fn start(answer: impl Fn(usize, &WebRequest) -> WebAnswer + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", answer)
    }

    /// Starts a server like [`Self::start`], at an address with a port.
    ///
    /// # Panics
    /// Panics if the address does not belong to this machine, or the port is in use.
    pub fn start_at(address: &str, answer: impl Fn(usize, &WebRequest) -> WebAnswer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let (of_listener, answer) = (Arc::clone(&shared), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if *of_listener.ended.lock().expect("a lock") {
                    return;
                }
                let (shared, answer) = (Arc::clone(&of_listener), Arc::clone(&answer));
                let Ok(stream) = stream else { continue };
                // The thread ends when the client disconnects.
                std::thread::spawn(move || serve(stream, &shared, &*answer));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the requests received so far.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.shared.requests.lock().expect("a lock").clone()
    }
}

fn serve(stream: TcpStream, shared: &Shared, answer: &dyn Fn(usize, &WebRequest) -> WebAnswer) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let request = read(&mut reader)?;
    let number = {
        let mut requests = shared.requests.lock().expect("a lock");
        requests.push(request.clone());
        requests.len() - 1
    };
    let mut stream = stream;
    match answer(number, &request) {
        WebAnswer::Full(status, headers, body) => {
            let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
            headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
            stream.write_all(format!("{head}\r\n").as_bytes())?;
            stream.write_all(&body)
        }
        WebAnswer::Never => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegun")?;
            let ended = shared.ended.lock().expect("a lock");
            let _ended = shared.end.wait_while(ended, |ended| !*ended).expect("a lock");
            Ok(())
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<WebRequest> {
    let mut line = String::new();
    let mut next = |reader: &mut BufReader<TcpStream>| -> std::io::Result<String> {
        line.clear();
        reader.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    };
    let first = next(reader)?;
    let mut words = first.split(' ').map(str::to_owned);
    let mut request = WebRequest { method: words.next().unwrap_or_default(), ..WebRequest::default() };
    request.target = words.next().unwrap_or_default();
    loop {
        let header = next(reader)?;
        let Some((name, value)) = header.split_once(':') else { break };
        request.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if let Some(length) = request.header("content-length").and_then(|length| length.parse().ok()) {
        request.body = vec![0; length];
        reader.read_exact(&mut request.body)?;
    } else if request.header("transfer-encoding") == Some("chunked") {
        loop {
            let size = next(reader)?;
            let size = usize::from_str_radix(&size, 16).map_err(std::io::Error::other)?;
            let mut piece = vec![0; size + 2];
            reader.read_exact(&mut piece)?;
            if size == 0 {
                break;
            }
            request.body.extend_from_slice(&piece[..size]);
        }
    }
    Ok(request)
}
