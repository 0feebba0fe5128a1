//! Directories of secret files: owners, readers, and effects of an update.

use std::os::unix::fs::MetadataExt as _;

use executor_proto::v1::{File, RunRequest, UpdateFilesRequest};
use integration::api::exit;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder, program, sh, sleeper, update};
use integration::rootfs::Rootfs;
use tonic::Code;

use crate::rotation::{ROOT, content, inside, names};

const CONFIG: &str = "/root/.kube/config";

/// If the image lacks the home directory of a secret file, the directory is created, and is writable as if the image
/// had it.
#[test]
fn home_around_secret_file_stays_writable() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = rootfs.listing();
    let script = format!(
        "cat {CONFIG} && cd /root && mkdir -p .kube/cache .cache && echo ls >.history && mv .history .old && \
         echo x >.kube/cache/x && cat .old && ! mv {CONFIG} .kube/away 2>/dev/null && ! echo y 2>/dev/null >{CONFIG}"
    );
    for user in ["root", "app", "4321:4321"] {
        let request = sh(&script).rootfs(&rootfs.reference()).user(user).file(CONFIG, b"the token\n").unmasked();
        let ended = daemon.api.run_to_end(request);
        let printed = daemon.api.output(&ended.id).text();
        assert_eq!((exit(&ended), &*printed), (Ok(0), "the token\nls\n"), "{user}");
        assert_eq!(ended.files[0].mount_point, CONFIG);
    }
    // As a control, a directory that is declared to contain only secret files is mounted as a whole and is read-only.
    let request = sh("echo x >/root/.history").rootfs(&rootfs.reference()).file(CONFIG, b"x");
    let ended = daemon.api.run_to_end(RunRequest { file_directories: vec!["/root".into()], ..request });
    assert_eq!((exit(&ended).map(|code| code != 0), &*ended.files[0].mount_point), (Ok(true), "/root"));
    // A read-only root stays read-only. The file exists in it.
    let request = sh(&format!("cat {CONFIG} && ! echo x 2>/dev/null >/root/x")).rootfs(&rootfs.reference());
    let request = request.file(CONFIG, b"x").unmasked();
    let ended = daemon.api.run_to_end(RunRequest { read_only_rootfs: true, ..request });
    assert_eq!((exit(&ended), &*daemon.api.output(&ended.id).text()), (Ok(0), "x"));
    assert_eq!(rootfs.listing(), before, "the operator's directory is unchanged");
}

/// Files can be added to declared directories, even to empty directories. An individually mounted file is replaced.
#[test]
fn files_can_be_added_to_declared_directories() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let request = sleeper("c").rootfs(&rootfs.reference()).file(CONFIG, b"old");
    let file_directories = vec!["/run/creds".into(), "more".into()];
    let container = daemon.api.started(RunRequest { file_directories, ..request });
    let spec = container.spec.as_ref().unwrap();
    assert_eq!(spec.file_directories, ["/run/creds".to_owned(), format!("{ROOT}/more")]);
    assert_eq!(names(&container, "/run/creds"), [""; 0]);
    let files: [(&str, &[u8]); 3] = [("/run/creds/db/user", b"u"), ("more/x", b"x"), (CONFIG, b"new")];
    let updated = daemon.api.update(update("c", &files)).unwrap();
    let mounts: Vec<&str> = updated.files.iter().map(|file| &*file.mount_point).collect();
    assert_eq!(mounts, [CONFIG, "/run/creds", &format!("{ROOT}/more")]);
    for (path, expected) in [("/run/creds/db/user", "u"), (&*format!("{ROOT}/more/x"), "x"), (CONFIG, "new")] {
        assert_eq!(content(&container, path).as_deref(), Some(expected), "{path}");
    }
    assert!(inside(&container, "/run/creds/db").symlink_metadata().unwrap().is_dir(), "a real directory");
    let refused = daemon.api.update(update("c", &[("/root/.kube/other", b"x")])).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    daemon.api.stop("c", Some(0)).unwrap();
    let wipe = daemon.api.wait("c").unwrap().result.unwrap().wipe.unwrap();
    assert_eq!((wipe.verified, wipe.files, wipe.bytes), (true, 4, 3 + 3 + 1 + 1));
}

fn shared(path: &str, content: &[u8], mode: Option<u32>, group: Option<&str>) -> File {
    File { path: path.into(), content: content.into(), mode, group: group.map(Into::into), ..File::default() }
}

/// A program starts as root and then changes its user. If its group is the file's group, it can read the file; with
/// another group it cannot.
#[test]
fn program_dropping_user_reads_group_files() {
    let daemon = Daemon::start();
    let read = |path: &str, uid: &str, gid: &str| {
        format!("setpriv --reuid {uid} --regid {gid} --clear-groups cat {path} 2>/dev/null || echo no;")
    };
    let (group, all, own) = (format!("{ROOT}/db/group"), "/srv/all/x", format!("{ROOT}/own/x"));
    let readers = [("1000", "1000"), ("2000", "2000")];
    let script: String = [&*group, all, &own]
        .iter()
        .flat_map(|path| readers.map(|(uid, gid)| read(path, uid, gid)))
        .chain([format!("stat -Lc '%a %U %G' {group} {all} {own} {ROOT} {ROOT}/db {ROOT}/own")])
        .collect();
    let request = program("/bin/sh", &["-c", &script]).unmasked().action(|run| {
        run.volume_mounted_files = vec![
            shared("db/group", b"g\n", Some(0o640), Some("vcap")),
            shared(all, b"a\n", Some(0o444), None),
            shared("own/x", b"o\n", None, None),
        ];
    });
    let ended = daemon.api.run_to_end(request);
    let expected = "g\nno\na\na\nno\nno\n640 root vcap\n444 root root\n600 root root\n750 root vcap\n750 root vcap\n700 root root\n";
    assert_eq!(daemon.api.output(&ended.id).text(), expected);
    let reported: Vec<(u32, u32)> = ended.files.iter().map(|file| (file.mode, file.gid)).collect();
    assert_eq!(reported, [(0o640, 1000), (0o444, 0), (0o600, 0)]);
}

/// An update keeps the mode and group of a replaced file, unless the update sets them. Errors name their field.
#[test]
fn update_keeps_or_changes_mode_and_group() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let request = sleeper("m").rootfs(&rootfs.reference()).action(|run| {
        run.volume_mounted_files =
            vec![shared("a", b"1", Some(0o640), Some("web")), shared("/srv/k", b"1", None, None)];
    });
    let container = daemon.api.started(request);
    let base = container.id_range_start;
    let seen = |path: &str| {
        let meta = inside(&container, path).metadata().unwrap();
        (meta.mode() & 0o7777, meta.gid() - base)
    };
    let a = format!("{ROOT}/a");
    let change = |files: Vec<File>| {
        let request = UpdateFilesRequest { id: "m".into(), files, ..UpdateFilesRequest::default() };
        let files = daemon.api.update(request).unwrap().files;
        files.iter().map(|file| (file.mode, file.gid)).collect::<Vec<_>>()
    };
    assert_eq!((seen(&a), seen("/srv/k")), ((0o640, 80), (0o600, 0)));
    assert_eq!(change(vec![shared("a", b"2", None, None)]), [(0o640, 80), (0o600, 0)]);
    assert_eq!((seen(&a), content(&container, &a).as_deref()), ((0o640, 80), Some("2")));
    let other = vec![shared("a", b"3", Some(0o400), Some("app")), shared("/srv/k", b"3", Some(0o444), Some("7"))];
    assert_eq!(change(other), [(0o400, 1234), (0o444, 7)]);
    assert_eq!((seen(&a), seen("/srv/k"), seen(ROOT)), ((0o400, 1234), (0o444, 7), (0o700, 0)));
    assert_eq!(
        change(vec![shared("a", b"4", None, Some(""))])[0],
        (0o400, 0),
        "an empty group means the user's own group"
    );

    let bad = vec![shared("a", b"", Some(0o4755), Some("a b")), shared("n", b"", None, Some("no-such-group"))];
    let request = UpdateFilesRequest { id: "m".into(), files: bad, ..UpdateFilesRequest::default() };
    let refused = daemon.api.update(request).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    for words in ["files[0].mode: is 0o4755; 0 to 0o777 is allowed", "files[0].group"] {
        assert!(refused.message().contains(words), "{refused}");
    }
    let request = UpdateFilesRequest {
        id: "m".into(),
        files: vec![shared("n", b"", None, Some("no-such-group"))],
        ..UpdateFilesRequest::default()
    };
    let refused = daemon.api.update(request).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("files[0].group: group `no-such-group` not found"), "{refused}");
    assert_eq!(daemon.api.get("m").unwrap().files_generation, 4);
}

/// Directories of secret files are real directories at every level, before and after a rotation, and the files are
/// links. Programs recognise bindings by this layout.
#[test]
fn directories_of_files_are_real() {
    let daemon = Daemon::start();
    let container =
        daemon.api.started(sleeper("d").file("db/tls/key", b"1").file("db/user", b"1").file("cache/uri", b"1"));
    let kinds = |dir: &str| {
        let entries = std::fs::read_dir(inside(&container, dir)).unwrap().map(Result::unwrap);
        let mut kinds: Vec<(String, bool, bool)> = entries
            .map(|entry| {
                let kind = entry.file_type().unwrap();
                (entry.file_name().into_string().unwrap(), kind.is_dir(), kind.is_symlink())
            })
            .collect();
        kinds.sort();
        kinds
    };
    let is = |name: &str, dir: bool| (name.to_owned(), dir, !dir);
    let db = format!("{ROOT}/db");
    assert_eq!(kinds(ROOT), [is("cache", true), is("db", true)]);
    assert_eq!(kinds(&db), [is("tls", true), is("user", false)]);
    let change = UpdateFilesRequest {
        removed_paths: vec!["cache/uri".into()],
        ..update("d", &[("db/a/b/c", b"2"), ("new/x", b"2")])
    };
    daemon.api.update(change).unwrap();
    assert_eq!(kinds(ROOT), [is("db", true), is("new", true)]);
    assert_eq!(kinds(&db), [is("a", true), is("tls", true), is("user", false)]);
    assert_eq!(kinds(&format!("{db}/a/b")), [is("c", false)]);
    assert_eq!(content(&container, &format!("{db}/a/b/c")).as_deref(), Some("2"));
}
