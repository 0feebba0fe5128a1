//! Validates the supplementary groups that a request adds for every process.

use super::ViolationReason::{Conflict, Duplicate, TooMany};
use super::{Draft, Report, fits, parse_principal, shorten};
use crate::limits::EXTRA_GROUPS_MAX;
use crate::plan::Principal;

/// Checks the names and numbers of the groups, and the settings for the groups of /etc/group.
pub(super) fn check(draft: &Draft<'_>, report: &mut Report) -> Vec<Principal> {
    let (names, namespace) = (&draft.extra_groups, draft.isolation.user_namespace);
    if draft.strict_groups && draft.merge_groups {
        let why =
            "cannot be combined with `strict_groups`, which leaves the groups of /etc/group out: set only one of them";
        report.add("merge_groups", Conflict.because(why));
    }
    if names.len() > EXTRA_GROUPS_MAX {
        let why = format!("has {} entries; at most {EXTRA_GROUPS_MAX} are allowed", names.len());
        report.add("extra_groups", TooMany.because(why));
        return Vec::new();
    }
    let mut groups: Vec<Principal> = Vec::with_capacity(names.len());
    for (index, text) in names.iter().enumerate() {
        let field = format!("extra_groups[{index}]");
        match parse_principal(text, "group").and_then(|group| fits(group, "group", namespace)) {
            Err(why) => report.add(field, why),
            Ok(group) if groups.contains(&group) => {
                report.add(field, Duplicate.because(format!("`{}` is given twice", shorten(text))));
            }
            Ok(group) => groups.push(group),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Isolation, UserNamespace};

    #[test]
    fn groups_are_numbers_or_names() {
        let of = |asked: &[&'static str], user_namespace| {
            let mut report = Report::default();
            let isolation = Isolation { user_namespace, ..Isolation::default() };
            let draft = Draft { extra_groups: asked.to_vec(), isolation, ..Draft::default() };
            let groups = check(&draft, &mut report);
            (groups, report.0.into_iter().map(|violation| violation.field).collect::<Vec<_>>())
        };
        let (groups, faults) = of(&["44", "audio"], UserNamespace::Own);
        assert_eq!((groups, faults.len()), (vec![Principal::Id(44), Principal::Name("audio".into())], 0));
        let (_, faults) = of(&["", "44", "44", "a:b", "65536", "4294967295"], UserNamespace::Own);
        assert_eq!(
            faults,
            ["extra_groups[0]", "extra_groups[2]", "extra_groups[3]", "extra_groups[4]", "extra_groups[5]"]
        );
        assert!(of(&["65536"], UserNamespace::Host).1.is_empty());
        assert_eq!(of(&["1"; EXTRA_GROUPS_MAX + 1], UserNamespace::Own).1, ["extra_groups"]);
    }
}
