//! Providers that are queried as the workload (`auth = "jwt"`, rule G19 of docs/guides/cri-rules.md): a login of each
//! container at OpenBao with a token such as a kubelet sends, new tokens, restarts of executord, the end of the
//! session, residue, invalid tokens.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use executor_proto::v1::{ProviderToken, UpdateFilesRequest};
use executor_residue::Needles;
use integration::daemon::Setup;
use integration::request::sleeper;
use integration::wait;
use integration::web::{WebAnswer, WebServer};
use rcgen::SigningKey as _;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::references::openbao::Bao;
use crate::references::residue::{search_daemon, until_daemon_has_none};
use crate::references::{content, from, wait_for_content};

/// Signs tokens of service accounts.
struct Issuer(rcgen::KeyPair);

impl Issuer {
    fn new() -> Self {
        Self(rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap())
    }

    /// Returns a token of a service account of the namespace `shop` that expires in `seconds`.
    fn token(&self, account: &str, seconds: i64) -> ProviderToken {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        let start = now - 7200;
        let header = serde_json::json!({ "alg": "EdDSA", "typ": "JWT" });
        let claims = serde_json::json!({
            "iss": "cluster", "aud": ["bao"], "sub": format!("system:serviceaccount:shop:{account}"),
            "iat": start, "nbf": start, "exp": now + seconds,
        });
        let mut token = URL_SAFE_NO_PAD.encode(header.to_string());
        write!(token, ".{}", URL_SAFE_NO_PAD.encode(claims.to_string())).unwrap();
        let signature = self.0.sign(token.as_bytes()).unwrap();
        write!(token, ".{}", URL_SAFE_NO_PAD.encode(signature)).unwrap();
        ProviderToken { provider: "vault".into(), token, role: String::new() }
    }

    /// Enables the login with tokens at a server: role `app` for the service account `app`, with sessions of 12 seconds
    /// that are renewed up to 25 seconds. Returns the configuration table.
    fn enable(&self, bao: &Bao) -> String {
        bao.run(&["auth", "enable", "jwt"]);
        let key = bao.shelf.put("issuer.pem", self.0.public_key_pem());
        bao.run(&["write", "auth/jwt/config", &format!("jwt_validation_pubkeys=@{}", key.display())]);
        write_role(bao, 12, 25);
        bao.table("auth = \"jwt\"\nauth_role = \"app\"\n")
    }
}

/// Writes the role `app`, with the lifetimes of its sessions in seconds, without and with renewals.
fn write_role(bao: &Bao, ttl: u32, max_ttl: u32) {
    bao.run(&[
        "write",
        "auth/jwt/role/app",
        "role_type=jwt",
        "user_claim=sub",
        "bound_audiences=bao",
        "bound_subject=system:serviceaccount:shop:app",
        "token_policies=app",
        &format!("token_ttl={ttl}s"),
        &format!("token_max_ttl={max_ttl}s"),
    ]);
}

fn update(id: &str, token: &ProviderToken) -> UpdateFilesRequest {
    UpdateFilesRequest { id: id.into(), provider_tokens: vec![token.clone()], ..UpdateFilesRequest::default() }
}

/// Returns needles that find the signature of a token.
fn needles(token: &ProviderToken) -> Needles {
    let mut needles = Needles::new().unwrap();
    needles.add("signature", token.token.rsplit('.').next().unwrap().as_bytes());
    needles
}

/// The server authorizes each container by its token. A session is renewed, and opened again with the newest token.
/// After a restart of executord the values are stale until the client sends a token. After the exit the session is
/// revoked and the token is gone.
#[test]
fn workloads_log_in_themselves() {
    let (bao, issuer) = (Bao::start("http", ""), Issuer::new());
    let config = issuer.enable(&bao);
    bao.put("u1", "p1");
    let mut daemon = Setup::default().config(&config).start();
    let request = |id: &str, tokens: &[&ProviderToken]| {
        let mut request = sleeper(id);
        request.volume_mounted_files.push(from("db/user", "vault", "kv/app/db", "user"));
        request.provider_tokens = tokens.iter().map(|token| (*token).clone()).collect();
        request
    };
    // Tokens of the service account `other`, expired tokens, and tokens of another issuer.
    let stranger = Issuer::new().token("app", 600);
    for token in [issuer.token("other", 600), issuer.token("app", -3600), stranger] {
        let refused = daemon.api.run(request("w", &[&token])).unwrap_err();
        assert!(
            refused.code() == Code::PermissionDenied && refused.message().contains("rejected the login at auth/"),
            "{refused}"
        );
        assert!(refused.message().contains("with the workload's token and role \"app\""), "{refused}");
        assert!(!format!("{refused:?}").contains(token.token.rsplit('.').next().unwrap()), "{refused:?}");
    }
    let first = issuer.token("app", 600);
    let container = daemon.api.started(request("w", &[&first]));
    assert_eq!(content(&container, "db/user"), "u1");
    assert!(!daemon.api.run(request("w", &[&issuer.token("app", 900)])).unwrap().created, "a retry with a newer token");
    assert!(!search_daemon(&daemon, &needles(&first)).hits.is_empty(), "control: the token is in memory");
    bao.put("u2", "p2");
    wait_for_content(&container, "db/user", "u2");
    wait::until("a renewal of the token", || (bao.served("auth/token/renew-self") >= 1).then_some(()));
    wait::until("executord logs in a second time", || (bao.served("auth/jwt/login") >= 2).then_some(()));

    let second = issuer.token("app", 601);
    daemon.api.update(update("w", &second)).unwrap();
    assert_eq!(daemon.api.get("w").unwrap().files_generation, 2, "a token changes no file");
    until_daemon_has_none(&daemon, "the old token", &needles(&first));

    // The next session does not expire during the test, so it must be revoked, although late.
    write_role(&bao, 600, 600);
    daemon.kill();
    daemon.start_again();
    wait::until("the value is stale", || {
        let source = daemon.api.get("w").unwrap().secret_sources.remove(0);
        (source.stale && source.problem.contains("no token for this workload")).then_some(())
    });
    bao.put("u3", "p3");
    daemon.api.update(update("w", &second)).unwrap();
    wait_for_content(&container, "db/user", "u3");
    wait::until("the value is current", || (!daemon.api.get("w").unwrap().secret_sources[0].stale).then_some(()));

    bao.run(&["operator", "seal"]);
    daemon.api.stop("w", None).unwrap();
    wait::until("the revocation is delayed", || {
        daemon.setup().logged().contains("cannot revoke the tokens of completed containers").then_some(())
    });
    bao.unseal();
    wait::until("the session is revoked", || (bao.served("auth/token/revoke-self") >= 1).then_some(()));
    let late = daemon.api.update(update("w", &second)).unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition, "{late}");
    until_daemon_has_none(&daemon, "the token", &needles(&second));
}

/// A provider of type `kubernetes` sends the token of the workload, so the cluster checks the permissions of the
/// workload.
#[test]
fn clusters_are_asked_as_workloads() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let headers = Arc::clone(&seen);
    let server = WebServer::start(move |_, request| {
        headers.lock().unwrap().push(request.header("authorization").unwrap_or_default().to_owned());
        let data = STANDARD.encode("value");
        WebAnswer::ok(format!(r#"{{"kind":"Secret","data":{{"user":"{data}"}}}}"#).as_bytes())
    });
    let config = format!(
        "[[secret_providers]]\nname = \"cluster\"\ntype = \"kubernetes\"\naddress = \"{}\"\nauth = \"jwt\"\n\
         poll_seconds = 1\nallow = [{{ uid = 0, paths = [\"/\"] }}]\n",
        server.url("")
    );
    let daemon = Setup::default().config(&config).start();
    let mut request = sleeper("k");
    request.volume_mounted_files.push(from("user", "cluster", "shop/db", "user"));
    let token = |token: &str| ProviderToken { provider: "cluster".into(), token: token.into(), role: String::new() };
    request.provider_tokens.push(token("token-1"));
    let container = daemon.api.started(request);
    assert_eq!(content(&container, "user"), "value");
    daemon.api.update(update("k", &token("token-2"))).unwrap();
    wait::until("the new token is used", || {
        seen.lock().unwrap().iter().any(|one| one == "Bearer token-2").then_some(())
    });
    assert_eq!(seen.lock().unwrap()[0], "Bearer token-1");
}

/// Every invalid token is named, and no message contains a token.
#[test]
fn bad_tokens_are_refused() {
    let config = "[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"http://127.0.0.1:1\"\n\
                  auth = \"jwt\"\nallow = [{ uid = 0, paths = [\"/\"] }]\n\
                  [[secret_providers]]\nname = \"files\"\ntype = \"directory\"\npath = \"/etc\"\n";
    let daemon = Setup::default().config(config).start();
    let fields = |tokens: Vec<ProviderToken>| {
        let mut request = sleeper("w");
        request.volume_mounted_files.push(from("user", "vault", "kv/app/db", "user"));
        request.provider_tokens = tokens;
        let refused = daemon.api.run(request).unwrap_err();
        assert!(refused.code() == Code::InvalidArgument && !format!("{refused:?}").contains("canary"), "{refused:?}");
        let all = refused.get_details_bad_request().unwrap().field_violations;
        all.into_iter().map(|one| format!("{}: {}", one.field, one.description)).collect::<Vec<_>>().join("\n")
    };
    let token = |provider: &str, token: &str| ProviderToken {
        provider: provider.into(),
        token: token.into(),
        role: String::new(),
    };
    assert!(fields(vec![]).contains("volume_mounted_files[0].from.provider: \"vault\" needs a token of the workload"));
    let all = fields(vec![
        token("vault", "canary line\n"),
        token("vault", &"canary".repeat(3000)),
        token("files", ""),
        token("none", "canary"),
        ProviderToken { role: "a\nb".into(), ..token("vault", "canary") },
    ]);
    for part in [
        "provider_tokens[0].token: may only contain visible ASCII",
        "provider_tokens[1].provider: \"vault\" has two tokens",
        "provider_tokens[1].token: is 18000 bytes; the maximum is 16384",
        "provider_tokens[2].provider: \"files\" does not use tokens",
        "provider_tokens[2].token: is empty",
        "provider_tokens[3].provider: \"none\" is not a provider",
        "provider_tokens[4].role: contains a control character",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    assert!(fields(vec![token("vault", "canary"); 65]).contains("provider_tokens: has 65 entries; at most 64"));
}
