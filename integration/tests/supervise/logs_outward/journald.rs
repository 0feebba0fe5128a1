//! A real systemd-journald with its own journal namespace receives the output.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use executor_proto::v1::Redaction;
use integration::daemon::Setup;
use integration::request::{RequestBuilder as _, sh};
use integration::wait;
use serde_json::Value;

use super::{SECRET, directory, printing};

/// A running journald.
struct Journald {
    child: Child,
    namespace: String,
}

impl Journald {
    fn start() -> Self {
        let namespace = format!("extest{}", std::process::id());
        fs::create_dir_all(run_dir(&namespace)).unwrap();
        let journald = Self { child: spawn(&namespace), namespace };
        wait::until("journald listens", || journald.socket().exists().then_some(()));
        journald
    }

    fn socket(&self) -> PathBuf {
        run_dir(&self.namespace).join("socket")
    }

    /// Returns the entries of a container, read with journalctl.
    fn entries(&self, id: &str) -> Vec<Value> {
        let mut command = Command::new("journalctl");
        command.arg(format!("--namespace={}", self.namespace)).args(["--output=json", "--all", "--no-pager"]);
        let shown = command.arg(format!("CONTAINER_NAME={id}")).output().unwrap().stdout;
        let shown = String::from_utf8(shown).unwrap();
        shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn until(&mut self, id: &str, text: &str) -> Vec<Value> {
        wait::until(&format!("{text:?} of {id} in the journal"), || {
            // A journald of a namespace exits when it is idle. systemd would restart it.
            if self.child.try_wait().unwrap().is_some() {
                self.child = spawn(&self.namespace);
            }
            let entries = self.entries(id);
            entries.iter().any(|entry| entry["MESSAGE"] == text).then_some(entries)
        })
    }
}

impl Drop for Journald {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(run_dir(&self.namespace));
        let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        for root in ["/run/log/journal", "/var/log/journal"] {
            let _ = fs::remove_dir_all(format!("{root}/{}.{}", machine.trim(), self.namespace));
        }
    }
}

fn spawn(namespace: &str) -> Child {
    let mut command = Command::new("/usr/lib/systemd/systemd-journald");
    command.arg(namespace).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("journald is installed")
}

fn run_dir(namespace: &str) -> PathBuf {
    format!("/run/systemd/journal.{namespace}").into()
}

#[test]
fn journald_receives_lines_with_fields() {
    let mut journald = Journald::start();
    let setup = Setup::default();
    directory(&setup);
    let config = format!(
        "[logs]\ntargets = ['journald']\nlabels = ['app.name']\nmessage_bytes_max = '1M'\n[logs.journald]\nsocket = '{}'\n",
        journald.socket().display()
    );
    let daemon = setup.config(&config).start();
    // The third line is longer than the maximum datagram, so it is sent as a memory file.
    let script = "echo out; echo err >&2; head -c 600000 /dev/zero | tr '\\0' x; echo; echo last";
    daemon.api.run_to_end(
        sh(script).id("web-1").label("app.name", "first\nsecond").action(|run| run.log_source = "APP".into()),
    );
    let entries = journald.until("web-1", "last");
    let by = |text: &str| entries.iter().find(|entry| entry["MESSAGE"] == text).unwrap();
    let out = by("out");
    let fields = [
        ("CONTAINER_ID", "web-1"),
        ("CONTAINER_ID_FULL", "web-1"),
        ("SYSLOG_IDENTIFIER", "web-1"),
        ("PRIORITY", "6"),
        ("APP_NAME", "first\nsecond"),
        ("EXECUTOR_SOURCE", "APP"),
        ("EXECUTOR_STREAM", "stdout"),
        ("CONTAINER_LOG_ORDINAL", "1"),
    ];
    for (name, value) in fields {
        assert_eq!(out[name], value, "{name}: {out}");
    }
    assert_eq!((&by("err")["PRIORITY"], &by("err")["EXECUTOR_STREAM"]), (&"3".into(), &"stderr".into()));
    let long =
        entries.iter().find(|entry| entry["MESSAGE"].as_str().is_some_and(|text| text.starts_with('x'))).unwrap();
    assert_eq!((long["MESSAGE"].as_str().unwrap().len(), &long["CONTAINER_PARTIAL_MESSAGE"]), (600_000, &Value::Null));

    daemon.api.run_to_end(printing("open", Redaction::None));
    daemon.api.run_to_end(printing("masked", Redaction::Auto));
    let mut secrets = |id: &str| {
        let entries = journald.until(id, "plain");
        entries.iter().filter(|entry| entry.to_string().contains(SECRET)).count()
    };
    assert_eq!((secrets("open"), secrets("masked")), (3, 0));
    // The log file exists even if the journal is the only configured log target.
    assert!(daemon.api.output("web-1").text().ends_with("last\n"));
}
