//! Inspects a file before it is unpacked: its checksum, its format, and every entry of an archive.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};

use executor_core::plan::{Checksum, ChecksumAlgorithm};
use executor_tar::{Entry, FREE, Kind, Limits, RATIO_MAX, Reader, TarError, is_tar};
use flate2::read::MultiGzDecoder;

use crate::job::{Failure, FileFormat, InspectJob, Report};
use crate::paths::{check_path, leads_out};
use crate::remote::plain;
use crate::zip;

/// Size of a block of a tar archive, in bytes.
const BLOCK: usize = 512;
/// Read size, in bytes.
const PIECE: usize = 64 << 10;

pub(crate) fn inspect(look: &InspectJob, file: &File) -> Result<Report, Failure> {
    if let Some(checksum) = &look.checksum {
        verify(checksum, file)?;
    }
    let bytes = file.metadata().map_err(|error| unreadable(&error))?.len();
    let form = form(file).map_err(|error| unreadable(&error))?;
    match form {
        FileFormat::Tar => entries(rewound(file)?, look.unpacked_bytes_max)?,
        FileFormat::TarGzip => {
            let unpacked = Bounded { inner: MultiGzDecoder::new(rewound(file)?), left: unpacked_size_max(bytes, look) };
            entries(unpacked, look.unpacked_bytes_max)?;
        }
        FileFormat::Zip => zip::check(rewound(file)?, look.unpacked_bytes_max)?,
        FileFormat::File => {}
    }
    Ok(Report::Looked { form, bytes })
}

/// Returns the maximum uncompressed size of an archive in bytes, including its headers.
pub(crate) fn unpacked_size_max(bytes: u64, look: &InspectJob) -> u64 {
    bytes.saturating_mul(RATIO_MAX).max(FREE).min(look.unpacked_bytes_max.saturating_mul(2).saturating_add(1 << 20))
}

pub(crate) fn unreadable(error: &io::Error) -> Failure {
    Failure::last(format!("cannot read the download: {}", plain(&error.to_string())))
}

pub(crate) fn rewound(mut file: &File) -> Result<&File, Failure> {
    file.seek(SeekFrom::Start(0)).map_err(|error| unreadable(&error))?;
    Ok(file)
}

fn verify(checksum: &Checksum, file: &File) -> Result<(), Failure> {
    let found = match checksum.algorithm {
        ChecksumAlgorithm::Md5 => digest::<md5::Md5>(file)?,
        ChecksumAlgorithm::Sha1 => digest::<sha1::Sha1>(file)?,
        ChecksumAlgorithm::Sha256 => digest::<sha2::Sha256>(file)?,
    };
    if found == checksum.value {
        return Ok(());
    }
    let name = checksum.algorithm.name();
    Err(Failure::last(format!("the {name} checksum is {found}; expected {}", checksum.value)))
}

fn digest<D: sha2::Digest>(file: &File) -> Result<String, Failure> {
    let (mut hasher, mut file, mut piece) = (D::new(), rewound(file)?, vec![0; PIECE]);
    loop {
        match file.read(&mut piece).map_err(|error| unreadable(&error))? {
            0 => return Ok(hex::encode(hasher.finalize())),
            length => hasher.update(&piece[..length]),
        }
    }
}

/// Detects the format of a file from its content.
fn form(file: &File) -> io::Result<FileFormat> {
    let start = |from: &mut dyn Read| -> io::Result<Vec<u8>> {
        let mut start = Vec::new();
        from.take(BLOCK as u64).read_to_end(&mut start)?;
        Ok(start)
    };
    let rewind = |mut file: &File| file.seek(SeekFrom::Start(0));
    rewind(file)?;
    let head = start(&mut &*file)?;
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return Ok(FileFormat::Zip);
    }
    if head.starts_with(b"\x1f\x8b") {
        rewind(file)?;
        // A file that cannot be decompressed is treated as a plain file.
        let unpacked = start(&mut MultiGzDecoder::new(file)).unwrap_or_default();
        return Ok(if is_tar(&unpacked) { FileFormat::TarGzip } else { FileFormat::File });
    }
    Ok(if is_tar(&head) { FileFormat::Tar } else { FileFormat::File })
}

/// A reader that returns an error if its source has more than `left` bytes.
pub(crate) struct Bounded<R> {
    pub(crate) inner: R,
    pub(crate) left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(length as u64).ok_or_else(|| {
            io::Error::other(
                "the content has far more bytes than its compressed size, or exceeds transfers.unpacked_bytes_max",
            )
        })?;
        Ok(length)
    }
}

/// Checks every entry of a tar archive.
fn entries(archive: impl Read, bytes_max: u64) -> Result<(), Failure> {
    let damaged = |error: TarError| Failure::last(plain(&error.to_string()).to_owned());
    // The source limits the size of the archive including its headers.
    let limits = Limits { bytes: u64::MAX, ..Limits::default().within(bytes_max) };
    let mut reader = Reader::new(archive, limits);
    let mut piece = vec![0; PIECE];
    while let Some(entry) = reader.next_entry().map_err(damaged)? {
        check(&entry)?;
        while reader.content(&mut piece).map_err(damaged)?.is_some() {}
    }
    Ok(())
}

/// Checks an entry. The path and the target of a hard link must not escape the directory, and devices are refused.
fn check(entry: &Entry) -> Result<(), Failure> {
    let shown = |path: &[u8]| path.escape_ascii().to_string();
    check_path(&entry.path)?;
    match entry.kind {
        Kind::HardLink if leads_out(&entry.link) => {
            let (path, link) = (shown(&entry.path), shown(&entry.link));
            Err(Failure::last(format!("`{path}` is a hard link to `{link}`, which escapes the directory")))
        }
        Kind::CharDevice(..) | Kind::BlockDevice(..) => {
            Err(Failure::last(format!("`{}` is a device node, which is not allowed", shown(&entry.path))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
