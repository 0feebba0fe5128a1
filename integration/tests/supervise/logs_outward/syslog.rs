//! A real rsyslogd receives the output, over a unix socket and over TLS.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use executor_proto::v1::{Redaction, RunRequest};
use integration::api::exit;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh};
use integration::tls::{Authority, Issued, write_pair};
use integration::wait;
use serde_json::Value;

use super::{SECRET, configuration, directory, metric, printing};

/// Keys of each line that rsyslogd writes.
const TEMPLATE: &str = r#"template(name="fields" type="list" option.jsonf="on") {
  property(outname="text" name="msg" format="jsonf")
  property(outname="app" name="app-name" format="jsonf")
  property(outname="id" name="procid" format="jsonf")
  property(outname="stream" name="msgid" format="jsonf")
  property(outname="data" name="structured-data" format="jsonf")
  property(outname="severity" name="syslogseverity-text" format="jsonf")
  property(outname="facility" name="syslogfacility-text" format="jsonf")
  property(outname="at" name="timereported" dateFormat="rfc3339" format="jsonf")
}"#;

/// A running rsyslogd.
struct Rsyslogd {
    child: Child,
    dir: PathBuf,
}

impl Drop for Rsyslogd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rsyslogd {
    /// Starts rsyslogd with this input configuration.
    fn start(dir: &Path, input: &str) -> Self {
        let out = dir.join("out");
        let config = format!(
            "global(workDirectory=\"{}\")\n{TEMPLATE}\n{input}\nruleset(name=\"all\") {{ action(type=\"omfile\" \
             file=\"{}\" template=\"fields\" asyncWriting=\"off\") }}\n",
            dir.display(),
            out.display()
        );
        fs::write(dir.join("rsyslog.conf"), config).unwrap();
        let _ = fs::remove_file(dir.join("pid"));
        let mut command = Command::new("rsyslogd");
        command.arg("-n").arg("-f").arg(dir.join("rsyslog.conf")).arg("-i").arg(dir.join("pid"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(dir.join("errors")).unwrap());
        Self { child: command.spawn().expect("rsyslogd is installed"), dir: dir.to_owned() }
    }

    /// Returns the lines that rsyslogd has written so far.
    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.join("out")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
    }

    /// Waits for a line of this container with this text.
    fn until(&self, id: &str, text: &str) -> Value {
        wait::until(&format!("{text:?} of {id} in rsyslog"), || {
            self.lines().into_iter().find(|line| line["id"] == id && line["text"].as_str().unwrap().trim() == text)
        })
    }

    fn entries(&self, id: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["id"] == id).collect()
    }
}

fn unix_input(dir: &Path) -> String {
    format!(
        "module(load=\"imuxsock\" SysSock.Use=\"off\")\ninput(type=\"imuxsock\" Socket=\"{}\" UseSpecialParser=\"off\" \
         UsePIDFromSystem=\"off\" IgnoreTimestamp=\"off\" ruleset=\"all\")",
        dir.join("log.sock").display()
    )
}

fn tls_input(dir: &Path, port: u16) -> String {
    format!(
        "global(defaultNetstreamDriverCAFile=\"{0}/ca.crt\" defaultNetstreamDriverCertFile=\"{0}/server/tls.crt\" \
         defaultNetstreamDriverKeyFile=\"{0}/server/tls.key\")\nmodule(load=\"imtcp\" StreamDriver.Name=\"gtls\" \
         StreamDriver.Mode=\"1\" StreamDriver.AuthMode=\"x509/certvalid\")\ninput(type=\"imtcp\" address=\"127.0.0.1\" \
         port=\"{port}\" ruleset=\"all\")",
        dir.display()
    )
}

fn saying(id: &str, text: &str) -> RunRequest {
    sh(&format!("echo {text}")).id(id)
}

/// A real receiver gets the fields, both streams, a line longer than the limit, control characters, invalid text, a
/// label with quotes, and no secret.
#[test]
fn syslog_receives_lines_over_unix_socket() {
    let setup = Setup::default();
    let dir = directory(&setup);
    let rsyslogd = Rsyslogd::start(&dir, &unix_input(&dir));
    wait::until("rsyslogd listens", || dir.join("log.sock").exists().then_some(()));
    let address = format!("unix://{}", dir.join("log.sock").display());
    let config = configuration(&setup, &address, "facility = 'local3'\napp_name = 'cell'");
    let daemon = setup.config(&config.replace("[logs.syslog]", "message_bytes_max = 2048\n[logs.syslog]")).start();

    let script = "echo out; echo err >&2; printf 'a\\033[1m\\377\\303\\244\\n'; head -c 5000 /dev/zero | tr '\\0' x; echo; echo last";
    let mut request = sh(script).id("web-1").label("app", "a\"]b").action(|run| run.log_source = "APP".into());
    request.log_tags.insert("tier".into(), "front".into());
    daemon.api.run_to_end(request);
    let last = rsyslogd.until("web-1", "last");
    let lines = rsyslogd.entries("web-1");
    let out = &lines[0];
    assert_eq!((&out["text"], &out["app"], &out["stream"]), (&"out".into(), &"cell".into(), &"stdout".into()), "{out}");
    assert_eq!((&out["severity"], &out["facility"]), (&"info".into(), &"local3".into()), "{out}");
    let data = out["data"].as_str().unwrap();
    for part in ["id=\"web-1\"", "app=\"a\\\"\\]b\"", "tag.tier=\"front\"", "source=\"APP\"", "sequence=\"1\""] {
        assert!(data.contains(part), "{part}: {data}");
    }
    let error = rsyslogd.until("web-1", "err");
    assert_eq!((&error["severity"], &error["stream"]), (&"err".into(), &"stderr".into()));
    let odd = lines.iter().find(|line| line["text"].as_str().unwrap().contains("#033")).unwrap();
    assert_eq!(odd["text"].as_str().unwrap().trim_start_matches('\u{feff}'), "a#033[1m\u{fffd}ä");
    let parts: Vec<&Value> = lines.iter().filter(|line| line["text"].as_str().unwrap().starts_with("xx")).collect();
    let length: usize = parts.iter().map(|part| part["text"].as_str().unwrap().len()).sum();
    assert_eq!(length, 5000, "{parts:?}");
    assert!(parts.len() > 2);
    for (index, part) in parts.iter().enumerate() {
        let data = part["data"].as_str().unwrap();
        assert!(data.contains(&format!("partial_ordinal=\"{}\"", index + 1)), "{data}");
        assert!(data.contains(&format!("partial_last=\"{}\"", index + 1 == parts.len())), "{data}");
    }
    assert!(last["at"].as_str().unwrap().starts_with("20"));

    // The log file exists as usual.
    assert!(daemon.api.output("web-1").text().ends_with("last\n"));

    // A secret in the output is also masked in syslog. As a control, the same search finds the secret without masking.
    daemon.api.run_to_end(printing("open", Redaction::None));
    daemon.api.run_to_end(printing("masked", Redaction::Auto));
    rsyslogd.until("open", "plain");
    rsyslogd.until("masked", "plain");
    let secrets = |id: &str| rsyslogd.entries(id).iter().filter(|line| line.to_string().contains(SECRET)).count();
    assert_eq!((secrets("open"), secrets("masked")), (3, 0), "{:?}", rsyslogd.entries("open"));
    let masked =
        rsyslogd.entries("masked").iter().filter(|line| line.to_string().contains("[REDACTED:db/password]")).count();
    assert_eq!(masked, 3);
    wait::until("all sent lines are counted", || {
        (metric(&daemon, "executor_log_sent_lines_total", "syslog") >= 16).then_some(())
    });
    assert_eq!(metric(&daemon, "executor_log_unsent_lines_total", "syslog"), 0);
}

/// Output is sent over mutual TLS. A receiver with another authority gets nothing. A receiver that is killed and
/// restarted gets the remaining output.
#[test]
fn syslog_over_tls_resumes_after_receiver_restart() {
    let setup = Setup::default();
    let dir = directory(&setup);
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let files = |name: &str, issued: &Issued| {
        let of = dir.join(name);
        fs::create_dir_all(&of).unwrap();
        write_pair(&of, issued);
    };
    files("server", &other.node("receiver"));
    files("client", &ours.caller("spiffe://cell/node"));
    fs::write(dir.join("ca.crt"), ours.pem()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = |name: &str| dir.join(name).display().to_string();
    let tls = format!(
        "ca_file = '{}'\ncertificate = '{}'\nkey = '{}'\n",
        file("ca.crt"),
        file("client/tls.crt"),
        file("client/tls.key")
    );
    let config = configuration(&setup, &format!("tls://127.0.0.1:{port}"), &tls);

    let wrong = Rsyslogd::start(&dir, &tls_input(&dir, port));
    let daemon: Daemon = setup.config(&config).start();
    daemon.api.run_to_end(saying("first", "one"));
    wait::until("executord rejects the receiver's certificate", || {
        daemon.setup().logged().contains("cannot connect to the log receiver").then_some(())
    });
    wait::until("the reason is logged", || daemon.setup().logged().contains("certificate").then_some(()));
    assert!(wrong.lines().is_empty());
    drop(wrong);

    files("server", &ours.node("receiver"));
    let mut rsyslogd = Rsyslogd::start(&dir, &tls_input(&dir, port));
    rsyslogd.until("first", "one");
    wait::until("the connection is logged", || {
        (metric(&daemon, "executor_log_target_connected", "syslog") == 1).then_some(())
    });

    rsyslogd.child.kill().unwrap();
    rsyslogd.child.wait().unwrap();
    wait::until("the disconnect is counted", || {
        (metric(&daemon, "executor_log_target_connected", "syslog") == 0).then_some(())
    });
    assert_eq!(exit(&daemon.api.run_to_end(saying("second", "two"))), Ok(0));
    rsyslogd = Rsyslogd::start(&dir, &tls_input(&dir, port));
    rsyslogd.until("second", "two");
    assert_eq!((rsyslogd.entries("first").len(), rsyslogd.entries("second").len()), (1, 1));
    assert_eq!(metric(&daemon, "executor_log_unsent_lines_total", "syslog"), 0);
}
