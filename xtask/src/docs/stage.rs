//! Writes the source of the book: pages of the repository in the same layout, with adjusted links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail};

use super::links::{anchors, links};

/// Pages outside `docs/` that are part of the book, with their titles.
const PROJECT: [(&str, &str); 7] = [
    ("README.md", "Overview"),
    ("ARCHITECTURE.md", "Architecture"),
    ("SECURITY.md", "Security policy"),
    ("CONTRIBUTING.md", "Contributing"),
    ("CHANGELOG.md", "Changes"),
    ("systemd/README.md", "systemd units"),
    ("integration/vm/README.md", "Virtual machine tests"),
];
/// Directory of the book's pages other than [`PROJECT`].
const PAGES: &str = "docs";
const SUMMARY: &str = "SUMMARY.md";
/// mdBook's settings, and the style sheet that the settings name.
const SETTINGS: [&str; 2] = ["book.toml", "book.css"];

/// Pages by their paths in the repository.
pub(super) type Pages = BTreeMap<PathBuf, String>;

/// Checks the links of every Markdown file of the repository. Returns their number.
pub(super) fn check(root: &Path) -> anyhow::Result<usize> {
    let documents = documents(root)?;
    let mut count = 0;
    let mut faults = Vec::new();
    for (path, text) in &documents {
        for link in links(text) {
            count += 1;
            let found = target(root, &documents, path, link.path, link.heading);
            if let Err(why) = found.and_then(|found| same_decision(link.text, found.as_deref())) {
                faults.push(format!("{}: [{}]({}): {why}", path.display(), link.text, link.path));
            }
        }
    }
    if !faults.is_empty() {
        bail!("{} links are wrong:\n{}", faults.len(), faults.join("\n"));
    }
    Ok(count)
}

/// Returns every Markdown file of the repository.
pub(super) fn documents(root: &Path) -> anyhow::Result<Pages> {
    let mut documents = Pages::new();
    below(root, Path::new(""), &mut documents)?;
    Ok(documents)
}

/// Checks that a link with the text `ADR 2` points to the decision with this number.
fn same_decision(text: &str, found: Option<&Path>) -> Result<(), String> {
    let Some(number) = text.strip_prefix("ADR ").and_then(|number| number.parse::<u32>().ok()) else { return Ok(()) };
    let name = found.and_then(|path| path.file_name()?.to_str()).unwrap_or_default();
    let is_same = name.starts_with(&format!("{number:04}-"));
    if is_same { Ok(()) } else { Err("links to another decision".to_owned()) }
}

/// Writes the book's source. Returns the number of links.
pub(super) fn write(root: &Path, to: &Path) -> anyhow::Result<usize> {
    let count = check(root)?;
    let pages = read(root)?;
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    let mut copied = BTreeSet::new();
    for (path, text) in &pages {
        let mut page = text.clone();
        // Replace from the end, so that the ranges of earlier links stay valid.
        for link in links(text).iter().rev() {
            let Some(found) = target(root, &pages, path, link.path, link.heading).unwrap_or_default() else { continue };
            if root.join(&found).is_dir() {
                page.replace_range(link.range.clone(), link.text);
            } else if !pages.contains_key(&found) {
                copied.insert(found);
            }
        }
        put(&to.join(path), &page)?;
    }
    for file in copied {
        let copy = to.join(&file);
        copy.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::copy(root.join(&file), &copy))
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    put(&to.join(SUMMARY), &summary(&fs::read_to_string(root.join(PAGES).join(SUMMARY))?))?;
    for name in SETTINGS {
        put(&to.join(name), &fs::read_to_string(root.join(PAGES).join(name)).with_context(|| name.to_owned())?)?;
    }
    Ok(count)
}

/// Returns the table of contents: paths are relative to the repository's root, and the pages of `PROJECT` are at the
/// end.
fn summary(docs: &str) -> String {
    let mut summary = docs.replace("](", &format!("]({PAGES}/"));
    summary.push_str("\n# Project\n\n");
    for (path, title) in PROJECT {
        summary.push_str(&format!("- [{title}]({path})\n"));
    }
    summary
}

fn read(root: &Path) -> anyhow::Result<Pages> {
    let mut pages = Pages::new();
    for (path, _) in PROJECT {
        let text = fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        pages.insert(path.into(), text);
    }
    below(root, Path::new(PAGES), &mut pages)?;
    pages.remove(&Path::new(PAGES).join(SUMMARY));
    Ok(pages)
}

fn below(root: &Path, dir: &Path, pages: &mut Pages) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join(dir)).with_context(|| format!("cannot list {}", dir.display()))? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), dir.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            // These directories contain built or downloaded files, whose pages are not documentation of the executor.
            if name != "target" && name != "node_modules" && !name.to_string_lossy().starts_with('.') {
                below(root, &path, pages)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// Returns the file or directory that a link points to; `None` for a heading of the same page.
fn target(
    root: &Path,
    pages: &Pages,
    from: &Path,
    path: &str,
    heading: Option<&str>,
) -> Result<Option<PathBuf>, String> {
    let found = if path.is_empty() { from.to_owned() } else { joined(from, path).ok_or("leaves the repository")? };
    if !root.join(&found).exists() {
        return Err("does not exist".to_owned());
    }
    if let (Some(heading), Some(page)) = (heading, pages.get(&found))
        && !anchors(page).iter().any(|anchor| anchor == heading)
    {
        return Err(format!("has no heading #{heading}"));
    }
    Ok((!path.is_empty()).then_some(found))
}

/// Returns the path of a link relative to the root.
fn joined(from: &Path, path: &str) -> Option<PathBuf> {
    let mut found = from.parent()?.to_owned();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => found.push(name),
            Component::CurDir => {}
            Component::ParentDir => found = found.parent()?.to_owned(),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(found)
}

fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    let dir = path.parent().context("the path has no directory")?;
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (path, _) in PROJECT {
            put(&root.join(path), "# Title\n").unwrap();
        }
        put(&root.join("docs/SUMMARY.md"), "- [A](a.md)\n").unwrap();
        for name in SETTINGS {
            put(&root.join("docs").join(name), "").unwrap();
        }
        put(&root.join("docs/a.md"), "# A\n[here](#a) [up](../README.md#title) [dir](../docs) [file](book.toml)\n")
            .unwrap();
        put(&root.join("docs/adr/0002-b.md"), "# 2. B\n").unwrap();
        assert_eq!(check(root).unwrap(), 5);
        let out = tempfile::tempdir().unwrap();
        let staged = out.path().join("book");
        write(root, &staged).unwrap();
        let page = fs::read_to_string(staged.join("docs/a.md")).unwrap();
        assert_eq!(page, "# A\n[here](#a) [up](../README.md#title) dir [file](book.toml)\n");
        assert!(staged.join("docs/book.toml").exists());
        assert!(fs::read_to_string(staged.join(SUMMARY)).unwrap().starts_with("- [A](docs/a.md)\n"));

        put(
            &root.join("b/c.md"),
            "[x](b.md) [y](#b) [z](../README.md#none) [w](../../c) [ADR 1](../docs/adr/0002-b.md)",
        )
        .unwrap();
        let faults = check(root).unwrap_err().to_string();
        assert!(faults.starts_with("5 links are wrong"), "{faults}");
    }

    #[test]
    fn repository_links_are_valid() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let count = check(root).unwrap();
        assert!(count > 500, "{count} links");
    }
}
