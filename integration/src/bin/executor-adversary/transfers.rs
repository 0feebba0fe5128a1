//! Attacks on the workers that make downloads, by containers that cooperate with servers.

use anyhow::ensure;
use executor_proto::v1::{
    Action, Container, DownloadAction, ParallelAction, RunAction, RunRequest, SerialAction, TimeoutAction,
};
use integration::api::ending;
use integration::daemon::{Daemon, Setup};
use integration::request::RequestBuilder as _;
use integration::wait;
use integration::web::{WebAnswer, WebServer};

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "transfers: a zip of too many entries",
        position: Position::Server,
        claim: "the entries of a zip archive are counted before they are read",
        attack: entries,
        control: entries_control,
    },
    Attack {
        name: "transfers: five slow downloads of a container",
        position: Position::Client,
        claim: "slow transfers of one container leave slots for transfers of other containers",
        attack: slow,
        control: slow_control,
    },
    Attack {
        name: "transfers: a slow download of a known cache_key",
        position: Position::Client,
        claim: "a download does not wait for a download from another URL with the same cache_key",
        attack: key,
        control: key_control,
    },
];

/// Time limit of a victim's download, in milliseconds. The limit expires only if the attack succeeds.
const DOWNLOAD_TIMEOUT_MS: i64 = 30_000;
/// Time limit of a control's download, which is expected to wait, in milliseconds.
const CONTROL_TIMEOUT_MS: i64 = 1_500;

fn daemon(more: &str) -> Daemon {
    let config = format!("[transfers]\nallowed = [\"127.0.0.1\"]\nidle_seconds = 600\n{more}");
    Setup::default().config(&config).start()
}

fn download(from: String, key: &str) -> Action {
    let download = DownloadAction {
        artifact: "app".into(),
        from,
        to: "/tmp/x/".into(),
        cache_key: key.into(),
        ..DownloadAction::default()
    };
    Action { download: Some(download), ..Action::default() }
}

/// Builds a request that runs an action and then a program.
fn request(id: &str, action: Action) -> RunRequest {
    let args = vec!["-c".into(), "true".into()];
    let run = RunAction { path: "/bin/sh".into(), args, ..RunAction::default() };
    let actions = vec![action, Action { run: Some(run), ..Action::default() }];
    let serial = Action { serial: Some(SerialAction { actions, ..SerialAction::default() }), ..Action::default() };
    RunRequest { action: Some(serial), ..RunRequest::default() }.id(id).memory(128 << 20)
}

/// Runs a download with a time limit to its completion.
fn victim(daemon: &Daemon, from: String, key: &str, timeout_ms: i64) -> Container {
    let limited = TimeoutAction { action: Some(Box::new(download(from, key))), timeout_ms, ..TimeoutAction::default() };
    daemon.api.run_to_end(request("victim", Action { timeout: Some(Box::new(limited)), ..Action::default() }))
}

/// Returns the failure of a container, if any.
fn failure(container: &Container) -> Option<String> {
    ending(container).failure.as_ref().map(|failure| failure.message.clone())
}

/// Returns a response with an empty tar archive.
fn content() -> WebAnswer {
    WebAnswer::Full("200 OK", vec![("etag", "\"one\"".into())], vec![0; 1024])
}

/// Builds a zip archive with `entries` entries for one directory, and an end record (zip64) that claims `counted`
/// entries.
fn new_zip(entries: usize, counted: u64) -> Vec<u8> {
    const NAME: &[u8] = b"d/";
    let mut local = [0; 30];
    local[..4].copy_from_slice(b"PK\x03\x04");
    local[26] = NAME.len() as u8;
    let mut header = [0; 46];
    header[..4].copy_from_slice(b"PK\x01\x02");
    header[28] = NAME.len() as u8;
    let mut archive = [&local, NAME].concat();
    let start = archive.len() as u64;
    archive.extend([&header, NAME].concat().repeat(entries));
    let end = archive.len() as u64;
    archive.extend_from_slice(b"PK\x06\x06");
    archive.extend_from_slice(&44_u64.to_le_bytes());
    archive.extend_from_slice(&[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    [counted, counted, end - start, start].iter().for_each(|number| archive.extend_from_slice(&number.to_le_bytes()));
    archive.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    archive.extend_from_slice(&end.to_le_bytes());
    archive.extend_from_slice(&1_u32.to_le_bytes());
    archive.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    archive.extend_from_slice(&[0xff; 12]);
    archive.extend_from_slice(&[0; 2]);
    archive
}

fn downloaded(archive: Vec<u8>) -> Option<String> {
    let daemon = daemon("");
    let server = WebServer::start(move |_, _| WebAnswer::ok(&archive));
    failure(&daemon.api.run_to_end(request("zip", download(server.url("/a.zip"), ""))))
}

fn entries(scale: Scale) -> anyhow::Result<Outcome> {
    let entries = scale.pick(1_000_001, 2_000_000);
    // The second archive has fewer entries than its end record states.
    for (archive, words) in
        [(new_zip(entries, entries as u64), "entries; at most 1000000"), (new_zip(10, u64::from(u32::MAX)), "damaged")]
    {
        match downloaded(archive) {
            Some(why) if why.contains(words) => {}
            other => {
                return Ok(Outcome::Through(format!(
                    "the archive was not refused because of its end record: {other:?}"
                )));
            }
        }
    }
    Ok(Outcome::Held(format!("an archive of {entries} entries was refused because of its end record")))
}

/// Control: the same archive with 10 entries is unpacked.
fn entries_control(_: Scale) -> anyhow::Result<String> {
    let why = downloaded(new_zip(10, 10));
    ensure!(why.is_none(), "an archive of 10 entries was not unpacked: {why:?}");
    Ok("the same archive with 10 entries is unpacked".into())
}

/// Starts five never-ending downloads in one container, and returns the failure of another container's download.
fn beside_slow(share: &str, began: usize, limit_ms: i64) -> Option<String> {
    let daemon = daemon(share);
    let (slow, fast) = (WebServer::start(|_, _| WebAnswer::Never), WebServer::start(|_, _| content()));
    let actions = (0..5).map(|number| download(slow.url(&format!("/{number}")), "")).collect();
    let all = ParallelAction { actions, ..ParallelAction::default() };
    daemon.api.started(request("slow", Action { parallel: Some(all), ..Action::default() }));
    wait::until("the slow downloads have started", || (slow.requests().len() >= began).then_some(()));
    failure(&victim(&daemon, fast.url("/a"), "", limit_ms))
}

fn slow(_: Scale) -> anyhow::Result<Outcome> {
    Ok(Outcome::new(
        beside_slow("", 2, DOWNLOAD_TIMEOUT_MS),
        "another container's download completed during five slow downloads",
    ))
}

/// Control: without the limit for each container, five slow downloads of one container delay another container's
/// download beyond its time limit.
fn slow_control(_: Scale) -> anyhow::Result<String> {
    let why = beside_slow("at_once_per_container = 5\n", 5, CONTROL_TIMEOUT_MS);
    ensure!(
        why.as_ref().is_some_and(|why| why.contains("timeout")),
        "control failed: the other download did not wait: {why:?}"
    );
    Ok("with all five slots for one container, another download waits".into())
}

/// Holds a key with a download that never ends, and returns the failure of another container's download with that key.
fn beside_key(path: &str, limit_ms: i64) -> Option<String> {
    let daemon = daemon("");
    let server = WebServer::start(|number, _| if number == 0 { WebAnswer::Never } else { content() });
    daemon.api.started(request("holder", download(server.url("/a"), "known")));
    wait::until("the server receives the request", || (!server.requests().is_empty()).then_some(()));
    failure(&victim(&daemon, server.url(path), "known", limit_ms))
}

fn key(_: Scale) -> anyhow::Result<Outcome> {
    Ok(Outcome::new(beside_key("/b", DOWNLOAD_TIMEOUT_MS), "a download from another URL did not wait for the key"))
}

/// Control: a download from the same URL waits beyond its time limit for the download that holds the key.
fn key_control(_: Scale) -> anyhow::Result<String> {
    let why = beside_key("/a", CONTROL_TIMEOUT_MS);
    ensure!(
        why.as_ref().is_some_and(|why| why.contains("timeout")),
        "control failed: the other download did not wait: {why:?}"
    );
    Ok("a download from the same URL waits".into())
}
