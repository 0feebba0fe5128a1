//! Compiles the filter of a request from a JSON profile, in the format of the OCI runtime specification
//! (`linux.seccomp`) or of Docker's profiles, which add conditions on capabilities, architectures and kernels.
//!
//! The input is the profile, whose size the caller has limited, and the capabilities of the process. The output is a
//! filter with several programs. Several rules can name the same call. A call is allowed if any of its rules allows it
//! and no rule forbids it.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use executor_core::spec::CapabilitySets;
use executor_sys::kernel_version;
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use serde::Deserialize;
use syscalls::Sysno;

use super::{Filter, Rules, program};

const RULES_MAX: usize = 1024;
/// Maximum number of names in all rules.
const NAMES_MAX: usize = 8192;
/// Maximum number of conditions. Each condition counts once for each call of its rule. A program has at most 4,096
/// instructions, so this limit rejects larger input early.
const CONDITIONS_MAX: usize = 8192;
/// Maximum number of names in a warning.
const REPORTED_MAX: usize = 20;
/// Maximum error number that the kernel accepts.
const ERRNO_MAX: u32 = 4095;

#[derive(Debug, thiserror::Error)]
pub(super) enum ProfileError {
    /// The profile is not JSON in the expected format.
    #[error("not a seccomp profile: {0}")]
    Form(#[from] serde_json::Error),
    /// The profile exceeds a limit.
    #[error("has {0} {1}; at most {2} are allowed")]
    Size(usize, &'static str, usize),
    /// An unknown action, or an action that needs a listener.
    #[error(
        "the action {0:?} is not supported; use SCMP_ACT_ALLOW, SCMP_ACT_ERRNO, SCMP_ACT_LOG, SCMP_ACT_TRAP, \
         SCMP_ACT_KILL, SCMP_ACT_KILL_THREAD or SCMP_ACT_KILL_PROCESS"
    )]
    Action(String),
    /// An error number above the kernel's maximum.
    #[error("the error number {0} is larger than {ERRNO_MAX}")]
    Errno(u32),
    /// A condition on an argument that does not exist.
    #[error("invalid argument {0} in a condition; use 0 to 5")]
    Argument(u32),
    /// An unknown comparison.
    #[error(
        "the comparison {0:?} is not supported; use SCMP_CMP_NE, SCMP_CMP_LT, SCMP_CMP_LE, SCMP_CMP_EQ, SCMP_CMP_GE, \
         SCMP_CMP_GT or SCMP_CMP_MASKED_EQ"
    )]
    Comparison(String),
    /// The rules cannot be compiled.
    #[error("{0}")]
    Compile(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Profile {
    default_action: String,
    default_errno_ret: Option<u32>,
    /// Ignored: the filter is compiled for the native architecture only, and processes cannot make system calls of
    /// another ABI (such as 32-bit).
    #[serde(default, rename = "architectures")]
    _architectures: serde::de::IgnoredAny,
    #[serde(default, rename = "archMap")]
    _arch_map: serde::de::IgnoredAny,
    #[serde(default)]
    syscalls: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    #[serde(default)]
    names: Vec<String>,
    name: Option<String>,
    action: String,
    errno_ret: Option<u32>,
    args: Option<Vec<Argument>>,
    #[serde(default, rename = "comment")]
    _comment: serde::de::IgnoredAny,
    includes: Option<RuleScope>,
    excludes: Option<RuleScope>,
}

impl Rule {
    /// Returns the number of conditions. Each condition counts once for each call of the rule.
    fn conditions(&self) -> usize {
        (self.names.len() + usize::from(self.name.is_some())) * self.args.as_ref().map_or(0, Vec::len)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Argument {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleScope {
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    arches: Vec<String>,
    min_kernel: Option<String>,
}

/// Compiles a profile. Returns the filter, and warnings about system calls that this machine does not support.
pub(super) fn compile(text: &str, capabilities: &CapabilitySets) -> Result<(Filter, Vec<String>), ProfileError> {
    let profile: Profile = serde_json::from_str(text)?;
    let names: usize = profile.syscalls.iter().map(|rule| rule.names.len()).sum();
    let conditions = profile.syscalls.iter().map(Rule::conditions).sum();
    for (count, what, most) in [
        (profile.syscalls.len(), "rules", RULES_MAX),
        (names, "names", NAMES_MAX),
        (conditions, "conditions", CONDITIONS_MAX),
    ] {
        if count > most {
            return Err(ProfileError::Size(count, what, most));
        }
    }
    let default = action(&profile.default_action, profile.default_errno_ret)?;
    let (mut by_action, mut unknown) = (Vec::<(SeccompAction, Calls)>::new(), BTreeSet::new());
    for rule in &profile.syscalls {
        let reported = action(&rule.action, rule.errno_ret)?;
        let alternatives = alternatives(rule.args.as_deref().unwrap_or_default())?;
        if reported == default || !applies(rule, capabilities) {
            continue;
        }
        let at = by_action.iter().position(|(action, _)| *action == reported).unwrap_or_else(|| {
            by_action.push((reported.clone(), Calls::default()));
            by_action.len() - 1
        });
        for name in rule.names.iter().chain(&rule.name) {
            match Sysno::from_str(name) {
                Ok(number) => by_action[at].1.add(i64::from(number.id()), &alternatives),
                Err(_) => drop(unknown.insert(name.as_str())),
            }
        }
    }
    let programs = programs(&default, by_action).map_err(|error| ProfileError::Compile(crate::log::chain(&error)))?;
    Ok((Filter { programs, denies_test_call: false, remaining: None }, warnings(&unknown)))
}

/// Returns the programs of a filter. Unless the default is to allow, one program allows all calls that any rule names.
/// A further program for each action except allow applies the action to its calls.
fn programs(
    default: &SeccompAction,
    by_action: Vec<(SeccompAction, Calls)>,
) -> Result<Vec<seccompiler::BpfProgram>, super::FilterError> {
    let mut programs = Vec::new();
    if *default != SeccompAction::Allow {
        let mut named = Calls::default();
        by_action.iter().for_each(|(_, calls)| named.join(calls));
        programs.push(program(named.rules()?, default.clone(), SeccompAction::Allow)?);
    }
    for (reported, calls) in by_action.into_iter().filter(|(reported, _)| *reported != SeccompAction::Allow) {
        programs.push(program(calls.rules()?, SeccompAction::Allow, reported)?);
    }
    Ok(programs)
}

/// Calls with their alternative conditions. `None` matches a call with any arguments.
#[derive(Default)]
struct Calls(BTreeMap<i64, Option<Vec<Conditions>>>);

/// Conditions that must all hold for a call to match.
type Conditions = Vec<SeccompCondition>;

impl Calls {
    fn add(&mut self, call: i64, alternatives: &[Conditions]) {
        let known = self.0.entry(call).or_insert_with(|| Some(Vec::new()));
        match known {
            _ if alternatives.is_empty() => *known = None,
            Some(known) => known.extend_from_slice(alternatives),
            None => {}
        }
    }

    fn join(&mut self, other: &Self) {
        for (call, alternatives) in &other.0 {
            self.add(*call, alternatives.as_deref().unwrap_or_default());
        }
    }

    fn rules(self) -> Result<Rules, seccompiler::BackendError> {
        let rules = |alternatives: Option<Vec<Conditions>>| {
            alternatives.unwrap_or_default().into_iter().map(SeccompRule::new).collect::<Result<Vec<_>, _>>()
        };
        self.0.into_iter().map(|(call, alternatives)| Ok((call, rules(alternatives)?))).collect()
    }
}

fn action(name: &str, errno: Option<u32>) -> Result<SeccompAction, ProfileError> {
    let errno = errno.unwrap_or(libc::EPERM as u32);
    match name {
        "SCMP_ACT_ALLOW" => Ok(SeccompAction::Allow),
        "SCMP_ACT_ERRNO" if errno > ERRNO_MAX => Err(ProfileError::Errno(errno)),
        "SCMP_ACT_ERRNO" => Ok(SeccompAction::Errno(errno)),
        "SCMP_ACT_LOG" => Ok(SeccompAction::Log),
        "SCMP_ACT_TRAP" => Ok(SeccompAction::Trap),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Ok(SeccompAction::KillThread),
        "SCMP_ACT_KILL_PROCESS" => Ok(SeccompAction::KillProcess),
        other => Err(ProfileError::Action(other.chars().take(64).collect())),
    }
}

/// Returns the alternative conditions of a rule. All conditions must hold, as in runc. If several conditions are on the
/// same argument, each condition is an alternative.
fn alternatives(args: &[Argument]) -> Result<Vec<Conditions>, ProfileError> {
    let conditions = args.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
    let indices: BTreeSet<u32> = args.iter().map(|arg| arg.index).collect();
    Ok(match conditions {
        none if none.is_empty() => Vec::new(),
        several if indices.len() < args.len() => several.into_iter().map(|one| vec![one]).collect(),
        all => vec![all],
    })
}

fn condition(arg: &Argument) -> Result<SeccompCondition, ProfileError> {
    let (compare, value) = match &*arg.op {
        "SCMP_CMP_NE" => (SeccompCmpOp::Ne, arg.value),
        "SCMP_CMP_LT" => (SeccompCmpOp::Lt, arg.value),
        "SCMP_CMP_LE" => (SeccompCmpOp::Le, arg.value),
        "SCMP_CMP_EQ" => (SeccompCmpOp::Eq, arg.value),
        "SCMP_CMP_GE" => (SeccompCmpOp::Ge, arg.value),
        "SCMP_CMP_GT" => (SeccompCmpOp::Gt, arg.value),
        // In a profile the mask is first, and the value to compare is second.
        "SCMP_CMP_MASKED_EQ" => (SeccompCmpOp::MaskedEq(arg.value), arg.value_two),
        other => return Err(ProfileError::Comparison(other.chars().take(64).collect())),
    };
    let index = u8::try_from(arg.index).ok().filter(|index| *index < 6).ok_or(ProfileError::Argument(arg.index))?;
    SeccompCondition::new(index, SeccompCmpArgLen::Qword, compare, value)
        .map_err(|error| ProfileError::Compile(error.to_string()))
}

fn applies(rule: &Rule, held: &CapabilitySets) -> bool {
    let none = RuleScope::default();
    let (includes, excludes) = (rule.includes.as_ref().unwrap_or(&none), rule.excludes.as_ref().unwrap_or(&none));
    let has = |name: &String| held.names.contains(name.as_str());
    let here = |arch: &String| match std::env::consts::ARCH {
        "x86_64" => arch == "amd64",
        "aarch64" => arch == "arm64",
        other => arch == other,
    };
    let since = |version: &Option<String>| {
        version.as_deref().is_none_or(|version| kernel_version::running() >= kernel_version::parse(version))
    };
    includes.caps.iter().all(has)
        && (includes.arches.is_empty() || includes.arches.iter().any(here))
        && since(&includes.min_kernel)
        && !excludes.caps.iter().any(has)
        && !excludes.arches.iter().any(here)
        && (excludes.min_kernel.is_none() || !since(&excludes.min_kernel))
}

fn warnings(unknown: &BTreeSet<&str>) -> Vec<String> {
    if unknown.is_empty() {
        return Vec::new();
    }
    let reported: Vec<String> = unknown.iter().take(REPORTED_MAX).map(|name| name.chars().take(32).collect()).collect();
    let more = if unknown.len() > REPORTED_MAX {
        format!(" and {} more", unknown.len() - REPORTED_MAX)
    } else {
        String::new()
    };
    vec![format!("seccomp_profile: this machine has no system call {}{more}", reported.join(", "))]
}
