//! Notifies of changes in directories.
//!
//! The daemon uses one inotify instance, because a user may have only 128 by default, and a client may follow the logs
//! of every container. A directory has one watch, regardless of its number of subscriptions, until the last
//! subscription is dropped.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use executor_sys::mutex::locked;
use executor_transport::registration::watched;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// Events that count as a change: data written, files created or renamed, the directory removed.
const CHANGES: WatchMask =
    WatchMask::MODIFY.union(WatchMask::CREATE).union(WatchMask::MOVE).union(WatchMask::DELETE_SELF);

/// The daemon's inotify instance.
#[derive(Debug)]
pub struct DirectoryWatch {
    shared: Arc<WatchShared>,
}

#[derive(Debug)]
struct WatchShared {
    followed: Mutex<FollowedLogs>,
}

#[derive(Debug)]
struct FollowedLogs {
    watches: Watches,
    directories: HashMap<WatchDescriptor, Directory>,
}

#[derive(Debug)]
struct Directory {
    followers: usize,
    changed: watch::Sender<()>,
}

/// Subscription to the changes of one directory, which ends on drop.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<WatchShared>,
    watched: WatchDescriptor,
    changed: watch::Receiver<()>,
}

impl DirectoryWatch {
    /// Creates a watch without directories. Must be called on the Tokio runtime, where a task forwards changes.
    ///
    /// # Errors
    /// Returns an error if this user's limit on inotify instances is reached.
    pub fn new() -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let followed = FollowedLogs { watches: inotify.watches(), directories: HashMap::new() };
        let shared = Arc::new(WatchShared { followed: Mutex::new(followed) });
        tokio::spawn(forward_changes(watched(inotify)?, Arc::clone(&shared)));
        Ok(Self { shared })
    }

    /// Watches a directory.
    ///
    /// # Errors
    /// Returns `NotFound` if the directory is missing, or another error if it cannot be watched.
    pub fn subscribe(&self, directory: &Path) -> io::Result<Subscription> {
        let mut followed = locked(&self.shared.followed);
        let watched = followed.watches.add(directory, CHANGES | WatchMask::ONLYDIR)?;
        let entry = followed
            .directories
            .entry(watched.clone())
            .or_insert_with(|| Directory { followers: 0, changed: watch::Sender::new(()) });
        entry.followers += 1;
        let changed = entry.changed.subscribe();
        Ok(Subscription { shared: Arc::clone(&self.shared), watched, changed })
    }
}

impl Subscription {
    /// Marks all changes so far as seen.
    pub fn mark_seen(&mut self) {
        self.changed.mark_unchanged();
    }

    /// Waits for a change that is not marked as seen, and marks the change as seen.
    pub async fn changed(&mut self) {
        // The wait cannot fail: the sender exists as long as a subscription exists.
        let _ = self.changed.changed().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut followed = locked(&self.shared.followed);
        let Some(directory) = followed.directories.get_mut(&self.watched) else { return };
        directory.followers -= 1;
        if directory.followers == 0 {
            followed.directories.remove(&self.watched);
            // This fails only if the directory was deleted.
            let _ = followed.watches.remove(self.watched.clone());
        }
    }
}

/// Forwards changes until the runtime stops or inotify fails.
async fn forward_changes(mut inotify: AsyncFd<Inotify>, shared: Arc<WatchShared>) {
    let mut buffer = vec![0; 4096];
    loop {
        let read = inotify.async_io_mut(Interest::READABLE, |inotify| {
            for event in inotify.read_events(&mut buffer)? {
                let followed = locked(&shared.followed);
                if event.mask.contains(EventMask::Q_OVERFLOW) {
                    followed.directories.values().for_each(|directory| directory.changed.send_replace(()));
                } else if let Some(directory) = followed.directories.get(&event.wd) {
                    directory.changed.send_replace(());
                }
            }
            Ok(())
        });
        if let Err(error) = read.await {
            tracing::error!(%error, "cannot read inotify events: changes of logs, certificates and configuration are no longer noticed");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn watch_notifies_every_subscription_until_last_unsubscribes() {
        let dir = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new().unwrap();
        let mut a = watch.subscribe(dir.path()).unwrap();
        let mut b = watch.subscribe(dir.path()).unwrap();
        std::fs::write(dir.path().join("log"), "x").unwrap();
        a.changed().await;
        b.changed().await;
        drop(a);
        std::fs::rename(dir.path().join("log"), dir.path().join("log.1")).unwrap();
        b.changed().await;
        assert_eq!(locked(&watch.shared.followed).directories.len(), 1);
        drop(b);
        assert!(locked(&watch.shared.followed).directories.is_empty());
        assert_eq!(watch.subscribe(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
