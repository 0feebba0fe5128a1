//! An update of the secret files of a running container (rotation): what the daemon asks of the shim.
//!
//! The daemon sends the whole list of files as it is to be, and which of them come with new content; the shim judges
//! that list as it judged the first one, compares the generation, and swaps.

use serde::{Deserialize, Serialize};

use crate::plan::PlannedFile;

/// Replaces the secret files of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileUpdate {
    /// The generation from which this list was made. Another one is refused as stale.
    pub base_generation: u64,
    /// Every file as it is to be, the runtime token's last.
    pub files: Vec<PlannedFile>,
    /// Those that come with content, as ascending indices into `files`; in the order of the contents' payload.
    pub changed: Vec<usize>,
}
