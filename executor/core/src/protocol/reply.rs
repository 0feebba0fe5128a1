//! Defines the results of a request: success, or a refusal with a reason.

use prost::Message;

use crate::violation::{Violation, ViolationReason};

/// Reply to a request that succeeded and returns no data.
#[derive(Clone, PartialEq, Message)]
pub struct Done {}

/// Refusal or failure of a request, with its reason.
#[derive(Clone, PartialEq, Message)]
pub struct Refused {
    /// Number of a [`Reason`].
    #[prost(enumeration = "Reason", tag = "1")]
    pub reason: i32,
    /// Message with the causes, on one line.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Violations in fields of the request, as many as fit a packet.
    #[prost(message, repeated, tag = "3")]
    pub violations: Vec<FieldViolation>,
}

/// Violation in a field of a request.
#[derive(Clone, PartialEq, Message)]
pub struct FieldViolation {
    /// Path of the field, as in the public API.
    #[prost(string, tag = "1")]
    pub field: String,
    /// Description of the violation.
    #[prost(string, tag = "2")]
    pub description: String,
    /// Name of the [`ViolationReason`].
    #[prost(string, tag = "3")]
    pub reason: String,
}

/// Reason of a refusal, from which the daemon derives the gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Reason {
    /// The executor or the host failed, independently of the request.
    Internal = 0,
    /// The request is invalid.
    Invalid = 1,
    /// The host lacks a requirement of the request, such as a rootfs, a user or a path.
    Precondition = 2,
    /// A resource such as disk or memory is exhausted.
    Exhausted = 3,
    /// The container or process does not exist.
    NotFound = 4,
    /// The container already exists.
    Exists = 5,
    /// The request is based on an outdated state. The client can repeat it with the current state.
    Stale = 6,
    /// The object is busy; the same request may succeed soon.
    Busy = 7,
    /// The caller is not allowed to make the request.
    Denied = 8,
}

impl Refused {
    /// Creates a refusal with a message of one line.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason: reason as i32, message: message.into(), violations: Vec::new() }
    }

    /// Creates a refusal because of invalid fields, truncated so that it fits a packet. The message contains the total
    /// number of violations.
    pub fn from_fields(reason: Reason, violations: &[Violation]) -> Self {
        const MOST: usize = 48 << 10;
        let mut size = 0;
        let fit = violations.iter().take_while(|violation| {
            size += violation.field.len() + violation.description.len() + 48;
            size < MOST
        });
        // A violation without its own reason gets the general reason of the refusal.
        let general = match reason {
            Reason::Precondition => ViolationReason::Unsuitable,
            Reason::Exhausted => ViolationReason::Insufficient,
            _ => ViolationReason::InvalidValue,
        };
        let fields = fit.map(|v| FieldViolation {
            field: v.field.clone(),
            description: v.description.clone(),
            reason: v.reason.or(general).name().to_owned(),
        });
        let first = violations.first().map(ToString::to_string).unwrap_or_default();
        let message = match violations.len() {
            0 | 1 => first.chars().take(2048).collect(),
            n => format!("{n} violations, first: {}", first.chars().take(2048).collect::<String>()),
        };
        Self { reason: reason as i32, message, violations: fields.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{PACKET_MAX, ShimNews, ShimReport};

    #[test]
    fn a_refusal_always_fits_a_packet() {
        let many: Vec<_> = (0..10_000).map(|i| Violation::new(format!("f[{i}]"), "x".repeat(300))).collect();
        let refused = Refused::from_fields(Reason::Invalid, &many);
        let report = ShimReport { sequence: u64::MAX, news: Some(ShimNews::Refused(refused)) };
        assert!(report.encoded_len() < PACKET_MAX);
        // A violation without its own reason gets the reason of the refusal; any other reason is unchanged.
        let one = [Violation::new("f", "x"), Violation::new("g", ViolationReason::NotFound.because("y"))];
        let reported = Refused::from_fields(Reason::Precondition, &one).violations;
        assert_eq!((&*reported[0].reason, &*reported[1].reason), ("UNSUITABLE", "NOT_FOUND"));
        let huge = [Violation::new("f", "x".repeat(1 << 20))];
        assert!(Refused::from_fields(Reason::Invalid, &huge).encoded_len() < PACKET_MAX);
    }
}
