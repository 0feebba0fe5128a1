//! Tests encrypted registries: which certificates are trusted, and that there is no fallback to plain text.

use std::sync::Arc;

use executor_images::ImageError;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::fake::{Fake, Reply, sha256};
use crate::shelf::TestStore;

/// Creates a TLS server for these names. Returns the server and its certificate as PEM.
pub(crate) fn server(names: &[&str]) -> (TlsAcceptor, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), made.cert.pem())
}

#[tokio::test]
async fn tls_requires_trusted_ca_without_downgrade() {
    let plain = Fake::start(|_| Some(Reply::ok(b"a"))).await;
    let (to, layer) = (format!("http://{}/blob", plain.address), sha256(b"a"));
    let (tls, pem) = server(&["127.0.0.1", "localhost"]);
    let fake =
        Fake::start_with(move |asked| asked.path.ends_with(&layer).then(|| Reply::redirect(to.clone())), Some(tls))
            .await;
    fake.put_image("1", &[b"b"]);
    fake.put_image("2", &[b"a"]);
    let secure = |ca_file| {
        TestStore::with(|settings| {
            settings.insecure_registries.clear();
            settings.ca_file = ca_file;
        })
    };
    let stranger = secure(None).pull(&fake.reference(":1")).await.unwrap_err();
    assert!(matches!(&*stranger, ImageError::Untrusted { why, .. } if why.contains("UnknownIssuer")), "{stranger}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, pem).unwrap();
    let place = secure(Some(path));
    place.pull(&fake.reference(":1")).await.unwrap();
    let error = place.pull(&fake.reference(":2")).await.unwrap_err();
    assert!(matches!(&*error, ImageError::Redirect { why, .. } if why.contains("uses http")), "{error}");
    assert_eq!(plain.count("/"), 0);
    // A registry without TLS is not contacted in plain text.
    let fake = Fake::honest().await;
    fake.put_image("1", &[b"b"]);
    let error = place.pull(&fake.reference(":1")).await.unwrap_err();
    assert!(matches!(&*error, ImageError::Connection { .. } | ImageError::Untrusted { .. }), "{error}");
}
