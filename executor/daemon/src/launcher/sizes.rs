//! Requests the size of the layer store from the launcher.

use std::time::Duration;

use executor_core::protocol::{LauncherAnswer, LauncherCall, LayersMeasured, MeasureLayers};

use super::Launcher;
use crate::api_error::{ApiError, Kind};

/// Time limit for the measurement. Layers that were measured before the limit are not measured again.
const MEASURING: Duration = Duration::from_secs(60);

impl Launcher {
    /// Returns the size of the stored layers.
    ///
    /// # Errors
    /// Returns an error if no launcher is connected, or if it refuses or does not answer in time.
    pub(crate) async fn layers_size(&self) -> Result<LayersMeasured, ApiError> {
        let call = LauncherCall::MeasureLayers(MeasureLayers {});
        let answer = self.session()?.call_within(MEASURING, call, &[]).await;
        match answer.map_err(|lost| self.absent(&lost.to_string()))? {
            LauncherAnswer::LayersMeasured(size) => Ok(size),
            LauncherAnswer::Refused(refused) => Err(refused.into()),
            _ => Err(ApiError::new(Kind::Internal, "size of the layers: the launcher sent an unexpected response")),
        }
    }
}
