//! Validates the settings of a pod for CNI plugins.

use std::collections::BTreeSet;
use std::path::Path;

use super::ViolationReason::{Conflict, Duplicate, InvalidFormat, NotAllowed, OutOfRange, Required, Reserved, TooMany};
use super::{Policy, Report, shorten, surroundings};
use crate::plan::{CniArgument, CniBandwidth, CniOptions};

/// Maximum number of arguments.
const ARGUMENTS_MAX: usize = 32;
/// Maximum length of an argument name, in bytes.
const NAME_MAX: usize = 64;
/// Maximum length of an argument value, in bytes.
const VALUE_MAX: usize = 1024;
/// Argument that the executor itself passes to every plugin. Requests must not set this argument.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown";
/// Lowest burst, in bits, that the plugin `bandwidth` refuses.
const BURST_BITS: u64 = (u32::MAX as u64) * 8;
/// Maximum number of annotations.
const ANNOTATIONS_MAX: usize = 1024;
/// Maximum size of all annotations, in bytes: Kubernetes' limit.
const ANNOTATION_BYTES_MAX: usize = 256 << 10;
/// Maximum length of the name of an annotation, in bytes: a DNS name of 253 bytes, a slash and a name of 63 bytes.
const ANNOTATION_NAME_MAX: usize = 317;

/// Checks the settings. The caller checks that the network is a network of the node.
pub(super) fn check(options: &CniOptions, policy: &Policy, report: &mut Report) {
    if !policy.cni_args {
        let why = "is not allowed by this daemon's configuration; set policy.cni_args = true to allow it";
        report.add("cni", NotAllowed.because(why));
    }
    check_arguments(&options.arguments, report);
    if let Some(bandwidth) = &options.bandwidth {
        check_bandwidth(bandwidth, report);
    }
    if !options.cgroup_path.is_empty()
        && let Err(why) = surroundings::plain_path(Path::new(&options.cgroup_path))
    {
        report.add("cni.cgroup_path", why);
    }
    check_annotations(options, report);
}

fn check_arguments(arguments: &[CniArgument], report: &mut Report) {
    const FIELD: &str = "cni.arguments";
    if arguments.len() > ARGUMENTS_MAX {
        report.add(
            FIELD,
            TooMany.because(format!("has {} entries; at most {ARGUMENTS_MAX} are allowed", arguments.len())),
        );
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, CniArgument { name, value }) in arguments.iter().enumerate() {
        let field = |part: &str| format!("{FIELD}[{index}].{part}");
        let has_form = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
        if !has_form || name.len() > NAME_MAX {
            let why = format!(
                "\"{}\" is not a name: use 1 to {NAME_MAX} letters, digits and `_`, not beginning with a digit",
                shorten(name)
            );
            report.add(field("name"), InvalidFormat.because(why));
        } else if name.eq_ignore_ascii_case(IGNORE_UNKNOWN) {
            let why = "`IgnoreUnknown` is reserved: the executor sets this argument in every call";
            report.add(field("name"), Reserved.because(why));
        } else if !seen.insert(name) {
            report.add(field("name"), Duplicate.because(format!("{name} is given twice; remove one")));
        }
        if value.len() > VALUE_MAX || !value.bytes().all(|b| b.is_ascii_graphic() && b != b';' && b != b'=') {
            let why = format!(
                "is {} bytes; use at most {VALUE_MAX} visible ASCII characters, without `;` and `=`",
                value.len()
            );
            report.add(field("value"), InvalidFormat.because(why));
        }
    }
}

fn check_bandwidth(bandwidth: &CniBandwidth, report: &mut Report) {
    let CniBandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst } = *bandwidth;
    if ingress_rate == 0 && egress_rate == 0 {
        report.add("cni.bandwidth", Required.because("has no rate; set one, or leave the limits unset"));
    }
    for (direction, rate, burst) in [("ingress", ingress_rate, ingress_burst), ("egress", egress_rate, egress_burst)] {
        let field = format!("cni.bandwidth.{direction}_burst");
        if rate > 0 && burst == 0 {
            report.add(field, Required.because("is 0; a rate needs a burst"));
        } else if rate == 0 && burst > 0 {
            report.add(field, Conflict.because(format!("needs `{direction}_rate`")));
        } else if burst >= BURST_BITS {
            report.add(field, OutOfRange.because(format!("is {burst} bits; use less than {BURST_BITS}")));
        }
    }
}

fn check_annotations(options: &CniOptions, report: &mut Report) {
    const FIELD: &str = "cni.pod_annotations";
    let annotations = &options.pod_annotations;
    let bytes: usize = annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    if annotations.len() > ANNOTATIONS_MAX || bytes > ANNOTATION_BYTES_MAX {
        let why = format!(
            "has {} entries ({bytes} bytes); at most {ANNOTATIONS_MAX} ({ANNOTATION_BYTES_MAX} bytes) are allowed",
            annotations.len()
        );
        report.add(FIELD, TooMany.because(why));
        return;
    }
    for name in annotations.keys() {
        if name.is_empty() || name.len() > ANNOTATION_NAME_MAX || !name.bytes().all(|b| b.is_ascii_graphic()) {
            let why =
                format!("the name is {} bytes; use 1 to {ANNOTATION_NAME_MAX} visible ASCII characters", name.len());
            report.add(format!("{FIELD}[{}]", shorten(name)), InvalidFormat.because(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Connectivity, Network, PodRole};
    use crate::validate::{Draft, check_member, recheck, validate};

    fn open() -> Policy {
        Policy { cni_args: true, ..Policy::default() }
    }

    fn draft(cni: CniOptions, network: Network) -> Draft<'static> {
        Draft {
            id: "p",
            network: Some(network),
            connectivity: Connectivity { cni: Some(cni), ..Connectivity::default() },
            pod: Some(PodRole::Holder { share_processes: false }),
            ..Draft::default()
        }
    }

    fn fields(cni: CniOptions) -> Vec<String> {
        let checked = validate(&draft(cni, Network::Cni), &open());
        checked.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    fn argument(name: &str, value: &str) -> CniArgument {
        CniArgument { name: name.into(), value: value.into() }
    }

    fn whole() -> CniOptions {
        CniOptions {
            arguments: vec![argument("K8S_POD_NAME", "web-1"), argument("K8S_POD_UID", "")],
            bandwidth: Some(CniBandwidth { egress_rate: 1, egress_burst: BURST_BITS - 1, ..CniBandwidth::default() }),
            cgroup_path: "/kubepods/pod1".into(),
            pod_annotations: [("a".repeat(ANNOTATION_NAME_MAX), "\n".into())].into(),
        }
    }

    #[test]
    fn options_need_key_and_network() {
        let plan = validate(&draft(whole(), Network::Cni), &open()).unwrap();
        recheck(&plan, &open()).unwrap();
        let refused = recheck(&plan, &Policy::default()).unwrap_err();
        assert_eq!(refused[0].field, "cni");
        assert!(refused[0].description.contains("policy.cni_args"), "{refused:?}");
        let host = Policy { allow_host_network: true, ..open() };
        let refused = validate(&draft(whole(), Network::Host), &host).unwrap_err();
        assert_eq!(refused.iter().map(|violation| &*violation.field).collect::<Vec<_>>(), ["cni"]);
        let role = PodRole::Member { pod: plan.id.clone(), share_processes: false };
        let member = |connectivity| {
            let draft =
                Draft { id: "m", path: "/a", connectivity, pod: Some(role.clone()), ..draft(whole(), Network::Cni) };
            check_member(&validate(&draft, &open()).unwrap(), &plan)
        };
        member(plan.connectivity.for_members()).unwrap();
        assert_eq!(member(plan.connectivity.clone()).unwrap_err()[0].field, "network");
    }

    #[test]
    fn every_bound_is_checked() {
        assert_eq!(fields(whole()), [""; 0]);
        assert_eq!(fields(CniOptions::default()), [""; 0]);
        let arguments = |arguments| fields(CniOptions { arguments, ..CniOptions::default() });
        for bad in ["", "1A", "A-B", "A;B", "A=B", "IgnoreUnknown", "IGNOREUNKNOWN", &"A".repeat(NAME_MAX + 1)] {
            assert_eq!(arguments(vec![argument(bad, "1")]), ["cni.arguments[0].name"], "{bad}");
        }
        for bad in ["a;IgnoreUnknown=0", "a=b", "a b", "\u{e4}", "\0", &"a".repeat(VALUE_MAX + 1)] {
            assert_eq!(arguments(vec![argument("A", bad)]), ["cni.arguments[0].value"], "{bad}");
        }
        assert_eq!(arguments(vec![argument("A", "1"), argument("A", "2")]), ["cni.arguments[1].name"]);
        let many = |count: usize| (0..count).map(|index| argument(&format!("A{index}"), "")).collect();
        assert_eq!(arguments(many(ARGUMENTS_MAX)), [""; 0]);
        assert_eq!(arguments(many(ARGUMENTS_MAX + 1)), ["cni.arguments"]);
        let bandwidth = |ingress_rate, ingress_burst| {
            let limits = CniBandwidth { ingress_rate, ingress_burst, egress_rate: 1, egress_burst: 1 };
            fields(CniOptions { bandwidth: Some(limits), ..CniOptions::default() })
        };
        assert_eq!(bandwidth(0, 0), [""; 0]);
        for (rate, burst) in [(1, 0), (0, 1), (1, BURST_BITS)] {
            assert_eq!(bandwidth(rate, burst), ["cni.bandwidth.ingress_burst"], "{rate} {burst}");
        }
        let none = CniOptions { bandwidth: Some(CniBandwidth::default()), ..CniOptions::default() };
        assert_eq!(fields(none), ["cni.bandwidth"]);
        for bad in ["a", "/a/../b", "/a//b", "/a\0"] {
            assert_eq!(
                fields(CniOptions { cgroup_path: bad.into(), ..CniOptions::default() }),
                ["cni.cgroup_path"],
                "{bad}"
            );
        }
        let annotations = |name: String, value: String| {
            fields(CniOptions { pod_annotations: [(name, value)].into(), ..CniOptions::default() })
        };
        assert_eq!(annotations("a".into(), "b".repeat(ANNOTATION_BYTES_MAX - 1)), [""; 0]);
        assert_eq!(annotations("a".into(), "b".repeat(ANNOTATION_BYTES_MAX)), ["cni.pod_annotations"]);
        assert_eq!(annotations("a b".into(), String::new()), ["cni.pod_annotations[a b]"]);
        let many = (0..=ANNOTATIONS_MAX).map(|index| (index.to_string(), String::new())).collect();
        assert_eq!(fields(CniOptions { pod_annotations: many, ..CniOptions::default() }), ["cni.pod_annotations"]);
    }
}
