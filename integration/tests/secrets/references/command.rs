//! A provider program of the operator: its responses, its exit when executord exits, and its time limit.

use std::fs;
use std::path::Path;

use integration::daemon::{Daemon, Setup, has_ended};
use integration::request::sleeper;
use integration::wait;
use tonic::Code;

use crate::references::{Shelf, content, from, wait_for_content};

const PROGRAM: &str = r#"#!/bin/sh
read -r question
case "$question" in
*'"path":"hang"'*) echo $$ >>DIR/pids; sleep 100000 & echo $! >>DIR/pids; wait;;
*'"path":"none"'*) exit 1;;
*'"path":"broken"'*) echo canary-partial; exit 3;;
*'"path":"environment"'*) env; exit 0;;
*'"key":"k"'*) cat DIR/value;;
esac
"#;

fn start(shelf: &Shelf) -> Daemon {
    let program = shelf.put("program", PROGRAM.replace("DIR", &shelf.path().display().to_string()));
    shelf.put("pids", "");
    fs::set_permissions(shelf.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    fs::set_permissions(shelf.path().join("pids"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let config = format!(
        "[[secret_providers]]\nname = \"program\"\ntype = \"command\"\ncommand = [\"{}\"]\npoll_seconds = 1\n\
         timeout_seconds = 3\nallow = [{{ uid = 0, paths = [\"/\"] }}]\n",
        program.display()
    );
    Setup::default().config(&config).start()
}

/// Returns the pids that all hanging runs of the program have written: for each run its own pid and its child's pid.
fn pids(shelf: &Path) -> Vec<i32> {
    let text = fs::read_to_string(shelf.join("pids")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn program_answers_and_is_followed() {
    let shelf = Shelf::new();
    shelf.put("value", "value 1");
    let daemon = start(&shelf);
    let mut request = sleeper("c");
    request.volume_mounted_files.push(from("x", "program", "a/b", "k"));
    request.volume_mounted_files.push(from("env", "program", "environment", ""));
    let container = daemon.api.started(request);
    assert_eq!(content(&container, "x"), "value 1");
    let variables = content(&container, "env");
    let names: Vec<&str> = variables.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(names.iter().all(|name| ["PATH", "PWD", "SHLVL", "_", "OLDPWD"].contains(name)), "{variables}");
    shelf.put("value", "value 2");
    wait_for_content(&container, "x", "value 2");
    for (path, code, expected) in
        [("none", Code::NotFound, "exit status 1"), ("broken", Code::Unavailable, "the program failed")]
    {
        let mut request = sleeper("refused");
        request.volume_mounted_files.push(from("x", "program", path, "k"));
        let refused = daemon.api.run(request).unwrap_err();
        assert!(refused.code() == code && refused.message().contains(expected), "{refused}");
        assert!(!format!("{refused:?}").contains("canary"), "{refused:?}");
    }
}

/// If a program hangs, the start fails at the time limit, and the program is killed with its children. If executord is
/// killed, the program is killed as well.
#[test]
fn program_that_hangs_is_killed() {
    let shelf = Shelf::new();
    let mut daemon = start(&shelf);
    let mut request = sleeper("h");
    request.volume_mounted_files.push(from("db/x", "program", "hang", ""));
    let refused = daemon.api.run(request.clone()).unwrap_err();
    let reported = refused.message();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    for part in ["volume_mounted_files[0].from", "program:hang", "/etc/cf-service-bindings/db/x", "within 3 s"] {
        assert!(reported.contains(part), "{reported}");
    }
    let before = pids(shelf.path());
    assert_eq!(before.len(), 2);
    wait::until("the program and its child have exited", || before.iter().all(|pid| has_ended(*pid)).then_some(()));
    assert_eq!(daemon.api.ids(), Vec::<String>::new());

    let mut rpc = daemon.api.rpc();
    let running = daemon.api.spawn(async move { rpc.run(request).await });
    let now = wait::until("the program runs", || Some(pids(shelf.path())).filter(|pids| pids.len() == 4));
    daemon.kill();
    assert!(daemon.api.block_on(running).unwrap().is_err());
    wait::until("the program has exited", || has_ended(now[2]).then_some(()));
    integration::daemon::kill(now[3], 9);
    daemon.start_again();
    assert_eq!(daemon.api.ids(), Vec::<String>::new());
}
