//! Tests the termination message of a container's process.

use executor_proto::v1::{Action, Container, RunAction, RunRequest, SerialAction, TerminationMessage};
use integration::api::{ending, exit};
use integration::cli;
use integration::daemon::{Daemon, kill};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::wait;
use tonic::Code;

const LOG: &str = "/dev/termination-log";
const SECRET: &str = "canary-of-a-message-1f0c55";

fn with_message(request: RunRequest, path: &str) -> RunRequest {
    let message = TerminationMessage { path: path.into(), ..TerminationMessage::default() };
    RunRequest { termination_message: Some(message), ..request }
}

fn falling_back(request: RunRequest) -> RunRequest {
    let message = TerminationMessage { fallback_to_logs: true, ..TerminationMessage::default() };
    RunRequest { termination_message: Some(message), ..request }
}

fn message(container: &Container) -> &str {
    &ending(container).termination_message
}

#[test]
fn termination_message_is_in_result() {
    let daemon = Daemon::start();
    for (id, user) in [("root", "root"), ("user", "1000:1000"), ("other", "4321:4321")] {
        let script = format!("stat -c %a {LOG}; printf 'out of %s' beans >{LOG}; exit 4");
        let ended = daemon.api.run_to_end(with_message(sh(&script).id(id).user(user), ""));
        assert_eq!((exit(&ended), message(&ended)), (Ok(4), "out of beans"), "{id}");
        assert_eq!(daemon.api.output(id).text(), "666\n");
        let spec = ended.spec.unwrap().termination_message.unwrap();
        assert_eq!((&*spec.path, spec.bytes_max), (LOG, 4096));
    }
    // Without the option, the file does not exist.
    let ended = daemon.api.run_to_end(sh(&format!("test -e {LOG}")).id("without"));
    assert_eq!((exit(&ended), message(&ended)), (Ok(1), ""));
    // The path may be in the container's own layer, on a tmpfs, or below missing directories.
    let rootfs = Rootfs::busybox();
    for (id, path) in [("layer", "/var/made/up/message"), ("memory", "/dev/termination-x"), ("tmp", "/tmp/message")] {
        let script = format!("echo hello >>{path}");
        let request = with_message(sh(&script).id(id).user("1000:1000").rootfs(&rootfs.reference()), path);
        assert_eq!(message(&daemon.api.run_to_end(request)), "hello\n", "{path}");
    }
}

/// Only the last bytes of a message are kept, and invalid UTF-8 is replaced.
#[test]
fn message_is_bounded() {
    let daemon = Daemon::start();
    let ended = daemon.api.run_to_end(with_message(sh(&format!("seq 200000 | head -c 900000 >{LOG}")).id("long"), ""));
    let text = message(&ended);
    let all: String = (1..200_001).map(|number| format!("{number}\n")).collect();
    assert_eq!((text.len(), text), (4096, &all[900_000 - 4096..900_000]));
    let short = TerminationMessage { bytes_max: 3, ..TerminationMessage::default() };
    let request = RunRequest { termination_message: Some(short), ..sh(&format!("printf 'abc\\377de' >{LOG}")) };
    assert_eq!(message(&daemon.api.run_to_end(request.id("short"))), "de");
    // The file uses no more memory than the limit of the message. Holes in the file use no memory.
    let fill = format!(
        "head -c 9000000 /dev/zero >{LOG} || echo full; : >{LOG}; \
                        dd if=/dev/zero of={LOG} bs=1 count=0 seek=1T 2>/dev/null; printf end >>{LOG}"
    );
    let ended = daemon.api.run_to_end(with_message(sh(&fill).id("full"), ""));
    assert!(message(&ended).ends_with("end") && message(&ended).len() <= 4096);
    assert!(daemon.api.output("full").text().contains("full"));
}

/// The whole message is masked before it is truncated. As a control, the same container without redaction has the value
/// in its message.
#[test]
fn secrets_are_masked() {
    let daemon = Daemon::start();
    let script = format!("printf 'the password is %s, %s' $PW $PW >{LOG}; exit 1");
    let request = |id: &str| with_message(sh(&script).id(id).secret_env("PW", SECRET), "");
    let masked = daemon.api.run_to_end(request("masked"));
    assert!(message(&masked).starts_with("the password is ") && !message(&masked).contains(SECRET), "{masked:?}");
    let open = daemon.api.run_to_end(request("open").unmasked());
    assert_eq!(message(&open), format!("the password is {SECRET}, {SECRET}"));
    // The message is truncated in the middle of the secret.
    let cut = TerminationMessage { bytes_max: SECRET.len() as u32 - 4, ..TerminationMessage::default() };
    let request = RunRequest { termination_message: Some(cut), ..request("cut") };
    let text = message(&daemon.api.run_to_end(request)).to_owned();
    assert!((0..SECRET.len() - 4).all(|at| !text.contains(&SECRET[at..at + 4])), "{text}");
}

#[test]
fn log_tail_replaces_message_after_failure() {
    let daemon = Daemon::start();
    let script = |exit: &str| format!("for i in $(seq 1 100); do echo line $i; done; echo $PW >&2; {exit}");
    let of = |id: &str, exit: &str| {
        let request = falling_back(sh(&script(exit)).id(id).secret_env("PW", SECRET));
        message(&daemon.api.run_to_end(request)).to_owned()
    };
    let failed = of("failed", "exit 3");
    assert!(failed.contains("line 100\n") && !failed.contains(SECRET), "{failed}");
    assert!(failed.lines().count() <= 80 && failed.len() <= 2048 && !failed.contains("line 1\n"), "{failed}");
    assert_eq!(of("succeeded", "exit 0"), "");
    assert_eq!(of("spoke", &format!("echo own >{LOG}; exit 3")), "own\n");
    let without = with_message(sh("echo x; exit 3").id("without"), "");
    assert_eq!(message(&daemon.api.run_to_end(without)), "");
}

/// The shim reads only the file that it created itself and follows no link, even if the container replaces the file.
#[test]
fn message_file_links_are_not_followed() {
    let daemon = Daemon::start();
    for (id, path) in [("dev", LOG), ("tmp", "/tmp/message")] {
        let script = format!(
            "echo first >{path}; rm -f {path} 2>/dev/null; mv {path} /tmp/away 2>/dev/null; \
             ln -sf /etc/hostname {path} 2>/dev/null; ln -s /etc/passwd /tmp/link; mv -f /tmp/link {path} 2>/dev/null; true"
        );
        let ended = daemon.api.run_to_end(with_message(sh(&script).id(id), path));
        assert_eq!(message(&ended), "first\n", "{path}");
    }
    // Refused paths: below a symbolic link of the image, and on or below existing mounts.
    let rootfs = Rootfs::busybox();
    rootfs.replace_by_link("tmp", "/etc");
    let request = with_message(sh("true").id("link").rootfs(&rootfs.reference()), "/tmp/message");
    let reported = daemon.api.run(request).unwrap_err();
    assert!(
        reported.code() == Code::FailedPrecondition && reported.message().contains("termination_message.path"),
        "{reported}"
    );
    for path in ["relative", "/a/../b", "/dev/null", "/dev/shm/x", "/proc/self/x", "/sys/x", "/run/s/key", "/"] {
        let reported = daemon.api.run(with_message(sh("true").id("bad").file("/run/s/key", b"x"), path)).unwrap_err();
        let named = reported.message().contains("termination_message.path");
        assert!(reported.code() == Code::InvalidArgument && named, "{path}: {reported}");
    }
    let large = TerminationMessage { bytes_max: 16_385, ..TerminationMessage::default() };
    let reported = daemon.api.run(RunRequest { termination_message: Some(large), ..sleeper("large") }).unwrap_err();
    assert!(reported.message().contains("termination_message.bytes_max: is 16385; at most 16384"), "{reported}");
}

#[test]
fn steps_of_tree_share_message_file() {
    let daemon = Daemon::start();
    let run = |word: &str| Action {
        run: Some(RunAction {
            path: "/bin/sh".into(),
            args: vec!["-c".into(), format!("echo {word} >>{LOG}")],
            user: "vcap".into(),
            ..RunAction::default()
        }),
        ..Action::default()
    };
    let serial = SerialAction { actions: vec![run("one"), run("two")], ..SerialAction::default() };
    let action = Some(Action { serial: Some(serial), ..Action::default() });
    let request = RunRequest { action, ..RunRequest::default() }.id("tree").memory(64 << 20);
    assert_eq!(message(&daemon.api.run_to_end(with_message(request, ""))), "one\ntwo\n");
}

/// If a container's shim was killed, the container has no termination message, but its exit is known.
#[test]
fn killed_shim_loses_termination_message() {
    let daemon = Daemon::start();
    daemon.api.started(with_message(sh(&format!("echo x >{LOG}; echo up; sleep 100000")).id("c"), ""));
    wait::until("the process is up", || daemon.api.logs_so_far("c").contains("up").then_some(()));
    kill(daemon.record("c").shim.pid, 9);
    assert_eq!(message(&daemon.api.wait("c").unwrap()), "");
}

#[test]
fn command_line_requests_and_shows_message() {
    let daemon = Daemon::start();
    let script = format!("echo no beans >{LOG}; exit 4");
    let run = ["run", "--keep", "--id", "c", "--termination-message", "--", "/bin/sh", "-c", &script];
    assert_eq!(cli::run(&daemon.socket(), &run).status, 4);
    let shown = cli::run(&daemon.socket(), &["inspect", "c"]).stdout;
    assert!(shown.contains("no beans") && shown.contains(LOG), "{shown}");
    let json = cli::run(&daemon.socket(), &["inspect", "--json", "c"]).json();
    assert_eq!(json["result"]["termination_message"], "no beans\n");
}
