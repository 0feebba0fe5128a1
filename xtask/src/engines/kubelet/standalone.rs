//! A kubelet without an API server: its configuration and its HTTP endpoints.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::view::Pod;
use crate::engines::node::Node;
use crate::engines::site::Site;

impl Node {
    /// Starts the kubelet, and waits until it serves.
    pub(super) fn start_alone(&self) -> anyhow::Result<()> {
        self.start_kubelet()?;
        let list = || Ok(self.pods().ok().map(drop));
        self.until("the kubelet lists its pods", list)
    }

    /// Calls the kubelet's API, which is configured to need no certificate.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<String> {
        self.http("GET", &format!("https://127.0.0.1:10250{path}"))
    }

    /// Returns all pods of the kubelet.
    pub(super) fn pods(&self) -> anyhow::Result<Vec<Pod>> {
        let mut list: Value = serde_json::from_str(&self.http("GET", "http://127.0.0.1:10255/pods")?)?;
        let Value::Array(items) = list["items"].take() else { return Ok(Vec::new()) };
        Ok(items.into_iter().map(Pod).collect())
    }
}

/// Writes the kubelet's configuration, and returns the kubelet's arguments.
pub(super) fn write_configuration(site: &Site) -> anyhow::Result<Vec<String>> {
    let directory = &site.directory;
    fs::create_dir_all(directory.join("pods"))?;
    let file = directory.join("kubelet.yaml");
    fs::write(&file, settings(directory, &site.cgroup))?;
    Ok(vec!["--config".into(), file.display().to_string()])
}

/// Returns the kubelet's configuration: the defaults, except for intervals and limits that would slow the cases down.
fn settings(directory: &Path, cgroup: &str) -> String {
    let directory = directory.display();
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {directory}/pods
containerRuntimeEndpoint: unix://{directory}/cri.sock
volumePluginDir: {directory}/plugins
cgroupRoot: /{cgroup}
failCgroupV1: false
failSwapOn: false
seccompDefault: true
address: 127.0.0.1
readOnlyPort: 10255
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
containerLogMaxSize: 1Mi
containerLogMonitorInterval: 3s
fileCheckFrequency: 1s
syncFrequency: 5s
evictionPressureTransitionPeriod: 1s
imageMinimumGCAge: 1s
"
    )
}
