//! Validates ranges of host ids that requests name.

use super::ViolationReason::{Conflict, NotAllowed, OutOfRange, Reserved};
use super::{FieldFault, Policy, Report};
use crate::idmap::{Block, RANGE_IDS};
use crate::limits::ID_MAX;
use crate::plan::{IdMapping, UserNamespace};

pub(super) fn check(mapping: IdMapping, user_namespace: UserNamespace, policy: &Policy, report: &mut Report) {
    let IdMapping { container_id, host_id, length } = mapping;
    if user_namespace == UserNamespace::Host {
        report.add("id_map", Conflict.because("needs `user_namespace: own`"));
    }
    if container_id != 0 {
        report.add("id_map.container_id", OutOfRange.because(format!("is {container_id}; only 0 is supported")));
    }
    if length != RANGE_IDS {
        report.add("id_map.length", OutOfRange.because(format!("is {length}; only {RANGE_IDS} is supported")));
    }
    if let Err(why) = check_given_ids(host_id, policy) {
        report.add("id_map.host_id", why);
    }
}

/// Checks the range of host ids that begins at `start`. The launcher calls this before it assigns the range.
///
/// # Errors
/// Returns an error if the policy does not list the range or the policy's own pool overlaps the range.
pub fn check_given_ids(start: u32, policy: &Policy) -> Result<(), FieldFault> {
    if start < RANGE_IDS {
        return Err(Reserved.because(format!("is {start}; ids below {RANGE_IDS} belong to the host's own users")));
    }
    if start > ID_MAX - RANGE_IDS {
        return Err(OutOfRange.because(format!("is {start}; at most {} is allowed", ID_MAX - RANGE_IDS)));
    }
    let block = Block::from_range(start);
    let shown = format!("{}-{}", block.0, block.1 - 1);
    if !policy.given_id_ranges.iter().any(|range| range.contains(&block)) {
        let ranges: Vec<String> = policy.given_id_ranges.iter().map(ToString::to_string).collect();
        let listed = if ranges.is_empty() { "is empty".to_owned() } else { format!("has {}", ranges.join(", ")) };
        return Err(NotAllowed.because(format!(
            "the ids {shown} are not in policy.given_id_ranges, which {listed} in this daemon's configuration"
        )));
    }
    if policy.userns_pool().map_or(true, |pool| pool.overlaps(&block)) {
        let why = format!("the ids {shown} overlap this daemon's own pool (policy.userns_pool_start)");
        return Err(NotAllowed.because(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Isolation;
    use crate::validate::{Draft, recheck, validate};

    fn policy() -> Policy {
        let ranges = ["200000-400000", "1000000-1999999"].map(|range| range.to_owned().try_into().unwrap());
        Policy {
            given_id_ranges: ranges.into(),
            userns_pool_start: 1_500_000,
            userns_pool_ranges: 2,
            ..Policy::default()
        }
    }

    fn fields(mapping: IdMapping, user_namespace: UserNamespace, policy: &Policy) -> Vec<String> {
        let isolation = Isolation { id_map: Some(mapping), user_namespace, ..Isolation::default() };
        let draft = Draft { id: "a", path: "/a", isolation, ..Draft::default() };
        match validate(&draft, policy) {
            Ok(plan) => {
                let closed = recheck(&plan, &Policy::default()).unwrap_err();
                assert_eq!(closed[0].field, "id_map.host_id");
                recheck(&plan, policy).err().unwrap_or_default()
            }
            Err(violations) => violations,
        }
        .into_iter()
        .map(|violation| violation.field)
        .collect()
    }

    #[test]
    fn given_ids_are_listed_and_outside_pool() {
        let own = UserNamespace::Own;
        let mapping = |host_id| IdMapping { container_id: 0, host_id, length: RANGE_IDS };
        for fits in [200_000, 400_001 - RANGE_IDS, 1_000_000, 1_500_000 - RANGE_IDS, 1_500_000 + 2 * RANGE_IDS] {
            assert_eq!(fields(mapping(fits), own, &policy()), [""; 0], "{fits}");
        }
        let bad = [0, 1000, 199_999, 400_002 - RANGE_IDS, 500_000, 1_999_999, u32::MAX, u32::MAX - RANGE_IDS];
        let of_pool = [1_500_001 - RANGE_IDS, 1_500_000, 1_500_000 + 2 * RANGE_IDS - 1];
        for host_id in bad.into_iter().chain(of_pool) {
            assert_eq!(fields(mapping(host_id), own, &policy()), ["id_map.host_id"], "{host_id}");
        }
        let other = IdMapping { container_id: 1, length: 65_535, ..mapping(200_000) };
        assert_eq!(fields(other, own, &policy()), ["id_map.container_id", "id_map.length"]);
        let host = Policy { allow_host_userns: true, ..policy() };
        assert_eq!(fields(mapping(200_000), UserNamespace::Host, &host), ["id_map"]);
        assert_eq!(fields(mapping(200_000), own, &Policy::default()), ["id_map.host_id"]);
    }

    #[test]
    fn range_of_policy_has_two_ids() {
        let parsed = |text: &str| crate::idmap::GivenRange::try_from(text.to_owned());
        assert_eq!(parsed("65536-65537").unwrap().to_string(), "65536-65537");
        for bad in ["", "65536", "65535-70000", "70000-69999", "65536-4294967294", "a-b", "65536-", "1-2-3"] {
            let error = parsed(bad).unwrap_err().to_string();
            assert!(error.contains("FIRST-LAST"), "{error}");
        }
    }
}
