//! Downloads a URL to a file. Handles redirects, conditional requests and limits.

use std::fs::File;
use std::io::Write as _;

use executor_http::{Answer, BodyError, Client, Destinations, HttpRequest, Origin, RequestBody};
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, LOCATION,
};
use hyper::{Method, StatusCode};
use zeroize::Zeroizing;

use crate::job::{Failure, Fetch, Report, Rules, Validators};
use crate::remote::{self, Url, client, lists, plain, refused, reported};

pub(crate) fn fetch(fetch: &Fetch, url: &Url, file: File) -> Result<Report, Failure> {
    remote::run(async {
        let client = client(&fetch.rules);
        let place = url.place();
        let known = Some(&fetch.known).filter(|known| known.can_be_asked() && known.place == place);
        let (origin, answer) = follow(&client, fetch, known, url).await?;
        match answer.status {
            StatusCode::OK => {}
            StatusCode::NOT_MODIFIED if known.is_some() => return Ok(Report::NotModified),
            status => return Err(refused(&origin, status)),
        }
        let text = |name: HeaderName| Some(answer.headers.get(name)?.to_str().ok()?.to_owned());
        let validators = Validators { etag: text(ETAG), last_modified: text(LAST_MODIFIED), place };
        save(&fetch.rules, &origin, answer, file).await?;
        Ok(Report::Fetched { validators })
    })
}

/// Sends the request and follows redirects. Checks the addresses of each host.
async fn follow(
    client: &Client,
    fetch: &Fetch,
    known: Option<&Validators>,
    url: &Url,
) -> Result<(Origin, Answer), Failure> {
    let lists = lists(&fetch.rules);
    let (mut origin, mut path) = (url.origin.clone(), url.path.clone());
    for _ in 0..=fetch.rules.redirects_max {
        let mut headers =
            vec![(ACCEPT, HeaderValue::from_static("*/*")), (ACCEPT_ENCODING, HeaderValue::from_static("identity"))];
        let conditions = known.map(|known| [(IF_NONE_MATCH, &known.etag), (IF_MODIFIED_SINCE, &known.last_modified)]);
        for (name, value) in conditions.into_iter().flatten() {
            headers.extend(
                value.as_deref().and_then(|value| HeaderValue::from_str(value).ok()).map(|value| (name, value)),
            );
        }
        // The credentials are sent only to the server in the URL.
        let authorization = url.authorization.clone().filter(|_| origin == url.origin);
        headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
        let request = HttpRequest {
            method: Method::GET,
            origin: &origin,
            path: &path,
            headers,
            body: RequestBody::empty(),
            destinations: Destinations::Listed(&lists),
        };
        let answer = client.ask(request).await.map_err(|error| reported(&origin, error))?;
        if !answer.status.is_redirection() || answer.status == StatusCode::NOT_MODIFIED {
            return Ok((origin, answer));
        }
        let (next, place) = redirect(&origin, &answer.headers)?;
        if origin.secure && !next.secure {
            return Err(Failure::last(format!("{origin} redirects to {next}, which is not encrypted")));
        }
        (origin, path) = (next, place);
    }
    Err(Failure::last(format!("{origin} redirects more than {} times", fetch.rules.redirects_max)))
}

fn redirect(origin: &Origin, headers: &HeaderMap) -> Result<(Origin, Zeroizing<String>), Failure> {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| Origin::parse(location, origin));
    let (next, path) = next.ok_or_else(|| {
        Failure::last(format!(
            "{origin} redirects to an address that is not an http or https URL, or contains a user name"
        ))
    })?;
    Ok((next, Zeroizing::new(path)))
}

/// Writes the body of a response to the file.
async fn save(rules: &Rules, origin: &Origin, mut answer: Answer, mut file: File) -> Result<(), Failure> {
    let most = rules.bytes_max;
    let too_large =
        |bytes: u64| Failure::last(format!("the response of {origin} is {bytes} bytes or more; the maximum is {most}"));
    let announced = answer.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if let Some(bytes) = announced.filter(|bytes| *bytes > most) {
        return Err(too_large(bytes));
    }
    let mut bytes = 0;
    loop {
        let piece = answer.body.next().await.map_err(|error| match error {
            BodyError::Slow { .. } => {
                let why = format!("{origin} sent nothing for {} s", rules.idle.as_secs());
                Failure::transient(why)
            }
            BodyError::Ended => Failure::transient(format!("{origin} closed the connection after {bytes} bytes")),
        })?;
        let Some(piece) = piece else { return Ok(()) };
        bytes += piece.len() as u64;
        if bytes > most {
            return Err(too_large(bytes));
        }
        file.write_all(&piece)
            .map_err(|error| Failure::last(format!("cannot save the download: {}", plain(&error.to_string()))))?;
    }
}
