//! Options that weaken the isolation of a container: new privileges, no seccomp filter, and other masked and read-only
//! paths (CRI rules G9 and C27 of docs/guides/cri-rules.md). Executed processes have the same isolation.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use executor_core::plan::{MASKED, READONLY};
use executor_proto::v1::{PathList, RunRequest, UserNamespace};
use integration::api::{exit, pid};
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::host::status;
use integration::request::{RequestBuilder, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{executed, script};
use tonic_types::StatusExt as _;

const OPEN: &str = "[policy]\nallow_new_privileges = true\nallow_no_seccomp = true\nallow_unmasked = true\n\
                    allow_host_userns = true\nallow_seccomp_profile = true\n";
/// Capabilities of a container's root by default.
const OF_ROOT: &str = "00000000000004fb";
/// Setting of the IPC namespace, which root of the namespace may change. Network settings need CAP_NET_ADMIN.
const MSGMAX: &str = "/proc/sys/kernel/msgmax";
const NONE: &str = "0000000000000000";
/// Set-user-id program, owned by root, in [`with_set_user_id`].
const CAT: &str = "/bin/suid-cat";

/// Creates a root file system with a set-user-id copy of the host's `cat`. Busybox would drop its privileges.
fn with_set_user_id() -> Rootfs {
    let rootfs = Rootfs::busybox();
    let place = |from: &str, to: &str| {
        let to = rootfs.path().join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    place("/bin/cat", CAT);
    let libraries = Command::new("ldd").arg("/bin/cat").output().unwrap();
    let libraries = String::from_utf8(libraries.stdout).unwrap();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        place(library, library);
    }
    fs::set_permissions(rootfs.path().join(&CAT[1..]), fs::Permissions::from_mode(0o4755)).unwrap();
    rootfs
}

fn violations(daemon: &Daemon, request: RunRequest) -> Vec<(String, String)> {
    let refused = daemon.api.run(request).unwrap_err();
    let details = refused.get_details_bad_request().unwrap_or_else(|| panic!("no BadRequest: {refused:?}"));
    details.field_violations.into_iter().map(|violation| (violation.field, violation.description)).collect()
}

fn printed(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.run_to_end(request);
    assert_eq!(exit(&container), Ok(0), "{container:#?}");
    daemon.api.output(&container.id).text()
}

/// Returns the output of a script that is executed in a running container.
fn exec(daemon: &Daemon, id: &str, text: &str) -> String {
    let done = executed(&daemon.api, script(id, text)).unwrap();
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

fn list(paths: &[&[&str]]) -> Option<PathList> {
    Some(PathList { paths: paths.concat().into_iter().map(str::to_owned).collect() })
}

/// With `allow_new_privileges`, a set-user-id program of the root file system becomes root, with the capabilities of
/// the container's root. The option does not add privileges to the container's own process.
#[test]
fn set_user_id_programs_gain_privileges() {
    let (daemon, rootfs) = (Setup::default().config(OPEN).start(), with_set_user_id());
    let reference = rootfs.reference();
    let show = format!("cat /proc/self/status; {CAT} /proc/self/status");
    let request = |id: &str, users: UserNamespace, allow_new_privileges| {
        let request = sh(&show).id(id).rootfs(&reference).user("app");
        RunRequest { user_namespace: users.into(), allow_new_privileges, ..request }
    };
    for (name, users) in [("own", UserNamespace::Own), ("host", UserNamespace::Host)] {
        let open = printed(&daemon, request(&format!("{name}-open"), users, true));
        assert!(open.contains("Uid:\t1234\t0\t0\t0"), "{open}");
        for line in ["CapEff", "CapPrm"] {
            let lines = [NONE, OF_ROOT].map(|set| format!("{line}:\t{set}"));
            assert!(lines.iter().all(|line| open.contains(line)), "{open}");
        }
        assert_eq!(open.matches(&format!("CapBnd:\t{OF_ROOT}")).count(), 2, "{open}");
        assert_eq!(open.matches(&format!("CapAmb:\t{NONE}")).count(), 2, "{open}");
        assert_eq!((open.matches("NoNewPrivs:\t0").count(), open.matches("Seccomp:\t2").count()), (2, 2), "{open}");
        let closed = printed(&daemon, request(&format!("{name}-closed"), users, false));
        assert_eq!(closed.matches("Uid:\t1234\t1234\t1234\t1234").count(), 2, "control failed: not confined: {closed}");
        assert_eq!(closed.matches("NoNewPrivs:\t1").count(), 2, "control failed: not confined: {closed}");
        assert_eq!(closed.matches(&format!("CapBnd:\t{NONE}")).count(), 2, "control failed: not confined: {closed}");
    }
    let default = Daemon::start();
    let refused = violations(&default, request("refused", UserNamespace::Own, true));
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].0 == "allow_new_privileges" && refused[0].1.contains("(allow_new_privileges)"), "{refused:?}");
}

/// Executed processes, the executor's init and its program have the same capability sets. The capability that installs
/// the filter is in none of them.
#[test]
fn executed_processes_may_gain_privileges() {
    let (daemon, rootfs) = (Setup::default().config(OPEN).start(), with_set_user_id());
    let reference = rootfs.reference();
    for (id, init) in [("plain", false), ("init", true)] {
        let request = sleeper(id).rootfs(&reference).user("app");
        let container = daemon.api.started(RunRequest { init, allow_new_privileges: true, ..request });
        assert!(container.spec.as_ref().unwrap().allow_new_privileges);
        let first = pid(&container);
        for line in ["CapEff", "CapPrm", "CapAmb", "CapInh"] {
            assert_eq!(status(first, line).as_deref(), Some(NONE), "{id}: {line}");
        }
        assert_eq!(status(first, "Seccomp").as_deref(), Some("2"), "{id}");
        let seen = exec(&daemon, id, &format!("{CAT} /proc/self/status; cat /proc/self/status /proc/*/status"));
        assert!(seen.contains("Uid:\t1234\t0\t0\t0") && seen.contains(&format!("CapEff:\t{OF_ROOT}")), "{seen}");
        assert!(seen.contains("Uid:\t1234\t1234\t1234\t1234") && !seen.contains("NoNewPrivs:\t1"), "{seen}");
        assert!(!seen.contains("Seccomp:\t0") && !seen.contains("CapEff:\t0000000000200"), "{seen}");
    }
    // A profile that denies capset leaves a capability that must be dropped.
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["capset"], "action": "SCMP_ACT_ERRNO"}]}"#;
    let request = sh("true").id("capset").rootfs(&reference).user("app");
    let request = RunRequest { seccomp_profile: profile.into(), allow_new_privileges: true, ..request };
    let failure = format!("{:?}", daemon.api.run_to_end(request));
    assert!(failure.contains("must allow capset"), "{failure}");
}

/// Without a filter, calls that the default filter denies reach the kernel.
#[test]
fn unconfined_containers_have_no_filter() {
    let (daemon, rootfs) = (Setup::default().config(OPEN).start(), Rootfs::busybox());
    let reference = rootfs.reference();
    let show = "grep -E 'Seccomp:|NoNewPrivs' /proc/self/status; busybox unshare -i true && echo unshared";
    let request = |id: &str, seccomp_unconfined| {
        let request = sh(&format!("{show}; true")).id(id).rootfs(&reference);
        RunRequest { seccomp_unconfined, ..request }
    };
    let open = printed(&daemon, request("open", true));
    // The call needs a capability that the container lacks, so its error does not differ from the filter's.
    assert!(open.contains("Seccomp:\t0") && open.contains("NoNewPrivs:\t1"), "{open}");
    let closed = printed(&daemon, request("closed", false));
    assert!(closed.contains("Seccomp:\t2") && !closed.contains("unshared"), "control failed: not confined: {closed}");
    let running = RunRequest { seccomp_unconfined: true, ..sleeper("running").rootfs(&reference) };
    assert!(daemon.api.started(running).spec.unwrap().seccomp_unconfined);
    let seen = exec(&daemon, "running", "busybox unshare -U true && echo unshared; grep Seccomp: /proc/self/status");
    assert!(seen.contains("Seccomp:\t0") && seen.contains("unshared"), "{seen}");
    let confined = daemon.api.started(sleeper("confined").rootfs(&reference));
    let seen = exec(&daemon, &confined.id, "busybox unshare -U true && echo unshared; grep Seccomp: /proc/self/status");
    assert!(seen.contains("Seccomp:\t2") && !seen.contains("unshared\n"), "control failed: not confined: {seen}");
    let both = RunRequest { seccomp_unconfined: true, allow_new_privileges: true, ..request("both", true) };
    let both = printed(&daemon, both);
    assert!(both.contains("Seccomp:\t0") && both.contains("NoNewPrivs:\t0"), "{both}");
    let refused = violations(&Daemon::start(), request("refused", true));
    assert!(refused.len() == 1 && refused[0].1.contains("(allow_no_seccomp)"), "{refused:?}");
}

/// Files and directories of the request are masked or read-only, even for root and for executed processes. Without the
/// default lists, no path is masked or read-only.
#[test]
fn requested_system_paths_are_masked() {
    let (daemon, rootfs) = (Setup::default().config(OPEN).start(), Rootfs::busybox());
    for name in ["masked", "fixed"] {
        fs::create_dir(rootfs.path().join(name)).unwrap();
        fs::write(rootfs.path().join(name).join("file"), "content").unwrap();
    }
    let reference = rootfs.reference();
    let request = |id: &str, masked_paths, readonly_paths| RunRequest {
        masked_paths,
        readonly_paths,
        ..sleeper(id).rootfs(&reference)
    };
    let more = request(
        "more",
        list(&[&MASKED, &["/masked", "/etc/group", "/absent"]]),
        list(&[&READONLY, &["/fixed", "/etc/passwd", "/absent"]]),
    );
    let closed = Daemon::start();
    let spec = closed.api.started(more).spec.unwrap();
    assert_eq!(spec.masked_paths.unwrap().paths.len(), MASKED.len() + 3);
    let script = format!(
        "ls /masked | wc -l; wc -c </etc/group; cat /fixed/file; echo; cat {MSGMAX}; \
                  for path in /fixed/file /etc/passwd {MSGMAX} /masked/x; do \
                  (echo 8193 >>$path) 2>/dev/null && echo wrote $path; done; \
                  grep -c ' /proc/[a-z]* \\| /proc/[a-z]* ' /proc/self/mountinfo"
    );
    let seen = exec(&closed, "more", &script);
    assert!(seen.starts_with("0\n0\ncontent\n8192\n") && !seen.contains("wrote"), "{seen}");
    let none = daemon.api.started(request("none", list(&[]), list(&[]))).spec.unwrap();
    assert_eq!((none.masked_paths, none.readonly_paths), (list(&[]), list(&[])));
    let seen = exec(&daemon, "none", &script);
    assert!(seen.starts_with("1\n") && seen.ends_with("\n0\n"), "no mount below /proc: {seen}");
    for path in ["/fixed/file", "/etc/passwd", MSGMAX] {
        assert!(seen.contains(&format!("wrote {path}\n")), "control failed: {path} was not written: {seen}");
    }
    let refused = violations(&closed, request("refused", list(&[]), list(&[&READONLY[1..]])));
    let fields: Vec<&str> = refused.iter().map(|(field, _)| &**field).collect();
    assert_eq!(fields, ["masked_paths.paths", "readonly_paths.paths"]);
    assert!(refused.iter().all(|(_, why)| why.contains("(allow_unmasked)")), "{refused:?}");
    assert!(refused[1].1.contains("/proc/bus") && !refused[1].1.contains("/proc/fs"), "{refused:?}");
}

/// agent-cli has docker's options for all of these, and shows them.
#[test]
fn security_options_reach_the_container() {
    let daemon = Setup::default().config(OPEN).start();
    let options = ["no-new-privileges=false", "seccomp=unconfined", "systempaths=unconfined"];
    let flags = options.iter().flat_map(|option| ["--security-opt", option]);
    let command = ["--rootfs", "host", "--", "/bin/sh", "-c", "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status"];
    let arguments = ["run", "--name", "cli"].into_iter().chain(flags.clone()).chain(command);
    let run = cli::run(&daemon.socket(), &arguments.collect::<Vec<_>>());
    assert!(
        run.stdout.contains("NoNewPrivs:\t0") && run.stdout.contains("Seccomp:\t0"),
        "{}{}",
        run.stdout,
        run.stderr
    );
    let arguments = ["run", "-d", "--name", "kept"].into_iter().chain(flags.clone()).chain(command);
    let kept = cli::run(&daemon.socket(), &arguments.collect::<Vec<_>>());
    assert_eq!(kept.status, 0, "{}", kept.stderr);
    let shown = cli::run(&daemon.socket(), &["inspect", "kept"]).stdout;
    for words in ["without a filter", "new privileges", "masked paths"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let closed = Daemon::start();
    let arguments = ["run", "--name", "cli"].into_iter().chain(flags).chain(command);
    let refused = cli::run(&closed.socket(), &arguments.collect::<Vec<_>>());
    for key in ["allow_new_privileges", "allow_no_seccomp", "allow_unmasked", "--security-opt seccomp=unconfined"] {
        assert!(refused.status != 0 && refused.stderr.contains(key), "{key}: {}", refused.stderr);
    }
}
