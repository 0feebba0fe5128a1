//! Ids as people type them: the whole, or a beginning that no other id has.
//!
//! A whole id wins over longer ones that begin with it. Looked up is only what executord does not know as an id, so that
//! commands with whole ids are one call, as a script expects.

use executor_client::{Client, Code, Match};

use crate::failure::Failure;
use crate::status::ErrorContext as _;
use crate::text::plain;

/// Most ids that are told where several fit.
const TOLD_MAX: u32 = 10;

/// Calls `work` with an id; if executord does not know the id, with the one id that begins with it.
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
/// Fails if several ids begin with the text, and none is the text itself.
pub(crate) async fn whole(client: &Client, text: &str) -> Result<Option<String>, Failure> {
    match client.find(text, TOLD_MAX).await.doing(&format!("look for {text}"))? {
        Match::None => Ok(None),
        Match::One(id) => Ok(Some(id)),
        Match::Several(ids, more) => {
            let more = if more { ", ..." } else { "" };
            Err(Failure::Usage(format!(
                "several containers have ids that begin with {}: {}{more}",
                plain(text),
                plain(&ids.join(", "))
            )))
        }
    }
}
