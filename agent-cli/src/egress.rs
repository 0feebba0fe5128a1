//! Parses egress rules from the JSON of Cloud Foundry's application security groups, and formats rules for people.
//!
//! A file holds a list of rules, or an object that has the list as `rules`, as in Cloud Controller's API.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use executor_cli_kit::failure::Failure;
use executor_client::v1::egress_rule::Protocol;
use executor_client::v1::{EgressRule, PortRange};
use serde::Deserialize;

/// Maximum file size, in bytes.
const FILE_MAX: u64 = 4 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupRule {
    protocol: String,
    destination: String,
    #[serde(default)]
    ports: Option<String>,
    #[serde(default, rename = "type")]
    kind: Option<i32>,
    #[serde(default)]
    code: Option<i32>,
    #[serde(default)]
    log: bool,
    /// Description for users, which is ignored.
    #[serde(default, rename = "description")]
    _description: Option<String>,
}

/// A security group; only the rules are used.
#[derive(Debug, Deserialize)]
struct Group {
    rules: Vec<serde_json::Value>,
}

/// Reads the rules of a security group from a file.
pub(crate) fn read(path: &Path) -> Result<Vec<EgressRule>, Failure> {
    let wrong = |why: String| Failure::Usage(format!("--egress-rules {}: {why}", path.display()));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(wrong(format!("the file is larger than the maximum of {FILE_MAX} bytes")));
    }
    parse(&bytes).map_err(wrong)
}

fn parse(bytes: &[u8]) -> Result<Vec<EgressRule>, String> {
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| format!("the file is not JSON: {error}"))?;
    let rules = match value {
        serde_json::Value::Array(rules) => rules,
        value => {
            serde_json::from_value::<Group>(value).map_err(|_| "the file is not a list of rules".to_owned())?.rules
        }
    };
    let one = |(index, rule)| rule_of(rule).map_err(|why| format!("rule {}: {why}", index + 1));
    rules.into_iter().enumerate().map(one).collect()
}

fn rule_of(rule: serde_json::Value) -> Result<EgressRule, String> {
    let rule: GroupRule = serde_json::from_value(rule).map_err(|error| error.to_string())?;
    let protocol = match rule.protocol.as_str() {
        "all" => Protocol::All,
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "icmp" => Protocol::Icmp,
        "icmpv6" => Protocol::Icmpv6,
        other => return Err(format!("unknown protocol {other:?}; use tcp, udp, icmp, icmpv6 or all")),
    };
    let ports = rule.ports.as_deref().filter(|ports| !ports.trim().is_empty());
    Ok(EgressRule {
        protocol: protocol.into(),
        destinations: rule.destination.split(',').map(|text| text.trim().to_owned()).collect(),
        ports: ports.map(port_ranges).transpose()?.unwrap_or_default(),
        icmp_type: rule.kind,
        icmp_code: rule.code,
        log: rule.log,
    })
}

/// Parses port ranges: `80,443` or `1000-2000`.
fn port_ranges(text: &str) -> Result<Vec<PortRange>, String> {
    let number = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0).map(u32::from);
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(PortRange { first: number(first)?, last: number(last)? })
    };
    let wrong = || format!("ports {text:?}: use numbers from 1 to 65535, such as 80,443 or 1000-2000");
    text.split(',').map(|part| range(part).ok_or_else(wrong)).collect()
}

/// Formats a rule on one line: `tcp 192.0.2.0/24 80,443`.
pub(crate) fn format_rule(rule: &EgressRule) -> String {
    let mut words = vec![protocol(rule), rule.destinations.join(",")];
    if !rule.ports.is_empty() {
        words.push(rule.ports.iter().map(ports).collect::<Vec<_>>().join(","));
    }
    words.extend(rule.icmp_type.map(|kind| format!("type {kind}")));
    words.extend(rule.icmp_code.map(|code| format!("code {code}")));
    words.extend(rule.log.then(|| "log".to_owned()));
    words.join(" ")
}

fn protocol(rule: &EgressRule) -> String {
    rule.protocol().as_str_name().trim_start_matches("PROTOCOL_").to_ascii_lowercase()
}

fn ports(range: &PortRange) -> String {
    if range.first == range.last { range.first.to_string() } else { format!("{}-{}", range.first, range.last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_groups_are_read() {
        let table = [
            (r#"{"protocol":"tcp","destination":"10.0.11.0/24","ports":"80,443"}"#, "tcp 10.0.11.0/24 80,443"),
            (
                r#"{"protocol":"udp","destination":"10.0.0.1-10.0.0.9, 10.1.0.0/16","ports":"1000-2000, 53","log":true}"#,
                "udp 10.0.0.1-10.0.0.9,10.1.0.0/16 1000-2000,53 log",
            ),
            (
                r#"{"protocol":"icmp","destination":"0.0.0.0/0","type":8,"code":0,"description":"ping"}"#,
                "icmp 0.0.0.0/0 type 8 code 0",
            ),
            (r#"{"protocol":"icmpv6","destination":"::/0","type":-1,"code":-1}"#, "icmpv6 ::/0 type -1 code -1"),
            (r#"{"protocol":"all","destination":"::1","ports":""}"#, "all ::1"),
        ];
        for (json, expected) in table {
            for text in [format!("[{json}]"), format!(r#"{{"name":"public","rules":[{json}]}}"#)] {
                let rules = parse(text.as_bytes()).unwrap_or_else(|why| panic!("{text}: {why}"));
                assert_eq!(rules.iter().map(format_rule).collect::<Vec<_>>(), [expected], "{text}");
            }
        }
        assert_eq!(parse(b"[]"), Ok(Vec::new()));
    }

    #[test]
    fn invalid_security_groups_are_refused() {
        let good = r#"{"protocol":"all","destination":"::1"}"#;
        let table = [
            ("x".to_owned(), "is not JSON"),
            ("7".into(), "is not a list of rules"),
            (format!("[{good}, 7]"), "rule 2: "),
            (r#"[{"protocol":"sctp","destination":"::1"}]"#.into(), "rule 1: unknown protocol \"sctp\"; use tcp"),
            (r#"[{"protocol":"tcp"}]"#.into(), "missing field `destination`"),
            (r#"[{"protocol":"tcp","destination":"::1","port":"80"}]"#.into(), "unknown field `port`"),
            (r#"[{"protocol":"tcp","destination":"::1","ports":"80-"}]"#.into(), "ports \"80-\": use numbers"),
            (r#"[{"protocol":"tcp","destination":"::1","ports":"0"}]"#.into(), "ports \"0\": use numbers"),
            (r#"[{"protocol":"tcp","destination":"::1","ports":"65536"}]"#.into(), "ports \"65536\": use numbers"),
        ];
        for (text, words) in table {
            let reported = parse(text.as_bytes()).unwrap_err();
            assert!(reported.contains(words), "{text}: {reported}");
        }
    }
}
