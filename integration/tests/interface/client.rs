//! Tests the client library with a real daemon that is killed and restarted.

use std::time::Duration;

use executor_client::v1::event::Kind;
use executor_client::v1::{ExecStart, State, StreamLogsRequest, exit_status};
use executor_client::{
    AttachOptions, Attached, Client, Code, ConnectError, Error, Executed, ListFilter, Match, Output, Run, Secret,
    Wiped, rest_of_log,
};
use integration::daemon::Daemon;
use integration::request::update;

/// Prints a line for each line of its input, and exits at the end of the input.
const ECHO: &str = "while read line; do echo \"got $line\"; done; exit 3";
/// Prints its secret on SIGUSR1 and exits.
const REPORTED: &str = "trap 'cat /run/demo; exit 5' USR1; echo ready; while :; do sleep 0.01; done";

fn sh(id: &str, script: &str) -> Run {
    Run::new("host", "/bin/sh").args(["-c", script]).id(id).memory_bytes(64 << 20)
}

#[test]
fn life_from_run_to_delete() {
    let daemon = Daemon::start();
    let client = daemon.api.client();
    daemon.api.block_on(async {
        assert!(client.is_serving().await.unwrap());
        let run = sh("web-1", "cat /run/demo; echo \"$TOKEN\" >&2; exit 7")
            .secret_file("/run/demo", Secret::from("a secret file"))
            .secret_env("TOKEN", Secret::from("a secret variable"))
            .unwrap()
            .label("app", "web");
        let started = client.run(&run).await.unwrap();
        assert!(started.created && started.container.id == "web-1");
        assert!(!client.run(&run).await.unwrap().created, "the same request is the same container");
        let completed = client.wait("web-1").await.unwrap();
        let exit = completed.result.unwrap().exit.unwrap().status;
        assert_eq!(exit, Some(exit_status::Status::Code(7)));
        let labelled =
            |value: &str| ListFilter { labels: [("app".to_owned(), value.to_owned())].into(), ..ListFilter::default() };
        assert_eq!(client.list(&labelled("web")).await.unwrap().len(), 1);
        assert_eq!(client.list(&labelled("db")).await.unwrap().len(), 0);
        assert_eq!(client.find("web", 10).await.unwrap(), Match::One("web-1".into()));
        let mut log = client.logs(StreamLogsRequest { id: "web-1".into(), ..StreamLogsRequest::default() });
        let mut printed = Vec::new();
        while let Some(entry) = log.next().await.unwrap() {
            printed.extend(entry.data);
        }
        let printed = String::from_utf8(printed).unwrap();
        assert!(!printed.contains("a secret") && !printed.is_empty(), "masked: {printed:?}");
        client.delete("web-1", false).await.unwrap();
        let gone = client.get("web-1").await.err().unwrap();
        assert_eq!(gone.code(), Some(Code::NotFound), "{gone}");
    });
}

#[test]
fn every_violation_comes_at_once() {
    let daemon = Daemon::start();
    let client = daemon.api.client();
    daemon.api.block_on(async {
        let mut run = sh("a b", "true").memory_bytes(1).secret_file("../x", Secret::from("canary-51f0"));
        run.message_mut().hostname = "no_host".into();
        let error = client.run(&run).await.err().unwrap();
        let fields: Vec<_> = error.violations().iter().map(|violation| &*violation.field).collect();
        for field in ["id", "limits.memory_bytes", "action.run.volume_mounted_files[0].path", "hostname"] {
            assert!(fields.contains(&field), "{field} in {fields:?}");
        }
        assert_eq!(error.code(), Some(Code::InvalidArgument));
        assert!(!format!("{error} {error:?} {run:?}").contains("canary"), "{error:?}");
        let absent = Client::connect(daemon.setup().home().join("no.sock")).await.err().unwrap();
        assert!(matches!(absent, ConnectError::NotListening(_)), "{absent}");
    });
}

/// Logs, events, waits and streams continue across a restart, without loss or duplicates.
#[test]
fn all_streams_continue_across_restart() {
    let mut daemon = Daemon::start();
    let api = daemon.api.clone(); // its runtime outlives the daemon
    let client = api.client();
    let (mut attached, input, mut events) = api.block_on(async {
        let events = client.events(Some(0), "").await.unwrap();
        client.run(&sh("reported", REPORTED).secret_file("/run/demo", Secret::from("5 bytes of it"))).await.unwrap();
        let mut echo = sh("echo", ECHO);
        echo.message_mut().stdin = true;
        client.run(&echo).await.unwrap();
        let options = AttachOptions { input: true, lossless: true, from: Some(0), ..AttachOptions::default() };
        let mut attached = client.attach("echo", options);
        let input = attached.input();
        assert!(input.send(b"one\n".to_vec()).await);
        assert_eq!(attached.next().await.unwrap(), Some(Attached::Stdout(b"got one\n".to_vec())));
        (attached, input, events)
    });
    let mut log = client.logs(rest_of_log("reported", 0));
    assert_eq!(api.block_on(log.next()).unwrap().unwrap().data, b"ready\n");
    let waiting = client.clone();
    let waiting = api.spawn(async move { waiting.wait("reported").await });
    let following = api.spawn(async move {
        let mut rest = Vec::new();
        while let Some(entry) = log.next().await? {
            rest.extend(entry.data);
        }
        Ok::<_, Error>(rest)
    });

    daemon.kill();
    daemon.start_again();

    api.block_on(async {
        client.signal("reported", 10).await.unwrap();
        let completed = waiting.await.unwrap().unwrap();
        assert_eq!(completed.state(), State::Completed);
        let rest = following.await.unwrap().unwrap();
        assert!(!rest.is_empty() && !String::from_utf8_lossy(&rest).contains("ready"), "{rest:?}");
        // New input arrives over the new connection. Earlier output is not repeated.
        assert!(input.send(b"two\n".to_vec()).await);
        assert_eq!(attached.next().await.unwrap(), Some(Attached::Stdout(b"got two\n".to_vec())));
        assert!(input.end().await);
        assert_eq!(attached.next().await.unwrap(), None);
        let echo = client.wait("echo").await.unwrap();
        assert_eq!(echo.result.unwrap().exit.unwrap().status, Some(exit_status::Status::Code(3)));
        let (mut completed, mut cursors) = (0, Vec::new());
        while completed < 2 {
            let event = events.next().await.unwrap().event.unwrap();
            completed += u32::from(event.kind() == Kind::Completed);
            cursors.push(event.cursor);
        }
        assert!(cursors.windows(2).all(|pair| pair[0] < pair[1]), "unique and in order: {cursors:?}");
    });
}

/// If executord does not restart, a client returns an error after its timeout.
#[test]
fn client_gives_up_after_patience() {
    let mut daemon = Daemon::start();
    let api = daemon.api.clone();
    let client = api.client().with_patience(Duration::from_millis(200));
    api.block_on(client.run(&sh("sleeps", "exec sleep 100000"))).unwrap();
    daemon.kill();
    let error = api.block_on(client.wait("sleeps")).err().unwrap();
    assert!(matches!(error, Error::GaveUp { .. }) && error.is_lost() && error.is_away(), "{error}");
    let once = api.block_on(client.signal("sleeps", 10)).err().unwrap();
    assert!(matches!(once, Error::Lost { .. }), "{once}");
    daemon.start_again();
}

#[test]
fn processes_and_files() {
    let daemon = Daemon::start();
    let client = daemon.api.client();
    daemon.api.block_on(async {
        let run = sh("box", "exec sleep 100000").secret_file("/run/demo", Secret::from("old"));
        client.run(&run).await.unwrap();
        let (id, path) = ("box".to_owned(), "/bin/sh".to_owned());
        let args = vec!["-c".into(), "cat; cat /run/demo >&2; exit 4".into()];
        let start = ExecStart { id, path, args, stdin: true, ..ExecStart::default() };
        let mut exec = client.exec(start.clone()).await.unwrap();
        let input = exec.input();
        assert!(input.send(b"typed".to_vec()).await && input.end().await);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let exit = loop {
            match exec.next().await.unwrap() {
                Executed::Started { pid } => assert!(pid > 0),
                Executed::Stdout(bytes) => stdout.extend(bytes),
                Executed::Stderr(bytes) => stderr.extend(bytes),
                Executed::Exit(exit) => break exit.status,
                Executed::Failed(failure) => panic!("{failure:?}"),
            }
        };
        assert_eq!((&*stdout, &*stderr), (&b"typed"[..], &b"old"[..]));
        assert_eq!(exit, Some(exit_status::Status::Code(4)));
        let nothing = ExecStart { path: "/bin/nothing".into(), ..start };
        let failed = client.exec(nothing).await.unwrap().next().await.unwrap();
        assert!(matches!(failed, Executed::Failed(_)), "{failed:?}");

        let updated = client.update_files(Wiped::new(update("box", &[("/run/demo", b"new")]))).await.unwrap();
        assert_eq!(updated.container.unwrap().files_generation, 2);

        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(3);
        header.set_mode(0o644);
        tar.append_data(&mut header, "file", &b"abc"[..]).unwrap();
        let tar = tar.into_inner().unwrap();
        let put = client.put_archive("box", "/tmp", tokio_stream::iter(vec![tar])).await.unwrap();
        assert_eq!((put.entries, put.bytes), (1, 3));
        assert_eq!(client.stat("box", "/tmp/file").await.unwrap().unwrap().size, 3);
        assert_eq!(client.stat("box", "/tmp/nothing").await.unwrap(), None);
        let Error::Refused(refusal) = client.stat("no-such", "/tmp/nothing").await.unwrap_err() else { panic!() };
        assert!(refusal.is_not_found("id") && !refusal.is_not_found("path"), "{refusal:?}");
        let mut archive = client.get_archive("box", "/tmp/file", false).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(piece) = archive.next().await.unwrap() {
            bytes.extend(piece);
        }
        assert!(bytes.windows(3).any(|window| window == b"abc"));
        client.stop("box", Some(Duration::ZERO)).await.unwrap();
        client.wait("box").await.unwrap();

        let mut run = sh("out", "mkdir -p /tmp/out && echo made >/tmp/out/made");
        run.message_mut().outputs =
            Some(executor_client::v1::Outputs { directory: "/tmp/out".into(), ..Default::default() });
        client.run(&run).await.unwrap();
        client.wait("out").await.unwrap();
        let mut outputs = client.outputs("out", "").await.unwrap();
        let (mut files, mut content) = (Vec::new(), Vec::new());
        while let Some(part) = outputs.next().await.unwrap() {
            match part {
                Output::File(file) => files.push(file.path),
                Output::Data(data) => content.extend(data),
                Output::Skipped(entry) => panic!("{entry:?}"),
            }
        }
        assert_eq!((files, &*content), (vec!["/tmp/out/made".to_owned()], &b"made\n"[..]));
    });
}
