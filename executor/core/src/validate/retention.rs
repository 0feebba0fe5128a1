//! Validates the retention of a completed container.

use super::ViolationReason::{Conflict, NotAllowed};
use super::{Draft, Policy, Report};

/// Checks that `keep_until_deleted` is allowed, and is not combined with `remove_when_completed`.
pub(super) fn check(draft: &Draft<'_>, policy: &Policy, report: &mut Report) {
    if !draft.keep_until_deleted {
        return;
    }
    if policy.keep_until_deleted_max == 0 {
        let why = "is not allowed by this daemon's configuration (policy.keep_until_deleted_max = 0)";
        report.add("keep_until_deleted", NotAllowed.because(why));
    }
    if draft.remove_when_completed {
        report.add("keep_until_deleted", Conflict.because("cannot be combined with `remove_when_completed`"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::ViolationReason;

    #[test]
    fn keeping_needs_permission_and_no_removal() {
        let reasons = |keep_until_deleted, remove_when_completed, keep_until_deleted_max| {
            let mut report = Report::default();
            let draft = Draft { keep_until_deleted, remove_when_completed, ..Draft::default() };
            check(&draft, &Policy { keep_until_deleted_max, ..Policy::default() }, &mut report);
            report.0.into_iter().map(|violation| violation.reason).collect::<Vec<ViolationReason>>()
        };
        assert_eq!(reasons(true, true, 0), [NotAllowed, Conflict]);
        assert_eq!(reasons(true, true, 1), [Conflict]);
        assert!(reasons(true, false, 1).is_empty() && reasons(false, true, 0).is_empty());
    }
}
