//! Checks names of installations and bundles.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use unicode_general_category::{GeneralCategory, get_general_category};

use crate::violation::Violations;

/// Maximum length of the name of an installation or a bundle, in bytes of UTF-8. Such a name fits into a file name and
/// a label.
pub const NAME_MAX: usize = 200;

/// Returns a message if a name is invalid (rule 5). CNAB 101 and 103 allow characters of the Unicode categories L, M,
/// N, P, S and Zs.
pub fn fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("is empty".into());
    }
    if name.len() > NAME_MAX {
        return Some(format!("is {} bytes; the maximum is {NAME_MAX}", name.len()));
    }
    let bad = name.chars().find(|c| !is_graphic(*c))?;
    Some(format!(
        "has the character {}; only letters, marks, numbers, punctuation, symbols and spaces are allowed",
        bad.escape_unicode()
    ))
}

/// Checks the name of an installation.
///
/// # Errors
/// Returns a violation if the name is not valid.
pub fn installation(name: &str) -> Result<(), Violations> {
    match fault(name) {
        Some(fault) => Err(Violations::one("", 5, format!("the installation's name {fault}"))),
        None => Ok(()),
    }
}

fn is_graphic(c: char) -> bool {
    !matches!(
        get_general_category(c),
        GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::Surrogate
            | GeneralCategory::PrivateUse
            | GeneralCategory::Unassigned
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
    )
}
