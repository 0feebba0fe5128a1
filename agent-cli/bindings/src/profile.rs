//! Profiles for the translation of VCAP_SERVICES to files. Each profile follows the rules of one source.

use std::fmt;
use std::str::FromStr;

/// Rules by which VCAP_SERVICES is translated to files.
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
/// In all profiles an attribute replaces a credential of the same name: programs find bindings by `type` and
/// `provider`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// CF RFC 0030, on which the other profiles are based.
    Rfc,
    /// The current Cloud Controller.
    #[default]
    Cc,
    /// The buildpacks' library, which reads VCAP_SERVICES itself.
    Libcnb,
}

impl Profile {
    pub const ALL: [Self; 3] = [Self::Cc, Self::Rfc, Self::Libcnb];

    pub fn name(self) -> &'static str {
        match self {
            Self::Rfc => "rfc",
            Self::Cc => "cc",
            Self::Libcnb => "libcnb",
        }
    }

    /// Returns true if the entry `provider` is the label of the binding, and false if it is the top-level key.
    pub(crate) fn provider_is_label(self) -> bool {
        self == Self::Cc
    }

    /// Returns true if attributes other than credentials also become files.
    pub(crate) fn writes_attributes(self) -> bool {
        self != Self::Libcnb
    }

    /// Returns the file name of an attribute.
    pub(crate) fn attribute(self, name: &str) -> String {
        if self == Self::Rfc { name.replace('_', "-") } else { name.to_owned() }
    }

    /// Returns true if null, `[]` and `{}` become no file.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a profile; use cc, rfc or libcnb")]
pub struct UnknownProfile;
