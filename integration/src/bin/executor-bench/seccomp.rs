//! Converts seccomp profiles of Docker and podman to `linux.seccomp` of the OCI runtime specification.
//!
//! The profiles are conditional: a rule applies to some architectures, capabilities or kernels (`includes`,
//! `excludes`). Engines resolve these conditions for each container. This module resolves them for the benchmark's
//! container.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use crate::oci::CAPABILITIES;

/// Reads a profile and resolves it for this machine and [`CAPABILITIES`].
pub(crate) fn load(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let profile = serde_json::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    resolve(&profile, std::env::consts::ARCH, &release)
        .with_context(|| format!("cannot resolve the profile {}", path.display()))
}

fn resolve(profile: &Value, arch: &str, kernel: &str) -> anyhow::Result<Value> {
    let (go_arch, scmp_arch) = match arch {
        "x86_64" => ("amd64", "SCMP_ARCH_X86_64"),
        "aarch64" => ("arm64", "SCMP_ARCH_AARCH64"),
        other => bail!("unknown architecture {other}; x86_64 and aarch64 are supported"),
    };
    let mut rules = Vec::new();
    for rule in profile["syscalls"].as_array().context("the field `syscalls` is missing")? {
        let includes = Condition { condition: &rule["includes"], go_arch, kernel };
        let excludes = Condition { condition: &rule["excludes"], go_arch, kernel };
        if includes.all() && !excludes.any() {
            rules.push(copy(rule, &["names", "action", "errnoRet", "args"]));
        }
    }
    let mut architectures = vec![json!(scmp_arch)];
    let known = profile["archMap"].as_array().into_iter().flatten();
    for entry in known.filter(|entry| entry["architecture"] == scmp_arch) {
        architectures.extend(entry["subArchitectures"].as_array().into_iter().flatten().cloned());
    }
    let mut resolved = copy(profile, &["defaultAction", "defaultErrnoRet"]);
    resolved["architectures"] = Value::Array(architectures);
    resolved["syscalls"] = Value::Array(rules);
    Ok(resolved)
}

/// Condition of a rule: its `includes` or `excludes`.
struct Condition<'a> {
    condition: &'a Value,
    go_arch: &'a str,
    kernel: &'a str,
}

impl Condition<'_> {
    /// Returns true if all criteria of the condition (architecture, capabilities, kernel version) are satisfied.
    fn all(&self) -> bool {
        [self.arch(), self.caps(), self.kernel()].into_iter().flatten().all(|part| part)
    }

    /// Returns true if at least one criterion of the condition (architecture, capabilities, kernel version) is
    /// satisfied.
    fn any(&self) -> bool {
        [self.arch(), self.caps(), self.kernel()].into_iter().flatten().any(|part| part)
    }

    fn arch(&self) -> Option<bool> {
        let wanted = self.list("arches")?;
        Some(wanted.iter().any(|arch| arch == self.go_arch))
    }

    fn caps(&self) -> Option<bool> {
        let wanted = self.list("caps")?;
        Some(wanted.iter().any(|cap| CAPABILITIES.iter().any(|have| cap == have)))
    }

    fn kernel(&self) -> Option<bool> {
        let wanted = self.condition["minKernel"].as_str().filter(|wanted| !wanted.is_empty())?;
        Some(version(self.kernel) >= version(wanted))
    }

    fn list(&self, key: &str) -> Option<&Vec<Value>> {
        self.condition[key].as_array().filter(|list| !list.is_empty())
    }
}

/// Returns the major and minor version of a release such as `6.18.44-something`.
fn version(release: &str) -> [u32; 2] {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)]
}

fn copy(from: &Value, keys: &[&str]) -> Value {
    let present = keys.iter().filter(|key| from.get(**key).is_some_and(|value| !value.is_null()));
    Value::Object(present.map(|key| ((*key).to_owned(), from[*key].clone())).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_filtered_by_architecture_capability_kernel() {
        let rule = |name: &str, includes: Value, excludes: Value| {
            json!({"names": [name], "action": "SCMP_ACT_ALLOW", "includes": includes, "excludes": excludes,
                   "comment": "", "errno": "EPERM", "errnoRet": null, "args": null})
        };
        let profile = json!({
            "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "defaultErrno": "ENOSYS",
            "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
            "syscalls": [
                rule("always", json!({}), json!({})),
                rule("amd64", json!({"arches": ["amd64", "x32"]}), json!({})),
                rule("arm64", json!({"arches": ["arm64"]}), json!({})),
                rule("chroot", json!({"caps": ["CAP_SYS_CHROOT"]}), json!({})),
                rule("no_chroot", json!({}), json!({"caps": ["CAP_SYS_CHROOT"]})),
                rule("mount", json!({"caps": ["CAP_SYS_ADMIN"]}), json!({})),
                rule("no_mount", json!({}), json!({"caps": ["CAP_SYS_ADMIN"]})),
                rule("new", json!({"minKernel": "4.8"}), json!({})),
                rule("future", json!({"minKernel": "99.1"}), json!({})),
            ],
        });
        let resolved = resolve(&profile, "x86_64", "6.1.0-13-amd64").unwrap();
        let names: Vec<_> = resolved["syscalls"].as_array().unwrap().iter().map(|rule| &rule["names"][0]).collect();
        assert_eq!(names, ["always", "amd64", "chroot", "no_mount", "new"]);
        assert_eq!(resolved["architectures"], json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]));
        assert_eq!(resolved["defaultErrnoRet"], 38);
        assert_eq!(resolved["syscalls"][0], json!({"names": ["always"], "action": "SCMP_ACT_ALLOW"}));
    }
}
