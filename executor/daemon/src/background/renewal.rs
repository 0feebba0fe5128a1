//! Reads the certificates of the TCP listener again when their files change, and at SIGHUP.
//!
//! The directories are watched, not the files: a new file is renamed over the old one, or a link on the way to it is
//! changed, as Kubernetes does it with a whole directory. A look now and then covers file systems that tell of no change.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::node::Node;
use crate::server::Certificates;

/// Time after a change until the files are read: several are often written one after the other.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval of the look without a change.
const INTERVAL: Duration = Duration::from_secs(60);
/// Most links that are followed on the way to a file.
const LINKS_MAX: usize = 40;

/// Subscribes to SIGHUP.
///
/// # Errors
/// The handler cannot be installed.
pub(crate) fn hangup() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Watches the directories in which a change can lead a path to another file. A task of the set ends at the first change. `what`
/// names the files in the log.
pub(crate) fn watch<'a>(node: &Node, files: impl IntoIterator<Item = &'a Path>, what: &str) -> JoinSet<()> {
    let mut changes = JoinSet::new();
    for directory in files.into_iter().flat_map(directories).collect::<BTreeSet<_>>() {
        match node.log_watch.subscribe(&directory) {
            Ok(mut subscription) => drop(changes.spawn(async move { subscription.changed().await })),
            // The directory can be closed to this user.
            Err(error) => tracing::debug!(%error, directory = %directory.display(), "cannot watch {what}"),
        }
    }
    changes
}

/// Keeps the certificates up to date until the daemon stops.
pub(crate) async fn run_certificate_reload(node: Arc<Node>, certificates: Arc<Certificates>, mut hangup: Signal) {
    let mut expired = certificates.expires_in().is_none();
    loop {
        let mut changes = watch(&node, certificates.files(), "certificates");
        // What changes from here on is told.
        let reader = Arc::clone(&certificates);
        let _ = tokio::task::spawn_blocking(move || reader.reload()).await;
        if certificates.expires_in().is_none() && !std::mem::replace(&mut expired, true) {
            tracing::error!("{}: the certificate in force has expired", certificates.files()[0].display());
        }
        expired &= certificates.expires_in().is_none();
        tokio::select! {
            Some(_) = changes.join_next() => sleep(PAUSE).await,
            _ = hangup.recv() => tracing::info!("SIGHUP: reading the certificates again"),
            () = sleep(INTERVAL) => {}
            () = node.until_stopping() => return,
        }
    }
}

/// The directories in which a change can lead a path to another file: its own, and that of each link on the way.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut at = PathBuf::from("/");
    let mut rest: Vec<OsString> = names(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        match std::fs::read_link(&next) {
            Ok(target) if links < LINKS_MAX => {
                links += 1;
                found.insert(at.clone());
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                rest.extend(names(&target));
            }
            _ if rest.is_empty() => drop(found.insert(at.clone())),
            _ => at = next,
        }
    }
    found
}

/// The names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn each_link_on_the_way_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(at("mount/..2026")).unwrap();
        std::fs::create_dir(at("etc")).unwrap();
        std::fs::write(at("mount/..2026/tls.crt"), "x").unwrap();
        symlink("..2026", at("mount/..data")).unwrap();
        symlink("..data/tls.crt", at("mount/tls.crt")).unwrap();
        symlink("../mount/tls.crt", at("etc/executor.crt")).unwrap();
        let found = directories(&at("etc/executor.crt"));
        assert_eq!(found, [at("etc"), at("mount"), at("mount/..2026")].into());
        assert_eq!(directories(&at("etc/none/at/all")), [at("etc/none/at")].into());
        symlink("loop", at("etc/loop")).unwrap();
        assert_eq!(directories(&at("etc/loop")), [at("etc")].into());
    }
}
