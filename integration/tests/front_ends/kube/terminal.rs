//! Plays that a user starts in a shell: objects come from standard input, and progress is shown on a terminal.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use integration::cli::finish;
use integration::terminal::ends;

use crate::kube::world::{KubeFixture, OLD, VARIABLE};

#[test]
fn p64_stdin_objects_are_played_compared_removed() {
    let world = KubeFixture::new();
    let text = fs::read_to_string(world.objects(OLD, VARIABLE, "hello")).unwrap();
    let before = world.daemon.footprint();
    let given = |arguments: &[&str], text: &str| {
        let mut child = world.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        finish(child)
    };
    let image = world.image();
    let play = ["play", "-", "--image-override", &*image];
    let played = given(&play, &text);
    assert!(played.status == 0 && played.stderr.contains("web: ready"), "{played:?}");
    assert_eq!(world.reported(&["ps"])[0]["play"], "stdin");
    let again = given(&play, &text);
    assert!(again.status == 0 && again.stderr.contains("stdin: nothing has changed"), "{again:?}");
    let differs = given(&["diff", "-", "--image-override", &image], &text.replace("hello", "other"));
    assert!(differs.status == 1 && differs.stdout.contains("replace"), "{differs:?}");
    for nothing in ["", "---\n", "# nothing\n"] {
        let refused = given(&play, nothing);
        assert!(refused.status == 125 && refused.stderr.contains("-: no objects"), "{refused:?}");
    }
    assert_eq!(world.kube(&["down", "-"]).status, 0);
    assert_eq!(world.containers().len(), 0);
    assert!(!world.search_files(world.daemon.setup().home()).found());
    world.daemon.wait_until_back_at(&before);
}

/// A terminal receives the same lines as a pipe. Each line starts at the left margin, and no line contains a secret
/// value.
#[test]
fn p64_terminal_progress_prints_line_per_step() {
    let world = KubeFixture::new();
    let path = world.objects(OLD, VARIABLE, "hello");
    let image = world.image();
    let seen = |arguments: &[&str]| {
        let (mut screen, terminal) = ends();
        let mut command = world.command(arguments);
        command.env("TERM", "xterm").stdin(terminal.try_clone().unwrap());
        command.stdout(terminal.try_clone().unwrap()).stderr(terminal);
        let mut child = command.spawn().unwrap();
        // Afterwards only the program has the terminal open.
        drop(command);
        let (mut text, mut some) = (Vec::new(), [0; 4096]);
        while let Ok(length @ 1..) = screen.read(&mut some) {
            text.extend_from_slice(&some[..length]);
        }
        assert_eq!(child.wait().unwrap().code(), Some(0), "{}", String::from_utf8_lossy(&text));
        String::from_utf8(text).unwrap()
    };
    let shown = seen(&["play", &path, "--image-override", &image]);
    let mut rest = &*shown;
    for step in ["web: created", "web: prepare completed", "web: proxy started", "web: app started", "web: ready"] {
        let at = rest.find(step).unwrap_or_else(|| panic!("{step}: {shown:?}"));
        rest = &rest[at..];
    }
    assert!(
        shown.split_inclusive('\n').all(|line| line.ends_with("\r\n") && line.matches('\r').count() == 1),
        "{shown:?}"
    );
    assert!(!shown.contains(OLD) && !shown.contains(VARIABLE));
    assert!(seen(&["ps"]).contains("Running"));
    assert!(seen(&["down", "web"]).contains("default_web: removed"));
}
