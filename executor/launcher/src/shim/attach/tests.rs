use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

fn client(attached: &mut Attached, asked: &Attach) -> Result<Seqpacket, Refused> {
    let (ours, theirs) = Seqpacket::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    ours.set_nonblocking(true).unwrap();
    let fd = theirs.as_fd().try_clone_to_owned().unwrap();
    attached.take(asked, vec![fd]).map(|()| ours)
}

fn received(client: &Seqpacket) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; ATTACHED_PACKET_MAX];
    while let Ok(Some((length @ 1.., _))) = client.recv(&mut buffer) {
        all.extend_from_slice(&buffer[..length]);
    }
    all
}

const INPUT: Attach = Attach { input: true, take_over: false, no_output: false };
const WATCH: Attach = Attach { input: false, take_over: false, no_output: false };

#[test]
fn the_first_client_gets_what_was_written_before_and_all_get_what_comes() {
    let mut attached = Attached::default();
    attached.output(Stream::Stdout, b"nobody expects a client");
    attached.expect(Sink::None);
    attached.output(Stream::Stdout, b"early");
    let (first, second) = (client(&mut attached, &WATCH).unwrap(), client(&mut attached, &WATCH).unwrap());
    attached.output(Stream::Stderr, b"late");
    attached.output(Stream::Executor, b"our own words");
    assert_eq!((received(&first), received(&second)), (b"oearlyelate".to_vec(), b"elate".to_vec()));
    attached.end();
    assert_eq!(received(&first), b".");
}

#[test]
fn the_backlog_is_bounded() {
    let mut attached = Attached::default();
    attached.expect(Sink::None);
    for byte in 0..100 {
        attached.output(Stream::Stdout, &[byte; 4096]);
    }
    let got = received(&client(&mut attached, &WATCH).unwrap());
    assert!(got.len() <= BACKLOG_MAX && got.len() > BACKLOG_MAX - 2 * 4097, "{}", got.len());
    assert_eq!(got.last(), Some(&99));
}

/// A client that only watches is let go, the one at the terminal is waited for; nobody else notices.
#[test]
fn a_client_that_does_not_read_is_let_go_or_waited_for() {
    let mut attached = Attached::default();
    attached.expect(Sink::None);
    let (slow, reader) = (client(&mut attached, &WATCH).unwrap(), client(&mut attached, &WATCH).unwrap());
    let mut read = 0;
    while attached.clients.len() == 2 {
        attached.output(Stream::Stdout, &[b'x'; 10_000]);
        read += received(&reader).len();
        assert!(read < 100 << 20 && !attached.holds_up());
    }
    assert!(!received(&slow).is_empty());
    assert!(slow.recv(&mut [0; 8]).unwrap().is_none(), "its connection has ended");
    let typist = client(&mut attached, &INPUT).unwrap();
    while !attached.holds_up() {
        attached.output(Stream::Stdout, &[b'y'; 10_000]);
        received(&reader);
    }
    assert_eq!(attached.clients.len(), 2);
    received(&typist);
    attached.attend();
    assert!(!attached.holds_up(), "it has read");
    attached.clients[1].queue.bytes = QUEUE_MAX;
    attached.clients[1].progress = Instant::now().checked_sub(PATIENCE).unwrap();
    attached.attend();
    assert_eq!(attached.clients.len(), 1, "its time is over");
}

#[test]
fn one_client_sends_input_until_it_is_taken_over() {
    let (process, sink) = pipe();
    let mut attached = Attached::default();
    attached.expect(Sink::Pipe(sink));
    let (watcher, first) = (client(&mut attached, &WATCH).unwrap(), client(&mut attached, &INPUT).unwrap());
    assert!(client(&mut attached, &INPUT).is_err());
    watcher.send(b"inot mine to send", &[]).unwrap();
    first.send(b"ia", &[]).unwrap();
    attached.attend();
    let second = client(&mut attached, &Attach { take_over: true, ..INPUT }).unwrap();
    assert_eq!(received(&first), b"t");
    second.send(b"ib", &[]).unwrap();
    second.send(b".", &[]).unwrap();
    second.send(b"ilost", &[]).unwrap();
    attached.attend();
    let mut read = Vec::new();
    io::Read::read_to_end(&mut std::fs::File::from(process), &mut read).unwrap();
    assert_eq!(read, b"ab");
}

/// What a process does not read stays with the client, and is neither lost nor kept here.
#[test]
fn input_waits_for_the_process() {
    let (process, sink) = pipe();
    let mut attached = Attached::default();
    attached.expect(Sink::Pipe(sink));
    let typist = client(&mut attached, &INPUT).unwrap();
    let packet = [b"i".as_slice(), &[7; 10_000]].concat();
    let mut sent = 0;
    while typist.send(&packet, &[]).is_ok() {
        sent += 10_000;
        attached.attend();
        assert!(attached.pending.len() <= ATTACHED_PACKET_MAX && sent < 100 << 20);
    }
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    while read < sent {
        read += rustix::io::read(&process, &mut buffer).unwrap_or(0);
        attached.attend();
    }
    assert_eq!(read, sent);
}
