//! Tests `cp` and `run --output-to`.

use std::fs;
use std::path::Path;

use executor_proto::v1::get_outputs_response::Part;
use executor_proto::v1::{OutputFile, Outputs, OutputsSummary, Result as Ending, SkippedOutput, State};
use rustix::process::Signal;

use crate::fake::{Call, Fake, exited};
use crate::program::{agent_cli, finish, run, send};

fn file(path: &str, content: &[u8]) -> [Part; 2] {
    let file = OutputFile { path: path.into(), size: content.len() as u64, mode: 0o640 };
    [Part::File(file), Part::Data(content.to_vec())]
}

fn skipped(path: &str, reason: &str) -> Part {
    Part::Skipped(SkippedOutput { path: path.into(), reason: reason.into() })
}

fn with(parts: impl IntoIterator<Item = Part>) -> Fake {
    let fake = Fake::start();
    fake.add("web", State::Completed);
    fake.shared.state().outputs = parts.into_iter().collect();
    fake
}

/// Returns the relative paths of all files below a directory.
fn listing(dir: &Path) -> Vec<String> {
    fn list(top: &Path, dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => list(top, &path, found),
                path => found.push(path.strip_prefix(top).unwrap().display().to_string()),
            }
        }
    }
    let mut found = Vec::new();
    list(dir, dir, &mut found);
    found.sort();
    found
}

#[test]
fn cp_writes_file_directory_or_stdout() {
    let fake = with(file("/out/a", b"content \xff\n"));
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    for (destination, found) in [(at("b"), "b"), (at(""), "a"), (at("b"), "b")] {
        let program = run(&fake, &["cp", "web:/out/a", &destination]);
        assert_eq!((program.status, program.out(), program.err()), (Some(0), String::new(), String::new()));
        assert_eq!(fs::read(home.path().join(found)).unwrap(), b"content \xff\n");
    }
    assert_eq!(listing(home.path()), ["a", "b"]);
    let program = run(&fake, &["cp", "web:/out/a", "-"]);
    assert_eq!((program.status, &program.stdout[..]), (Some(0), &b"content \xff\n"[..]));
    assert_eq!(fake.count(|call| matches!(call, Call::Outputs(asked) if asked.path == "/out/a")), 4);
    for (arguments, words) in [
        (["cp", "web:/out", "-"], "only a single file can be written to standard output"),
        (["cp", "web:", "-"], "ID:PATH"),
        (["cp", "web", "."], "ID:PATH"),
        (["cp", "web:/out/a", "/dev/null"], "neither a regular file nor a directory"),
        (["cp", "web:/out/a", "/no/such/dir/x"], "cannot write /no/such/dir: No such file or directory"),
        (["cp", "gone:/out/a", "."], "no container gone"),
    ] {
        let program = run(&fake, &arguments);
        assert_eq!((program.status, program.out()), (Some(125), String::new()), "{arguments:?}");
        assert!(program.err().contains(words), "{words:?} is not in {}", program.err());
    }
    assert!(run(&fake, &["cp", "--json", "web:/out/a", "-"]).err().contains("--json"));
}

#[test]
fn cp_copies_directory_and_reports_missing() {
    let parts = [file("/out/a", b"1"), file("/out/d/b", b"2")].concat();
    let fake = with(parts.into_iter().chain([skipped("/out/l\u{1b}", "a symbolic link")]));
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name).display().to_string();
    let program = run(&fake, &["cp", "web:/out/", &at("new")]);
    assert_eq!(program.status, Some(125), "not all of it is there");
    let reported = "agent-cli: not captured: /out/l\\u{1b}: a symbolic link\nagent-cli: 1 not captured, 2 copied\n";
    assert_eq!(program.err(), reported);
    run(&fake, &["cp", "web:/out", &at("new")]);
    assert_eq!(listing(home.path()), ["new/a", "new/d/b", "new/out/a", "new/out/d/b"]);
    let json = run(&fake, &["cp", "--json", "web:/out", &at("json")]).json();
    assert_eq!((&json["files"][1]["path"], &json["files"][1]["mode"]), (&"/out/d/b".into(), &"0640".into()));
    assert_eq!(json["files"][1]["destination"], at("json/d/b").as_str());
    assert_eq!(json["skipped"][0]["reason"], "a symbolic link");

    fake.shared.state().containers.get_mut("web").unwrap().spec.as_mut().unwrap().outputs =
        Some(Outputs { directory: "/out".into(), ..Outputs::default() });
    run(&fake, &["cp", "web:", &at("all")]);
    assert_eq!(listing(&home.path().join("all")), ["a", "d/b"]);
    fake.shared.state().outputs.clear();
    assert_eq!(run(&fake, &["cp", "web:/out", &at("empty")]).status, Some(0));
    assert!(home.path().join("empty").is_dir());
}

/// A name outside the destination, a file that was not requested, and a wrong size are errors, and nothing is written
/// outside the destination. The control has a valid name.
#[test]
fn a_malicious_answer_writes_nothing_elsewhere() {
    let home = tempfile::tempdir().unwrap();
    let inner = home.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let size = |size| Part::File(OutputFile { path: "/out/x".into(), size, mode: 0o644 });
    let data = |bytes: &[u8]| Part::Data(bytes.to_vec());
    let evil = |path: &str| file(path, b"evil").to_vec();
    for (parts, fine) in [
        (evil("/out/x"), true),
        (evil("/out/../../evil"), false),
        (evil("/out//evil"), false),
        (evil("/etc/evil"), false),
        (evil("../evil"), false),
        (evil("evil"), false),
        (evil("/out"), true), // the output is then a file
        ([evil("/out/x"), evil("/out")].concat(), false),
        (vec![size(3), data(b"four")], false),
        (vec![size(5), data(b"four")], false),
        (vec![data(b"four")], false),
    ] {
        let fake = with(parts.clone());
        let destination = inner.join("here");
        let program = run(&fake, &["cp", "web:/out", &destination.display().to_string()]);
        assert_eq!(program.status, Some(if fine { 0 } else { 125 }), "{parts:?}: {}", program.err());
        let found = listing(home.path());
        assert!(found.iter().all(|path| path == "inner/here/x" || path == "inner/here"), "{parts:?}: {found:?}");
        assert_eq!(found.is_empty(), !fine && parts.len() < 4, "{parts:?}: {found:?}");
        let _ = fs::remove_dir_all(&destination);
        let _ = fs::remove_file(&destination);
    }
}

#[test]
fn an_interrupted_copy_leaves_nothing() {
    let fake = with(file("/out/a", b"half"));
    fake.shared.state().outputs[0] = Part::File(OutputFile { path: "/out/a".into(), size: 8, mode: 0o600 });
    fake.shared.state().hold_outputs = true;
    let home = tempfile::tempdir().unwrap();
    let child = agent_cli(&fake, &["cp", "web:/out/a", &home.path().display().to_string()]).spawn().unwrap();
    let half = || fs::read_dir(home.path()).unwrap().flatten().find_map(|entry| fs::read(entry.path()).ok());
    let deadline = std::time::Instant::now() + crate::fake::EVENT_TIMEOUT;
    while half().as_deref() != Some(b"half") {
        assert!(std::time::Instant::now() < deadline, "nothing comes");
        std::thread::yield_now();
    }
    assert!(!home.path().join("a").exists(), "under its name it is whole");
    send(&child, Signal::INT);
    assert_eq!(finish(child).status, Some(130));
    assert_eq!(listing(home.path()), [""; 0]);
}

#[test]
fn cp_resumes_after_executord_restart() {
    let mut fake = with(file("/out/a", b"half"));
    fake.shared.state().outputs[0] = Part::File(OutputFile { path: "/out/a".into(), size: 8, mode: 0o600 });
    fake.shared.state().hold_outputs = true;
    let home = tempfile::tempdir().unwrap();
    let child = agent_cli(&fake, &["cp", "web:/out/a", &home.path().display().to_string()]).spawn().unwrap();
    fake.called("GetOutputs", 1, |call| matches!(call, Call::Outputs(_)));
    fake.die();
    fake.shared.state().hold_outputs = false;
    fake.shared.state().outputs.push(Part::Data(b"more".into()));
    fake.revive();
    let ended = finish(child);
    assert_eq!((ended.status, ended.err()), (Some(0), String::new()));
    assert_eq!(listing(home.path()), ["a"]);
    assert_eq!(fs::read(home.path().join("a")).unwrap(), b"halfmore");
}

fn captured(code: i32, failure: &str) -> Ending {
    let outputs = OutputsSummary { files: 2, bytes: 2, skipped: 1, failure: failure.into() };
    Ending { outputs: Some(outputs), ..exited(code) }
}

/// Outputs are fetched before the container is deleted. If fetching fails, the container is not deleted.
#[test]
fn run_fetches_before_it_deletes() {
    let home = tempfile::tempdir().unwrap();
    let fake = Fake::with(|shared, id| shared.complete(id, captured(3, "")));
    fake.shared.state().outputs =
        [&file("/srv/a", b"1")[..], &file("/srv/b", b"2"), &[skipped("/srv/c", "no such file")]].concat();
    let to = home.path().join("to").display().to_string();
    let of = |id: &str, to: &str| {
        let outputs = ["/srv/a", "/srv/b", "/srv/c"].map(|path| ["--output", path]).concat();
        run(&fake, &[&["run", "--id", id, "--output-to", to], &outputs[..], &["--", "x"]].concat())
    };
    let program = of("one", &to);
    assert_eq!(program.status, Some(3), "the process's own: {}", program.err());
    assert_eq!(program.out(), "");
    let reported =
        "agent-cli: not captured: /srv/c: no such file\nagent-cli: outputs: 2 files, 2 bytes; 1 not captured\n";
    assert_eq!(program.err(), reported);
    assert_eq!(listing(Path::new(&to)), ["a", "b"]);
    assert!(!fake.is_there("one"), "deleted");
    let request = fake.wait_for("Run", |state| {
        state.calls.iter().find_map(|call| if let Call::Run(run) = call { run.outputs.clone() } else { None })
    });
    assert_eq!(request.files, ["/srv/a", "/srv/b", "/srv/c"]);

    // Block the destination after the start.
    fs::remove_dir_all(&to).unwrap();
    fs::create_dir_all(home.path().join("to/a/in-the-way")).unwrap();
    let program = of("two", &to);
    assert_eq!(program.status, Some(125));
    assert!(
        program.err().contains("cannot write") && program.err().contains("agent-cli cp two: DEST"),
        "{}",
        program.err()
    );
    assert!(fake.is_there("two"), "kept");

    let before = fake.count(|call| matches!(call, Call::Run(_)));
    for (to, words) in [("/dev/null", "neither a regular file nor a directory"), ("/etc/passwd", "is a file")] {
        let program = of("three", to);
        assert!(program.status == Some(125) && program.err().contains(words), "{}", program.err());
    }
    let twice = ["run", "--output-to", &to, "--output", "/a/x", "--output", "/b/x", "--", "x"];
    assert!(run(&fake, &twice).err().contains("two outputs are called x"));
    assert_eq!(
        fake.count(|call| matches!(call, Call::Run(_))),
        before,
        "the error is reported before the container runs"
    );
}

#[test]
fn outputs_that_were_not_captured_are_reported() {
    let fake = Fake::with(|shared, id| shared.complete(id, captured(0, "the shim was lost")));
    let program = run(&fake, &["run", "--output-dir", "/srv", "--output-to", "/nonexistent-x", "--", "x"]);
    assert_eq!(
        (program.status, program.err()),
        (Some(125), "agent-cli: outputs: NOT captured: the shim was lost\n".into())
    );
    let json = run(&fake, &["run", "--json", "--id", "k", "--keep", "--output-dir", "/srv", "--", "x"]).json();
    assert_eq!(json["result"]["outputs"]["failure"], "the shim was lost");
    assert_eq!(json["spec"]["outputs"]["directory"], "/srv");
    assert!(run(&fake, &["inspect", "k"]).out().contains("NOT captured: the shim was lost"));
}
