//! Masking: secrets that a container prints do not reach a log. The tests check real containers, the log file on disk
//! and the output that clients receive. As controls, the same programs run with redaction `none`.

use executor_proto::v1::{EnvironmentVariable, File, Redaction, RunRequest, SecretArgument};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder, program, sh};
use integration::rootfs::Rootfs;
use integration::wait;

const FILE: &str = "file-canary-7d1fb0a2";
const VARIABLE: &str = "variable-canary-55e0c3";
const ARGUMENT: &str = "argument-canary-c0ffee";

/// Prints all its secrets: plain, in base64, in two halves, on both streams.
const PRINT: &str = r#"
    f=$(cat /etc/cf-service-bindings/db/password)
    echo "file=$f variable=$SECRET argument=$1"
    echo "$f" >&2
    printf %s "$f$SECRET" | base64 -w 0; echo
    printf 'file-canary-'; printf '7d1fb0a2\n'
    echo plain
"#;

fn printing(id: &str, redaction: Redaction) -> RunRequest {
    let mut request = sh(PRINT).id(id).file("db/password", FILE.as_bytes()).action(|run| {
        run.args.extend(["sh".to_owned(), String::new()]);
        run.secret_environment.push(EnvironmentVariable {
            name: "SECRET".into(),
            value: VARIABLE.into(),
            ..EnvironmentVariable::default()
        });
        run.secret_arguments.push(SecretArgument { index: 3, value: ARGUMENT.into(), ..SecretArgument::default() });
    });
    request.redaction = redaction.into();
    request
}

/// Returns the log as a client receives it, and the bytes of the log files.
fn logs(daemon: &Daemon, id: &str) -> (String, String) {
    let output = daemon.api.output(id);
    let dir = daemon.setup().state_dir().join("containers").join(id);
    let on_disk = std::fs::read(dir.join("log")).unwrap();
    let reported = format!("{}{}", output.text(), String::from_utf8_lossy(&output.stderr));
    (reported, String::from_utf8_lossy(&on_disk).into_owned())
}

#[test]
fn printed_secret_reaches_no_log() {
    let daemon = Daemon::start();
    let ended = daemon.api.run_to_end(printing("masked", Redaction::Auto));
    assert_eq!(ended.spec.unwrap().redaction(), Redaction::Auto);
    let (reported, on_disk) = logs(&daemon, "masked");
    for text in [&reported, &on_disk] {
        for secret in [FILE, VARIABLE, ARGUMENT, "canary", "ZmlsZS1jYW5hcnkt"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
    let expected = "file=[REDACTED:db/password] variable=[REDACTED:SECRET] argument=[REDACTED:args[3]]\n";
    assert!(reported.starts_with(expected), "{reported}");
    assert!(reported.contains("\n[REDACTED:db/password]\nplain\n"), "split over two writes: {reported}");
    assert!(reported.ends_with("[REDACTED:db/password]\n"), "standard error: {reported}");

    daemon.api.run_to_end(printing("control", Redaction::None));
    let (reported, on_disk) = logs(&daemon, "control");
    for secret in [FILE, VARIABLE, ARGUMENT, "ZmlsZS1jYW5hcnkt"] {
        assert!(
            reported.contains(secret) && on_disk.contains(secret),
            "the control does not show {secret}: {reported}"
        );
    }
}

/// A program may pause within a value, after its first 32 bytes, for longer than other output is held back. As a
/// control, the value is not masked after a pause within its first bytes.
#[test]
fn pause_within_a_value_does_not_show_it() {
    const VALUE: &str = "paused-canary-0123456789abcdef0123456789abcdef";
    let daemon = Daemon::start();
    let printing = |id: &str, first: usize| {
        let script =
            format!("v=$(cat /etc/cf-service-bindings/v); printf %.{first}s $v; sleep 1; echo ${{v#??????????");
        let rest = "?".repeat(first - 10);
        let request = sh(&format!("{script}{rest}}}")).id(id).file("v", VALUE.as_bytes());
        daemon.api.run_to_end(request);
        logs(&daemon, id)
    };
    let (reported, on_disk) = printing("late", 32);
    assert_eq!(reported, "[REDACTED:v]\n");
    assert!(!on_disk.contains("canary"), "{on_disk}");
    let (reported, _) = printing("early", 20);
    assert_eq!(reported, format!("{VALUE}\n"), "control failed");
}

/// Redaction `auto` masks values of at least 8 bytes and warns about shorter values. `all` masks values of at least 4
/// bytes. A public file is never masked.
#[test]
fn short_values_and_public_ones() {
    let daemon = Daemon::start();
    let request = |id: &str, redaction: Redaction| {
        let mut request = sh("cd /etc/cf-service-bindings; cat pin type token").id(id);
        request = request.file("pin", b"4711x").file("token", b"long-enough-to-mask").action(|run| {
            let content = b"small-postgres-plan".to_vec();
            run.volume_mounted_files.push(File { path: "type".into(), content, public: true, ..File::default() });
        });
        request.redaction = redaction.into();
        request
    };
    let auto = daemon.api.run_to_end(request("auto", Redaction::Auto)).spec.unwrap();
    assert_eq!(logs(&daemon, "auto").0, "4711xsmall-postgres-plan[REDACTED:token]");
    assert!(auto.warnings.iter().any(|warning| warning.contains("pin")), "{:?}", auto.warnings);
    assert!(!format!("{:?}", auto.warnings).contains("4711"));
    let all = daemon.api.run_to_end(request("all", Redaction::All)).spec.unwrap();
    assert_eq!(logs(&daemon, "all").0, "[REDACTED:pin]small-postgres-plan[REDACTED:token]");
    assert_eq!(all.warnings, Vec::<String>::new());
}

/// Output that may be the start of a secret is delayed only briefly: a prompt without a newline appears while the
/// process waits.
#[test]
fn held_back_output_appears_after_short_delay() {
    let daemon = Daemon::start();
    let begun = &FILE[..12];
    daemon.api.started(sh(&format!("printf {begun}; exec sleep 1000")).id("prompt").file("f", FILE.as_bytes()));
    wait::until("the beginning is in the log", || (daemon.api.logs_so_far("prompt") == begun).then_some(()));
}

/// If a container has secrets, its other output is still byte-exact, for writes of any size.
#[test]
fn other_output_is_byte_exact() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let mut state = 1u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let noise: Vec<u8> = (0..4 << 20).map(|_| random()).collect();
    std::fs::write(rootfs.path().join("noise"), &noise).unwrap();
    let request = program("/bin/cat", &["/noise"]).id("noise").rootfs(&rootfs.reference());
    daemon.api.run_to_end(request.file("f", FILE.as_bytes()).file("g", &noise[100..108]).file("h", &[b'x'; 300_000]));
    let got = daemon.api.output("noise").stdout;
    let marker = b"[REDACTED:g]";
    let at = got.windows(marker.len()).position(|window| window == marker).expect("the eight bytes were masked");
    assert_eq!(at, 100);
    assert!(got[..at] == noise[..at] && got[at + marker.len()..] == noise[108..], "{} bytes", got.len());
}
