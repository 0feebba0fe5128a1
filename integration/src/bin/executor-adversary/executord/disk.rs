//! Attacks on root's file operations in directories that executord's user can write to.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, lchown, symlink};
use std::path::Path;
use std::sync::Barrier;

use anyhow::{Context as _, ensure};
use executor_sys::tree;
use integration::daemon::{Daemon, Setup};

use crate::attack::{Outcome, Scale};
use crate::revive::start_or_end;

/// Number of files in the directory that is moved, so that its removal takes a while.
const FILES: usize = 20_000;

/// A tree to be removed, and next to it a directory with a file that must be kept.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let deep = dir.path().join("images/a/b");
        fs::create_dir_all(&deep)?;
        for index in 0..FILES {
            File::create(deep.join(format!("f{index}")))?;
        }
        fs::create_dir_all(dir.path().join("others/home"))?;
        fs::write(dir.path().join("others/home/precious"), "x")?;
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Removes the tree as root does. After the first file is removed, the owner of the tree moves the full directory
    /// to `to`.
    fn remove_while_moving(&self, to: &str) -> anyhow::Result<bool> {
        let (deep, to) = (self.path("images/a/b"), self.path(to));
        let before = fs::metadata(&deep)?.mtime_nsec();
        let top = File::open(self.dir.path())?;
        let together = Barrier::new(2);
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| {
                together.wait();
                loop {
                    match fs::metadata(&deep) {
                        Ok(now) if now.mtime_nsec() == before => {}
                        Ok(_) => return fs::rename(&deep, &to).is_ok(),
                        Err(_) => return false,
                    }
                }
            });
            together.wait();
            // An error is acceptable too, because only the remaining files are checked.
            let _ = tree::remove(top.as_fd(), OsStr::new("images"));
            moving.join().map_err(|_| anyhow::anyhow!("the moving thread failed"))
        })
    }
}

pub(crate) fn moved(scale: Scale) -> anyhow::Result<Outcome> {
    let (mut tried, mut moved) = (0, 0);
    while moved < scale.pick(1, 20) {
        ensure!(tried < scale.pick(10, 200), "the directory was moved in only {moved} of {tried} attempts");
        tried += 1;
        let site = Site::new()?;
        if !site.remove_while_moving("others/home/b")? {
            continue;
        }
        moved += 1;
        if !site.path("others/home/precious").exists() {
            return Ok(Outcome::Through(format!("move {moved}: the directory next to the tree is gone")));
        }
    }
    Ok(Outcome::Held(format!("{moved} moves during a removal: the directory next to the tree is unchanged")))
}

/// Control: a tree without a moved directory is removed, the directory next to it remains, and a directory can be moved
/// during the removal.
pub(crate) fn moved_control(_: Scale) -> anyhow::Result<String> {
    let site = Site::new()?;
    tree::remove(File::open(site.dir.path())?.as_fd(), OsStr::new("images"))?;
    ensure!(
        !site.path("images").exists() && site.path("others/home/precious").exists(),
        "the image tree was not removed, or a directory next to it was removed"
    );
    ensure!(Site::new()?.remove_while_moving("elsewhere")?, "the directory was not moved during the removal");
    Ok("a tree that is not moved is removed, and it can be moved during the removal".into())
}

/// A file owned by root, and its original state.
struct Victim {
    path: std::path::PathBuf,
    before: String,
}

impl Victim {
    fn new(dir: &Path, name: &str) -> anyhow::Result<Self> {
        let path = dir.join(name);
        fs::write(&path, "precious")?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let mut victim = Self { path, before: String::new() };
        victim.before = victim.now()?;
        Ok(victim)
    }

    fn now(&self) -> anyhow::Result<String> {
        let meta = fs::metadata(&self.path)?;
        let content = fs::read_to_string(&self.path)?;
        Ok(format!("{content:?}, owner {}:{}, mode {:o}", meta.uid(), meta.gid(), meta.mode() & 0o7777))
    }

    fn fault(&self) -> anyhow::Result<Option<String>> {
        let now = self.now()?;
        Ok((now != self.before).then(|| format!("{} became {now}", self.before)))
    }
}

/// Paths in the state directory, writable by executord, where a link is added or replaces a file.
const PLACES: [&str; 4] = ["ledger/planted", "ledger/lock", "ledger/ledger.redb", "images/planted"];

/// Creates a link that belongs to executord's user and points to a file owned by root.
fn plant(daemon: &Daemon, place: &str, victim: &Victim) -> anyhow::Result<std::path::PathBuf> {
    let link = daemon.setup().state_dir().join(place);
    let owner = fs::metadata(link.parent().context("the path has no directory")?)?;
    ensure!(owner.uid() != 0, "{place} is in a directory that root owns");
    if fs::symlink_metadata(&link).is_ok() {
        fs::rename(&link, link.with_extension("kept"))?;
    }
    symlink(&victim.path, &link)?;
    lchown(&link, Some(owner.uid()), Some(owner.gid()))?;
    Ok(link)
}

pub(crate) fn links(scale: Scale) -> anyhow::Result<Outcome> {
    let mut daemon = Setup::default().start();
    daemon.terminate();
    let (mut faults, mut tried) = (Vec::new(), Vec::new());
    for place in PLACES.iter().take(scale.pick(2, PLACES.len())) {
        let victim = Victim::new(daemon.setup().home(), "victim")?;
        let link = plant(&daemon, place, &victim)?;
        let how = match start_or_end(&daemon)? {
            Ok((mut child, _)) => {
                child.kill()?;
                child.wait()?;
                "executord starts"
            }
            Err(_) => "executord does not start",
        };
        faults.extend(victim.fault()?.map(|fault| format!("{place}: {fault}")));
        tried.push(format!("{place}: {how}"));
        let _ = fs::remove_file(&link);
        if link.with_extension("kept").exists() {
            fs::rename(link.with_extension("kept"), &link)?;
        }
    }
    daemon.start_again();
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), tried.join("; ")))
}

/// Control: a chown that follows the link changes the file, and the change is detected.
pub(crate) fn links_control(_: Scale) -> anyhow::Result<String> {
    let mut daemon = Setup::default().start();
    daemon.terminate();
    let victim = Victim::new(daemon.setup().home(), "victim")?;
    let link = plant(&daemon, "ledger/planted", &victim)?;
    std::os::unix::fs::chown(&link, Some(1), None)?;
    let fault = victim.fault()?;
    fs::remove_file(link)?;
    daemon.start_again();
    fault
        .map(|fault| format!("chown through the link: {fault}"))
        .context("the check does not detect a change of the file")
}
