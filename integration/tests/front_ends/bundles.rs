//! Tests installations of bundles in real containers: upgrades, failures, rollbacks, removals, kills, catalogs, and
//! bundles from registries. The rules are in docs/guides/bundles.md and docs/guides/catalogs.md.

mod guide;
mod installations;
mod world;
