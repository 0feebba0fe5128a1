//! Bundles with a real run tool, in real containers of a real daemon: their lifecycle, inputs, and records. The rules
//! are those of docs/guides/cnab-rules.md.

mod driver;
mod guide;
mod images;
mod interrupted;
mod lifecycle;
mod records;
mod values;
mod world;
