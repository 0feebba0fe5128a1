//! Values that pass executor-cri: the environment, arguments and output of exec, passwords of registries (rule C57).

use executor_cri_api::v1::{AuthConfig, ImageSpec, KeyValue, PullImageRequest};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Report, Search};
use integration::cri::KubernetesNode;
use integration::images::{Endpoint as _, Image, PASSWORD, Registry, USER};
use integration::wait;
use tonic::Code;

/// Prints the names of processes that are not zombies: the container's first process reaps none.
const LIVING: &str = "busybox grep -L 'State:.Z' /proc/[0-9]*/status | busybox wc -l";

fn search(node: &KubernetesNode, needles: &Needles, pids: &[u32]) -> Report {
    let mut search = Search::new(needles);
    let launcher = node.daemon.launcher().unwrap() as u32;
    let ours = [node.pid(), node.daemon.pid() as u32, launcher];
    ours.iter().chain(pids).filter_map(|&pid| Process::from_pid(pid)).for_each(|process| search.process(&process));
    search.files(node.daemon.setup().home());
    search.report()
}

#[test]
fn values_are_gone_after_the_removal() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let [variable, argument, password] = [64, 4096, 64].map(|length| Canary::random(length).unwrap());
    let mut needles = Needles::new().unwrap();
    for (label, canary) in [("variable", &variable), ("argument", &argument), ("password", &password)] {
        needles.add(label, canary.as_bytes());
    }
    let mut config = node.script("c", "exec sleep 100000");
    config.envs.push(KeyValue { key: "SECRET".into(), value: variable.as_bytes().to_vec() });
    let id = node.started(&sandbox, &config);
    let program = node.daemon.api.get(&id).unwrap().processes[0].pid;
    let done = node.exec(&id, &["sh", "-c", "echo $SECRET $1", "sh", argument.as_str()], 10).unwrap();
    assert!(String::from_utf8(done.stdout).unwrap().contains(argument.as_str()));
    let auth = AuthConfig { username: USER.into(), password: password.as_str().into(), ..AuthConfig::default() };
    let registry = Registry::start(true);
    let image = Some(ImageSpec { image: registry.name("none:1"), ..ImageSpec::default() });
    let mut images = node.images();
    let pull = PullImageRequest { image, auth: Some(auth), ..PullImageRequest::default() };
    assert!(node.block_on(images.pull_image(pull)).is_err(), "the password is wrong");

    let control = search(&node, &needles, &[program]);
    assert!(control.found(), "the control: the program has its variable");
    let left = search(&node, &needles, &[]);
    let of_cri = left.hits.iter().filter(|hit| format!("{:?}", hit.place).contains(&node.pid().to_string()));
    assert_eq!(of_cri.count(), 0, "while the container runs: {left:?}");
    node.remove_container(&id).unwrap();
    wait::until("nothing is left", || (!search(&node, &needles, &[]).found()).then_some(()));
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C39: credentials are sent to their own server alone.
#[test]
fn credentials_stay_with_their_registry() {
    let node = KubernetesNode::start();
    let (registry, image) = (Registry::start(true), Image::new());
    std::fs::write(image.root().join("file"), "x").unwrap();
    image.commit();
    image.push(&registry, "app:1");
    let pull = |server: String| {
        let auth = AuthConfig {
            username: USER.into(),
            password: PASSWORD.into(),
            server_address: server,
            ..AuthConfig::default()
        };
        let image = Some(ImageSpec { image: registry.name("app:1"), ..ImageSpec::default() });
        let mut images = node.images();
        node.block_on(images.pull_image(PullImageRequest { image, auth: Some(auth), ..Default::default() }))
    };
    assert_eq!(pull("registry.invalid".into()).unwrap_err().code(), Code::PermissionDenied);
    let id = pull(String::new()).unwrap().into_inner().image_ref;
    assert!(id.starts_with("sha256:"), "{id}");
}

/// Rule C36, complaint X4: what a timed out exec has started is killed, and the container runs on.
#[test]
fn timed_out_exec_leaves_nothing() {
    let node = KubernetesNode::start();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let id = node.started(&sandbox, &node.script("c", "exec sleep 100000"));
    let processes = || String::from_utf8(node.exec(&id, &["sh", "-c", LIVING], 10).unwrap().stdout).unwrap();
    let before = processes();
    for _ in 0..3 {
        let timed_out = node.exec(&id, &["sh", "-c", "sleep 100000 & sleep 100000"], 1).unwrap_err();
        assert_eq!(timed_out.code(), Code::DeadlineExceeded, "{timed_out:?}");
    }
    wait::until("its processes are gone", || (processes() == before).then_some(()));
    node.remove_sandbox(&sandbox).unwrap();
}
