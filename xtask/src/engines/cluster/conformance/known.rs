//! Conformance cases that are known to fail, with the reasons.

use std::fmt;

use crate::engines::Kind;
use crate::engines::report::Report;

/// A case that is known to fail.
struct Known {
    /// Part of the name of the case.
    case: &'static str,
    /// Runtime on which the case fails; unset if it fails on both runtimes.
    runtime: Option<Kind>,
    reason: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        case: "Conformance Tests should have at least two untainted nodes",
        runtime: None,
        reason: "the cluster has one node",
    },
    Known {
        case: "Daemon set should rollback without unnecessary restarts",
        runtime: None,
        reason: "the case needs two nodes",
    },
    Known {
        case: "ContainerMetrics",
        runtime: None,
        reason: "cAdvisor supports only containerd and CRI-O, with cgroups below the root cgroup",
    },
    Known {
        case: "Pod InPlace Resize Container guaranteed qos",
        runtime: None,
        reason: "the kubelet's oom_score_adj of -997 needs CAP_SYS_RESOURCE",
    },
    Known {
        case: "PrivilegedPod should enable privileged commands",
        runtime: None,
        reason: "the kernel needs dummy interfaces",
    },
    Known {
        case: "will unmask proc mounts if requested",
        runtime: Some(Kind::Executor),
        reason: "the case counts lines with /proc in the mount table; overlayfs lists its layers as /proc/self/fd/NUMBER",
    },
];

/// Comparison of a report with the known failures.
pub(super) struct Verdict {
    /// Failed cases that are not known.
    new: Vec<String>,
    /// Failed cases that are known, with reasons.
    known: Vec<(String, &'static str)>,
    /// Known cases that passed.
    passed: Vec<String>,
}

impl Verdict {
    pub(super) fn new(report: &Report, runtime: Kind) -> Self {
        Self::compare(report, runtime, KNOWN)
    }

    fn compare(report: &Report, runtime: Kind, known: &[Known]) -> Self {
        let known = |title: &str| {
            let mut cases = known.iter().filter(|known| known.runtime.is_none_or(|only| only == runtime));
            cases.find(|known| title.contains(known.case)).map(|known| known.reason)
        };
        let mut verdict = Self { new: Vec::new(), known: Vec::new(), passed: Vec::new() };
        for (title, has_failed) in report.results() {
            match (known(&title), has_failed) {
                (None, true) => verdict.new.push(title),
                (Some(reason), true) => verdict.known.push((title, reason)),
                (Some(_), false) => verdict.passed.push(title),
                (None, false) => {}
            }
        }
        verdict
    }

    pub(super) fn has_passed(&self) -> bool {
        self.new.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (titles, heading) in
            [(&self.new, "Failed, and not known to fail"), (&self.passed, "Passed, though known to fail")]
        {
            if !titles.is_empty() {
                writeln!(f, "{heading}:")?;
            }
            titles.iter().try_for_each(|title| writeln!(f, "- {title}"))?;
        }
        if !self.known.is_empty() {
            writeln!(f, "Known to fail:")?;
        }
        self.known.iter().try_for_each(|(title, reason)| writeln!(f, "- {title}: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_failures_fail_the_lane() {
        let spec = |name: &str, state: &str| {
            serde_json::json!({"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "RunTime": 0,
                "LeafNodeText": name, "State": state, "Failure": {"Message": "no"}})
        };
        let specs = [spec("a", "failed"), spec("b", "passed"), spec("c", "failed"), spec("d", "skipped")];
        let json = serde_json::json!([{"SpecReports": specs}]).to_string();
        let report = Report::parse_conformance(String::new(), json.as_bytes()).unwrap();
        let case = |case, runtime| Known { case, runtime, reason: "why" };
        let known = [case("Pods a", None), case("Pods b", None), case("Pods c", Some(Kind::Containerd))];
        let verdict = Verdict::compare(&report, Kind::Executor, &known);
        assert_eq!(
            verdict.to_string(),
            "Failed, and not known to fail:\n- sig-node: Pods c\nPassed, though known to fail:\n- sig-node: Pods b\n\
             Known to fail:\n- sig-node: Pods a: why\n"
        );
        assert!(!verdict.has_passed());
        assert!(Verdict::compare(&report, Kind::Containerd, &known).has_passed(), "the control");
    }
}
