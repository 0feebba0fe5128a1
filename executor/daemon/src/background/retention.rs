//! Deletes completed containers that no client has deleted: containers that are too old, that exceed a number or a
//! total disk size, or whose request asks for deletion on completion. Containers whose request sets
//! `keep_until_deleted` are not deleted here and do not count towards the limits.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;

use crate::api_error::Kind;
use crate::config::RetentionSettings;
use crate::model::container::Handle;
use crate::node::Node;
use crate::operations::delete;
use crate::paths::Paths;

/// Interval of checks for containers that are too old.
const AGE_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum pause between two checks, each of which iterates over all containers.
const CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Deletes completed containers beyond the configured number, age and size, until the daemon stops.
pub(crate) async fn run_retention(node: Arc<Node>) {
    let mut seen = FirstSightings::default();
    loop {
        for (handle, reason) in superfluous(&node, &mut seen).await {
            match delete::delete(&node, Arc::clone(&handle), false).await {
                Ok(()) if reason == Reason::Request => {}
                Ok(()) => {
                    tracing::info!(container = %handle.id(), reason = reason.name(), "deleted the completed container: a retention limit was exceeded");
                }
                Err(problem) => {
                    tracing::warn!(container = %handle.id(), reason = reason.name(), "cannot delete the completed container: {problem}");
                    if problem.kind == Kind::Unavailable {
                        break; // no launcher; the next check may find one
                    }
                }
            }
        }
        let _ = tokio::time::timeout(AGE_INTERVAL, node.completed.notified()).await;
        tokio::time::sleep(CHECK_INTERVAL_MIN).await;
    }
}

/// Reason why a completed container is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// The request asks for deletion on completion.
    Request,
    /// The container exceeds the age `retention.hours`.
    Age,
    /// There are more completed containers than `retention.completed`.
    Number,
    /// The completed containers exceed the size `retention.bytes`.
    Bytes,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::Request => "remove_when_completed",
            Self::Age => "retention.hours",
            Self::Number => "retention.completed",
            Self::Bytes => "retention.bytes",
        }
    }
}

/// Times at which completed containers were first seen. From then on, ages are measured on the monotonic clock, so that
/// setting the wall clock does not age containers. The age at first sight is computed from dates, because a container
/// may have completed under an earlier daemon.
#[derive(Default)]
struct FirstSightings(HashMap<ContainerId, FirstSighting>);

#[derive(Clone, Copy)]
struct FirstSighting {
    finished_at: Timestamp,
    at: Instant,
    age: Duration,
    /// Disk usage in bytes. Measured once: the files of a completed container do not change.
    bytes: Option<u64>,
}

impl FirstSightings {
    /// Returns the age of a completed container.
    fn age(&mut self, id: &ContainerId, finished_at: Timestamp, (now, instant): (Timestamp, Instant)) -> Duration {
        let sight = FirstSighting { finished_at, at: instant, age: now.since(finished_at), bytes: None };
        let known = self.0.entry(id.clone()).or_insert(sight);
        if known.finished_at != finished_at {
            *known = sight; // another container with the same id
        }
        known.age + instant.saturating_duration_since(known.at)
    }

    /// Forgets the containers that are not in `completed`.
    fn keep_only(&mut self, completed: &BTreeSet<ContainerId>) {
        self.0.retain(|id, _| completed.contains(id));
    }

    /// Measures the disk usage of containers that are not measured yet.
    async fn measure(&mut self, paths: &Paths) {
        let new = self.0.iter().filter(|(_, sight)| sight.bytes.is_none());
        let new: Vec<(ContainerId, PathBuf)> = new.map(|(id, _)| (id.clone(), paths.kept_container(id))).collect();
        if new.is_empty() {
            return;
        }
        let measure = || new.into_iter().map(|(id, dir)| (id, bytes_on_disk(&dir))).collect::<Vec<_>>();
        for (id, bytes) in tokio::task::spawn_blocking(measure).await.unwrap_or_default() {
            if let Some(sight) = self.0.get_mut(&id) {
                sight.bytes = Some(bytes);
            }
        }
    }

    fn all_bytes(&self) -> u64 {
        self.0.values().filter_map(|sight| sight.bytes).fold(0, u64::saturating_add)
    }

    fn bytes(&self, id: &ContainerId) -> u64 {
        self.0.get(id).and_then(|sight| sight.bytes).unwrap_or(0)
    }
}

/// Returns the disk usage of a container's logs, outputs and records, in bytes. Unreadable files count as 0.
fn bytes_on_disk(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let of_entry = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_on_disk(&entry.path()),
        Ok(about) => about.blocks() * 512, // stat(2) counts 512-byte blocks
        Err(_) => 0,
    };
    entries.flatten().map(of_entry).sum()
}

/// Returns the containers to delete, oldest first.
async fn superfluous(node: &Node, seen: &mut FirstSightings) -> Vec<(Arc<Handle>, Reason)> {
    let now = (crate::now(), Instant::now());
    let mut completed: Vec<(Duration, Arc<Handle>)> = Vec::new();
    let mut unwanted = Vec::new();
    let mut with_members = BTreeSet::new();
    node.registry.visit(None, |handle| {
        let Some(facts) = handle.facts() else { return true };
        with_members.extend(facts.plan.member_of().cloned());
        match facts.end.as_ref().map(|end| end.finished_at) {
            Some(_) if facts.plan.remove_when_completed => unwanted.push((Arc::clone(handle), Reason::Request)),
            finished_at => {
                let age = finished_at.map(|at| seen.age(handle.id(), at, now));
                completed.extend(age.map(|age| (age, Arc::clone(handle))));
            }
        }
        true
    });
    seen.keep_only(&completed.iter().map(|(_, handle)| handle.id().clone()).collect());
    seen.measure(&node.config.paths).await;
    node.completed_bytes.store(seen.all_bytes(), Ordering::Relaxed);
    // A pod is kept while any of its members is kept.
    completed.retain(|(_, handle)| !with_members.contains(handle.id()) && !handle.is_kept_until_deleted());
    // Containers first seen at the same time stay in the order of their dates.
    completed.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
    let sizes: Vec<(Duration, u64)> = completed.iter().map(|(age, handle)| (*age, seen.bytes(handle.id()))).collect();
    let reasons = reasons(&sizes, &node.config.retention);
    let expired = completed.into_iter().zip(reasons).filter_map(|((_, handle), reason)| Some((handle, reason?)));
    unwanted.into_iter().chain(expired).collect()
}

/// Returns for each completed container the reason to delete it, if any. The input is the age and size in bytes of each
/// container, oldest first.
fn reasons(completed: &[(Duration, u64)], limits: &RetentionSettings) -> Vec<Option<Reason>> {
    let mut left = completed.len();
    let mut bytes = completed.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    let reason = |(age, size): &(Duration, u64)| {
        let reason = if *age > limits.kept_for {
            Reason::Age
        } else if left > limits.completed {
            Reason::Number
        } else if bytes > limits.bytes {
            Reason::Bytes
        } else {
            return None;
        };
        left -= 1;
        bytes = bytes.saturating_sub(*size);
        Some(reason)
    };
    completed.iter().map(reason).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn clock_jumps_make_no_container_old() {
        let date = |hours: u64| Timestamp(hours * 3600 * 1_000_000_000);
        let (mut seen, start) = (FirstSightings::default(), Instant::now());
        let (a, b): (ContainerId, ContainerId) = ("a".parse().unwrap(), "b".parse().unwrap());
        assert_eq!(seen.age(&a, date(100), (date(100), start)), Duration::ZERO);
        for (now, passed) in [(106, HOUR), (94, 2 * HOUR)] {
            assert_eq!(seen.age(&a, date(100), (date(now), start + passed)), passed);
        }
        // If a container completes after the clock was set back, it is younger, although its date is earlier.
        assert_eq!(seen.age(&b, date(94), (date(94), start + 2 * HOUR)), Duration::ZERO);
        // Control: the age of a container of an earlier daemon is computed from its dates.
        seen.keep_only(&BTreeSet::new());
        assert_eq!(seen.age(&a, date(100), (date(106), start)), 6 * HOUR);
    }

    #[test]
    fn limits_expire_the_oldest_first() {
        let limits = RetentionSettings { completed: 3, kept_for: HOUR, bytes: 100, events: 1 };
        let minutes = |n: u32| HOUR / 60 * n;
        let expired = |sizes: &[(Duration, u64)]| reasons(sizes, &limits);
        assert_eq!(expired(&[(minutes(9), 40), (minutes(8), 40), (minutes(7), 20)]), [None; 3]);
        let (age, number, bytes) = (Some(Reason::Age), Some(Reason::Number), Some(Reason::Bytes));
        assert_eq!(expired(&[(minutes(61), 1), (minutes(9), 1)]), [age, None]);
        assert_eq!(expired(&[(minutes(9), 1); 5]), [number, number, None, None, None]);
        assert_eq!(expired(&[(minutes(9), 60), (minutes(8), 60), (minutes(7), 40)]), [bytes, None, None]);
        // Containers that another limit expires no longer count.
        assert_eq!(expired(&[(minutes(61), 90), (minutes(9), 60), (minutes(8), 40)]), [age, None, None]);
        assert_eq!(expired(&[(minutes(9), 101)]), [bytes]);
    }

    #[test]
    fn size_counts_logs_and_outputs() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("outputs")).unwrap();
        std::fs::write(dir.path().join("log"), vec![1; 10_000]).unwrap();
        std::fs::write(dir.path().join("outputs/0"), vec![1; 20_000]).unwrap();
        std::fs::File::create(dir.path().join("hole")).unwrap().set_len(1 << 40).unwrap();
        let bytes = bytes_on_disk(dir.path());
        assert!((30_000..60_000).contains(&bytes), "{bytes}");
    }
}
