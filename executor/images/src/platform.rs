//! Compares platforms of images with this machine's platform: operating system, architecture and variant.

use oci_spec::image::{Arch, Os, Platform};

/// Platform of this machine, in terms of the image specification, such as `linux/arm64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    arch: Arch,
    /// Variants of the architecture that run here, best first. An image without a variant also runs.
    variants: &'static [&'static str],
}

impl Host {
    pub(crate) fn here() -> Self {
        Self::from_arch(std::env::consts::ARCH)
    }

    fn from_arch(arch: &str) -> Self {
        match arch {
            "x86_64" => Self { arch: Arch::Amd64, variants: &["v1"] },
            "aarch64" => Self { arch: Arch::ARM64, variants: &["v8"] },
            "arm" => Self { arch: Arch::ARM, variants: &["v7", "v6", "v5"] },
            "x86" => Self { arch: Arch::i386, variants: &[] },
            other => Self { arch: Arch::from(other), variants: &[] },
        }
    }

    /// Returns the rank of a platform; a lower rank is better. Returns `None` if the platform does not run here.
    pub(crate) fn rank(&self, os: &Os, arch: &Arch, variant: Option<&str>) -> Option<usize> {
        if *os != Os::Linux || *arch != self.arch {
            return None;
        }
        match variant.filter(|variant| !variant.is_empty()) {
            None => Some(self.variants.len()),
            Some(variant) => self.variants.iter().position(|known| *known == variant),
        }
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "linux/{}", self.arch)
    }
}

/// Formats a platform: `os/arch[/variant]`.
pub(crate) fn to_text(os: &Os, arch: &Arch, variant: Option<&str>) -> String {
    let variant = variant.filter(|variant| !variant.is_empty()).map(|variant| format!("/{variant}"));
    let word = format!("{os}/{arch}{}", variant.unwrap_or_default());
    word.chars().filter(|c| c.is_ascii_graphic()).take(60).collect()
}

/// Formats the platform of an index entry.
pub(crate) fn from_index(platform: &Platform) -> String {
    to_text(platform.os(), platform.architecture(), platform.variant().as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_supported_variant_is_selected() {
        let arm = Host::from_arch("arm");
        let rank = |variant| arm.rank(&Os::Linux, &Arch::ARM, variant);
        assert!(rank(Some("v7")) < rank(Some("v6")) && rank(Some("v6")) < rank(None));
        assert_eq!(rank(Some("v8")), None);
        let here = Host::from_arch("x86_64");
        assert_eq!(here.rank(&Os::Linux, &Arch::Amd64, None), Some(1));
        assert_eq!(here.rank(&Os::Linux, &Arch::Amd64, Some("v3")), None);
        assert_eq!(here.rank(&Os::Linux, &Arch::ARM64, None), None);
        assert_eq!(here.rank(&Os::Windows, &Arch::Amd64, None), None);
    }
}
