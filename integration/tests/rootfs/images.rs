//! Images from other tools, registries, layouts and archives run in containers.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use executor_proto::v1::RunRequest;
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Search};
use integration::cli::{CliOutput, command, finish, run};
use integration::daemon::{Daemon, Setup};
use integration::images::{Endpoint, Gate, Holding, Image, PASSWORD, Registry, USER, auth_file, layers};
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

fn stdout(ran: &CliOutput) -> &str {
    assert_eq!(ran.status, 0, "{ran:?}");
    &ran.stdout
}

#[test]
fn registry_image_is_pulled_and_run() {
    let (image, registry) = (Image::build(), Registry::start(false));
    let digest = image.push(&registry, "team/app:1");
    let (daemon, name) = (Daemon::start(), registry.name("team/app:1"));
    let agent = |arguments: &[&str]| run(&daemon.socket(), arguments);

    // The image is not stored, and the option forbids fetching it.
    let refused = agent(&["run", "--pull", "never", &name]);
    assert!(refused.status == 125 && refused.stderr.contains("pull policy is `never`"), "{refused:?}");
    let pulled = agent(&["image", "pull", &name]);
    assert_eq!(stdout(&pulled), format!("{digest}\n"));
    // Progress is reported to the end, even if the pull was fast.
    assert_eq!(pulled.stderr.matches(": done (").count(), 2, "{pulled:?}");
    assert_eq!(layers(&daemon.setup().state_dir()), 2);

    // The first run uses the image's own command, environment, directory and user. The next runs replace each of them.
    assert_eq!(stdout(&agent(&["run", &name])), "hello from /srv as 1234\n");
    let ours =
        ["run", "-e", "GREETING=bye", "--dir", "/", "-u", "0", &name, "--", "echo $GREETING from $PWD as $(id -u)"];
    assert_eq!(stdout(&agent(&ours)), "bye from / as 0\n");
    assert_eq!(stdout(&agent(&["run", "--entrypoint", "/bin/echo", &name, "--", "a", "b"])), "a b\n");
    // Check the upper layer's whiteout and changed file, and a file that only the image's user can read.
    let looked = agent(&["run", &name, "--", "ls /srv; cat changed private; echo x >mine 2>&1 || echo no; exit 7"]);
    assert_eq!((looked.status, &*looked.stdout), (7, "changed\nprivate\ntwoof appno\n"), "{looked:?}");

    // The container shows the digest of its image, even if the name now refers to another image.
    let id = stdout(&agent(&["run", "-d", "--id", "held", &name, "--", "exec sleep 1000"])).trim().to_owned();
    let container = daemon.api.get(&id).unwrap();
    assert_eq!(container.image.unwrap().digest, digest);
    assert_eq!(container.spec.unwrap().stop_signal, 3);
    let listed = agent(&["image", "ls", "--json"]).json();
    assert_eq!((&listed[0]["digest"], listed.as_array().unwrap().len()), (&digest.clone().into(), 1));

    // An image in use is kept. When it is no longer used, it can be removed with its layers.
    let in_use = agent(&["image", "rm", &name]);
    assert!(in_use.status == 125 && in_use.stderr.contains("container held"), "{in_use:?}");
    let pruned = agent(&["image", "prune", "--unused-for", "0s"]);
    assert!(stdout(&pruned).contains("0 images") && pruned.stdout.contains("1 in use"), "{pruned:?}");
    daemon.api.delete(&id, true).unwrap();
    assert_eq!(stdout(&agent(&["image", "rm", &digest[7..19]])), format!("{}: removed\n", &digest[7..19]));
    assert_eq!(layers(&daemon.setup().state_dir()), 0);
    // Run an image directly from the registry, by digest.
    let pinned = registry.name(&format!("team/app@{digest}"));
    assert_eq!(stdout(&agent(&["run", &pinned])), "hello from /srv as 1234\n");
}

#[test]
fn credentials_open_the_registry_and_stay_nowhere() {
    let (image, registry) = (Image::build(), Registry::start(true));
    image.push(&registry, "team/app:1");
    let (daemon, name) = (Daemon::start(), registry.name("team/app:1"));
    let with = |arguments: &[&str], password: &str| {
        finish(command(Some(&daemon.socket()), arguments).env("PW", password).spawn().unwrap())
    };
    let refused = with(&["run", &name], "");
    assert!(refused.status == 125 && refused.stderr.contains("none were given"), "{refused:?}");
    let by_user = ["run", "--registry-user", USER, "--registry-password", "@env:PW", &name];
    let refused = with(&by_user, "wrong-canary");
    assert!(refused.status == 125 && !refused.stderr.contains("wrong-canary"), "{refused:?}");
    assert_eq!(stdout(&with(&by_user, PASSWORD)), "hello from /srv as 1234\n");
    stdout(&with(&["image", "rm", &name], ""));
    let file = registry.auth_file().display().to_string();
    stdout(&with(&["image", "pull", "--registry-auth-file", &file, &name], ""));
    let shown = with(&["image", "pull", "--registry-user", USER, "--registry-password", PASSWORD, &name], "");
    assert!(shown.status != 0 && !shown.stderr.contains(PASSWORD), "{shown:?}");
    // As a control, the same search finds the password in a file.
    let home = daemon.setup().home().to_owned();
    assert_eq!(files_containing(&home, PASSWORD), Vec::<String>::new());
    std::fs::write(home.join("control"), format!("x{PASSWORD}y")).unwrap();
    assert_eq!(files_containing(&home, PASSWORD).len(), 1);
}

/// agent-cli runs the credential helper as the user of its caller, and executord runs the helper as executord's own
/// user.
#[test]
fn credential_helpers_open_the_registry() {
    let (image, registry) = (Image::build(), Registry::start(true));
    image.push(&registry, "team/app:1");
    let name = registry.name("team/app:1");
    let (host, home) = (name.split('/').next().unwrap(), tempfile::tempdir_in("/run").unwrap());
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let helper = home.path().join("docker-credential-canary");
    let script = format!(
        "#!/bin/sh\n[ \"$1 $(cat)\" = 'get {host}' ] && echo '{{\"Username\":\"{USER}\",\"Secret\":\"{PASSWORD}\"}}' && id -u >>{}/uids\n",
        home.path().display()
    );
    std::fs::write(&helper, script).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let uids = home.path().join("uids");
    std::fs::write(&uids, "").unwrap();
    std::fs::set_permissions(&uids, std::fs::Permissions::from_mode(0o666)).unwrap();
    let file = home.path().join("config.json");
    std::fs::write(&file, format!(r#"{{"credHelpers": {{"{host}": "canary"}}}}"#)).unwrap();
    let path = format!("{}:{}", home.path().display(), std::env::var("PATH").unwrap());

    let by_caller = |daemon: &Daemon, path: &str| {
        let arguments = ["image", "pull", "--registry-auth-file", file.to_str().unwrap(), &name];
        finish(command(Some(&daemon.socket()), &arguments).env("PATH", path).spawn().unwrap())
    };
    let daemon = Daemon::start();
    let missing = by_caller(&daemon, "/usr/bin:/bin");
    assert!(missing.status != 0 && missing.stderr.contains("docker-credential-canary"), "{missing:?}");
    stdout(&by_caller(&daemon, &path));
    drop(daemon);

    let configured = format!("[images]\ndocker_config = {file:?}\n");
    let daemon = Setup::default().env("PATH", &*path).config(&configured).start();
    stdout(&finish(command(Some(&daemon.socket()), &["image", "pull", &name]).spawn().unwrap()));
    let uids = std::fs::read_to_string(uids).unwrap();
    let (first, last) = (uids.lines().next().unwrap(), uids.lines().last().unwrap());
    assert!(first == "0" && last != "0", "{uids}");
    assert!(!daemon.setup().logged().contains(PASSWORD));
}

/// Returns the files below a directory that contain `text`.
fn files_containing(dir: &Path, text: &str) -> Vec<String> {
    let done = Command::new("grep").args(["-rlFa", "--devices=skip", text]).arg(dir).output().unwrap();
    String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The password of a pull, and the token that the registry returned for it, are gone from executord's memory within one
/// second after the pull, whether the pull succeeds, fails or is cancelled. As a control, the same search finds both
/// during the transfer of a layer.
#[test]
fn credentials_leave_executord_with_their_pull() {
    let (image, open, closed) = (Image::build(), Registry::start(false), Registry::start(true));
    image.push(&open, "team/app:1");
    image.push(&closed, "team/app:1");
    let token = Canary::random(64).unwrap();
    let gate = Gate::start(&open, token.as_str());
    let by_user = ["--registry-user", USER, "--registry-password", "@env:PW"];
    for (door, asks) in [(&closed as &dyn Endpoint, &["a password"][..]), (&gate, &["a password", "a token"])] {
        let held = Holding::start(door, 700 << 10);
        let name = held.name("team/app:1");
        let setup = Setup::default();
        let config = setup.home().join("config.json");
        let daemon = setup.config(&format!("[images]\ndocker_config = {config:?}\n")).start();
        let with = |arguments: &[&str], password: &str| {
            let arguments: Vec<&str> = arguments.iter().chain(&by_user).chain(&[&*name]).copied().collect();
            command(Some(&daemon.socket()), &arguments).env("PW", password).spawn().unwrap()
        };
        let secrets_in_memory =
            || secrets_in_memory(&daemon, &[("a password", PASSWORD.as_bytes()), ("a token", token.as_bytes())]);
        let forgotten = |what: &str| {
            let end = Instant::now() + Duration::from_secs(1);
            while Instant::now() < end && !secrets_in_memory().is_empty() {}
            assert_eq!(secrets_in_memory(), [""; 0], "{asks:?}, {what}");
        };
        // This pull is cancelled while it runs.
        let mut pull = with(&["image", "pull"], PASSWORD);
        held.until_held();
        assert_eq!(secrets_in_memory(), asks, "control failed");
        pull.kill().unwrap();
        pull.wait().unwrap();
        forgotten("cancelled");
        held.release();
        stdout(&finish(with(&["image", "pull"], PASSWORD)));
        forgotten("pulled");
        assert_eq!(finish(with(&["image", "pull"], &format!("wrong-{PASSWORD}"))).status, 125);
        forgotten("refused");
        stdout(&run(&daemon.socket(), &["image", "rm", &name]));
        stdout(&finish(with(&["run"], PASSWORD)));
        forgotten("run");
        stdout(&run(&daemon.socket(), &["image", "rm", &name]));
        std::fs::write(&config, auth_file(&held)).unwrap();
        stdout(&run(&daemon.socket(), &["run", &name]));
        forgotten("run with the operator's file");
    }
}

/// Returns the names of the secrets that are in executord's memory.
fn secrets_in_memory(daemon: &Daemon, secrets: &[(&str, &[u8])]) -> Vec<String> {
    let mut needles = Needles::new().unwrap();
    secrets.iter().for_each(|(name, secret)| needles.add(name, secret));
    let mut search = Search::new(&needles);
    search.process(&Process::from_pid(daemon.pid() as u32).unwrap());
    let report = search.report();
    assert!(report.unsearched.is_empty(), "{report:?}");
    let mut names: Vec<String> = report.hits.iter().map(|hit| hit.label.to_string()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn images_are_imported_from_layouts_and_archives() {
    let image = Image::build();
    let daemon = Daemon::start();
    let agent = |arguments: &[&str]| run(&daemon.socket(), arguments);
    let docker = image.archive("docker-archive", "docker.io/team/app:1");
    let oci = image.archive("oci-archive", "");
    let said = "hello from /srv as 1234\n";
    // The archive is streamed by a user who has no access to executord's disk.
    let mut import = command(Some(&daemon.socket()), &["image", "import", "-"]);
    let import = finish(import.stdin(std::fs::File::open(&docker).unwrap()).spawn().unwrap());
    stdout(&import);
    assert_eq!(stdout(&agent(&["run", "--pull", "never", "team/app:1"])), said);
    stdout(&agent(&["image", "import", "--form", "oci-archive", "--name", "team/oci:1", &oci]));
    assert_eq!(stdout(&agent(&["run", "--pull", "never", "team/oci:1"])), said);
    // Every source produces the same layers.
    assert_eq!(layers(&daemon.setup().state_dir()), 2);
    let wrong = agent(&["image", "import", "--form", "oci-archive", "/bin/busybox"]);
    assert!(wrong.status == 125 && wrong.stderr.contains("not a tar archive"), "{wrong:?}");
    let other = agent(&["image", "import", "--form", "docker-archive", &oci]);
    let reported = "  --form: ";
    assert!(other.status == 125 && other.stderr.contains(reported), "{other:?}");
    assert!(other.stderr.contains("an archive in the format oci-archive, not docker-archive"), "{other:?}");
    // Docker's command names work: the archive format is detected, and gzip is accepted.
    stdout(&agent(&["load", "--name", "team/loaded:1", "-i", &oci]));
    let mut gzip = Command::new("gzip").args(["--stdout", &docker]).stdout(Stdio::piped()).spawn().unwrap();
    let mut load = command(Some(&daemon.socket()), &["image", "load"]);
    let loaded = finish(load.stdin(gzip.stdout.take().unwrap()).spawn().unwrap());
    stdout(&loaded);
    assert!(gzip.wait().unwrap().success());
    let listed = agent(&["images"]).stdout;
    assert!(listed.contains("team/loaded:1") && listed.contains("team/app:1"), "{listed}");
    let overview = agent(&["system", "df", "--json"]).json();
    assert!(overview["images"]["bytes"].as_u64() >= overview["images"]["reclaimable_bytes"].as_u64(), "{overview}");
    assert!(overview["available_bytes"].as_u64() > Some(0), "{overview}");
    stdout(&agent(&["rmi", "team/loaded:1"]));
    assert!(!stdout(&agent(&["images"])).contains("team/loaded:1"));
    // A root file system can be a path on executord's own disk, if executord can read it.
    for reference in [image.layout(), format!("docker-archive:{docker}"), format!("oci-archive:{oci}")] {
        image.readable(true);
        assert_eq!(stdout(&agent(&["run", "--rootfs", &reference])), said, "{reference}");
        image.readable(false);
        // If executord cannot read a path, the error names the path and a remedy. agent-cli streams files that its
        // caller can read.
        let closed = daemon.api.run(RunRequest { rootfs: reference.clone(), ..sh("true") }).unwrap_err();
        let bad = closed.get_details_bad_request().unwrap().field_violations;
        assert_eq!((closed.code(), bad[0].reason.as_str()), (Code::FailedPrecondition, "ACCESS_DENIED"), "{closed:?}");
        let path = reference.split(':').nth(1).unwrap();
        assert!(closed.message().contains(path) && closed.message().contains("grant this permission"), "{closed:?}");
        let sent = agent(&["run", "--rootfs", &reference]);
        assert!(stdout(&sent) == said && sent.stderr.contains("uploading the image"), "{reference}: {sent:?}");
        assert!(stdout(&agent(&["image", "pull", "-q", &reference])).starts_with("sha256:"), "{reference}");
    }
    // Select one of several images in a layout by its name, use a path relative to the working directory, and use an
    // unreadable path.
    let other = Image::in_layout(Path::new(image.layout().split(':').nth(1).unwrap()), "other");
    other.copy(Rootfs::busybox().path());
    other.commit();
    image.readable(false);
    let layout = image.layout();
    let (directory, name) = layout.strip_prefix("oci:").unwrap().rsplit_once('/').unwrap();
    let mut relative = command(Some(&daemon.socket()), &["run", "--rootfs", &format!("oci:./{name}")]);
    let relative = finish(relative.current_dir(directory).spawn().unwrap());
    assert_eq!(stdout(&relative), said);
    let missing = agent(&["run", "oci:/nowhere/layout"]);
    assert!(missing.status == 125 && missing.stderr.contains("/nowhere/layout"), "{missing:?}");
}

/// Device nodes in `/dev` of an image are left out, because every container has its own `/dev`. A warning is returned
/// to the caller and logged. A device node elsewhere is refused as not allowed by the operator, with a machine-readable
/// reason.
#[test]
fn devices_in_dev_are_skipped_and_reported() {
    let image = Image::build();
    let node = |path: &str, kind: &str, major: &str, minor: &str| {
        let path = image.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let made = Command::new("mknod").arg(path).args([kind, major, minor]).status().unwrap();
        assert!(made.success());
    };
    node("dev/null", "c", "1", "3");
    node("dev/console", "c", "5", "1");
    node("dev/sda", "b", "8", "0");
    image.commit();
    let archive = image.archive("docker-archive", "docker.io/team/devices:1");
    let daemon = Setup::default().config("[policy]\nallow_host_userns = true\n").start();
    let agent = |arguments: &[&str]| run(&daemon.socket(), arguments);
    let warning =
        "3 devices below /dev were skipped, because each container has its own /dev: dev/console, dev/null, dev/sda";
    let reported = |ran: &CliOutput| stdout(ran).len() > 1 && ran.stderr.contains(warning);
    let imported = agent(&["image", "import", &archive]);
    assert!(reported(&imported), "{imported:?}");
    assert!(daemon.setup().logged().contains(warning), "{}", daemon.setup().logged());
    // Every run of the image gets the warning, not only the first run. The container has its own /dev.
    image.readable(true);
    let pulled = agent(&["image", "pull", &image.layout()]);
    assert!(reported(&pulled), "{pulled:?}");
    let json = agent(&["image", "inspect", "--json", "team/devices:1"]).json();
    assert!(json["warnings"][0].as_str().unwrap().contains(warning), "{json}");
    for users in ["own", "host"] {
        let line = ["run", "-u", "0", "--userns", users, "team/devices:1", "--"];
        let ran =
            agent(&[&line[..], &["/bin/sh", "-c", "echo x >/dev/null && [ ! -e /dev/sda ] && echo fine"]].concat());
        assert!(reported(&ran) && ran.stdout == "fine\n", "{users}: {ran:?}");
    }
    node("srv/mem", "c", "1", "1");
    image.commit();
    image.readable(true);
    let refused = agent(&["run", "--json", &image.layout()]);
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["code"]), (125, &"FAILED_PRECONDITION".into()), "{refused:?}");
    assert_eq!(error["violations"][0]["reason"], "NOT_ALLOWED", "{refused:?}");
    assert!(
        refused.stderr.contains("`srv/mem` is a device") && refused.stderr.contains("image_devices"),
        "{refused:?}"
    );
}

/// If a registry refuses a pull, the error names the registry and the user, and differs from a refusal by executord
/// itself.
#[test]
fn registry_that_refuses_is_named() {
    let (registry, daemon) = (Registry::start(true), Daemon::start());
    Image::build().push(&registry, "team/app:1");
    let name = registry.name("team/app:1");
    let host = name.split('/').next().unwrap();
    for line in [&["run", "--json", &name, "--", "true"][..], &["image", "pull", "--json", &name]] {
        let refused = run(&daemon.socket(), line);
        assert_eq!(refused.json()["error"]["code"], "PERMISSION_DENIED", "{refused:?}");
        assert_eq!(refused.json()["error"]["violations"][0]["reason"], "ACCESS_DENIED", "{refused:?}");
        let whom = format!("registry {host} refuses a caller without credentials");
        assert!(refused.stderr.contains(&whom) && !refused.stderr.contains("does not serve uid"), "{refused:?}");
    }
    let mut wrong = command(Some(&daemon.socket()), &["image", "pull", "--registry-user", USER]);
    wrong.args(["--registry-password", "@env:PW", &name]).env("PW", "wrong");
    let wrong = finish(wrong.spawn().unwrap());
    let whom = format!("registry {host} refuses the user {USER:?} of the request");
    assert!(wrong.status == 125 && wrong.stderr.contains(&whom), "{wrong:?}");
}

/// If the policy allows no image, no image runs, and the error names the key that would allow it. As a control, images
/// that match a pattern of the policy run, and other images do not.
#[test]
fn disallowed_image_does_not_run() {
    let (image, registry) = (Image::build(), Registry::start(false));
    let digest = image.push(&registry, "team/app:1");
    image.push(&registry, "other/app:1");
    let (docker, oci) = (image.archive("docker-archive", "docker.io/team/app:1"), image.archive("oci-archive", ""));
    let name = |rest: &str| format!("docker://{}", registry.name(rest));
    let by_digest = name(&format!("team/app@{digest}"));
    let open = Daemon::start();
    assert!(stdout(&run(&open.socket(), &["info"])).contains("the configuration sets no policy (images.allow)"));
    drop(open);

    let closed = Setup::default().config("[images]\nallow = []\n").start();
    let refused = |daemon: &Daemon, arguments: &[&str], key: &str| {
        let ran = run(&daemon.socket(), arguments);
        let reported = ran.stderr.contains("is not allowed by this daemon's configuration") && ran.stderr.contains(key);
        assert!(ran.status == 125 && reported, "{arguments:?}: {ran:?}");
    };
    let archives = [format!("docker-archive:{docker}"), format!("oci-archive:{oci}"), image.layout()];
    for reference in [&name("team/app:1"), &name("team/app"), &by_digest] {
        for when in ["missing", "always", "never"] {
            refused(&closed, &["run", "--pull", when, "--rootfs", reference], "(images.allow)");
        }
        refused(&closed, &["image", "pull", reference], "(images.allow)");
    }
    for reference in &archives {
        refused(&closed, &["run", "--rootfs", reference], "(images.allow_archives)");
        refused(&closed, &["image", "pull", reference], "(images.allow_archives)");
    }
    refused(&closed, &["image", "import", &docker], "(images.allow_import)");
    let request = |label: &str| {
        let labels = [(label.to_owned(), String::new())].into();
        RunRequest { labels, ..sh("true").id("refused").rootfs(&by_digest) }
    };
    let fields = |status: &Status| status.get_details_bad_request().map_or(0, |details| details.field_violations.len());
    let status = closed.api.run(request("fine")).unwrap_err();
    assert_eq!((status.code(), fields(&status)), (Code::PermissionDenied, 1), "{status:?}");
    let status = closed.api.run(request("not fine")).unwrap_err();
    assert_eq!(
        (status.code(), fields(&status)),
        (Code::InvalidArgument, 2),
        "all violations are reported together: {status:?}"
    );
    let info = run(&closed.socket(), &["info"]);
    assert!(stdout(&info).contains("no repository; no imports; no archives"), "{info:?}");
    assert_eq!(stdout(&run(&closed.socket(), &["image", "ls", "-q"])), "");
    drop(closed);

    let config = format!("[images]\nallow = ['{}']\n", registry.name("team/*"));
    let daemon = Setup::default().config(&config).start();
    for reference in [&name("team/app:1"), &by_digest] {
        assert_eq!(stdout(&run(&daemon.socket(), &["run", "--rootfs", reference])), "hello from /srv as 1234\n");
    }
    refused(&daemon, &["run", "--rootfs", &name("other/app:1")], "(images.allow)");
    refused(&daemon, &["run", "--rootfs", &name(&format!("other/app@{digest}"))], "(images.allow)");
    refused(&daemon, &["run", "--rootfs", &archives[2]], "(images.allow_archives)");
    let listed = run(&daemon.socket(), &["info", "--json"]).json();
    assert_eq!(listed["image_policy"]["allow"][0], registry.name("team/*"));
}

/// If keys are configured, an image runs only after its registry has a signature by one of these keys. openssl makes
/// the signature in cosign's format, at cosign's location. Before that, and with another key, the image is refused by
/// name.
#[test]
fn image_runs_when_it_is_signed() {
    let (image, registry) = (Image::build(), Registry::start(false));
    let digest = image.push(&registry, "team/app:1");
    let keys = tempfile::tempdir().unwrap();
    std::fs::set_permissions(keys.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| keys.path().join(name).display().to_string();
    let script = "cd $0; for key in own other; do openssl ecparam -genkey -name prime256v1 -noout -out $key.key; \
        openssl ec -in $key.key -pubout -out $key.pub; done; openssl dgst -sha256 -sign own.key -out signature payload";
    let critical = format!(
        r#"{{"critical":{{"identity":{{"docker-reference":"{}"}},"image":{{"docker-manifest-digest":"{digest}"}},"type":"cosign container image signature"}},"optional":null}}"#,
        registry.name("team/app")
    );
    std::fs::write(path("payload"), &critical).unwrap();
    let made = Command::new("sh").args(["-ec", script]).arg(keys.path()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let config = |key: &str| {
        let images = registry.name("team/**");
        let keys = path(key);
        format!("[[images.signed]]\nimages = ['{images}']\nkeys = ['{keys}']\nidentity = 'repository'\n")
    };
    let daemon = Setup::default().config(&config("own.pub")).start();
    let name = registry.name("team/app:1");
    let refused = run(&daemon.socket(), &["run", &name]);
    let reported = refused.stderr.contains("(images.signed)")
        && refused.stderr.contains("the registry has no signatures for the image");
    assert!(refused.status == 125 && reported, "{refused:?}");
    assert_eq!(layers(&daemon.setup().state_dir()), 0);
    let signature = std::fs::read(path("signature")).unwrap();
    registry.put_signature("team/app", &digest, critical.as_bytes(), &signature);
    for reference in [&name, &registry.name(&format!("team/app@{digest}"))] {
        assert_eq!(stdout(&run(&daemon.socket(), &["run", reference])), "hello from /srv as 1234\n");
    }
    drop(daemon);
    let daemon = Setup::default().config(&config("other.pub")).start();
    let refused = run(&daemon.socket(), &["run", &name]);
    assert!(refused.status == 125 && refused.stderr.contains("no configured key verifies"), "{refused:?}");
    assert!(stdout(&run(&daemon.socket(), &["info"])).contains("by 1 key"));
}

/// Volumes of an image initially have the image's content and owners. They are writable even if the rest of the root is
/// read-only, and their content is removed with the container. As a control, the whole root is writable without
/// `--read-only`.
#[test]
fn volumes_are_writable_on_read_only_root() {
    let (image, daemon) = (Image::build(), Daemon::start());
    let archive = image.archive("docker-archive", "docker.io/team/app:1");
    let mut import = command(Some(&daemon.socket()), &["image", "import", "-"]);
    stdout(&finish(import.stdin(std::fs::File::open(&archive).unwrap()).spawn().unwrap()));
    let script = "cat /srv/changed; stat -c ' %u:%a' /srv/private; stat -c '%u:%a' /tmp/data; \
        for file in /srv/new /tmp/data/new /tmp/new /new; do \
        [ -e $file ] && echo stale; (echo x >$file) 2>/dev/null && echo wrote $file || echo could not $file; done";
    let reported = |more: &[&str]| {
        let arguments = [&["run", "-u", "0", "--disk", "32M"], more, &["team/app:1", "--", script]].concat();
        stdout(&run(&daemon.socket(), &arguments)).to_owned()
    };
    let begin = "two 1234:600\n0:755\nwrote /srv/new\nwrote /tmp/data/new\n";
    for _ in 0..2 {
        assert_eq!(reported(&["--read-only"]), format!("{begin}could not /tmp/new\ncould not /new\n"));
    }
    assert_eq!(reported(&[]), format!("{begin}wrote /tmp/new\nwrote /new\n"), "control failed");
}

/// If the disk becomes full during a pull, the error names the full disk, and no partial layer is left.
#[test]
fn full_disk_leaves_the_store_whole() {
    let (image, registry) = (Image::build(), Registry::start(false));
    image.push(&registry, "team/app:1");
    let name = registry.name("team/app:1");
    let mut daemon = Setup::default().disk(7 << 20).start();
    let ballast = daemon.setup().state_dir().join("ballast");
    std::fs::write(&ballast, vec![1; (6 << 20) + (700 << 10)]).unwrap();
    let full = run(&daemon.socket(), &["image", "pull", &name]);
    assert!(full.status == 125 && full.stderr.contains("no space"), "{full:?}");
    assert_eq!(stdout(&run(&daemon.socket(), &["image", "ls", "-q"])), "");
    daemon.kill();
    std::fs::remove_file(ballast).unwrap();
    daemon.start_again();
    assert_eq!(stdout(&run(&daemon.socket(), &["image", "ls", "-q"])), "");
    stdout(&run(&daemon.socket(), &["image", "pull", &name]));
    assert_eq!(stdout(&run(&daemon.socket(), &["run", &name])), "hello from /srv as 1234\n");
}

/// If a daemon is killed during a pull, the next daemon has no partial layer, and fetches only the missing layers.
#[test]
fn killed_pull_resumes_with_missing_layers() {
    let (image, registry) = (Image::build(), Registry::start(false));
    image.push(&registry, "team/app:1");
    let between = Holding::start(&registry, 700 << 10);
    let (mut daemon, name) = (Daemon::start(), between.name("team/app:1"));
    let pulling = command(Some(&daemon.socket()), &["image", "pull", &name]).spawn().unwrap();
    between.until_held();
    let ingest = daemon.setup().state_dir().join("images/ingest");
    let came = || std::fs::read_dir(&ingest).unwrap().flatten().map(|file| file.metadata().unwrap().len()).max();
    integration::wait::until("a part of the layer is on disk", || came().filter(|bytes| *bytes >= 256 << 10));
    daemon.kill();
    assert_eq!(finish(pulling).status, 125);
    between.release();
    daemon.start_again();
    assert_eq!(stdout(&run(&daemon.socket(), &["image", "ls", "-q"])), "");
    assert_eq!(layers(&daemon.setup().state_dir()), 0);
    assert!(!between.saw("range: bytes="), "control failed");
    stdout(&run(&daemon.socket(), &["image", "pull", &name]));
    assert!(between.saw("range: bytes="));
    assert_eq!(stdout(&run(&daemon.socket(), &["run", &name])), "hello from /srv as 1234\n");
    assert_eq!(std::fs::read_dir(&ingest).unwrap().count(), 0);
}
