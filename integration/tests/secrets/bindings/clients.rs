//! Five client libraries: PyPI pyservicebinding and service-bindings, npm kube-service-bindings,
//! @nebhale/service-bindings and @sap/xsenv.
//!
//! `cargo xtask test` installs them. The test copies them into the container as files of the action. Each client prints
//! the bindings that it finds. Then the bindings are rotated, and each client prints them again.

use std::fs;
use std::path::{Path, PathBuf};

use executor_proto::v1::StreamLogsResponse;
use integration::api::Incoming;
use integration::daemon::Daemon;
use serde_json::{Value, json};

use crate::bindings::{ROOT, Vcap, run_agent_cli};

/// Directory of the clients in a container.
const CLIENTS: &str = "/run/clients";

/// Packages of the JavaScript clients. With more packages the request would be too large.
const PACKAGES: [&str; 11] = [
    "@nebhale",
    "@sap",
    "assert-plus",
    "clone",
    "core-util-is",
    "debug",
    "extsprintf",
    "kube-service-bindings",
    "ms",
    "node-cache",
    "verror",
];

fn installed() -> PathBuf {
    let named = std::env::var_os("EXECUTOR_CLIENTS");
    named
        .expect("EXECUTOR_CLIENTS names no service binding clients: run `cargo xtask test`, which installs them")
        .into()
}

/// Collects all files of a client below a directory as arguments of `--public-file`.
fn files(dir: &Path, below: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let below = format!("{below}/{name}");
        match path.is_dir() {
            // Type declarations have no effect at run time.
            true if name == "@types" || name.ends_with(".dist-info") || name == "__pycache__" => {}
            true => files(&path, &below, found),
            false if ["py", "js", "json"].iter().any(|kind| path.extension().is_some_and(|is| is == *kind)) => {
                found.push(format!("{below}=@{}", path.display()));
            }
            false => {}
        }
    }
}

/// A script in a container that contains the clients and these bindings.
struct Reader<'a> {
    daemon: &'a Daemon,
    id: &'static str,
    log: Incoming<StreamLogsResponse>,
}

impl<'a> Reader<'a> {
    fn start(daemon: &'a Daemon, id: &'static str, options: &[&str]) -> Self {
        let (interpreter, script, library) = match id {
            "python" => ("python3", "read.py", "python"),
            _ => ("node", "read.js", "node_modules"),
        };
        let script_at = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
        let mut clients = vec![format!("{CLIENTS}/{script}=@{}", script_at.display())];
        let packages: &[&str] = if id == "python" { &[""] } else { &PACKAGES };
        for package in packages {
            let below = format!("{CLIENTS}/{library}/{package}");
            files(&installed().join(library).join(package), below.trim_end_matches('/'), &mut clients);
        }
        let clients: Vec<&str> = clients.iter().flat_map(|file| ["--public-file", file]).collect();
        let (script, library) = (format!("{CLIENTS}/{script}"), format!("{CLIENTS}/{library}"));
        // All clients are in one mount, so that node finds the dependencies of a linked package next to it.
        let run = ["run", "--id", id, "--detach", "--memory", "512M", "--redact", "none", "--user", "vcap"];
        let run = [&run[..], &["--file-directory", CLIENTS]].concat();
        let run = [&run[..], &["--env", "PYTHONDONTWRITEBYTECODE=1"], options, &clients].concat();
        run_agent_cli(&daemon.socket(), &[&run[..], &["--", interpreter, &script, &library]].concat());
        Self { daemon, id, log: daemon.api.follow(id) }
    }

    /// Reads the bindings that the clients print next.
    fn reads(&mut self) -> Value {
        let mut line = String::new();
        while !line.ends_with('\n') {
            let entry = self.log.message().unwrap().unwrap_or_else(|| panic!("{} exited: {line}", self.id));
            let text = String::from_utf8_lossy(&entry.data).into_owned();
            if !line.is_empty() || text.starts_with("READ ") {
                line.push_str(&text);
            }
        }
        serde_json::from_str(line.strip_prefix("READ ").unwrap()).unwrap()
    }

    /// Replaces the bindings and signals the script.
    fn rotate(&self, vcap: &Vcap) {
        let signal = if self.id == "python" { "USR1" } else { "USR2" };
        let arguments = ["rotate", self.id, "--vcap-services", &vcap.source(), "--signal", signal];
        run_agent_cli(&self.daemon.socket(), &arguments);
    }
}

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

/// Returns two bindings. The database's name sorts first, because kube-service-bindings 2.1.0 stops at the first
/// binding of another type.
fn vcap(password: &str, other: &str) -> Vcap {
    Vcap::new(&json!({
        "postgresql": [{
            "label": "postgresql", "provider": null, "plan": "small", "name": "a-db", "tags": ["sql"],
            "credentials": {"username": "scott", "password": password, "host": "db.example.com", "port": 5432,
                            "certificates": CERTIFICATE},
            "syslog_drain_url": null, "volume_mounts": [],
        }],
        "user-provided": [{"label": "user-provided", "name": other, "credentials": {"key": "secret"}}],
    }))
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the expected output of both Python clients.
fn python(password: &str, other: &str) -> Value {
    let sql = json!({
        "type": "postgresql", "provider": "postgresql", "label": "postgresql", "plan": "small", "name": "a-db",
        "tags": "[\"sql\"]", "username": "scott", "password": password, "host": "db.example.com", "port": "5432",
        "certificates": CERTIFICATE.trim(),
    });
    let binding = json!({
        "name": "a-db", "type": "postgresql", "provider": "postgresql", "password": password,
        "certificate": hex(CERTIFICATE),
    });
    json!({
        "pyservicebinding": {"all": ["a-db", other], "sql": [sql], "provided": 1, "other": 0},
        "service-bindings": {"all": ["a-db", other], "sql": [binding], "provided": 1, "other": 0},
    })
}

/// Returns the expected output of @nebhale/service-bindings.
fn nebhale(password: &str, other: &str) -> Value {
    let binding = json!({"name": "a-db", "password": password, "certificate": hex(CERTIFICATE)});
    json!({"all": ["a-db", other], "sql": [binding], "provided": 1, "other": 0})
}

#[test]
fn python_clients_read_bindings_around_rotation() {
    let daemon = Daemon::start();
    let old = vcap("old password", "cache");
    let mut reader = Reader::start(&daemon, "python", &["--vcap-services", &old.source()]);
    assert_eq!(reader.reads(), python("old password", "cache"));
    reader.rotate(&vcap("new password", "queue"));
    assert_eq!(reader.reads(), python("new password", "queue"));
}

#[test]
fn node_clients_read_bindings_around_rotation() {
    let daemon = Daemon::start();
    let old = vcap("old password", "cache");
    let mut reader = Reader::start(&daemon, "node", &["--vcap-services", &old.source()]);
    let check = |seen: &Value, password: &str, other: &str| {
        let kube = &seen["kube-service-bindings"];
        assert_eq!(kube["all"], json!(["a-db", other]), "{seen}");
        for (key, value) in [("user", "scott"), ("password", password), ("host", "db.example.com"), ("port", "5432")] {
            assert_eq!(kube["sql"][key], value, "{seen}");
        }
        assert_eq!(seen["@nebhale/service-bindings"], nebhale(password, other));
        // @sap/xsenv accepts directories as bindings, but not links to directories.
        let sap = &seen["@sap/xsenv"];
        assert_eq!(sap["all"], json!(["a-db", other]), "{seen}");
        assert_eq!(
            (&sap["sql"]["type"], &sap["sql"]["credentials"]["password"]),
            (&json!("postgresql"), &json!(password))
        );
    };
    check(&reader.reads(), "old password", "cache");
    reader.rotate(&vcap("new password", "queue"));
    check(&reader.reads(), "new password", "queue");
}

/// `--bind` delivers the `.metadata` of a binding in SAP's format. Readers and masking need it to distinguish
/// credentials from descriptions.
#[test]
fn binding_metadata_is_delivered() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let binding = dir.path().join("a-db");
    fs::create_dir(&binding).unwrap();
    let metadata = json!({
        "metaDataProperties": [{"name": "type", "format": "text"}, {"name": "plan", "format": "text"},
            {"name": "tags", "format": "json"}],
        "credentialProperties": [{"name": "user", "format": "text"}, {"name": "port", "format": "json"}],
    });
    let entries =
        [("type", "postgresql"), ("plan", "a-large-one"), ("tags", "[\"sql\"]"), ("user", "scott"), ("port", "5432")];
    for (name, content) in [(".metadata", &*metadata.to_string())].into_iter().chain(entries) {
        fs::write(binding.join(name), content).unwrap();
    }
    let mut reader = Reader::start(&daemon, "node", &["--bind", dir.path().to_str().unwrap()]);
    let expected = json!({
        "type": "postgresql", "plan": "a-large-one", "tags": ["sql"], "name": "a-db",
        "credentials": {"user": "scott", "port": 5432},
    });
    let seen = reader.reads();
    assert_eq!(seen["@sap/xsenv"]["sql"], expected, "{seen}");
    let files = daemon.api.get("node").unwrap().files;
    let public = |name: &str| files.iter().find(|file| file.path == format!("{ROOT}/a-db/{name}")).unwrap().public;
    assert!(public("plan") && public(".metadata") && !public("user"));
}

/// Clients treat every directory below SERVICE_BINDING_ROOT as a binding. If a directory contains only directories,
/// such as a generation of files, pyservicebinding lists it as a binding, and three other clients fail. @sap/xsenv is
/// not tested here.
#[test]
fn clients_fail_on_directories_other_than_bindings() {
    let daemon = Daemon::start();
    let vcap = vcap("password", "cache");
    let options = ["--vcap-services", &vcap.source(), "--file", &format!("{ROOT}/aside/db/type=@env:HOME")];
    let mut reader = Reader::start(&daemon, "python", &options);
    let seen = reader.reads();
    assert_eq!(seen["pyservicebinding"]["all"], json!(["-", "a-db", "cache"]), "{seen}");
    assert_eq!(seen["service-bindings"], "failed: ValueError", "{seen}");
    let seen = Reader::start(&daemon, "node", &options).reads();
    for client in ["kube-service-bindings", "@nebhale/service-bindings"] {
        assert!(seen[client].as_str().is_some_and(|reported| reported.starts_with("failed: ")), "{seen}");
    }
}
