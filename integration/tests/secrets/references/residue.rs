//! Residue of values that came by reference: after a rotation, no old value is left; after the exit, no value is left.

use executor_proto::v1::{EnvironmentVariable, SecretArgument};
use std::collections::BTreeMap;

use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Report, Search};
use integration::daemon::{Daemon, Setup};
use integration::footprint;
use integration::request::{RequestBuilder as _, program, sleeper};
use integration::residue::wait_until_settled;
use integration::wait;

use crate::references::openbao::Bao;
use crate::references::{Shelf, from, reference};

/// Searches executord, the launcher and every file of the daemon.
pub(crate) fn search_daemon(daemon: &Daemon, needles: &Needles) -> Report {
    search_processes(daemon, needles, daemon.launcher().into_iter().collect())
}

/// Waits until a search with `needles` finds nothing in executord, the launcher and their files.
pub(crate) fn until_daemon_has_none(daemon: &Daemon, what: &str, needles: &Needles) {
    wait::until_ok(&format!("executord, the launcher and their files have no part of {what}"), || {
        let report = search_daemon(daemon, needles);
        if report.hits.is_empty() { Ok(()) } else { Err(report) }
    });
}

/// Searches executord, the launcher, the shims and every file of the daemon.
fn search(daemon: &Daemon, needles: &Needles) -> Report {
    let ours = footprint::processes(&daemon.setup().run_dir(), daemon.launcher());
    search_processes(daemon, needles, ours.into_iter().collect())
}

fn search_processes(daemon: &Daemon, needles: &Needles, ours: Vec<i32>) -> Report {
    let mut search = Search::new(needles);
    let pids = ours.into_iter().map(|pid| pid as u32).chain([daemon.pid() as u32]);
    pids.filter_map(Process::from_pid).for_each(|process| search.process(&process));
    search.files(daemon.setup().home());
    search.report()
}

pub(crate) fn needles(label: &str, canaries: &[&Canary]) -> Needles {
    let mut needles = Needles::new().unwrap();
    canaries
        .iter()
        .for_each(|canary| needles.add(&format!("{label} of {}", canary.as_bytes().len()), canary.as_bytes()));
    needles
}

/// Waits for a search of executord that finds no value. A single search may find a value if a fetch is running.
fn executord_keeps_none(daemon: &Daemon, needles: &Needles) {
    wait::until_ok("executord keeps no value", || {
        let report = search_processes(daemon, needles, Vec::new());
        if report.hits.is_empty() { Ok(()) } else { Err(report) }
    });
}

fn from_program() -> executor_proto::v1::File {
    from("printed", "program", "any", "")
}

/// Old values are gone from executord, and all values are gone after the exit. As controls, the search finds a current
/// value in the shim, and an old value too, because the shim keeps old values for masking until the exit.
#[test]
fn nothing_is_left_of_a_value() {
    let (shelf, server) = (Shelf::new(), Bao::start("http", ""));
    let sizes = [64, 4096, 65_536, 400_000];
    let make = || sizes.map(|size| Canary::random(size).unwrap());
    let (old, new, other) = (make(), make(), make());
    let put = |canaries: &[Canary; 4]| {
        for canary in canaries {
            shelf.put(&format!("f{}", canary.as_bytes().len()), canary.as_bytes());
        }
    };
    put(&old);
    let entries: BTreeMap<String, &str> =
        other.iter().map(|one| (format!("k{}", one.as_bytes().len()), one.as_str())).collect();
    let document = server.shelf.put("document", serde_json::to_vec(&entries).unwrap());
    server.run(&["kv", "put", "-mount=kv", "app/db", &format!("@{}", document.display())]);
    let printed = Canary::random(9000).unwrap();
    let config = format!(
        "[[secret_providers]]\nname = \"program\"\ntype = \"command\"\ncommand = [\"/bin/cat\", \"{}\"]\n\
         allow = [{{ uid = 0, paths = [\"any\"] }}]\n",
        shelf.put("printed", printed.as_bytes()).display()
    );
    let config = [shelf.provider(), server.root_token(), config].concat();
    let daemon = Setup::default().config(&config).start();
    let mut request = sleeper("r");
    request.limits.as_mut().unwrap().memory_bytes = 128 << 20;
    for size in [64, 4096, 65_536, 400_000] {
        request.volume_mounted_files.push(from(&format!("f{size}"), "shelf", &format!("f{size}"), ""));
    }
    // The shell sleeps. It has an argument that it does not use.
    let mut fetched = program("/bin/sh", &["-c", "sleep 100000; :", "sh"]).id("v");
    for size in [64, 4096, 65_536, 400_000] {
        fetched.volume_mounted_files.push(from(&format!("k{size}"), "vault", "kv/app/db", &format!("k{size}")));
    }
    let fetched = fetched.action(|run| {
        let variable =
            |name: &str, from| EnvironmentVariable { name: name.into(), from: Some(from), ..Default::default() };
        run.secret_environment.push(variable("A", reference("vault", "kv/app/db", "k65536")));
        run.secret_environment.push(variable("B", reference("program", "any", "")));
        run.args.push(String::new());
        let from = Some(reference("program", "any", ""));
        run.secret_arguments.push(SecretArgument { index: 3, from, ..Default::default() });
        run.volume_mounted_files.push(from_program());
    });
    let container = daemon.api.started(request);
    daemon.api.started(fetched);
    let (old, new) = (needles("old", &old.each_ref()), (needles("new", &new.each_ref()), new));
    let (new, values) = new;
    let printed = needles("printed", &[&printed]);
    let other = needles("other", &other.each_ref());
    assert!(!search(&daemon, &printed).hits.is_empty(), "control: a value in force is found");
    executord_keeps_none(&daemon, &printed);
    assert!(!search(&daemon, &old).hits.is_empty(), "control: a value in force is found");
    assert!(!search(&daemon, &other).hits.is_empty(), "control: a value in force is found");
    put(&values);
    wait::until("all values are replaced", || {
        let reported = daemon.api.get("r").unwrap();
        let path = format!("/proc/{}/root/etc/cf-service-bindings/", integration::api::pid(&container));
        let is_new = values.iter().all(|value| {
            std::fs::read(format!("{path}f{}", value.as_bytes().len())).is_ok_and(|read| read == value.as_bytes())
        });
        (is_new && reported.secret_sources.iter().all(|one| !one.stale)).then_some(())
    });
    until_daemon_has_none(&daemon, "the old values", &old);
    assert!(!search(&daemon, &new).hits.is_empty(), "control: a value in force is found");
    executord_keeps_none(&daemon, &other);
    for id in ["r", "v"] {
        daemon.api.stop(id, Some(0)).unwrap();
        wait_until_settled(&daemon, id);
    }
    for needles in [&old, &new, &other, &printed] {
        let report = search(&daemon, needles);
        assert!(report.hits.is_empty(), "{report}");
    }
}
