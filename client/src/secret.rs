//! Secret values, which print nothing and are wiped on drop.

use std::fmt;

/// A secret value. A secret prints as `[REDACTED]`, and its memory is overwritten when it is dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Drop for Secret {
    fn drop(&mut self) {
        executor_proto::wipe(&mut self.0);
    }
}

impl Secret {
    /// Returns the bytes of the secret.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Returns the secret as text; `None` if the secret is not UTF-8.
    pub fn expose_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Moves the bytes out; the caller must wipe them.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

impl From<Vec<u8>> for Secret {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        text.as_bytes().to_vec().into()
    }
}

impl From<&[u8]> for Secret {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_printed() {
        let text = format!("{:?}", Secret::from("canary"));
        assert_eq!(text, "[REDACTED]");
    }
}
