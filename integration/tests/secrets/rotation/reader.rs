//! Readers that constantly read a pair of files while it changes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use executor_proto::v1::Redaction;
use integration::api::ending;
use integration::daemon::{Daemon, kill};
use integration::request::{RequestBuilder, program, update};
use serde_json::Value;

use crate::rotation::{GENERATIONS, ROOT, inside, wait_for_single_generation};

/// Reads the files `pair/a` and `pair/b` below a directory until SIGTERM, and prints its observations. Every line of
/// both files is the stamp of their generation. The reader alternates between two methods: through the directory of one
/// generation, opened once; and by plain paths, with a check of the current generation before and after. If a round
/// takes longer than old generations are kept, it proves nothing, and is only counted.
const READER: &str = r#"
import json, os, signal, sys, time
pair, generations = sys.argv[1] + '/pair', sys.argv[2]
seen = dict(rounds=0, torn=0, mixed=0, missing=0, slow=0, skipped=0, stamps=0)
stamps, going = set(), [True]
signal.signal(signal.SIGTERM, lambda *_: going.clear())
def read(path, at=None):
    fd = os.open(path, os.O_RDONLY, dir_fd=at)
    try:
        parts = []
        while part := os.read(fd, 1000):
            parts.append(part)
        return b''.join(parts)
    finally:
        os.close(fd)
def stamp(content):
    lines = content.split(b'\n')[:-1]
    return lines[0] if lines and len(set(lines)) == 1 and content.endswith(b'\n') else None
print('up', flush=True)
while going:
    begun, before, after = time.monotonic(), None, None
    try:
        if seen['rounds'] % 2:
            directory = os.open(os.path.dirname(os.path.realpath(pair + '/a')), os.O_RDONLY | os.O_DIRECTORY)
            try:
                both = read('a', directory), read('b', directory)
            finally:
                os.close(directory)
        else:
            before = os.readlink(generations + '/..data')
            both = read(pair + '/a'), read(pair + '/b')
            after = os.readlink(generations + '/..data')
        a, b = map(stamp, both)
        fault = 'torn' if None in (a, b) else 'mixed' if a != b and before == after else None
        seen['skipped'] += before != after
        stamps.add(a)
    except FileNotFoundError:
        fault = 'missing'
    seen['rounds'] += 1
    if time.monotonic() - begun > 0.4:
        seen['slow'] += 1
    elif fault:
        seen[fault] += 1
seen['stamps'] = len(stamps)
print(json.dumps(seen), flush=True)
"#;

/// Returns a pair of files of one generation: one file fits into a page, the other has several pages.
fn pair(generation: usize) -> [(&'static str, Vec<u8>); 2] {
    let stamp = format!("generation {generation:08}\n");
    [("pair/a", stamp.repeat(3).into_bytes()), ("pair/b", stamp.repeat(600).into_bytes())]
}

fn number(seen: &Value, name: &str) -> u64 {
    seen[name].as_u64().unwrap()
}

/// Over 1,000 rotations a reader sees no mixed, torn or missing pair. At the end one generation is left.
#[test]
fn reader_sees_consistent_pairs_during_rotations() {
    const ROTATIONS: usize = 1000;
    let daemon = Daemon::start();
    let mut request = program("/usr/bin/python3", &["-c", READER, ROOT, GENERATIONS]).id("read").grace_ms(60_000);
    request.redaction = Redaction::None.into(); // the reader's output must not be masked
    for (path, content) in pair(0) {
        request = request.file(path, &content);
    }
    let container = daemon.api.started(request);
    let mut log = daemon.api.follow("read");
    log.until(|entry| entry.data == b"up\n");
    for generation in 1..=ROTATIONS {
        let [a, b] = pair(generation);
        let updated = daemon.api.update(update("read", &[(a.0, &a.1), (b.0, &b.1)])).unwrap();
        assert_eq!(updated.files_generation, generation as u64 + 1);
    }
    assert_eq!(wait_for_single_generation(&container), format!("..gen{}", ROTATIONS + 1));
    daemon.api.stop("read", None).unwrap();
    let reported = log.rest().into_iter().flat_map(|entry| entry.data).collect::<Vec<u8>>();
    let seen: Value = serde_json::from_slice(&reported).unwrap();
    eprintln!("the reader saw {seen}");
    for fault in ["torn", "mixed", "missing"] {
        assert_eq!(number(&seen, fault), 0, "{seen}");
    }
    assert!(number(&seen, "stamps") > 100, "the reader saw too few rotations: {seen}");
    assert!(number(&seen, "slow") < number(&seen, "rounds") / 10, "too many rounds of the reader were slow: {seen}");
    let ended = daemon.api.wait("read").unwrap();
    let wipe = ended.result.unwrap().wipe.unwrap();
    let bytes: usize = (0..=ROTATIONS).flat_map(pair).map(|(_, content)| content.len()).sum();
    assert_eq!((wipe.files as usize, wipe.bytes as usize, wipe.verified), (2 * (ROTATIONS + 1), bytes, true));
}

/// As a control, the same reader detects in-place writes to the same files.
#[test]
fn control_reader_detects_in_place_writes() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("..gen1");
    fs::create_dir_all(data.join("pair")).unwrap();
    symlink("..gen1", dir.path().join("..data")).unwrap();
    symlink("..data/pair", dir.path().join("pair")).unwrap();
    let write = |generation| {
        pair(generation).into_iter().for_each(|(path, content)| fs::write(data.join(path), content).unwrap());
    };
    write(0);
    let mut reader = Command::new("/usr/bin/python3");
    let mut reader = reader.args(["-c", READER]).args([dir.path(); 2]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    // The loop writes for two seconds, so that the reader gets CPU time during the writes.
    let begun = Instant::now();
    (1..).take_while(|_| begun.elapsed() < Duration::from_secs(2)).for_each(write);
    kill(reader.id() as i32, 15);
    let seen: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    reader.wait().unwrap();
    assert!(number(&seen, "torn") + number(&seen, "mixed") > 0, "{seen}");
}

/// A descriptor opened before a rotation reads the old content or zeros, and never any other byte.
#[test]
fn open_descriptor_shows_old_content_or_zeros() {
    let daemon = Daemon::start();
    let old = b"old".repeat(5000);
    let sleeper = integration::request::sleeper("open").file("a", &old).file("/etc/executor-key", &old);
    let container = daemon.api.started(sleeper);
    let paths = [format!("{ROOT}/a"), "/etc/executor-key".to_owned()];
    let kept = paths.map(|path| fs::File::open(inside(&container, &path)).unwrap());
    let read = |file: &fs::File| {
        let mut bytes = vec![1; old.len()];
        let length = file.read_at(&mut bytes, 0).unwrap();
        bytes.truncate(length);
        bytes
    };
    let new = vec![b'N'; old.len()];
    let files: [(&str, &[u8]); 2] = [("a", &new), ("/etc/executor-key", &new)];
    daemon.api.update(update("open", &files)).unwrap();
    for file in &kept {
        assert_eq!(read(file), old, "the old content is kept for a while, for readers that have just opened the file");
    }
    let fits = |bytes: &[u8]| bytes.len() == old.len() && bytes.iter().zip(&old).all(|(is, was)| is == was || *is == 0);
    for _ in 0..50 {
        daemon.api.update(update("open", &files)).unwrap();
        assert!(kept.iter().all(|file| fits(&read(file))));
    }
    integration::wait::until("the old content is zeros", || {
        kept.iter().all(|file| read(file).iter().all(|byte| *byte == 0)).then_some(())
    });
    assert_eq!(fs::read(inside(&container, &format!("{ROOT}/a"))).unwrap(), new);
}

/// Takes leases on its secret files until SIGTERM, at each of their paths. Each leased descriptor is queued in a socket
/// that is not read. As a control, the script takes a lease on a file of its own.
const LEASER: &str = r#"
import fcntl, os, signal, socket, sys
queue = [socket.socketpair() for _ in range(16)]
going, leases = [True], dict(own=0, secret=0)
signal.signal(signal.SIGTERM, lambda *_: going.clear())
signal.signal(signal.SIGIO, signal.SIG_IGN)
def lease(path, whose):
    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            return
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
            leases[whose] += 1
            if leases[whose] < 1000:
                socket.send_fds(queue[leases[whose] % 16][0], [b'x'], [fd])
        except OSError:
            pass
        os.close(fd)
open('/dev/shm/own', 'w').close()
lease('/dev/shm/own', 'own')
print('up', flush=True)
while going:
    for top in sys.argv[1:]:
        for path in [top] if os.path.isfile(top) else [os.path.join(d, f) for d, _, fs in os.walk(top) for f in fs]:
            lease(path, 'secret')
print('leases', leases['own'], leases['secret'], flush=True)
"#;

/// If a container takes leases on its own secret files, nothing is delayed: a replaced value is wiped as fast as
/// without leases, and the container stops on request, whether its shim or the launcher wipes.
#[test]
fn leases_delay_no_wipe() {
    const BOUND: Duration = Duration::from_secs(15); // the kernel breaks a lease after 45 s
    let old = b"old".repeat(500);
    let daemon = Daemon::start();
    for (id, kills_shim) in [("leased", false), ("lost", true)] {
        let leaser = program("/usr/bin/python3", &["-c", LEASER, ROOT, "/dev/executor-files", "/etc/executor-key"]);
        let leaser = leaser.id(id).user("1000:1000").memory(128 << 20).file("a", &old).file("b/c", &old);
        let container = daemon.api.started(leaser.file("/etc/executor-key", &old));
        integration::wait::until("the container has leases", || {
            daemon.api.logs_so_far(id).contains("up").then_some(())
        });
        let kept = [format!("{ROOT}/a"), "/etc/executor-key".into()];
        let kept = kept.map(|path: String| fs::File::open(inside(&container, &path)).unwrap());
        let is_wiped = |file: &fs::File| {
            let mut bytes = [1; 1500];
            let length = file.read_at(&mut bytes, 0).unwrap();
            bytes[..length].iter().all(|byte| *byte == 0)
        };
        let begun = Instant::now();
        for content in [b"new", b"two"] {
            let files: [(&str, &[u8]); 2] = [("a", content), ("/etc/executor-key", content)];
            daemon.api.update(update(id, &files)).unwrap();
        }
        integration::wait::until("the old value is gone", || kept.iter().all(is_wiped).then_some(()));
        assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());

        let last = fs::File::open(inside(&container, &format!("{ROOT}/b/c"))).unwrap();
        let begun = Instant::now();
        if kills_shim {
            kill(daemon.record(id).shim.pid, 9);
        } else {
            daemon.api.stop(id, Some(5000)).unwrap();
        }
        let ended = daemon.api.wait(id).unwrap();
        assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
        assert!(is_wiped(&last), "{ended:?}");
        if !kills_shim {
            let log = daemon.api.logs_so_far(id);
            assert!(log.contains("leases 2 0") || log.contains("leases 1 0"), "{log}");
        }
        assert!(ending(&ended).wipe.is_some(), "{ended:?}");
    }
}
