//! Installs bundles in real containers: pivot, failure, rollback, removal, kills, catalogs, and bundles from
//! registries. The rules are in docs/guides/bundles.md and docs/guides/catalogs.md.

mod guide;
mod installations;
mod world;
