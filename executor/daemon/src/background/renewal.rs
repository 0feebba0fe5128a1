//! Reloads the certificates of the TCP listener when their files change, and on SIGHUP.
//!
//! The directories are watched, not the files, because files are replaced by rename or by a change of a symlink in
//! their path. Kubernetes replaces a whole directory in this way. Polling covers file systems without change
//! notifications.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use executor_transport::tls::Certificates;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::access::rules::Rules;
use crate::node::Node;

/// Delay after a change before the files are read, because several files are often written in sequence.
const READ_DELAY: Duration = Duration::from_millis(100);
/// Poll interval in the absence of notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of symlinks that are followed to a file.
const LINKS_MAX: usize = 40;

/// Subscribes to SIGHUP.
///
/// # Errors
/// Returns an error if the handler cannot be installed.
pub(crate) fn hangup() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Watches the directories in which a change can make one of the paths resolve to another file. The first change
/// completes a task of the set. `what` names the files in the log.
pub(crate) fn watch<'a>(node: &Node, files: impl IntoIterator<Item = &'a Path>, what: &str) -> JoinSet<()> {
    let mut changes = JoinSet::new();
    for directory in files.into_iter().flat_map(directories).collect::<BTreeSet<_>>() {
        match node.log_watch.subscribe(&directory) {
            Ok(mut subscription) => drop(changes.spawn(async move { subscription.changed().await })),
            // This user may not have access to the directory.
            Err(error) => tracing::debug!(%error, directory = %directory.display(), "cannot watch {what}"),
        }
    }
    changes
}

/// Keeps the certificates current until the daemon stops.
pub(crate) async fn run_certificate_reload(
    node: Arc<Node>,
    certificates: Arc<Certificates<Rules>>,
    mut hangup: Signal,
) {
    let mut expired = certificates.expires_in().is_none();
    loop {
        let mut changes = watch(&node, certificates.files(), "certificates");
        // Changes after this point produce notifications.
        let reader = Arc::clone(&certificates);
        let _ = tokio::task::spawn_blocking(move || reader.reload()).await;
        if certificates.expires_in().is_none() && !std::mem::replace(&mut expired, true) {
            tracing::error!("{}: the current certificate has expired", certificates.files()[0].display());
        }
        expired &= certificates.expires_in().is_none();
        tokio::select! {
            Some(_) = changes.join_next() => sleep(READ_DELAY).await,
            _ = hangup.recv() => tracing::info!("SIGHUP: reading the certificates again"),
            () = sleep(POLL_INTERVAL) => {}
            () = node.until_stopping() => return,
        }
    }
}

/// Returns the directories in which a change can make a path resolve to another file: the file's directory, and the
/// directory of each symlink on the path.
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

/// Returns the components of a path in reverse order.
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
