//! What a plan can ask for and this launcher does not carry out: refused, never passed over.

use executor_core::plan::Plan;
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::Violation;

/// Looks for it.
///
/// # Errors
/// Every part of the plan that would be left out.
pub(super) fn check(plan: &Plan) -> Result<(), Refused> {
    let all = [("terminal", plan.terminal), ("stdin", plan.stdin)];
    let asked = all.into_iter().filter(|(_, asked)| *asked);
    let violations: Vec<_> =
        asked.map(|(field, _)| Violation::new(field, "is not carried out by this version")).collect();
    if violations.is_empty() { Ok(()) } else { Err(Refused::of_fields(Reason::Invalid, &violations)) }
}
