//! Attacks on host resources: processes, memory of every kind, open files, terminals. `disk.rs` tests disk space.

use executor_core::spec::TERMINALS_MAX;
use executor_proto::v1::Limits;
use serde_json::json;

use crate::attacks::attackers::{Attacks, NOFILE, Unguarded, daemon, evaluate};

/// Memory in bytes that is allocated in addition to the container's own.
const MEMORY: u64 = 40 << 20;

const TABLE: &[(Unguarded, &[&str])] = &[
    (
        Unguarded::Unlimited,
        &[
            "files: open ones",
            "memory: in /dev/shm",
            "memory: in /tmp",
            "memory: in TCP connections",
            "memory: in UDP sockets",
            "memory: in local sockets",
            "memory: in pipes",
            "memory: its own",
            "memory: of no file",
            "memory: shared",
            "processes: by fork",
            "processes: by threads",
        ],
    ),
    (Unguarded::Host, &["terminals"]),
];

/// Outcomes of a failed attack. SIGKILL is the outcome if the kernel's OOM killer kills the attacking process.
const REASONS: [&str; 6] = ["EAGAIN", "EMFILE", "ENOBUFS", "ENOMEM", "ENOSPC", "SIGKILL"];

#[test]
fn container_cannot_exhaust_host_resources() {
    let daemon = daemon();
    let facts = json!({"amount": MEMORY / 2 * 3, "processes": 100, "files": NOFILE, "terminals": TERMINALS_MAX + 1});
    let limits = Limits { memory_bytes: MEMORY, pids: 50, ..Limits::default() };
    let attacks = Attacks::new(include_str!("probes/limits.py"), facts, limits);
    evaluate(&daemon, &attacks, "", TABLE, &REASONS);
}
