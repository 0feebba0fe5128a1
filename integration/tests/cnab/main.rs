//! Bundles with a real run tool, in real containers of a real daemon: their life, what they are given, what is kept of them, and
//! what is not.

mod driver;
mod guide;
mod images;
mod interrupted;
mod lifecycle;
mod records;
mod values;
mod world;
