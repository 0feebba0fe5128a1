//! Tests which credentials are sent to which service.

use std::sync::Arc;

use executor_images::{Credentials, ImageError};

use crate::fake::{Fake, RecordedRequest, Reply, sha256};
use crate::shelf::TestStore;

const PASSWORD: &str = "canary-pw-31f0";
/// Header value for the user name and password `user:canary-pw-31f0`.
const BASIC: &str = "Basic dXNlcjpjYW5hcnktcHctMzFmMA==";

fn credentials(password: &str) -> Option<Credentials> {
    Credentials::basic("user", password.to_owned().into()).ok()
}

fn authorization(asked: &RecordedRequest) -> Option<&str> {
    asked.headers.get("authorization").map(String::as_str)
}

/// Starts a registry that requires user name and password.
async fn basic() -> Fake {
    let fake = Fake::start(|asked| {
        (authorization(asked) != Some(BASIC)).then(|| Reply::status(401).with("WWW-Authenticate", "Basic realm=\"x\""))
    })
    .await;
    fake.put_image("1", &[b"a", b"b"]);
    fake
}

/// Starts a registry that requires a token, and a token service. The service issues the token to `user` and to holders
/// of the refresh token, or to every client if `anonymous` is true.
async fn bearer(anonymous: bool) -> (Fake, Fake) {
    let service = Fake::start(move |asked| {
        let known = authorization(asked) == Some(BASIC)
            || asked.method == "POST"
                && asked.body.contains("grant_type=refresh_token")
                && asked.body.contains(PASSWORD);
        Some(match known || anonymous {
            true => Reply::ok(r#"{"token":"t0ken","expires_in":60}"#),
            false => Reply::status(401),
        })
    })
    .await;
    let realm = format!(
        "Bearer realm=\"http://{}/token\",service=\"reg istry\",scope=\"repository:team/app:pull,push,delete\"",
        service.address
    );
    let fake = Fake::start(move |asked| {
        (authorization(asked) != Some("Bearer t0ken"))
            .then(|| Reply::status(401).with("WWW-Authenticate", realm.clone()))
    })
    .await;
    fake.put_image("1", &[b"a", b"b"]);
    (fake, service)
}

fn unauthorized(error: &Arc<ImageError>) -> bool {
    let reported = format!("{error} {error:?}");
    assert!(!reported.contains(PASSWORD) && !reported.contains(BASIC), "{reported}");
    matches!(**error, ImageError::Unauthorized { .. })
}

#[tokio::test]
async fn registry_requires_correct_password() {
    let fake = basic().await;
    let (place, reference) = (TestStore::new(), fake.reference(":1"));
    let reported = place.pull(&reference).await.unwrap_err();
    assert!(unauthorized(&reported) && reported.to_string().contains("none were given"), "{reported}");
    let registry = fake.address;
    assert!(
        reported.to_string().contains(&format!("registry {registry} refuses a caller without credentials")),
        "{reported}"
    );
    assert!(fake.asked.lock().unwrap().iter().all(|asked| authorization(asked).is_none()));
    let reported = place.pull_as(&reference, credentials("wrong")).await.unwrap_err();
    assert!(unauthorized(&reported) && reported.to_string().contains("rejects the credentials"), "{reported}");
    assert!(reported.to_string().contains(&format!("registry {registry} refuses the user \"")), "{reported}");
    // If the user name equals the password, the name is also secret.
    let both = Credentials::basic(PASSWORD, PASSWORD.to_owned().into()).unwrap();
    let reported = place.pull_as(&reference, Some(both)).await.unwrap_err();
    assert!(unauthorized(&reported) && reported.to_string().contains("refuses the user of the request"), "{reported}");
    place.pull_as(&reference, credentials(PASSWORD)).await.unwrap();
    place.assert_consistent().await;
}

#[tokio::test]
async fn password_reaches_only_token_service() {
    for (anonymous, shown) in [(true, None), (false, credentials(PASSWORD))] {
        let (fake, service) = bearer(anonymous).await;
        TestStore::new().pull_as(&fake.reference(":1"), shown).await.unwrap();
        let asked = service.asked.lock().unwrap();
        // One token serves all requests. The token has read scope only, even if the registry suggests another scope.
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].path, "/token?service=reg%20istry&scope=repository%3Ateam%2Fapp%3Apull");
        // The password was sent to the token service and never to the registry.
        assert!(!fake.asked.lock().unwrap().iter().any(|asked| authorization(asked) == Some(BASIC)));
    }
    let (fake, _service) = bearer(false).await;
    let place = TestStore::new();
    assert!(unauthorized(&place.pull(&fake.reference(":1")).await.unwrap_err()));
    assert!(unauthorized(&place.pull_as(&fake.reference(":1"), credentials("wrong")).await.unwrap_err()));
}

#[tokio::test]
async fn refresh_and_registry_tokens_are_used() {
    let (fake, service) = bearer(false).await;
    let refresh = Credentials::IdentityToken(PASSWORD.to_owned().into());
    TestStore::new().pull_as(&fake.reference(":1"), Some(refresh)).await.unwrap();
    let asked = service.asked.lock().unwrap()[0].clone();
    assert!(asked.method == "POST" && asked.body.contains("scope=repository%3Ateam%2Fapp%3Apull"), "{asked:?}");
    assert!(!asked.path.contains(PASSWORD), "the URL, which servers log, contains no password");
    let token = Credentials::RegistryToken("t0ken".to_owned().into());
    TestStore::new().pull_as(&fake.reference(":1"), Some(token)).await.unwrap();
    assert_eq!(service.asked.lock().unwrap().len(), 1);
}

/// If a registry redirects a request, the redirect target gets no credentials.
#[tokio::test]
async fn redirect_target_gets_no_credentials() {
    let store = Fake::start(|_| Some(Reply::ok(b"a"))).await;
    let (to, layer) = (format!("http://{}/blob", store.address), sha256(b"a"));
    let fake = Fake::start(move |asked| match authorization(asked) == Some(BASIC) {
        true => asked.path.ends_with(&layer).then(|| Reply::redirect(to.clone())),
        false => Some(Reply::status(401).with("WWW-Authenticate", "Basic realm=\"x\"")),
    })
    .await;
    fake.put_image("1", &[b"a"]);
    TestStore::new().pull_as(&fake.reference(":1"), credentials(PASSWORD)).await.unwrap();
    let asked = store.asked.lock().unwrap();
    assert!(asked.len() == 1 && authorization(&asked[0]).is_none(), "{asked:?}");
    // The control: the registry itself received the credentials for the same blob.
    let path = format!("/blobs/{}", sha256(b"a"));
    let asked = fake.asked.lock().unwrap();
    assert!(asked.iter().any(|asked| asked.path.ends_with(&path) && authorization(asked) == Some(BASIC)));
}

/// If a redirect target requests credentials, the target gets none, and the error names the target.
#[tokio::test]
async fn redirect_target_cannot_request_credentials() {
    let thief =
        Fake::start(|_| Some(Reply::status(401).with("WWW-Authenticate", "Basic realm=\"give me your password\"")))
            .await;
    let (to, layer) = (format!("http://{}/blob", thief.address), sha256(b"a"));
    let fake = Fake::start(move |asked| asked.path.ends_with(&layer).then(|| Reply::redirect(to.clone()))).await;
    fake.put_image("1", &[b"a"]);
    let error = TestStore::new().pull_as(&fake.reference(":1"), credentials(PASSWORD)).await.unwrap_err();
    let target = format!("http://{}", thief.address);
    assert!(matches!(&*error, ImageError::Status { origin, status: 401, .. } if *origin == target), "{error}");
    assert!(thief.asked.lock().unwrap().iter().all(|asked| authorization(asked).is_none()));
}

/// If a registry names a token service that it may not name, the service is not contacted.
#[tokio::test]
async fn untrusted_token_service_is_not_contacted() {
    for realm in ["http://169.254.169.254/token", "http://10.1.2.3/token", "ftp://127.0.0.1/x", "http://a:b@127.0.0.1/"]
    {
        let challenge = format!("Bearer realm=\"{realm}\"");
        let fake = Fake::start(move |_| Some(Reply::status(401).with("WWW-Authenticate", challenge.clone()))).await;
        let error = TestStore::new().pull_as(&fake.reference(":1"), credentials(PASSWORD)).await.unwrap_err();
        assert!(matches!(&*error, ImageError::Redirect { .. }), "{realm}: {error}");
    }
}

/// A response of a token service without a token is malformed; no credentials are blamed.
#[tokio::test]
async fn token_response_without_token_is_malformed() {
    for response in ["{}", r#"{"token":"","access_token":""}"#, "no JSON"] {
        let service = Fake::start(move |_| Some(Reply::ok(response))).await;
        let challenge = format!("Bearer realm=\"http://{}/token\"", service.address);
        let fake = Fake::start(move |_| Some(Reply::status(401).with("WWW-Authenticate", challenge.clone()))).await;
        let error = TestStore::new().pull(&fake.reference(":1")).await.unwrap_err();
        let is_named = matches!(&*error, ImageError::Malformed { why, .. } if why == "the response has no token");
        assert!(is_named, "{response}: {error}");
    }
}

/// If a registry responds with 403, the error reports denied access and does not ask for credentials.
#[tokio::test]
async fn denied_access_is_reported() {
    let fake = Fake::start(|_| Some(Reply::status(403))).await;
    for (shown, who) in [(None, "a caller without credentials"), (credentials(PASSWORD), "the user ")] {
        let error = TestStore::new().pull_as(&fake.reference(":1"), shown).await.unwrap_err();
        let reported = error.to_string();
        assert!(unauthorized(&error) && reported.contains(&format!("refuses {who}")), "{reported}");
        assert!(reported.contains(": access denied (403)") && !reported.contains("requires credentials"), "{reported}");
    }
}

#[tokio::test]
async fn docker_config_file_supplies_credentials() {
    let fake = basic().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let place = TestStore::with(|settings| settings.docker_config = Some(path.clone()));
    let auth = BASIC.strip_prefix("Basic ").unwrap();
    std::fs::write(&path, format!(r#"{{"auths": {{"{}": {{"auth": "{auth}"}}}}}}"#, fake.address)).unwrap();
    place.pull(&fake.reference(":1")).await.unwrap();
    // Credentials in the request take precedence over the file.
    assert!(unauthorized(&place.pull_as(&fake.reference(":1"), credentials("wrong")).await.unwrap_err()));
    std::fs::write(&path, format!(r#"{{"credHelpers": {{"{}": "pass"}}}}"#, fake.address)).unwrap();
    let error = place.pull(&fake.reference(":1")).await.unwrap_err();
    assert!(matches!(&*error, ImageError::AuthFile { .. }), "{error}");
}

/// If clients have different passwords, they do not share a pull.
#[tokio::test]
async fn pull_is_shared_only_with_same_credentials() {
    let fake = basic().await;
    let place = TestStore::new();
    let reference = fake.reference(":1");
    let (good, bad) = tokio::join!(place.pull_as(&reference, credentials(PASSWORD)), place.pull(&reference));
    assert!(good.is_ok() && unauthorized(&bad.unwrap_err()));
}
