//! Reads a container's captured outputs: the list, and each file in chunks.
//!
//! A process with more privilege than the daemon wrote the outputs, from files that a container created. Nevertheless
//! every size is limited and compared, and no link is followed. A file that differs from the list causes an error, and
//! never a shorter or longer response. The functions block and must not run on the runtime's threads.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use executor_core::outputs::{CapturedFile, DIRECTORY, LIST, LIST_BYTES_MAX, LIST_VERSION, OutputsList};
use rustix::fs::{Mode, OFlags, open};

#[derive(Debug, thiserror::Error)]
pub enum OutputsError {
    /// A file is missing.
    #[error("{} does not exist", .0.display())]
    Gone(PathBuf),
    /// A file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// A file is malformed, or differs from the list.
    #[error("{}: {why}", .path.display())]
    Form { path: PathBuf, why: String },
}

#[derive(Clone, Debug)]
pub struct Outputs {
    directory: PathBuf,
}

/// An open output file.
#[derive(Debug)]
pub struct OpenOutput {
    file: File,
    path: PathBuf,
    left: u64,
}

impl Outputs {
    /// Returns the outputs in a container's state directory.
    pub fn from_container(container: &Path) -> Self {
        Self { directory: container.join(DIRECTORY) }
    }

    /// Reads the list.
    ///
    /// # Errors
    /// Returns [`OutputsError`] if the list cannot be read.
    pub fn list(&self) -> Result<OutputsList, OutputsError> {
        let path = self.directory.join(LIST);
        let (file, size) = regular(&path)?;
        let form = |why: String| OutputsError::Form { path: path.clone(), why };
        if size > LIST_BYTES_MAX {
            return Err(form(format!("is {size} bytes; the maximum is {LIST_BYTES_MAX}")));
        }
        let mut bytes = Vec::with_capacity(size as usize);
        file.take(LIST_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| OutputsError::Read(path.clone(), error))?;
        let list: OutputsList = serde_json::from_slice(&bytes).map_err(|error| form(error.to_string()))?;
        if list.version > LIST_VERSION {
            return Err(form(format!(
                "has version {}; this executord reads versions up to {LIST_VERSION}",
                list.version
            )));
        }
        Ok(list)
    }

    /// Opens a file of the list.
    ///
    /// # Errors
    /// Returns [`OutputsError`] if the file cannot be opened or differs from the list.
    pub fn open(&self, captured: &CapturedFile) -> Result<OpenOutput, OutputsError> {
        let path = self.directory.join(captured.number.to_string());
        let (file, size) = regular(&path)?;
        if size != captured.size {
            let why = format!("is {size} bytes; expected {}", captured.size);
            return Err(OutputsError::Form { path, why });
        }
        Ok(OpenOutput { file, path, left: size })
    }
}

impl OpenOutput {
    /// Reads the next chunk, of at most `most` bytes; `None` at the end of the file.
    ///
    /// # Errors
    /// Returns [`OutputsError`] if the file cannot be read or differs from the list.
    pub fn next(&mut self, most: usize) -> Result<Option<Vec<u8>>, OutputsError> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(most);
        if most == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; most];
        self.file.read_exact(&mut piece).map_err(|error| OutputsError::Read(self.path.clone(), error))?;
        self.left -= piece.len() as u64;
        Ok(Some(piece))
    }
}

/// Opens a regular file. Also returns its size.
fn regular(path: &Path) -> Result<(File, u64), OutputsError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let read = |error: io::Error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => OutputsError::Gone(path.to_owned()),
        _ => OutputsError::Read(path.to_owned(), error),
    };
    let file = File::from(open(path, flags, Mode::empty()).map_err(|error| read(error.into()))?);
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() {
        return Err(OutputsError::Form { path: path.to_owned(), why: "is not a regular file".into() });
    }
    Ok((file, metadata.len()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn with(files: &[(&str, &[u8])], list: &str) -> (tempfile::TempDir, Outputs) {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join(DIRECTORY);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(LIST), list).unwrap();
        files.iter().for_each(|(name, content)| fs::write(directory.join(name), content).unwrap());
        let outputs = Outputs::from_container(home.path());
        (home, outputs)
    }

    fn list(size: u64) -> String {
        format!(
            r#"{{"version":1,"files":[{{"number":0,"path":"/a","size":{size},"mode":420}}],"skipped":[],"skipped_more":0}}"#
        )
    }

    #[test]
    fn a_file_comes_in_pieces() {
        let (_home, outputs) = with(&[("0", b"abcdefgh")], &list(8));
        let list = outputs.list().unwrap();
        let mut reading = outputs.open(&list.files[0]).unwrap();
        let mut pieces = Vec::new();
        while let Some(piece) = reading.next(3).unwrap() {
            pieces.push(piece);
        }
        assert_eq!(pieces, [&b"abc"[..], b"def", b"gh"]);
    }

    #[test]
    fn outputs_that_contradict_list_are_errors() {
        let reported =
            |outputs: &Outputs| outputs.list().and_then(|list| outputs.open(&list.files[0])).unwrap_err().to_string();
        let (_a, shorter) = with(&[("0", b"abc")], &list(8));
        assert!(reported(&shorter).ends_with("is 3 bytes; expected 8"), "{}", reported(&shorter));
        let (_b, gone) = with(&[], &list(8));
        assert!(matches!(gone.open(&gone.list().unwrap().files[0]), Err(OutputsError::Gone(_))));
        let (_c, newer) = with(&[], &list(8).replace("\"version\":1", "\"version\":2"));
        assert!(reported(&newer).contains("version 2"), "{}", reported(&newer));
        let (home, link) = with(&[], &list(5));
        std::os::unix::fs::symlink("/etc/hostname", home.path().join(DIRECTORY).join("0")).unwrap();
        assert!(matches!(link.open(&link.list().unwrap().files[0]), Err(OutputsError::Read(..))));
        let (home, large) = with(&[], "");
        let sparse = File::options().write(true).open(home.path().join(DIRECTORY).join(LIST)).unwrap();
        sparse.set_len(LIST_BYTES_MAX + 1).unwrap();
        assert!(large.list().unwrap_err().to_string().contains("the maximum is"));
    }

    /// If a file is truncated while it is read, the result is an error, and not a shorter response.
    #[test]
    fn a_file_that_is_cut_is_reported() {
        let (home, outputs) = with(&[("0", b"abcdefgh")], &list(8));
        let mut reading = outputs.open(&outputs.list().unwrap().files[0]).unwrap();
        assert_eq!(reading.next(4).unwrap().unwrap(), b"abcd");
        File::options().write(true).open(home.path().join(DIRECTORY).join("0")).unwrap().set_len(5).unwrap();
        assert!(matches!(reading.next(4), Err(OutputsError::Read(..))));
    }
}
