//! The filter on system calls that every process of every container has.
//!
//! What is allowed is what Docker's default profile allows to a container with our capabilities; all else is
//! EPERM, and `clone3` is ENOSYS so that libraries fall back to `clone`, whose flags can be looked at. The filter
//! is compiled once, when the launcher starts, and inherited by every shim; init installs it as its last act
//! before execve. Peers that have libseccomp compile it at each start spend more on that than on the container.

mod allowed;

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// The compiled filters.
#[derive(Clone)]
pub(crate) struct Filter {
    main: BpfProgram,
    clone3: BpfProgram,
}

/// A filter that could not be made or installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// A mistake in the table.
    #[error("the filter on system calls cannot be compiled")]
    Compile(#[from] seccompiler::BackendError),
    /// The kernel refused it.
    #[error("the filter on system calls cannot be installed")]
    Install(#[from] seccompiler::Error),
}

impl Filter {
    /// Compiles the default filter for this machine.
    pub(crate) fn compile() -> Result<Self, FilterError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            allowed::PLAIN.iter().map(|call| (*call, Vec::new())).collect();
        rules.insert(libc::SYS_clone, vec![without_namespaces()?]);
        rules.insert(libc::SYS_socket, vec![not_vsock()?]);
        rules.insert(libc::SYS_personality, personalities()?);
        rules.insert(libc::SYS_clone3, Vec::new());
        let deny = SeccompAction::Errno(libc::EPERM as u32);
        let main = SeccompFilter::new(rules, deny, SeccompAction::Allow, arch)?.try_into()?;
        let only_clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let absent = SeccompAction::Errno(libc::ENOSYS as u32);
        let clone3 = SeccompFilter::new(only_clone3, SeccompAction::Allow, absent, arch)?.try_into()?;
        Ok(Self { main, clone3 })
    }

    /// Installs it for the calling thread and all that it becomes. New privileges must be forbidden before.
    pub(crate) fn install(&self) -> Result<(), FilterError> {
        apply_filter(&self.clone3)?;
        apply_filter(&self.main)?;
        Ok(())
    }
}

/// `clone` without a flag that makes a namespace.
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

/// `socket` of any family but AF_VSOCK, which leads out of a virtual machine.
fn not_vsock() -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, libc::AF_VSOCK as u64)?])
}

/// `personality` to Linux, 32 bits, UTS 2.6 and their sum, and to ask which it is.
fn personalities() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff]
        .into_iter()
        .map(|persona| {
            SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, persona)?])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_names_no_call_twice() {
        let filter = Filter::compile().unwrap();
        assert!(
            filter.main.len() > allowed::PLAIN.len() && filter.main.len() < 4096,
            "{} instructions",
            filter.main.len()
        );
        let unique: std::collections::BTreeSet<_> = allowed::PLAIN.iter().collect();
        assert_eq!(unique.len(), allowed::PLAIN.len());
        for denied in [
            libc::SYS_mount,
            libc::SYS_ptrace,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_unshare,
            libc::SYS_io_uring_setup,
        ] {
            assert!(!allowed::PLAIN.contains(&denied) || denied == libc::SYS_ptrace);
        }
    }
}
