//! The launcher as the one who unpacks.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::image::Digest;
use executor_core::protocol::{LauncherAnswer, LauncherCall, Reason, Refused, RemoveLayer, UnpackLayer};
use executor_images::{LayerNotes, LayerStore, LayerToUnpack, UnpackError};

use crate::launcher::Launcher;
use crate::locked;

/// For a layer to be unpacked: the largest ones have gigabytes, and disks are slow.
const UNPACKING: Duration = Duration::from_secs(3600);
/// For everything else.
const SHORT: Duration = Duration::from_secs(60);

/// Most layers that are remembered.
const KNOWN_MAX: usize = 4096;

/// Layers, each with what it lies on, and what was left out of each.
type Known = HashMap<(Digest, Vec<Digest>), Option<String>>;

/// Layers, unpacked by the launcher.
#[derive(Debug)]
pub struct LauncherLayers {
    launcher: Arc<Launcher>,
    /// Those that the launcher said are there, and to how many launchers it had been said hello by then: with a new one
    /// it is asked anew.
    known: Mutex<(u64, Known)>,
}

impl LauncherLayers {
    /// Layers behind a launcher.
    pub fn new(launcher: Arc<Launcher>) -> Self {
        Self { launcher, known: Mutex::default() }
    }

    fn note<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        let greeted = *self.launcher.watch_greetings().borrow();
        let mut known = locked(&self.known);
        if known.0 != greeted {
            *known = (greeted, HashMap::new());
        }
        if known.1.len() > KNOWN_MAX {
            known.1.clear();
        }
        change(&mut known.1)
    }

    async fn call(
        &self,
        limit: Duration,
        call: LauncherCall,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<String>, (Reason, UnpackError)> {
        let absent = |message: String| (Reason::Busy, UnpackError::Unavailable(message));
        let session = self.launcher.session().map_err(|problem| absent(problem.message))?;
        match session.call_within(limit, call, fds).await {
            Ok(LauncherAnswer::Done(_)) => Ok(None),
            Ok(LauncherAnswer::Unpacked(unpacked)) => Ok(Some(unpacked.warning)),
            Ok(LauncherAnswer::Refused(refused)) => Err((refused.reason(), said(refused))),
            Ok(_) => Err((Reason::Internal, UnpackError::Internal("the launcher answers something else".into()))),
            Err(lost) => Err(absent(lost.to_string())),
        }
    }
}

fn said(refused: Refused) -> UnpackError {
    let reason = refused.reason();
    let message = refused.message;
    match reason {
        Reason::Invalid | Reason::Precondition | Reason::NotFound => UnpackError::Refused(message),
        Reason::Denied => UnpackError::NotAllowed(message),
        Reason::Exhausted => UnpackError::NoSpace(message),
        Reason::Busy | Reason::Stale | Reason::Exists => UnpackError::InUse(message),
        Reason::Internal => UnpackError::Internal(message),
    }
}

impl LayerStore for LauncherLayers {
    async fn has(&self, diff_id: &Digest, parents: &[Digest]) -> Result<Option<LayerNotes>, UnpackError> {
        let entry = (diff_id.clone(), parents.to_vec());
        if let Some(warning) = self.note(|known| known.get(&entry).cloned()) {
            return Ok(Some(LayerNotes { warning }));
        }
        // Without a descriptor it only looks.
        let parents = parents.iter().map(|parent| hex_bytes(parent.hex())).collect();
        let look = UnpackLayer { diff_id: diff_id.to_string(), parents, ..UnpackLayer::default() };
        match self.call(SHORT, LauncherCall::UnpackLayer(look), &[]).await {
            Ok(warning) => {
                self.note(|known| known.insert(entry, warning.clone()));
                Ok(Some(LayerNotes { warning }))
            }
            Err((Reason::NotFound, _)) => Ok(None),
            Err((_, error)) => Err(error),
        }
    }

    async fn unpack(&self, layer: LayerToUnpack, blob: File) -> Result<LayerNotes, UnpackError> {
        let order = UnpackLayer {
            diff_id: layer.diff_id.to_string(),
            media_type: layer.media_type.to_owned(),
            bytes_max: layer.bytes_max,
            parents: layer.parents.iter().map(|parent| hex_bytes(parent.hex())).collect(),
        };
        let done = self.call(UNPACKING, LauncherCall::UnpackLayer(order), &[blob.as_fd()]).await;
        let warning = done.map_err(|(_, error)| error)?;
        self.note(|known| known.insert((layer.diff_id, layer.parents), warning.clone()));
        Ok(LayerNotes { warning })
    }

    async fn remove(&self, diff_id: &Digest) -> Result<(), UnpackError> {
        // First: whoever asks meanwhile asks the launcher.
        self.note(|known| known.retain(|(layer, parents), _| layer != diff_id && !parents.contains(diff_id)));
        let remove = RemoveLayer { diff_id: diff_id.to_string() };
        match self.call(UNPACKING, LauncherCall::RemoveLayer(remove), &[]).await {
            Ok(_) | Err((Reason::NotFound, _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }
}

/// The bytes of hexadecimal digits.
fn hex_bytes(digits: &str) -> Vec<u8> {
    let value = |b: u8| char::from(b).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0);
    digits.as_bytes().chunks(2).map(|pair| pair.iter().fold(0, |byte, b| byte << 4 | value(*b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_become_bytes() {
        assert_eq!(hex_bytes("00ff1a"), [0, 255, 0x1a]);
    }
}
