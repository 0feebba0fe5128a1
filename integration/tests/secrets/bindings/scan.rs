//! Values of bindings are found neither in the default output of `bindings`, nor in the process list, nor in the
//! daemon's files: not while the container runs, not after a rotation, and not after the exit. As a control, each
//! search is repeated where it must find a value.

use std::fs;
use std::process::{Command, Stdio};

use executor_residue::{Canary, Needles, Report, Search};
use integration::cli::{command, finish};
use integration::daemon::Daemon;
use integration::wait;
use serde_json::json;
use tempfile::TempDir;

use crate::bindings::{Vcap, run_agent_cli};

const SIZES: [usize; 3] = [64, 4096, 100_000];

/// Returns a VCAP_SERVICES document with random values.
fn vcap(needles: &mut Needles, what: &str) -> Vcap {
    let mut credentials = serde_json::Map::new();
    for size in SIZES {
        let canary = Canary::random(size).unwrap();
        needles.add(&format!("{what} of {size}"), canary.as_bytes());
        credentials.insert(format!("key-{size}"), json!(canary.as_str()));
    }
    Vcap::new(&json!({"mysql": [{"name": "db", "label": "mysql", "credentials": credentials}]}))
}

/// Searches strings by writing them to a file.
fn in_text(needles: &Needles, texts: &[&str]) -> Report {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("text"), texts.concat()).unwrap();
    let mut search = Search::new(needles);
    search.files(dir.path());
    search.report()
}

#[test]
fn bindings_are_printed_only_with_flag() {
    let mut needles = Needles::new().unwrap();
    let vcap = vcap(&mut needles, "value");
    let dir = TempDir::new().unwrap();
    let written = dir.path().join("bindings");
    let (source, written) = (vcap.source(), written.to_str().unwrap());
    let bindings = |arguments: &[&str]| {
        // No daemon is running: `bindings` needs none.
        let ran = run_agent_cli("/run/no-such.sock".as_ref(), &[&["bindings"], arguments].concat());
        in_text(&needles, &[&ran.stdout, &ran.stderr])
    };
    for json in [&[][..], &["--json"]] {
        let from = ["--vcap-services", &source];
        assert!(!bindings(&[&["write", written], &from[..], json].concat()).found());
        for of in [&from[..], &["--vcap-services", &source, "--vcap-file"], &[written]] {
            assert!(!bindings(&[&["show"], of, json].concat()).found(), "{of:?}");
            assert!(!bindings(&[&["check"], of, json].concat()).found(), "{of:?}");
            assert_eq!(
                bindings(&[&["show", "--reveal"], of, json].concat()).hits.len(),
                SIZES.len(),
                "control failed: --reveal does not print every value: {of:?}"
            );
        }
    }
}

/// Searches the command line and environment of every process.
fn in_process_list(needles: &Needles) -> Report {
    let mut texts = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        for name in ["cmdline", "environ"] {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path().join(name)).unwrap_or_default()).into_owned());
        }
    }
    in_text(needles, &texts.iter().map(String::as_str).collect::<Vec<_>>())
}

fn in_files(needles: &Needles, daemon: &Daemon) -> Report {
    let mut search = Search::new(needles);
    search.files(daemon.setup().home());
    search.report()
}

#[test]
fn processes_and_files_hide_bindings() {
    let daemon = Daemon::start();
    let mut needles = Needles::new().unwrap();
    let (old, new) = (vcap(&mut needles, "old"), vcap(&mut needles, "new"));
    // The script prints the bindings, so the log contains them in masked form.
    let script = "show() { cat $SERVICE_BINDING_ROOT/db/*; echo shown; }; trap show WINCH; trap 'exit 0' TERM; show; \
                  while :; do sleep 0.05; done";
    let run = ["run", "--id", "x", "--vcap-services", &old.source(), "--", "sh", "-c", script];
    let attached = command(Some(&daemon.socket()), &run).spawn().unwrap();
    wait::until("the container runs", || daemon.api.get("x").ok().filter(|container| container.started_at.is_some()));
    let mut log = daemon.api.follow("x");
    let clean = |needles: &Needles, when: &str| {
        for report in [in_process_list(needles), in_files(needles, &daemon)] {
            assert!(!report.found() && report.files > 0, "{when}: {report}");
        }
    };
    log.until(|entry| entry.data.ends_with(b"shown\n"));
    clean(&needles, "while it runs");
    run_agent_cli(&daemon.socket(), &["rotate", "x", "--vcap-services", &new.source(), "--signal", "WINCH"]);
    log.until(|entry| entry.data.ends_with(b"shown\n"));
    clean(&needles, "after a rotation");

    // As controls, a process and a file contain the values, and the same search finds them.
    let document = fs::read_to_string(new.source().strip_prefix('@').unwrap()).unwrap();
    let mut loud = Command::new("sh");
    let loud = loud.args(["-c", "read x", &document]).stdin(Stdio::piped()).spawn().unwrap();
    // Just after exec the kernel does not yet show the command line.
    wait::until("the values are found in the list of processes", || {
        (in_process_list(&needles).hits.len() == SIZES.len()).then_some(())
    });
    finish(loud);
    let planted = daemon.setup().home().join("planted");
    fs::write(&planted, &document).unwrap();
    assert_eq!(in_files(&needles, &daemon).hits.len(), SIZES.len());
    fs::remove_file(planted).unwrap();

    run_agent_cli(&daemon.socket(), &["stop", "x"]);
    let ran = finish(attached);
    assert_eq!(ran.status, 0, "{ran:?}");
    clean(&needles, "at its end");
    assert!(!in_text(&needles, &[&ran.stdout, &ran.stderr]).found(), "the output was not masked");
}
