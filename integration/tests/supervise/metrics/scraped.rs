//! Scraped data: every metric is documented, well-formed, and has the correct values.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

use executor_proto::v1::LogLimits;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, program, sh, sleeper, update};
use integration::wait;

use super::{OPEN, daemon, python, scrape, socket, value};

const TABLE: &str = include_str!("../../../../docs/metrics.md");
const CANARY: &str = "c4nary-0f-a-secret-that-no-metric-may-have";

/// Description of a metric: its type, labels and help.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Described {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

/// Reads the rows of the table in the documentation.
fn documented() -> BTreeMap<String, Described> {
    let (_, table) = TABLE.split_once("\n## All metrics\n").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let rows = rows.map(|row| {
        let mut columns = row.split(" | ");
        let name = columns.next().unwrap().trim_end_matches('`').to_owned();
        let kind = columns.next().unwrap().to_owned();
        let labels = columns.next().unwrap().split(", ").map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        (name, Described { kind, labels, help: columns.next().unwrap().to_owned() })
    });
    rows.collect()
}

/// Reads the descriptions in a scrape, and the labels of its series.
fn exported(text: &str) -> BTreeMap<String, Described> {
    let mut all: BTreeMap<String, Described> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            all.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            all.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let name = of_histogram.filter(|name| all.contains_key(*name)).unwrap_or(name);
            let described = all.get_mut(name).unwrap_or_else(|| panic!("{line}: no description"));
            let labels = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
            let names = labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
            described.labels.extend(names.filter(|name| name != "le"));
        }
    }
    all
}

/// Sends a scrape to a checking program on standard input.
fn judged(mut evaluate: Command, text: &str) -> Result<(), String> {
    let mut child = evaluate.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let reported = [output.stdout, output.stderr].concat();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&reported).into_owned()) }
}

/// Checks the text format with Prometheus' own tool.
fn promtool(text: &str) -> Result<(), String> {
    let mut tool = Command::new("promtool");
    tool.args(["check", "metrics"]);
    judged(tool, text)
}

/// Checks OpenMetrics with the parser of Prometheus' Python library.
fn open_metrics(text: &str) -> Result<(), String> {
    const READ: &str = "import sys; from prometheus_client.openmetrics import parser\n\
                        for family in parser.text_string_to_metric_families(sys.stdin.read()): print(family)";
    judged(python(&["-c", READ]), text)
}

/// Runs containers with all kinds of outcomes: success, failure, a missing program, a running container with updated
/// files, and a container with a limited log. All of them have secrets.
fn run_all_outcomes(daemon: &Daemon) {
    let api = &daemon.api;
    let secret = |request: executor_proto::v1::RunRequest| {
        request.file("db/password", CANARY.as_bytes()).secret_env("PASSWORD", CANARY).unmasked()
    };
    api.run_to_end(secret(sh("echo \"$PASSWORD\"; exit 0").id("good")));
    api.run_to_end(secret(sh("echo \"$PASSWORD\" >&2; exit 3").id("bad")));
    api.run_to_end(secret(program("/missing", &[]).id("missing")));
    api.started(secret(sleeper("runs")).label("team", "blue-team"));
    api.update(update("runs", &[("db/password", CANARY.as_bytes())])).unwrap();
    let mut limited = sh("for i in 1 2 3 4 5; do echo 123456789; done").id("limited");
    limited.log_limits = Some(LogLimits { lines_per_second: Some(2), ..LogLimits::default() });
    api.run_to_end(limited);
}

#[test]
fn every_metric_is_documented_and_correct() {
    let daemon = daemon("containers = \"on\"\nlabels = [\"team\"]");
    run_all_outcomes(&daemon);
    let text = wait::until("starts and the rotation are counted, and exited containers hold nothing", || {
        let text = scrape(&daemon, "text/plain");
        let is = |series: &str, number: f64| value(&text, series) == Some(number);
        let are_started = is("executor_container_start_seconds_count", 4.0);
        let is_rotated = is("executor_secret_rotations_total", 1.0);
        (are_started && is_rotated && is("executor_allocated_containers", 1.0)).then_some(text)
    });
    let (documented, exported) = (documented(), exported(&text));
    for (name, described) in &exported {
        let row = documented.get(name).unwrap_or_else(|| {
            let labels: Vec<String> = described.labels.iter().map(|label| format!("`{label}`")).collect();
            panic!(
                "docs/metrics.md has no\n| `{name}` | {} | {} | {} |",
                described.kind,
                labels.join(", "),
                described.help
            )
        });
        assert_eq!((&row.kind, &row.help), (&described.kind, &described.help), "{name}");
        // A configured label is added to the other labels.
        let labels: BTreeSet<_> =
            described.labels.iter().filter(|label| !label.starts_with("label_")).cloned().collect();
        assert!(labels.is_subset(&row.labels), "{name} has the labels {labels:?}, and not {:?}", row.labels);
    }
    let missing: Vec<_> = documented.keys().filter(|name| !exported.contains_key(*name)).collect();
    assert!(missing.is_empty(), "documented and not exported: {missing:?}");
    promtool(&text).unwrap();
    assert!(promtool("# TYPE a counter\na 1\n").is_err(), "control: promtool rejects malformed text");
    let open = scrape(&daemon, OPEN);
    open_metrics(&open).unwrap();
    let broken = open.replace("executor_wipes_total{", "executor_wipes{");
    assert!(open_metrics(&broken).is_err(), "control: a counter without its suffix is rejected");

    for (series, expected) in [
        ("executor_containers{state=\"running\"}", 1.0),
        ("executor_containers{state=\"completed\"}", 4.0),
        ("executor_container_ends_total{exit=\"zero\"}", 2.0),
        ("executor_container_ends_total{exit=\"nonzero\"}", 1.0),
        ("executor_container_ends_total{exit=\"none\"}", 1.0),
        ("executor_container_failures_total{kind=\"exec\"}", 1.0),
        ("executor_container_start_seconds_count", 4.0),
        ("executor_container_phase_seconds_count{phase=\"admit\"}", 5.0),
        ("executor_container_phase_seconds_count{phase=\"prepare\"}", 4.0),
        ("executor_container_phase_seconds_count{phase=\"finish\"}", 3.0),
        ("executor_wipes_total{result=\"verified\"}", 3.0),
        ("executor_wipes_total{result=\"unverified\"}", 0.0),
        ("executor_log_dropped_bytes_total{reason=\"rate_limit\"}", 30.0),
        ("executor_log_rate_limits_total", 1.0),
        ("executor_launcher_connected", 1.0),
        ("executor_containers_unreported", 0.0),
        ("executor_allocated_containers", 1.0),
        ("executor_allocated_memory_bytes", f64::from(64 << 20)),
        ("executor_calls_total{method=\"executor.v1.Executor/UpdateFiles\",code=\"ok\"}", 1.0),
        ("executor_container_processes{container=\"runs\",label_team=\"blue-team\"}", 1.0),
        ("executor_container_memory_limit_bytes{container=\"runs\",label_team=\"blue-team\"}", f64::from(64 << 20)),
    ] {
        assert_eq!(value(&text, series), Some(expected), "{series}\n{text}");
    }
    let kept = value(&text, "executor_log_bytes_total").unwrap();
    assert_eq!(kept, (2 * (CANARY.len() + 1) + 20) as f64, "the output of three exited containers");
    let above_zero = [
        "executor_container_cpu_seconds_total{container=\"runs\",label_team=\"blue-team\"}",
        "process_resident_memory_bytes",
        "executor_wiped_bytes_total",
        "executor_connections{socket=\"control\"}",
    ];
    for series in above_zero {
        assert!(value(&text, series).is_some_and(|value| value > 0.0), "{series}\n{text}");
    }

    // Neither format contains a secret. As a control, a permitted value is found.
    for accept in ["text/plain", OPEN] {
        let text = scrape(&daemon, accept);
        assert!(text.contains("blue-team") && !text.contains(&CANARY[..8]), "{text}");
        assert_eq!(text.ends_with("\n# EOF\n"), accept == OPEN, "{text}");
    }
    daemon.api.delete("runs", true).unwrap();
    let after = wait::until("the container's series are gone", || {
        let text = scrape(&daemon, "text/plain");
        (!text.contains("container=\"runs\"")).then_some(text)
    });
    assert_eq!(value(&after, "executor_log_bytes_total"), Some(kept), "the counter keeps its value");
}

/// Without the configuration key there is no socket. With the key, only operators can connect.
#[test]
fn metrics_are_off_and_private_by_default() {
    let closed = Daemon::start();
    assert!(!socket(&closed).exists());
    drop(closed);
    let daemon = daemon("");
    let (metrics, control) = (socket(&daemon).metadata().unwrap(), daemon.socket().metadata().unwrap());
    assert_eq!((metrics.mode() & 0o777, metrics.uid(), metrics.gid()), (0o660, control.uid(), control.gid()));
    daemon.api.started(sleeper("a"));
    let text = scrape(&daemon, "text/plain");
    assert!(!text.contains("container=\""), "single containers have no series: {text}");
}
