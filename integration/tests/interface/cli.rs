//! agent-cli with the real daemon, in interactive and scripted use.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use executor_sys::process::{pidfd, pidfd_signal};
use integration::cli::{CliOutput, command, finish, local, run};
use integration::daemon::{Daemon, Setup, has_ended};
use integration::request::{RequestBuilder, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::{footprint, host, wait};

/// Runs `agent-cli run` with these options.
fn run_sh(daemon: &Daemon, options: &[&str], script: &str) -> CliOutput {
    run(&daemon.socket(), &[&["run"], options, &["--", "sh", "-c", script]].concat())
}

#[test]
fn exit_status_is_that_of_process() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = daemon.footprint();
    let reference = rootfs.reference();
    let table: [(&[&str], i32, &str); 9] = [
        (&["true"], 0, ""),
        (&["sh", "-c", "exit 3"], 3, ""),
        (&["sh", "-c", "exit 255"], 255, ""),
        (&["sh", "-c", "echo bad >&2; exit 125"], 125, "bad\n"),
        (&["/etc/passwd"], 126, "agent-cli: exec /etc/passwd: Permission denied\n"),
        (&["/nope"], 127, "agent-cli: exec /nope: No such file or directory\n"),
        (&["nope"], 127, "agent-cli: exec nope: No such file or directory\n"),
        // The shell reports the signal of its child; in the next case, the signal kills the process itself.
        (&["sh", "-c", "sh -c 'kill -9 $$'; exit $?"], 137, "Killed\n"),
        (&["dd", "if=/dev/zero", "of=/dev/null", "bs=60M", "count=1"], 137, "memory limit"),
    ];
    for (program, status, stderr) in table {
        let ran = run(&daemon.socket(), &[&["run", "--rootfs", &reference, "--memory", "24M", "--"], program].concat());
        assert_eq!((ran.status, ran.stdout.as_str()), (status, ""), "{program:?}: {ran:?}");
        assert!(ran.stderr.contains(stderr) && ran.stderr.is_empty() == stderr.is_empty(), "{program:?}: {ran:?}");
    }
    for (options, words) in [
        (
            &["--user", "nobodyx"][..],
            "--user: user `nobodyx` not found in the rootfs' /etc/passwd: use a name in that file, or a number",
        ),
        (&["--user", "root:nogroupx"], "--user: group `nogroupx` not found in the rootfs' /etc/group: use a name"),
        (&["--user", "root:"], "--user: the group in `root:` is empty: use `user`, `uid`, `user:group` or `uid:gid`"),
        (&["--rootfs", "dir:/no/such"], "--rootfs: `dir:/no/such`: No such file or directory"),
        (&["--file", "../x=@env:HOME"], "--file (number 1): `../x` contains `..`"),
        (&["--file", "a=@/no/such/file"], "/no/such/file"),
        (&["--memory", "1K"], "--memory"),
    ] {
        let ran = run_sh(&daemon, options, "true");
        assert_eq!((ran.status, ran.stdout.as_str()), (125, ""), "{ran:?}");
        assert!(ran.stderr.contains(words), "{words:?} is not in {}", ran.stderr);
    }
    let dry = |options: &[&str]| run_sh(&daemon, &[&["--dry-run", "--id", "dry"], options].concat(), "true");
    let ran = dry(&["--memory", "1K"]);
    assert!(ran.status == 125 && ran.stderr.contains("--memory: "), "{ran:?}");
    let ran = dry(&["--file", "a=@env:HOME"]);
    assert!(ran.status == 0 && ran.stderr.contains("nothing was started"), "{ran:?}");
    assert_eq!(daemon.api.ids().len(), 0);
    let refused = run(Path::new("/run/no-such.sock"), &["info"]);
    assert!(refused.status == 125 && refused.stderr.contains("/run/no-such.sock"), "{refused:?}");
    daemon.wait_until_back_at(&before);
}

#[test]
fn signal_is_128_and_its_number() {
    let daemon = Daemon::start();
    for (signal, status) in [("KILL", 137), ("9", 137)] {
        let child = command(Some(&daemon.socket()), &["run", "--id", "sig", "--", "sleep", "100000"]).spawn().unwrap();
        wait::until("the container runs", || {
            daemon.api.get("sig").ok().filter(|container| container.started_at.is_some())
        });
        assert_eq!(run(&daemon.socket(), &["signal", "sig", signal]).status, 0);
        assert_eq!(finish(child).status, status);
    }
    assert_eq!(daemon.api.ids(), [""; 0], "deleted at the end");
}

#[test]
fn output_is_unchanged_on_each_stream() {
    let daemon = Daemon::start();
    let ran = run_sh(&daemon, &["--env", "A=b c"], "echo out; echo err >&2; printf \"$A\"");
    assert_eq!((ran.status, &*ran.stdout, &*ran.stderr), (0, "out\nb c", "err\n"));
    let binary =
        command(Some(&daemon.socket()), &["run", "--", "head", "-c", "1000000", "/dev/urandom"]).output().unwrap();
    assert_eq!((binary.status.code(), binary.stdout.len()), (Some(0), 1_000_000));
    let json = run_sh(&daemon, &["--json", "--label", "app=web"], "echo out; exit 3");
    assert_eq!((json.status, &*json.stderr), (3, "out\n"));
    let document = json.json();
    assert_eq!((&document["state"], &document["result"]["exit"]["code"]), (&"completed".into(), &3.into()));
    assert_eq!(document["spec"]["labels"]["app"], "web");
}

/// Secrets from every source reach the container, and agent-cli never shows them.
#[test]
fn secrets_arrive_and_are_never_shown() {
    const CANARY: &str = "canary-7b31c4";
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, format!("{CANARY}-file")).unwrap();
    let from_file = format!("db/file=@{}", file.display());
    let script = "cd /etc/cf-service-bindings/db; stat -c '%A %U' $PWD; stat -L -c '%a %U %n' *; cat *; echo $TOKEN; echo all; \
        exec sleep 100000";
    let arguments = ["run", "--id", "web-1", "--detach", "--user", "vcap", "--env", "TOKEN", "--file", &from_file];
    let arguments =
        [&arguments[..], &["--file", "db/env=@env:SECRET", "--redact", "none", "--", "sh", "-c", script, CANARY]]
            .concat();
    let mut detached = command(Some(&daemon.socket()), &arguments);
    let detached = detached.env("SECRET", format!("{CANARY}-env")).env("TOKEN", CANARY).spawn().unwrap();
    let detached = finish(detached);
    assert_eq!((detached.status, &*detached.stdout, &*detached.stderr), (0, "web-1\n", ""));
    daemon.api.follow("web-1").until(|entry| entry.data == b"all\n");
    let seen = daemon.api.logs_so_far("web-1");
    assert!(seen.starts_with("drwx------ vcap\n"), "the directories on the way are real, and the user's alone: {seen}");
    assert!(
        seen.contains(&format!("600 vcap file\n{CANARY}-env{CANARY}-file{CANARY}\n")),
        "control failed: the workload did not print its secrets: {seen}"
    );
    for arguments in [
        &["inspect", "web-1"][..],
        &["inspect", "web-1", "--json"],
        &["ps"],
        &["ps", "--json"],
        &["info", "--json"],
        &["stop", "web-1", "--json"],
        &["inspect", "web-1", "--json"],
    ] {
        let ran = run(&daemon.socket(), arguments);
        assert_eq!((ran.status, &*ran.stderr), (0, ""), "{arguments:?}");
        assert!(!ran.stdout.contains("canary"), "{arguments:?}: {}", ran.stdout);
    }
    let files = &run(&daemon.socket(), &["inspect", "web-1", "--json"]).json()["files"];
    let expected = [("db/env", 17), ("db/file", 18)];
    for (path, size) in expected {
        let path = format!("/etc/cf-service-bindings/{path}");
        let file = files.as_array().unwrap().iter().find(|file| file["path"] == path.as_str()).unwrap();
        assert_eq!((&file["size"], &file["mode"]), (&size.into(), &"0600".into()));
        assert_eq!(file["mount_kind"], "tmpfs_noswap");
        let keys: Vec<&str> = file.as_object().unwrap().keys().map(String::as_str).collect();
        let known = ["gid", "mode", "mount_kind", "mount_options", "mount_point", "path", "public", "size", "uid"];
        assert_eq!(keys, known, "no value and no digest");
    }
}

/// The commands ps, logs, wait, stop, signal, rm, events and info work for users and for scripts.
#[test]
fn other_commands() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    daemon.api.up(sh("trap 'exit 4' TERM; echo up; while :; do sleep 0.05; done").id("web").label("app", "web"));
    daemon.api.run_to_end(sh("echo done; exit 2").id("done"));

    assert_eq!(run(&socket, &["ps", "-q"]).stdout, "web\n");
    assert_eq!(run(&socket, &["ps", "-aq"]).stdout, "done\nweb\n");
    assert_eq!(run(&socket, &["ps", "-aq", "--label", "app=web"]).stdout, "web\n");
    assert_eq!(run(&socket, &["ps", "-q", "--state", "completed"]).stdout, "done\n");
    let table = run(&socket, &["ps", "-a"]).stdout;
    assert!(table.lines().count() == 3 && !table.contains('\u{1b}'), "a table without colour: {table}");
    assert_eq!(run(&socket, &["logs", "done"]).stdout, "done\n");
    assert_eq!(run(&socket, &["logs", "--json", "done"]).json_lines()[0]["stream"], "stdout");
    assert_eq!(run(&socket, &["wait", "done"]).status, 2);
    let info = run(&socket, &["info", "--json"]).json();
    assert_eq!((&info["launcher_connected"], &info["containers"]["running"]), (&true.into(), &1.into()));

    let follower = command(Some(&socket), &["logs", "-f", "web"]).spawn().unwrap();
    let waiter = command(Some(&socket), &["wait", "web"]).spawn().unwrap();
    assert_eq!(run(&socket, &["rm", "web"]).status, 125, "the container runs");
    let stopped = run(&socket, &["stop", "web", "--json"]);
    assert_eq!((stopped.status, &stopped.json()["result"]["exit"]["code"]), (0, &4.into()), "{stopped:?}");
    assert_eq!(finish(waiter).status, 4);
    let followed = finish(follower);
    assert_eq!((followed.status, &*followed.stdout), (0, "up\n"));

    daemon.api.started(sleeper("more"));
    assert_eq!(run(&socket, &["signal", "more", "SIGKILL"]).status, 0);
    assert_eq!(run(&socket, &["wait", "more"]).status, 137);
    assert_eq!(run(&socket, &["rm", "web", "more", "absent"]).status, 125, "`absent` does not exist");
    daemon.api.started(sleeper("forced"));
    assert_eq!(run(&socket, &["rm", "-f", "forced", "done"]).stdout, "forced\ndone\n");
    assert_eq!(daemon.api.ids(), [""; 0]);

    let mut events = command(Some(&socket), &["events", "--after", "0", "--id", "web", "--json"]).spawn().unwrap();
    let lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let kinds: Vec<String> = lines
        .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap()["kind"].as_str().unwrap().into())
        .take(8)
        .collect();
    events.kill().unwrap();
    events.wait().unwrap();
    let life = ["reserved", "initializing", "created", "running", "stopping", "wiping", "completed", "deleted"];
    assert_eq!(kinds, life);
}

/// Docker's options work as expected, with the smallest allowed limits.
#[test]
fn docker_options_work() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let started =
        run(&socket, &["run", "-d", "--rm", "--name", "brief", "--rootfs", "host", "sh", "-c", "read x", "-i"]);
    assert_eq!(started.stdout, "brief\n", "{}", started.stderr);
    wait::until("the container is removed", || run(&socket, &["ps", "-aq"]).stdout.is_empty().then_some(()));
    let least = ["run", "--rm", "--pids-limit", "2", "--ulimit", "nofile=64", "--rootfs", "host", "true"];
    assert_eq!(run(&socket, &least).status, 0);
    let less = run(&socket, &["run", "--pids", "1", "--nofile", "20", "--", "true"]);
    assert_eq!(less.status, 125);
    for line in ["--pids: is 1; 2 to", "--nofile: is 20; 64 to"] {
        assert!(less.stderr.contains(line), "{}", less.stderr);
    }
    let loud = ["run", "-d", "--name", "loud-1", "--rootfs", "host", "sh", "-c", "for i in 1 2 3; do echo $i; done"];
    assert_eq!(run(&socket, &loud).stdout, "loud-1\n");
    assert_eq!(run(&socket, &["wait", "lo"]).status, 0);
    assert_eq!(run(&socket, &["logs", "--tail", "2", "lo"]).stdout, "2\n3\n");
    let stamped = run(&socket, &["logs", "-n", "1", "-t", "lo"]).stdout;
    assert!(stamped.ends_with("Z 3\n") && stamped.len() == 33, "{stamped}");
    assert_eq!(run(&socket, &["ps", "-a", "--format", "{{.ID}} {{.Exit}}"]).stdout, "loud-1 0\n");
    assert_eq!(run(&socket, &["rm", "loud"]).stdout, "loud-1\n");
}

#[test]
fn docker_words_select_and_format() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let agent = |line: &[&'static str]| run(&socket, line);
    for (name, label, script) in
        [("web-1", "app=web", "exit 0"), ("web-2", "app=web", "exit 3"), ("db", "app=db", "exec sleep 100000")]
    {
        let line = ["run", "-d", "--name", name, "-l", label, "--rootfs", "host", "sh", "-c", script];
        assert_eq!(run(&socket, &line).status, 0);
    }
    assert_eq!(agent(&["wait", "web-1", "web-2"]).status, 3);
    assert_eq!(agent(&["ps", "--filter", "status=exited", "-f", "label=app=web", "-q"]).stdout, "web-1\nweb-2\n");
    assert_eq!(agent(&["ps", "-f", "exited=3", "-q"]).stdout, "web-2\n");
    assert_eq!(agent(&["ps", "-f", "name=b", "-q"]).stdout, "db\n", "completed ones are not listed by default");
    let template = "{{.ID}} {{.result.exit_status}} {{json .spec.labels}}";
    let shown = agent(&["inspect", "-f", template, "web-1", "web-2"]);
    assert_eq!(shown.stdout, "web-1 0 {\"app\":\"web\"}\nweb-2 3 {\"app\":\"web\"}\n", "{shown:?}");
    let missing = agent(&["inspect", "-f", "{{.ID}}", "web-1", "no-such"]);
    assert!(missing.status == 125 && missing.stdout == "web-1\n" && missing.stderr.contains("no-such"), "{missing:?}");
    let typo = agent(&["inspect", "-f", "{{.resul}}", "web-1"]);
    assert!(typo.status == 125 && typo.stderr.contains("no key resul"), "{typo:?}");
    let reading = agent(&["stats", "--no-stream", "--format", "{{.Name}} {{.PIDs}}"]);
    assert_eq!(reading.stdout, "db 1\n", "{reading:?}");
    let ended = agent(&["events", "--since", "1h", "--until", "0s", "-f", "event=die", "--json"]);
    let ids: BTreeSet<String> = ended.json_lines().iter().map(|event| event["container_id"].to_string()).collect();
    assert_eq!((ended.status, ids), (0, ["\"web-1\"".into(), "\"web-2\"".into()].into()), "{ended:?}");
    assert_eq!(agent(&["events", "--until", "1h", "--id", "web-1"]).stdout, "");
    assert_eq!(agent(&["kill", "db"]).stdout, "db\n");
    assert_eq!(agent(&["wait", "db"]).status, 137);
    let again = agent(&["kill", "db", "no-such"]);
    assert!(again.status == 125 && again.stderr.contains("no-such"), "{again:?}");
    let older = agent(&["container", "prune", "-f", "--filter", "until=1h"]);
    assert_eq!((older.status, &*older.stdout), (0, ""), "{older:?}");
    assert_eq!(agent(&["container", "prune", "--filter", "label=app=web"]).stdout, "web-1\nweb-2\n");
    assert_eq!(agent(&["ps", "-aq"]).stdout, "db\n");
}

#[test]
fn logs_end_at_requested_time() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let script = "echo first; read line; echo second";
    let mut loud =
        command(Some(&socket), &["run", "-i", "--keep", "--name", "loud", "--rootfs", "host", "sh", "-c", script]);
    let mut loud = loud.stdin(Stdio::piped()).spawn().unwrap();
    wait::until("the first line is logged", || run(&socket, &["logs", "loud"]).stdout.contains("first").then_some(()));
    let stamp = run(&socket, &["logs", "-t", "loud"]).stdout.split_whitespace().next().unwrap().to_owned();
    // The time of `--until` is in the past, so following ends before the container exits.
    let followed = run(&socket, &["logs", "-f", "--until", &stamp, "loud"]);
    assert_eq!((followed.status, &*followed.stdout), (0, "first\n"), "{followed:?}");
    loud.stdin.take().unwrap().write_all(b"go\n").unwrap();
    finish(loud);
    assert_eq!(run(&socket, &["logs", "loud"]).stdout, "first\nsecond\n", "control failed");
    assert_eq!(run(&socket, &["logs", "--until", &stamp, "--tail", "1", "loud"]).stdout, "first\n");
    assert_eq!(run(&socket, &["logs", "--since", &stamp, "--until", &stamp, "loud"]).stdout, "first\n");
}

/// A nightly job whose name is in use must not succeed without having run.
#[test]
fn name_in_use_is_refused() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let named = |more: &[&'static str], script: &'static str| {
        let line = [&["run", "--keep"], more, &["--rootfs", "host", "sh", "-c", script]].concat();
        run(&socket, &line)
    };
    let script = "cat /proc/sys/kernel/random/uuid; exit 3";
    let first = named(&["--name", "nightly"], script);
    assert_eq!(first.status, 3);
    let again = named(&["--name", "nightly"], script);
    assert_eq!((again.status, &*again.stdout), (125, ""));
    for words in ["completed", "exit status 3", "agent-cli rm nightly", "--replace"] {
        assert!(again.stderr.contains(words), "{words}: {}", again.stderr);
    }
    // As a control, an id identifies the same request.
    let by_id = named(&["--id", "hourly"], script);
    assert_eq!(named(&["--id", "hourly"], script).stdout, by_id.stdout);
    let replaced = named(&["--name", "nightly", "--replace"], script);
    assert!(replaced.status == 3 && replaced.stdout != first.stdout, "{replaced:?}");
    assert_eq!(run(&socket, &["run", "-d", "--name", "long", "--rootfs", "host", "sleep", "100000"]).status, 0);
    let running = named(&["--name", "long"], "true");
    assert!(running.status == 125 && running.stderr.contains("is running"), "{running:?}");
    assert_eq!(named(&["--name", "long", "--replace"], "true").status, 0);
    let contradiction = named(&["--name", "a", "--id", "b"], "true");
    assert_eq!(contradiction.status, 125, "{contradiction:?}");
}

/// If several commands use the same name at the same time, one of them gets the name.
#[test]
fn concurrent_runs_share_no_name() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let line = ["run", "--keep", "--name", "one", "--rootfs", "host", "sh", "-c", "echo ran"];
    let children: Vec<Child> = (0..8).map(|_| command(Some(&socket), &line).spawn().unwrap()).collect();
    let ended: Vec<CliOutput> = children.into_iter().map(finish).collect();
    let (ran, refused): (Vec<_>, Vec<_>) = ended.iter().partition(|one| one.status == 0);
    assert!(ran.len() == 1 && ran[0].stdout == "ran\n", "{ended:?}");
    for one in refused {
        assert!(
            one.status == 125 && one.stdout.is_empty() && one.stderr.contains("the container one exists"),
            "{one:?}"
        );
    }
}

/// The first Ctrl-C stops the container. The second kills it.
#[test]
fn ctrl_c_stops_and_twice_kills() {
    let daemon = Daemon::start();
    let table = [
        ("trap 'echo stopped; exit 5' TERM; echo up; while :; do sleep 0.05; done", 1, 5, "up\nstopped\n"),
        ("trap 'echo no' TERM; echo up; while :; do sleep 0.05; done", 2, 137, "up\nno\n"),
    ];
    for (script, times, status, stdout) in table {
        let mut child =
            command(Some(&daemon.socket()), &["run", "--grace", "1h", "--", "sh", "-c", script]).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut seen = String::new();
        for _ in 0..times {
            out.read_line(&mut seen).unwrap();
            interrupt(child.id());
        }
        out.read_to_string(&mut seen).unwrap();
        assert_eq!((child.wait().unwrap().code(), &*seen), (Some(status), stdout));
    }
    assert_eq!(daemon.api.ids(), [""; 0]);
}

fn interrupt(pid: u32) {
    pidfd_signal(pidfd(pid as i32).unwrap().as_fd(), 2).unwrap();
}

/// Processes and directories of a private daemon, as seen from the host.
struct Private {
    home: PathBuf,
    run_dir: PathBuf,
    processes: BTreeSet<i32>,
}

impl Private {
    /// Finds the private daemon of an agent-cli whose container has printed its first line.
    fn from_child(child: &mut Child) -> Self {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        let executord = host::descendants(child.id() as i32)[0];
        let arguments = std::fs::read_to_string(format!("/proc/{executord}/cmdline")).unwrap();
        let mut arguments = arguments.split('\0').skip_while(|argument| *argument != "--run-dir");
        let run_dir = PathBuf::from(arguments.nth(1).unwrap());
        let found = Self {
            home: run_dir.ancestors().find(|dir| dir.parent() == Some(Path::new("/run"))).unwrap().to_owned(),
            processes: footprint::processes(&run_dir, None),
            run_dir,
        };
        let cgroups = footprint::cgroups(&found.run_dir);
        assert!(found.processes.len() >= 4 && cgroups.len() >= 2 && found.home.exists(), "control failed");
        found
    }

    /// Lists the remaining processes, cgroups, mounts and directories of the daemon.
    fn left(&self) -> String {
        let processes: Vec<&i32> = self.processes.iter().filter(|pid| !has_ended(**pid)).collect();
        let cgroups = footprint::cgroups(&self.run_dir);
        let home = self.home.exists().then_some(&self.home);
        match (processes.is_empty(), cgroups.is_empty(), home) {
            (true, true, None) => String::new(),
            _ => format!("{processes:?} {cgroups:?} {home:?} {:?}", footprint::mounts(&self.home, None)),
        }
    }
}

const LONG: &str = "trap 'exit 6' TERM; echo up; while :; do sleep 0.05; done";

#[test]
fn local_run_leaves_nothing() {
    let arguments = ["run", "--user", "vcap", "--file", "a=@env:SECRET", "--", "sh", "-c", LONG];
    let mut child = command(None, &arguments).env("SECRET", "canary").spawn().unwrap();
    let private = Private::from_child(&mut child);
    interrupt(child.id());
    assert_eq!(finish(child).status, 6);
    assert_eq!(private.left(), "", "nothing is left after agent-cli returns");

    let script = "id -un; cat /etc/cf-service-bindings/a; exit 6";
    let arguments = ["run", "--user", "vcap", "--file", "a=@env:SECRET", "--", "sh", "-c", script];
    let ran = finish(command(None, &arguments).env("SECRET", "canary\n").spawn().unwrap());
    assert_eq!((ran.status, &*ran.stdout, &*ran.stderr), (6, "vcap\ncanary\n", ""));
    assert_eq!(local(&["run", "--", "/nope"]).status, 127);
    assert_eq!(local(&["info", "--json"]).json()["launcher_connected"], true);
}

/// If the agent-cli of a private daemon is killed, the daemon notices this and removes everything.
#[test]
fn killed_local_run_leaves_nothing() {
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let arguments = ["run", "--grace", "1h", "--file", "a=@env:HOME", "--", "sh", "-c", stubborn];
    let mut child = command(None, &arguments).spawn().unwrap();
    let private = Private::from_child(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    wait::until_ok("the private daemon has no leftovers", || match private.left() {
        left if left.is_empty() => Ok(()),
        left => Err(left),
    });
}

/// `agent-cli run ... | reader` delivers every byte, even if the reader is slow and only a small part of the log is
/// kept: the process waits for the reader. The output is 2 GB, enough to overflow a 31-bit counter.
#[test]
fn output_through_a_pipe_is_whole() {
    let daemon = Setup::default().config("[launcher]\nlog_bytes_max = 65536\n").start();
    let mut buffer = vec![0; 1 << 20];
    for (bytes, options) in [((2u64 << 30) + 12_345, &[][..]), (150 << 20, &["--no-logs"])] {
        let length = bytes.to_string();
        let arguments = [&["run"], options, &["--", "head", "-c", &length, "/dev/zero"]].concat();
        let mut child = command(Some(&daemon.socket()), &arguments).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut read = 0;
        while let Ok(count @ 1..) = stdout.read(&mut buffer) {
            read += count as u64;
            if read == count as u64 {
                // The reader is slower than the writer. The pause lasts as long as another container needs to write 50
                // MB.
                assert_eq!(run(&daemon.socket(), &["run", "--", "sh", "-c", "head -c 50M /dev/zero >&2"]).status, 0);
            }
        }
        let ended = finish(child);
        assert_eq!((ended.status, read, ended.stderr.as_str()), (0, bytes, ""));
    }
}

/// If a reader starts after output was dropped, agent-cli reports the amount of missing output.
#[test]
fn output_that_was_dropped_is_reported() {
    let daemon = Setup::default().config("[launcher]\nlog_bytes_max = 65536\n").start();
    let words = ["--", "head", "-c", "20M", "/dev/zero"];
    let socket = daemon.socket();
    assert_eq!(run(&socket, &[&["run", "-d", "--id", "c"][..], &words].concat()).status, 0);
    assert_eq!(run(&socket, &["wait", "c"]).status, 0);
    let reported = |ran: &CliOutput, read: u64| {
        let line = ran
            .stderr
            .lines()
            .find_map(|line| line.strip_prefix("agent-cli: ")?.split_once(" bytes of output were dropped"));
        let (number, rest) = line.unwrap_or_else(|| panic!("{}", ran.stderr));
        assert_eq!(rest, " before they could be read (log_bytes_max is 65,536)");
        assert_eq!(number.replace(',', "").parse::<u64>().unwrap() + read, 20 << 20);
    };
    let logs = run(&socket, &["logs", "-f", "c"]);
    assert_eq!(logs.status, 0);
    reported(&logs, logs.stdout.len() as u64);
    let again = run(&socket, &[&["run", "--id", "c"][..], &words].concat());
    assert_eq!(again.status, 125, "{}", again.stderr);
    reported(&again, again.stdout.len() as u64);
    let json = run(&socket, &[&["run", "--json", "--id", "c"][..], &words].concat());
    assert!(json.json()["output_dropped_bytes"].as_u64().is_some_and(|bytes| bytes > 19 << 20), "{}", json.stdout);
    let entries = run(&socket, &["logs", "--json", "c"]).json_lines();
    assert!(
        entries[0]["stream"] == "gap" && entries[0]["gap"]["dropped_bytes"].as_u64() > Some(19 << 20),
        "{:?}",
        entries[0]
    );
}

/// Errors repeat the user's input and contain no generated id.
#[test]
fn errors_name_what_was_typed() {
    let daemon = Daemon::start();
    let refused = |arguments: &[&str]| {
        let reported = run(&daemon.socket(), arguments);
        assert_eq!(reported.status, 125, "{reported:?}");
        reported.stderr
    };
    let named = refused(&["run", "--name", "a b", "-m", "1", "UPPER/case"]);
    for words in ["run --name a b: ", "\n  --name: ", "\n  IMAGE: ", "\n  --memory: "] {
        assert!(named.contains(words), "{words:?}: {named}");
    }
    let unnamed = refused(&["run", "-m", "1", "UPPER/case"]);
    assert!(unnamed.contains("run UPPER/case: ") && unnamed.contains("\n  IMAGE: "), "{unnamed}");
    let rootfs = refused(&["run", "--id", "a b", "--rootfs", "dir:a", "--", "/bin/true"]);
    assert!(rootfs.contains("\n  --id: ") && rootfs.contains("\n  --rootfs: "), "{rootfs}");
}
