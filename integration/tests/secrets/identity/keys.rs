//! Location of keys: the CA's key is only in the signer process. After a container's exit, its key is nowhere.

use std::fs;

use executor_residue::process::Process;
use executor_residue::{Needles, Report, Search};
use integration::daemon::{Daemon, kill};
use integration::identity::add_key;
use integration::request::sleeper;
use integration::residue::wait_until_settled;
use integration::{footprint, wait};

use crate::identity::{Ca, file, openssl, signers, with_identity};

fn search(needles: &Needles, pids: impl IntoIterator<Item = i32>) -> Report {
    let mut search = Search::new(needles);
    pids.into_iter().filter_map(|pid| Process::from_pid(pid as u32)).for_each(|process| search.process(&process));
    search.report()
}

/// Searches executord, the launcher, every shim and container, and every file of the daemon. Processes in `but` are
/// excluded.
pub(crate) fn everywhere(daemon: &Daemon, needles: &Needles, but: &[i32]) -> Report {
    let ours = footprint::processes(&daemon.setup().run_dir(), daemon.launcher());
    let launcher = daemon.launcher().into_iter();
    let below = launcher.clone().flat_map(integration::host::descendants);
    let mut pids: Vec<i32> = ours.into_iter().chain(launcher).chain(below).chain([daemon.pid()]).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| !but.contains(pid));
    let mut search = Search::new(needles);
    pids.into_iter().filter_map(|pid| Process::from_pid(pid as u32)).for_each(|process| search.process(&process));
    search.files(daemon.setup().home());
    search.report()
}

#[test]
fn ca_key_is_only_in_signer_memory() {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    daemon.api.started(with_identity(sleeper("a"), None));
    let mut needles = Needles::new().unwrap();
    add_key(&mut needles, "the CA's key", &fs::read_to_string(ca.path("ca.key")).unwrap());
    let holders = wait::until("one process signs", || Some(signers(&daemon)).filter(|all| all.len() == 1));
    assert_eq!(executor_sys::process::oom_score_adj(holders[0].cast_unsigned()).unwrap(), 1000);
    let held = search(&needles, holders.iter().copied());
    assert!(held.to_string().contains("Montgomery"), "control: the signer has the key: {held}");
    let report = everywhere(&daemon, &needles, &holders);
    assert!(report.hits.is_empty() && report.unsearched.is_empty(), "{report}");
    let holder = holders[0];
    let status = fs::read_to_string(format!("/proc/{holder}/status")).unwrap();
    // The only capability is CAP_IPC_LOCK.
    for line in ["CapEff:\t0000000000004000", "CapPrm:\t0000000000004000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    assert_ne!(locked.trim(), "0 kB", "the memory of the signer is locked");
    let limits = fs::read_to_string(format!("/proc/{holder}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    kill(holder, 1);
    daemon.api.started(with_identity(sleeper("after-hangup"), None));
    assert_eq!(signers(&daemon), [holder], "SIGHUP does not terminate the signer");
    // If the signer exits, executord continues: the next container gets another signer.
    kill(holder, 6);
    wait::until("the process has exited", || (!signers(&daemon).contains(&holder)).then_some(()));
    daemon.api.started(with_identity(sleeper("b"), None));
    let report = everywhere(&daemon, &needles, &signers(&daemon));
    assert!(report.hits.is_empty(), "{report}");
}

/// After a container's exit, none of its keys is left, neither the first key nor the key of a renewal.
#[test]
fn nothing_is_left_of_a_containers_key() {
    let ca = Ca::new("cell CA");
    let daemon = ca.daemon();
    let container = daemon.api.started(with_identity(sleeper("k"), Some(10)));
    let key = file(&container, "instance.key");
    let first = fs::read_to_string(&key).unwrap();
    let mut needles = Needles::new().unwrap();
    add_key(&mut needles, "a container's key", &first);
    assert!(everywhere(&daemon, &needles, &[]).found(), "control: the current key is found in the container's shim");
    let report = search(&needles, signers(&daemon));
    assert!(report.hits.is_empty(), "the signer does not have the container's key: {report}");
    wait::until_ok("executord has wiped the container's key", || {
        let report = search(&needles, [daemon.pid()]);
        if report.hits.is_empty() { Ok(()) } else { Err(report) }
    });
    let second = wait::until("the key is replaced", || fs::read_to_string(&key).ok().filter(|text| *text != first));
    add_key(&mut needles, "the new key", &second);
    openssl(&["pkey", "-in", &key.display().to_string(), "-noout"]);
    daemon.api.stop("k", Some(0)).unwrap();
    wait_until_settled(&daemon, "k");
    let report = everywhere(&daemon, &needles, &[]);
    assert!(report.hits.is_empty(), "{report}");
}
