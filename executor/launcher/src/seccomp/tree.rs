//! Compiles filter programs that find the action for a call by binary search. seccompiler's programs test one call
//! after the other.
//!
//! When a filter is installed, the kernel translates it, compiles it to machine code, and runs it for every call number
//! to find the calls that are allowed with any arguments. Each of these three steps takes time in proportion to the
//! program's length, and the last step also to its longest path. Most calls are adjacent to calls with the same action,
//! so the search is over ranges. seccompiler's programs are used only for calls whose arguments matter.

use std::collections::BTreeSet;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, sock_filter};

use super::{FilterError, Rules};

/// Maximum number of instructions of a program (BPF_MAXINSNS).
const INSTRUCTIONS_MAX: usize = 4096;
/// Number of leading instructions in seccompiler's programs, which check the architecture.
const ARCHITECTURE: usize = 3;
/// `ld [0]`: loads the call number.
const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// `jge #k`.
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
/// `ja #k`.
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
/// `ret #k`.
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// A range of calls with the same action. The range ends where the next range starts.
struct Range {
    first: u32,
    answer: BpfProgram,
}

/// Compiles rules. Calls in `absent` return ENOSYS, as from a kernel without them, even if a rule matches.
///
/// # Errors
/// Returns an error if the rules are invalid or the program is too long.
pub(super) fn compile(
    rules: Rules,
    absent: &[i64],
    (others, matching): (SeccompAction, SeccompAction),
    arch: TargetArch,
) -> Result<BpfProgram, FilterError> {
    let linear = |rules| -> Result<BpfProgram, FilterError> {
        Ok(SeccompFilter::new(rules, others.clone(), matching.clone(), arch)?.try_into()?)
    };
    let alike = |action: &SeccompAction| vec![instruction(RETURN, (0, 0), action.clone().into())];
    let mut ranges = vec![Range { first: 0, answer: alike(&others) }];
    let mut start = |first: u32, answer: BpfProgram| match ranges.last_mut() {
        Some(last) if last.first == first => last.answer = answer,
        _ => ranges.push(Range { first, answer }),
    };
    let no_rule = Vec::new();
    let calls: BTreeSet<i64> = rules.keys().chain(absent).copied().collect();
    for call in calls {
        let conditions = rules.get(&call).unwrap_or(&no_rule);
        // A number of more than 32 bits is not a call: use seccompiler's own program.
        let Ok(number) = u32::try_from(call) else {
            debug_assert!(absent.is_empty(), "the table of calls");
            return linear(rules);
        };
        let answer = if absent.contains(&call) {
            alike(&SeccompAction::Errno(libc::ENOSYS as u32))
        } else if conditions.is_empty() {
            alike(&matching)
        } else {
            linear(Rules::from([(call, conditions.clone())]))?.split_off(ARCHITECTURE)
        };
        start(number, answer);
        if let Some(next) = number.checked_add(1) {
            start(next, alike(&others));
        }
    }
    ranges.dedup_by(|next, last| next.answer == last.answer);
    let mut program = linear(Rules::new())?;
    program.truncate(ARCHITECTURE);
    program.push(instruction(LOAD_NUMBER, (0, 0), 0));
    program.extend(tree(&ranges));
    // A program with absent calls has no linear equivalent. If the program is too long, the kernel rejects it.
    if program.len() > INSTRUCTIONS_MAX && absent.is_empty() { linear(rules) } else { Ok(program) }
}

/// Returns a program that searches the sorted ranges for a call.
fn tree(ranges: &[Range]) -> BpfProgram {
    if let [only] = ranges {
        return only.answer.clone();
    }
    let (below, above) = ranges.split_at(ranges.len() / 2);
    let first = above[0].first;
    let (below, above) = (tree(below), tree(above));
    let mut all = match u8::try_from(below.len()) {
        Ok(over) => vec![instruction(AT_LEAST, (over, 0), first)],
        Err(_) => {
            let over = u32::try_from(below.len()).unwrap_or(u32::MAX);
            vec![instruction(AT_LEAST, (0, 1), first), instruction(JUMP, (0, 0), over)]
        }
    };
    all.extend(below);
    all.extend(above);
    all
}

fn instruction(code: u16, (jt, jf): (u8, u8), k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

    use super::super::tests::run;
    use super::*;

    /// For every number including the boundaries, the tree returns the same action as seccompiler's program.
    #[test]
    fn tree_filter_equals_seccompiler_filter() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let actions = || (SeccompAction::Errno(1), SeccompAction::Allow);
        let of_zero = |call: i64| {
            let zero = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0).unwrap();
            if call % 7 == 0 { vec![SeccompRule::new(vec![zero]).unwrap()] } else { Vec::new() }
        };
        let (alone, last) = (5..6, i64::from(u32::MAX)..i64::from(u32::MAX) + 1);
        for calls in [0..0, 0..1, alone, 0..6, 0..7, 3..60, 0..400, 399..420, last] {
            let rules: Rules = calls.filter(|call| call % 5 != 1).map(|call| (call, of_zero(call))).collect();
            let list: BpfProgram =
                SeccompFilter::new(rules.clone(), actions().0, actions().1, arch).unwrap().try_into().unwrap();
            let tree = compile(rules, &[], actions(), arch).unwrap();
            for call in (0..421).chain([0x4000_0000, 0x7fff_ffff, 0xffff_ffff]) {
                for argument in [0, 1] {
                    let args = [9, argument, 9, 9, 9, 9];
                    assert_eq!(run(&tree, call, args), run(&list, call, args), "{call} {argument}");
                }
            }
        }
    }

    #[test]
    fn absent_calls_return_enosys_despite_rules() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let rules: Rules = [3, 4, 5].map(|call| (call, Vec::new())).into();
        let tree = compile(rules, &[4, 7], (SeccompAction::Errno(1), SeccompAction::Allow), arch).unwrap();
        let answer = |call| run(&tree, call, [0; 6]);
        let reported = |action: SeccompAction| u32::from(action);
        for (call, expected) in [
            (2, SeccompAction::Errno(1)),
            (3, SeccompAction::Allow),
            (4, SeccompAction::Errno(libc::ENOSYS as u32)),
            (5, SeccompAction::Allow),
            (6, SeccompAction::Errno(1)),
            (7, SeccompAction::Errno(libc::ENOSYS as u32)),
            (8, SeccompAction::Errno(1)),
        ] {
            assert_eq!(answer(call), reported(expected), "{call}");
        }
    }

    /// The default filter is short, because the time to install it grows with its length.
    #[test]
    fn the_default_filter_is_short() {
        let held = executor_core::spec::held(&executor_core::plan::Isolation::default(), 1000);
        let length: usize = super::super::Filter::compile(&held).unwrap().programs.iter().map(Vec::len).sum();
        assert!(length < 300, "{length} instructions");
    }
}
