//! Tests inline volumes of secrets, published as by a kubelet: rules C52 to C55.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_cri_api::csi::node_client::NodeClient;
use executor_cri_api::csi::volume_capability::{AccessType, MountVolume};
use executor_cri_api::csi::{
    NodeGetCapabilitiesRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    VolumeCapability,
};
use executor_cri_api::registration::InfoRequest;
use executor_cri_api::registration::registration_client::RegistrationClient;
use executor_cri_api::v1::{ContainerConfig, Mount};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Search};
use integration::cri::{KubernetesNode, POLICY, log_dir};
use integration::daemon::Setup;
use integration::shelf::Shelf;
use integration::wait;
use integration::web::{WebAnswer, WebServer};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::{has_code, output};

/// Rule that allows the service account of the tests to use all secrets of the shelf.
const RULE: &str =
    "[[cri.secrets]]\nservice_accounts = [\"app\"]\nnamespaces = [\"test\"]\nprovider = \"shelf\"\npaths = [\"/\"]\n";
const SLEEP: &str = "exec sleep 100000";
const ITEMS: &str = "- {file: db/user, path: user}\n- {file: db/password, path: password, mode: 0440, group: 4321}\n\
                     - {file: token, path: token}\n";

/// Returns the directory of the kubelet.
fn kubelet(setup: &Setup) -> PathBuf {
    setup.home().join("kubelet")
}

fn write_rules(setup: &Setup, rules: &str) {
    let new = setup.home().join("cri.new");
    let plugin = format!("[cri.csi]\nkubelet_directory = {:?}\n", kubelet(setup));
    fs::write(&new, format!("{plugin}{rules}")).unwrap();
    fs::rename(new, setup.home().join("cri.toml")).unwrap();
}

fn node(shelf: &Shelf) -> KubernetesNode {
    for name in ["user", "password", "token"] {
        shelf.put(name, format!("first {name}"));
    }
    node_with(&shelf.provider(), RULE)
}

fn node_with(providers: &str, rules: &str) -> KubernetesNode {
    let setup = Setup::default();
    let policy = format!(
        "[policy]\n{POLICY}log_dirs = [{:?}]\nhost_paths = [{{ path = {:?}, suid = true, propagation = \"bidirectional\" }}]\n{}",
        log_dir(&setup),
        kubelet(&setup),
        providers
    );
    let setup = setup.config(&policy);
    write_rules(&setup, rules);
    KubernetesNode::with(setup)
}

fn channel(node: &KubernetesNode, path: &str) -> Channel {
    let socket = kubelet(node.daemon.setup()).join(path);
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    wait::until("the plugin serves", || node.block_on(endpoint.connect()).ok())
}

fn plugin(node: &KubernetesNode) -> NodeClient<Channel> {
    NodeClient::new(channel(node, "plugins/secrets.executor.v1/csi.sock"))
}

/// Returns the path of a pod's volume.
fn target(node: &KubernetesNode, pod: &str) -> PathBuf {
    let volumes = kubelet(node.daemon.setup()).join(format!("pods/uid-{pod}/volumes/kubernetes.io~csi/secrets"));
    fs::create_dir_all(&volumes).unwrap();
    volumes.join("mount")
}

/// Returns a kubelet's request for a volume with `items`, in a pod of [`KubernetesNode::sandbox`].
fn request(node: &KubernetesNode, pod: &str, items: &str) -> NodePublishVolumeRequest {
    let context = [
        ("csi.storage.k8s.io/pod.name", pod),
        ("csi.storage.k8s.io/pod.namespace", "test"),
        ("csi.storage.k8s.io/pod.uid", &format!("uid-{pod}")),
        ("csi.storage.k8s.io/serviceAccount.name", "app"),
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("provider", "shelf"),
        ("items", items),
    ];
    NodePublishVolumeRequest {
        volume_id: format!("csi-{pod}"),
        target_path: target(node, pod).display().to_string(),
        volume_capability: Some(VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            ..VolumeCapability::default()
        }),
        readonly: true,
        volume_context: context.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..NodePublishVolumeRequest::default()
    }
}

fn publish(node: &KubernetesNode, request: &NodePublishVolumeRequest) -> Result<(), Status> {
    node.block_on(plugin(node).node_publish_volume(request.clone())).map(drop)
}

fn unpublish(node: &KubernetesNode, request: &NodePublishVolumeRequest) {
    let NodePublishVolumeRequest { volume_id, target_path, .. } = request.clone();
    let request = NodeUnpublishVolumeRequest { volume_id, target_path };
    node.block_on(plugin(node).node_unpublish_volume(request)).unwrap();
}

fn with_mounts(mut config: ContainerConfig, mounts: &[(&Path, &str)]) -> ContainerConfig {
    config.mounts = mounts
        .iter()
        .map(|(host, path)| Mount {
            host_path: host.display().to_string(),
            container_path: (*path).to_owned(),
            readonly: true,
            ..Mount::default()
        })
        .collect();
    config
}

fn records(node: &KubernetesNode) -> Vec<PathBuf> {
    fs::read_dir(node.records().join("volumes")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A bind mount of a part of a volume, as a kubelet makes it for `subPath`. The mount is removed when this value is
/// dropped.
struct SubPath(PathBuf);

impl SubPath {
    fn mount(node: &KubernetesNode, source: &Path) -> Self {
        let path = kubelet(node.daemon.setup()).join(format!("sub-{}", source.file_name().unwrap().display()));
        match source.is_dir() {
            true => fs::create_dir(&path).unwrap(),
            false => drop(fs::File::create(&path).unwrap()),
        }
        assert!(Command::new("mount").arg("--bind").arg(source).arg(&path).status().unwrap().success());
        Self(path)
    }
}

impl Drop for SubPath {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Rules C52 and C53: the host has names and empty files, and the containers of the pod have the values, even with a
/// `subPath`. A changed secret is replaced. A repeated identical request has no effect. Neither executor-cri, its
/// records nor any file of the host has a value.
#[test]
fn volumes_become_files_of_containers() {
    let shelf = Shelf::new();
    let node = node(&shelf);
    let canary = Canary::random(64).unwrap();
    shelf.put("password", canary.as_bytes());
    let before = node.daemon.footprint();
    let mut registration = RegistrationClient::new(channel(&node, "plugins_registry/secrets.executor.v1-reg.sock"));
    let info = node.block_on(registration.get_info(InfoRequest {})).unwrap().into_inner();
    assert_eq!([&*info.r#type, &info.name, &info.supported_versions[0]], ["CSIPlugin", "secrets.executor.v1", "1.0.0"]);
    assert!(Path::new(&info.endpoint).exists(), "{}", info.endpoint);
    let capabilities = node.block_on(plugin(&node).node_get_capabilities(NodeGetCapabilitiesRequest {})).unwrap();
    assert!(capabilities.into_inner().capabilities.is_empty());
    let stage = node.block_on(plugin(&node).node_stage_volume(NodeStageVolumeRequest::default())).unwrap_err();
    assert_eq!(stage.code(), Code::Unimplemented);

    let request = request(&node, "a", ITEMS);
    publish(&node, &request).unwrap();
    let target = target(&node, "a");
    let device = fs::metadata(&target).unwrap().dev();
    assert_ne!(device, fs::metadata(target.parent().unwrap()).unwrap().dev());
    for file in ["db/user", "db/password", "token"] {
        assert_eq!(fs::read(target.join(file)).unwrap(), b"", "{file}");
    }
    let written = fs::write(target.join("token"), "x").unwrap_err();
    assert_eq!(written.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    publish(&node, &request).unwrap();
    assert_eq!(fs::metadata(&target).unwrap().dev(), device, "the volume is mounted once");
    let mut other = request.clone();
    other.volume_context.insert("items".into(), "- {file: a, path: user}".into());
    has_code(&publish(&node, &other).unwrap_err(), Code::AlreadyExists, &["volume_id"]);

    let mut at_its_path = request.clone();
    at_its_path.volume_id = "csi-other".into();
    has_code(&publish(&node, &at_its_path).unwrap_err(), Code::AlreadyExists, &["target_path"]);
    unpublish(&node, &at_its_path);
    assert_eq!(fs::metadata(&target).unwrap().dev(), device, "the volume of another id stays");

    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let (directory, file) = (SubPath::mount(&node, &target.join("db")), SubPath::mount(&node, &target.join("token")));
    let link = kubelet(node.daemon.setup()).join("link");
    symlink(&target, &link).unwrap();
    let mounts = [
        (&*target, "/run/secrets/all"),
        (&*directory.0, "/run/secrets/db"),
        (&*file.0, "/etc/token"),
        (&*link, "/linked/"),
    ];
    let config = with_mounts(node.script("c", SLEEP), &mounts);
    let id = node.started(&sandbox, &config);
    assert_eq!(node.create(&sandbox, &config).unwrap(), id, "a retry returns the same container");
    assert_eq!(node.status(&id).unwrap().mounts, config.mounts, "rule C12: mounts are as in the request");
    let read =
        "cd /run/secrets; cat all/db/user all/token db/user /etc/token /linked/token; stat -L -c %a:%g all/db/password";
    assert_eq!(output(&node, &id, read), "first userfirst tokenfirst userfirst tokenfirst token440:4321\n");
    let password = "cat /run/secrets/db/password";
    assert_eq!(output(&node, &id, password), canary.as_str(), "control: the program has the value");
    let mounted = output(&node, &id, "cat /proc/mounts");
    assert!(!mounted.contains("executor-csi"), "the volume of the host is not mounted: {mounted}");
    for directory in [" /run/secrets/all ", " /run/secrets/db ", " /linked "] {
        assert!(mounted.contains(directory), "{directory} is mounted as a whole: {mounted}");
    }
    shelf.put("token", "second token");
    wait::until("the new value is in the container", || {
        (output(&node, &id, "cat /etc/token /run/secrets/all/token") == "second tokensecond token").then_some(())
    });

    let mut needles = Needles::new().unwrap();
    needles.add("password", canary.as_bytes());
    let report = |root: &Path| {
        let mut search = Search::new(&needles);
        search.process(&Process::from_pid(node.pid()).unwrap());
        search.files(root);
        search.report()
    };
    assert!(!report(shelf.path()).hits.is_empty(), "control: the provider's file is found");
    assert_eq!(report(node.daemon.setup().home()).hits.len(), 0);
    assert_eq!(fs::read(target.join("db/password")).unwrap(), b"");
    let record = fs::read_to_string(&records(&node)[0]).unwrap();
    assert!(record.contains("\"shelf\"") && !record.contains(canary.as_str()), "{record}");

    node.remove_sandbox(&sandbox).unwrap();
    drop((directory, file));
    for _ in 0..2 {
        unpublish(&node, &request);
        assert!(!target.exists() && records(&node).is_empty());
    }
    node.daemon.wait_until_back_at(&before);
}

/// Rules C53 and C55: without a rule for the service account no volume is published, and rules for annotations do not
/// apply. A directory with the same names is an ordinary mount. The volume of another pod is refused.
#[test]
fn volumes_cannot_be_forged() {
    let shelf = Shelf::new();
    let node = node(&shelf);
    let setup = node.daemon.setup();
    let one = request(&node, "a", "- {file: token, path: token}");
    let of_annotations = RULE.replace("service_accounts = [\"app\"]", "annotations = true");
    let of_another = RULE.replace("\"app\"", "\"other\"");
    let elsewhere = RULE.replace("\"test\"", "\"elsewhere\"");
    for rules in ["", &of_annotations, &of_another, &elsewhere] {
        write_rules(setup, rules);
        let named = ["volumeAttributes.items[0]", "service account \"app\"", "\"test\"", "\"token\"", "cri.secrets"];
        has_code(&publish(&node, &one).unwrap_err(), Code::PermissionDenied, &named);
    }
    assert!(!target(&node, "a").exists() && records(&node).is_empty());
    write_rules(setup, RULE);
    let mut writable = one.clone();
    writable.readonly = false;
    has_code(&publish(&node, &writable).unwrap_err(), Code::InvalidArgument, &["readOnly: true"]);
    let mut outside = one.clone();
    outside.target_path = "/run/volume".into();
    has_code(&publish(&node, &outside).unwrap_err(), Code::InvalidArgument, &["target_path", "kubelet_directory"]);
    publish(&node, &one).unwrap();

    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let other = node.run_sandbox(&node.sandbox("b")).unwrap();
    let forged = kubelet(setup).join("forged");
    fs::create_dir(&forged).unwrap();
    fs::write(forged.join("token"), "").unwrap();
    let target = target(&node, "a");
    let of_volume = with_mounts(node.script("c", SLEEP), &[(&target, "/s")]);
    let of_forged = with_mounts(node.script("c", SLEEP), &[(&forged, "/s")]);
    let id = node.started(&other, &of_forged);
    assert_eq!(output(&node, &id, "cat /s/token; grep -c ' /s ' /proc/mounts"), "1\n", "an ordinary mount");
    node.remove_container(&id).unwrap();
    let denied = node.create(&other, &of_volume).unwrap_err();
    has_code(&denied, Code::PermissionDenied, &["config.mounts[0].host_path", "another pod"]);
    let link = forged.join("link");
    symlink(&target, &link).unwrap();
    let by_link = with_mounts(node.script("c", SLEEP), &[(&link, "/s")]);
    has_code(&node.create(&other, &by_link).unwrap_err(), Code::PermissionDenied, &["another pod"]);

    // The rules are checked again for each new container.
    write_rules(setup, &elsewhere);
    has_code(&node.create(&sandbox, &of_volume).unwrap_err(), Code::PermissionDenied, &["service account \"app\""]);
    publish(&node, &one).unwrap();
    write_rules(setup, RULE);
    let id = node.started(&sandbox, &of_volume);
    assert_eq!(output(&node, &id, "cat /s/token"), "first token", "control failed");
    let missing = shelf.path().join("token");
    fs::remove_file(missing).unwrap();
    let refused = node.create(&sandbox, &with_mounts(node.script("d", SLEEP), &[(&target, "/s")])).unwrap_err();
    has_code(&refused, refused.code(), &["config.mounts[0].items[0]", "shelf:token"]);
    node.remove_sandbox(&sandbox).unwrap();
    node.remove_sandbox(&other).unwrap();
    unpublish(&node, &one);
}

/// Rules C43 and C53: a volume survives SIGKILL of executor-cri between publication and creation. The record of a
/// volume that is not mounted, as after a reboot, is removed, and its device number is ignored.
#[test]
fn volumes_survive_restarts_of_executor_cri() {
    let shelf = Shelf::new();
    let mut node = node(&shelf);
    let one = request(&node, "a", ITEMS);
    publish(&node, &one).unwrap();
    let target = target(&node, "a");
    let device = fs::metadata(&target).unwrap().dev();
    node.restart_cri();
    let sandbox = node.run_sandbox(&node.sandbox("a")).unwrap();
    let config = with_mounts(node.script("c", SLEEP), &[(&target, "/s")]);
    let id = node.started(&sandbox, &config);
    assert_eq!(output(&node, &id, "cat /s/db/user"), "first user");
    publish(&node, &one).unwrap();
    assert_eq!(fs::metadata(&target).unwrap().dev(), device);

    let unmounted = || assert!(Command::new("umount").arg(&target).status().unwrap().success());
    unmounted();
    let ordinary = node.started(&sandbox, &with_mounts(node.script("d", SLEEP), &[(&target, "/s")]));
    assert_eq!(output(&node, &ordinary, "ls /s"), "", "a directory without a volume is an ordinary mount");
    publish(&node, &one).unwrap();
    let again = node.started(&sandbox, &with_mounts(node.script("e", SLEEP), &[(&target, "/s")]));
    assert_eq!(output(&node, &again, "cat /s/db/user"), "first user", "a republished volume has files");
    unmounted();
    node.restart_cri();
    assert!(records(&node).is_empty(), "the record of a volume that is not mounted is removed");
    publish(&node, &one).unwrap();
    node.remove_sandbox(&sandbox).unwrap();
    unpublish(&node, &one);
    assert!(!target.exists() && records(&node).is_empty());
}

/// Rules C53 and G19: executord authenticates to the provider with the token of the pod. The token reaches executord
/// only with containers that mount the volume. A new token arrives without a new container, even after a restart of
/// executord. No record has a token.
#[test]
fn tokens_stay_with_their_volumes() {
    let server = WebServer::start(|_, request| {
        let token = request.header("authorization").unwrap_or_default().strip_prefix("Bearer ").unwrap_or_default();
        // The value is the BASE64 of the token, so a container shows its own token.
        let value = STANDARD.encode(token);
        WebAnswer::ok(format!(r#"{{"kind":"Secret","data":{{"token":"{value}"}}}}"#).as_bytes())
    });
    let provider = format!(
        "[[secret_providers]]\nname = \"cluster\"\ntype = \"kubernetes\"\naddress = \"{}\"\nauth = \"jwt\"\n\
         poll_seconds = 1\nallow = [{{ uid = 0, paths = [\"/\"] }}]\n",
        server.url("")
    );
    let rules = format!("[cri.csi.tokens]\ncluster = \"api\"\n{}", RULE.replace("shelf", "cluster"));
    let mut node = node_with(&provider, &rules);
    let before = node.daemon.footprint();
    let with_token = |node: &KubernetesNode, pod: &str, token: &str| {
        let mut request = request(node, pod, "- {file: token, path: test/db, key: token}");
        request.volume_context.insert("provider".into(), "cluster".into());
        let tokens = format!(r#"{{"api":{{"token":"{token}","expirationTimestamp":"2030-01-01T00:00:00Z"}}}}"#);
        request.secrets.insert("csi.storage.k8s.io/serviceAccount.tokens".into(), tokens);
        request
    };
    let mut without = with_token(&node, "a", "x");
    without.secrets.clear();
    has_code(&publish(&node, &without).unwrap_err(), Code::InvalidArgument, &["serviceAccountTokenInSecrets"]);

    let canary = Canary::random(64).unwrap();
    let tokens = ["a", "b"].map(|pod| format!("{pod}-{}", canary.as_str()));
    let (mut ids, mut sandboxes) = (Vec::new(), Vec::new());
    for (pod, token) in ["a", "b"].into_iter().zip(&tokens) {
        publish(&node, &with_token(&node, pod, token)).unwrap();
        let sandbox = node.run_sandbox(&node.sandbox(pod)).unwrap();
        let config = with_mounts(node.script("c", SLEEP), &[(&target(&node, pod), "/s")]);
        ids.push(node.started(&sandbox, &config));
        sandboxes.push(sandbox);
    }
    for (id, token) in ids.iter().zip(&tokens) {
        assert_eq!(output(&node, id, "cat /s/token"), *token);
    }
    let record = fs::read_to_string(&records(&node)[0]).unwrap();
    assert!(record.contains("\"cluster\"") && !record.contains(canary.as_str()), "{record}");

    let has = |node: &KubernetesNode, id: &str, token: &str| {
        wait::until(&format!("the token is {token}"), || (output(node, id, "cat /s/token") == token).then_some(()));
    };
    publish(&node, &with_token(&node, "a", "a-second")).unwrap();
    has(&node, &ids[0], "a-second");
    assert_eq!(output(&node, &ids[1], "cat /s/token"), tokens[1], "the other pod keeps its token");

    node.daemon.kill();
    node.daemon.start_again();
    wait::until_ok("the token arrives at the new executord", || {
        publish(&node, &with_token(&node, "a", "a-third"))?;
        let is_new = output(&node, &ids[0], "cat /s/token") == "a-third";
        is_new.then_some(()).ok_or_else(|| Status::unavailable("not yet"))
    });

    // After its restart, executor-cri has no token until the kubelet sends the token again.
    node.restart_cri();
    let sandbox = node.run_sandbox(&node.sandbox("c")).unwrap();
    let config = with_mounts(node.script("d", SLEEP), &[(&target(&node, "c"), "/s")]);
    publish(&node, &with_token(&node, "c", "c-first")).unwrap();
    node.restart_cri();
    let missing = node.create(&sandbox, &config).unwrap_err();
    has_code(&missing, Code::Unavailable, &["config.mounts[0]", "no token of the pod"]);
    publish(&node, &with_token(&node, "c", "c-second")).unwrap();
    let id = node.started(&sandbox, &config);
    assert_eq!(output(&node, &id, "cat /s/token"), "c-second");
    node.restart_cri();
    assert_eq!(node.create(&sandbox, &config).unwrap(), id, "a retry needs no token");
    for (pod, sandbox) in ["a", "b", "c"].into_iter().zip(sandboxes.iter().chain([&sandbox])) {
        node.remove_sandbox(sandbox).unwrap();
        unpublish(&node, &with_token(&node, pod, "x"));
    }
    node.daemon.wait_until_back_at(&before);
}
