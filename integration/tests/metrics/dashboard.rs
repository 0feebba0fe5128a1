//! A real Prometheus scrapes executord, and each panel of the dashboard shows something of it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, program, sh, sleeper, update};
use integration::wait;
use integration::web::free_port;
use serde_json::Value;

use super::get;

const DASHBOARD: &str = include_str!("../../../docs/grafana/executor.json");

/// A Prometheus with a directory of its own.
struct Prometheus {
    child: Child,
    port: u16,
    _home: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(target: u16) -> Self {
        let home = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = home.path().join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\nscrape_configs:\n  - job_name: executor\n    \
             static_configs:\n      - targets: ['127.0.0.1:{target}']\n"
        );
        fs::write(&config, text).unwrap();
        let arg = |name: &str, value: &Path| format!("--{name}={}", value.display());
        let child = Command::new("prometheus")
            .arg(arg("config.file", &config))
            .arg(arg("storage.tsdb.path", &home.path().join("data")))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(home.path().join("log")).unwrap())
            .spawn()
            .expect("prometheus is installed");
        Self { child, port, _home: home }
    }

    /// Asks a query; the series of the answer.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = get(self.port, &format!("/api/v1/query?query={encoded}"))?;
        let answer: Value = serde_json::from_str(&answer.body).ok()?;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().cloned()
    }
}

/// Every query of the dashboard, with its panel.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(move |target| (title.to_owned(), target["expr"].as_str().unwrap().to_owned()))
    });
    targets.collect()
}

fn happenings(daemon: &Daemon, round: usize) {
    let id = |name: &str| format!("{name}-{round}");
    daemon.api.run_to_end(sh("echo hello").file("a/b", b"x").id(&id("good")));
    daemon.api.run_to_end(program("/missing", &[]).id(&id("missing")));
    daemon.api.update(update("runs", &[("a/b", b"y")])).unwrap();
    daemon.api.get("nobody").unwrap_err();
}

#[test]
fn each_panel_has_data_of_a_real_prometheus() {
    let port = free_port();
    let config = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\ncontainers = \"on\"\n");
    let daemon = Setup::default().config(&config).start();
    daemon.api.started(sleeper("runs").file("a/b", b"x"));
    let prometheus = Prometheus::start(port);
    wait::until("Prometheus has scraped executord", || prometheus.query("up == 1").filter(|found| !found.is_empty()));
    let samples = || {
        let found = prometheus.query("count_over_time(executor_build_info[1m])")?;
        found.first()?["value"][1].as_str()?.parse::<u32>().ok()
    };
    happenings(&daemon, 0);
    let before = samples().unwrap_or(0);
    wait::until("two scrapes later", || samples().filter(|count| *count >= before + 2));
    happenings(&daemon, 1);
    let all = queries();
    assert!(all.len() > 20, "the control: {} queries are found", all.len());
    for (title, query) in all {
        let query = query.replace("$__rate_interval", "1m").replace("$instance", ".*");
        // A quantile of nothing is NaN.
        let has_number = |found: &Vec<Value>| found.iter().any(|one| one["value"][1].as_str() != Some("NaN"));
        wait::until(&format!("panel {title:?} has data: {query}"), || prometheus.query(&query).filter(has_number));
        let name = query.find("executor_").or_else(|| query.find("process_")).unwrap();
        let wrong = format!("{}no_such_{}", &query[..name], &query[name..]);
        assert_eq!(prometheus.query(&wrong), Some(Vec::new()), "the control: {wrong}");
    }
}
