//! Installs `protoc` plugins for Go and a module cache in `target/go`, for tests that control the daemon from Go.
//!
//! The plugins and modules are installed once. A stamp with the versions shows that they are up to date.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{Workspace, run, step};

/// Programs from the Go module proxy, pinned so that a new release cannot break the tests.
const PLUGINS: [&str; 2] =
    ["google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11", "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0"];
/// Modules used in docs/guides/go.md.
const MODULES: [&str; 2] =
    ["google.golang.org/grpc@v1.84.0", "google.golang.org/genproto/googleapis/rpc@v0.0.0-20261110000943-09e21b237f2c"];
/// Packages of [`MODULES`] that the guide's programs import.
const PACKAGES: [&str; 2] = ["google.golang.org/grpc", "google.golang.org/genproto/googleapis/rpc/errdetails"];

/// Creates the directory if missing, and returns it: `bin` has the plugins, `mod` the modules, `cache` the compiled
/// packages.
pub(crate) fn environment(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let directory = workspace.target.join("go");
    let stamp = directory.join("modules");
    let wanted = PLUGINS.into_iter().chain(MODULES).collect::<Vec<_>>().join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(directory);
    }
    step("Fetching modules and plugins of protoc for Go");
    let module = directory.join("module");
    if module.exists() {
        fs::remove_dir_all(&module)?;
    }
    fs::create_dir_all(&module)?;
    let go = || {
        let mut go = Command::new("go");
        go.current_dir(&module).env("GOTOOLCHAIN", "local").env("GOFLAGS", "-modcacherw");
        go.env("GOBIN", directory.join("bin")).env("GOMODCACHE", directory.join("mod"));
        go.env("GOCACHE", directory.join("cache"));
        go
    };
    for plugin in PLUGINS {
        run(go().args(["install", plugin]))?;
    }
    run(go().args(["mod", "init", "cached"]))?;
    run(go().arg("get").args(MODULES))?;
    run(go().arg("build").args(PACKAGES))?;
    fs::write(stamp, wanted)?;
    Ok(directory)
}
