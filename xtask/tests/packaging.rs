//! Checks the package and the checks of the virtual machine without a build: their scripts are well formed, and the
//! files that they name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(dir)).unwrap_or_else(|error| panic!("{dir}: {error}"));
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
}

/// Returns true if sh can parse a script. The script is not run.
fn is_well_formed(script: &Path) -> bool {
    Command::new("sh").arg("-n").arg(script).stderr(std::process::Stdio::null()).status().expect("sh").success()
}

#[test]
fn every_script_is_well_formed() {
    let mut scripts: Vec<PathBuf> =
        ["postinst", "prerm", "postrm"].map(|name| root().join("packaging/debian").join(name)).into();
    scripts.extend(["run", "lib.sh", "libtest.sh", "node.sh"].map(|name| root().join("integration/vm").join(name)));
    scripts.extend(names("integration/vm/checks").iter().map(|name| root().join("integration/vm/checks").join(name)));
    assert!(scripts.len() > 20);
    for script in scripts {
        assert!(is_well_formed(&script), "{}", script.display());
    }
    let broken = tempfile::NamedTempFile::new().expect("a file");
    fs::write(broken.path(), "if true\n").expect("write");
    assert!(!is_well_formed(broken.path()), "control failed: a broken file is accepted");
}

/// Units that the package contains but does not enable.
const OPTIONAL: [&str; 2] = ["executor-drain.service", "executor-cri.service"];

/// postinst and postrm list all units in `systemd/`, except optional units. prerm stops all units.
#[test]
fn the_package_knows_every_unit() {
    let is_unit = |name: &String| name.ends_with(".service") || name.ends_with(".socket");
    let units: BTreeSet<String> = names("systemd").into_iter().filter(is_unit).collect();
    for script in ["postinst", "postrm"] {
        let script = text(&format!("packaging/debian/{script}"));
        let line = script.lines().find_map(|line| line.strip_prefix("UNITS=")).expect("UNITS");
        let named: BTreeSet<String> = line.trim_matches('"').split_whitespace().map(str::to_owned).collect();
        assert_eq!(named, units.iter().filter(|unit| !OPTIONAL.contains(&unit.as_str())).cloned().collect());
    }
    let installed = text("xtask/src/deb/layout.rs");
    for unit in &units {
        assert!(installed.contains(&format!("\"{unit}\"")), "{unit} is not installed");
        assert!(text("packaging/debian/prerm").contains(unit.as_str()), "{unit} is not stopped");
    }
}

/// The book's entry for doc-base names the first page of the book, in the directory in which the package installs the
/// book.
#[test]
fn doc_base_names_the_book() {
    let entry = text("packaging/debian/doc-base");
    let field = |name: &str| entry.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    for name in ["Document:", "Title:", "Section:", "Format:"] {
        assert_ne!(field(name), "", "{name}");
    }
    let html = "/usr/share/doc/executor/html/";
    let layout = text("xtask/src/deb/layout.rs");
    assert!(
        layout.contains("\"usr/share/doc/executor\"") && layout.contains("join(\"html\")"),
        "control failed: the layout has other directories"
    );
    let index = field("Index:").strip_prefix(html).expect("below the book's directory");
    let page = index.replace("index.html", "README.md");
    assert!(root().join(&page).exists(), "{index} is made of {page}, which does not exist");
    assert!(field("Files:").split(' ').all(|files| files.starts_with(html)));
    assert!(
        text("integration/vm/checks/00-install.sh").contains(&format!("{html}{index}")),
        "the installed file is checked"
    );
}

/// The first line of each check describes the check, and its number determines the order.
#[test]
fn checks_say_what_they_are_about() {
    for name in names("integration/vm/checks") {
        let number = name.split('-').next().and_then(|number| number.parse::<u32>().ok());
        assert!(
            name.ends_with(".sh") && number.is_some_and(|number| !(80..90).contains(&number) && number < 100),
            "{name}"
        );
        assert!(text(&format!("integration/vm/checks/{name}")).starts_with("# "), "{name}");
    }
}

#[test]
fn tests_listed_for_vm_exist() {
    let list = text("integration/vm/tests");
    let named: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(named.len() > 3);
    for line in named {
        let words: Vec<&str> = line.split_whitespace().collect();
        let sources = [format!("integration/tests/{}.rs", words[0]), format!("integration/tests/{}/main.rs", words[0])]; // single file, or directory
        assert!(sources.iter().any(|source| root().join(source).exists()), "{line}");
        assert!(words[1].parse::<u32>().is_ok_and(|seconds| seconds > 0), "{line}: how many seconds?");
    }
}
