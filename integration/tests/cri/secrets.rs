//! Tests secrets by reference in annotations of pods: rules C51, C54 and C55.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use executor_cri_api::v1::{
    ContainerConfig, ContainerStatusRequest, GetEventsRequest, IdMapping, Int64Value, KeyValue, LinuxContainerConfig,
    LinuxContainerSecurityContext, LinuxSandboxSecurityContext, ListContainersRequest, ListPodSandboxRequest, Mount,
    NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxStatusRequest, UserNamespace,
};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Search};
use integration::cri::{KubernetesNode, POLICY, log_dir};
use integration::daemon::{Setup, has_ended, kill};
use integration::network::Network;
use integration::shelf::Shelf;
use integration::wait;
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::{has_code, output};

/// Rule that allows the pods of the tests to use all secrets of the shelf.
const RULE: &str =
    "[[cri.secrets]]\nannotations = true\nnamespaces = [\"test\"]\nprovider = \"shelf\"\npaths = [\"/\"]\n";
const SLEEP: &str = "exec sleep 100000";
/// First host id of a pod's users. The id is outside of all id pools, and other tests do not use it.
const FIRST: u32 = 0x5010_0000;

/// Returns the configuration of executord with a provider, and `more` in `[policy]`.
fn configured(shelf: &Shelf, more: &str) -> Setup {
    let setup = Setup::default();
    let config = format!("[policy]\n{POLICY}{more}log_dirs = [{:?}]\n{}", log_dir(&setup), shelf.provider());
    setup.config(&config)
}

fn write_rules(setup: &Setup, rules: &str) {
    let new = setup.home().join("cri.new");
    fs::write(&new, rules).unwrap();
    fs::rename(new, setup.home().join("cri.toml")).unwrap();
}

fn node(shelf: &Shelf) -> KubernetesNode {
    let setup = configured(shelf, "");
    write_rules(&setup, RULE);
    KubernetesNode::with(setup)
}

/// Adds the annotation of a container to a pod.
fn annotated(mut pod: PodSandboxConfig, container: &str, entries: &[&str]) -> PodSandboxConfig {
    let text: String = entries.iter().map(|entry| format!("- {{{entry}}}\n")).collect();
    pod.annotations.insert(format!("secrets.executor.v1/{container}"), text);
    pod
}

/// Rule C51: files are on a tmpfs of the container, with the user of the program, mode and group; variables are in the
/// environment, including the environment of executed processes. A changed secret is replaced without a call by the
/// kubelet, and an unchanged file stays. The annotation of another container has no effect.
#[test]
fn annotations_become_files_and_variables() {
    let shelf = Shelf::new();
    for (name, value) in [("user", "first user"), ("password", "first password"), ("token", "first token\n")] {
        shelf.put(name, value);
    }
    let node = node(&shelf);
    let before = node.daemon.footprint();
    let entries = [
        "file: /run/db/user, provider: shelf, path: user, mode: 0440, group: 4321",
        "file: /run/db/password, provider: shelf, path: password",
        "file: /etc/token, provider: shelf, path: token, mode: 0644",
        "env: TOKEN, provider: shelf, path: token",
    ];
    let pod = annotated(node.sandbox("a"), "c", &entries);
    let pod = annotated(pod, "other", &["env: OTHER, provider: shelf, path: token"]);
    let sandbox = node.run_sandbox(&pod).unwrap();
    let mut config = node.script("c", SLEEP);
    let security = LinuxContainerSecurityContext {
        run_as_user: Some(Int64Value { value: 1000 }),
        run_as_group: Some(Int64Value { value: 1001 }),
        ..LinuxContainerSecurityContext::default()
    };
    config.linux = Some(LinuxContainerConfig { security_context: Some(security), ..LinuxContainerConfig::default() });
    let id = node.started(&sandbox, &config);
    assert_eq!(node.create(&sandbox, &config).unwrap(), id, "a retry returns the same container");
    let read = "cat /run/db/password /etc/token; echo $TOKEN$OTHER; stat -L -c '%a %u %g' /run/db/* /etc/token";
    let expected = "first passwordfirst token\nfirst token\n600 1000 1001\n440 1000 4321\n644 1000 1001\n";
    assert_eq!(output(&node, &id, read), expected);
    let mounts = output(&node, &id, "grep -E ' /(run/db|etc/token) ' /proc/mounts");
    assert_eq!(mounts.lines().count(), 2, "{mounts}");
    assert!(mounts.lines().all(|line| line.contains(" tmpfs ro,") || line.contains(" ramfs ro,")), "{mounts}");
    assert_eq!(node.status(&id).unwrap().mounts, config.mounts, "rule C12: mounts are as in the request");

    shelf.put("password", "second password");
    shelf.put("token", "second token\n");
    let read = "cat /run/db/password /etc/token; echo $TOKEN";
    wait::until("the new values are in the container", || {
        (output(&node, &id, read) == "second passwordsecond token\nfirst token\n").then_some(())
    });
    node.remove_sandbox(&sandbox).unwrap();
    node.daemon.wait_until_back_at(&before);
}

/// Rules C18 and C51: in a pod with its own user namespace, the files belong to the users of the pod. The volume of a
/// service account is next to the files.
#[test]
fn users_of_pods_own_their_files() {
    let (shelf, network) = (Shelf::new(), Network::new());
    network.configure("10-test.conflist", "test", &[]);
    shelf.put("password", "a password");
    let lent = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(lent.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(lent.path().join("namespace"), "test").unwrap();
    let policy = format!(
        "{POLICY}given_id_ranges = [\"{FIRST}-{}\"]\nhost_paths = [{{ path = {:?}, suid = true }}]\n",
        FIRST + 65_535,
        lent.path()
    );
    let setup = network.configured(&policy, &format!("cni_plugin_seconds = 30\n{}", shelf.provider()));
    write_rules(&setup, RULE);
    let node = KubernetesNode::with(setup);
    let mapping = vec![IdMapping { host_id: FIRST, container_id: 0, length: 65_536 }];
    let users = UserNamespace { mode: NamespaceMode::Pod.into(), uids: mapping.clone(), gids: mapping };
    let options = NamespaceOption { userns_options: Some(users), ..NamespaceOption::default() };
    let entries = [
        "file: /var/run/secrets/db/password, provider: shelf, path: password",
        "file: /var/run/secrets/password, provider: shelf, path: password",
    ];
    let mut pod = annotated(node.networked_sandbox("a"), "c", &entries);
    let security = LinuxSandboxSecurityContext { namespace_options: Some(options.clone()), ..Default::default() };
    pod.linux.as_mut().unwrap().security_context = Some(security);
    let sandbox = node.run_sandbox(&pod).unwrap();
    let mut config = node.script("c", SLEEP);
    let security = LinuxContainerSecurityContext {
        namespace_options: Some(options),
        run_as_user: Some(Int64Value { value: 1000 }),
        ..LinuxContainerSecurityContext::default()
    };
    config.linux = Some(LinuxContainerConfig { security_context: Some(security), ..LinuxContainerConfig::default() });
    config.mounts.push(Mount {
        container_path: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
        host_path: lent.path().display().to_string(),
        readonly: true,
        ..Mount::default()
    });
    let id = node.started(&sandbox, &config);
    let read = "cd /var/run/secrets; cat password db/password kubernetes.io/serviceaccount/namespace; stat -L -c '%a %u' db/password";
    assert_eq!(output(&node, &id, read), "a passworda passwordtest600 1000\n");
    let process = node.daemon.api.get(&id).unwrap().processes[0].pid;
    let file = format!("/proc/{process}/root/var/run/secrets/db/password");
    assert_eq!(fs::metadata(file).unwrap().uid(), FIRST + 1000);
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C54: no response, event, record, log or file of the host contains a value, and executor-cri never has a value.
/// Values in the output of the program are masked in its log. As a control, an ordinary variable is found in the log.
#[test]
fn values_are_in_the_container_alone() {
    let shelf = Shelf::new();
    let [file, variable, ordinary] = [64, 64, 64].map(|length| Canary::random(length).unwrap());
    shelf.put("file", file.as_bytes());
    shelf.put("variable", variable.as_bytes());
    let node = node(&shelf);
    let mut runtime = node.runtime();
    let mut events = node.block_on(runtime.get_container_events(GetEventsRequest::default())).unwrap().into_inner();
    let entries = ["file: /run/s/file, provider: shelf, path: file", "env: SECRET, provider: shelf, path: variable"];
    let sandbox = node.run_sandbox(&annotated(node.sandbox("a"), "c", &entries)).unwrap();
    let mut config = node.script("c", "cat /run/s/file; echo; echo $SECRET $ORDINARY; exec sleep 100000");
    config.log_path = "c/0.log".into();
    config.envs.push(KeyValue { key: "ORDINARY".into(), value: ordinary.as_bytes().to_vec() });
    let id = node.started(&sandbox, &config);
    let log = node.status(&id).unwrap().log_path;
    let log = wait::until("the container has printed", || {
        fs::read_to_string(&log).ok().filter(|text| text.lines().count() == 2)
    });
    assert!(
        log.contains("[REDACTED:") && log.contains(ordinary.as_str()),
        "control failed: the log lacks the ordinary variable or a redaction: {log}"
    );
    assert!(!log.contains(file.as_str()) && !log.contains(variable.as_str()), "{log}");
    let shown = output(&node, &id, "cat /run/s/file; echo $SECRET");
    assert_eq!(shown, format!("{}{}\n", file.as_str(), variable.as_str()), "control: the program has both values");

    let container = ContainerStatusRequest { container_id: id.clone(), verbose: true };
    let pod = PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: true };
    let mut answers = vec![
        bytes(&node.block_on(runtime.container_status(container)).unwrap().into_inner()),
        bytes(&node.block_on(runtime.pod_sandbox_status(pod)).unwrap().into_inner()),
        bytes(&node.block_on(runtime.list_containers(ListContainersRequest::default())).unwrap().into_inner()),
        bytes(&node.block_on(runtime.list_pod_sandbox(ListPodSandboxRequest::default())).unwrap().into_inner()),
    ];
    assert!(answers[1].windows(6).any(|part| part == b"shelf:" || part == b"\"shelf"), "control: names are shown");
    let mut needles = Needles::new().unwrap();
    for (label, canary) in [("file", &file), ("variable", &variable), ("ordinary", &ordinary)] {
        needles.add(label, canary.as_bytes());
    }
    let search = |with_process: bool| {
        let mut search = Search::new(&needles);
        if with_process {
            search.process(&Process::from_pid(node.pid()).unwrap());
        }
        search.files(node.daemon.setup().home());
        search.report()
    };
    let report = search(true);
    assert!(report.hits.iter().any(|hit| hit.label == "ordinary"), "control: the ordinary value is found in the log");
    assert!(report.hits.iter().all(|hit| hit.label == "ordinary"), "{report:?}");
    node.remove_container(&id).unwrap();
    for _ in 0..5 {
        let event = node.block_on(events.next()).unwrap().unwrap();
        answers.push(bytes(&event));
    }
    for answer in &answers {
        let contains = |canary: &Canary| answer.windows(64).any(|part| part == canary.as_bytes());
        assert!(![&file, &variable, &ordinary].into_iter().any(contains));
    }
    node.remove_sandbox(&sandbox).unwrap();
    let report = search(true);
    assert!(report.hits.iter().all(|hit| hit.label == "ordinary"), "{report:?}");
}

fn bytes(message: &impl prost::Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// Rule C55: without a rule no reference is allowed. A rule has namespaces, a provider and paths, and applies without a
/// restart. The rules of executord also apply.
#[test]
fn references_require_rules() {
    let shelf = Shelf::new();
    fs::create_dir(shelf.path().join("app")).unwrap();
    for name in ["app/key", "other"] {
        shelf.put(name, "a value");
    }
    let setup = configured(&shelf, "");
    let node = KubernetesNode::with(setup);
    let entries = |path: &str| [format!("file: /run/s/key, provider: shelf, path: {path}")];
    let pod = |name: &str, path: &str| annotated(node.sandbox(name), "c", &entries(path).each_ref().map(|one| &**one));
    let closed = node.run_sandbox(&pod("a", "app/key")).unwrap_err();
    let named = ["cri.secrets", "secrets.executor.v1/c", "\"app/key\"", "\"shelf\"", "\"test\""];
    has_code(&closed, Code::PermissionDenied, &named);
    let write = |rules: &str| {
        fs::write(node.daemon.setup().home().join("cri.toml"), rules).unwrap();
    };
    write(&RULE.replace("\"/\"", "\"app/\""));
    let mut node = node;
    node.restart_cri();
    let pod = |name: &str, path: &str| annotated(node.sandbox(name), "c", &entries(path).each_ref().map(|one| &**one));
    let sandbox = node.run_sandbox(&pod("a", "app/key")).unwrap();
    has_code(&node.run_sandbox(&pod("b", "other")).unwrap_err(), Code::PermissionDenied, &["cri.secrets", "\"other\""]);
    let mut elsewhere = pod("c", "app/key");
    elsewhere.metadata.as_mut().unwrap().namespace = "elsewhere".into();
    has_code(&node.run_sandbox(&elsewhere).unwrap_err(), Code::PermissionDenied, &["\"elsewhere\""]);

    // The removal of a rule applies to new containers of the pod; an invalid file allows nothing.
    let config = node.script("c", SLEEP);
    let home = node.daemon.setup();
    write_rules(home, "");
    has_code(&node.create(&sandbox, &config).unwrap_err(), Code::PermissionDenied, &["cri.secrets"]);
    write_rules(home, "[[cri.secrets]]\nservice_accounts = 5\n");
    has_code(&node.create(&sandbox, &config).unwrap_err(), Code::FailedPrecondition, &["cri.toml"]);
    let other = node.started(&sandbox, &node.script("d", SLEEP));
    assert_eq!(output(&node, &other, "echo up"), "up\n", "control: containers without secrets need no rule");
    write_rules(home, RULE);
    let id = node.started(&sandbox, &config);
    assert_eq!(output(&node, &id, "cat /run/s/key"), "a value");

    // Rule C8: repeated calls return the existing objects, even after the rule was removed.
    write_rules(home, "");
    assert_eq!(node.run_sandbox(&pod("a", "app/key")).unwrap(), sandbox);
    assert_eq!(node.create(&sandbox, &config).unwrap(), id);
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C51: all violations are reported together, before any object is created, and the annotations of a pod cannot
/// change.
#[test]
fn unusable_annotations_are_refused() {
    let shelf = Shelf::new();
    shelf.put("key", "a value");
    let node = node(&shelf);
    let before = node.daemon.footprint();
    let entries =
        ["file: a, provider: shelf, path: key, value: hunter2", "env: A=B, provider: shelf, path: /key, mode: 0600"];
    let mut pod = annotated(node.sandbox("a"), "c", &entries);
    pod.metadata.as_mut().unwrap().uid.clear();
    let refused = node.run_sandbox(&pod).unwrap_err();
    let parts = ["config.metadata.uid", "c][0].value: is an unknown field", "c][1].env", "c][1].path", "c][1]: mode"];
    has_code(&refused, Code::InvalidArgument, &parts);
    assert!(!refused.message().contains("hunter2"), "{refused:?}");
    let mut runtime = node.runtime();
    let list = node.block_on(runtime.list_pod_sandbox(ListPodSandboxRequest::default())).unwrap().into_inner();
    assert!(list.items.is_empty());

    let entries = ["file: /data/key, provider: shelf, path: key", "env: A, provider: shelf, path: key"];
    let sandbox = node.run_sandbox(&annotated(node.sandbox("b"), "c", &entries)).unwrap();
    let changed = node.run_sandbox(&annotated(node.sandbox("b"), "c", &entries[..1])).unwrap_err();
    assert_eq!(changed.code(), Code::AlreadyExists, "{changed:?}");
    let mut config = node.script("c", SLEEP);
    config.mounts.push(Mount { container_path: "/data".into(), host_path: "/srv".into(), ..Mount::default() });
    config.envs.push(KeyValue { key: "A".into(), value: b"hunter2".to_vec() });
    let refused = node.create(&sandbox, &config).unwrap_err();
    let parts = ["[0].file: \"/data/key\"", "config.mounts[0] at \"/data\"", "[1].env: \"A\"", "config.envs[0]"];
    has_code(&refused, Code::InvalidArgument, &parts);
    config.mounts.clear();
    config.envs.clear();
    let id = node.started(&sandbox, &config);
    assert_eq!(output(&node, &id, "cat /data/key; echo $A"), "a valuea value\n");
    node.remove_sandbox(&sandbox).unwrap();
    node.daemon.wait_until_back_at(&before);
}

/// Rule C8: a failed creation leaves nothing, and a retry succeeds once the secret exists. The error names the file,
/// the secret and the reason.
#[test]
fn failed_fetches_leave_nothing() {
    let shelf = Shelf::new();
    shelf.put("key", "a value");
    let away = shelf.path().with_extension("away");
    let setup = configured(&shelf, "");
    let config = fs::read_to_string(setup.config_file()).unwrap();
    let narrow = shelf.provider().replace("\"shelf\"", "\"narrow\"").replace("\"/\"", "\"app/\"");
    let vault = format!(
        "[[secret_providers]]\nname = \"vault\"\ntype = \"vault\"\naddress = \"http://127.0.0.1:1\"\n\
         token_file = {:?}\ntimeout_seconds = 2\nallow = [{{ uid = 0, paths = [\"/\"] }}]\n",
        shelf.put("token", "a token")
    );
    setup.replace_config(&format!("{config}{narrow}{vault}"));
    let rules: String = ["shelf", "narrow", "vault"].map(|name| RULE.replace("shelf", name)).concat();
    write_rules(&setup, &rules);
    let node = KubernetesNode::with(setup);
    for (index, (entry, code, parts)) in [
        ("provider: shelf, path: none", Code::FailedPrecondition, ["shelf:none", "does not exist"]),
        ("provider: shelf, path: key, key: k", Code::InvalidArgument, ["[0].key", "must be empty"]),
        ("provider: narrow, path: key", Code::PermissionDenied, ["may not use \"key\"", "secret_providers.allow"]),
        ("provider: vault, path: kv/a, key: b", Code::Unavailable, ["vault:kv/a#b", "127.0.0.1:1"]),
    ]
    .into_iter()
    .enumerate()
    {
        let entry = format!("file: /run/s/key, {entry}");
        let sandbox = node.run_sandbox(&annotated(node.sandbox(&format!("p{index}")), "c", &[&entry])).unwrap();
        let before = node.daemon.footprint();
        let refused = node.create(&sandbox, &node.script("c", SLEEP)).unwrap_err();
        has_code(&refused, code, &parts);
        assert!(refused.message().starts_with("config.annotations[secrets.executor.v1/c][0]"), "{refused:?}");
        assert!(fs::read_dir(node.records().join("containers")).unwrap().next().is_none());
        node.daemon.wait_until_back_at(&before);
        node.remove_sandbox(&sandbox).unwrap();
    }
    let entries = ["file: /run/s/key, provider: shelf, path: key"];
    let sandbox = node.run_sandbox(&annotated(node.sandbox("retried"), "c", &entries)).unwrap();
    let config = node.script("c", SLEEP);
    fs::rename(shelf.path(), &away).unwrap();
    let refused = node.create(&sandbox, &config).unwrap_err();
    has_code(&refused, Code::Unavailable, &["cannot fetch shelf:key for file /run/s/key"]);
    fs::rename(&away, shelf.path()).unwrap();
    let id = node.started(&sandbox, &config);
    assert_eq!(output(&node, &id, "cat /run/s/key"), "a value");
    node.remove_sandbox(&sandbox).unwrap();
}

/// Rule C43: after SIGKILL of executor-cri between RunPodSandbox and CreateContainer, the references stay, even if the
/// prefix of annotations has been changed. Records contain only names. After SIGKILL of executor-cri, executord and the
/// launcher, changed secrets are still replaced.
#[test]
fn references_survive_restarts() {
    let shelf = Shelf::new();
    let [first, second] = [64, 64].map(|length| Canary::random(length).unwrap());
    shelf.put("key", first.as_bytes());
    let mut node = node(&shelf);
    let entries = ["file: /run/s/key, provider: shelf, path: key"];
    let sandbox = node.run_sandbox(&annotated(node.sandbox("a"), "c", &entries)).unwrap();
    write_rules(node.daemon.setup(), &format!("[cri]\nsecrets_annotation = \"example.org\"\n{RULE}"));
    node.restart_cri();
    let config: ContainerConfig = node.script("c", SLEEP);
    let id = node.started(&sandbox, &config);
    assert_eq!(output(&node, &id, "cat /run/s/key"), first.as_str());
    let record = fs::read_to_string(node.records().join(format!("sandboxes/{sandbox}.json"))).unwrap();
    assert!(record.contains("\"shelf\"") && !record.contains(first.as_str()), "{record}");
    let mut renamed = node.sandbox("b");
    renamed.annotations.insert("example.org/c".into(), format!("- {{{}}}", entries[0]));
    renamed.annotations.insert("secrets.executor.v1/c".into(), "[".into());
    let other = node.run_sandbox(&renamed).unwrap();
    let in_other = node.started(&other, &config);
    assert_eq!(output(&node, &in_other, "cat /run/s/key"), first.as_str(), "the prefix is a setting");

    let launcher = node.daemon.launcher().unwrap();
    node.daemon.kill();
    kill(launcher, 9);
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    node.daemon.start_again();
    node.restart_cri();
    shelf.put("key", second.as_bytes());
    wait::until("the new value is in the container", || {
        (output(&node, &id, "cat /run/s/key") == second.as_str()).then_some(())
    });
    node.remove_sandbox(&sandbox).unwrap();
    node.remove_sandbox(&other).unwrap();
}

/// `executor-cri --check` reports rules whose provider executord does not have, and refuses invalid rules.
#[test]
fn check_names_unknown_providers() {
    let shelf = Shelf::new();
    let node = node(&shelf);
    let home = node.daemon.setup().home();
    let check = |rules: &str| {
        write_rules(node.daemon.setup(), rules);
        let mut command = std::process::Command::new(integration::dist::binary("executor-cri"));
        command.args(["--check", "--kubelet-config", "/nonexistent", "--executor"]).arg(node.daemon.socket());
        let done = command.arg("--config").arg(home.join("cri.toml")).output().unwrap();
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    let known = check(RULE);
    assert!(
        known.contains("cgroup_parents") && !known.contains("cri.secrets"),
        "control failed: a known provider is reported: {known}"
    );
    assert!(known.contains("cannot read /nonexistent: No such file"), "{known}");
    let unknown = check(&RULE.replace("shelf", "vault"));
    assert!(
        unknown.contains("the configuration names the provider \"vault\", which executord does not have"),
        "{unknown}"
    );
    let impossible = check(&RULE.replace("\"/\"", "\"/a\"").replace("true", "false"));
    assert!(impossible.contains("cri.secrets[0].annotations: must be true"), "{impossible}");
    assert!(impossible.contains("cri.secrets[0].paths[0] = \"/a\""), "{impossible}");
}
