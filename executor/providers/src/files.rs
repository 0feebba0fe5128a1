//! Reads secret files of limited size into memory that is wiped on drop.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use zeroize::Zeroizing;

use crate::FetchError;

/// Maximum size of a file with the operator's credentials, in bytes.
const CREDENTIAL_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(crate) enum ReadError {
    NotRegular,
    TooLarge,
    Io(std::io::Error),
}

/// Reads a regular file of at most `most` bytes.
pub(crate) fn read(mut file: &File, most: usize) -> Result<Zeroizing<Vec<u8>>, ReadError> {
    let metadata = file.metadata().map_err(ReadError::Io)?;
    if !metadata.is_file() {
        return Err(ReadError::NotRegular);
    }
    if metadata.len() > most as u64 {
        return Err(ReadError::TooLarge);
    }
    // Allocate one byte more than the file size, to detect a file that grows. The buffer is never reallocated.
    let mut content = Zeroizing::new(vec![0; most.min(metadata.len() as usize + 1) + 1]);
    let mut filled = 0;
    while filled < content.len() {
        match file.read(&mut content[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ReadError::Io(error)),
        }
    }
    if filled == content.len() {
        return Err(ReadError::TooLarge);
    }
    content.truncate(filled);
    Ok(content)
}

/// Reads a credential of the operator as UTF-8, without surrounding white space.
pub(crate) fn credential(path: &Path) -> Result<Zeroizing<String>, FetchError> {
    let shown = path.display();
    let failed = |why: String| FetchError::unavailable(format!("cannot read {shown}: {why}"));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(|error| failed(std::io::Error::from(error).to_string()))?;
    let bytes = read(&File::from(file), CREDENTIAL_MAX).map_err(|error| match error {
        ReadError::NotRegular => failed("the credential is not a regular file".into()),
        ReadError::TooLarge => failed(format!("the file is larger than the maximum of {CREDENTIAL_MAX} bytes")),
        ReadError::Io(error) => failed(error.to_string()),
    })?;
    let text = std::str::from_utf8(&bytes).map_err(|_| failed("the content is not UTF-8".into()))?;
    Ok(Zeroizing::new(text.trim().to_owned()))
}
