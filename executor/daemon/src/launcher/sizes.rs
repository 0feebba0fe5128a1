//! Requests the size of the layer store from the launcher.

use std::time::Duration;

use executor_core::protocol::{LauncherAnswer, LauncherCall, LayersMeasured, MeasureLayers};

use super::Launcher;
use crate::api_error::{ApiError, Kind};

/// Time limit for the measurement. Layers that were measured before the limit are not measured again.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(60);

impl Launcher {
    /// Returns the size of the stored layers.
    ///
    /// # Errors
    /// Returns an error if no launcher is connected, or if the launcher refuses or does not respond in time.
    pub(crate) async fn layers_size(&self) -> Result<LayersMeasured, ApiError> {
        let call = LauncherCall::MeasureLayers(MeasureLayers {});
        let answer = self.session()?.call_within(MEASURE_TIMEOUT, call, &[]).await;
        match answer.map_err(|lost| self.unanswered(&lost))? {
            LauncherAnswer::LayersMeasured(size) => Ok(size),
            LauncherAnswer::Refused(refused) => Err(refused.into()),
            _ => Err(ApiError::new(Kind::Internal, "size of the layers: the launcher sent an unexpected response")),
        }
    }
}
