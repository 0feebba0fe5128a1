//! Claims blocks of ids for this launcher, so that no other launcher on the host assigns them to containers.
//!
//! ```text
//! /run/executor-ids/      0700 root
//!    lock                 locked while claims are read and changed
//!    HASH.json            run directory and blocks of one launcher (replaced by rename)
//! ```
//! A claim is valid while its launcher runs and holds the lock of its run directory. After that, the claim is valid
//! while the run directory contains a container, so that a restarted launcher finds its blocks. The next launcher that
//! reads an invalid claim removes it. Claims change by whole blocks, not with each container.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_core::idmap::{Block, Pool};
use executor_sys::open::read_whole;
use executor_sys::replace::Replacement;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::errors::at;
use crate::files::{ensure_dir, lock};
use crate::log::{self, Level};

/// Directory in which all launchers of a host store their claims.
const DIR: &str = "/run/executor-ids";
/// Maximum size of a claim file, in bytes.
const CLAIM_MAX: u64 = 1 << 20;
/// Time limit for acquiring the lock. Launchers hold the lock only for a few system calls.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Claim of a launcher, as stored in its file.
#[derive(Serialize, Deserialize)]
struct Claim {
    run_dir: PathBuf,
    blocks: Vec<Block>,
}

/// Blocks of ids that this launcher has claimed.
#[derive(Debug)]
pub(crate) struct Claims {
    dir: PathBuf,
    run_dir: PathBuf,
    blocks: Vec<Block>,
}

impl Claims {
    /// Adopts the claim of an earlier launcher for the run directory, except blocks that are neither in the pool nor in
    /// use. `used` contains the ranges of existing containers.
    ///
    /// # Errors
    /// Returns an error if the claims cannot be locked, listed or written.
    pub(crate) fn open(run_dir: &Path, pool: &Pool, used: &BTreeSet<u32>) -> io::Result<Self> {
        Self::open_in(Path::new(DIR), run_dir, pool, used)
    }

    fn open_in(dir: &Path, run_dir: &Path, pool: &Pool, used: &BTreeSet<u32>) -> io::Result<Self> {
        ensure_dir(dir, 0o700)?;
        let mut claims = Self { dir: dir.to_owned(), run_dir: run_dir.to_owned(), blocks: Vec::new() };
        let _lock = claims.lock()?;
        let used: Vec<Block> = used.iter().map(|start| Block::from_range(*start)).collect();
        let mut blocks = read(&claims.path()).map(|claim| claim.blocks).unwrap_or_default();
        let pool: BTreeSet<Block> = pool.blocks().collect();
        blocks.retain(|block| pool.contains(block) || used.iter().any(|used| used.overlaps(block)));
        // Add ranges of containers from a version without claims.
        let unclaimed = used.into_iter().filter(|used| !blocks.iter().any(|block| block.contains(used)));
        blocks.extend(unclaimed.collect::<Vec<_>>());
        for (other, block) in claims.others()? {
            if blocks.iter().any(|own| own.overlaps(&block)) {
                let reported =
                    format_args!("ids {} to {} are also claimed by launcher {}", block.0, block.1 - 1, other.display());
                log::line(Level::Error, "", reported);
            }
        }
        claims.write(blocks)?;
        Ok(claims)
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Claims one more block of the pool that no other launcher has claimed. Returns false if all blocks are claimed.
    ///
    /// # Errors
    /// Returns an error if the claims cannot be locked, listed or written.
    pub(crate) fn claim_more(&mut self, pool: &Pool) -> io::Result<bool> {
        let _lock = self.lock()?;
        let others = self.others()?;
        let taken = |block: &Block| {
            others.iter().map(|(_, other)| other).chain(&self.blocks).any(|other| other.overlaps(block))
        };
        let Some(block) = pool.blocks().find(|block| !taken(block)) else { return Ok(false) };
        let mut blocks = self.blocks.clone();
        blocks.push(block);
        self.write(blocks).map(|()| true)
    }

    /// Claims a block outside of the pool. Returns false if another launcher has claimed some of the block's ids.
    ///
    /// # Errors
    /// Returns an error if the claims cannot be locked, listed or written.
    pub(crate) fn claim(&mut self, block: Block) -> io::Result<bool> {
        let _lock = self.lock()?;
        if self.others()?.iter().any(|(_, other)| other.overlaps(&block)) {
            return Ok(false);
        }
        if !self.blocks.contains(&block) {
            self.write(self.blocks.iter().copied().chain([block]).collect())?;
        }
        Ok(true)
    }

    /// Returns the run directories of other launchers that have claimed ids of the pool.
    pub(crate) fn other_launchers(&self, pool: &Pool) -> BTreeSet<PathBuf> {
        let others = self.lock().and_then(|_lock| self.others()).unwrap_or_default();
        let of_pool = |block: &Block| pool.blocks().any(|own| own.overlaps(block));
        others.into_iter().filter(|(_, block)| of_pool(block)).map(|(run_dir, _)| run_dir).collect()
    }

    /// Releases blocks whose ids no container uses. One unused block is kept for the next container.
    ///
    /// # Errors
    /// Returns an error if the claims cannot be locked or written. The blocks then stay claimed.
    pub(crate) fn release_unused(&mut self, used: &BTreeSet<u32>) -> io::Result<()> {
        if self.blocks.len() < 2 {
            return Ok(());
        }
        let is_used = |block: &Block| used.iter().any(|start| Block::from_range(*start).overlaps(block));
        let unused: Vec<Block> = self.blocks.iter().filter(|block| !is_used(block)).skip(1).copied().collect();
        if unused.is_empty() {
            return Ok(());
        }
        let _lock = self.lock()?;
        self.write(self.blocks.iter().filter(|block| !unused.contains(block)).copied().collect())
    }

    /// Releases all blocks. Called if the launcher has no containers when it exits.
    pub(crate) fn release_all(&self) {
        // The lock prevents other launchers from listing this claim and then failing to read it.
        match self.lock().and_then(|_lock| fs::remove_file(self.path())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::line(Level::Warning, "", at(&self.path(), &error));
            }
            _ => {} // removed here, or by another launcher that found the run directory unused
        }
    }

    fn path(&self) -> PathBuf {
        let digest = Sha256::digest(self.run_dir.as_os_str().as_encoded_bytes());
        self.dir.join(hex::encode(&digest[..8])).with_extension("json")
    }

    fn lock(&self) -> io::Result<File> {
        let path = self.dir.join("lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path).map_err(|error| at(&path, &error))?;
        lock(&file, LOCK_TIMEOUT).map_err(|error| at(&path, &error.into()))?;
        Ok(file)
    }

    /// Returns the blocks of other launchers, with their run directories. Removes claims of launchers that have exited
    /// and left no container.
    fn others(&self) -> io::Result<Vec<(PathBuf, Block)>> {
        let mut others = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(|error| at(&self.dir, &error))? {
            let path = entry?.path();
            if path == self.path() || path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&path) {
                Ok(claim) if is_in_use(&claim.run_dir) => {
                    others.extend(claim.blocks.into_iter().map(|block| (claim.run_dir.clone(), block)));
                }
                Ok(_) => fs::remove_file(&path).map_err(|error| at(&path, &error))?,
                Err(error) => {
                    log::line(Level::Error, "", format_args!("an id claim cannot be read: {}", at(&path, &error)));
                }
            }
        }
        Ok(others)
    }

    fn write(&mut self, blocks: Vec<Block>) -> io::Result<()> {
        let path = self.path();
        let claim = Claim { run_dir: self.run_dir.clone(), blocks };
        Replacement::from_path(&path).write(&serde_json::to_vec(&claim)?).map_err(|error| at(&path, &error))?;
        self.blocks = claim.blocks;
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Claim> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    Ok(serde_json::from_slice(&read_whole(file, CLAIM_MAX)?)?)
}

/// Returns true if a launcher uses the run directory, if a container has a directory in it, or if this cannot be
/// determined.
fn is_in_use(run_dir: &Path) -> bool {
    let absent = |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let lives = match options.open(run_dir.join("launcher.lock")) {
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
        Err(error) => !absent(&error),
    };
    lives
        || fs::read_dir(run_dir.join("containers")).map_or_else(|error| !absent(&error), |mut dir| dir.next().is_some())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use executor_core::idmap::RANGE_IDS;
    use executor_core::validate::Policy;

    use super::*;

    const START: u32 = 1 << 20;

    fn pool(ranges: u32) -> Pool {
        let policy = Policy { userns_pool_start: START, userns_pool_ranges: ranges, ..Policy::default() };
        policy.userns_pool().expect("a pool")
    }

    /// Returns a run directory that counts as used by a launcher while the file is open.
    fn served(home: &Path, name: &str) -> (PathBuf, File) {
        let run_dir = home.join(name);
        fs::create_dir_all(run_dir.join("containers")).expect("mkdir");
        let lock = File::create(run_dir.join("launcher.lock")).expect("a lock");
        flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("no process holds it");
        (run_dir, lock)
    }

    #[test]
    fn two_launchers_never_have_the_same_block() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("ids");
        let none = BTreeSet::new();
        let ((a, lock), (b, _b)) = (served(home.path(), "a"), served(home.path(), "b"));
        let open = |run_dir: &Path, pool: &Pool, used: &BTreeSet<u32>| {
            Claims::open_in(&dir, run_dir, pool, used).expect("claims")
        };
        let (pool, mut first) = (pool(3), open(&a, &pool(3), &none));
        let mut second = open(&b, &pool, &none);
        assert!(first.claim_more(&pool).expect("claims") && second.claim_more(&pool).expect("claims"));
        assert!(first.claim_more(&pool).expect("claims") && !second.claim_more(&pool).expect("claims"));
        assert!(!first.blocks().iter().any(|own| second.blocks().iter().any(|other| own.overlaps(other))));
        assert_eq!(second.other_launchers(&pool), BTreeSet::from([a.clone()]));

        // If a launcher exits while it has a container, it keeps its blocks and finds them after a restart.
        fs::create_dir(a.join("containers/left")).expect("mkdir");
        let had = first.blocks().to_vec();
        drop((first, lock));
        assert!(!second.claim_more(&pool).expect("claims"));
        let (_, lock) = served(home.path(), "a");
        let mut again = open(&a, &pool, &BTreeSet::from([START]));
        assert_eq!(again.blocks(), had);
        again.release_unused(&BTreeSet::from([START])).expect("claims");
        assert_eq!(again.blocks(), had, "one block in addition to the blocks in use");
        again.release_unused(&none).expect("claims");
        assert_eq!(again.blocks().len(), 1);
        assert!(second.claim_more(&pool).expect("claims") && !second.claim_more(&pool).expect("claims"));

        // If the last container of a launcher that has exited is removed, the launcher's claim becomes invalid.
        drop((again, lock));
        fs::remove_dir(a.join("containers/left")).expect("rmdir");
        assert!(second.claim_more(&pool).expect("claims"));
        assert_eq!((second.blocks().len(), second.other_launchers(&pool).len()), (3, 0));
        second.release_all();
        assert!(fs::read_dir(&dir).expect("a directory").flatten().all(|entry| entry.file_name() == "lock"));
    }

    #[test]
    fn claims_are_released_while_others_are_read() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("ids");
        let ((a, _a), (b, b_lock)) = (served(home.path(), "a"), served(home.path(), "b"));
        // A launcher releases its claim after its lock: in between, other launchers can remove the claim as well.
        drop(b_lock);
        let none = BTreeSet::new();
        for _ in 0..100 {
            let released = Claims::open_in(&dir, &b, &pool(3), &none).expect("claims of the one");
            thread::scope(|scope| {
                let release = scope.spawn(|| released.release_all());
                while !release.is_finished() {
                    Claims::open_in(&dir, &a, &pool(3), &none).expect("claims of the other");
                }
            });
        }
        let names = fs::read_dir(&dir).expect("a directory").flatten().map(|entry| entry.file_name());
        assert_eq!(names.filter(|name| name != "lock").count(), 1, "the claim of the other");
    }

    #[test]
    fn overlapping_pools_and_unclaimed_ranges_are_respected() {
        let home = tempfile::tempdir().expect("a directory");
        let dir = home.path().join("ids");
        let ((a, _a), (b, _b)) = (served(home.path(), "a"), served(home.path(), "b"));
        // This range is from a version without claims, or from a pool with another start.
        let used = BTreeSet::from([START + 7]);
        let first = Claims::open_in(&dir, &a, &pool(2), &used).expect("claims");
        assert_eq!(first.blocks(), [Block::from_range(START + 7)]);
        let mut second = Claims::open_in(&dir, &b, &pool(3), &BTreeSet::new()).expect("claims");
        assert!(second.claim_more(&pool(3)).expect("claims") && !second.claim_more(&pool(3)).expect("claims"));
        assert_eq!(second.blocks(), [Block::from_range(START + 2 * RANGE_IDS)]);
        // A malformed claim file does not block other launchers.
        fs::write(dir.join("x.json"), "{").expect("write");
        assert!(!second.claim_more(&pool(3)).expect("claims"));
    }
}
