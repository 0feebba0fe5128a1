//! Tests the volume flags of agent-cli.

use integration::cli::run;
use integration::rootfs::Rootfs;

use super::{Lent, names};

/// agent-cli accepts Docker's volume flags: by name and by directory, in the short and the long syntax. An unlisted
/// directory is refused with the list.
#[test]
fn dockers_forms() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let (daemon, reference) = (lent.daemon(""), rootfs.reference());
    let socket = daemon.socket();
    let agent = |flags: &[&str], script: &str| {
        let program = ["/bin/sh", "-c", script];
        run(&socket, &[&["run", "--rootfs", &reference], flags, &["--"], &program].concat())
    };
    let shared = lent.path("shared").display().to_string();
    let by_path = format!("{shared}:/data");
    let wrote =
        agent(&["-v", "shared:/data", "-v", "/new", "--tmpfs", "/t"], "echo 1 >/data/a; echo x >/new/x; echo x >/t/x");
    assert_eq!(wrote.status, 0, "{wrote:?}");
    assert_eq!(agent(&["-v", &by_path], "cat /data/a; mkdir /data/dir").stdout, "1\n");
    let bind = format!("type=bind,source={shared}/dir,target=/data");
    assert_eq!(agent(&["--mount", &bind], "echo 2 >/data/b").status, 0);
    let read_only =
        agent(&["--mount", "type=volume,src=shared,dst=/d,volume-subpath=dir,readonly"], "cat /d/b; echo x >/d/x");
    assert!(read_only.stdout == "2\n" && read_only.status != 0, "{read_only:?}");
    let memory = agent(
        &["--mount", "type=tmpfs,target=/t,tmpfs-mode=700", "--mount", "type=empty,target=/e,medium=memory,size=64k"],
        "stat -c %a /t /e",
    );
    assert_eq!(memory.stdout, "700\n1777\n");
    assert_eq!(names(&lent.path("shared")), ["a", "dir"]);
    let reported = agent(&["-v", "/etc:/host"], "true");
    assert_eq!(reported.status, 125, "{reported:?}");
    assert!(
        reported.stderr.contains("--volume or --mount /etc: ")
            && reported.stderr.contains(&format!("shared ({shared})")),
        "{reported:?}"
    );
    let reported = agent(&["-v", "deps:/deps"], "true");
    assert!(reported.stderr.contains("read-only in this daemon's configuration"), "{reported:?}");
    let kept = run(
        &socket,
        &["run", "-d", "--id", "kept", "-v", "shared:/data:ro", "--rootfs", &reference, "--", "/bin/sleep", "100000"],
    );
    assert_eq!(kept.status, 0, "{kept:?}");
    let shown = run(&socket, &["inspect", "kept"]);
    assert!(shown.stdout.contains("/data: shared, read-only"), "{shown:?}");
    let json = run(&socket, &["inspect", "--json", "kept"]).json();
    assert_eq!(json["spec"]["volumes"][0]["host"]["name"], "shared");
    let info = run(&socket, &["info"]).stdout;
    assert!(info.contains(&format!("deps: {}, read-only", lent.path("deps").display())), "{info}");
    assert_eq!(run(&socket, &["rm", "-f", "kept"]).status, 0);
}
