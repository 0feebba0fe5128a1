//! Reads ginkgo's report of a run of critest or of the conformance cases, and prints it as a table by group of specs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::workspace::output;

/// Maximum length of a reason in the printed report, in characters.
const REASON_MAX: usize = 160;

/// Results of the specs of one run, with one runtime.
#[derive(Serialize)]
pub(super) struct Report {
    runtime: String,
    pub(super) specs: Vec<Spec>,
}

/// A spec of a run, with its result.
#[derive(Serialize)]
pub(super) struct Spec {
    group: String,
    name: String,
    state: State,
    /// Reason why the spec failed or was skipped.
    reason: String,
    seconds: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Passed,
    Failed,
    Skipped,
}

/// A suite of ginkgo's JSON report. Unused fields are omitted.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Vec<SpecReport>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// Run time in nanoseconds.
    run_time: f64,
    #[serde(default)]
    failure: Failure,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

impl Report {
    /// Parses ginkgo's JSON report. Specs that were not selected are omitted: their state is skipped without a reason.
    pub(super) fn parse(runtime: String, json: &[u8]) -> anyhow::Result<Self> {
        let suites: Vec<Suite> = serde_json::from_slice(json).context("cannot parse the report of ginkgo")?;
        let reports = suites.into_iter().flat_map(|suite| suite.spec_reports);
        let specs = reports.filter(|report| report.leaf_node_type == "It").filter_map(Spec::from_report).collect();
        Ok(Self { runtime, specs })
    }

    /// Parses the report of e2e.test or e2e_node.test. Groups are the special interest groups of Kubernetes, divided by
    /// NodeConformance.
    pub(super) fn parse_conformance(runtime: String, json: &[u8]) -> anyhow::Result<Self> {
        let mut report = Self::parse(runtime, json)?;
        for spec in &mut report.specs {
            let (group, subject) =
                spec.group.split_once("] ").context("the title of a case has no group in brackets")?;
            let name = format!("{subject} {}", spec.name);
            let of_node = if name.contains("[NodeConformance]") { ", NodeConformance" } else { "" };
            spec.group = format!("{}{of_node}", group.trim_start_matches('['));
            let words = name.split_whitespace().filter(|word| !["[Conformance]", "[NodeConformance]"].contains(word));
            spec.name = words.collect::<Vec<_>>().join(" ");
        }
        Ok(report)
    }

    /// Returns the group and name of each spec.
    pub(super) fn titles(&self) -> impl Iterator<Item = String> {
        self.specs.iter().map(Spec::title)
    }

    /// Returns the group and name of each spec that was not skipped, and true if the spec failed.
    pub(super) fn results(&self) -> impl Iterator<Item = (String, bool)> {
        let specs = self.specs.iter().filter(|spec| spec.state != State::Skipped);
        specs.map(|spec| (spec.title(), spec.state == State::Failed))
    }

    fn count(&self, group: Option<&str>, state: State) -> usize {
        let is_counted = |spec: &&Spec| spec.state == state && group.is_none_or(|group| spec.group == group);
        self.specs.iter().filter(is_counted).count()
    }
}

impl Spec {
    fn from_report(report: SpecReport) -> Option<Self> {
        let state = match report.state.as_str() {
            "passed" => State::Passed,
            "skipped" | "pending" if report.failure.message.is_empty() => return None,
            "skipped" | "pending" => State::Skipped,
            _ => State::Failed, // also: panicked, timed out, interrupted
        };
        let mut levels = report.container_hierarchy_texts.unwrap_or_default().into_iter();
        let group = levels.next().unwrap_or_default().replace("[k8s.io] ", "");
        let name = levels.chain([report.leaf_node_text]).collect::<Vec<_>>().join(" ");
        Some(Self { group, name, state, reason: report.failure.message, seconds: report.run_time / 1e9 })
    }

    fn title(&self) -> String {
        format!("{}: {}", self.group, self.name)
    }

    /// Returns a short form of the reason: the error of a call, or else the first line.
    fn short_reason(&self) -> String {
        let line = self.reason.lines().map(str::trim).find_map(|line| line.strip_prefix("rpc error: "));
        let reason = line.unwrap_or_else(|| self.reason.lines().next().unwrap_or_default());
        match reason.char_indices().nth(REASON_MAX) {
            Some((end, _)) => format!("{}...", &reason[..end]),
            None => reason.to_owned(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        for spec in &self.specs {
            *groups.entry(&spec.group).or_default() += 1;
        }
        writeln!(f, "{}\n", self.runtime)?;
        writeln!(f, "| specs | passed | failed | skipped |\n|---|---|---|---|")?;
        let mut line = |name: &str, group: Option<&str>, all: usize| {
            let [passed, failed, skipped] =
                [State::Passed, State::Failed, State::Skipped].map(|state| self.count(group, state));
            writeln!(f, "| {name}: {all} | {passed} | {failed} | {skipped} |")
        };
        for (group, all) in groups {
            line(group, Some(group), all)?;
        }
        line("all", None, self.specs.len())?;
        for (state, title) in [(State::Failed, "Failed"), (State::Skipped, "Skipped")] {
            let chosen: Vec<_> = self.specs.iter().filter(|spec| spec.state == state).collect();
            if !chosen.is_empty() {
                writeln!(f, "\n{title}:")?;
            }
            for spec in chosen {
                writeln!(f, "- {}: {}: {}", spec.group, spec.name, spec.short_reason())?;
            }
        }
        Ok(())
    }
}

/// Returns the number of specs that critest selects.
pub(super) fn selected(critest: &Path) -> anyhow::Result<usize> {
    let list = output(Command::new(critest).args(["-ginkgo.dry-run", "-ginkgo.no-color"]))?;
    // Example: Ran 137 of 142 Specs in 0.003 seconds
    let words = list.lines().find_map(|line| line.strip_prefix("Ran "));
    let number = words.and_then(|words| words.split(' ').next()?.parse().ok());
    number.with_context(|| format!("critest printed no number of specs: {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let json = r#"[{"SuitePath": "x", "SpecReports": [
            {"ContainerHierarchyTexts": null, "LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed", "RunTime": 5},
            {"ContainerHierarchyTexts": ["[k8s.io] Pods", "stop"], "LeafNodeType": "It", "LeafNodeText": "twice", "State": "passed",
             "RunTime": 2500000000},
            {"ContainerHierarchyTexts": ["[k8s.io] Pods"], "LeafNodeType": "It", "LeafNodeText": "b", "State": "timedout",
             "RunTime": 1, "Failure": {"Message": "Unexpected error:\n   rpc error: code = NotFound\nmore"}},
            {"ContainerHierarchyTexts": ["[k8s.io] NRI"], "LeafNodeType": "It", "LeafNodeText": "c", "State": "skipped",
             "RunTime": 0, "Failure": {"Message": "no socket"}},
            {"ContainerHierarchyTexts": ["benchmark"], "LeafNodeType": "It", "LeafNodeText": "d", "State": "skipped", "RunTime": 0}
        ]}]"#;
        Report::parse("runtime 1".into(), json.as_bytes()).unwrap()
    }

    #[test]
    fn selected_specs_are_counted_by_group() {
        let printed = report().to_string();
        assert_eq!(
            printed,
            "runtime 1\n\n| specs | passed | failed | skipped |\n|---|---|---|---|\n| NRI: 1 | 0 | 0 | 1 |\n\
             | Pods: 2 | 1 | 1 | 0 |\n| all: 3 | 1 | 1 | 1 |\n\nFailed:\n- Pods: b: code = NotFound\n\nSkipped:\n\
             - NRI: c: no socket\n"
        );
    }

    #[test]
    fn conformance_groups_are_interest_groups() {
        let json = r#"[{"SpecReports": [
            {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "State": "failed", "RunTime": 0,
             "LeafNodeText": "should be updated [Conformance] [NodeConformance]", "Failure": {"Message": "no"}},
            {"ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeType": "It", "State": "passed", "RunTime": 0,
             "LeafNodeText": "should run [Conformance]"}
        ]}]"#;
        let report = Report::parse_conformance(String::new(), json.as_bytes()).unwrap();
        let results: Vec<_> = report.results().collect();
        let expected =
            [("sig-node, NodeConformance: Pods should be updated", true), ("sig-apps: Job should run", false)];
        assert_eq!(results, expected.map(|(title, has_failed)| (title.to_owned(), has_failed)));
    }

    #[test]
    fn json_has_all_of_a_spec() {
        let json: serde_json::Value = serde_json::to_value(report()).unwrap();
        assert_eq!(json["runtime"], "runtime 1");
        let expected =
            serde_json::json!({"group": "Pods", "name": "stop twice", "state": "passed", "reason": "", "seconds": 2.5});
        assert_eq!(json["specs"][0], expected);
        assert!(Report::parse(String::new(), b"[").is_err());
    }
}
