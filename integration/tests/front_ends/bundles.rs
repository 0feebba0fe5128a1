//! Bundles installed in real containers: pivot, failure, rollback, removal, kills; catalogs and bundles of registries. Rules are those of docs/guides/bundles.md and
//! docs/guides/catalogs.md.

mod guide;
mod installations;
mod world;
