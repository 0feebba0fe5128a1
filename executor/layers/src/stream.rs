//! Reads a blob as a stream, which is decompressed, counted and hashed while it is read.
//!
//! The decoders are flate2 with miniz_oxide, and ruzstd: the process that reads untrusted data runs no C code, and no
//! library must be installed. The bytes are hashed while they are unpacked, so no byte is read twice, and the digest
//! covers exactly the unpacked bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::str::FromStr;

use executor_sys::holes;
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest, Sha256};

use crate::error::Context;
use crate::{DiffId, Limits, UnpackError};

/// Read size for a blob, in bytes.
const BLOCK: usize = 128 << 10;
/// Maximum window size of a zstd frame in bytes, as with `zstd --ultra --long=27`. The window is held in memory.
const WINDOW_MAX: u64 = 128 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    /// gzip with any number of members.
    Gzip,
    /// zstd with any number of frames.
    Zstd,
}

/// Parses the media types of OCI and Docker layers (image specification, `media-types.md` and `layer.md`).
impl FromStr for Compression {
    type Err = UnpackError;

    fn from_str(media_type: &str) -> Result<Self, UnpackError> {
        Ok(match media_type {
            "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar"
            | "application/vnd.docker.image.rootfs.diff.tar" => Self::None,
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" => Self::Gzip,
            "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd" => Self::Zstd,
            _ => return Err(UnpackError::MediaType(media_type.chars().take(200).collect())),
        })
    }
}

/// A file that is read from its start to the size that it had when it was opened. Reads do not use the descriptor's
/// offset, because the sender shares this offset.
struct Blob {
    file: File,
    at: u64,
    end: u64,
}

impl Read for Blob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The decompressed bytes of a blob.
pub struct Archive {
    decoder: Decoder,
    hasher: Sha256,
    bytes: u64,
    most: u64,
    most_by_ratio: u64,
}

enum Decoder {
    None(BufReader<Blob>),
    Gzip(Box<MultiGzDecoder<BufReader<Blob>>>),
    Zstd(Box<Frames>),
}

impl Archive {
    /// Starts reading a blob.
    ///
    /// # Errors
    /// Returns an error if the blob is not a regular file, exceeds the size limit, or consists mostly of holes, because
    /// reading holes costs as much as reading data.
    pub fn open(file: File, compression: Compression, limits: &Limits) -> Result<Self, UnpackError> {
        let meta = file.metadata().context(|| "cannot inspect the blob".to_owned())?;
        if !meta.is_file() {
            return Err(UnpackError::archive(b"", "the blob is not a regular file"));
        }
        let length = meta.len();
        let (what, most) = match compression {
            Compression::None => ("bytes of the uncompressed archive", limits.archive.bytes),
            // Incompressible data becomes slightly longer when it is compressed.
            Compression::Gzip | Compression::Zstd => {
                ("bytes of the blob", limits.archive.bytes.saturating_add(limits.free))
            }
        };
        if length > most {
            return Err(UnpackError::limit(b"", what, length, most));
        }
        // Reading a hole costs as much as reading highly compressed bytes, so holes have the same limit.
        if let Some(most) = holes::excess(&file, 0..length, limits.ratio, limits.free)
            .context(|| "cannot inspect the blob".to_owned())?
        {
            let what = "bytes in the sparse blob (the limit grows with the bytes that are stored on disk)";
            return Err(UnpackError::limit(b"", what, length, most));
        }
        let most_by_ratio = length.saturating_mul(limits.ratio).saturating_add(limits.free);
        let blob = BufReader::with_capacity(BLOCK, Blob { file, at: 0, end: length });
        let decoder = match compression {
            Compression::None => Decoder::None(blob),
            Compression::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(blob))),
            Compression::Zstd => Decoder::Zstd(Box::new(Frames::new(blob))),
        };
        Ok(Self { decoder, hasher: Sha256::new(), bytes: 0, most: limits.archive.bytes, most_by_ratio })
    }

    /// Reads up to `buffer.len()` bytes. Returns 0 at the end of the file.
    ///
    /// # Errors
    /// Returns an error if the data cannot be decompressed or a limit is exceeded.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, UnpackError> {
        let read = loop {
            let read = match &mut self.decoder {
                Decoder::None(blob) => blob.read(buffer),
                Decoder::Gzip(gzip) => gzip.read(buffer),
                Decoder::Zstd(zstd) => zstd.read(buffer),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|error| UnpackError::archive(b"", reported(&error)))?,
            }
        };
        self.hasher.update(&buffer[..read]);
        self.bytes += read as u64;
        if self.bytes > self.most {
            return Err(UnpackError::limit(b"", "bytes of the uncompressed archive", self.bytes, self.most));
        }
        if self.bytes > self.most_by_ratio {
            let what = "bytes of the uncompressed archive, for a blob of this size";
            return Err(UnpackError::limit(b"", what, self.bytes, self.most_by_ratio));
        }
        Ok(read)
    }

    /// Reads the remaining bytes, which are part of the digest, and returns the digest.
    ///
    /// # Errors
    /// Returns the same errors as [`Archive::read`].
    pub fn finish(mut self) -> Result<DiffId, UnpackError> {
        let mut buffer = vec![0; BLOCK];
        while self.read(&mut buffer)? > 0 {}
        Ok(DiffId::from_bytes(self.hasher.finalize().into()))
    }
}

/// Wraps errors in [`io::Error`]; [`UnpackError::from`] restores the original error.
impl Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Self::read(self, buffer).map_err(io::Error::other)
    }
}

/// Formats a read error. Returns "truncated" if the blob ends too early.
fn reported(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof { "truncated".into() } else { error.to_string() }
}

/// Decodes consecutive zstd frames. Skips skippable frames, which occur in seekable archives.
struct Frames {
    blob: BufReader<Blob>,
    decoder: FrameDecoder,
    within: bool,
}

impl Frames {
    fn new(blob: BufReader<Blob>) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_MAX);
        Self { blob, decoder, within: false }
    }

    /// Starts the next frame. Returns false if there is no further frame.
    fn next(&mut self) -> io::Result<bool> {
        loop {
            if self.blob.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.blob) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.blob).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// Verifies the checksum of a frame if it has one.
    fn verify(&self) -> io::Result<()> {
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(expected), Some(found)) if expected != found => {
                Err(io::Error::other("a zstd frame has a wrong checksum"))
            }
            _ => Ok(()),
        }
    }
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within {
                if !self.next()? {
                    return Ok(0);
                }
                self.within = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.blob, one).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            if self.decoder.is_finished() {
                self.verify()?;
                self.within = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sparse blob (one large hole) is refused before it is read, with each compression: if its length exceeds the
    /// limit, or if too few of its bytes are stored on disk. As a control, a hole within the limits is accepted.
    #[test]
    fn sparse_blob_is_refused_before_read() {
        let mut limits = Limits::default();
        limits.archive.bytes = 1 << 40;
        let sparse = |length| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(length).unwrap();
            file
        };
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            // This blob is a skippable frame, followed by a hole.
            let file = sparse(1 << 40);
            file.write_all_at(&[0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff], 0).unwrap();
            let reported = Archive::open(file, compression, &limits).err().unwrap().to_string();
            assert!(reported.contains("stored on disk"), "{reported}");
            let reported = Archive::open(sparse(1 << 40), compression, &Limits::default()).err().unwrap().to_string();
            assert!(reported.contains("bytes of the"), "{reported}");
            assert!(Archive::open(sparse(limits.free), compression, &limits).is_ok());
        }
    }

    /// If bytes are appended to a blob while it is read, they are ignored.
    #[test]
    fn blob_appended_after_open_is_ignored() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 1000], 0).unwrap();
        let mut archive = Archive::open(file.try_clone().unwrap(), Compression::None, &Limits::default()).unwrap();
        file.write_all_at(&[2; 1000], 1000).unwrap();
        let (mut buffer, mut read) = ([0; 512], 0);
        loop {
            match archive.read(&mut buffer).unwrap() {
                0 => break,
                bytes => read += bytes,
            }
        }
        assert_eq!(read, 1000);
    }
}
