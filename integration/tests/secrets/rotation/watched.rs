//! Programs that watch the directory of their secret files, as most certificate reloaders do.

use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt as _;

use integration::daemon::Daemon;
use integration::request::{RequestBuilder, sleeper, update};
use integration::wait;
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

use crate::rotation::{ROOT, content, inside, wait_for_single_generation};

/// Each rotation causes an event in the visible directory. After the event the new content can be read, and the name
/// refers to another inode.
#[test]
fn each_rotation_is_seen_in_the_directory() {
    let daemon = Daemon::start();
    let request = sleeper("c").file("tls/tls.crt", b"1").file("tls/tls.key", b"1").file("/srv/app/key", b"1");
    let container = daemon.api.started(request);
    let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    let mask = WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM | WatchFlags::CREATE | WatchFlags::DELETE;
    let directory = format!("{ROOT}/tls");
    add_watch(&watch, inside(&container, &directory), mask).unwrap();
    for number in 2..5_u8 {
        let value = number.to_string();
        let inode = |name: &str| inside(&container, &format!("{directory}/{name}")).symlink_metadata().unwrap().ino();
        let before = (inode("tls.crt"), inode("tls.key"));
        let pair = [("tls/tls.crt", value.as_bytes()), ("tls/tls.key", value.as_bytes())];
        daemon.api.update(update("c", &pair)).unwrap();
        let mut names = Vec::new();
        wait::until("events of both names", || {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut reader = Reader::new(&watch, &mut buffer);
            while let Ok(event) = reader.next() {
                assert_eq!(event.events(), ReadFlags::MOVED_TO);
                assert_eq!(content(&container, &format!("{directory}/tls.crt")), Some(value.clone()));
                names.push(event.file_name().unwrap().to_str().unwrap().to_owned());
            }
            (names.len() >= 2).then_some(())
        });
        assert_eq!(names, ["tls.crt", "tls.key"]);
        assert!(inode("tls.crt") != before.0 && inode("tls.key") != before.1);
        wait_for_single_generation(&container);
    }
}
