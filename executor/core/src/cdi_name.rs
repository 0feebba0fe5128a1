//! Parses qualified names of devices of the Container Device Interface (CDI).

/// Maximum length of a label of the vendor, of a class, or of a device name, in bytes.
const PART_MAX: usize = 63;
/// Maximum length of a vendor (a DNS name), in bytes.
const VENDOR_MAX: usize = 253;

/// Qualified name of a device: `vendor.com/class=name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QualifiedName<'a> {
    /// Kind of the device: `vendor.com/class`.
    pub(crate) kind: &'a str,
    /// Name of the device within its kind.
    pub(crate) device: &'a str,
}

impl<'a> QualifiedName<'a> {
    /// Parses a qualified name.
    ///
    /// # Errors
    /// Returns a message with the expected format if the name is invalid.
    pub(crate) fn parse(text: &'a str) -> Result<Self, &'static str> {
        let (kind, device) = text.split_once('=').ok_or("use vendor.com/class=name")?;
        check_kind(kind)?;
        if !is_name(device, b"_-.:", false) {
            return Err("the device name must be 1 to 63 of [A-Za-z0-9_.:-], with a letter or a digit at both ends");
        }
        Ok(Self { kind, device })
    }
}

/// Checks a device kind, `vendor.com/class`.
///
/// # Errors
/// Returns a message with the expected format if the kind is invalid.
pub(crate) fn check_kind(kind: &str) -> Result<(), &'static str> {
    let (vendor, class) = kind.split_once('/').ok_or("the kind must be vendor.com/class")?;
    let labels = vendor.len() <= VENDOR_MAX && vendor.split('.').all(|label| is_name(label, b"_-", false));
    if !labels || !vendor.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err("the vendor must be a DNS name, such as vendor.com");
    }
    if !is_name(class, b"_-.", true) {
        return Err("the class must be 1 to 63 of [A-Za-z0-9_.-], with a letter first and a letter or a digit last");
    }
    Ok(())
}

fn is_name(text: &str, between: &[u8], letter_first: bool) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    let first = if letter_first { first.is_ascii_alphabetic() } else { first.is_ascii_alphanumeric() };
    let plain = bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || between.contains(byte));
    first && last.is_ascii_alphanumeric() && plain && bytes.len() <= PART_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualified_names_have_three_parts() {
        for name in ["vendor.com/class=name", "a/b=0", "vendor.com/net-x.y=GPU-1:0.a_b", "nvidia.com/gpu=all"] {
            QualifiedName::parse(name).unwrap();
        }
        let long = format!("a/b={}", "x".repeat(64));
        for name in [
            "",
            "=",
            "vendor.com",
            "vendor.com/class",
            "vendor.com=a",
            "/class=a",
            "vendor.com/=a",
            "vendor.com/class=",
            "vendor.com/class=*",
            "1.com/class=a",
            "vendor..com/class=a",
            "vendor.com/1class=a",
            "vendor.com/class-=a",
            "vendor.com/class=-a",
            "vendor.com/class=a:",
            "vendor.com/class=a=b",
            "vendor.com/a/b=c",
            "../x=a",
            &long,
        ] {
            assert!(QualifiedName::parse(name).is_err(), "{name}");
        }
    }
}
