//! Runs bundles with a real run tool in real containers of a real daemon, and checks their lifecycle, inputs, and
//! records. The rules are in docs/guides/cnab-rules.md.

mod driver;
mod guide;
mod images;
mod interrupted;
mod lifecycle;
mod records;
mod values;
mod world;
