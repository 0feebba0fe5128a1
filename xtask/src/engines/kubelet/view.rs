//! The kubelet's view of a pod.

use serde_json::Value;

/// A pod as the kubelet's API returns it.
pub(super) struct Pod(pub(super) Value);

impl Pod {
    pub(super) fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub(super) fn uid(&self) -> &str {
        self.0["metadata"]["uid"].as_str().unwrap_or_default()
    }

    pub(super) fn phase(&self) -> &str {
        self.0["status"]["phase"].as_str().unwrap_or_default()
    }

    pub(super) fn ip(&self) -> &str {
        self.0["status"]["podIP"].as_str().unwrap_or_default()
    }

    /// Returns the status of a container.
    pub(super) fn status(&self, container: &str) -> &Value {
        let lists = ["initContainerStatuses", "containerStatuses"];
        let statuses = lists.iter().filter_map(|list| self.0["status"][list].as_array()).flatten();
        statuses.into_iter().find(|status| status["name"] == container).unwrap_or(&Value::Null)
    }

    /// Returns the state of a container: `running`, `waiting` or `terminated`; empty if unknown.
    pub(super) fn state(&self, container: &str) -> &str {
        let state = self.status(container)["state"].as_object();
        state.and_then(|state| state.keys().next()).map_or("", String::as_str)
    }

    pub(super) fn restarts(&self, container: &str) -> u64 {
        self.status(container)["restartCount"].as_u64().unwrap_or_default()
    }

    pub(super) fn is_ready(&self) -> bool {
        let conditions = self.0["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
    }

    /// Returns the names, ids and numbers of restarts of all containers except init containers.
    pub(super) fn ids(&self) -> String {
        let statuses = self.0["status"]["containerStatuses"].as_array();
        let line =
            |status: &Value| format!("{} {} {}\n", status["name"], status["containerID"], status["restartCount"]);
        statuses.into_iter().flatten().map(line).collect()
    }
}
