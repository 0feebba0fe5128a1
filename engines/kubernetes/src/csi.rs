//! CSI plugin for inline volumes of secrets: `csi.v1` and `pluginregistration` (rule C52).
//!
//! ```text
//!  kubelet ──pluginregistration──> DIRECTORY/plugins_registry/NAME-reg.sock: name and socket of the plugin
//!     └────────────csi.v1────────> DIRECTORY/plugins/NAME/csi.sock: publish ──> volumes
//! ```
//! The plugin has no optional capabilities. The plugin publishes the inline volumes of a pod before RunPodSandbox; the
//! containers get the secrets in CreateContainer.

mod publish;

use std::path::PathBuf;
use std::sync::Arc;

use executor_cri_api::csi::identity_server::{Identity, IdentityServer};
use executor_cri_api::csi::node_server::{Node as NodeService, NodeServer};
use executor_cri_api::csi::*;
use executor_cri_api::registration::registration_server::{Registration, RegistrationServer};
use executor_cri_api::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::config::Csi;
use crate::node::Node;

/// Plugin type in the registration with the kubelet.
const KIND: &str = "CSIPlugin";
/// Supported version of CSI.
const VERSION: &str = "1.0.0";
/// Maximum size of a message, in bytes.
const MESSAGE_MAX: usize = 4 << 20;

/// Returns the path of the plugin's socket and the path of the registration socket.
pub(crate) fn sockets(Csi { driver, kubelet_directory, .. }: &Csi) -> [PathBuf; 2] {
    let plugin = kubelet_directory.join("plugins").join(driver).join("csi.sock");
    [plugin, kubelet_directory.join("plugins_registry").join(format!("{driver}-reg.sock"))]
}

/// Returns the routes of the plugin's services and the routes of the registration service.
pub(crate) fn routes(node: &Arc<Node>, settings: &Csi) -> [Routes; 2] {
    let plugin = Plugin { node: Arc::clone(node), settings: Arc::new(settings.clone()) };
    let services = Routes::new(IdentityServer::new(plugin.clone()))
        .add_service(NodeServer::new(plugin.clone()).max_decoding_message_size(MESSAGE_MAX));
    [services, Routes::new(RegistrationServer::new(plugin))]
}

#[derive(Clone)]
struct Plugin {
    node: Arc<Node>,
    settings: Arc<Csi>,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let [endpoint, _] = sockets(&self.settings);
        Ok(Response::new(PluginInfo {
            r#type: KIND.into(),
            name: self.settings.driver.clone(),
            endpoint: endpoint.display().to_string(),
            supported_versions: vec![VERSION.into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        match plugin_registered {
            true => tracing::info!(name = self.settings.driver, "the kubelet has registered the plugin"),
            false => tracing::error!(name = self.settings.driver, error, "the kubelet has not registered the plugin"),
        }
        empty()
    }
}

#[tonic::async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.settings.driver.clone(),
            vendor_version: executor_secrets::VERSION.into(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        empty()
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl NodeService for Plugin {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        publish::publish(&self.node, &self.settings, request.into_inner()).await?;
        empty()
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        publish::unpublish(&self.node, &self.settings, request.into_inner()).await?;
        empty()
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Response::new(NodeGetInfoResponse { node_id, ..NodeGetInfoResponse::default() }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        empty()
    }

    async fn node_stage_volume(
        &self,
        _: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        Err(unimplemented("NodeStageVolume"))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        Err(unimplemented("NodeUnstageVolume"))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        Err(unimplemented("NodeGetVolumeStats"))
    }

    async fn node_get_volume_health(
        &self,
        _: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        Err(unimplemented("NodeGetVolumeHealth"))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        Err(unimplemented("NodeGetStorageHealth"))
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        Err(unimplemented("NodeExpandVolume"))
    }
}

fn empty<T: Default>() -> Result<Response<T>, Status> {
    Ok(Response::new(T::default()))
}

fn unimplemented(call: &str) -> Status {
    Status::unimplemented(format!("{call}: the plugin supports only inline volumes"))
}
