//! Profiles of the translation of VCAP_SERVICES to files, by the source of their rules.

use std::fmt;
use std::str::FromStr;

/// Profile of a translation.
///
/// | rule | rfc | libcnb | cc |
/// |---|---|---|---|
/// | `type` | label | label | label |
/// | `provider` | top-level key | top-level key | label |
/// | value that is no string | JSON | JSON | JSON |
/// | other attributes | a file each | none | a file each |
/// | `_` in an attribute's name | `-` | | kept |
/// | null, `[]`, `{}` | JSON | JSON | no file |
///
/// In all of them an attribute takes the place of a credential of the same name: `type` and `provider` are what the files
/// are found by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// CF RFC 0030, from which the others grew.
    Rfc,
    /// Cloud Controller as it is today.
    #[default]
    Cc,
    /// The buildpacks' library, which reads VCAP_SERVICES by itself.
    Libcnb,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 3] = [Self::Cc, Self::Rfc, Self::Libcnb];

    /// Returns the name of the profile.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rfc => "rfc",
            Self::Cc => "cc",
            Self::Libcnb => "libcnb",
        }
    }

    /// `provider` is the label, and not the key that the binding stands under.
    pub(crate) fn provider_is_label(self) -> bool {
        self == Self::Cc
    }

    /// Attributes that are no credentials become files, too.
    pub(crate) fn writes_attributes(self) -> bool {
        self != Self::Libcnb
    }

    /// The file of an attribute.
    pub(crate) fn attribute(self, name: &str) -> String {
        if self == Self::Rfc { name.replace('_', "-") } else { name.to_owned() }
    }

    /// Values that say nothing become no file.
    pub(crate) fn omits_empty(self) -> bool {
        self == Self::Cc
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|profile| profile.name() == text).ok_or(UnknownProfile)
    }
}

/// Error of an unknown profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a profile; use cc, rfc or libcnb")]
pub struct UnknownProfile;
