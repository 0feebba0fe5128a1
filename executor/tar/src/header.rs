//! The header block of 512 bytes before each entry.

use crate::{TarError, Time};

/// Size of a block in bytes.
pub(crate) const BLOCK: usize = 512;

/// A v7, ustar or GNU header.
pub(crate) struct Header<'a>(pub(crate) &'a [u8; BLOCK]);

impl Header<'_> {
    /// Verifies the checksum: the sum of all bytes, with the checksum field blank. A sum of signed bytes is also
    /// accepted, because some old programs write it.
    pub(crate) fn check(&self) -> Result<(), TarError> {
        let stored = number(&self.0[148..156]);
        let bytes = || self.0.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { b' ' } else { *byte });
        let unsigned: i64 = bytes().map(i64::from).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
        if stored == Some(unsigned) || stored == Some(signed) {
            return Ok(());
        }
        Err(TarError::damaged(b"", "a header has a wrong checksum: not a tar archive"))
    }

    pub(crate) fn kind(&self) -> u8 {
        self.0[156]
    }

    pub(crate) fn path(&self) -> Vec<u8> {
        let name = until_nul(&self.0[..100]);
        let prefix = until_nul(&self.0[345..500]);
        // In GNU's format this range holds other fields.
        if &self.0[257..263] == b"ustar\0" && !prefix.is_empty() {
            return [prefix, b"/", name].concat();
        }
        name.to_vec()
    }

    pub(crate) fn link(&self) -> Vec<u8> {
        until_nul(&self.0[157..257]).to_vec()
    }

    pub(crate) fn mode(&self) -> Result<u32, TarError> {
        // Some programs store the file type above the permissions.
        self.positive(100..108, "mode").map(|mode| (mode & 0o7777) as u32)
    }

    pub(crate) fn uid(&self) -> Result<u64, TarError> {
        self.positive(108..116, "owner")
    }

    pub(crate) fn gid(&self) -> Result<u64, TarError> {
        self.positive(116..124, "group")
    }

    pub(crate) fn size(&self) -> Result<u64, TarError> {
        self.positive(124..136, "size")
    }

    pub(crate) fn mtime(&self) -> Result<Time, TarError> {
        let seconds = number(&self.0[136..148]).ok_or_else(|| self.damaged("time"))?;
        Ok(Time { seconds, nanoseconds: 0 })
    }

    pub(crate) fn device_major(&self) -> Result<u32, TarError> {
        self.device(329..337)
    }

    pub(crate) fn device_minor(&self) -> Result<u32, TarError> {
        self.device(337..345)
    }

    /// Returns GNU's sparse list, and true if extension blocks follow.
    pub(crate) fn gnu_pieces(&self) -> (&[u8], bool) {
        (&self.0[386..482], self.0[482] != 0)
    }

    /// Returns the size of a GNU sparse file, including holes.
    pub(crate) fn gnu_size(&self) -> Result<u64, TarError> {
        self.positive(483..495, "size")
    }

    fn device(&self, field: std::ops::Range<usize>) -> Result<u32, TarError> {
        let number = self.positive(field, "device number")?;
        u32::try_from(number).map_err(|_| self.damaged("device number"))
    }

    fn positive(&self, field: std::ops::Range<usize>, what: &str) -> Result<u64, TarError> {
        number(&self.0[field]).and_then(|number| u64::try_from(number).ok()).ok_or_else(|| self.damaged(what))
    }

    fn damaged(&self, what: &str) -> TarError {
        TarError::damaged(&self.path(), format!("the {what} in the header is not a number"))
    }
}

/// Parses a number: octal digits, or base 256 if the highest bit is set. An empty field is 0.
pub(crate) fn number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        let negative = first & 0x40 != 0;
        let start = i128::from(first & 0x3f) - if negative { 64 } else { 0 };
        let value = rest.iter().try_fold(start, |value, byte| value.checked_mul(256)?.checked_add(i128::from(*byte)));
        return i64::try_from(value?).ok();
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if digits.is_empty() {
        return Some(0);
    }
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| i64::from_str_radix(digits, 8).ok())?
}

/// Returns the bytes before the first NUL.
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns true if `beginning`, the first 512 or more bytes of a file, belongs to a tar archive: the first block is a
/// header with a valid checksum, or the end of an empty archive.
pub fn is_tar(beginning: &[u8]) -> bool {
    beginning.first_chunk().is_some_and(|block| *block == [0; BLOCK] || Header(block).check().is_ok())
}
