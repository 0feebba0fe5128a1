//! The simulated host of a node whose containers are on a built-in network.

use integration::network::Network;
use integration::supervised::Supervised;

/// A simulated host, and the objects of its built-in network that exist without a container.
pub(crate) struct HostNetwork {
    pub(crate) network: Network,
    pub(crate) at_rest: Vec<String>,
}

impl HostNetwork {
    /// Checks that no network objects remain while no container exists.
    ///
    /// # Errors
    /// Returns all objects if there are more than at the start.
    pub(crate) fn check(&self, node: &Supervised) -> Result<(), Vec<String>> {
        let objects = self.network.bridge_objects(&node.run_dir(), &node.state_dir());
        // With a warm pool, one warm container is on the network, each time with a different address.
        if objects.len() <= self.at_rest.len() { Ok(()) } else { Err(objects) }
    }
}
