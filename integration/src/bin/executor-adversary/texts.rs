//! Attacks by strings: output that manipulates a receiver's terminal, and names that a peer confuses with other names.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use anyhow::{Context as _, ensure};
use executor_proto::v1::Identity;
use integration::daemon::{Daemon, Setup};
use integration::identity::Ca;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "texts: control characters in output for syslog",
        position: Position::Container,
        claim: "a syslog receiver gets no control character and no bidirectional mark from a container's output",
        attack: syslog,
        control: syslog_control,
    },
    Attack {
        name: "texts: units that look like two units",
        position: Position::Client,
        claim: "no identity has a unit with a character that delimits parts of a subject or changes how it is displayed",
        attack: units,
        control: units_control,
    },
];

/// Control characters that terminals interpret: C0, DEL, C1, bidirectional marks, line separators.
const HARMFUL: &str = "\u{1b}\u{7f}\u{9b}\u{90}\u{61c}\u{200e}\u{202a}\u{202e}\u{2066}\u{2069}\u{2028}\u{2029}";
/// Last line of the output.
const LAST: &str = "end-of-output";

/// Returns the harmful characters in received bytes.
fn harmful(bytes: &[u8]) -> Vec<char> {
    String::from_utf8_lossy(bytes).chars().filter(|c| HARMFUL.contains(*c)).collect()
}

/// Runs a container that prints harmful characters and has them in a label. Returns its output as stored by executord.
fn print(daemon: &Daemon) -> Vec<u8> {
    let octal: String = HARMFUL.bytes().map(|byte| format!("\\{byte:03o}")).collect();
    let mut request = sh(&format!("printf 'a{octal}b\\n{LAST}\\n'")).id("printer");
    request.labels.insert("app".into(), format!("x{HARMFUL}").replace(|c: char| u32::from(c) < 0x80 && c != 'x', ""));
    daemon.api.run_to_end(request);
    daemon.api.output("printer").stdout
}

/// Forwards the output of a container to a syslog receiver.
fn syslog(_: Scale) -> anyhow::Result<Outcome> {
    let setup = Setup::default();
    let dir = setup.home().join("receiver");
    fs::create_dir(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    let listener = UnixListener::bind(dir.join("socket"))?;
    fs::set_permissions(dir.join("socket"), fs::Permissions::from_mode(0o666))?;
    let config = format!(
        "[logs]\ntargets = ['file', 'syslog']\nlabels = ['app']\n[logs.syslog]\naddress = 'unix://{}'\n",
        dir.join("socket").display()
    );
    let daemon = setup.config(&config).start();
    let receiver = std::thread::spawn(move || -> anyhow::Result<Vec<u8>> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(wait::DEFAULT_TIMEOUT))?;
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        while !received.windows(LAST.len()).any(|part| part == LAST.as_bytes()) {
            let count = stream.read(&mut buffer).context("cannot receive the output")?;
            ensure!(count > 0, "the connection closed before the output was received");
            received.extend_from_slice(&buffer[..count]);
        }
        Ok(received)
    });
    print(&daemon);
    let received = receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))??;
    let found = harmful(&received);
    let fault = (!found.is_empty()).then(|| format!("the receiver got {found:?}"));
    Ok(Outcome::new(fault, format!("{} bytes without any of {} characters", received.len(), HARMFUL.chars().count())))
}

/// Control: the output that executord stores has all harmful characters.
fn syslog_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let found = harmful(&print(&daemon));
    ensure!(found.len() == HARMFUL.chars().count(), "{found:?}");
    Ok(format!("all {} characters are in the output that is kept", found.len()))
}

/// Requests an identity with an organizational unit. Returns true if executord accepts the unit.
fn has_identity(daemon: &Daemon, unit: &str) -> bool {
    let mut request = sleeper("named");
    request.identity = Some(Identity { organizational_units: vec![unit.into()], ..Identity::default() });
    let accepted = daemon.api.run(request).is_ok();
    if accepted {
        let _ = daemon.api.delete("named", true);
    }
    accepted
}

/// Requests units that could be confused with two units or with another unit, if a peer compares the subject as a
/// string.
fn units(_: Scale) -> anyhow::Result<Outcome> {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    let delimiters = ",/=+;\"\\<>";
    let mut units = delimiters.chars().chain(HARMFUL.chars()).map(|c| format!("app:1{c}OU=admin"));
    let fault = units.find(|unit| has_identity(&daemon, unit)).map(|unit| format!("{unit:?} is certified"));
    Ok(Outcome::new(fault, "all units are refused"))
}

/// Control: an ordinary organizational unit is accepted.
fn units_control(_: Scale) -> anyhow::Result<String> {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    ensure!(has_identity(&daemon, "app:1-OU:admin"), "an instance identity with an ordinary unit is refused");
    Ok("an ordinary unit is certified".into())
}
