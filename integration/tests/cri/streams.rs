//! URLs of exec, attach and port-forward: rule C33.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use executor_cri_api::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use integration::cri::KubernetesNode;

/// Opens a URL without an upgrade, which a valid token does not survive. Returns the code of the answer.
fn open(url: &str) -> String {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

/// The control: the URLs of another container stay.
#[test]
fn removals_revoke_urls() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let (removed, other) = (
        node.started(&sandbox, &node.script("c", "exec sleep 100000")),
        node.started(&sandbox, &node.script("d", "exec sleep 100000")),
    );
    let mut runtime = node.runtime();
    let mut urls = |id: &str| {
        let exec =
            ExecRequest { container_id: id.into(), cmd: vec!["true".into()], stdout: true, ..ExecRequest::default() };
        let attach = AttachRequest { container_id: id.into(), stdout: true, ..AttachRequest::default() };
        let exec = node.block_on(runtime.exec(exec)).unwrap().into_inner().url;
        [exec, node.block_on(runtime.attach(attach)).unwrap().into_inner().url]
    };
    let (gone, kept) = (urls(&removed), urls(&other));
    let mut runtime = node.runtime();
    let forward = PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![80] };
    let forward = node.block_on(runtime.port_forward(forward)).unwrap().into_inner().url;
    node.remove_container(&removed).unwrap();
    assert_eq!(gone.map(|url| open(&url)), ["404", "404"]);
    for url in kept.iter().chain([&forward]) {
        assert_ne!(open(url), "404", "{url}");
    }
    node.remove_sandbox(&sandbox).unwrap();
    for url in kept.iter().chain([&forward]) {
        assert_eq!(open(url), "404", "{url}");
    }
}
