//! Tracks the capacity that is reserved for each container. A new reservation never exceeds the total.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::ident::ContainerId;
use crate::plan::{EmptyVolume, Limits, Volume};

/// An amount of each accounted resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Number of processes and threads.
    pub pids: u64,
    /// Number of containers.
    pub containers: u64,
    /// Bytes of disk, counted only for containers with a disk limit.
    #[serde(default)]
    pub disk_bytes: u64,
}

impl Amount {
    /// Returns the sum of two amounts.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            pids: self.pids.saturating_add(other.pids),
            containers: self.containers.saturating_add(other.containers),
            disk_bytes: self.disk_bytes.saturating_add(other.disk_bytes),
        }
    }

    /// Returns this amount minus `other`, per resource and at least 0.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            pids: self.pids.saturating_sub(other.pids),
            containers: self.containers.saturating_sub(other.containers),
            disk_bytes: self.disk_bytes.saturating_sub(other.disk_bytes),
        }
    }

    /// Returns the larger amount of each resource.
    #[must_use]
    pub fn most(&self, other: &Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            pids: self.pids.max(other.pids),
            containers: self.containers.max(other.containers),
            disk_bytes: self.disk_bytes.max(other.disk_bytes),
        }
    }

    /// Returns a percentage of this amount, rounded up.
    #[must_use]
    pub fn percent(&self, percent: u64) -> Self {
        let of = |whole: u64| {
            let part = (u128::from(whole) * u128::from(percent)).div_ceil(100);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        Self {
            memory_bytes: of(self.memory_bytes),
            pids: of(self.pids),
            containers: of(self.containers),
            disk_bytes: of(self.disk_bytes),
        }
    }

    /// Checks that this amount covers `amount`. `total` is the total that the error reports.
    ///
    /// # Errors
    /// Returns the first insufficient resource, if there is one.
    pub fn suffices_for(&self, amount: &Self, total: &Self) -> Result<(), Exhausted> {
        let checks = [
            ("memory (bytes)", amount.memory_bytes, self.memory_bytes, total.memory_bytes),
            ("pids", amount.pids, self.pids, total.pids),
            ("containers", amount.containers, self.containers, total.containers),
            ("disk (bytes)", amount.disk_bytes, self.disk_bytes, total.disk_bytes),
        ];
        match checks.into_iter().find(|(_, amount, left, _)| amount > left) {
            Some((what, amount, left, total)) => Err(Exhausted { what, asked: amount, left, total }),
            None => Ok(()),
        }
    }

    /// Returns the amount that a container with these limits and volumes reserves.
    pub fn new(limits: &Limits, volumes: &[Volume]) -> Self {
        let volumes = volumes.iter().filter_map(Volume::empty).map(EmptyVolume::disk_bytes);
        let disk_bytes = volumes.fold(limits.disk_bytes, u64::saturating_add);
        Self { memory_bytes: limits.memory_bytes, pids: limits.pids, containers: 1, disk_bytes }
    }
}

/// Error of a reservation that exceeds the remaining capacity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not enough {what}: requested {asked}, available {left} of {total}")]
pub struct Exhausted {
    /// Name of the resource, with its unit.
    pub what: &'static str,
    /// Amount that the reservation requested.
    pub asked: u64,
    /// Amount that was still available.
    pub left: u64,
    /// Total amount of the resource.
    pub total: u64,
}

/// Reserved amounts by container.
#[derive(Clone, Debug)]
pub struct Account {
    total: Amount,
    held: HashMap<ContainerId, Amount>,
}

impl Account {
    /// Creates an account over `total` without reservations.
    pub fn new(total: Amount) -> Self {
        Self { total, held: HashMap::new() }
    }

    /// Returns the total capacity.
    pub fn total(&self) -> Amount {
        self.total
    }

    /// Returns the sum of the reserved amounts. The sum can exceed the total if containers were adopted.
    pub fn allocated(&self) -> Amount {
        self.held.values().fold(Amount::default(), |sum, held| Amount {
            memory_bytes: sum.memory_bytes.saturating_add(held.memory_bytes),
            pids: sum.pids.saturating_add(held.pids),
            containers: sum.containers.saturating_add(held.containers),
            disk_bytes: sum.disk_bytes.saturating_add(held.disk_bytes),
        })
    }

    /// Returns the remaining capacity.
    pub fn remaining(&self) -> Amount {
        self.held.values().fold(self.total, |left, held| left.minus(held))
    }

    /// Reserves `amount` for `id`, replacing an earlier reservation of the same id.
    ///
    /// # Errors
    /// Returns the first insufficient resource, if there is one. The account is then unchanged.
    pub fn reserve(&mut self, id: &ContainerId, amount: Amount) -> Result<(), Exhausted> {
        let before = self.held.remove(id);
        let suffices = self.remaining().suffices_for(&amount, &self.total);
        let held = if suffices.is_ok() { Some(amount) } else { before };
        self.held.extend(held.map(|held| (id.clone(), held)));
        suffices
    }

    /// Reserves `amount` for a container that is already running, regardless of the remaining capacity: the container
    /// was admitted before.
    pub fn adopt(&mut self, id: &ContainerId, amount: Amount) {
        self.held.insert(id.clone(), amount);
    }

    /// Replaces the amount reserved for `id`, regardless of the remaining capacity. Does nothing if `id` has no
    /// reservation.
    pub fn change(&mut self, id: &ContainerId, amount: Amount) {
        if let Some(held) = self.held.get_mut(id) {
            *held = amount;
        }
    }

    /// Releases the amount reserved for `id`. Idempotent.
    pub fn release(&mut self, id: &ContainerId) {
        self.held.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(memory_bytes: u64) -> Amount {
        Amount { memory_bytes, pids: 1, containers: 1, disk_bytes: 0 }
    }

    #[test]
    fn refused_reservation_changes_nothing() {
        let mut account = Account::new(Amount { memory_bytes: 10, pids: 5, containers: 2, disk_bytes: 7 });
        let (a, b, c) = ("a".parse().unwrap(), "b".parse().unwrap(), "c".parse().unwrap());
        account.reserve(&a, amount(6)).unwrap();
        let refused = account.reserve(&b, amount(5)).unwrap_err();
        assert_eq!(refused.to_string(), "not enough memory (bytes): requested 5, available 4 of 10");
        account.reserve(&b, amount(4)).unwrap();
        assert_eq!(account.reserve(&c, amount(0)).unwrap_err().what, "containers");
        account.release(&a);
        account.release(&a);
        let thirsty = Amount { disk_bytes: 8, ..amount(1) };
        let refused = account.reserve(&c, thirsty).unwrap_err();
        assert_eq!(refused.to_string(), "not enough disk (bytes): requested 8, available 7 of 7");
        assert_eq!(account.remaining(), Amount { memory_bytes: 6, pids: 4, containers: 1, disk_bytes: 7 });
        account.change(&c, amount(3));
        assert_eq!(account.remaining().memory_bytes, 6, "update of an id without a reservation has no effect");
        account.adopt(&c, amount(100));
        assert_eq!(account.remaining().memory_bytes, 0);
        account.change(&c, amount(2).most(&amount(1)));
        assert_eq!(account.remaining().memory_bytes, 4);
    }

    #[test]
    fn percentage_is_rounded_up() {
        let whole = Amount { memory_bytes: u64::MAX, pids: 101, containers: 1, disk_bytes: 0 };
        let half = Amount { memory_bytes: 1 << 63, pids: 51, containers: 1, disk_bytes: 0 };
        assert_eq!((whole.percent(50), whole.percent(100)), (half, whole));
    }

    proptest::proptest! {
        #[test]
        fn released_capacity_is_available_again(steps: Vec<(u8, u8, bool)>) {
            let total = Amount { memory_bytes: 300, pids: 20, containers: 8, disk_bytes: 0 };
            let mut account = Account::new(total);
            for (who, memory, take) in &steps {
                let id = format!("c{}", who % 12).parse().unwrap();
                if *take { let _ = account.reserve(&id, amount(u64::from(*memory))); } else { account.release(&id); }
                let held = account.held.values().map(|held| held.memory_bytes).sum::<u64>();
                proptest::prop_assert_eq!(held + account.remaining().memory_bytes, total.memory_bytes);
            }
            for who in 0..12 { account.release(&format!("c{who}").parse().unwrap()); }
            proptest::prop_assert_eq!(account.remaining(), total);
        }
    }
}
