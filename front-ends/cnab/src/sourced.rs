//! Converts outputs of earlier actions to parameter values (CNAB 810, rule 49 of `docs/guides/cnab-rules.md`).

use base64::Engine as _;
use serde_json::Value;

use crate::bundle::Bundle;
use crate::violation::{Violations, pointer};
use crate::write_only;

/// Value from an output. Its `Debug` output omits the value.
#[derive(Clone)]
pub struct Sourced {
    /// Value of the parameter's type.
    pub value: Value,
    /// True if the output is `writeOnly`, whether or not the parameter is `writeOnly`.
    pub secret: bool,
}

impl std::fmt::Debug for Sourced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sourced").field("secret", &self.secret).finish_non_exhaustive()
    }
}

/// Converts the content of an output to the value of a parameter. `of` is the bundle of the output, as JSON.
///
/// If the parameter is in base64 and the output is not, the content is encoded in base64.
///
/// # Errors
/// Returns an error if the content is not a value of the parameter's types. The error does not contain the content.
pub fn value(
    bundle: &Bundle,
    parameter: &str,
    of: &Value,
    output: &str,
    content: &[u8],
) -> Result<Sourced, Violations> {
    let at = pointer("/parameters", parameter);
    let secret = write_only::output(of, output);
    let definition = bundle.parameters.get(parameter).and_then(|it| bundle.definition(&it.definition));
    let Some(definition) = definition else { return Err(Violations::one(at, 49, "is not a parameter of this bundle")) };
    let of_output = of.get("outputs").and_then(|outputs| outputs.get(output)?.get("definition")?.as_str());
    let of_output = of_output.and_then(|name| of.get("definitions")?.get(name));
    let encoded = of_output.and_then(|it| it.get("contentEncoding")).and_then(Value::as_str) == Some("base64");
    if definition.is_base64() && !encoded {
        let text = base64::engine::general_purpose::STANDARD.encode(content);
        return Ok(Sourced { value: Value::String(text), secret });
    }
    let text = std::str::from_utf8(content)
        .map_err(|_| Violations::one(&at, 49, format!("the source output {output:?} is not UTF-8")))?;
    Ok(Sourced { value: definition.read(&at, text)?, secret })
}
