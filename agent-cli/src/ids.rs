//! Ids as people type them: the whole, or a beginning that no other id has.
//!
//! A whole id wins over longer ones that begin with it. Looked up is only what executord does not know as an id, so that
//! commands with whole ids are one call, as a script expects.

use executor_proto::v1::ListRequest;
use executor_proto::v1::executor_client::ExecutorClient;
use tonic::Code;

use crate::connect::Client;
use crate::failure::Failure;
use crate::status::is_away;
use crate::text::plain;

/// Most ids that are told where several fit.
const TOLD_MAX: u32 = 10;

/// Does `work` with an id, and where executord knows none of that name with the one that begins with it.
pub(crate) async fn with<T, F>(client: &Client, id: String, mut work: impl FnMut(String) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    match work(id.clone()).await {
        Err(failure) if failure.code() == Some(Code::NotFound) => match whole(client, &id).await? {
            Some(whole) if whole != id => work(whole).await,
            _ => Err(failure),
        },
        done => done,
    }
}

/// The id that begins with these characters; `None` where there is none.
///
/// # Errors
/// There are several, and none is the text itself.
pub(crate) async fn whole(client: &Client, text: &str) -> Result<Option<String>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    let call = |mut rpc: ExecutorClient<_>| {
        let request = ListRequest { page_size: TOLD_MAX + 1, id_prefix: text.to_owned(), ..ListRequest::default() };
        async move { rpc.list(request).await }
    };
    let page = client.patiently(&format!("look for {text}"), is_away, call).await?;
    let mut ids: Vec<String> = page.containers.into_iter().map(|container| container.id).collect();
    // An older executord lists others, too.
    if ids.iter().any(|id| !id.starts_with(text)) {
        return Ok(None);
    }
    // In their order: one that is the text itself comes first.
    if ids.len() < 2 || ids[0] == text {
        return Ok((!ids.is_empty()).then(|| ids.swap_remove(0)));
    }
    let more = if ids.len() > TOLD_MAX as usize { ", ..." } else { "" };
    ids.truncate(TOLD_MAX as usize);
    Err(Failure::Usage(format!(
        "several containers have ids that begin with {}: {}{more}",
        plain(text),
        plain(&ids.join(", "))
    )))
}
