//! Attacks on the front ends and on imports: archives with hostile names, and a convention's server.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use integration::cli::{self, CliOutput};
use integration::conventions::World;
use integration::daemon::Daemon;
use integration::dist;
use integration::web::{WebAnswer, WebServer};
use serde_json::json;

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "archives: hostile names in a CNAB bundle",
        position: Position::Image,
        claim: "the names in a thick bundle cannot cause writes outside of it, unbounded memory, or output of control or bidirectional characters",
        attack: bundles,
        control: bundles_control,
    },
    Attack {
        name: "archives: a name that is a hole",
        position: Position::Client,
        claim: "the size of a name or a record in an imported archive is checked before executord reads it",
        attack: hollow_names,
        control: hollow_names_control,
    },
    Attack {
        name: "conventions: a hostile server",
        position: Position::Server,
        claim: "a convention's server gains no privilege and cannot redirect to another server, and the length and duration of its responses are bounded",
        attack: conventions,
        control: conventions_control,
    },
];

/// Address space limit of a front end under attack, in bytes: more than it needs, and less than the attacks would use
/// without a limit.
const MEMORY_MAX: u64 = 512 << 20;
/// Timeout of a front end for a hostile input, on a loaded machine.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Builds a tar header with any name.
fn header(kind: u8, name: &[u8], size: u64) -> [u8; 512] {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(0o644);
    header.set_size(size);
    header.set_cksum();
    *header.as_bytes()
}

/// Writes a compressed archive from entries of type, name and content.
fn archive(path: &Path, entries: &[(u8, &[u8], &[u8])]) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    for (kind, name, content) in entries {
        bytes.extend(header(*kind, name, content.len() as u64));
        bytes.extend(*content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    compress(path, &mut &*bytes)
}

fn compress(path: &Path, from: &mut dyn std::io::Read) -> anyhow::Result<()> {
    let mut gzip =
        Command::new("gzip").args(["-1", "-c"]).stdin(Stdio::piped()).stdout(fs::File::create(path)?).spawn()?;
    std::io::copy(from, gzip.stdin.as_mut().context("the child has no pipe")?)?;
    ensure!(gzip.wait()?.success(), "gzip failed");
    Ok(())
}

/// Runs agent-cli in a directory with a memory limit.
fn agent(directory: &Path, arguments: &[&str]) -> anyhow::Result<CliOutput> {
    let mut command = Command::new("prlimit");
    command.arg(format!("--as={MEMORY_MAX}")).arg(dist::binary("agent-cli")).args(arguments);
    command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(cli::finish(command.spawn()?))
}

const BUNDLE: &str = r#"{"schemaVersion": "v1.0.0", "name": "lamp", "version": "0.1.0", "invocationImages": [{"image": "example/lamp:0.1.0"}]}"#;

/// Raw type, name and link of an archive entry.
type RawEntry<'a> = (u8, &'a [u8], &'a [u8]);

/// Returns a description of the fault if a front end did not refuse a hostile input promptly and with a message.
fn fault(what: &str, ran: &CliOutput, took: Duration) -> Option<String> {
    let shown = format!("{}{}", ran.stdout, ran.stderr);
    let raw =
        shown.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t') || ('\u{202a}'..='\u{202e}').contains(c));
    match () {
        () if raw.is_some() => Some(format!("{what}: prints {raw:?}")),
        () if ran.status == 0 => Some(format!("{what}: accepted")),
        () if ran.status != 125 || shown.contains("panicked") => {
            Some(format!("{what}: status {}: {shown}", ran.status))
        }
        () if took > REFUSAL_TIMEOUT => Some(format!("{what}: took {took:.1?}")),
        () => None,
    }
}

fn bundles(scale: Scale) -> anyhow::Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let inside = directory.path().join("inside");
    fs::create_dir(&inside)?;
    let path = inside.join("bundle.tgz");
    let own = |name: &'static [u8]| (b'0', name, &b"x"[..]);
    let deep = "a/".repeat(45);
    let index: &[u8] = b"{\"manifests\": []}";
    let long = ["d/".repeat(2100).as_bytes(), b"x\0"].concat();
    let table: [(&str, Vec<RawEntry<'_>>); 19] = [
        ("parent", vec![own(b"../escaped")]),
        ("parent below", vec![own(b"artifacts/layout/../../../escaped")]),
        ("absolute", vec![own(b"/tmp/executor-adversary-escaped")]),
        ("link", vec![(b'2', b"artifacts/layout/blobs", b"")]),
        ("hard link", vec![(b'1', b"artifacts/layout/blobs", b"")]),
        ("device", vec![(b'3', b"artifacts/layout/null", b"")]),
        ("fifo", vec![(b'6', b"artifacts/layout/fifo", b"")]),
        ("escape sequence", vec![own(b"artifacts/layout/\x1b[2J")]),
        ("bidirectional", vec![own("../\u{202e}gpj.exe".as_bytes())]),
        ("not UTF-8", vec![own(b"artifacts/layout/\xff")]),
        ("dot", vec![(b'0', b"artifacts/layout/./index.json", index)]),
        ("empty part", vec![(b'0', b"artifacts//layout/index.json", index)]),
        ("second bundle.json", vec![(b'0', b"./bundle.json", BUNDLE.as_bytes())]),
        ("bundle.json twice", vec![(b'0', b"bundle.json", BUNDLE.as_bytes())]),
        ("names that differ in case", vec![(b'0', b"BUNDLE.JSON", BUNDLE.as_bytes())]),
        ("a blob twice", vec![own(b"artifacts/layout/blobs/sha256/aa"), own(b"artifacts/layout/blobs/sha256/Aa")]),
        ("bidirectional within the layout", vec![own("artifacts/layout/\u{202e}gpj.exe".as_bytes())]),
        ("a name of 4,201 bytes", vec![(b'L', b"././@LongLink", &long), own(b"x")]),
        ("sparse", vec![(b'S', b"artifacts/layout/sparse", b"")]),
    ];
    let mut faults = Vec::new();
    let mut evaluate = |what: &str| -> anyhow::Result<()> {
        let begun = Instant::now();
        let ran = agent(&inside, &["cnab", "explain", "bundle.tgz"])?;
        faults.extend(fault(what, &ran, begun.elapsed()));
        Ok(())
    };
    for (what, entries) in &table {
        let all: Vec<_> =
            [(b'0', &b"bundle.json"[..], BUNDLE.as_bytes())].into_iter().chain(entries.iter().copied()).collect();
        archive(&path, &all)?;
        evaluate(what)?;
    }
    // Too many entries, and names and records of excessive length: 800 MB that compress to 4 MB.
    let many = [header(b'0', deep.as_bytes(), 0).to_vec()].concat().repeat(100_001);
    compress(&path, &mut &*many)?;
    evaluate("many entries")?;
    for kind in scale.pick(&b"L"[..], b"LKx") {
        let size = 3 << 28;
        let name = header(*kind, b"././@LongLink", size);
        compress(&path, &mut (&name[..]).chain(std::io::repeat(b'a').take(size)))?;
        evaluate(&format!("a name of 800 MB ({})", char::from(*kind)))?;
    }
    // Documents that are deeply nested, or contain characters that change the display of a line.
    for (what, text) in [
        ("deep document", format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000))),
        ("bidirectional name", BUNDLE.replace("lamp\"", "\\u202egpj\"")),
        ("control character", BUNDLE.replace("\"0.1.0\"", "\"0.1.0\\u001b[2J\"")),
        ("NUL", BUNDLE.replace("lamp\"", "la\\u0000mp\"")),
    ] {
        archive(&path, &[(b'0', b"bundle.json", text.as_bytes())])?;
        evaluate(what)?;
    }
    let left = |directory: &Path| -> std::io::Result<usize> { Ok(fs::read_dir(directory)?.count()) };
    if left(directory.path())? != 1 || left(&inside)? != 1 || Path::new("/tmp/executor-adversary-escaped").exists() {
        faults.push("files were written outside of the bundle".to_owned());
    }
    Ok(Outcome::new(
        (!faults.is_empty()).then(|| faults.join("; ")),
        format!("{} bundles refused", table.len() + 5 + scale.pick(1, 3)),
    ))
}

/// Control: the same bundle without a hostile entry is displayed.
fn bundles_control(_: Scale) -> anyhow::Result<String> {
    let directory = tempfile::tempdir()?;
    archive(&directory.path().join("bundle.tgz"), &[(b'0', b"bundle.json", BUNDLE.as_bytes())])?;
    let ran = agent(directory.path(), &["cnab", "explain", "bundle.tgz"])?;
    ensure!(ran.status == 0 && ran.stdout.contains("lamp"), "{ran:?}");
    Ok("the bundle without a hostile entry is displayed".into())
}

/// Writes an archive that begins with a sparse name or record of `size` bytes.
fn hollow(path: &Path, kind: u8, size: u64) -> anyhow::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(&header(kind, b"././@LongLink", size))?;
    let end = 512 + size.next_multiple_of(512);
    file.write_all_at(&header(b'0', b"oci-layout", 0), end)?;
    file.set_len(end + 512 + 1024)?;
    Ok(())
}

fn import(daemon: &Daemon, path: &Path) -> CliOutput {
    let path = path.display().to_string();
    cli::run(&daemon.socket(), &["image", "import", "--form", "oci-archive", "--name", "example/hollow:1", &path])
}

fn hollow_names(scale: Scale) -> anyhow::Result<Outcome> {
    const PEAK_MAX: u64 = 64 << 20;
    let daemon = Daemon::start();
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("image.tar");
    let size = scale.pick(3_u64 << 26, 1 << 31);
    let (mut faults, mut reported) = (Vec::new(), Vec::new());
    for kind in *b"LKx" {
        hollow(&path, kind, size)?;
        let before = peak(daemon.pid())?;
        let ran = import(&daemon, &path);
        ensure!(ran.status != 0, "an archive that has only one name is imported: {ran:?}");
        let grown = peak(daemon.pid()).map_or(u64::MAX, |peak| peak.saturating_sub(before));
        if grown > PEAK_MAX {
            faults.push(format!("{}: executord grew by {} MB: {}", char::from(kind), grown >> 20, ran.stderr.trim()));
        }
        reported.push(ran.stderr.trim().to_owned());
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported.pop().unwrap_or_default()))
}

fn peak(pid: i32) -> anyhow::Result<u64> {
    let line = integration::host::status(pid, "VmHWM").context("executord has exited")?;
    Ok(line.trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Control: a name within the limit is read, and the import fails only because the archive has no index.json.
fn hollow_names_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("image.tar");
    hollow(&path, b'L', 512)?;
    let ran = import(&daemon, &path);
    ensure!(ran.status != 0 && ran.stderr.contains("index.json"), "{ran:?}");
    Ok(ran.stderr.trim().to_owned())
}

fn conventions(_: Scale) -> anyhow::Result<Outcome> {
    let world = World::start();
    let internal = WebServer::start(|_, _| WebAnswer::ok(b"{}"));
    world.web("2", &internal.port().to_string());
    let mut faults = Vec::new();
    let paths = [
        "redirect",
        "away",
        "huge",
        "slow",
        "drip",
        "cut",
        "deep",
        "nested",
        "html",
        "text",
        "kind",
        "empty",
        "other",
        "grow",
        "privileged",
        "host-path",
        "host-network",
        "capabilities",
        "init-container",
    ];
    for path in paths {
        world.register(&[("hostile", path, "timeoutSeconds = 5")]);
        let begun = Instant::now();
        let ran = world.run(&["apply", "web.yaml"]);
        faults.extend(fault(path, &ran, begun.elapsed()));
        if !ran.stdout.is_empty() {
            faults.push(format!("{path}: prints {} bytes of a result", ran.stdout.len()));
        }
    }
    if !internal.requests().is_empty() {
        faults.push("a redirect to another server is followed".to_owned());
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), format!("{} responses refused", paths.len())))
}

/// Control: a correct response of the same server is applied.
fn conventions_control(_: Scale) -> anyhow::Result<String> {
    let world = World::start();
    world.web("2", "x");
    world.register(&[("honest", "hello", "timeoutSeconds = 5")]);
    let applied = world.applied();
    ensure!(applied.to_string().contains("HELLO FROM CONVENTION"), "{}", json!(applied));
    Ok("the same server decorates if its response is correct".into())
}
