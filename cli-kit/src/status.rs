//! Converts errors of RPCs to messages for the user.

use executor_client::{Code, Error, Refusal};

use crate::failure::Failure;
use crate::flag_names;

/// Adds the attempted operation to the error of an RPC.
pub trait ErrorContext<T> {
    /// Converts the error to a failure of the operation `doing` ("stop web-1").
    ///
    /// # Errors
    /// Returns a failure with the operation and the error if the call failed.
    fn doing(self, doing: &str) -> Result<T, Failure>;

    /// Converts the error like [`ErrorContext::doing`]. Fields that `named` lists have their names from `named` instead
    /// of the flags that `flag_names::flag` returns.
    ///
    /// # Errors
    /// Returns a failure with the operation and the error if the call failed.
    fn doing_named(self, named: &Named) -> Result<T, Failure>;
}

/// An operation and fields of its request, as the user named them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The command line up to the subject: `run --name web`.
    pub doing: String,
    /// Fields, each with its name on the command line: `rootfs` and `IMAGE`.
    pub fields: Vec<(&'static str, &'static str)>,
}

impl Named {
    fn word(&self, field: &str) -> Option<&'static str> {
        self.fields.iter().find(|(name, _)| *name == field).map(|(_, word)| *word)
    }
}

impl<T> ErrorContext<T> for Result<T, Error> {
    fn doing(self, doing: &str) -> Result<T, Failure> {
        self.map_err(|error| failure(doing, error))
    }

    fn doing_named(self, named: &Named) -> Result<T, Failure> {
        self.map_err(|error| failure_named(named, error))
    }
}

/// Converts an error to a failure of the operation `doing`.
pub fn failure(doing: &str, error: Error) -> Failure {
    failure_named(&Named { doing: doing.to_owned(), fields: Vec::new() }, error)
}

fn failure_named(named: &Named, error: Error) -> Failure {
    let doing = &*named.doing;
    match error {
        Error::Connect(error) => error.into(),
        Error::Refused(refusal) => {
            let (code, message) = (refusal.code, explain(named, &refusal));
            match refusal.violations.is_empty() {
                true => Failure::Refused { code, message },
                false => Failure::Violated { code, message, violations: refusal.violations },
            }
        }
        Error::GaveUp { at, waited } => Failure::GaveUp { doing: doing.to_owned(), at, waited },
        Error::Argument(text) => Failure::Usage(format!("{doing}: {text}")),
        // The connection was lost, or the response violates the API.
        other => {
            let code = if other.is_lost() { Code::Unknown } else { Code::Internal };
            Failure::Refused { code, message: format!("{doing}: {other}") }
        }
    }
}

/// Error text of gRPC libraries for a message above the size limit.
const LARGER_THAN_MAX: &str = "received message larger than max";

fn explain(named: &Named, refusal: &Refusal) -> String {
    let doing = &*named.doing;
    let line = |violation: &executor_client::Violation| {
        let field = &violation.field;
        let word = named.word(field).map_or_else(|| flag_names::flag(field, doing), str::to_owned);
        format!("{word}: {}", flag_names::replace_field_names(&violation.description))
    };
    let violations: Vec<String> = refusal.violations.iter().map(line).collect();
    // Report a missing image, or an image that its registry denies to the caller, in a single sentence.
    let is_plain = matches!(refusal.code, Code::NotFound | Code::PermissionDenied);
    if !violations.is_empty() && !is_plain {
        return format!("{doing}: executord refused the request:\n  {}", violations.join("\n  "));
    }
    let reason = match &*refusal.message {
        "" => "no reason given".into(),
        message => flag_names::replace_field_names(message),
    };
    match refusal.code {
        Code::NotFound | Code::FailedPrecondition | Code::InvalidArgument | Code::Aborted => {
            format!("{doing}: {reason}")
        }
        Code::AlreadyExists => match named.word("id").or_else(|| doing.starts_with("run ").then_some("--id")) {
            Some(flag) => format!(
                "{doing}: {reason}; choose another {flag}, or remove the container (`agent-cli rm -f`) or pod (`agent-cli pod \
                 rm -f`)"
            ),
            None => format!("{doing}: {reason}"),
        },
        // Only reasons that name a uid are about the caller; others are about the operator's policy or a registry.
        Code::PermissionDenied if !reason.starts_with("uid ") => format!("{doing}: {reason}"),
        Code::PermissionDenied | Code::Unauthenticated => format!(
            "{doing}: executord at {} does not serve uid {}: {reason}; executord's --allow-group permits a group",
            refusal.at,
            rustix::process::geteuid().as_raw()
        ),
        Code::ResourceExhausted if reason.contains(LARGER_THAN_MAX) => {
            format!("{doing}: {reason}; the operator sets the limit with `server.message_bytes_max`")
        }
        // Errors about the node's capacity begin with these words (`executor_core::capacity`).
        Code::ResourceExhausted if reason.starts_with("not enough ") => {
            format!("{doing}: {reason}; `agent-cli info` shows the free capacity")
        }
        Code::ResourceExhausted | Code::Unavailable => format!("{doing}: {reason}"),
        Code::Unimplemented => {
            format!(
                "{doing}: not supported by executord: {reason} (is executord older than this agent-cli, {}?)",
                env!("CARGO_PKG_VERSION")
            )
        }
        code => format!("{doing}: executord returned {code:?}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: Code, message: &str, violations: &[(&str, &str, &str)]) -> Error {
        let violation = |(field, description, reason): &(&str, &str, &str)| executor_client::Violation {
            field: (*field).into(),
            description: (*description).into(),
            reason: (*reason).into(),
        };
        let violations = violations.iter().map(violation).collect();
        Error::Refused(Box::new(Refusal {
            at: executor_client::ServerAddress::Socket("/run/x.sock".into()),
            code,
            message: message.into(),
            violations,
        }))
    }

    fn reported(error: Error) -> String {
        failure("run web-1", error).describe()
    }

    #[test]
    fn every_violation_has_line_with_flag() {
        let violations = [
            ("action.run.volume_mounted_files[0].path", "`a/../b` contains `..`", ""),
            ("limits.memory_bytes", "is 1; 2097152 to 1125899906842624 is allowed", ""),
        ];
        assert_eq!(
            reported(refusal(Code::InvalidArgument, "2 violations", &violations)),
            "run web-1: executord refused the request:\n  --file (number 1): `a/../b` contains `..`\n  \
             --memory: is 1; 2097152 to 1125899906842624 is allowed"
        );
    }

    #[test]
    fn fields_are_named_as_typed() {
        let named = Named { doing: "run --name web".into(), fields: vec![("id", "--name"), ("rootfs", "IMAGE")] };
        let violations = [("id", "is too long", ""), ("rootfs", "is not there", ""), ("limits.pids", "is 0", "")];
        assert_eq!(
            failure_named(&named, refusal(Code::InvalidArgument, "3 violations", &violations)).describe(),
            "run --name web: executord refused the request:\n  --name: is too long\n  IMAGE: is not there\n  --pids: is 0"
        );
        let exists = failure_named(&named, refusal(Code::AlreadyExists, "because", &[])).describe();
        assert!(exists.contains("choose another --name"), "{exists}");
    }

    #[test]
    fn status_codes_have_advice() {
        let table = [
            (Code::AlreadyExists, "choose another --id"),
            (Code::PermissionDenied, "run web-1: because"),
            (Code::ResourceExhausted, "run web-1: because"),
            (Code::Unavailable, "run web-1: because"),
            (Code::NotFound, "run web-1: because"),
            (Code::Unimplemented, "older"),
            (Code::Internal, "executord returned Internal: because"),
        ];
        for (code, expected) in table {
            let text = reported(refusal(code, "because", &[]));
            assert!(text.contains(expected) && text.starts_with("run web-1: "), "{text}");
        }
        let short = reported(refusal(Code::ResourceExhausted, "not enough memory", &[]));
        assert!(short.ends_with("agent-cli info` shows the free capacity"), "{short}");
        let large = reported(refusal(Code::ResourceExhausted, "grpc: received message larger than max (9 vs. 5)", &[]));
        assert!(large.ends_with("(9 vs. 5); the operator sets the limit with `server.message_bytes_max`"), "{large}");
        assert!(reported(refusal(Code::PermissionDenied, "uid 7 is not served", &[])).contains("--allow-group"));
        assert_eq!(
            reported(refusal(Code::NotFound, "no container \u{1b}[31mx", &[])),
            "run web-1: no container \\u{1b}[31mx"
        );
    }

    /// If a registry denies access, the message names the registry and its user, not the caller's uid.
    #[test]
    fn registry_denial_names_registry_and_user() {
        let why = "registry r.example refuses the user \"bob\" of the request access to image x: access denied (403)";
        let error = || refusal(Code::PermissionDenied, why, &[("rootfs", why, "ACCESS_DENIED")]);
        assert_eq!(reported(error()), format!("run web-1: {why}"));
        let advised = failure("y", error()).advise("look");
        assert_eq!(
            (advised.violations()[0].reason.as_str(), advised.code()),
            ("ACCESS_DENIED", Some(Code::PermissionDenied))
        );
        assert!(advised.describe().ends_with("access denied (403)\nlook"), "{}", advised.describe());
        assert!(
            reported(refusal(Code::PermissionDenied, "uid 7 may not", &[])).contains("does not serve uid"),
            "the control"
        );
    }
}
