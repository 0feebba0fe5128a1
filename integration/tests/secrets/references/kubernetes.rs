//! Secrets in a Kubernetes cluster, from a server with the API server's responses.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_residue::Canary;
use integration::daemon::Setup;
use integration::request::sleeper;
use integration::wait;
use integration::web::{WebAnswer, WebServer};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::references::residue::{needles, until_daemon_has_none};
use crate::references::{Shelf, content, from, wait_for_content};

const WORDS: &str = "canary-of-the-answer";

/// Two entries of a Secret arrive in one update, with the resource version; the token is read again when its file
/// changes. Each refusal of the server is reported without parts of its response. A redirect is not followed, because
/// the token would be sent to its target, and a response that is too large is not read to the end.
#[test]
fn secrets_of_clusters_are_followed() {
    let [old, new] = [4096, 4096].map(|length| Canary::random(length).unwrap());
    let state = Arc::new(Mutex::new(("1", "token-1", old.as_str().to_owned())));
    let served = Arc::clone(&state);
    let elsewhere = WebServer::start(|_, _| WebAnswer::ok(b"{}"));
    let location = elsewhere.url("/api/v1/namespaces/shop/secrets/moved");
    let server = WebServer::start(move |_, request| {
        let (version, token, password) = served.lock().unwrap().clone();
        let refused =
            |status| WebAnswer::Full(status, Vec::new(), format!(r#"{{"kind":"Status","message":"{WORDS}"}}"#).into());
        assert_eq!((&*request.method, request.header("accept")), ("GET", Some("application/json")));
        if request.header("authorization") != Some(&*format!("Bearer {token}")) {
            return refused("401 Unauthorized");
        }
        let data = |entries: String| {
            let body =
                format!(r#"{{"kind":"Secret","metadata":{{"resourceVersion":"{version}"}},"data":{{{entries}}}}}"#);
            WebAnswer::ok(body.as_bytes())
        };
        match &*request.target {
            "/api/v1/namespaces/shop/secrets/db" => {
                let [user, password] = [version, &password].map(|text| STANDARD.encode(text));
                data(format!(r#""user":"{user}","password":"{password}""#))
            }
            "/api/v1/namespaces/shop/secrets/page" => WebAnswer::ok(WORDS.as_bytes()),
            "/api/v1/namespaces/shop/secrets/denied" => refused("403 Forbidden"),
            "/api/v1/namespaces/shop/secrets/busy" => refused("429 Too Many Requests"),
            "/api/v1/namespaces/shop/secrets/hangs" => WebAnswer::Never,
            "/api/v1/namespaces/shop/secrets/moved" => {
                WebAnswer::Full("307 Temporary Redirect", vec![("location", location.clone())], Vec::new())
            }
            "/api/v1/namespaces/shop/secrets/flood" => WebAnswer::ok(&vec![b'x'; (8 << 20) + 1]),
            "/api/v1/namespaces/shop/secrets/large" => {
                data(format!(r#""a":"{}""#, STANDARD.encode(vec![b'x'; (1 << 20) + 1])))
            }
            _ => refused("404 Not Found"),
        }
    });
    let shelf = Shelf::new();
    let token = shelf.put("token", "token-1\n");
    let config = format!(
        "[[secret_providers]]\nname = \"cluster\"\ntype = \"kubernetes\"\naddress = \"{}\"\ntoken_file = {token:?}\n\
         poll_seconds = 1\ntimeout_seconds = 2\nallow = [{{ uid = 0, paths = [\"shop/\"] }}]\n",
        server.url("")
    );
    let daemon = Setup::default().config(&config).start();
    let run = |path: &str, key: &str| {
        let mut request = sleeper("r");
        request.volume_mounted_files.push(from("db/x", "cluster", path, key));
        let refused = daemon.api.run(request).unwrap_err();
        let fields = refused.get_details_bad_request().unwrap().field_violations;
        assert!(!format!("{refused:?}").contains(WORDS), "{refused:?}");
        (refused.code(), fields[0].description.clone())
    };
    for (path, key, code, why) in [
        ("shop/none", "a", Code::NotFound, "no such Secret (404)"),
        ("shop/db", "none", Code::NotFound, "no such key"),
        ("shop/denied", "a", Code::PermissionDenied, "a role must allow `get`"),
        ("shop/busy", "a", Code::Unavailable, "429"),
        ("shop/page", "a", Code::Unavailable, "not a Kubernetes Secret"),
        ("shop/hangs", "a", Code::Unavailable, "within 2 s"),
        ("shop/moved", "a", Code::Unavailable, "307"),
        ("shop/flood", "a", Code::FailedPrecondition, "larger than the maximum of 8388608 bytes"),
        ("shop/large", "a", Code::FailedPrecondition, "1048576"),
        ("shop/db", "", Code::InvalidArgument, "is empty"),
        ("shop", "a", Code::InvalidArgument, "must be NAMESPACE/NAME"),
        ("shop/a/b", "a", Code::InvalidArgument, "must be NAMESPACE/NAME"),
        ("other/db", "user", Code::PermissionDenied, "no rule of secret_providers.allow"),
    ] {
        let (got, description) = run(path, key);
        assert!(got == code && description.contains(why), "{path}: {got:?} {description}");
    }
    assert!(elsewhere.requests().is_empty(), "the redirect was followed");

    let mut request = sleeper("k");
    request.volume_mounted_files =
        vec![from("db/user", "cluster", "shop/db", "user"), from("db/password", "cluster", "shop/db", "password")];
    let container = daemon.api.started(request);
    assert_eq!((&*content(&container, "db/user"), &*content(&container, "db/password")), ("1", old.as_str()));
    assert_eq!(daemon.api.get("k").unwrap().secret_sources[0].version, "1");
    *state.lock().unwrap() = ("2", "token-2", new.as_str().to_owned());
    shelf.put("token", "token-2\n");
    wait_for_content(&container, "db/password", new.as_str());
    assert_eq!(content(&container, "db/user"), "2");
    let reported = wait::until("the version is reported", || {
        Some(daemon.api.get("k").unwrap()).filter(|one| one.secret_sources[1].version == "2")
    });
    assert_eq!(reported.files_generation, 2, "both values arrive in one update");
    let old = needles("old", &[&old]);
    until_daemon_has_none(&daemon, "the old value", &old);
    assert!(!daemon.setup().logged().contains(WORDS));
}
