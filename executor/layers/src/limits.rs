//! Defines the limits on a layer.

use executor_tar::{FREE, RATIO_MAX};

/// Limits on one layer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Limits on the uncompressed archive.
    pub archive: executor_tar::Limits,
    /// Maximum compression ratio: bytes of the uncompressed archive per byte of the blob, beyond [`Limits::free`].
    pub ratio: u64,
    /// Number of bytes of the uncompressed archive that do not count for the ratio.
    pub free: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { archive: executor_tar::Limits::default(), ratio: RATIO_MAX, free: FREE }
    }
}

impl Limits {
    /// Lowers the limits on bytes to `bytes`. A value of 0 changes nothing.
    pub fn within(self, bytes: u64) -> Self {
        Self { archive: self.archive.within(bytes), ..self }
    }
}
