//! Tests values that pass through executor-cri: the environment, arguments and output of exec, passwords of registries
//! (rule C57).

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use executor_cri_api::v1::{AuthConfig, ExecRequest, ImageSpec, KeyValue, Mount, PullImageRequest};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Place, Report, Search};
use integration::cri::{KubernetesNode, POLICY};
use integration::daemon::{Setup, has_ended, kill};
use integration::images::{Endpoint as _, Image, PASSWORD, Registry, USER};
use integration::kubernetes_streams::Channels;
use integration::shelf::Shelf;
use integration::wait;
use tonic::Code;

/// Script that prints the number of processes that are not zombies. The container's init reaps no zombies.
const LIVING: &str = "busybox grep -L 'State:.Z' /proc/[0-9]*/status | busybox wc -l";

fn search(node: &KubernetesNode, needles: &Needles, pids: &[u32]) -> Report {
    let mut search = Search::new(needles);
    let launcher = node.daemon.launcher().unwrap() as u32;
    let ours = [node.pid(), node.daemon.pid() as u32, launcher];
    ours.iter().chain(pids).filter_map(|&pid| Process::from_pid(pid)).for_each(|process| search.process(&process));
    search.files(node.daemon.setup().home());
    search.report()
}

/// Returns the pid of the process in which a search found a value; `None` if the place belongs to no process.
fn pid(place: &Place) -> Option<u32> {
    match place {
        Place::Memory { pid, .. }
        | Place::Descriptor { pid, .. }
        | Place::Environment { pid, .. }
        | Place::CommandLine { pid, .. }
        | Place::MountTable { pid, .. } => Some(*pid),
        Place::File(_) | Place::Journal | Place::Kernel { .. } => None,
    }
}

/// Returns an error if a value is found in the node's processes and files.
fn nothing_found(node: &KubernetesNode, needles: &Needles) -> Result<(), String> {
    let left = search(node, needles, &[]);
    if left.found() { Err(format!("{left:?}")) } else { Ok(()) }
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
    assert!(control.found(), "control: the program has its variable");
    let left = search(&node, &needles, &[]);
    let of_cri = left.hits.iter().filter(|hit| pid(&hit.place) == Some(node.pid()));
    assert_eq!(of_cri.count(), 0, "while the container runs: {left:?}");
    node.remove_container(&id).unwrap();
    wait::until_ok("no value is found", || nothing_found(&node, &needles));
    node.remove_sandbox(&sandbox).unwrap();
}

/// Process that is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    None,
    Cri,
    Executord,
    Launcher,
}

/// Rule C57: soon after RemoveContainer no process, file or log of executor-cri, executord and the launcher contains a
/// secret value, even if one of these processes was killed while the container ran. The values are the environment, a
/// mounted file, a file and a variable by reference, a registry's password, the token of a stream's URL, and arguments
/// and input of exec and ExecSync. As controls, the program can read both variables and both files, and the search
/// finds a file that contains all values.
#[test]
fn killed_processes_leave_no_values() {
    let lent = tempfile::tempdir_in("/run").unwrap();
    std::fs::set_permissions(lent.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let data = lent.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let shelf = Shelf::new();
    let config = format!("[policy]\n{POLICY}host_paths = [{data:?}]\n{}", shelf.provider());
    let rule = "annotations = true\nnamespaces = [\"test\"]\nprovider = \"shelf\"\npaths = [\"/\"]\n";
    for victim in [Victim::None, Victim::Cri, Victim::Executord, Victim::Launcher] {
        let setup = Setup::default().config(&config);
        std::fs::write(setup.home().join("cri.toml"), format!("[[cri.secrets]]\n{rule}")).unwrap();
        let mut node = KubernetesNode::with(setup);
        let mut pod = node.sandbox("a");
        pod.log_directory.clear();
        let entry = |target: &str, path: &str| format!("- {{{target}, provider: shelf, path: {path}}}\n");
        let entries = entry("file: /run/s/key", "file") + &entry("env: FETCHED", "variable");
        pod.annotations.insert("secrets.executor.v1/c".into(), entries);
        let sandbox = node.run_sandbox(&pod).unwrap();
        let labels = [
            "variable",
            "file",
            "password",
            "argument",
            "streamed argument",
            "input",
            "fetched file",
            "fetched variable",
        ];
        let canaries = labels.map(|_| Canary::random(64).unwrap());
        let mut needles = Needles::new().unwrap();
        labels.iter().zip(&canaries).for_each(|(label, canary)| needles.add(label, canary.as_bytes()));
        let [variable, file, password, argument, streamed, input, fetched_file, fetched_variable] = &canaries;
        shelf.put("file", fetched_file.as_bytes());
        shelf.put("variable", fetched_variable.as_bytes());
        std::fs::write(data.join("secret"), file.as_bytes()).unwrap();
        let mut config =
            node.script("c", "x=$(cat /lent/secret); y=$(cat /run/s/key); touch /tmp/up; while :; do sleep 0.1; done");
        config.envs.push(KeyValue { key: "SECRET".into(), value: variable.as_bytes().to_vec() });
        let host_path = data.display().to_string();
        config.mounts.push(Mount { container_path: "/lent".into(), host_path, ..Mount::default() });
        let id = node.started(&sandbox, &config);
        wait::until("the file is read", || (node.exec(&id, &["ls", "/tmp/up"], 10).ok()?.exit_code == 0).then_some(()));
        let program = node.daemon.api.get(&id).unwrap().processes[0].pid;
        node.exec(&id, &["sh", "-c", "echo $SECRET $1", "sh", argument.as_str()], 10).unwrap();
        let exec = ExecRequest {
            container_id: id.clone(),
            cmd: ["sh", "-c", "read line; echo $line $1", "sh", streamed.as_str()].map(String::from).to_vec(),
            stdin: true,
            stdout: true,
            ..ExecRequest::default()
        };
        let mut runtime = node.runtime();
        let url = node.block_on(runtime.exec(exec)).unwrap().into_inner().url;
        needles.add("token", url.rsplit('/').next().unwrap().as_bytes());
        let mut client = Channels::open(&url);
        client.send_input(format!("{}\n", input.as_str()).as_bytes());
        let echoed = String::from_utf8(client.end().unwrap().stdout).unwrap();
        assert!(echoed.contains(input.as_str()) && echoed.contains(streamed.as_str()), "{echoed}");
        let registry = Registry::start(true);
        let auth = AuthConfig { username: USER.into(), password: password.as_str().into(), ..AuthConfig::default() };
        let image = Some(ImageSpec { image: registry.name("none:1"), ..ImageSpec::default() });
        let pull = PullImageRequest { image, auth: Some(auth), ..PullImageRequest::default() };
        let mut images = node.images();
        assert!(node.block_on(images.pull_image(pull)).is_err(), "the password is wrong");

        let control = node.daemon.setup().home().join("control");
        let all: Vec<&str> = canaries.iter().map(Canary::as_str).chain([url.as_str()]).collect();
        std::fs::write(&control, all.join("\n")).unwrap();
        let report = search(&node, &needles, &[program]);
        let found: BTreeSet<&str> = report.hits.iter().map(|hit| &*hit.label).collect();
        assert_eq!(found.len(), labels.len() + 1, "control failed: a label is missing: {found:?}");
        let in_program = report.hits.iter().filter(|hit| pid(&hit.place) == Some(program));
        let in_program: BTreeSet<&str> = in_program.map(|hit| &*hit.label).collect();
        let has_all =
            ["variable", "file", "fetched file", "fetched variable"].iter().all(|one| in_program.contains(one));
        assert!(has_all, "control failed: the program lacks a value: {in_program:?}");
        std::fs::remove_file(control).unwrap();

        let launcher = node.daemon.launcher().unwrap();
        match victim {
            Victim::None => {}
            Victim::Cri => node.restart_cri(),
            Victim::Executord => {
                node.daemon.kill();
                node.daemon.start_again();
            }
            Victim::Launcher => {
                kill(launcher, 9);
                node.daemon.kill();
                wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
                node.daemon.start_again();
            }
        }
        wait::until_ok("the container is removed", || node.remove_container(&id));
        wait::until_ok(&format!("no value is found ({victim:?})"), || nothing_found(&node, &needles));
        node.remove_sandbox(&sandbox).unwrap();
    }
}

/// Rule C39: credentials are sent only to their own server.
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

/// Rule C36, CRI complaint X4: processes that a timed out exec has started are killed, and the container keeps running.
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
    wait::until("the processes of exec have exited", || (processes() == before).then_some(()));
    node.remove_sandbox(&sandbox).unwrap();
}
