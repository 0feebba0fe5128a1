//! Speed of masking secret values in output. Compares the redactor with a plain copy and with the `aho-corasick` crate.
//! That crate searches for the same forms of the values.
//!
//! The masked values are 100 random values of 32 bytes, a private key of 4 KiB and a service account in JSON. The
//! output consists of log lines, of which one in a thousand contains a value. The output is processed in chunks of the
//! size in which a shim reads output. In hostile output every byte looks like the beginning of a value. `aho-corasick`
//! gets each chunk separately and does not mask values that cross chunks, so it does less work. All times are CPU
//! times.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::Duration;

use aho_corasick::{AhoCorasick, MatchKind};
use anyhow::ensure;
use executor_core::logline::CHUNK_MAX;
use executor_core::plan::Redaction;
use executor_secrets::redact::{Redactor, Stream, Watched};

use crate::stats::{Sample, Shuffle};

/// Number of rounds. In each round, every contestant masks the whole output once.
const ROUNDS: usize = 21;
/// Length of the output in bytes.
const OUTPUT: usize = 32 << 20;
/// Length of the hostile output in bytes.
const HOSTILE: usize = 1 << 20;
/// Number of log lines for each line that contains a value.
const MATCH_EVERY: u64 = 1000;
const VALUES: u32 = 100;

pub(crate) struct Speeds {
    /// Number of masked values.
    pub(crate) values: usize,
    /// Number of encoded forms of the values.
    pub(crate) forms: usize,
    /// Memory of the redactor in bytes.
    pub(crate) bytes: usize,
    /// Memory of `aho-corasick` in bytes.
    pub(crate) peer_bytes: usize,
    /// Time to build a redactor.
    pub(crate) build: Duration,
    /// Name and median rate of each contestant, in millions of bytes per second.
    pub(crate) rates: Vec<(&'static str, f64)>,
}

/// Masks a chunk of the output and appends the result.
type Run<'a> = Box<dyn Fn(&[u8], &mut Vec<u8>) + 'a>;

/// A method to process the output.
struct Contestant<'a> {
    name: &'static str,
    output: &'a [u8],
    run: Run<'a>,
    took: Sample,
}

/// Measures the speed of every contestant.
pub(crate) fn measure() -> anyhow::Result<Speeds> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let values = values(&mut random);
    let (output, printed) = log(&values, &mut random);
    let start = processor_time();
    let redactor = Redactor::new(Redaction::Auto, values.iter().map(|(name, value)| watched(name, value)));
    let build = processor_time() - start;
    let forms: Vec<_> = redactor.forms().collect();
    let peer = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&forms)?;

    // Long values that differ only at their end. The hostile output repeats their common prefix.
    let hostile: Vec<_> = (0..VALUES).map(|number| format!("{}{number}", "a".repeat(220))).collect();
    let hostile = Redactor::new(Redaction::Auto, hostile.iter().map(|value| watched("hostile", value)));
    let letters = vec![b'a'; HOSTILE];

    let mut contestants = [
        Contestant::new("copy", &output, |part, out| out.extend_from_slice(part)),
        Contestant::new("redactor", &output, mask(&redactor)),
        Contestant::new("aho-corasick, same forms", &output, |part, out| replace(&peer, part, out)),
        Contestant::new("redactor, hostile output", &letters, mask(&hostile)),
    ];
    let mut order: Vec<_> = (0..contestants.len()).collect();
    let mut shuffle = Shuffle::default();
    let mut out = Vec::with_capacity(2 * OUTPUT);
    for _ in 0..ROUNDS {
        integration::interrupt::check()?;
        shuffle.shuffle(&mut order);
        for index in &order {
            contestants[*index].go(&mut out);
            if contestants[*index].name == "redactor" {
                let markers = memchr::memmem::find_iter(&out, "[REDACTED:").count();
                ensure!(markers == printed, "the log has {markers} markers, expected {printed}");
            }
        }
    }
    let rates = contestants.iter().map(|one| (one.name, rate(one.output.len(), one.took.median()))).collect();
    Ok(Speeds {
        values: values.len(),
        forms: forms.len(),
        bytes: redactor.bytes(),
        peer_bytes: peer.memory_usage(),
        build,
        rates,
    })
}

impl<'a> Contestant<'a> {
    fn new(name: &'static str, output: &'a [u8], run: impl Fn(&[u8], &mut Vec<u8>) + 'a) -> Self {
        Self { name, output, run: Box::new(run), took: Sample::default() }
    }

    /// Processes the whole output once, in chunks.
    fn go(&mut self, out: &mut Vec<u8>) {
        out.clear();
        let start = processor_time();
        self.output.chunks(CHUNK_MAX).for_each(|part| (self.run)(part, out));
        self.took.add(processor_time() - start);
    }
}

/// Masks with the redactor. After the last chunk, the redactor may keep some bytes, fewer than the length of the
/// longest encoded value.
fn mask(redactor: &Redactor) -> impl Fn(&[u8], &mut Vec<u8>) {
    let stream = RefCell::new(Stream::default());
    move |part, out| stream.borrow_mut().push(redactor, part, out)
}

/// Masks with `aho-corasick`.
fn replace(peer: &AhoCorasick, part: &[u8], out: &mut Vec<u8>) {
    let mut done = 0;
    for found in peer.find_iter(part) {
        out.extend_from_slice(&part[done..found.start()]);
        out.extend_from_slice(b"[REDACTED:value]");
        done = found.end();
    }
    out.extend_from_slice(&part[done..]);
}

fn watched<'a>(name: &'a str, value: &'a str) -> Watched<'a> {
    Watched { name, value: value.as_bytes() }
}

/// Returns the masked values by name.
fn values(random: &mut Random) -> Vec<(String, String)> {
    let mut values: Vec<_> = (0..VALUES).map(|number| (format!("TOKEN_{number}"), random.text(32))).collect();
    let lines: Vec<_> = (0..62).map(|_| random.text(64)).collect();
    let key = format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"));
    let account = serde_json::json!({
        "type": "service_account",
        "project_id": "example-project",
        "private_key_id": random.text(40),
        "private_key": key,
        "client_email": "robot@example-project.iam.example.com",
        "token_uri": "https://oauth2.example.com/token",
    });
    values.push(("tls/key.pem".to_owned(), key));
    values.push(("account.json".to_owned(), format!("{account:#}\n")));
    values
}

/// Returns lines of a log, and the number of lines that contain a value.
fn log(values: &[(String, String)], random: &mut Random) -> (Vec<u8>, usize) {
    const PATHS: [&str; 4] = ["/v1/containers", "/healthz", "/v1/projects/example-project/keys?limit=100", "/login"];
    let (mut output, mut printed) = (String::with_capacity(OUTPUT + 1024), 0);
    while output.len() < OUTPUT {
        let (time, status, path) = (random.next(), 200 + random.next() % 5, PATHS[(random.next() % 4) as usize]);
        let (second, nano, took) = (time % 60, time / 60 % 1_000_000_000, random.next() % 5000);
        let _ = write!(output, "2026-11-21T10:14:{second:02}.{nano:09}Z INFO http request finished method=GET ");
        let _ = write!(output, "path={path} status={status} took={took}us peer=10.0.{}.{}", time % 200, took % 250);
        if random.next().is_multiple_of(MATCH_EVERY) {
            let token = usize::try_from(random.next() % u64::from(VALUES)).unwrap_or(0);
            let _ = write!(output, " authorization=\"Bearer {}\"", values[token].1);
            printed += 1;
        }
        let _ = writeln!(output, " trace={:016x}", random.next());
    }
    (output.into_bytes(), printed)
}

/// Returns the CPU time of this thread. Other load of the machine affects the CPU time only through caches.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns millions of bytes per second.
#[allow(clippy::cast_precision_loss)] // far below 2^52
fn rate(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64()
}

/// xorshift generator. The output is the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns random text in the base64 alphabet.
    fn text(&mut self, length: usize) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        (0..length).map(|_| char::from(DIGITS[(self.next() >> 58) as usize])).collect()
    }
}
