//! Images in executord's store.

use executor_proto::v1::images_client::ImagesClient;
use executor_proto::v1::import_image_request::Part;
use executor_proto::v1::pull_image_response::News;
use executor_proto::v1::{
    Image, ImageStoreUsageRequest, ImageStoreUsageResponse, ImportHeader, ImportImageRequest, InspectImageRequest,
    InspectImageResponse, ListImagesRequest, PruneImagesRequest, PruneImagesResponse, PullImageRequest,
    PullImageResponse, PullProgress, RemoveImageRequest,
};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Streaming;
use tonic::transport::Channel;

use crate::connect::Client;
use crate::error::Error;
use executor_proto::Wiped;

/// Client for calls about the image store.
#[derive(Clone, Debug)]
pub struct Images(Client);

/// Event that [`Pull::next`] returns.
#[derive(Clone, Debug)]
pub enum Pulled {
    /// Progress, layer by layer.
    Progress(PullProgress),
    /// The last event: the image.
    Image(Image),
}

/// A pull of an image that is in progress.
pub struct Pull {
    client: Client,
    news: Streaming<PullImageResponse>,
}

impl Client {
    /// Returns the client for calls about the image store.
    pub fn images(&self) -> Images {
        Images(self.clone())
    }
}

impl Images {
    fn rpc(&self) -> ImagesClient<Channel> {
        // No limit on the response size: the operator limits the number of images.
        ImagesClient::new(self.0.channel()).max_decoding_message_size(usize::MAX)
    }

    /// Pulls an image from a registry or from executord's disk. Layers that are already stored are not fetched again.
    ///
    /// # Errors
    /// Returns an error if executord rejects the reference.
    pub async fn pull(&self, request: &Wiped<PullImageRequest>) -> Result<Pull, Error> {
        let news = self.0.answer(self.0.send_for_stream(request.clone(), "/executor.v1.Images/Pull").await)?;
        Ok(Pull { client: self.0.clone(), news })
    }

    /// Imports an image from an archive. `pieces` are the archive's bytes.
    ///
    /// # Errors
    /// Returns an error if the archive is damaged or does not contain the image that `header` names.
    pub async fn import(
        &self,
        header: ImportHeader,
        pieces: impl Stream<Item = Vec<u8>> + Send + 'static,
    ) -> Result<Image, Error> {
        let parts = tokio_stream::once(Part::Header(header)).chain(pieces.map(Part::Data));
        let requests = parts.map(|part| ImportImageRequest { part: Some(part) });
        let answer = self.0.answer(self.rpc().import(requests).await)?;
        answer.image.ok_or(Error::Incomplete("the image"))
    }

    /// Lists the images.
    ///
    /// # Errors
    /// Returns an error if executord is unavailable.
    pub async fn list(&self) -> Result<Vec<Image>, Error> {
        Ok(self.0.answer(self.rpc().list(ListImagesRequest {}).await)?.images)
    }

    /// Gets an image and its configuration, by reference or digest.
    ///
    /// # Errors
    /// Returns an error if there is no such image.
    pub async fn inspect(&self, image: &str) -> Result<InspectImageResponse, Error> {
        self.0.answer(self.rpc().inspect(InspectImageRequest { image: image.to_owned() }).await)
    }

    /// Removes an image, or one of its names. Returns true if the image itself was removed.
    ///
    /// # Errors
    /// Returns an error if there is no such image or a container uses it.
    pub async fn remove(&self, image: &str) -> Result<bool, Error> {
        Ok(self
            .0
            .answer(self.rpc().remove(RemoveImageRequest { image: image.to_owned(), all_names: false }).await)?
            .removed)
    }

    /// Removes an image with all of its names. `image` can be any of them.
    ///
    /// # Errors
    /// Returns an error if there is no such image or a container uses it.
    pub async fn remove_with_names(&self, image: &str) -> Result<(), Error> {
        let request = RemoveImageRequest { image: image.to_owned(), all_names: true };
        self.0.answer(self.rpc().remove(request).await).map(drop)
    }

    /// Returns the disk usage of the image store.
    ///
    /// # Errors
    /// Returns an error if executord is unavailable or has no launcher.
    pub async fn store_usage(&self) -> Result<ImageStoreUsageResponse, Error> {
        self.0.answer(self.rpc().store_usage(ImageStoreUsageRequest {}).await)
    }

    /// Removes images that no container uses.
    ///
    /// # Errors
    /// Returns an error if executord is unavailable.
    pub async fn prune(&self, request: PruneImagesRequest) -> Result<PruneImagesResponse, Error> {
        self.0.answer(self.rpc().prune(request).await)
    }
}

impl Pull {
    /// Returns the next event. [`Pulled::Image`] is the last event.
    ///
    /// # Errors
    /// Returns an error if the image could not be fetched or the connection broke.
    pub async fn next(&mut self) -> Result<Pulled, Error> {
        loop {
            let message = self.news.message().await.map_err(|status| self.client.error(&status))?;
            return Ok(match message.ok_or(Error::Incomplete("the image"))?.news {
                Some(News::Progress(progress)) => Pulled::Progress(progress),
                Some(News::Image(image)) => Pulled::Image(image),
                None => continue, // from a newer executord
            });
        }
    }

    /// Waits until the image is pulled.
    ///
    /// # Errors
    /// Returns the same errors as [`Pull::next`].
    pub async fn image(mut self) -> Result<Image, Error> {
        loop {
            if let Pulled::Image(image) = self.next().await? {
                return Ok(image);
            }
        }
    }
}
