//! Lists the files of a catalog: one file, or the files of a directory that no `.indexignore` file excludes.
//!
//! Implements rules C1 and C2 of `docs/guides/catalogs.md`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::patterns::{Patterns, Steps};

/// Name of the files with exclusion patterns.
const IGNORE_FILE: &str = ".indexignore";
/// Maximum number of files of a catalog.
const FILES_MAX: usize = 100_000;
/// Maximum depth of directories.
const DEPTH_MAX: usize = 64;
/// Maximum size of an `.indexignore` file, in bytes.
const IGNORE_MAX: u64 = 1 << 20;

/// Error from finding the files of a catalog.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("{} cannot be read", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{}: {why}", .path.display())]
    Pattern { path: PathBuf, why: String },
    #[error("{} is neither a file nor a directory", .0.display())]
    Kind(PathBuf),
    #[error("{} is a symbolic link that escapes the catalog", .0.display())]
    Link(PathBuf),
    #[error("{} has more than {FILES_MAX} files, or directories nested more than {DEPTH_MAX} levels deep", .0.display())]
    TooMany(PathBuf),
}

#[derive(Debug, Default)]
pub struct Listing {
    /// The files, sorted.
    pub files: Vec<PathBuf>,
    /// Number of excluded files and directories, by the path of the `.indexignore` file.
    pub left_out: BTreeMap<PathBuf, usize>,
}

/// Lists the files of a catalog.
///
/// # Errors
/// Returns an error if an entry cannot be read, is neither a file nor a directory, or is a symbolic link that escapes
/// the catalog, if an `.indexignore` file is invalid, or if there are too many files.
pub fn list(root: &Path) -> Result<Listing, FilesError> {
    let read = |error| FilesError::Read(root.to_owned(), error);
    let root = &fs::canonicalize(root).map_err(read)?;
    if !fs::metadata(root).map_err(read)?.is_dir() {
        return Ok(Listing { files: vec![root.clone()], ..Listing::default() });
    }
    let mut walk = Walk { root, ignored: Vec::new(), steps: Steps::default(), listing: Listing::default() };
    walk.enter(root)?;
    walk.listing.files.sort();
    Ok(walk.listing)
}

struct Walk<'a> {
    root: &'a Path,
    /// Patterns of each directory from the root to the current directory, with the path of the `.indexignore` file.
    ignored: Vec<(PathBuf, Patterns)>,
    steps: Steps,
    listing: Listing,
}

impl Walk<'_> {
    fn enter(&mut self, directory: &Path) -> Result<(), FilesError> {
        if self.ignored.len() >= DEPTH_MAX {
            return Err(FilesError::TooMany(self.root.to_owned()));
        }
        let file = directory.join(IGNORE_FILE);
        let patterns = patterns(&file)?;
        self.ignored.push((file, patterns));
        let read = |error| FilesError::Read(directory.to_owned(), error);
        for entry in fs::read_dir(directory).map_err(read)? {
            let entry = entry.map_err(read)?;
            let path = entry.path();
            let kind = entry.file_type().map_err(read)?;
            if entry.file_name() == IGNORE_FILE && !kind.is_dir() {
                continue;
            }
            // Check a directory before entering it: a pattern cannot include files of an excluded directory again.
            if self.is_left_out(&path, kind.is_dir())? {
                continue;
            }
            if kind.is_dir() {
                self.enter(&path)?;
                continue;
            }
            if kind.is_symlink() {
                let target = fs::canonicalize(&path).map_err(|error| FilesError::Read(path.clone(), error))?;
                if !target.starts_with(self.root) {
                    return Err(FilesError::Link(path));
                }
                if !target.is_file() {
                    return Err(FilesError::Kind(path));
                }
            } else if !kind.is_file() {
                return Err(FilesError::Kind(path));
            }
            if self.listing.files.len() >= FILES_MAX {
                return Err(FilesError::TooMany(self.root.to_owned()));
            }
            self.listing.files.push(path);
        }
        self.ignored.pop();
        Ok(())
    }

    /// Returns true if a path is excluded. The deepest `.indexignore` file with a matching pattern decides.
    fn is_left_out(&mut self, path: &Path, is_directory: bool) -> Result<bool, FilesError> {
        for (file, patterns) in self.ignored.iter().rev() {
            let below = file.parent().and_then(|directory| path.strip_prefix(directory).ok()).unwrap_or(path);
            let found = patterns.is_left_out(below.as_os_str().as_bytes(), is_directory, &mut self.steps);
            if self.steps.is_exceeded() {
                let why = "matching the patterns with the catalog's files takes too many comparisons".to_owned();
                return Err(FilesError::Pattern { path: file.clone(), why });
            }
            match found {
                Some(true) => {
                    *self.listing.left_out.entry(file.clone()).or_default() += 1;
                    return Ok(true);
                }
                Some(false) => return Ok(false),
                None => {}
            }
        }
        Ok(false)
    }
}

/// Returns the patterns of an `.indexignore` file; no patterns if the file does not exist.
fn patterns(path: &Path) -> Result<Patterns, FilesError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() && metadata.len() <= IGNORE_MAX => {
            fs::read(path).map(|text| Patterns::parse(&text)).map_err(|error| FilesError::Read(path.to_owned(), error))
        }
        // A directory with that name is ignored, as in git.
        Ok(metadata) if metadata.is_dir() => Ok(Patterns::default()),
        Ok(_) => {
            let why = format!("the patterns must be in a regular file of at most {IGNORE_MAX} bytes");
            Err(FilesError::Pattern { path: path.to_owned(), why })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Patterns::default()),
        Err(error) => Err(FilesError::Read(path.to_owned(), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_indexignore_follows_gitignore_at_any_level() {
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
            list(&root)
                .unwrap()
                .files
                .iter()
                .map(|path| path.strip_prefix(&root).unwrap().display().to_string())
                .collect()
        };
        assert_eq!(names(), ["a.yaml", "p/catalog.yaml", "p/keep.txt"]);
        // Without patterns all files are included, with any extension.
        fs::remove_file(root.join(".indexignore")).unwrap();
        assert_eq!(names().len(), 8);
    }

    /// Files that exist in every case of [`c2_patterns_match_as_in_git`].
    const TREE: [&str; 17] = [
        "a",
        "ab",
        "x1",
        "x]",
        "[a",
        "tab\t",
        "end ",
        "!bang",
        "#hash",
        "back\\",
        "é",
        "dd/a",
        "dd/ee/a",
        "dd/ee/b.md",
        "foo/bar",
        "fooz/bar",
        "foo1/x/bar",
    ];

    /// Compares the files of [`TREE`] that each ignore file excludes with `git check-ignore`.
    fn compare_with_git(cases: &[Vec<(&str, String)>]) {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let mut paths = String::new();
        for (number, ignores) in cases.iter().enumerate() {
            for path in TREE {
                let path = format!("{number}/{path}");
                fs::create_dir_all(root.join(&path).parent().unwrap()).unwrap();
                fs::write(root.join(&path), "").unwrap();
                paths += &format!("{path}\0");
            }
            for (directory, patterns) in ignores {
                for name in [IGNORE_FILE, ".gitignore"] {
                    fs::write(root.join(number.to_string()).join(directory).join(name), patterns).unwrap();
                }
            }
        }
        let git = |args: &[&str]| {
            let mut command = std::process::Command::new("git");
            command
                .current_dir(&root)
                .args(["-c", "core.excludesFile=/dev/null", "-c", "core.ignoreCase=false"])
                .args(args);
            command
        };
        assert!(git(&["init", "-q"]).status().unwrap().success());
        fs::write(root.join("paths"), paths).unwrap();
        let output = git(&["check-ignore", "--no-index", "-z", "--stdin"])
            .stdin(fs::File::open(root.join("paths")).unwrap())
            .output()
            .unwrap();
        let ignored = String::from_utf8(output.stdout).unwrap();
        let ignored: std::collections::BTreeSet<&str> = ignored.split('\0').collect();
        for (number, ignores) in cases.iter().enumerate() {
            let case = root.join(number.to_string());
            let found = list(&case).unwrap().files;
            for path in TREE {
                let kept = found.contains(&case.join(path));
                assert_eq!(!kept, ignored.contains(&*format!("{number}/{path}")), "{ignores:?}: {path:?}");
            }
        }
    }

    #[test]
    fn c2_patterns_match_as_in_git() {
        let patterns = [
            "",
            "*",
            "*/",
            "**",
            "**/",
            "***/",
            "***",
            "/",
            "\\/",
            "\\",
            "!",
            "!/",
            "//",
            "//a",
            "/a",
            "a/",
            "dd",
            "dd/",
            "dd\\/",
            "dd//",
            "/dd",
            "dd/*",
            "dd/**",
            "dd/**/a",
            "dd**a",
            "**/ee",
            "**/ee/**",
            "*/ee",
            "dd/ee\\/a",
            "[[:alpha:]]",
            "[[:alpha:]][[:digit:]]",
            "[[:nothing:]]",
            "[![:alpha:]]*",
            "[[:alpha]",
            "[]x]*",
            "x[]]",
            "x[!a]",
            "x[^a]",
            "x[0-9]",
            "x[9-0]",
            "x[\\]]",
            "[a",
            "[[]a",
            "\\[a",
            "tab\t",
            "tab",
            "a\t",
            "a ",
            "a   ",
            "a \t",
            "end\\ ",
            "end ",
            "end\\  ",
            "\\!bang",
            "!bang",
            "\\#hash",
            "#hash",
            "back\\\\",
            "?",
            "??",
            "é",
            "a\r",
            "a\r\nab",
            "\u{feff}a",
            "*\n!a",
            "*\n!dd/\n!*.md",
            "*\n!*/",
            "dd/*\n!dd/ee",
            "!dd\ndd",
            "a\\b",
            "foo**/bar",
            "foo*/bar",
            "foo?/**/bar",
            "foo*/**",
            "**foo/bar",
            "foo/**bar",
            "f**r",
            "foo**",
            "*o?/bar",
            "{a,ab}",
        ];
        let mut cases: Vec<_> = patterns.iter().map(|text| vec![("", (*text).to_owned())]).collect();
        for (outer, inner) in [
            ("dd\n", "!a\n"),
            ("dd/\n", "!*\n"),
            ("a\n", "!a\n"),
            ("!a\n", "a\n"),
            ("/dd/*\n", "!ee\n"),
            ("*.md\n", "*/\n"),
            ("*\n", "!/a\n"),
        ] {
            cases.push(vec![("", outer.to_owned()), ("dd", inner.to_owned())]);
        }
        compare_with_git(&cases);
    }

    #[test]
    fn c2_random_patterns_match_as_in_git() {
        let parts = [
            "a",
            "b",
            "d",
            "e",
            "o",
            "foo",
            "*",
            "**",
            "/",
            "/",
            "?",
            "[",
            "]",
            "[!a]",
            "[a-f]",
            "[[:alnum:]]",
            "\\",
            "!",
            " ",
            "\n",
        ];
        let mut state = 31u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut text = || -> String { (0..=draw(8)).map(|_| parts[draw(parts.len())]).collect() };
        compare_with_git(&(0..100).map(|_| vec![("", text()), ("dd", text())]).collect::<Vec<_>>());
    }

    #[test]
    fn links_stay_within_the_catalog() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "").unwrap();
        std::os::unix::fs::symlink("a.yaml", dir.path().join("b.yaml")).unwrap();
        assert_eq!(list(dir.path()).unwrap().files.len(), 2);
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("c.yaml")).unwrap();
        assert!(matches!(list(dir.path()), Err(FilesError::Link(_))));
    }
}
