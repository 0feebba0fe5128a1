//! Resolves ids that users type: complete ids or unique prefixes.
//!
//! A complete id takes precedence over longer ids that begin with it. An id is looked up only if executord does not
//! know it, so that a command with complete ids makes a single call, as scripts expect.

use executor_cli_kit::failure::Failure;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_client::{Client, Code, Match};

/// Maximum number of candidate ids in the error for an ambiguous prefix.
const REPORTED_MAX: u32 = 10;

/// Calls `work` with an id. If executord does not know the id, calls `work` with the only id that has this prefix.
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

/// Returns the id that begins with `text`, or `None` if no id does.
///
/// # Errors
/// Returns an error if several ids begin with the text and no id equals it.
pub(crate) async fn whole(client: &Client, text: &str) -> Result<Option<String>, Failure> {
    match client.find(text, REPORTED_MAX).await.doing(&format!("find {text}"))? {
        Match::None => Ok(None),
        Match::One(id) => Ok(Some(id)),
        Match::Several(ids, more) => {
            let more = if more { ", ..." } else { "" };
            Err(Failure::Usage(format!(
                "several containers have ids that begin with {}: {}{more}; give more characters",
                plain(text),
                plain(&ids.join(", "))
            )))
        }
    }
}
