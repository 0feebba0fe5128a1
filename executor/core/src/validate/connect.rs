//! Validates a connection to a port in a pod.

use super::ViolationReason::{NotAllowed, OutOfRange};
use super::{Policy, Violation};

/// Checks the port, and that the policy allows connections.
///
/// # Errors
/// Returns all violations if the port is invalid or the policy forbids the connection.
pub fn connect_port(port: u32, policy: &Policy) -> Result<u16, Vec<Violation>> {
    let mut violations = Vec::new();
    if !policy.allow_connect {
        let why = "connections to ports in pods are not allowed by this daemon's configuration; set \
                   policy.allow_connect = true to allow them";
        violations.push(Violation::new("start", NotAllowed.because(why)));
    }
    let valid = u16::try_from(port).ok().filter(|port| *port > 0);
    if valid.is_none() {
        violations.push(Violation::new("start.port", OutOfRange.because(format!("is {port}; 1 to 65535 are allowed"))));
    }
    valid.filter(|_| violations.is_empty()).ok_or(violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_violation_is_reported() {
        let open = Policy { allow_connect: true, ..Policy::default() };
        assert_eq!(connect_port(80, &open), Ok(80));
        for (port, policy, fields) in [
            (0, open.clone(), &["start.port"][..]),
            (65_536, open, &["start.port"]),
            (80, Policy::default(), &["start"]),
            (0, Policy::default(), &["start", "start.port"]),
        ] {
            let violations = connect_port(port, &policy).unwrap_err();
            assert_eq!(violations.iter().map(|violation| &*violation.field).collect::<Vec<_>>(), fields, "{port}");
        }
    }
}
