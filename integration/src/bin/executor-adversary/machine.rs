//! Simulates faults of the machine: its clock is changed while containers run.
//!
//! The host's clock stays unchanged. A library that is preloaded into executord shifts the wall clock of
//! `clock_gettime` by the number of hours in a file. Limits: the launcher and the shims do not preload this library, so
//! a result that is recorded after a jump has an unshifted date.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;
use executor_proto::v1::RunRequest;
use executor_proto::v1::event::Kind;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;

use crate::attack::{Attack, Outcome, Position, Scale};

pub(crate) const ALL: &[Attack] = &[Attack {
    name: "clock: jumps under retention and events",
    position: Position::Machine,
    claim: "a clock that is set by hours deletes no result early and keeps the order of events",
    attack: jumps,
    control: restarted,
}];

/// Configuration that keeps results for two hours.
const CONFIG: &str = "[retention]\nhours = 2\n";
/// Clock offsets in hours: forward, back to before the start, and no offset.
const JUMPS: [i32; 3] = [6, -6, 0];

const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    char text[16] = {0};
    int file = clock == CLOCK_REALTIME ? open(OFFSET, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) time->tv_sec += 3600L * atoi(text);
        close(file);
    }
    return result;
}
"#;

/// A daemon whose wall clock can be shifted.
struct Shifted {
    daemon: Daemon,
    offset: PathBuf,
}

impl Shifted {
    fn start() -> anyhow::Result<Self> {
        let setup = Setup::default().config(CONFIG);
        let (offset, library) = (setup.home().join("offset"), setup.home().join("clock.so"));
        set(&offset, 0)?;
        let source = setup.home().join("clock.c");
        std::fs::write(&source, LIBRARY)?;
        let define = format!("-DOFFSET=\"{}\"", offset.display());
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg(define).output()?;
        ensure!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
        Ok(Self { daemon: setup.preload(&library).start(), offset })
    }

    fn set_clock(&self, hours: i32) -> anyhow::Result<()> {
        set(&self.offset, hours)
    }

    /// Waits until retention has checked all containers in one complete pass. To detect the pass, this runs two
    /// containers in sequence; retention deletes the second container in a later pass than the first.
    fn await_retention(&self, name: &str) {
        for round in ["a", "b"] {
            let id = format!("{name}{round}");
            let request = RunRequest { remove_when_completed: true, ..sh("true").id(&id) };
            self.daemon.api.run(request).expect("a container");
            wait::until("retention deletes the container", || self.daemon.api.get(&id).is_err().then_some(()));
        }
    }
}

/// Writes the clock offset in hours to the file `offset`. The file is replaced atomically, so that a reader never finds
/// an empty file.
fn set(offset: &Path, hours: i32) -> anyhow::Result<()> {
    let new = offset.with_extension("new");
    std::fs::write(&new, hours.to_string())?;
    Ok(std::fs::rename(&new, offset)?)
}

fn jumps(_: Scale) -> anyhow::Result<Outcome> {
    let shifted = Shifted::start()?;
    let api = &shifted.daemon.api;
    api.started(sleeper("lives"));
    api.run_to_end(sh("true").id("done"));
    shifted.await_retention("first");
    let mut faults = Vec::new();
    for (round, hours) in JUMPS.into_iter().enumerate() {
        shifted.set_clock(hours)?;
        shifted.await_retention(&format!("round{round}"));
        for id in ["done", "lives"] {
            if api.get(id).is_err() {
                faults.push(format!("{id} is deleted at {hours:+} h"));
            }
        }
    }
    api.stop("lives", Some(0))?;
    let events = api.events_after(0).until(|event| {
        event.event.as_ref().is_some_and(|event| event.container_id == "lives" && event.kind() == Kind::Completed)
    });
    let cursors: Vec<u64> = events.iter().filter_map(|event| Some(event.event.as_ref()?.cursor)).collect();
    if !cursors.is_sorted_by(|one, next| one < next) {
        faults.push(format!("events are out of order: {cursors:?}"));
    }
    let held = format!("after jumps of {JUMPS:?} h every result is kept, and {} events are in order", cursors.len());
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), held))
}

/// Control: a restarted executord computes the age of a result from dates, so a jump has an effect.
fn restarted(_: Scale) -> anyhow::Result<String> {
    let mut shifted = Shifted::start()?;
    shifted.daemon.api.run_to_end(sh("true").id("done"));
    shifted.daemon.terminate();
    shifted.set_clock(6)?;
    shifted.daemon.start_again();
    shifted.await_retention("later");
    ensure!(shifted.daemon.api.get("done").is_err(), "a result is kept for more than six hours");
    Ok("a later executord that finds a result of six hours ago deletes it".into())
}
