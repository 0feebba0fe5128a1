//! Flags and output of agent-cli for host options.

use integration::cli;
use integration::daemon::Setup;

const CONFIG: &str = "[[devices]]\nname = \"fuse\"\npath = \"/dev/fuse\"\n[policy]\nswap_bytes_max = \"1G\"\n";

#[test]
fn flags_arrive_and_are_shown() {
    let daemon = Setup::default().config(CONFIG).start();
    let socket = daemon.socket();
    let line = "run -d --id a -m 64m --memory-swap 96m --memory-reservation 32m --cpuset-cpus 0 --cpuset-mems 0 \
                --oom-score-adj 100 --ulimit memlock=4096:8192 --device /dev/fuse:/dev/data:r -- sleep 1000";
    let run = cli::run(&socket, &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(run.status, 0, "{}", run.stderr);
    let spec = cli::run(&socket, &["inspect", "--json", "a"]).json()["spec"].clone();
    let limits = &spec["limits"];
    assert_eq!((&limits["swap_bytes"], &limits["memory_reservation_bytes"]), (&(32 << 20).into(), &(32 << 20).into()));
    assert_eq!((&limits["cpuset_cpus"], &limits["cpuset_mems"]), (&"0".into(), &"0".into()));
    assert_eq!((&spec["oom_score_adj"], &spec["apparmor_profile"]), (&100.into(), &serde_json::Value::Null));
    assert_eq!(
        spec["devices"],
        serde_json::json!([{"name": "fuse", "host_path": "", "path": "/dev/data", "permissions": "r"}])
    );
    assert_eq!(spec["ulimits"], serde_json::json!([{"name": "memlock", "soft": 4096, "hard": 8192}]));
    let shown = cli::run(&socket, &["inspect", "a"]).stdout;
    for words in ["32 MiB in addition to memory", "memlock soft 4096, hard 8192", "+100", "/dev/data: fuse (r)"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let info = cli::run(&socket, &["info"]).stdout;
    assert!(info.contains("fuse: /dev/fuse (rw)"), "{info}");
}

#[test]
fn errors_name_the_flags() {
    let daemon = Setup::default().config(CONFIG).start();
    for (flags, words) in [
        (
            "--device /dev/mem",
            "--device /dev/mem: not a device in executord's configuration, which has fuse (/dev/fuse)",
        ),
        ("--device mem", "--device"),
        ("--device fuse:rwm", "--device"),
        ("--cpuset-cpus 8000", "--cpuset-cpus"),
        ("--oom-score-adj -1", "--oom-score-adj"),
        ("--ulimit x=1", "--ulimit"),
        ("--apparmor-profile unconfined", "--apparmor-profile"),
        ("-m 64m --memory-swap -1", "--memory-swap"),
        ("-m 64m --memory-reservation 65m", "--memory-reservation"),
    ] {
        let line = format!("run {flags} -- true");
        let run = cli::run(&daemon.socket(), &line.split_whitespace().collect::<Vec<_>>());
        assert!(run.status != 0 && run.stderr.contains(words), "{flags}: {}", run.stderr);
    }
}
