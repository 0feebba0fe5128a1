//! Collects the variables of a container and expands references to them (rules P15 to P21 of
//! `docs/guides/kube-rules.md`). Each variable records whether its value is secret.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

/// Maximum length of a variable's name and value, in bytes, which is a limit of the kernel.
pub(crate) const VALUE_MAX: usize = 131_072;

/// An expanded string, and whether it contains the value of a Secret.
#[derive(Clone, Default)]
pub(crate) struct Expanded {
    pub(crate) text: Zeroizing<String>,
    pub(crate) secret: bool,
    /// Names of unknown variables in the string.
    pub(crate) unknown: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Variable {
    pub(crate) value: Zeroizing<String>,
    pub(crate) secret: bool,
    /// True if the value is a literal in the container's `env` (rule P39).
    pub(crate) plain: bool,
}

/// Variables by name, in the order in which they were first set.
#[derive(Clone, Default)]
pub(crate) struct Environment {
    pub(crate) order: Vec<String>,
    pub(crate) variables: BTreeMap<String, Variable>,
}

impl Environment {
    /// Sets a variable, replacing an earlier value.
    pub(crate) fn set(&mut self, name: &str, variable: Variable) {
        if self.variables.insert(name.to_owned(), variable).is_none() {
            self.order.push(name.to_owned());
        }
    }

    /// Returns only the variables whose value is a literal in `env`.
    pub(crate) fn plain(&self) -> Self {
        let mut plain = Self::default();
        for name in &self.order {
            if let Some(variable) = self.variables.get(name).filter(|variable| variable.plain) {
                plain.set(name, variable.clone());
            }
        }
        plain
    }

    /// Replaces `$(NAME)` with the variable's value and `$$` with `$`. References to unknown variables are unchanged
    /// (rule P17). Stops when the result exceeds [`VALUE_MAX`], because a short string can repeat a long variable many
    /// times.
    pub(crate) fn expand(&self, text: &str) -> Expanded {
        let mut out = Expanded::default();
        out.text.reserve(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.text.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            if let Some(escaped) = after.strip_prefix('$') {
                out.text.push('$');
                rest = escaped;
            } else if let Some((name, behind)) = after.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
                match self.variables.get(name) {
                    Some(variable) => {
                        out.text.push_str(&variable.value);
                        out.secret |= variable.secret;
                    }
                    None => {
                        out.unknown.push(name.to_owned());
                        out.text.push_str("$(");
                        out.text.push_str(name);
                        out.text.push(')');
                    }
                }
                rest = behind;
            } else {
                out.text.push('$');
                rest = after;
            }
            if out.text.len() > VALUE_MAX {
                return out;
            }
        }
        out.text.push_str(rest);
        out
    }
}

/// Returns true for a valid variable name: printable ASCII without `=` (rule P16).
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p17_references_are_expanded() {
        let mut environment = Environment::default();
        let variable = |value: &str, secret| Variable { value: Zeroizing::new(value.into()), secret, plain: !secret };
        environment.set("A", variable("1", false));
        environment.set("S", variable("s3", true));
        let table = [
            ("$(A)", "1", false),
            ("x$(A)y$(S)", "x1ys3", true),
            ("$$(A)", "$(A)", false),
            ("$$$(A)", "$1", false),
            ("$(B)", "$(B)", false),
            ("$A $", "$A $", false),
            ("$(A", "$(A", false),
            ("", "", false),
            ("$$", "$", false),
        ];
        for (text, expected, secret) in table {
            let expanded = environment.expand(text);
            assert_eq!((&**expanded.text, expanded.secret), (expected, secret), "{text}");
        }
        assert_eq!(environment.plain().expand("$(S)").unknown, ["S"]);
        // Expansion bomb: 10,000 references to a variable of 100 KiB.
        environment.set("LONG", variable(&"x".repeat(100 << 10), false));
        assert!(environment.expand(&"$(LONG)".repeat(10_000)).text.len() < 3 * VALUE_MAX);
        assert!(
            is_name("a.b-c") && is_name(" ") && !is_name("") && !is_name("a=b") && !is_name("ä") && !is_name("a\nb")
        );
    }
}
