//! Stores image layers through the launcher, which unpacks them.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::image::Digest;
use executor_core::protocol::{LauncherAnswer, LauncherCall, Reason, Refused, RemoveLayer, UnpackLayer};
use executor_images::{LayerNotes, LayerStore, LayerToUnpack, UnpackError};
use executor_sys::mutex::locked;

use super::Launcher;

/// Time limit for unpacking or removing a layer: the largest layers are several gigabytes, and disks are slow.
const UNPACK_TIMEOUT: Duration = Duration::from_secs(3600);
/// Time limit for a layer lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of layers in the cache.
const CACHED_MAX: usize = 4096;

/// Existing layers, by digest and parents. The value is the warning about the layer's omitted entries, if any.
type Cached = HashMap<(Digest, Vec<Digest>), Option<String>>;

/// Client of the launcher's layer store.
#[derive(Debug)]
pub struct LauncherLayers {
    launcher: Arc<Launcher>,
    /// Layers that the launcher reported, and the number of greetings before that report: a new greeting invalidates
    /// the cache.
    cache: Mutex<(u64, Cached)>,
}

impl LauncherLayers {
    /// Creates the layer store of a launcher.
    pub fn new(launcher: Arc<Launcher>) -> Self {
        Self { launcher, cache: Mutex::default() }
    }

    fn cached<T>(&self, change: impl FnOnce(&mut Cached) -> T) -> T {
        let greeted = *self.launcher.watch_greetings().borrow();
        let mut cache = locked(&self.cache);
        if cache.0 != greeted {
            *cache = (greeted, HashMap::new());
        }
        if cache.1.len() > CACHED_MAX {
            cache.1.clear();
        }
        change(&mut cache.1)
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
            Ok(LauncherAnswer::Refused(refused)) => Err((refused.reason(), unpack_error(refused))),
            Ok(_) => Err((Reason::Internal, UnpackError::Internal("the launcher sent an unexpected response".into()))),
            Err(lost) => Err(absent(lost.to_string())),
        }
    }
}

fn unpack_error(refused: Refused) -> UnpackError {
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
        if let Some(warning) = self.cached(|layers| layers.get(&entry).cloned()) {
            return Ok(Some(LayerNotes { warning }));
        }
        // Without a descriptor the launcher only looks the layer up and unpacks nothing.
        let parents = parents.iter().map(|parent| hex_bytes(parent.hex())).collect();
        let look = UnpackLayer { diff_id: diff_id.to_string(), parents, ..UnpackLayer::default() };
        match self.call(LOOKUP_TIMEOUT, LauncherCall::UnpackLayer(look), &[]).await {
            Ok(warning) => {
                self.cached(|layers| layers.insert(entry, warning.clone()));
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
        let done = self.call(UNPACK_TIMEOUT, LauncherCall::UnpackLayer(order), &[blob.as_fd()]).await;
        let warning = done.map_err(|(_, error)| error)?;
        self.cached(|layers| layers.insert((layer.diff_id, layer.parents), warning.clone()));
        Ok(LayerNotes { warning })
    }

    async fn remove(&self, diff_id: &Digest) -> Result<(), UnpackError> {
        // Clear the cache before the call, so that concurrent lookups query the launcher.
        self.cached(|layers| layers.retain(|(layer, parents), _| layer != diff_id && !parents.contains(diff_id)));
        let remove = RemoveLayer { diff_id: diff_id.to_string() };
        match self.call(UNPACK_TIMEOUT, LauncherCall::RemoveLayer(remove), &[]).await {
            Ok(_) | Err((Reason::NotFound, _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }
}

/// Decodes hexadecimal digits.
fn hex_bytes(digits: &str) -> Vec<u8> {
    let value = |b: u8| char::from(b).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0);
    digits.as_bytes().chunks(2).map(|pair| pair.iter().fold(0, |byte, b| byte << 4 | value(*b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_become_bytes() {
        assert_eq!(hex_bytes("00ff1a"), [0, 255, 0x1a]);
    }
}
