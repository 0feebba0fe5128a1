//! Plain scalars of YAML 1.1, as go-yaml version 2 resolves them.
//!
//! `y`, `n`, `yes`, `no`, `on`, `off` are booleans. `0400` and `0o400` are 256, and `0888`, which is not octal, is 888.
//! `0x`, `0b` and `_` between digits are accepted. Dates and sexagesimal numbers (`1:30`) stay text.

use crate::node::Value;
use zeroize::Zeroizing;

/// A plain scalar that JSON cannot represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFinite;

/// Resolves a plain scalar without a tag.
///
/// # Errors
/// Returns an error if the scalar is infinite or not a number, which JSON cannot represent.
pub fn resolve(text: &str) -> Result<Value, NotFinite> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf"
        | "-.INF" => return Err(NotFinite),
        _ => return number(text).map(|number| number.unwrap_or_else(|| Value::Text(Zeroizing::new(text.to_owned())))),
    })
}

fn number(text: &str) -> Result<Option<Value>, NotFinite> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) || text.len() > 400 {
        return Ok(None);
    }
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    if !text.starts_with('.')
        && let Some(whole) = whole(&digits)
    {
        return Ok(Some(whole));
    }
    if !is_float(&digits) {
        return Ok(None);
    }
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Some(Value::Float(number))),
        Ok(_) => Err(NotFinite),
        Err(_) => Ok(None),
    }
}

/// Parses a whole number, with the prefixes of Go's `ParseInt` with base 0.
fn whole(digits: &str) -> Option<Value> {
    let (negative, unsigned) = match digits.as_bytes().first()? {
        b'-' => (true, &digits[1..]),
        b'+' => (false, &digits[1..]),
        _ => (false, digits),
    };
    let lower = unsigned.get(..2).map(str::to_ascii_lowercase);
    let (radix, magnitude) = match lower.as_deref() {
        Some("0x") => (16, &unsigned[2..]),
        Some("0o") => (8, &unsigned[2..]),
        Some("0b") => (2, &unsigned[2..]),
        Some(_) if unsigned.starts_with('0') => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    if magnitude.is_empty() || !magnitude.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = u64::from_str_radix(magnitude, radix).ok()?;
    if negative {
        return 0i64.checked_sub_unsigned(magnitude).map(Value::Int);
    }
    Some(i64::try_from(magnitude).map_or(Value::UInt(magnitude), Value::Int))
}

/// Returns true if the text matches `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`.
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa = match mantissa.split_once('.') {
        Some((whole, part)) => all_digits(whole) && all_digits(part) && !(whole.is_empty() && part.is_empty()),
        None => !mantissa.is_empty() && all_digits(mantissa),
    };
    let exponent = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !exponent.is_empty() && all_digits(exponent)
    });
    mantissa && exponent
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule P2: plain scalars are resolved as go-yaml version 2 resolves them.
    #[test]
    fn p2_scalars() {
        let shown = |text: &str| match resolve(text) {
            Ok(Value::Text(text)) => format!("text {}", &*text),
            Ok(Value::Bool(value)) => format!("{value}"),
            Ok(Value::Int(value)) => format!("{value}"),
            Ok(Value::UInt(value)) => format!("{value}u"),
            Ok(Value::Float(value)) => format!("{value}f"),
            Ok(_) => "null".to_owned(),
            Err(NotFinite) => "refused".to_owned(),
        };
        let table = [
            ("y", "true"),
            ("Y", "true"),
            ("yes", "true"),
            ("on", "true"),
            ("n", "false"),
            ("No", "false"),
            ("OFF", "false"),
            ("yEs", "text yEs"),
            ("0400", "256"),
            ("0o400", "256"),
            ("0888", "888f"),
            ("400", "400"),
            ("0x1F", "31"),
            ("0b11", "3"),
            ("-0b11", "-3"),
            ("1_000", "1000"),
            ("1e3", "1000f"),
            (".5", "0.5f"),
            ("1.", "1f"),
            ("-", "text -"),
            ("+", "text +"),
            (".", "text ."),
            ("1:30", "text 1:30"),
            ("2001-12-14", "text 2001-12-14"),
            ("", "null"),
            ("~", "null"),
            ("Null", "null"),
            (".inf", "refused"),
            (".NaN", "refused"),
            ("1e999", "refused"),
            ("1.2.3", "text 1.2.3"),
            ("18446744073709551615", "18446744073709551615u"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("100m", "text 100m"),
            ("1Gi", "text 1Gi"),
            ("0x", "text 0x"),
            ("12e", "text 12e"),
            ("+7", "7"),
            ("0", "0"),
            ("-0", "0"),
        ];
        for (text, expected) in table {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
