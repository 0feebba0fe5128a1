//! A program that finds a call's rules by halving, where seccompiler's asks for one call after the other.
//!
//! When a filter is installed, the kernel runs it for the number of every call there is, to know which are allowed whatever
//! their arguments are. With some 350 calls one after the other that is most of what installing costs, and each call
//! whose arguments count pays for it again.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, sock_filter};

use super::{FilterError, Rules};

/// Calls that are asked for one after the other.
const TOGETHER: usize = 6;
/// Most instructions of a program (BPF_MAXINSNS).
const INSTRUCTIONS_MAX: usize = 4096;
/// `ld [0]`: the number of the call.
const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// `jge #k`.
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
/// `ja #k`.
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;

/// Compiles rules. Each part of the tree is a whole program of seccompiler's, which asks for the architecture first.
///
/// # Errors
/// A mistake in the rules; more than a program may have.
pub(super) fn compile(
    rules: Rules,
    (others, matching): (SeccompAction, SeccompAction),
    arch: TargetArch,
) -> Result<BpfProgram, FilterError> {
    let linear = |rules| -> Result<BpfProgram, FilterError> {
        Ok(SeccompFilter::new(rules, others.clone(), matching.clone(), arch)?.try_into()?)
    };
    let all: Vec<_> = rules.clone().into_iter().collect();
    let mut leaves = Vec::new();
    for part in all.chunks(TOGETHER) {
        let first = u32::try_from(part[0].0).unwrap_or(u32::MAX);
        leaves.push((first, linear(part.iter().cloned().collect())?));
    }
    if leaves.len() < 2 {
        return linear(rules);
    }
    let mut program = vec![instruction(LOAD_NUMBER, (0, 0), 0)];
    program.extend(tree(&leaves));
    if program.len() > INSTRUCTIONS_MAX { linear(rules) } else { Ok(program) }
}

/// Leaves in the order of the first call that each is for, and what finds the right one.
fn tree(leaves: &[(u32, BpfProgram)]) -> BpfProgram {
    if let [(_, leaf)] = leaves {
        return leaf.clone();
    }
    let (below, above) = leaves.split_at(leaves.len() / 2);
    let first = above[0].0;
    let (below, above) = (tree(below), tree(above));
    let over = u32::try_from(below.len()).unwrap_or(u32::MAX);
    let mut all = vec![instruction(AT_LEAST, (0, 1), first), instruction(JUMP, (0, 0), over)];
    all.extend(below);
    all.extend(above);
    all
}

fn instruction(code: u16, (jt, jf): (u8, u8), k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    /// The same answer as without the tree, to every number and to those at its ends.
    #[test]
    fn the_tree_answers_as_the_list_does() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let actions = || (SeccompAction::Errno(1), SeccompAction::Allow);
        for calls in [0..0, 0..1, 0..6, 0..7, 3..60, 0..400] {
            let rules: Rules = calls.filter(|call| call % 3 != 1).map(|call| (call, Vec::new())).collect();
            let list: BpfProgram =
                SeccompFilter::new(rules.clone(), actions().0, actions().1, arch).unwrap().try_into().unwrap();
            let tree = compile(rules, actions(), arch).unwrap();
            for call in (0..420).chain([0x4000_0000, 0x7fff_ffff]) {
                assert_eq!(run(&tree, call, [0; 6]), run(&list, call, [0; 6]), "{call}");
            }
        }
    }
}
