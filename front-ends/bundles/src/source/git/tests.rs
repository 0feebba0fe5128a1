use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::process::{Limits, git, run};
use super::{fetch, init};
use crate::source::{MEMORY_MAX, Source, SourceError, read};

/// A repository that a test creates with git.
struct Repository(tempfile::TempDir);

impl Repository {
    fn new(format: &str) -> Self {
        let it = Self(tempfile::tempdir().unwrap());
        it.git(&["init", "-q", &format!("--object-format={format}")], b"");
        it
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn git(&self, args: &[&str], input: &[u8]) -> String {
        let mut child = Command::new("git")
            .current_dir(self.path())
            .args(["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "core.looseCompression=1"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "git {args:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Commits two files and returns the commit.
    fn commit_files(&self) -> String {
        fs::create_dir_all(self.path().join("app/in")).unwrap();
        fs::write(self.path().join("app/in/one"), "one").unwrap();
        fs::write(self.path().join("two"), "two").unwrap();
        self.git(&["add", "."], b"");
        self.git(&["commit", "-q", "-m", "x"], b"");
        self.git(&["rev-parse", "HEAD"], b"")
    }

    /// Commits the tree with this name.
    fn commit_tree(&self, tree: &str) -> String {
        self.git(&["commit-tree", "-m", "x", tree], b"")
    }

    fn tree(&self, lines: &str) -> String {
        self.git(&["mktree"], lines.as_bytes())
    }

    fn loose(&self, object: &str) -> PathBuf {
        self.path().join(".git/objects").join(&object[..2]).join(&object[2..])
    }

    /// Replaces the file of a loose object.
    fn rewrite(&self, object: &str, content: &[u8]) {
        let path = self.loose(object);
        assert!(path.is_file(), "{object} is loose");
        fs::remove_file(&path).unwrap();
        let file = fs::File::create(&path).unwrap();
        let mut encoder = flate2::write::ZlibEncoder::new(file, flate2::Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap();
    }

    fn source(&self, commit: &str, directory: &str) -> Source {
        let path = self.path().display();
        let directory = if directory.is_empty() { String::new() } else { format!("#{directory}") };
        Source::parse(&format!("git:{path}@{commit}{directory}")).unwrap()
    }

    fn refusal(&self, commit: &str) -> SourceError {
        read(&self.source(commit, "")).unwrap_err()
    }
}

#[test]
fn commit_of_either_hash_is_read() {
    for format in ["sha1", "sha256"] {
        let repository = Repository::new(format);
        let commit = repository.commit_files();
        let whole = read(&repository.source(&commit, "")).unwrap();
        assert_eq!(whole.pin.as_deref(), Some(&*commit));
        let names: Vec<&str> = whole.files.keys().map(String::as_str).collect();
        assert_eq!(names, ["app/in/one", "two"], "{format}");
        repository.git(&["gc", "-q"], b"");
        let part = read(&repository.source(&commit, "app/in")).unwrap();
        assert_eq!(part.files.into_iter().collect::<Vec<_>>(), [("one".to_owned(), b"one".to_vec())]);
        let missing = read(&repository.source(&commit, "app/no")).unwrap_err().to_string();
        assert!(missing.contains("is not a directory of the commit"), "{missing}");
    }
}

#[test]
fn worktree_of_a_repository_is_read() {
    let repository = Repository::new("sha1");
    let commit = repository.commit_files();
    let tree = repository.path().join("tree");
    repository.git(&["worktree", "add", "-q", tree.to_str().unwrap(), &commit], b"");
    let files = read(&Source::parse(&format!("git:{}@{commit}", tree.display())).unwrap()).unwrap();
    assert_eq!(files.files.len(), 2);
}

#[test]
fn rewritten_object_is_refused_by_name() {
    for format in ["sha1", "sha256"] {
        for name in ["HEAD:two", "HEAD:app", "HEAD^{tree}", "HEAD"] {
            let repository = Repository::new(format);
            let commit = repository.commit_files();
            let object = repository.git(&["rev-parse", name], b"");
            let evil = repository.git(&["hash-object", "-w", "--stdin"], b"evil");
            let tree = repository.tree(&format!("100644 blob {evil}\ttwo\n"));
            let (kind, other) = match name {
                "HEAD:two" => ("blob", evil),
                "HEAD" => ("commit", repository.commit_tree(&tree)),
                _ => ("tree", tree),
            };
            fs::copy(repository.loose(&other), repository.path().join("copy")).unwrap();
            fs::remove_file(repository.loose(&object)).unwrap();
            fs::rename(repository.path().join("copy"), repository.loose(&object)).unwrap();
            let why = repository.refusal(&commit).to_string();
            let expected = format!("the content of the {kind} {object} has the hash {other}");
            assert!(why.contains(&expected), "{format} {name}: {why}");
        }
    }
}

#[test]
fn replaced_or_grafted_object_is_not_read() {
    let repository = Repository::new("sha1");
    let commit = repository.commit_files();
    let evil = repository.git(&["hash-object", "-w", "--stdin"], b"evil");
    let tree = repository.tree(&format!("100644 blob {evil}\ttwo\n"));
    repository.git(&["replace", "HEAD:two", &evil], b"");
    repository.git(&["replace", &commit, &repository.commit_tree(&tree)], b"");
    assert_eq!(read(&repository.source(&commit, "")).unwrap().files["two"], b"two");
}

#[test]
fn tree_bomb_is_refused_quickly() {
    let repository = Repository::new("sha1");
    let blob = repository.git(&["hash-object", "-w", "--stdin"], b"x");
    for bottom in [format!("100644 blob {blob}\tf\n"), String::new()] {
        let mut tree = repository.tree(&bottom);
        // Ten trees with ten entries each make 10^10 paths.
        for _ in 0..10 {
            let lines: String = (0..10).map(|index| format!("040000 tree {tree}\td{index}\n")).collect();
            tree = repository.tree(&lines);
        }
        let commit = repository.commit_tree(&tree);
        assert!(matches!(repository.refusal(&commit), SourceError::TooLarge(MEMORY_MAX)), "{bottom:?}");
    }
}

#[test]
fn large_blob_is_refused_by_its_header() {
    let repository = Repository::new("sha1");
    let large = fs::File::create(repository.path().join("large")).unwrap();
    large.set_len(MEMORY_MAX + 1).unwrap();
    let blob = repository.git(&["hash-object", "-w", "large"], b"");
    // Only the header is written: the test does not need the content.
    repository.rewrite(&blob, format!("blob {}\0", MEMORY_MAX + 1).as_bytes());
    let commit = repository.commit_tree(&repository.tree(&format!("100644 blob {blob}\tlarge\n")));
    assert!(matches!(repository.refusal(&commit), SourceError::TooLarge(MEMORY_MAX)));
}

#[test]
fn unsafe_tree_entries_are_refused() {
    let repository = Repository::new("sha1");
    let blob = repository.git(&["hash-object", "-w", "--stdin"], b"x");
    let raw = hex::decode(&blob).unwrap();
    for (mode, name) in [
        ("100644", ".."),
        ("100644", "a/b"),
        ("100644", "/etc/x"),
        ("100644", ""),
        ("40000", ".GIT"),
        ("120000", "link"),
        ("160000", "module"),
    ] {
        let content = [format!("{mode} {name}\0").as_bytes(), &raw].concat();
        let tree = repository.git(&["hash-object", "-w", "-t", "tree", "--literally", "--stdin"], &content);
        let commit = repository.commit_tree(&tree);
        assert!(matches!(repository.refusal(&commit), SourceError::Entry(..)), "{mode} {name}");
    }
    let tag = repository.git(&["hash-object", "-w", "-t", "tag", "--literally", "--stdin"], b"object x\n");
    assert!(repository.refusal(&tag).to_string().contains("is a tag; it must be a commit"));
}

#[test]
fn configuration_of_the_repository_runs_nothing() {
    let repository = Repository::new("sha1");
    let commit = repository.commit_files();
    let mark = repository.path().join("ran");
    let program = repository.path().join("program");
    fs::write(&program, format!("#!/bin/sh\ntouch {}\n", mark.display())).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = program.to_str().unwrap();
    for (key, value) in [
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", "/nowhere"),
        ("remote.origin.uploadpack", program),
        ("core.fsmonitor", program),
        ("core.sshCommand", program),
        ("core.alternateRefsCommand", program),
    ] {
        repository.git(&["config", key, value], b"");
    }
    // In a partial clone, git would fetch a missing object.
    let object = repository.git(&["rev-parse", "HEAD:two"], b"");
    fs::remove_file(repository.loose(&object)).unwrap();
    let why = repository.refusal(&commit).to_string();
    assert!(why.contains(&format!("the repository has no blob {object}")), "{why}");
    assert!(!mark.exists());
}

#[test]
fn fetch_timeout_kills_git() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let url = format!("https://{address}/x");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The server does not respond. The connection closes when the last process of the fetch exits.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop).map_err(|error| error.kind())
    });
    let limits = Limits { time: Duration::from_secs(3), ..Limits::FETCH };
    let why = fetch(&url, &"0".repeat(40), &limits).err().unwrap().to_string();
    assert!(why.ends_with("within 3 s"), "{why}");
    // If the fetch timed out before it connected, unblock the server.
    drop(TcpStream::connect(address));
    let ended = server.join().unwrap();
    assert!(matches!(ended, Ok(()) | Err(std::io::ErrorKind::ConnectionReset)), "{ended:?}");
}

#[test]
fn file_size_limit_stops_git() {
    let repository = Repository::new("sha1");
    let mut random = vec![0; 4 << 20];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    fs::write(repository.path().join("large"), &random).unwrap();
    repository.git(&["add", "."], b"");
    repository.git(&["commit", "-q", "-m", "x"], b"");
    let pack = |limits: Limits| {
        let mut command = git(&repository.path().join(".git"), &limits);
        command.arg("bundle").arg("create").arg("--quiet").arg(repository.path().join("pack")).arg("HEAD");
        run(command, &limits, "write a pack")
    };
    let small = Limits { file_bytes: 1 << 20, ..Limits::FETCH };
    assert!(pack(small).unwrap_err().to_string().starts_with("git cannot write a pack: "));
    pack(Limits::FETCH).unwrap();
    init(40).unwrap();
}
