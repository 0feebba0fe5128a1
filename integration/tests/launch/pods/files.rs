//! Secret files in volumes of a pod (ADR 48).

use executor_proto::v1::volume_mount::Source;
use executor_proto::v1::{
    CreatePodRequest, EmptyVolume, File, PodVolume, PodVolumeName, RunRequest, UpdateFilesRequest, VolumeMount,
    WritableFiles,
};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh};
use tonic::Code;

use super::peers::exec;
use super::{asked, create, delete, in_pod, script_output};

/// Secret files are mounted over the pod's volume and are not written into it. Other members see only empty mount
/// points.
#[test]
fn secret_files_are_mounted_over_pod_volume() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let volumes = vec![PodVolume {
        name: "work".into(),
        empty: Some(EmptyVolume { mode: Some(0o777), ..EmptyVolume::default() }),
    }];
    create(&daemon, &CreatePodRequest { volumes, ..asked("p") });
    let with = |script: &str| {
        let volumes = vec![VolumeMount {
            path: "/data".into(),
            source: Some(Source::Pod(PodVolumeName { name: "work".into() })),
            ..VolumeMount::default()
        }];
        RunRequest { volumes, ..in_pod("p", sh(script)) }
    };
    let secret = |script: &str| {
        let files = with(script).file("/data/conf/key", b"first").file("/data/a/single", b"alone");
        RunRequest { file_directories: vec!["/data/conf".into()], ..files }.unmasked()
    };
    let look = |script: &str| script_output(&daemon, with(script));
    // Files that other members have in the volume are not affected.
    look("mkdir /data/a /data/conf; echo kept > /data/a/other; echo below > /data/conf/hidden");
    let script = "cat /data/conf/key /data/a/single /data/a/other; ls /data/conf; echo x > /data/own; \
         echo x > /data/conf/new; exec sleep 100000";
    daemon.api.started(secret(script).id("holder").user("1000:1000"));
    let reported =
        daemon.api.follow("holder").until(|entry| String::from_utf8_lossy(&entry.data).contains("Read-only"));
    let reported: String = reported.iter().map(|entry| String::from_utf8_lossy(&entry.data).into_owned()).collect();
    assert!(reported.starts_with("firstalonekept\nkey\n"), "{reported}");
    let seen = look("cat /data/conf/* /data/a/*; ls /data/conf /data/a; stat -c %u:%g:%s /data/a/single");
    assert_eq!(seen, "below\nkept\n/data/a:\nother\nsingle\n\n/data/conf:\nhidden\n0:0:0\n");
    // Updates change files in the volume for secrets, even if another member changes the mount points.
    let update = |content: &[u8]| {
        let file = |path: &str| File { path: path.into(), content: content.to_vec(), ..File::default() };
        let files = vec![file("/data/conf/key"), file("/data/a/single")];
        daemon.api.update(UpdateFilesRequest { id: "holder".into(), files, ..UpdateFilesRequest::default() })
    };
    update(b"second").unwrap();
    assert_eq!(exec(&daemon, "holder", "cat /data/conf/key /data/a/single"), "secondsecond");
    look("mv /data/conf /data/moved; mkdir /data/conf; rm /data/a/single; ln -s /data/own /data/a/single");
    let refused = update(b"third").unwrap_err();
    assert!(refused.message().contains("has moved the mounted files"), "{refused:?}");
    let everything = look("for one in $(find /data -type f); do cat $one; done");
    assert!(!["first", "second", "third", "alone"].iter().any(|secret| everything.contains(secret)), "{everything}");
    daemon.api.stop("holder", None).unwrap();
    let stopped = daemon.api.wait("holder").unwrap();
    assert!(stopped.result.unwrap().wipe.unwrap().verified);
    delete(&daemon, "p", true).unwrap();
    daemon.wait_until_back_at(&before);
}

/// A mount point is refused if a link or a file is at its path, or if its path is never allowed.
#[test]
fn mount_point_in_volume_follows_no_link() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    create(&daemon, &CreatePodRequest { volumes: vec![PodVolume { name: "work".into(), empty: None }], ..asked("p") });
    let with = |read_only, script: &str| {
        let source = Some(Source::Pod(PodVolumeName { name: "work".into() }));
        let volumes = vec![VolumeMount { path: "/data".into(), source, read_only, ..VolumeMount::default() }];
        RunRequest { volumes, ..in_pod("p", sh(script)) }
    };
    script_output(
        &daemon,
        with(false, "ln -s /etc /data/link; echo x > /data/file; mkdir /data/dir; ln -s /etc/passwd /data/dir/link"),
    );
    for (file, directories) in [
        ("/data/link/key", vec![]),
        ("/data/link/key", vec!["/data/link"]),
        ("/data/file/key", vec!["/data/file"]),
        ("/data/dir/link", vec![]),
    ] {
        let request = RunRequest {
            file_directories: directories.into_iter().map(str::to_owned).collect(),
            ..with(false, "true").file(file, b"secret")
        };
        let refused = daemon.api.run(request).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{file}: {refused:?}");
        assert!(refused.message().contains("may have changed the volume"), "{file}: {}", refused.message());
    }
    let read_only = daemon.api.run(with(true, "true").file("/data/key", b"secret")).unwrap_err();
    let writable = RunRequest {
        writable_files: Some(WritableFiles::default()),
        ..with(false, "true").file("/data/key", b"secret")
    };
    let writable = daemon.api.run(writable).unwrap_err();
    for refused in [read_only, writable] {
        assert!(refused.message().contains("volumes[0].path"), "{refused:?}");
    }
    delete(&daemon, "p", true).unwrap();
    daemon.wait_until_back_at(&before);
}
