//! A real Prometheus scrapes executord, and each panel of the dashboard shows some of its data. Both run on a simulated
//! host with a network that a container joins.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use executor_proto::v1::{Network as NetworkKind, RunRequest};
use integration::daemon::{Daemon, Setup};
use integration::network::Network;
use integration::request::{RequestBuilder as _, program, sh, sleeper, update};
use integration::wait;
use integration::web::free_port;
use serde_json::Value;

use super::get;

const DASHBOARD: &str = include_str!("../../../../docs/grafana/executor.json");

/// A Prometheus with its own directory.
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
    fn start(network: &Network, target: u16) -> Self {
        let home = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = home.path().join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\nscrape_configs:\n  - job_name: executor\n    \
             static_configs:\n      - targets: ['127.0.0.1:{target}']\n"
        );
        fs::write(&config, text).unwrap();
        let arg = |name: &str, value: &Path| format!("--{name}={}", value.display());
        let child = Command::new("nsenter")
            .arg(arg("net", Path::new(&network.namespace())))
            .arg("prometheus")
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

    /// Runs a query and returns the series of the result.
    fn query(&self, network: &Network, query: &str) -> Option<Vec<Value>> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = network.enter(|| get(self.port, &format!("/api/v1/query?query={encoded}")))?;
        let answer: Value = serde_json::from_str(&answer.body).ok()?;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().cloned()
    }
}

/// Returns all queries of the dashboard, each with its panel.
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

fn run_all_outcomes(daemon: &Daemon, round: usize) {
    let id = |name: &str| format!("{name}-{round}");
    daemon.api.run_to_end(sh("echo hello").file("a/b", b"x").id(&id("good")));
    daemon.api.run_to_end(program("/missing", &[]).id(&id("missing")));
    daemon.api.update(update("runs", &[("a/b", b"y")])).unwrap();
    daemon.api.get("no-such").unwrap_err();
}

#[test]
fn every_dashboard_panel_has_prometheus_data() {
    let network = Network::new();
    network.configure("10.conflist", "net", &[]);
    let port = free_port();
    let metrics = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\ncontainers = \"on\"\n");
    let config = format!("[policy]\n{}{metrics}", network.policy());
    let daemon = Setup::default().config(&config).network(&network.namespace()).start();
    let runs = RunRequest { network_name: "net".into(), ..sleeper("runs").file("a/b", b"x") };
    daemon.api.started(RunRequest { network: NetworkKind::Cni.into(), ..runs });
    let prometheus = Prometheus::start(&network, port);
    let query = |query: &str| prometheus.query(&network, query);
    wait::until("Prometheus has scraped executord", || query("up == 1").filter(|found| !found.is_empty()));
    let samples = || {
        let found = query("count_over_time(executor_build_info[1m])")?;
        found.first()?["value"][1].as_str()?.parse::<u32>().ok()
    };
    run_all_outcomes(&daemon, 0);
    let before = samples().unwrap_or(0);
    wait::until("two more scrapes were made", || samples().filter(|count| *count >= before + 2));
    run_all_outcomes(&daemon, 1);
    let all = queries();
    assert!(all.len() > 20, "control failed: only {} queries were found", all.len());
    let counts_disks = daemon.api.info().cgroups == "v2";
    for (title, expression) in all {
        let expression = expression.replace("$__rate_interval", "1m").replace("$instance", ".*");
        let wrong = {
            let name = expression.find("executor_").or_else(|| expression.find("process_")).unwrap();
            format!("{}no_such_{}", &expression[..name], &expression[name..])
        };
        assert_eq!(query(&wrong), Some(Vec::new()), "control failed: an unknown metric has values: {wrong}");
        if expression.contains("executor_container_disk_") && !counts_disks {
            assert_eq!(
                query(&expression),
                Some(Vec::new()),
                "disk usage is counted only under cgroup version 2: {expression}"
            );
            continue;
        }
        // A quantile without data is NaN.
        let has_number = |found: &Vec<Value>| found.iter().any(|one| one["value"][1].as_str() != Some("NaN"));
        wait::until(&format!("panel {title:?} has data: {expression}"), || query(&expression).filter(has_number));
    }
    daemon.api.delete("runs", true).unwrap();
}

#[test]
fn no_two_panels_have_one_name() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let titles: Vec<&str> =
        dashboard["panels"].as_array().unwrap().iter().map(|panel| panel["title"].as_str().unwrap()).collect();
    let different: BTreeSet<&&str> = titles.iter().collect();
    assert_eq!(titles.len(), different.len(), "{titles:?}");
}
