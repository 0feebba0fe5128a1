//! Compiles and installs the system call filter of container processes.
//!
//! For a container with the same capabilities, the default filter allows the system calls that Docker's default profile
//! allows, except `io_setup`. Other calls return EPERM. `clone3` returns ENOSYS, so that libraries use `clone`, whose
//! flags a filter can inspect. `io_setup` also returns ENOSYS, because the host and all containers share one limit on
//! asynchronous requests (`fs.aio-max-nr`).
//!
//! The filter is compiled once when the launcher starts, and every shim inherits it. Init installs it immediately
//! before execve. Runtimes that compile a filter with libseccomp at each start need more time for compiling than for
//! the container itself. For a container with further capabilities or its own profile, the filter is compiled when the
//! container is created.

mod allowed;
mod profile;
mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;

use executor_core::plan::Isolation;
use executor_core::protocol::{Reason, Refused};
use executor_core::spec::CapabilitySets;
use executor_core::validate::Violation;
use executor_sys::capabilities::{self, CapsHashSet};
use executor_sys::privileges::keep_capabilities;
use executor_sys::process;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule, TargetArch, apply_filter,
    sock_filter,
};

/// A compiled filter: programs that are installed in order. The strictest result of all programs applies. If results
/// are equally strict, the result of the last program applies.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    programs: Vec<BpfProgram>,
    /// True if the filter certainly denies the test call of `process::is_confined`. The test call then shows whether
    /// the filter is in force.
    denies_test_call: bool,
    /// Capabilities that remain after the filter is installed, if the process may gain privileges. Such a process does
    /// not set no_new_privs, and therefore needs CAP_SYS_ADMIN to install the filter.
    remaining: Option<Remaining>,
}

/// Capabilities of a process that may gain privileges.
#[derive(Clone, Debug)]
struct Remaining {
    held: CapsHashSet,
    ambient: CapsHashSet,
}

/// Error from compiling or installing a filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// The default rules or a list of calls cannot be compiled.
    #[error("the seccomp filter cannot be compiled")]
    Compile(#[from] seccompiler::BackendError),
    /// The kernel rejected the filter.
    #[error("the seccomp filter cannot be installed")]
    Install(#[from] seccompiler::Error),
    /// The kernel rejected the filter of a process that may gain privileges.
    #[error("the seccomp filter cannot be installed without no_new_privs")]
    InstallPrivileged(#[source] std::io::Error),
    /// The capabilities could not be dropped after the filter was installed: the filter must allow `capset` and
    /// `prctl`.
    #[error("cannot drop capabilities after installing the seccomp filter; the filter must allow capset and prctl")]
    Drop(#[source] std::io::Error),
}

/// Rules of a program by call number. A call matches if any of its rules matches. An empty list matches every call with
/// this number.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

impl Filter {
    /// Compiles the default filter for a process with these capabilities.
    pub(crate) fn compile(capabilities: &CapabilitySets) -> Result<Self, FilterError> {
        let mut rules: Rules = allowed::PLAIN.iter().map(|call| (*call, Vec::new())).collect();
        rules.insert(libc::SYS_clone, vec![without_namespaces()?]);
        rules.insert(libc::SYS_socket, families()?);
        rules.insert(libc::SYS_personality, personalities()?);
        let administers = capabilities.names.contains("CAP_SYS_ADMIN");
        if administers {
            rules.extend([libc::SYS_clone, libc::SYS_clone3].map(|call| (call, Vec::new())));
        }
        for (_, calls) in
            allowed::BY_CAPABILITY.iter().filter(|(capability, _)| capabilities.names.contains(capability))
        {
            rules.extend(calls.iter().map(|call| (*call, Vec::new())));
        }
        let absent: &[i64] = if administers { &[libc::SYS_io_setup] } else { &[libc::SYS_io_setup, libc::SYS_clone3] };
        let actions = (SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow);
        let programs = vec![tree::compile(rules, absent, actions, arch()?)?];
        Ok(Self { programs, denies_test_call: !administers, remaining: None }) // CAP_SYS_ADMIN permits the test call
    }

    /// Compiles a filter that allows only these calls, for the executor's own processes.
    pub(crate) fn from_calls(calls: &[i64]) -> Result<Self, FilterError> {
        let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
        let denying = SeccompAction::Errno(libc::EPERM as u32);
        Ok(Self {
            programs: vec![program(rules, denying, SeccompAction::Allow)?],
            denies_test_call: true,
            remaining: None,
        })
    }

    /// Returns the filter for a process of a container, and warnings about system calls of a profile that this machine
    /// does not support.
    ///
    /// # Errors
    /// Returns a violation of `seccomp_profile` if the profile is invalid.
    pub(crate) fn from_request(
        default: &Arc<Self>,
        isolation: &Isolation,
        capabilities: &CapabilitySets,
    ) -> Result<(Arc<Self>, Vec<String>), Refused> {
        let (filter, warnings) = Self::confining(default, isolation, capabilities)?;
        if !capabilities.new_privileges {
            return Ok((filter, warnings));
        }
        let ambient = capabilities.names.iter().filter(|_| capabilities.ambient).copied();
        let remaining = capabilities::named(capabilities.names.iter().copied())
            .and_then(|held| Ok(Remaining { held, ambient: capabilities::named(ambient)? }))
            .map_err(|error| crate::errors::failed("cannot determine the capabilities", &error))?;
        Ok((Arc::new(Self { remaining: Some(remaining), ..(*filter).clone() }), warnings))
    }

    fn confining(
        default: &Arc<Self>,
        isolation: &Isolation,
        capabilities: &CapabilitySets,
    ) -> Result<(Arc<Self>, Vec<String>), Refused> {
        let opens = |(capability, _): &(&str, &[i64])| capabilities.names.contains(capability);
        if isolation.privileged || isolation.seccomp_unconfined {
            return Ok((Arc::new(Self { programs: Vec::new(), denies_test_call: false, remaining: None }), Vec::new()));
        }
        if !isolation.seccomp_profile.is_empty() {
            let compiled = profile::compile(&isolation.seccomp_profile, capabilities);
            let (filter, warnings) = compiled.map_err(|why| {
                Refused::from_fields(Reason::Invalid, &[Violation::new("seccomp_profile", why.to_string())])
            })?;
            return Ok((Arc::new(filter), warnings));
        }
        if allowed::BY_CAPABILITY.iter().any(opens) {
            let filter = Self::compile(capabilities)
                .map_err(|error| Refused::new(Reason::Internal, format!("seccomp: {}", crate::log::chain(&error))))?;
            return Ok((Arc::new(filter), Vec::new()));
        }
        Ok((Arc::clone(default), Vec::new()))
    }

    /// Installs the filter for the calling thread and its descendants. Sets no_new_privs, unless the process may gain
    /// privileges. Such a process must have CAP_SYS_ADMIN, and afterwards keeps only the capabilities of its container.
    pub(crate) fn install(&self) -> Result<(), FilterError> {
        let Some(Remaining { held, ambient }) = &self.remaining else {
            self.programs.iter().try_for_each(|program| apply_filter(program))?;
            return Ok(());
        };
        for program in &self.programs {
            let instruction =
                |one: &sock_filter| libc::sock_filter { code: one.code, jt: one.jt, jf: one.jf, k: one.k };
            let mut program: Vec<libc::sock_filter> = program.iter().map(instruction).collect();
            process::install_filter(&mut program).map_err(FilterError::InstallPrivileged)?;
        }
        keep_capabilities(held, ambient).map_err(FilterError::Drop)
    }

    /// Returns true if the process may gain privileges, so that no_new_privs is not set.
    pub(crate) fn allows_new_privileges(&self) -> bool {
        self.remaining.is_some()
    }

    /// Returns true if a test call must fail once this filter is installed.
    ///
    /// Returns false for a custom profile, because it may allow every call. Returns false for privileged and unconfined
    /// containers, because they have no filter.
    pub(crate) fn denies_test_call(&self) -> bool {
        self.denies_test_call
    }
}

/// Compiles a program with one action for matching calls and another action for all other calls.
fn program(rules: Rules, others: SeccompAction, matching: SeccompAction) -> Result<BpfProgram, FilterError> {
    tree::compile(rules, &[], (others, matching), arch()?)
}

fn arch() -> Result<TargetArch, seccompiler::BackendError> {
    TargetArch::try_from(std::env::consts::ARCH)
}

/// Returns the rule that matches `clone` without flags for new namespaces.
fn without_namespaces() -> Result<SeccompRule, seccompiler::BackendError> {
    let flags = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let flags = u64::from(flags as u32);
    SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flags), 0)?])
}

/// Returns the rules that match `socket` for any family except AF_VSOCK and AF_ALG. AF_VSOCK permits connections out of
/// a virtual machine, and AF_ALG exposes many kernel drivers.
fn families() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let family = |compare, family: i32| SeccompCondition::new(0, SeccompCmpArgLen::Dword, compare, family as u64);
    [
        vec![family(SeccompCmpOp::Lt, libc::AF_ALG)?],
        vec![family(SeccompCmpOp::Gt, libc::AF_ALG)?, family(SeccompCmpOp::Ne, libc::AF_VSOCK)?],
    ]
    .into_iter()
    .map(SeccompRule::new)
    .collect()
}

/// Returns the rules that match `personality` for Linux, for 32 bits, for UTS 2.6, for both of these flags, and for a
/// query.
fn personalities() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff]
        .into_iter()
        .map(|persona| {
            SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, persona)?])
        })
        .collect()
}

#[cfg(test)]
mod tests;
