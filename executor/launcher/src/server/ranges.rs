//! Manages id ranges: finds the ranges in use by containers, pods and warm containers, and the next free range.

use std::collections::BTreeSet;

use executor_core::ident::ContainerId;
use executor_core::idmap::Block;
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::ViolationReason::Unsuitable;
use executor_core::validate::{Violation, check_given_ids};
use executor_sys::ready::is_readable;

use super::Server;
use crate::errors::failed;
use crate::log::{self, Level};
use crate::shim_handle::ShimHandle;

impl Server {
    /// Returns a range of ids that no container uses, if there is one.
    pub(super) fn free_range(&mut self) -> Option<u32> {
        let all = self.ranges(|_| true);
        let mut pool = self.pool.clone();
        let mut free = pool.find_free_range(&all, self.claims.blocks());
        if free.is_none() {
            // A shim that has removed everything is about to exit, and its ids are no longer in use.
            let held = self.ranges(|shim| !self.has_removed(shim));
            free = pool.find_free_range(&held, self.claims.blocks());
        }
        if free.is_none() {
            match self.claims.claim_more(&pool) {
                Ok(true) => free = pool.find_free_range(&all, self.claims.blocks()),
                Ok(false) => {
                    let other_launchers: Vec<String> = self
                        .claims
                        .other_launchers(&pool)
                        .iter()
                        .map(|run_dir| run_dir.display().to_string())
                        .collect();
                    if !other_launchers.is_empty() {
                        let reported = format_args!(
                            "no range of ids is free in {pool}; other launchers have claimed ranges: {}",
                            other_launchers.join(", ")
                        );
                        log::line(Level::Warning, "", reported);
                    }
                }
                Err(error) => log::line(Level::Error, "", format_args!("ids cannot be claimed: {error}")),
            }
        }
        self.pool = pool;
        free
    }

    /// Returns a range of the pool for a launch, after stopping warm containers if they hold all ranges.
    pub(super) fn pool_range(&mut self) -> Option<u32> {
        let mut range = self.free_range();
        while range.is_none() && self.stop_one_warm() {
            range = self.free_range();
        }
        range
    }

    /// Claims the range of ids that a request specifies. The range starts at `start`. The shim checks that the
    /// container's plan has the same range.
    ///
    /// # Errors
    /// Returns a violation if the launcher's own policy does not permit the range, or if the range is in use.
    pub(super) fn given_range(&mut self, start: u32) -> Result<u32, Refused> {
        let refused = |reason, why| Refused::from_fields(reason, &[Violation::new("id_map.host_id", why)]);
        check_given_ids(start, &self.host.policy).map_err(|why| refused(Reason::Invalid, why))?;
        let block = Block::from_range(start);
        let shown = format!("the ids {start}-{}", block.1 - 1);
        let held = self.ranges(|shim| !self.has_removed(shim));
        if held.into_iter().any(|other| Block::from_range(other).overlaps(&block)) {
            let why = Unsuitable.because(format!("{shown} are in use by another container"));
            return Err(refused(Reason::Precondition, why));
        }
        match self.claims.claim(block) {
            Ok(true) => Ok(start),
            Ok(false) => {
                let why = Unsuitable.because(format!("{shown} are claimed by another launcher of this host"));
                Err(refused(Reason::Precondition, why))
            }
            Err(error) => Err(failed("cannot claim ids", &error)),
        }
    }

    /// Returns the ranges that are in use by shims for which `range` returns true, by containers without a shim, and by
    /// warm containers.
    pub(super) fn ranges(&self, range: impl Fn(&ShimHandle) -> bool) -> BTreeSet<u32> {
        let shims = self.shims.values().filter(|shim| range(shim));
        shims
            .flat_map(|shim| [shim.id_range, shim.pod_range])
            .flatten()
            .chain(self.ranges_left.iter().copied())
            .chain(self.warm_pool.ranges())
            .collect()
    }

    /// Claims one more block if a launch would find no free range. A launch then waits for a range only if no block can
    /// be claimed.
    pub(super) fn claim_for_a_launch(&mut self) {
        if !self.has_range()
            && let Err(error) = self.claims.claim_more(&self.pool)
        {
            log::line(Level::Error, "", format_args!("ids cannot be claimed: {error}"));
        }
    }

    /// Returns true if a launch would find no range, and a shim is cleaning up an exited container.
    pub(super) fn is_range_being_released(&self) -> bool {
        let leaving = |shim: &ShimHandle| shim.done && !self.has_removed(shim) && !is_readable(&shim.pidfd);
        !self.has_range() && self.shims.values().any(leaving)
    }

    /// Returns true if a launch would find a range in the claimed blocks, or a warm container that can be stopped.
    fn has_range(&self) -> bool {
        let free = |held: BTreeSet<u32>| self.pool.clone().find_free_range(&held, self.claims.blocks()).is_some();
        self.warm_pool.ranges().next().is_some()
            || free(self.ranges(|_| true))
            || free(self.ranges(|shim| !self.has_removed(shim)))
    }

    /// Returns the range of the pod that a container joins. The pod keeps the range while any member has a shim.
    pub(super) fn pod_range(&self, pod: &str) -> Result<Option<u32>, Refused> {
        if pod.is_empty() {
            return Ok(None);
        }
        let id: ContainerId = pod.parse().map_err(|bad| Refused::new(Reason::Invalid, format!("pod id: {bad}")))?;
        let shim = self.shims.get(&id).filter(|shim| !self.has_finished(shim));
        let shim = shim.ok_or_else(|| Refused::new(Reason::Precondition, format!("the pod {id} is not running")))?;
        Ok(shim.id_range)
    }
}
