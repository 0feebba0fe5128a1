//! Image layers with the real launcher: unpacking, use, removal, and leftovers after a kill or on a full disk.

mod life;
mod trouble;
mod umoci;
