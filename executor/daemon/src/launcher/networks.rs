//! The list of networks, which the launcher makes.

use executor_core::protocol::{LauncherAnswer, LauncherCall, ListNetworks, NETWORK_LIST_MAX, NetworkList};
use executor_sys::memfile::MemFile;
use prost::Message as _;

use super::Launcher;
use crate::api_error::{ApiError, Kind};

impl Launcher {
    /// Returns the networks with these names, or all if `names` is empty. Names without a network are left out.
    ///
    /// # Errors
    /// Returns an error if no launcher is connected or the launcher refuses.
    pub(crate) async fn networks(&self, names: Vec<String>) -> Result<NetworkList, ApiError> {
        const ABOUT: &str = "the launcher's list of networks";
        let call = LauncherCall::ListNetworks(ListNetworks { names });
        let answer = self.session()?.call_for_fds(call).await.map_err(|lost| self.absent(&lost.to_string()))?;
        let fds = match answer {
            (LauncherAnswer::NetworksListed(_), fds) => fds.map_err(|error| ApiError::from_system(ABOUT, &error))?,
            (LauncherAnswer::Refused(refused), _) => return Err(refused.into()),
            _ => return Err(ApiError::new(Kind::Internal, format!("{ABOUT}: the answer has another type"))),
        };
        let fd = fds.into_iter().next();
        let fd = fd.ok_or_else(|| ApiError::new(Kind::Internal, format!("{ABOUT}: the answer has no descriptor")))?;
        let file = MemFile::from_fd(fd, NETWORK_LIST_MAX).map_err(|error| ApiError::from_system(ABOUT, &error))?;
        let list =
            file.read(|bytes| NetworkList::decode(bytes)).map_err(|error| ApiError::from_system(ABOUT, &error))?;
        list.map_err(|error| ApiError::from_system(ABOUT, &error))
    }
}
