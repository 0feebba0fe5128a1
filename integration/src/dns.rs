//! A name server for one test process, in a new network namespace and mount namespace.
//!
//! The thread that starts the server enters the namespaces. Its later threads and child processes inherit them.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::NamedTempFile;

const SERVER: &str = "127.0.0.1:53";
/// Record types (RFC 1035 and RFC 3596).
const A: u16 = 1;
const AAAA: u16 = 28;

/// Name server that stops when dropped. The namespaces remain.
pub struct NameServer {
    asked: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// File that is mounted over `/etc/resolv.conf`.
    _configuration: NamedTempFile,
}

impl NameServer {
    /// Moves the calling thread into new namespaces, adds `addresses` to loopback, and starts a server that responds
    /// with the results of `answer`. The arguments of `answer` are the name and the number of earlier requests for IPv4
    /// addresses.
    ///
    /// # Panics
    /// Panics if the process is not root, or iproute2 is missing.
    pub fn isolated(addresses: &[&str], answer: impl Fn(&str, usize) -> Vec<IpAddr> + Send + 'static) -> Self {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("new namespaces");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
        let ip = |arguments: &[&str]| assert!(Command::new("ip").args(arguments).status().expect("iproute2").success());
        ip(&["link", "set", "lo", "up"]);
        addresses.iter().for_each(|address| ip(&["address", "add", address, "dev", "lo"]));
        let configuration = NamedTempFile::new().expect("a file");
        std::fs::write(&configuration, "nameserver 127.0.0.1\noptions timeout:5\n").expect("write");
        mount(Some(configuration.path()), "/etc/resolv.conf", none, MsFlags::MS_BIND, none).expect("a mount");
        let socket = UdpSocket::bind(SERVER).expect("a new namespace has the port");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a time limit");
        let (asked, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&asked), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while !end.load(Ordering::Relaxed) {
                let Ok((read, from)) = socket.recv_from(&mut buffer) else { continue };
                if let Some(reply) = reply(&buffer[..read], &count, &answer) {
                    let _ = socket.send_to(&reply, from);
                }
            }
        });
        Self { asked, ended, thread: Some(thread), _configuration: configuration }
    }

    /// Returns the number of received requests for IPv4 addresses.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Answers a request with one question (RFC 1035, section 4.1). Only addresses of the requested family are returned.
fn reply(request: &[u8], asked: &AtomicUsize, answer: &impl Fn(&str, usize) -> Vec<IpAddr>) -> Option<Vec<u8>> {
    let (mut labels, mut at) = (Vec::new(), 12);
    loop {
        let length = usize::from(*request.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(request.get(at..at + length)?).into_owned());
        at += length;
    }
    let kind = u16::from_be_bytes(request.get(at..at + 2)?.try_into().ok()?);
    let number = match kind {
        A => asked.fetch_add(1, Ordering::Relaxed),
        _ => asked.load(Ordering::Relaxed),
    };
    let addresses = answer(&labels.join(".").to_lowercase(), number).into_iter();
    let addresses: Vec<IpAddr> = addresses.filter(|one| kind == if one.is_ipv4() { A } else { AAAA }).collect();
    let mut reply = request.get(..2)?.to_vec();
    // Flags: response, recursion desired and available, no error. One question.
    reply.extend([0x81, 0x80, 0, 1]);
    reply.extend(u16::try_from(addresses.len()).ok()?.to_be_bytes());
    reply.extend([0; 4]);
    reply.extend(request.get(12..at + 4)?);
    for address in addresses {
        let data = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        // Name of the question, class IN, TTL 0.
        reply.extend([0xc0, 12]);
        reply.extend(kind.to_be_bytes());
        reply.extend([0, 1, 0, 0, 0, 0, 0, u8::try_from(data.len()).ok()?]);
        reply.extend(data);
    }
    Some(reply)
}
