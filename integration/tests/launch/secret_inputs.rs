//! Secret variables and arguments as a caller uses them.

use executor_proto::v1::{ListRequest, RunRequest};
use executor_residue::{Canary, Needles, Search};
use integration::api::{ending, exit, pid};
use integration::daemon::{Daemon, Setup, kill};
use integration::request::{RequestBuilder, program, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::runtime::{TOKEN, token};
use integration::{cli, wait};
use tonic::Code;
use tonic_types::StatusExt as _;

/// Prints all its inputs, one per line.
const SHOW: &str = "printf '%s\\n' \"$PW\" \"$EMPTY\" \"$@\"";

/// Returns the violations of a request: fields and descriptions.
fn violations(daemon: &Daemon, request: RunRequest) -> Vec<(String, String)> {
    let status = daemon.api.run(request).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let details = status.get_details_bad_request().unwrap();
    details.field_violations.into_iter().map(|violation| (violation.field, violation.description)).collect()
}

/// Secret values reach the process unchanged, and a secret argument replaces an empty argument. This holds for `dir:`
/// root file systems and for `host`.
#[test]
fn secret_variables_and_arguments_reach_the_process() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    for reference in ["host", &rootfs.reference()] {
        let request = program("/bin/sh", &["-c", SHOW, "sh", "plain", "", ""]).rootfs(reference).unmasked();
        let request = request.secret_env("PW", "a=b ${x} \u{e9}").secret_env("EMPTY", "");
        let container = daemon.api.run_to_end(request.secret_arg(5, "").secret_arg(4, "--pw=c d\"").env("PLAIN", "1"));
        assert_eq!(exit(&container), Ok(0));
        assert_eq!(daemon.api.output(&container.id).text(), "a=b ${x} \u{e9}\n\nplain\n--pw=c d\"\n\n");
        let spec = container.spec.as_ref().unwrap();
        assert_eq!(
            (&spec.environment_names[..], &spec.secret_environment_names[..]),
            (&["PLAIN".to_owned()][..], &["PW".to_owned(), "EMPTY".to_owned()][..])
        );
        assert_eq!((spec.argument_count, &spec.secret_argument_indices[..]), (6, &[4, 5][..]));
        daemon.api.delete(&container.id, false).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// If a variable or argument has both a public and a secret value, or neither, the error names the field and contains
/// no value.
#[test]
fn ambiguous_public_and_secret_inputs_are_refused() {
    let daemon = Daemon::start();
    let of = |request: RunRequest| -> Vec<String> {
        let found = violations(&daemon, request);
        assert!(found.iter().all(|(_, description)| !description.contains("canary")), "{found:?}");
        found.into_iter().map(|(field, _)| field).collect()
    };
    let secret_env = |index: usize, what: &str| format!("action.run.secret_environment[{index}].{what}");
    let secret_arg = |index: usize, what: &str| format!("action.run.secret_arguments[{index}].{what}");
    let args = |args: &[&str]| program("/bin/true", args);
    assert_eq!(of(sh("x").env("A", "1").secret_env("A", "canary")), [secret_env(0, "name")]);
    assert_eq!(of(sh("x").secret_env("A", "1").secret_env("A", "canary")), [secret_env(1, "name")]);
    let names = sh("x").secret_env("", "canary").secret_env("A=", "canary").secret_env("B", "canary\0");
    assert_eq!(of(names), [secret_env(0, "name"), secret_env(1, "name"), secret_env(2, "value")]);
    assert_eq!(of(args(&["x"]).secret_arg(0, "canary")), [secret_arg(0, "index")]);
    assert_eq!(of(args(&[""]).secret_arg(1, "canary")), [secret_arg(0, "index"), "action.run.args[0]".into()]);
    assert_eq!(of(args(&["", ""]).secret_arg(0, "canary")), ["action.run.args[1]"]);
    assert_eq!(of(args(&[""]).secret_arg(0, "canary").secret_arg(0, "canary")), [secret_arg(1, "index")]);
    assert_eq!(of(args(&[""]).secret_arg(0, "canary\0")), [secret_arg(0, "value")]);
    let clash = sh("x").file("a", b"canary").runtime_token("a");
    assert_eq!(of(clash), ["runtime_token_path"]);
    let taken = sh("x").file("/run/executor/a", b"canary").runtime_token("b");
    assert_eq!(of(taken), ["action.run.volume_mounted_files[0].path"]);
    assert_eq!(daemon.api.ids(), [""; 0], "no container was created");
}

/// No response, event, log, record or file of the executor contains a secret value or the token: not while the
/// container runs, not after its exit, and not after a refusal. As a control, the same search finds names and public
/// values.
#[test]
fn secret_values_reach_no_response_or_file() {
    let canary = |size| Canary::random(size).unwrap();
    let (variable, argument, file) = (canary(64), canary(4096), canary(64));
    let mut needles = Needles::new().unwrap();
    for (label, canary) in [("variable", &variable), ("argument", &argument), ("file", &file)] {
        needles.add(label, canary.as_bytes());
    }
    let daemon = Setup::default().config("log_level = \"trace\"\n").start();
    let request = program("/bin/sh", &["-c", "echo plain-up; exec sleep 100000", ""]).id("rule-5").runtime_token(TOKEN);
    let request = request.secret_env("PLAIN_NAME", variable.as_str()).secret_arg(2, argument.as_str());
    let request = request.file("f", file.as_bytes());
    let init = pid(&daemon.api.started(request.clone()));
    daemon.api.follow("rule-5").until(|entry| entry.data == b"plain-up\n");
    needles.add("token", token(init).rsplit('.').next().unwrap().as_bytes());
    let environ = std::fs::read(format!("/proc/{init}/environ")).unwrap();
    assert!(environ.windows(64).any(|window| window == variable.as_bytes()), "control: the variable is found");
    let nowhere = |when: &str| {
        let mut search = Search::new(&needles);
        search.files(daemon.setup().home());
        let report = search.report();
        assert!(!report.found() && report.files > 3, "{when}:\n{report}");
        let list = daemon.api.list(ListRequest::default()).unwrap();
        let mut events = daemon.api.events_after(0);
        let events = events.until(|event| event.event.as_ref().is_some_and(|event| event.container_id == "rule-5"));
        let answers = format!("{list:?} {events:?}");
        let answers = answers + &cli::run(&daemon.socket(), &["inspect", "rule-5"]).stdout;
        for canary in [&variable, &argument, &file] {
            assert!(!answers.contains(canary.as_str()), "{when}: {answers}");
        }
        assert!(
            answers.contains("PLAIN_NAME") && answers.contains(TOKEN),
            "control failed: ordinary names are missing: {answers}"
        );
    };
    nowhere("while it runs");
    let reported = format!("{request:?}");
    assert!(!reported.contains(variable.as_str()) && reported.contains("PLAIN_NAME"), "Debug of the request");
    let status = daemon.api.run(request.clone().user("x y")).unwrap_err();
    assert!(!format!("{status:?}").contains(argument.as_str()));
    let status = daemon.api.run(request.secret_env("OTHER", variable.as_str())).unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert!(!format!("{status:?}").contains(variable.as_str()));
    daemon.api.stop("rule-5", None).unwrap();
    daemon.api.wait("rule-5").unwrap();
    nowhere("after its end");
}

/// A request with different secrets is a different request. An empty list equals an unset list.
#[test]
fn request_with_different_secrets_is_different() {
    let mut daemon = Daemon::start();
    let base = || program("/bin/sh", &["-c", "sleep 100000", ""]).id("same");
    let secret = || base().secret_env("A", "1").secret_arg(2, "x").runtime_token("t");
    assert!(daemon.api.run(secret()).unwrap().created);
    let mut others = vec![
        base(),
        base().secret_env("A", "2").secret_arg(2, "x").runtime_token("t"),
        base().secret_env("A", "1").secret_arg(2, "y").runtime_token("t"),
        base().secret_env("A", "1").secret_arg(2, "x"),
        base().secret_env("A", "1").secret_arg(2, "x").runtime_token("u"),
        base().env("A", "1").secret_arg(2, "x").runtime_token("t"),
        secret().unmasked(),
    ];
    others.push(base().secret_env("A", "1").runtime_token("t").action(|run| run.args[2] = "x".into()));
    let compare = |daemon: &Daemon| {
        assert!(!daemon.api.run(secret()).unwrap().created, "an identical request finds the container");
        for (number, other) in others.iter().enumerate() {
            assert_eq!(daemon.api.run(other.clone()).unwrap_err().code(), Code::AlreadyExists, "{number}");
        }
    };
    compare(&daemon);
    // The key for the comparison of secrets is only in memory. The launcher keeps a copy when the daemon is killed.
    daemon.kill();
    daemon.start_again();
    compare(&daemon);
    let plain = sleeper("empty");
    assert!(daemon.api.run(plain.clone()).unwrap().created);
    let empty = plain.action(|run| {
        run.secret_environment = Vec::new();
        run.secret_arguments = Vec::new();
        run.volume_mounted_files = Vec::new();
    });
    assert!(!daemon.api.run(empty).unwrap().created);
}

/// agent-cli reads values from files and strips one newline. The values are masked in the output.
#[test]
fn agent_cli_reads_secret_inputs_from_files() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let home = daemon.setup().home();
    std::fs::write(home.join("pw"), "canary-of-the-file\n").unwrap();
    let pw = format!("@{}", home.join("pw").display());
    let (variable, argument) = (format!("PW={pw}"), format!("1={pw}"));
    let run = |options: &[&str]| {
        let line = ["run", "--secret-env", &variable, "--secret-arg", &argument];
        cli::run(&daemon.socket(), &[&line[..], options, &["--", "sh", "-c", ""]].concat())
    };
    // The secret argument replaces the empty argument and is the script itself.
    std::fs::write(home.join("pw"), "echo ${#PW} $PW\n").unwrap();
    let shown = run(&["--redact", "none"]);
    assert_eq!((shown.status, &*shown.stdout), (0, "15 echo ${#PW} $PW\n"), "{shown:?}");
    let masked = run(&[]);
    assert!(masked.stdout.starts_with("15 [REDACTED:"), "{masked:?}");
    let refused = cli::run(&daemon.socket(), &["run", "--secret-env", "PW=canary", "--", "true"]);
    assert!(refused.status == 125 && !refused.stderr.contains("canary"), "{refused:?}");
    daemon.wait_until_back_at(&before);
}

/// The files and stored inputs of a container are wiped in each case: the container was stopped, its shim was killed,
/// shim and launcher were killed, or executord was killed as well.
#[test]
fn inputs_are_wiped_after_any_kill() {
    let mut daemon = Daemon::start();
    let secret = |id: &str| {
        let request = program("/bin/sh", &["-c", "exec sleep 100000", ""]).id(id).file("f", b"12345");
        request.secret_env("A", "123").secret_arg(2, "1234").runtime_token(TOKEN)
    };
    // A file of 5 bytes, the token, and the stored inputs: two values with their lengths, and the header of a payload.
    let bytes = |id: &str| 5 + (id.len() + 65) as u64 + (12 + 4 + 3 + 4 + 4);
    for id in ["ended", "shim", "launcher-and-shim", "all"] {
        daemon.api.started(secret(id));
        let shim = daemon.record(id).shim.pid;
        match id {
            "ended" => drop(daemon.api.stop(id, None).unwrap()),
            "shim" => kill(shim, 9),
            _ => {
                let launcher = daemon.launcher().unwrap();
                if id == "all" {
                    daemon.kill();
                }
                kill(launcher, 9);
                kill(shim, 9);
                wait::until("the launcher and the shim have exited", || {
                    (integration::daemon::has_ended(launcher) && integration::daemon::has_ended(shim)).then_some(())
                });
                if id != "all" {
                    daemon.kill();
                }
                daemon.start_again();
            }
        }
        let container = daemon.api.wait(id).unwrap();
        let wipe = ending(&container).wipe.as_ref().unwrap_or_else(|| panic!("{id}: no receipt: {container:?}"));
        assert_eq!((wipe.files, wipe.bytes, wipe.verified), (3, bytes(id), true), "{id}");
    }
}
