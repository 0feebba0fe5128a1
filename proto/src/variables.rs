//! Values of environment variables, which need not be UTF-8.

use zeroize::Zeroize as _;

use crate::v1::EnvironmentVariable;

impl EnvironmentVariable {
    /// Creates a variable. A value that is UTF-8 is in `value`, any other value is in `value_bytes`.
    pub fn from_bytes(name: impl Into<String>, value: Vec<u8>) -> Self {
        let mut variable = Self { name: name.into(), ..Self::default() };
        variable.set_content(value);
        variable
    }

    /// Replaces the variable's value. Wipes the old value.
    pub fn set_content(&mut self, value: Vec<u8>) {
        self.wipe();
        match String::from_utf8(value) {
            Ok(text) => self.value = text,
            Err(error) => self.value_bytes = error.into_bytes(),
        }
    }

    /// Returns the variable's value as bytes.
    pub fn content(&self) -> &[u8] {
        if self.value_bytes.is_empty() { self.value.as_bytes() } else { &self.value_bytes }
    }

    /// Moves the variable's value out, and leaves an empty value.
    pub fn take_content(&mut self) -> Vec<u8> {
        let text = std::mem::take(&mut self.value).into_bytes();
        if self.value_bytes.is_empty() { text } else { std::mem::take(&mut self.value_bytes) }
    }

    /// Overwrites the variable's value with zeros.
    pub fn wipe(&mut self) {
        self.value.zeroize();
        self.value_bytes.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text_or_bytes() {
        for (bytes, is_text) in [(&b"text"[..], true), (b"", true), (b"a\xff", false)] {
            let mut variable = EnvironmentVariable::from_bytes("A", bytes.to_vec());
            assert_eq!((variable.content(), variable.value_bytes.is_empty()), (bytes, is_text));
            assert_eq!(variable.clone().take_content(), bytes);
            variable.wipe();
            assert_eq!((variable.content(), &*variable.value), (&b""[..], ""));
        }
    }
}
