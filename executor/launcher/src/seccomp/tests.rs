//! Interprets the programs of filters and checks their result for every system call of this machine, without making a
//! call.

use std::collections::BTreeSet;

use executor_core::plan::Isolation;
use seccompiler::sock_filter;

use super::*;

/// Calls that Docker's default profile denies to a container with its default capabilities on x86_64, according to the
/// profile's documentation and the system call table of Linux 6.16.
const DENIED: &[&str] = &[
    "_sysctl",
    "acct",
    "add_key",
    "afs_syscall",
    "bpf",
    "clone3",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "get_mempolicy",
    "getpmsg",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "lsm_get_self_attr",
    "lsm_list_modules",
    "lsm_set_self_attr",
    "mbind",
    "migrate_pages",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "putpmsg",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "security",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "sysfs",
    "syslog",
    "tuxcall",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "ustat",
    "vhangup",
    "vserver",
    "clock_settime",
    "chroot",
    "open_tree_attr",
    "file_getattr",
    "file_setattr",
    "uprobe",
];

/// Returns the result of a classic BPF program for a call. Supports only the instructions of seccomp programs.
pub(super) fn run(program: &[sock_filter], call: i64, args: [u64; 6]) -> u32 {
    const AUDIT_ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    let word = |offset: u32| match offset {
        0 => call as u32,
        4 => AUDIT_ARCH,
        8 | 12 => 0,
        _ => {
            let (arg, high) = (((offset - 16) / 8) as usize, (offset - 16) % 8 == 4);
            if high { (args[arg] >> 32) as u32 } else { args[arg] as u32 }
        }
    };
    let (mut at, mut accumulator) = (0, 0u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let mut jump = |yes: bool| at += usize::from(if yes { jt } else { jf });
        match code {
            0x20 => accumulator = word(k),
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => jump(accumulator == k),
            0x25 => jump(accumulator > k),
            0x35 => jump(accumulator >= k),
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// Returns the kernel's result: the strictest result of all programs. If results are equally strict, the result of the
/// last program applies.
fn answer(filter: &Filter, call: i64, args: [u64; 6]) -> u32 {
    let answers = filter.programs.iter().rev().map(|program| run(program, call, args));
    let strictness = |answer: &u32| (answer & 0xffff_0000).cast_signed(); // kill is negative, as in the kernel
    answers.reduce(|one, other| if strictness(&other) < strictness(&one) { other } else { one }).unwrap_or(ALLOW)
}

fn number(name: &str) -> Option<i64> {
    name.parse::<syscalls::Sysno>().ok().map(|call| i64::from(call.id()))
}

fn held(names: &[&'static str]) -> CapabilitySets {
    CapabilitySets::new(names.iter().copied().collect())
}

/// Every call that Docker's profile denies is denied. Every other call is allowed, except `io_setup`.
#[cfg(target_arch = "x86_64")]
#[test]
fn syscall_answers_match_docker_default_profile() {
    // Docker's profile allows these calls always, or with arguments that other tests check.
    let by_argument = ["clone", "personality", "socket"];
    let filter = Filter::compile(&held(&[])).unwrap();
    let (mut denied, mut wrong) = (BTreeSet::new(), Vec::new());
    for call in syscalls::Sysno::iter() {
        let allowed = answer(&filter, i64::from(call.id()), [0; 6]) == ALLOW;
        let expected = !DENIED.contains(&call.name()) && call.name() != "io_setup";
        if allowed != expected && !by_argument.contains(&call.name()) {
            wrong.push((call.name(), if allowed { "is allowed" } else { "is denied" }));
        }
        if !allowed {
            denied.insert(call.name());
        }
    }
    assert_eq!(wrong, []);
    assert!(denied.len() > 60, "{denied:?}");
    for absent in [libc::SYS_clone3, libc::SYS_io_setup] {
        assert_eq!(answer(&filter, absent, [0; 6]), ERRNO | libc::ENOSYS as u32, "{absent}");
    }
    assert_eq!(answer(&filter, libc::SYS_mount, [0; 6]), ERRNO | libc::EPERM as u32);
    assert_eq!(answer(&filter, 10_000, [0; 6]), ERRNO | libc::EPERM as u32, "calls of kernels to come");
}

#[test]
fn some_calls_depend_on_their_arguments() {
    let filter = Filter::compile(&held(&[])).unwrap();
    let allowed = |call, arg: u64| answer(&filter, call, [arg, 0, 0, 0, 0, 0]) == ALLOW;
    for family in 0..50 {
        let expected = ![libc::AF_ALG, libc::AF_VSOCK].contains(&family);
        assert_eq!(allowed(libc::SYS_socket, family as u64), expected, "family {family}");
    }
    for persona in [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
        assert!(allowed(libc::SYS_personality, persona), "{persona:#x}");
    }
    assert!(!allowed(libc::SYS_personality, 0x4_0000), "ADDR_NO_RANDOMIZE");
    assert!(allowed(libc::SYS_clone, libc::CLONE_VM as u64 | libc::SIGCHLD as u64));
    for namespace in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
        assert!(!allowed(libc::SYS_clone, u64::from(namespace.cast_unsigned()) | libc::SIGCHLD as u64));
    }
}

/// A capability allows its calls and no others.
#[test]
fn capability_allows_only_its_calls() {
    let plain = Filter::compile(&held(&[])).unwrap();
    for (capability, calls) in allowed::BY_CAPABILITY {
        let with = Filter::compile(&held(&[capability])).unwrap();
        for call in *calls {
            assert_ne!(answer(&plain, *call, [0; 6]), ALLOW, "{capability}: {call}");
            assert_eq!(answer(&with, *call, [0; 6]), ALLOW, "{capability}: {call}");
        }
        assert_ne!(answer(&with, libc::SYS_kexec_load, [0; 6]), ALLOW);
    }
    let administers = Filter::compile(&held(&["CAP_SYS_ADMIN"])).unwrap();
    assert_eq!(answer(&administers, libc::SYS_clone3, [0; 6]), ALLOW);
    assert_eq!(answer(&administers, libc::SYS_io_setup, [0; 6]), ERRNO | libc::ENOSYS as u32);
    assert_eq!(answer(&administers, libc::SYS_clone, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]), ALLOW);
}

fn profile(text: &str, held: &CapabilitySets) -> Result<(Filter, Vec<String>), String> {
    profile::compile(text, held).map_err(|error| error.to_string())
}

#[test]
fn profile_of_request_is_applied() {
    let text = r#"{
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "architectures": ["SCMP_ARCH_X86_64"],
        "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}],
        "syscalls": [
            {"names": ["read", "write", "not_a_call"], "action": "SCMP_ACT_ALLOW", "comment": "x"},
            {"name": "getpid", "action": "SCMP_ACT_ALLOW"},
            {"names": ["write"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5, "args": [
                {"index": 0, "value": 7, "op": "SCMP_CMP_EQ"}, {"index": 2, "value": 100, "op": "SCMP_CMP_GT"}]},
            {"names": ["lseek"], "action": "SCMP_ACT_ALLOW", "args": [
                {"index": 1, "value": 1, "op": "SCMP_CMP_EQ"}, {"index": 1, "value": 2, "op": "SCMP_CMP_EQ"}]},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [
                {"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["reboot"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_BOOT"]}},
            {"names": ["uname"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_BOOT"]}},
            {"names": ["getuid"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
            {"names": ["getgid"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "400.0"}},
            {"names": ["sync"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["s390x"]}},
            {"names": ["bpf"], "action": "SCMP_ACT_KILL_PROCESS"}
        ]}"#;
    let (filter, warnings) = profile(text, &held(&[])).unwrap();
    assert_eq!(warnings, ["seccomp_profile: this machine has no system call not_a_call"]);
    let of = |call, args: [u64; 6]| answer(&filter, call, args);
    let denied = ERRNO | 38;
    assert_eq!(of(libc::SYS_read, [0; 6]), ALLOW);
    assert_eq!(of(libc::SYS_getpid, [0; 6]), ALLOW);
    assert_eq!(of(libc::SYS_write, [7, 0, 100, 0, 0, 0]), ALLOW);
    assert_eq!(of(libc::SYS_write, [7, 0, 101, 0, 0, 0]), ERRNO | 5, "both conditions hold");
    assert_eq!(of(libc::SYS_lseek, [0, 2, 0, 0, 0, 0]), ALLOW, "either on one argument");
    assert_eq!(of(libc::SYS_lseek, [0, 3, 0, 0, 0, 0]), denied);
    assert_eq!(of(libc::SYS_clone, [17, 0, 0, 0, 0, 0]), ALLOW);
    assert_eq!(of(libc::SYS_clone, [0x1000_0000, 0, 0, 0, 0, 0]), denied);
    assert_eq!(of(libc::SYS_reboot, [0; 6]), denied);
    assert_eq!(of(libc::SYS_uname, [0; 6]), ALLOW);
    assert_eq!(of(libc::SYS_getuid, [0; 6]), ALLOW);
    assert_eq!(of(libc::SYS_getgid, [0; 6]), denied);
    assert_eq!(of(libc::SYS_sync, [0; 6]), denied);
    assert_eq!(of(libc::SYS_bpf, [0; 6]), 0x8000_0000);
    let (boots, _) = profile(text, &held(&["CAP_SYS_BOOT"])).unwrap();
    assert_eq!(answer(&boots, libc::SYS_reboot, [0; 6]), ALLOW);
    assert_eq!(answer(&boots, libc::SYS_uname, [0; 6]), denied);
}

#[test]
fn denylist_profile_denies_listed_calls() {
    let text = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["chmod", "fchmodat"], "action": "SCMP_ACT_ERRNO"}, {"names": ["uname"], "action": "SCMP_ACT_LOG"}]}"#;
    let (filter, _) = profile(text, &held(&[])).unwrap();
    assert_eq!(answer(&filter, libc::SYS_fchmodat, [0; 6]), ERRNO | 1);
    assert_eq!(answer(&filter, libc::SYS_read, [0; 6]), ALLOW);
    assert_eq!(answer(&filter, libc::SYS_uname, [0; 6]), 0x7ffc_0000);
}

/// Returns a profile with one rule, in which each condition counts for each name.
fn multiplied(names: usize, conditions: usize) -> String {
    let names = vec![r#""read""#; names].join(",");
    let condition = r#"{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}"#;
    let conditions = vec![condition; conditions].join(",");
    format!(
        r#"{{"defaultAction": "SCMP_ACT_ERRNO",
            "syscalls": [{{"names": [{names}], "action": "SCMP_ACT_ALLOW", "args": [{conditions}]}}]}}"#
    )
}

#[test]
fn invalid_profile_fails() {
    let rule = |rule: &str| format!(r#"{{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{rule}]}}"#);
    let arg = |arg: &str| rule(&format!(r#"{{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [{arg}]}}"#));
    let cases = [
        ("".to_owned(), "EOF"),
        ("{}".to_owned(), "defaultAction"),
        (r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#.to_owned(), "SCMP_ACT_NOTIFY"),
        (r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 5000}"#.to_owned(), "5000"),
        (r#"{"defaultAction": "SCMP_ACT_ERRNO", "sycalls": []}"#.to_owned(), "sycalls"),
        (rule(r#"{"names": ["read"], "action": "ALLOW"}"#), "ALLOW"),
        (arg(r#"{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}"#), "argument 6"),
        (arg(r#"{"index": 0, "value": 0, "op": "EQ"}"#), "EQ"),
        (rule(&vec![r#"{"names": [], "action": "SCMP_ACT_ALLOW"}"#; 1025].join(",")), "1025"),
        // This is the largest profile that fits into a request: 24 million conditions for one call.
        (multiplied(8192, 3000), "24576000 conditions; at most 8192"),
        (multiplied(8192, 1), "too many BPF instructions"), // accepted up to the limit, and compiled
    ];
    for (text, word) in cases {
        let reported = profile(&text, &held(&[])).unwrap_err();
        assert!(reported.contains(word), "{word}: {reported}");
    }
}

/// A custom profile may allow calls that the default filter denies.
#[test]
fn a_profile_may_allow_asynchronous_io() {
    let text = r#"{"defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [{"names": ["io_setup"], "action": "SCMP_ACT_ALLOW"}]}"#;
    let (filter, _) = profile(text, &held(&[])).unwrap();
    assert_eq!(answer(&filter, libc::SYS_io_setup, [0; 6]), ALLOW);
}

#[test]
fn filter_depends_on_isolation_and_capabilities() {
    let default = Arc::new(Filter::compile(&held(&[])).unwrap());
    let of = |isolation: Isolation, names: &[&'static str]| {
        Filter::from_request(&default, &isolation, &held(names)).unwrap().0
    };
    assert!(Arc::ptr_eq(&default, &of(Isolation::default(), &["CAP_CHOWN"])), "compiled once");
    assert!(of(Isolation { privileged: true, ..Isolation::default() }, &[]).programs.is_empty());
    assert!(of(Isolation { seccomp_unconfined: true, ..Isolation::default() }, &[]).programs.is_empty());
    let reboot = of(Isolation::default(), &["CAP_SYS_BOOT"]);
    assert_eq!(answer(&reboot, libc::SYS_reboot, [0; 6]), ALLOW);
    assert!(number("read").is_some() && number("no_such_call").is_none());
}
