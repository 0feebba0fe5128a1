use executor_core::protocol::position_of;
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

fn client(attached: &mut Attached, asked: &Attach) -> Result<Seqpacket, Refused> {
    let (ours, theirs) = Seqpacket::pair().unwrap();
    theirs.set_nonblocking(true);
    ours.set_nonblocking(true);
    attached.take(asked, vec![theirs.as_fd().try_clone_to_owned().unwrap()]).map(|()| ours)
}

/// Returns two values: the received packets, each with its leading type byte, and the received positions.
fn packets_and_positions(client: &Seqpacket) -> (Vec<u8>, Vec<(u64, u64)>) {
    let (mut all, mut positions) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; ATTACHED_PACKET_MAX];
    while let Ok(Some((length @ 1.., _))) = client.recv(&mut buffer) {
        match position_of(&buffer[1..length]).filter(|_| buffer[0] == FromShim::Position as u8) {
            Some(position) => positions.push(position),
            None => all.extend_from_slice(&buffer[..length]),
        }
    }
    (all, positions)
}

fn received(client: &Seqpacket) -> Vec<u8> {
    packets_and_positions(client).0
}

/// Reads output until no more is available.
fn drained(attached: &mut Attached, client: &Seqpacket) -> (Vec<u8>, Vec<(u64, u64)>) {
    let (mut all, mut positions) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; ATTACHED_PACKET_MAX];
    loop {
        let before = (all.len(), positions.len());
        while let Ok(Some((length @ 1.., _))) = client.recv(&mut buffer) {
            match FromShim::from_mark(buffer[0]) {
                Some(FromShim::Position) => positions.extend(position_of(&buffer[1..length])),
                Some(FromShim::Stdout | FromShim::Stderr) => all.extend_from_slice(&buffer[1..length]),
                _ => {}
            }
        }
        attached.poll_clients();
        if (all.len(), positions.len()) == before {
            return (all, positions);
        }
    }
}

const WATCH: Attach =
    Attach { input: false, take_over: false, no_output: false, lossless: false, resumable: false, resume_at: None };
const INPUT: Attach = Attach { input: true, ..WATCH };
const LOSSLESS: Attach = Attach { lossless: true, ..WATCH };
const RESUMABLE: Attach = Attach { resumable: true, ..LOSSLESS };

/// Returns bytes that depend on their position.
fn numbered(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

#[test]
fn first_attach_client_receives_earlier_output() {
    let mut attached = Attached::default();
    attached.output(Stream::Stdout, b"output without a client");
    attached.expect(Sink::None);
    attached.output(Stream::Stdout, b"early");
    let (first, second) = (client(&mut attached, &WATCH).unwrap(), client(&mut attached, &WATCH).unwrap());
    attached.output(Stream::Stderr, b"late");
    attached.output(Stream::Executor, b"executor message");
    assert_eq!(packets_and_positions(&first), (b"oearlyelate".to_vec(), vec![(23, 0)]));
    assert_eq!(packets_and_positions(&second), (b"elate".to_vec(), vec![(28, 0)]));
    attached.finish();
    assert_eq!(received(&first), b".");
    assert!(attached.is_delivered());
}

#[test]
fn the_backlog_is_bounded() {
    let mut attached = Attached::default();
    attached.expect(Sink::None);
    for byte in 0..100 {
        attached.output(Stream::Stdout, &[byte; 4096]);
    }
    assert!(!attached.blocks_output());
    let got = received(&client(&mut attached, &WATCH).unwrap());
    assert!(got.len() as u64 <= BACKLOG_MAX + ATTACHED_PACKET_MAX as u64 && got.len() as u64 >= BACKLOG_MAX);
    assert_eq!(got.last(), Some(&99));
}

/// A client that only watches and does not read is informed of missed output. A lossless client that does not read
/// blocks the process. Other clients are not affected.
#[test]
fn slow_client_misses_output_or_blocks_process() {
    let mut attached = Attached::default();
    let (slow, reader) = (client(&mut attached, &WATCH).unwrap(), client(&mut attached, &WATCH).unwrap());
    let (mut written, mut read) = (0, 0);
    while written < 4 << 20 {
        attached.output(Stream::Stdout, &numbered(written..written + 10_000));
        written += 10_000;
        read += drained(&mut attached, &reader).0.len();
        assert!(!attached.blocks_output());
    }
    assert_eq!(read as u64, written, "a client that reads receives all output");
    assert!(attached.window.cost_from(0) <= QUEUE_MAX, "output that a slow client missed is not kept");
    let (got, positions) = drained(&mut attached, &slow);
    let [(0, 0), (place, missed)] = positions[..] else { panic!("{positions:?}") };
    assert_eq!(got.len() as u64 + missed, written);
    let tail = (written - place) as usize;
    assert!(got[got.len() - tail..] == numbered(place..written)[..]);

    let lossless = client(&mut attached, &LOSSLESS).unwrap();
    let from = written;
    while !attached.blocks_output() {
        attached.output(Stream::Stdout, &numbered(written..written + 10_000));
        written += 10_000;
        assert!(written - from < 2 << 20);
    }
    attached.finish();
    assert!(!attached.is_settled());
    let (got, positions) = drained(&mut attached, &lossless);
    assert!(got == numbered(from..written) && positions == [(from, 0)]);
    assert!(!attached.blocks_output() && !attached.is_settled(), "the client has not confirmed all output");
    lossless.send(b"q", &[]).unwrap();
    drop(lossless);
    attached.poll_clients();
    assert!(attached.is_settled());
}

#[test]
fn disconnected_reader_does_not_block_process() {
    let mut attached = Attached::default();
    let gone = client(&mut attached, &LOSSLESS).unwrap();
    while !attached.blocks_output() {
        attached.output(Stream::Stdout, &[b'x'; 10_000]);
    }
    drop(gone);
    attached.poll_clients();
    assert!(!attached.blocks_output() && attached.clients.is_empty() && attached.is_settled());
    assert_eq!(attached.window.cost_from(0), 0, "no output is kept without a client");
}

/// If a run awaits its reader, no output is lost, and the wait has a time limit.
#[test]
fn awaited_reader_receives_all_output() {
    let mut attached = Attached::default();
    attached.await_reader();
    let mut written = 0;
    while !attached.blocks_output() {
        attached.output(Stream::Stdout, &numbered(written..written + 7000));
        written += 7000;
        assert!(written < 1 << 20);
    }
    let watcher = client(&mut attached, &WATCH).unwrap();
    assert!(drained(&mut attached, &watcher).0 == numbered(0..written));
    assert!(
        attached.blocks_output() && attached.due().is_some(),
        "a client that only watches is not the awaited reader"
    );
    attached.finish();
    assert!(!attached.is_settled());
    let reader = client(&mut attached, &LOSSLESS).unwrap();
    assert!(drained(&mut attached, &reader).0 == numbered(0..written) && !attached.blocks_output());

    let mut unread = Attached::default();
    unread.await_reader();
    unread.output(Stream::Stdout, &numbered(0..1 << 20));
    assert!(unread.blocks_output());
    unread.awaited = Some(Instant::now());
    unread.poll_clients();
    assert!(!unread.blocks_output() && unread.is_settled() && unread.window.cost_from(0) == 0);
}

/// If a daemon exits, output in flight is lost, and the daemon's client resumes after the last received byte.
#[test]
fn client_resumes_after_last_received_byte() {
    let mut attached = Attached::default();
    let first = client(&mut attached, &RESUMABLE).unwrap();
    let (mut written, mut got) = (0, Vec::new());
    while got.len() < 5 << 20 {
        attached.output(Stream::Stdout, &numbered(written..written + 30_000));
        written += 30_000;
        got.extend(drained(&mut attached, &first).0);
    }
    assert!(attached.window.cost_from(0) <= REPLAY_MAX + QUEUE_MAX);
    got.truncate(got.len() - 777_777); // in flight when the daemon exited
    drop(first);
    attached.poll_clients();
    while !attached.blocks_output() {
        attached.output(Stream::Stderr, &numbered(written..written + 30_000));
        written += 30_000;
    }
    attached.finish();
    assert!(!attached.is_settled() && attached.due().is_some());
    let beyond = client(&mut attached, &Attach { resume_at: Some(written + 1), ..RESUMABLE }).unwrap_err();
    assert!(beyond.message.contains("resume_at"), "{beyond:?}");
    let place = got.len() as u64;
    let again = client(&mut attached, &Attach { resume_at: Some(place), ..RESUMABLE }).unwrap();
    assert!(attached.absent.is_empty());
    let (rest, positions) = drained(&mut attached, &again);
    assert_eq!(positions, [(place, 0)]);
    got.extend(rest);
    assert!(got == numbered(0..written));

    // A client that returns too late is informed of missed output.
    let late = client(&mut attached, &Attach { resume_at: Some(1000), ..LOSSLESS }).unwrap();
    let (rest, positions) = drained(&mut attached, &late);
    let [(place, missed)] = positions[..] else { panic!("{positions:?}") };
    assert_eq!((place - missed, rest.len() as u64), (1000, written - place));
    for client in [&again, &late] {
        client.send(b"q", &[]).unwrap();
    }
    drop((again, late));
    attached.poll_clients();
    assert!(attached.is_settled(), "a client that has left is not awaited");
}

#[test]
fn input_has_one_sender_until_takeover() {
    let (process, sink) = pipe();
    let mut attached = Attached::default();
    attached.expect(Sink::Pipe(sink));
    let (watcher, first) = (client(&mut attached, &WATCH).unwrap(), client(&mut attached, &INPUT).unwrap());
    assert!(client(&mut attached, &INPUT).is_err());
    watcher.send(b"inot mine to send", &[]).unwrap();
    first.send(b"ia", &[]).unwrap();
    attached.poll_clients();
    let second = client(&mut attached, &Attach { take_over: true, ..INPUT }).unwrap();
    assert_eq!(received(&first), b"t");
    second.send(b"ib", &[]).unwrap();
    second.send(b".", &[]).unwrap();
    second.send(b"ilost", &[]).unwrap();
    attached.poll_clients();
    let mut read = Vec::new();
    io::Read::read_to_end(&mut std::fs::File::from(process), &mut read).unwrap();
    assert_eq!(read, b"ab");
}

/// If the process does not read its input, the input stays in the client's socket, and is neither lost nor buffered
/// here.
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
        attached.poll_clients();
        assert!(attached.pending.len() <= ATTACHED_PACKET_MAX && sent < 100 << 20);
    }
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    while read < sent {
        read += rustix::io::read(&process, &mut buffer).unwrap_or(0);
        attached.poll_clients();
    }
    assert_eq!(read, sent);
}

#[test]
fn end_of_input_closes_pipes_only() {
    let ended = |sink: fn(OwnedFd) -> Sink| {
        let (process, terminal) = pipe();
        let mut attached = Attached::default();
        attached.expect(sink(terminal));
        let typist = client(&mut attached, &INPUT).unwrap();
        typist.send(b"ia", &[]).unwrap();
        typist.send(&[ToShim::EndOfInput as u8], &[]).unwrap();
        typist.send(b"ib", &[]).unwrap();
        attached.poll_clients();
        let mut buffer = [0; 8];
        let length = rustix::io::read(&process, &mut buffer).unwrap();
        (buffer[..length].to_vec(), rustix::io::read(&process, &mut buffer))
    };
    assert_eq!(ended(Sink::Pipe), (b"a".to_vec(), Ok(0)));
    assert_eq!(ended(Sink::Terminal), (b"ab".to_vec(), Err(rustix::io::Errno::AGAIN)));
}

/// After the exit, a client that is connected but accepts no packets does not wake the shim. Otherwise the shim would
/// use a whole processor until the client disconnects.
#[test]
fn broken_client_does_not_wake_shim() {
    let woken = |attached: &Attached| {
        let mut events = Events::default();
        attached.register(&mut events, ());
        events.due([Instant::now()]);
        events.wait().unwrap().len()
    };
    let mut attached = Attached::default();
    let broken = client(&mut attached, &WATCH).unwrap();
    attached.output(Stream::Stdout, &[0; 4 << 20]);
    received(&broken);
    assert_eq!(woken(&attached), 1, "control failed: a client that accepts packets does not wake the shim");
    rustix::net::shutdown(&broken, rustix::net::Shutdown::Read).unwrap();
    attached.finish();
    assert_eq!(woken(&attached), 0);
}
