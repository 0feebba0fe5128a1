//! Checks the units in `systemd/`: systemd's own checks pass, the sandbox is as strict as documented, and no dependency
//! between units lets a restart affect the containers. A daemon that cannot start leaves the socket that systemd
//! passed.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const UNITS: [&str; 4] =
    ["executord.service", "executord.socket", "executor-launcher.service", "executor-drain.service"];
/// Maximum exposure in tenths that `systemd-analyze security` may report for the daemon's unit.
const EXPOSURE_MAX: &str = "13";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("systemd").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(source(name)).unwrap()
}

/// Returns the values of a unit's setting, in order.
fn settings(unit: &str, name: &str) -> Vec<String> {
    let unit = text(unit);
    let values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.flat_map(str::split_ascii_whitespace).map(str::to_owned).collect()
}

/// Copies the units and replaces their programs with existing programs, because `verify` checks that the programs
/// exist.
fn installed() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for unit in UNITS {
        let with_program = text(unit).replace("/usr/bin/executord", "/bin/true");
        let with_program = with_program.replace("/usr/bin/executor-launcher", "/bin/true");
        let with_program = with_program.replace("/usr/bin/agent-cli", "/bin/true");
        std::fs::write(directory.path().join(unit), with_program).unwrap();
    }
    directory
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    output
}

#[test]
fn systemd_finds_nothing_to_complain_about() {
    let directory = installed();
    let units = UNITS.map(|unit| directory.path().join(unit));
    // The manual pages are not installed with the sources.
    let output = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// A daemon that cannot start leaves the socket that systemd passed. Otherwise no client could connect until the socket
/// unit is restarted. As a control, the daemon removes a socket that it created.
#[test]
fn failed_start_leaves_passed_socket() {
    let home = tempfile::tempdir().unwrap();
    let used = TcpListener::bind("127.0.0.1:0").unwrap();
    let (socket, config) = (home.path().join("executor.sock"), home.path().join("executor.toml"));
    let text = format!(
        "run_dir = {0:?}\nstate_dir = {1:?}\nlisten = \"unix://{2}\"\nkeep_root = true\n[metrics]\nlisten = \"{3}\"\n",
        home.path().join("run"),
        home.path().join("state"),
        socket.display(),
        used.local_addr().unwrap()
    );
    std::fs::write(&config, text).unwrap();
    // The shell passes its standard input as the first descriptor of socket activation.
    let start = |passed: Option<UnixListener>| {
        let variables = if passed.is_some() { "export LISTEN_FDS=1 LISTEN_PID=$$;" } else { "" };
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec 3<&0; {variables} exec \"$0\" --config \"$1\"")]);
        command.arg(integration::dist::binary("executord")).arg(&config);
        command.stdin(passed.map_or_else(std::process::Stdio::null, |passed| OwnedFd::from(passed).into()));
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains("in use"), "{stderr}");
    };
    start(None);
    assert!(!socket.exists(), "control failed: the daemon left the socket that it created");
    let listener = UnixListener::bind(&socket).unwrap();
    start(Some(listener.try_clone().unwrap()));
    UnixStream::connect(&socket).unwrap();
}

#[test]
fn daemons_sandbox_is_tight() {
    let directory = installed();
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--threshold", EXPOSURE_MAX]);
    run(command.arg(directory.path().join("executord.service")));
}

/// LimitCORE of the units is 1. The limit of a unit is the maximum for its processes, and containers need 1: with this
/// value the kernel pipes no core file to a program in core_pattern (core(5)).
#[test]
fn unit_limits_core_files() {
    for unit in ["executord.service", "executor-launcher.service"] {
        assert_eq!(settings(unit, "LimitCORE"), ["1"], "{unit}");
    }
}

/// The OOM killer kills containers first, then executord, then the launcher: a kill of executord stops no container.
#[test]
fn oom_killer_takes_containers_before_daemons() {
    let score = |unit: &str| settings(unit, "OOMScoreAdjust")[0].parse::<i32>().unwrap();
    let (launcher, daemon) = (score("executor-launcher.service"), score("executord.service"));
    assert!(-1000 < launcher && launcher < daemon && daemon < 0, "{launcher}, {daemon}");
}

#[test]
fn no_restart_reaches_the_containers() {
    for relation in ["Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "Conflicts", "StopWhenUnneeded"] {
        assert_eq!(settings("executor-launcher.service", relation), [""; 0], "launcher: {relation}");
        // The drain unit must not be stopped or started by another unit, because a drain stops all containers.
        assert_eq!(settings("executor-drain.service", relation), [""; 0], "drain: {relation}");
        let daemons = settings("executord.service", relation);
        assert!(!daemons.iter().any(|unit| unit.contains("launcher")), "daemon: {relation} {daemons:?}");
    }
    assert_eq!(settings("executor-launcher.service", "KillMode"), ["process"]);
    assert_eq!(settings("executor-launcher.service", "Delegate"), ["yes"]);
}

#[test]
fn sysusers_and_tmpfiles_match_unit_settings() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    for directory in ["etc", "run", "var/lib"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    run(Command::new("systemd-sysusers").arg("--root").arg(root).arg(source("sysusers.d/executor.conf")));
    run(Command::new("systemd-tmpfiles")
        .args(["--create", "--root"])
        .arg(root)
        .arg(source("tmpfiles.d/executor.conf")));
    let ids = |file: &str| {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let line = text.lines().find(|line| line.starts_with("executor:")).unwrap().to_owned();
        line.split(':').nth(2).unwrap().parse::<u32>().unwrap()
    };
    let (user, group) = (ids("etc/passwd"), ids("etc/group"));
    let table = [
        ("run/executor", 0o755, 0),
        ("run/executor/containers", 0o750, 0),
        ("run/executor/runtime", 0o755, user),
        ("var/lib/executor", 0o755, 0),
        ("var/lib/executor/containers", 0o750, 0),
        ("var/lib/executor/ledger", 0o700, user),
        ("var/lib/executor/images", 0o700, user),
        ("var/lib/executor/transfers", 0o700, user),
    ];
    for (directory, mode, owner) in table {
        let metadata = root.join(directory).metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, mode, "{directory}");
        assert_eq!((metadata.uid(), metadata.gid()), (owner, group), "{directory}");
    }
    let writable = settings("executord.service", "ReadWritePaths");
    assert_eq!(writable, ["-/run/executor/runtime"]);
    assert_eq!(
        settings("executord.service", "StateDirectory"),
        ["executor/ledger", "executor/images", "executor/transfers"],
        "the unit has no other state directory"
    );
}
