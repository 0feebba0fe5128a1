//! Lists and checks the launcher's networks, and receives the sockets of their name servers.

use std::io;
use std::os::fd::OwnedFd;

use executor_core::protocol::{
    CHECK_PATIENCE, CheckNetwork, LauncherAnswer, LauncherCall, ListNetworks, NETWORK_LIST_MAX, NetworkChecks,
    NetworkList, OpenNameSockets,
};
use executor_sys::memfile::MemFile;
use prost::Message;

use super::Launcher;
use super::session::AnswerWithFds;
use crate::api_error::{ApiError, Kind};

impl Launcher {
    /// Returns the networks with these names, or all if `names` is empty. Omits names without a network.
    ///
    /// # Errors
    /// Returns an error if no launcher is connected or the launcher refuses.
    pub(crate) async fn networks(&self, names: Vec<String>) -> Result<NetworkList, ApiError> {
        let call = LauncherCall::ListNetworks(ListNetworks { names });
        let answer = self.session()?.call_for_fds(call).await.map_err(|lost| self.unanswered(&lost))?;
        let is_expected = |answer: &LauncherAnswer| matches!(answer, LauncherAnswer::NetworksListed(_));
        read("the launcher's list of networks", answer, is_expected)
    }

    /// Checks a network's containers with the network's plugins.
    ///
    /// # Errors
    /// Returns an error if no launcher is connected or the launcher refuses.
    pub(crate) async fn check_network(&self, name: String) -> Result<NetworkChecks, ApiError> {
        let call = LauncherCall::CheckNetwork(CheckNetwork { name });
        // A check takes up to `CHECK_PATIENCE`, and may have to wait for one other check.
        let answer = self.session()?.call_for_work(2 * CHECK_PATIENCE, call).await;
        let answer = answer.map_err(|lost| self.unanswered(&lost))?;
        let is_expected = |answer: &LauncherAnswer| matches!(answer, LauncherAnswer::NetworkChecked(_));
        read("the launcher's checks of the network", answer, is_expected)
    }

    /// Returns the sockets of the name server of a built-in network: one UDP socket and one TCP socket for each
    /// gateway.
    ///
    /// # Errors
    /// Returns an error if no launcher is connected, or a port is in use.
    pub(crate) async fn name_sockets(&self, network: &str) -> Result<Vec<OwnedFd>, ApiError> {
        const ABOUT: &str = "sockets of the name server";
        let call = LauncherCall::OpenNameSockets(OpenNameSockets { network: network.to_owned() });
        match self.session()?.call_for_fds(call).await.map_err(|lost| self.unanswered(&lost))? {
            (LauncherAnswer::NameSockets(_), fds) => fds.map_err(|error| ApiError::from_system(ABOUT, &error)),
            (LauncherAnswer::Refused(refused), _) => Err(refused.into()),
            _ => Err(ApiError::new(Kind::Internal, format!("{ABOUT}: the launcher sent an unexpected response"))),
        }
    }
}

/// Reads the message in the memory file of a response.
fn read<T: Message + Default>(
    about: &str,
    answer: AnswerWithFds,
    is_expected: impl FnOnce(&LauncherAnswer) -> bool,
) -> Result<T, ApiError> {
    let system = |error: &io::Error| ApiError::from_system(about, error);
    let fds = match answer {
        (LauncherAnswer::Refused(refused), _) => return Err(refused.into()),
        (answer, fds) if is_expected(&answer) => fds.map_err(|error| system(&error))?,
        _ => return Err(ApiError::new(Kind::Internal, format!("{about}: the launcher sent an unexpected response"))),
    };
    let fd = fds.into_iter().next();
    let fd = fd.ok_or_else(|| ApiError::new(Kind::Internal, format!("{about}: the launcher sent no descriptor")))?;
    let file = MemFile::from_fd(fd, NETWORK_LIST_MAX).map_err(|error| system(&error))?;
    let message = file.read(|bytes| T::decode(bytes)).map_err(|error| system(&error))?;
    message.map_err(|error| ApiError::from_system(about, &error))
}
