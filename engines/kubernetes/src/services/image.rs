//! Implements the service `runtime.v1.ImageService`.

use std::sync::Arc;

use executor_cri_api::v1::image_service_server::ImageService;
use executor_cri_api::v1::*;
use tokio_stream::Empty;
use tonic::{Request, Response, Status};

use super::{answer, to_end};
use crate::images;
use crate::node::Node;

pub(super) struct Images(pub(super) Arc<Node>);

#[tonic::async_trait]
impl ImageService for Images {
    type StreamImagesStream = Empty<Result<StreamImagesResponse, Status>>;

    async fn list_images(&self, request: Request<ListImagesRequest>) -> Result<Response<ListImagesResponse>, Status> {
        let filter = request.into_inner().filter.and_then(|filter| filter.image);
        answer(ListImagesResponse { images: images::list(&self.0, filter).await? })
    }

    async fn stream_images(
        &self,
        _: Request<StreamImagesRequest>,
    ) -> Result<Response<Self::StreamImagesStream>, Status> {
        Err(Status::unimplemented("StreamImages: use ListImages"))
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> Result<Response<ImageStatusResponse>, Status> {
        let image = images::status(&self.0, request.into_inner().image).await?;
        answer(ImageStatusResponse { image, ..ImageStatusResponse::default() })
    }

    /// Pulls an image. The pull is cancelled with its call, because the kubelet has no other way to cancel a pull.
    async fn pull_image(&self, request: Request<PullImageRequest>) -> Result<Response<PullImageResponse>, Status> {
        let PullImageRequest { image, auth, .. } = request.into_inner();
        answer(PullImageResponse { image_ref: images::pull(&self.0, image, auth).await? })
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> Result<Response<RemoveImageResponse>, Status> {
        let (node, image) = (Arc::clone(&self.0), request.into_inner().image);
        to_end(async move { images::remove(&node, image).await }).await?;
        answer(RemoveImageResponse {})
    }

    async fn image_fs_info(&self, _: Request<ImageFsInfoRequest>) -> Result<Response<ImageFsInfoResponse>, Status> {
        answer(images::filesystem(&self.0).await?)
    }
}
