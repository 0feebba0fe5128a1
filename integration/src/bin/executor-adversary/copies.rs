//! Attacks on copies from and to a container. In some, the container changes paths during the lookup; in others, a
//! client sends an archive with arbitrary names.

use std::path::Path;

use anyhow::{Context as _, ensure};
use executor_proto::v1::RunRequest;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{executed, script};
use integration::wait;
use tar::{Builder, EntryType, Header};

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[
    Attack {
        name: "copy: a directory that becomes a link",
        position: Position::Container,
        claim: "a container that swaps paths during a copy cannot redirect it to the host (CVE-2018-15664)",
        attack: exchanged,
        control: exchanged_control,
    },
    Attack {
        name: "copy: an archive that escapes its directory",
        position: Position::Client,
        claim: "an archive is unpacked only below its directory and through no link, whatever names it has",
        attack: outside,
        control: outside_control,
    },
];

const CANARY: &str = "canary-of-the-copies-52b0";

/// Endless loop that swaps a directory and a link to `/`.
const EXCHANGES: &str = "cd /; busybox mkdir dir; busybox ln -s / link; echo up
while :; do busybox mv dir was; busybox mv link dir; busybox mv dir link; busybox mv was dir; done";

/// Builds an archive of entries without content. Each entry is a kind, a path and a link target.
fn archive(entries: &[(EntryType, &str, &str)]) -> anyhow::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (kind, path, link) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        // Written directly, because the tar crate refuses paths that escape.
        for (at, text) in [(0, path), (157, link)] {
            let field = header
                .as_mut_bytes()
                .get_mut(at..at + text.len())
                .context("the text does not fit into the field of the header")?;
            field.copy_from_slice(text.as_bytes());
        }
        header.set_cksum();
        archive.append(&header, std::io::empty())?;
    }
    Ok(archive.into_inner()?)
}

fn put(daemon: &Daemon, path: &str, archive: &[u8]) -> Result<(), tonic::Status> {
    daemon.api.put_archive("c", path, archive, archive.len()).map(drop)
}

/// Starts a container that swaps paths, and creates a directory with a file on the host.
fn exchanging() -> anyhow::Result<(Daemon, Rootfs, tempfile::TempDir, i32)> {
    let (daemon, rootfs, home) = (Daemon::start(), Rootfs::busybox(), tempfile::tempdir()?);
    std::fs::write(home.path().join("precious"), CANARY)?;
    let container = daemon.api.started(RunRequest { rootfs: rootfs.reference(), ..sh(EXCHANGES).id("c") });
    wait::until("the container exchanges paths", || daemon.api.logs_so_far("c").contains("up").then_some(()));
    Ok((daemon, rootfs, home, integration::api::pid(&container)))
}

fn has_canary(bytes: &[u8]) -> bool {
    bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes())
}

pub(crate) fn exchanged(scale: Scale) -> anyhow::Result<Outcome> {
    let (daemon, _rootfs, home, _) = exchanging()?;
    let (rounds, above) = (scale.pick(100, 3000), home.path().display());
    let made = archive(&[(EntryType::Regular, "made", "")])?;
    let mut fault = None;
    for round in 0..rounds {
        if daemon.api.get_archive("c", &format!("/dir{above}/precious")).is_ok_and(|came| has_canary(&came)) {
            fault = Some(format!("round {round}: a file of the host was read"));
        }
        let _ = put(&daemon, &format!("/dir{above}"), &made); // may fail: the directory may be a link at the moment
        if home.path().join("made").exists() {
            fault = Some(format!("round {round}: a file was created on the host"));
        }
    }
    Ok(Outcome::new(fault, format!("{rounds} rounds, and no file of the host was read or created")))
}

/// Control: the same name, opened from the host, is a file outside of the container.
pub(crate) fn exchanged_control(_: Scale) -> anyhow::Result<String> {
    let (_daemon, _rootfs, home, pid) = exchanging()?;
    let naive = Path::new("/proc").join(pid.to_string()).join("root/dir");
    let naive = naive.join(home.path().strip_prefix("/")?).join("precious");
    let rounds = wait::until("the host's file is read", || {
        (0..1000).find(|_| std::fs::read(&naive).is_ok_and(|read| has_canary(&read)))
    });
    Ok(format!("opened from the host, the file was read after {rounds} rounds"))
}

/// Archive entries that escape to a file outside of the directory `/tmp/in/below`. [`find_violations`] checks for such
/// a file.
const OUTSIDE: &[&[(EntryType, &str, &str)]] = &[
    &[(EntryType::Regular, "../made", "")],
    &[(EntryType::Regular, "x/../../made", "")],
    &[(EntryType::Regular, "/tmp/in/made", "")],
    &[(EntryType::Symlink, "l", ".."), (EntryType::Regular, "l/made", "")],
    &[(EntryType::Symlink, "m", "/tmp/in/made"), (EntryType::Regular, "m", "")],
    &[(EntryType::Symlink, "n", "/tmp/in"), (EntryType::Directory, "n", ""), (EntryType::Regular, "n/made", "")],
    &[(EntryType::Link, "made-link", "../old"), (EntryType::Regular, "made-link", "")],
    &[(EntryType::Symlink, "o", ".."), (EntryType::Link, "old-link", "o/old")],
];

/// Checks the directory after an archive was unpacked. Returns the violations, or `None` if there are none.
fn find_violations(daemon: &Daemon) -> anyhow::Result<Option<String>> {
    let look = "cd /tmp/in; ls made 2>/dev/null; test \"$(cat old)\" = old || echo old was written; \
                test \"$(stat -c %h old)\" = 1 || echo old was linked";
    let looked = executed(&daemon.api, script("c", look))?.text();
    Ok((!looked.is_empty()).then_some(looked))
}

fn with_directories() -> anyhow::Result<Daemon> {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("c"));
    let made = executed(&daemon.api, script("c", "mkdir -p /tmp/in/below; printf old >/tmp/in/old"))?;
    ensure!(made.exit == Some(Ok(0)), "mkdir in the container failed");
    Ok(daemon)
}

pub(crate) fn outside(_: Scale) -> anyhow::Result<Outcome> {
    let daemon = with_directories()?;
    for entries in OUTSIDE {
        let reported = put(&daemon, "/tmp/in/below", &archive(entries)?);
        if let Some(wrong) = find_violations(&daemon)? {
            return Ok(Outcome::Through(format!("{entries:?}: {wrong} ({reported:?})")));
        }
    }
    Ok(Outcome::Held(format!("{} archives, nothing outside of the directory", OUTSIDE.len())))
}

/// Control: an archive that is unpacked into the parent directory creates the file, and the check finds the file.
pub(crate) fn outside_control(_: Scale) -> anyhow::Result<String> {
    let daemon = with_directories()?;
    put(&daemon, "/tmp/in", &archive(&[(EntryType::Regular, "made", "")])?)?;
    let seen = find_violations(&daemon)?.context("control failed: the check does not find the intentional file")?;
    Ok(format!("the check finds an intentional file: {}", seen.trim()))
}
