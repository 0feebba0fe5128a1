//! Writes a file as a tar archive to the pipe of the process in the container that unpacks it.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write as _};

use flate2::read::MultiGzDecoder;
use tar::{Builder, EntryType, Header};

use crate::job::{Failure, FailureKind, FileFormat, InspectJob, Report, Unpack};
use crate::look::{Bounded, rewound, unpacked_size_max, unreadable};
use crate::remote::plain;
use crate::zip;

/// Write size, in bytes.
const PIECE: usize = 64 << 10;
/// Permissions of a file that is not an archive.
const FILE_MODE: u32 = 0o644;

pub(crate) fn unpack(unpack: &Unpack, file: &File, pipe: File) -> Result<Report, Failure> {
    let bytes = file.metadata().map_err(|error| unreadable(&error))?.len();
    let mut pipe = BufWriter::with_capacity(PIECE, pipe);
    let source = rewound(file)?;
    let written = match unpack.form {
        FileFormat::Tar => io::copy(&mut &*source, &mut pipe).map(drop),
        FileFormat::TarGzip => {
            let look = InspectJob { checksum: None, unpacked_bytes_max: unpack.unpacked_bytes_max };
            let mut unpacked = Bounded { inner: MultiGzDecoder::new(source), left: unpacked_size_max(bytes, &look) };
            io::copy(&mut unpacked, &mut pipe).map(drop)
        }
        FileFormat::Zip => zip::to_tar(source, &mut pipe, unpack.unpacked_bytes_max),
        FileFormat::File => single(source, bytes, &unpack.name, &mut pipe),
    };
    let ended = |error: io::Error| {
        let kind = if error.kind() == io::ErrorKind::BrokenPipe { FailureKind::Pipe } else { FailureKind::Final };
        Failure { why: plain(&error.to_string()).to_owned(), kind }
    };
    written.and_then(|()| pipe.flush()).map_err(ended)?;
    Ok(Report::Unpacked)
}

fn single(file: &File, bytes: u64, name: &str, out: &mut impl io::Write) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(bytes);
    header.set_mode(FILE_MODE);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    header.set_mtime(now.map(|since| since.as_secs()).unwrap_or_default());
    let mut archive = Builder::new(out);
    archive.append_data(&mut header, name, file.take(bytes))?;
    archive.finish()
}
