//! Files of a catalog: one file, or a directory with all that is in it but for what its `.indexignore` files leave out (rules C1 and C2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Name of the files with patterns.
const IGNORE_FILE: &str = ".indexignore";
/// Most files of a catalog.
const FILES_MAX: usize = 100_000;
/// Deepest directory.
const DEPTH_MAX: usize = 64;
/// Largest `.indexignore`.
const IGNORE_MAX: u64 = 1 << 20;

/// Error of finding the files of a catalog.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum FilesError {
    #[error("{} cannot be read", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{}: {why}", .path.display())]
    Pattern { path: PathBuf, why: String },
    #[error("{} is neither a file nor a directory", .0.display())]
    Kind(PathBuf),
    #[error("{} is a link that leads out of the catalog", .0.display())]
    Link(PathBuf),
    #[error("{} has more than {FILES_MAX} files, or directories more than {DEPTH_MAX} deep", .0.display())]
    TooMany(PathBuf),
}

/// Lists the files, sorted.
///
/// # Errors
/// Something cannot be read, or is not a file; there are too many.
pub fn list(root: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let read = |error| FilesError::Read(root.to_owned(), error);
    let root = &fs::canonicalize(root).map_err(read)?;
    if !fs::metadata(root).map_err(read)?.is_dir() {
        return Ok(vec![root.clone()]);
    }
    let mut found = Vec::new();
    walk(root, root, &mut Vec::new(), &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(
    root: &Path,
    directory: &Path,
    ignored: &mut Vec<Gitignore>,
    found: &mut Vec<PathBuf>,
) -> Result<(), FilesError> {
    if ignored.len() >= DEPTH_MAX {
        return Err(FilesError::TooMany(root.to_owned()));
    }
    ignored.push(patterns(directory)?);
    let read = |error| FilesError::Read(directory.to_owned(), error);
    for entry in fs::read_dir(directory).map_err(read)? {
        let entry = entry.map_err(read)?;
        let path = entry.path();
        let kind = entry.file_type().map_err(read)?;
        if kind.is_dir() {
            walk(root, &path, ignored, found)?;
            continue;
        }
        if entry.file_name() == IGNORE_FILE || is_ignored(ignored, &path) {
            continue;
        }
        if kind.is_symlink() {
            let target = fs::canonicalize(&path).map_err(|error| FilesError::Read(path.clone(), error))?;
            if !target.starts_with(root) {
                return Err(FilesError::Link(path));
            }
            if !target.is_file() {
                return Err(FilesError::Kind(path));
            }
        } else if !kind.is_file() {
            return Err(FilesError::Kind(path));
        }
        if found.len() >= FILES_MAX {
            return Err(FilesError::TooMany(root.to_owned()));
        }
        found.push(path);
    }
    ignored.pop();
    Ok(())
}

/// Patterns of a directory: those of its own file alone.
fn patterns(directory: &Path) -> Result<Gitignore, FilesError> {
    let path = directory.join(IGNORE_FILE);
    let text = match fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_file() && metadata.len() <= IGNORE_MAX => {
            fs::read_to_string(&path).map_err(|error| FilesError::Read(path.clone(), error))?
        }
        Ok(_) => return Err(FilesError::Pattern { path, why: format!("is not a file of at most {IGNORE_MAX} bytes") }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Gitignore::empty()),
        Err(error) => return Err(FilesError::Read(path, error)),
    };
    let mut builder = GitignoreBuilder::new(directory);
    for line in text.lines() {
        builder
            .add_line(None, line)
            .map_err(|error| FilesError::Pattern { path: path.clone(), why: error.to_string() })?;
    }
    builder.build().map_err(|error| FilesError::Pattern { path, why: error.to_string() })
}

/// The deepest file with a word about a path decides.
fn is_ignored(ignored: &[Gitignore], path: &Path) -> bool {
    for patterns in ignored.iter().rev() {
        if patterns.is_empty() {
            continue;
        }
        let said = patterns.matched_path_or_any_parents(path, false);
        if !said.is_none() {
            return said.is_ignore();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_indexignore_at_any_level_with_the_rules_of_gitignore() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (path, text) in [
            ("a.yaml", ""),
            ("README.md", ""),
            ("docs/x.yaml", ""),
            ("docs/deep/y.yaml", ""),
            ("p/catalog.yaml", ""),
            ("p/notes.txt", ""),
            ("p/keep.txt", ""),
            ("q/keep.txt", ""),
            (".indexignore", "# comment\n*.md\n/docs/\n*.txt\n"),
            ("p/.indexignore", "!keep.txt\n"),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let names = || -> Vec<String> {
            let root = fs::canonicalize(root).unwrap();
            list(&root).unwrap().iter().map(|path| path.strip_prefix(&root).unwrap().display().to_string()).collect()
        };
        assert_eq!(names(), ["a.yaml", "p/catalog.yaml", "p/keep.txt"]);
        // Without the patterns all of them count: there is no list of endings.
        fs::remove_file(root.join(".indexignore")).unwrap();
        assert_eq!(names().len(), 8);
    }

    #[test]
    fn links_stay_within_the_catalog() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "").unwrap();
        std::os::unix::fs::symlink("a.yaml", dir.path().join("b.yaml")).unwrap();
        assert_eq!(list(dir.path()).unwrap().len(), 2);
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("c.yaml")).unwrap();
        assert!(matches!(list(dir.path()), Err(FilesError::Link(_))));
    }
}
