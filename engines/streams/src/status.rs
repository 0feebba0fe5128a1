//! Formats the status that the error stream carries.

use serde_json::json;

use crate::Outcome;

/// Format of the status, which depends on the version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Versions 1 to 3: text of the error; empty for success.
    Text,
    /// Version 4 and later: the Kubernetes `Status` as JSON.
    Json,
}

/// Returns the content of the error stream.
pub(crate) fn content(outcome: &Outcome, form: Form) -> String {
    match (outcome, form) {
        (Outcome::Exited(0), Form::Text) => String::new(),
        (Outcome::Exited(0), Form::Json) => json!({ "metadata": {}, "status": "Success" }).to_string(),
        (Outcome::Exited(code), Form::Text) => exited(*code),
        (Outcome::Exited(code), Form::Json) => json!({
            "metadata": {},
            "status": "Failure",
            "message": exited(*code),
            "reason": "NonZeroExitCode",
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        })
        .to_string(),
        (Outcome::Failed(message), Form::Text) => message.clone(),
        (Outcome::Failed(message), Form::Json) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("Internal error occurred: {message}"),
            "reason": "InternalError",
            "details": { "causes": [{ "message": message }] },
            "code": 500,
        })
        .to_string(),
    }
}

fn exited(code: i32) -> String {
    format!("command terminated with non-zero exit code: {code}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status names the reason and the cause.
    #[test]
    fn exit_codes_have_a_cause() {
        let status: serde_json::Value =
            serde_json::from_str(&content(&Outcome::Exited(7), Form::Json)).expect("a status");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0], json!({ "reason": "ExitCode", "message": "7" }));
        assert_eq!(content(&Outcome::Exited(0), Form::Json), r#"{"metadata":{},"status":"Success"}"#);
        assert_eq!(content(&Outcome::Exited(0), Form::Text), "");
    }
}
